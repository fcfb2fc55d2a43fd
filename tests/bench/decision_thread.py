"""Decisions in a thread of their own, and in slices on the event loop, in one run: `python -m tests.bench decision-thread`.

*gap*: how long the loop of a leader (`tests/bench/longest_turn.py`) serves nothing else during a request for which nothing is cached but
the demand; time that passes, with the garbage collector. */filter*: an extender over a snapshot decides about pods with requirements
that no earlier request had, while ten readers load the status page. The two ways take turns, so that what else the machine does counts for both.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Final

import structlog
import uvloop

from app.runtime.decision_thread import DecisionThread
from tests.bench.http import TWO, connect, new_requirements, run_server
from tests.bench.longest_turn import Leader, crowded_leader
from tests.bench.status_page import VIEWS, read_views, snapshot_with_waiting_pods

SIZES: Final = (100, 1_000, 5_000)
COLD_REQUESTS: Final = 5
BATCHES: Final = 6
BATCH: Final = 100
_TICK_SECONDS: Final = 0.001
_IN_SLICES: Final = """
import sys
from app.decisions.evaluator import Evaluator
make = Evaluator.__init__
Evaluator.__init__ = lambda self, *arguments, thread=None: make(self, *arguments)
sys.argv[0] = "longhorn-extender"
from app.cli.main import main
main()
"""
WAYS: Final = {
    "on the loop": [sys.executable, "-c", _IN_SLICES],
    "in a thread": [str(Path(sys.executable).with_name("longhorn-extender"))],
}


def run(sizes: tuple[int, ...] = SIZES) -> str:
    """Measures both ways and returns the tables."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    head = f"{'':<32}" + "".join(f"{f'{nodes} nodes':>24}" for nodes in sizes)
    gaps = [uvloop.run(_measure_gaps(nodes)) for nodes in sizes]
    rows = [head, f"{'cold request, gap of the loop, ms':<32}" + f"{'p99':>12}{'worst':>12}" * len(sizes)]
    for way in WAYS:
        cells = ((_p99(gap[way]), max(gap[way])) for gap in gaps)
        rows.append(f"{f'  {way}':<32}" + "".join(f"{value * 1e3:>12.1f}" for pair in cells for value in pair))
    times = [_measure_filter(nodes) for nodes in sizes]
    rows += [f"{'/filter, ten readers, ms':<32}" + f"{'p50':>12}{'p99':>12}" * len(sizes)]
    for way in WAYS:
        pairs = ((median(time[way]), _p99(time[way])) for time in times)
        rows.append(f"{f'  {way}':<32}" + "".join(f"{value * 1e3:>12.2f}" for pair in pairs for value in pair))
    return "\n".join(["", *rows])


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


async def _measure_gaps(nodes: int) -> dict[str, list[float]]:
    objects, state, ledger = crowded_leader(nodes)
    gaps: dict[str, list[float]] = {way: [] for way in WAYS}
    gc.collect()
    gc.freeze()  # as the live server
    for number in range(COLD_REQUESTS):
        for way, measured in gaps.items():
            leader = Leader(objects, state, ledger, DecisionThread() if way == "in a thread" else None)
            # The first call of an application makes its middleware.
            await leader.page("/healthz").send()
            call = leader.verb("/filter", number)
            gc.collect()
            ticking = asyncio.create_task(_tick(measured))
            await asyncio.sleep(0.02)
            await call.send()
            ticking.cancel()
    gc.unfreeze()
    return gaps


async def _tick(gaps: list[float]) -> None:
    while True:
        began = perf_counter()
        await asyncio.sleep(_TICK_SECONDS)
        gaps.append(perf_counter() - began - _TICK_SECONDS)


def _measure_filter(nodes: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        file = Path(folder) / "snapshot.json"
        file.write_text(json.dumps(snapshot_with_waiting_pods(nodes)))
        options = ["serve", "--alone", "--snapshot", str(file), "--log-level", "info", "--port"]
        ports = {way: servers.enter_context(run_server([*command, *options]))[0] for way, command in WAYS.items()}
        bodies = _bodies(nodes)
        calls = {way: connect(port, "/filter") for way, port in ports.items()}
        for call in calls.values():
            call(next(bodies))
        for _ in range(BATCHES):
            for way, call in calls.items():
                # Ten readers, each of whom loads a view every ten seconds.
                with read_views(ports[way], VIEWS, 1):
                    times[way] += [call(next(bodies)) for _ in range(BATCH)]
    return times


def _bodies(nodes: int) -> Iterator[bytes]:
    turn = 0
    while True:
        yield new_requirements(TWO, turn, nodes)
        turn += 1


if __name__ == "__main__":
    print(run(tuple(map(int, sys.argv[1:])) or SIZES))
