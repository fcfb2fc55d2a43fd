"""Which computation of the core goes on when several were started."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from app.decisions.evaluator import Evaluator
from scheduler_core.errors import ResolutionError
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.model.kube import Pod
from tests.builders import as_pod, claim, longhorn_node, pod, storage_class
from tests.worlds.state_source import FakeStateSource, SlowSource
from tests.worlds.two_nodes import database_pod, two_nodes
from tests.worlds.virtual_time import virtual_loop, virtually

pytestmark = pytest.mark.anyio

NODES = [f"node-{number}" for number in range(600)]


class _Turns:
    """A clock by which every slice is over at the next pause.

    Attributes:
        names: the task of each reading
    """

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self) -> float:
        task = asyncio.current_task()
        self.names.append(task.get_name() if task is not None else "")
        return float(len(self.names))


async def _run_all(turns: _Turns, **computations: Coroutine[Any, Any, object]) -> list[str]:
    """Starts the computations in turn; returns whose turns they were from the last start on."""
    tasks = []
    started = 0
    for name, computation in computations.items():
        started = len(turns.names)
        tasks.append(asyncio.create_task(computation, name=name))
        for _ in range(5):
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return turns.names[started:]


def _evaluator(turns: _Turns) -> Evaluator:
    cluster = FakeStateSource(storage_class(), claim("a", 10), [longhorn_node(name) for name in NODES])
    return Evaluator(cluster, FilterOptions(), turns)


async def test_explanations_run_one_at_a_time() -> None:
    """However many are asked for, the event loop works for one."""
    turns = _Turns()
    evaluator = _evaluator(turns)
    requested = as_pod(pod("a"))
    names = await _run_all(turns, first=evaluator.explain(requested, NODES), second=evaluator.explain(requested, NODES))
    first = [position for position, name in enumerate(names) if name == "first"]
    second = [position for position, name in enumerate(names) if name == "second"]
    assert first
    assert max(first) < min(second)


async def test_a_decision_goes_before_an_explanation_that_runs_already() -> None:
    """kube-scheduler waits for the one, a person for the other."""
    turns = _Turns()
    evaluator = _evaluator(turns)
    requested = as_pod(pod("a"))
    names = await _run_all(
        turns, explanation=evaluator.explain(requested, NODES), decision=evaluator.filter(requested, NODES)
    )
    begin = names.index("decision")
    end = len(names) - names[::-1].index("decision")
    assert names[begin:end].count("decision") > 3
    # It reads the clock once more when it wakes up, and does nothing.
    assert names[begin:end].count("explanation") <= 1
    assert "explanation" in names[end:]


async def test_decisions_take_turns() -> None:
    """One that takes long does not hold up the others."""
    turns = _Turns()
    evaluator = _evaluator(turns)
    requested = as_pod(pod("a"))
    names = await _run_all(turns, first=evaluator.filter(requested, NODES), second=evaluator.filter(requested, NODES))
    assert "first" in names[names.index("second") :]


@virtually
async def test_a_pod_that_a_watch_delivers_meanwhile_does_not_wait_for_others() -> None:
    """Requests about many pods that do not exist must not hold up real ones."""
    source = SlowSource(two_nodes())
    evaluator = Evaluator(source, FilterOptions())
    ghosts = [asyncio.create_task(evaluator.has_pod(Pod("default", f"ghost-{number}", "uid"))) for number in range(50)]
    await asyncio.sleep(0)
    real = asyncio.create_task(evaluator.has_pod(Pod("default", "db-0", "uid-0")))
    await asyncio.sleep(0.01)
    source.put(database_pod(0))
    assert await real
    assert virtual_loop().time() < 0.1
    results = await asyncio.gather(*ghosts, return_exceptions=True)
    assert True not in results
    assert any(isinstance(result, ResolutionError) for result in results)
