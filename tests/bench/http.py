"""The time of /filter over HTTP, as kube-scheduler calls it.

It uses one connection, and sends one request at a time. All figures come from one run on one machine: the extender, a FastAPI route
that does nothing, and (where Go is installed) an extender in Go that only decodes and encodes with the Kubernetes types.
"""

import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from tests.bench import cluster
from tests.e2e.repeated import Repeated

HERE = Path(__file__).parent
GI = cluster.GI
TWO = [100 * GI, 50 * GI]
SIX = [60 * GI, 40 * GI, 30 * GI, 20 * GI, 10 * GI, 5 * GI]
FULL_REPEATS = {10: 300, 100: 150, 1000: 60, 5000: 24}
NAMES_REPEATS = 300
PROGRAM = str(Path(sys.executable).with_name("longhorn-extender"))
WARM_UP = 3


def run() -> str:
    """Measures everything and returns the tables."""
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as folder, _run_nothing() as nothing, _run_go(Path(folder)) as go:
        for nodes in (10, 100, 1000, 5000):
            rows += _measure_size(nodes, nothing, go)
        heavy = list(_measure_hard_requests())
    return "\n".join(["", _line("request", "p50 ms", "p99 ms", "nothing", "x", "Go", "x"), *rows, "", *heavy])


def _line(*cells: str) -> str:
    label, *figures = cells
    return f"{label:<46}" + "".join(f"{figure:>10}" for figure in figures)


def _measure_size(nodes: int, nothing: int, go: int | None) -> Iterator[str]:
    for half in (False, True):
        with run_extender(cluster.snapshot(nodes, half=half)) as (port, _):
            yield from _measure_full_nodes(nodes, port, nothing, go, half=half)
            if not half:
                yield from _measure_names(nodes, port, nothing)


def _measure_full_nodes(nodes: int, port: int, nothing: int, go: int | None, *, half: bool) -> Iterator[str]:
    body = cluster.nodes_body(cluster.pod("bench-0", TWO), nodes)
    extender, route, go_extender = _compare(
        [(port, "/filter"), (nothing, "/nothing"), *([(go, "/filter")] if go else [])], body, FULL_REPEATS[nodes]
    )
    label = f"{nodes} full nodes, {len(body) / 1e6:.1f} MB, {'half' if half else 'all'} fit"
    yield _row(label, extender, route, go_extender)


def _compare(targets: list[tuple[int, str]], body: bytes, repeats: int) -> list[list[float]]:
    """Measures the targets one after the other, each warmed up. In turns, the garbage of one target would cost the next one time."""
    times: list[list[float]] = [[], [], []]
    for index, (port, path) in enumerate(targets):
        call = connect(port, path)
        for count in range(repeats + WARM_UP):
            seconds = call(body)
            if count >= WARM_UP:
                times[index].append(seconds)
    return times


def _measure_names(nodes: int, port: int, nothing: int) -> Iterator[str]:
    call_filter = connect(port, "/filter")
    call_nothing = connect(nothing, "/nothing")
    repeated = cluster.names_body(cluster.pod("bench-0", TWO), nodes)
    call_filter(repeated)
    cases = {
        "two volumes, seen before": [repeated] * NAMES_REPEATS,
        "two volumes, new": [_new_requirements(TWO, turn + 1, nodes) for turn in range(NAMES_REPEATS)],
        "six volumes, new": [_new_requirements(SIX, turn, nodes) for turn in range(NAMES_REPEATS)],
    }
    for label, bodies in cases.items():
        extender = [call_filter(body) for body in bodies]
        route = [call_nothing(body) for body in bodies]
        yield _row(f"{nodes} names, {label}", extender, route, [])


def _measure_hard_requests() -> Iterator[str]:
    """Measures pods of 24 claims on 1,000 nodes where they barely fit. /healthz is called all the time."""
    chance = random.Random(7)  # noqa: S311 # repeatable, not secret
    yield f"{'24 volumes, 1000 tight nodes: each a new demand':<46}{'p50 ms':>10}{'max ms':>10}{'/healthz max ms':>18}"
    for disks in (8, 12):
        sizes = [chance.randrange(250, 460) * GI for _ in range(24)]
        with run_extender(cluster.tight_snapshot(1000, sizes, disks)) as (port, _), _health_times(port) as health:
            call_filter = connect(port, "/filter")
            call_filter(cluster.names_body(cluster.pod("bench-0", TWO), 1000))
            times = []
            for turn in range(8):
                requested = cluster.pod("bench-0", [size - turn * 2**21 for size in sizes])
                times.append(call_filter(cluster.names_body(requested, 1000)))
        cells = f"{median(times) * 1e3:>10.1f}{max(times) * 1e3:>10.1f}{max(health) * 1e3:>18.1f}"
        yield f"{f'  on {disks} disks each':<46}{cells}"


@contextmanager
def _health_times(port: int) -> Iterator[list[float]]:
    """Provides the times of repeated calls of /healthz during the block."""
    times: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call() -> None:
        started = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        times.append(time.perf_counter() - started)

    with Repeated(call, lambda: 0.002):
        yield times


def _new_requirements(sizes: list[int], turn: int, nodes: int) -> bytes:
    """A request with requirements that no earlier turn had. Sizes differ by 2 MiB per turn."""
    return cluster.names_body(cluster.pod("bench-0", [size + turn * 2**21 for size in sizes]), nodes)


def _row(label: str, extender: list[float], route: list[float], go_extender: list[float]) -> str:
    own = median(extender)
    cells = [label, f"{own * 1e3:.2f}", f"{p99(extender) * 1e3:.2f}", f"{median(route) * 1e3:.2f}"]
    cells.append(f"{own / median(route):.2f}")
    cells += [f"{median(go_extender) * 1e3:.2f}", f"{own / median(go_extender):.3f}"] if go_extender else ["-", "-"]
    return _line(*cells)


def p99(times: Sequence[float]) -> float:
    return quantiles(times, n=100, method="inclusive")[98]


def connect(port: int, path: str) -> Callable[[bytes], float]:
    """Returns a function that posts a body and returns the seconds. All calls use one connection."""
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
def run_extender(snapshot: Mapping[str, object]) -> Iterator[tuple[int, int]]:
    """Runs the extender on a snapshot; provides its port and its process id. Other pods are left out: the benchmarks
    `offers` and `live` measure what they cost.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot.json"
        file.write_text(json.dumps(snapshot))
        command = [PROGRAM, "serve", "--alone", "--snapshot", str(file), "--log-level", "info"]
        with run_server(command, "--port") as process:
            yield process


def resident_mb(pid: int, key: str = "VmRSS") -> float:
    """The memory of a process in MB: VmRSS now, VmHWM at most since the last reset."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{key}:")[2].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _run_nothing() -> Iterator[int]:
    with run_server([sys.executable, "-m", "tests.bench.nothing"]) as (port, _):
        yield port


@contextmanager
def _run_go(folder: Path) -> Iterator[int | None]:
    if shutil.which("go") is None:
        yield None
        return
    print("building the Go yardstick (half a minute the first time)", file=sys.stderr)
    program = folder / "go-extender"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE / "go", check=True)
    with run_server([str(program)]) as (port, _):
        yield port


@contextmanager
def run_server(command: list[str], *before_port: str) -> Iterator[tuple[int, int]]:
    """Runs a server whose last argument is its port. It provides the port and the process id."""
    port = find_free_port()
    process = subprocess.Popen(
        [*command, *before_port, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until_listening(port, process)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits for a process to listen on a port."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} does not listen on {port}")
