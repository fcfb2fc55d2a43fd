"""What the thread of decisions leaves to the event loop, and what decisions wait for: `python -m tests.bench decision-thread`.

*gap*: how long the loop of a leader (`tests/bench/longest_turn.py`) serves nothing else during a request for which nothing is cached but
the demand. *wait*: how long a decision waits for its turn while the leader explains, predicts a drain, or makes a report, the garbage
collector included. Both are time that passes. */filter*: an extender over a snapshot decides about pods with requirements
that no earlier request had, while ten readers load the status page.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from itertools import count
from statistics import median
from time import perf_counter
from typing import Final

import structlog
import uvloop

from app.runtime.decision_thread import DecisionThread
from tests.bench import cluster
from tests.bench.http import TWO, connect, new_requirements, p99, run_extender
from tests.bench.longest_turn import Leader, crowded_leader
from tests.bench.status_page import VIEWS, read_views, snapshot_with_waiting_pods

SIZES: Final = (100, 1_000, 5_000)
COLD_REQUESTS: Final = 3
FILTERS: Final = 600
_TICK_SECONDS: Final = 0.001
_SECONDS_OF_DRAINS: Final = 5.0

Gaps = dict[str, list[float]]


def run() -> str:
    """Measures everything and returns the table."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    rows = [f"{'':<40}" + "".join(f"{f'{nodes} nodes':>24}" for nodes in SIZES)]
    rows += [f"{'ms':<40}" + f"{'p99':>12}{'worst':>12}" * len(SIZES)]
    results = [uvloop.run(_measure_leader(nodes)) for nodes in SIZES]
    for name in results[0]:
        cells = ((p99(result[name]), max(result[name])) for result in results)
        rows.append(f"{name:<40}" + "".join(f"{value * 1e3:>12.1f}" for pair in cells for value in pair))
    times = [_measure_filter(nodes) for nodes in SIZES]
    pairs = ((median(each), p99(each)) for each in times)
    rows.append(f"{'':<40}" + f"{'p50':>12}{'p99':>12}" * len(SIZES))
    rows.append(f"{'/filter, ten readers':<40}" + "".join(f"{value * 1e3:>12.2f}" for pair in pairs for value in pair))
    return "\n".join(["", *rows])


async def _measure_leader(nodes: int) -> Gaps:
    objects, state, ledger = crowded_leader(nodes)
    results: Gaps = {}
    gc.collect()
    gc.freeze()  # as the live server
    for number in range(COLD_REQUESTS):
        thread = DecisionThread()
        leader = Leader(objects, state, ledger, thread)
        # The first call of an application makes its middleware.
        await leader.page("/healthz").send()
        gc.collect()
        await _during(results, "gap of the loop, cold /filter", _gap, leader.verb("/filter", number).send)
        wait = lambda thread=thread: _wait(thread)  # noqa: E731
        await _during(results, "wait of a decision, /explain", wait, leader.verb("/explain", number).send)
        await _during(results, "wait of a decision, status page", wait, leader.page("/").send)

        async def drain(leader: Leader = leader, number: int = number) -> None:
            await leader.page(f"/nodes/{cluster.name_of(number)}/drain").send()
            await asyncio.sleep(_SECONDS_OF_DRAINS)

        await _during(results, "wait of a decision, drains", wait, drain)
    gc.unfreeze()
    return results


async def _during(
    results: Gaps, name: str, measure: Callable[[], Awaitable[float]], work: Callable[[], Awaitable[None]]
) -> None:
    values = results.setdefault(name, [])

    async def repeat() -> None:
        while True:
            values.append(await measure())

    repeating = asyncio.create_task(repeat())
    await asyncio.sleep(0.02)
    await work()
    repeating.cancel()


async def _gap() -> float:
    began = perf_counter()
    await asyncio.sleep(_TICK_SECONDS)
    return perf_counter() - began - _TICK_SECONDS


async def _wait(thread: DecisionThread) -> float:
    submitted = perf_counter()
    seconds = await thread.run(perf_counter) - submitted
    await asyncio.sleep(_TICK_SECONDS)
    return seconds


def _measure_filter(nodes: int) -> list[float]:
    turns = count()
    with run_extender(snapshot_with_waiting_pods(nodes)) as (port, _):
        call = connect(port, "/filter")
        call(new_requirements(TWO, next(turns), nodes))
        # Ten readers, each of whom loads a view every ten seconds.
        with read_views(port, VIEWS, 1):
            return [call(new_requirements(TWO, next(turns), nodes)) for _ in range(FILTERS)]
