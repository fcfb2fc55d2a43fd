"""How long /filter takes over HTTP, as kube-scheduler calls it: one connection, one request at a time.

Every figure is measured in one run on one machine: the extender, a FastAPI route that does nothing, and (where Go is
installed) an extender in Go that only decodes and encodes with the Kubernetes types.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from tests.bench import cluster

HERE = Path(__file__).parent
GI = cluster.GI
TWO = [100 * GI, 50 * GI]
SIX = [60 * GI, 40 * GI, 30 * GI, 20 * GI, 10 * GI, 5 * GI]
FULL_REPEATS = {10: 40, 100: 40, 1000: 40, 5000: 16}
NAMES_REPEATS = 300
PAUSE_SECONDS = 0.1


def run() -> str:
    """Measures everything and returns the tables."""
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as folder, _nothing() as nothing, _go(Path(folder)) as go:
        for nodes in (10, 100, 1000, 5000):
            rows += _size(nodes, Path(folder), nothing, go)
    return "\n".join(["", _line("request", "p50 ms", "p99 ms", "nothing", "x", "Go", "x"), *rows])


def _line(*cells: str) -> str:
    first, *rest = cells
    return f"{first:<46}" + "".join(f"{cell:>10}" for cell in rest)


def _size(nodes: int, folder: Path, nothing: int, go: int | None) -> Iterator[str]:
    for half in (False, True):
        file = folder / f"snapshot-{nodes}-{half}.json"
        file.write_text(json.dumps(cluster.snapshot(nodes, half=half)))
        with _extender(file) as port:
            yield from _full(nodes, port, nothing, go, half=half)
            if not half:
                yield from _names(nodes, port, nothing)


def _full(nodes: int, port: int, nothing: int, go: int | None, *, half: bool) -> Iterator[str]:
    body = cluster.nodes_body(cluster.pod("bench-0", TWO), nodes)
    ours, idle, theirs = _compare(
        [(port, "/filter"), (nothing, "/nothing"), *([(go, "/filter")] if go else [])], body, FULL_REPEATS[nodes]
    )
    label = f"{nodes} full nodes, {len(body) / 1e6:.1f} MB, {'half' if half else 'all'} fit"
    yield _row(label, ours, idle, theirs)


def _compare(targets: list[tuple[int, str]], body: bytes, repeats: int) -> list[list[float]]:
    """Takes turns, so that what else the machine does hits all alike; the pause is for the last one's garbage collector."""
    calls = [_call(port, path) for port, path in targets]
    times: list[list[float]] = [[], [], []]
    for count in range(repeats + 2):
        for index, call in enumerate(calls):
            time.sleep(PAUSE_SECONDS)
            seconds = call(body)
            if count >= 2:
                times[index].append(seconds)
    return times


def _names(nodes: int, port: int, nothing: int) -> Iterator[str]:
    ask, idle = _call(port, "/filter"), _call(nothing, "/nothing")
    seen = cluster.names_body(cluster.pod("bench-0", TWO), nodes)
    ask(seen)
    cases: list[tuple[str, Callable[[int], bytes]]] = [
        ("two volumes, seen before", lambda _: seen),
        ("two volumes, new", lambda turn: _fresh(TWO, turn, nodes)),
        ("six volumes, new", lambda turn: _fresh(SIX, turn, nodes)),
    ]
    for label, body_of in cases:
        bodies = [body_of(turn) for turn in range(NAMES_REPEATS)]
        ours, nothing_times = [], []
        for body in bodies:
            ours.append(ask(body))
            nothing_times.append(idle(body))
        yield _row(f"{nodes} names, {label}", ours, nothing_times, [])


def _fresh(sizes: list[int], turn: int, nodes: int) -> bytes:
    """A demand nobody asked about before: sizes that differ by 2 MiB a turn."""
    return cluster.names_body(cluster.pod("bench-0", [size + turn * 2**21 for size in sizes]), nodes)


def _row(label: str, ours: list[float], nothing: list[float], go: list[float]) -> str:
    own = median(ours)
    cells = [label, f"{own * 1e3:.2f}", f"{_p99(ours) * 1e3:.2f}", f"{median(nothing) * 1e3:.2f}"]
    cells.append(f"{own / median(nothing):.2f}")
    cells += [f"{median(go) * 1e3:.2f}", f"{own / median(go):.3f}"] if go else ["-", "-"]
    return _line(*cells)


def _p99(times: list[float]) -> float:
    return quantiles(times, n=100, method="inclusive")[98]


def _call(port: int, path: str) -> Callable[[bytes], float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(body: bytes) -> float:
        started = time.perf_counter()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        seconds = time.perf_counter() - started
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}")
        return seconds

    return call


@contextmanager
def _extender(snapshot: Path) -> Iterator[int]:
    command = [str(Path(sys.executable).with_name("longhorn-extender")), "serve", "--snapshot", str(snapshot)]
    with _server([*command, "--log-level", "info"], "--port") as port:
        yield port


@contextmanager
def _nothing() -> Iterator[int]:
    with _server([sys.executable, "-m", "tests.bench.nothing"]) as port:
        yield port


@contextmanager
def _go(folder: Path) -> Iterator[int | None]:
    if shutil.which("go") is None:
        yield None
        return
    print("building the Go yardstick (about a minute the first time)", file=sys.stderr)
    program = folder / "go-extender"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE / "go", check=True)
    with _server([str(program)]) as port:
        yield port


@contextmanager
def _server(command: list[str], *before_port: str) -> Iterator[int]:
    port = _free_port()
    process = subprocess.Popen(
        [*command, *before_port, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} does not listen on {port}")


if __name__ == "__main__":
    print(run())
