"""The status page of 1,000 nodes: sizes, times, and /filter meanwhile. The budgets: a view has less than 100 kB and takes less than 50 ms,
and readers do not delay /filter.
"""

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import cycle
from statistics import median
from typing import Any

from tests import builders as make
from tests.bench import cluster
from tests.bench.http import TWO, connect, cpu_seconds, new_requirements, p99, run_extender
from tests.e2e.repeated import Repeated

NODES = 1000
WAITING = 60
VIEWS = (
    "/",
    "/?group=zone",
    "/?q=node-0007",
    "/pods",
    "/pods/default/waits-0",
    f"/nodes/{cluster.name_of(7)}",
    "/decision-log",
)
DRAIN = f"/nodes/{cluster.name_of(7)}/drain"
REPEATS = 30
FILTERS = 1000


def run() -> str:
    """Measures everything and returns the tables."""
    with run_extender(snapshot_with_waiting_pods(NODES)) as (port, pid):
        rows = [f"{f'{NODES} nodes, {WAITING} waiting pods':<46}{'kB':>10}{'first ms':>10}{'p50 ms':>10}{'CPU ms':>10}"]
        rows += [_measure_view(view, port, pid) for view in VIEWS]
        rows += ["", f"{'/filter of 1,000 names, two volumes, new':<46}{'p50 ms':>10}{'p99 ms':>10}"]
        rows += _measure_filter(port)
    return "\n".join(["", *rows])


def snapshot_with_waiting_pods(nodes: int) -> dict[str, Any]:
    """Half of the nodes are full, and some pods fit nowhere."""
    snapshot = cluster.snapshot(nodes, half=True)
    for index in range(WAITING):
        name = f"waits-{index}"
        snapshot["items"] += [make.claim(name, 500 + index % 5), make.pod(name, name=name, uid=f"uid-{index}")]
    return snapshot


def _view(port: int, path: str) -> tuple[int, float]:
    """Loads a view over a connection of its own. Returns its bytes and the seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    started = time.perf_counter()
    connection.request("GET", path)
    response = connection.getresponse()
    size = len(response.read())
    seconds = time.perf_counter() - started
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path} answered {response.status}")
    return size, seconds


def _measure_view(path: str, port: int, pid: int) -> str:
    size, first = _view(port, path)
    # The rows and remedies that the first view asked for are there by then.
    time.sleep(3)
    before = cpu_seconds(pid)
    times = [_view(port, path)[1] for _ in range(REPEATS)]
    cpu = (cpu_seconds(pid) - before) / REPEATS
    return f"{path:<46}{size / 1000:>10.1f}{first * 1e3:>10.1f}{median(times) * 1e3:>10.1f}{cpu * 1e3:>10.1f}"


def _measure_filter(port: int) -> Iterator[str]:
    call = connect(port, "/filter")
    cases: list[tuple[str, tuple[str, ...], float]] = [
        ("  nothing else", (), 0),
        ("  ten readers, each refreshed every ten seconds", VIEWS, 1),
        ("  one view after the other", VIEWS, 0),
        ("  one view after the other, and drains", (*VIEWS, DRAIN), 0),
    ]
    for turn, (label, views, pause) in enumerate(cases):
        with read_views(port, views, pause) as loaded:
            times = [call(new_requirements(TWO, turn * FILTERS + number, NODES)) for number in range(FILTERS)]
        yield f"{label:<46}{median(times) * 1e3:>10.2f}{p99(times) * 1e3:>10.2f}" + (
            f"   {len(loaded)} views" if views else ""
        )


@contextmanager
def read_views(port: int, views: tuple[str, ...], pause: float) -> Iterator[list[float]]:
    """Loads views during the block, with a pause of seconds after each. Provides their times."""
    times: list[float] = []
    paths = cycle(views)
    with Repeated(lambda: times.append(_view(port, next(paths))[1]), lambda: pause) if views else nullcontext():
        yield times
