"""The background prediction of node losses: outcomes, metric and share of time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.evaluator import Evaluator
from app.extender import capacity
from app.extender.capacity import ROUND_INTERVAL, NodeLosses
from app.extender.metrics import Metrics
from app.runtime.decision_thread import DecisionRunner, DecisionThread
from app.runtime.probes import PREFIX
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.packing.budget import give_way
from scheduler_core.predict.node_loss import MAX_NODES, NodeLossOutcome, predict_node_loss
from scheduler_core.predict.predicted_cluster import PredictedCluster
from tests.builders import kube_node
from tests.worlds.decision_runners import RestingRunner
from tests.worlds.predicted_clusters import growing_class, node, running
from tests.worlds.state_source import FakeStateSource
from tests.worlds.virtual_time import virtual_loop, virtually


class World:
    """db-0 runs on a with its only replica, and b is empty. It must be made in a virtual loop."""

    def __init__(self, runner: DecisionRunner | None = None) -> None:
        self.cache = FakeStateSource(growing_class(), node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a"))
        self.evaluator = Evaluator(self.cache, FilterOptions(), runner)
        self.losses = NodeLosses(self.evaluator, self.cache.state)
        self.metrics = Metrics()
        self.metrics.node_losses(lambda: self.losses.latest)

    async def after(self, seconds: float, *steps: Callable[[], object]) -> dict[str, bool]:
        """Returns which nodes are safe to lose after some steps.

        It runs the task, calls each step, and lets so many seconds pass.
        """
        task = asyncio.create_task(self.losses.run())
        for step in steps:
            step()
            await asyncio.sleep(seconds)
        task.cancel()
        return {name: outcome.safe for name, outcome in self.losses.latest.items()}

    def samples(self) -> dict[str, float]:
        families = [each for each in self.metrics.registry.collect() if each.name == f"{PREFIX}_node_safe_to_lose"]
        return {sample.labels["node"]: sample.value for family in families for sample in family.samples}


@virtually
async def test_a_leader_predicts_every_node() -> None:
    world = World()
    assert await world.after(5, world.losses.adopt) == {"a": False, "b": True}
    assert world.losses.latest["a"].problems["volume vol-data-db-0 loses its data"] == world.losses.latest["a"].orders
    assert world.samples() == {"a": 0.0, "b": 1.0}


@virtually
async def test_the_fullest_nodes_are_predicted_first() -> None:
    world = World()
    world.cache.put(*node("c", listed={"x": 60}))
    order: list[str] = []

    def note(cluster: PredictedCluster, name: str, *rest: Any) -> Any:
        order.append(name)
        return predict_node_loss(cluster, name, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "predict_node_loss", note)
        await world.after(5, world.losses.adopt)
    assert order == ["c", "a", "b"]


@virtually
async def test_the_end_is_estimated_by_the_work_of_the_latest_predictions() -> None:
    assert await estimates_with(first_nodes=100) == [0, 6, 3]
    assert await estimates_with(first_nodes=2) == [0, 14, 11]


async def estimates_with(first_nodes: int) -> list[float]:
    """How long the rest will take, at the beginning of each of three predictions."""
    world = World(RestingRunner())
    world.cache.put(*node("c"))
    estimates: list[float] = []

    def work(*_: object) -> Any:
        estimates.append(round(world.losses.seconds_left, 3))
        virtual_loop().jump_to(virtual_loop().time() + 1)
        return NodeLossOutcome("x", orders=1, pods=0, volumes=0, problems={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "predict_node_loss", work)
        patch.setattr(capacity, "FIRST_NODES", first_nodes)
        await world.after(25, world.losses.adopt)
    assert world.losses.seconds_left == 0
    return estimates


@virtually
async def test_only_the_leader_predicts() -> None:
    """There is no series otherwise."""
    world = World()
    assert await world.after(5, lambda: None) == {}
    assert world.samples() == {}
    world = World()
    assert await world.after(5, world.losses.adopt, world.losses.clear) == {}
    assert world.samples() == {}


@pytest.mark.anyio
async def test_a_prediction_ends_with_the_leadership() -> None:
    """A standby has no work of a leader left, however long the prediction would take."""
    steps = 0

    def endless(*_: object) -> Any:
        nonlocal steps
        while True:
            steps += 1
            give_way()

    async def count_steps() -> int:
        before = steps
        await asyncio.sleep(0.1)
        return steps - before

    world = World(DecisionThread())
    counts: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "predict_node_loss", endless)
        task = asyncio.create_task(world.losses.run())
        world.losses.adopt()
        await asyncio.sleep(0.1)
        counts.append(await count_steps())
        world.losses.clear()
        await asyncio.sleep(0.05)
        counts.append(await count_steps())
        task.cancel()
    assert counts[0] > 0
    assert counts[1] == 0


@virtually
async def test_a_changed_state_is_predicted_again() -> None:
    world = World()

    def change() -> None:
        world.cache.remove(*running("db-0", "a"))
        world.cache.remove(*node("b"))

    assert await world.after(ROUND_INTERVAL + 5, world.losses.adopt, change) == {"a": True}


@virtually
async def test_an_unchanged_state_is_not_predicted_again() -> None:
    world = World()
    before: list[object] = []
    await world.after(ROUND_INTERVAL + 5, world.losses.adopt, lambda: before.append(world.losses.latest["a"]))
    assert world.losses.latest["a"] is before[0]


@virtually
async def test_a_large_cluster_has_no_outcomes() -> None:
    """A single step of a prediction would keep kube-scheduler waiting for too long."""
    world = World()
    assert await world.after(5, world.losses.adopt) == {"a": False, "b": True}
    nodes = [kube_node(f"n{number}") for number in range(MAX_NODES)]
    assert await world.after(ROUND_INTERVAL + 5, lambda: world.cache.put(*nodes)) == {}


@virtually
async def test_a_fault_of_a_prediction_leaves_its_node_out() -> None:
    world = World()

    def fail(cluster: PredictedCluster, name: str, *rest: Any) -> Any:
        if name == "a":
            raise ZeroDivisionError
        return predict_node_loss(cluster, name, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "predict_node_loss", fail)
        assert await world.after(5, world.losses.adopt) == {"b": True}


@virtually
async def test_the_production_caches_are_left_alone() -> None:
    """A prediction has profile tables of its own.

    Otherwise those of the running program would be built again and again.
    """
    world = World()
    profiles = world.cache.state().profiles
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiles, "table", None)
        assert await world.after(5, world.losses.adopt) == {"a": False, "b": True}
    assert world.cache.state().profiles is profiles
