"""The background prediction of node losses: outcomes, metric and share of time; and the space of disks, computed when Prometheus scrapes,
and at no other time.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest

from app.evaluator import Evaluator
from app.extender.metrics import Metrics
from app.extender.node_loss_prediction import ROUND_INTERVAL, NodeLosses
from app.runtime.decision_thread import DecisionRunner, DecisionThread
from app.runtime.probes import PREFIX
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.packing.budget import give_way
from scheduler_core.predict import node_loss
from scheduler_core.predict.node_loss import MAX_NODES, predict_node_loss
from scheduler_core.predict.predicted_cluster import PredictedCluster
from tests import builders as make
from tests.builders import GI, kube_node
from tests.worlds.predicted_clusters import growing_class, node, running
from tests.worlds.state_source import FakeStateSource
from tests.worlds.virtual_time import virtually


def series(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by the values of its labels, in the order of the labels' names."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"{PREFIX}_{name}"
    }


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
        return {node: value for (node,), value in series(self.metrics, "node_safe_to_lose").items()}


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
        patch.setattr(node_loss, "predict_node_loss", note)
        await world.after(5, world.losses.adopt)
    assert order == ["c", "a", "b"]


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
        patch.setattr(node_loss, "predict_node_loss", endless)
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
        patch.setattr(node_loss, "predict_node_loss", fail)
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


NODES = [
    make.longhorn_node("n1", {"d1": make.disk(100, scheduled=40), "d2": make.disk(50, allow=False)}),
    make.longhorn_node("n2", 80),
]


def test_every_disk_and_class_has_its_series() -> None:
    metrics = Metrics()
    metrics.capacity(lambda: make.state(NODES, make.storage_class()))
    assert series(metrics, "disk_free_bytes") == {
        ("d1", "n1"): 60 * GI,
        ("d2", "n1"): 50 * GI,
        ("disk-1", "n2"): 80 * GI,
    }
    assert series(metrics, "disk_open") == {("d1", "n1"): 1, ("d2", "n1"): 0, ("disk-1", "n2"): 1}
    assert series(metrics, "disk_closed") == {("d2", "n1", "no_disk"): 1}
    assert series(metrics, "largest_fitting_volume_bytes") == {("longhorn",): 80 * GI}
    assert series(metrics, "node_demand_bytes") == {("n1",): 0, ("n2",): 0}


def test_disks_can_be_left_out() -> None:
    metrics = Metrics()
    metrics.capacity(lambda: make.state(NODES, make.storage_class()), with_disks=False)
    text = generate_latest(metrics.registry).decode()
    assert f"{PREFIX}_disk_" not in text
    assert series(metrics, "largest_fitting_volume_bytes") == {("longhorn",): 80 * GI}
    assert series(metrics, "node_demand_bytes") == {("n1",): 0, ("n2",): 0}


def test_a_process_that_does_not_lead_has_no_such_series() -> None:
    """Two processes would report every disk twice."""
    metrics = Metrics()
    metrics.capacity(lambda: None)
    assert series(metrics, "disk_free_bytes") == {}
    assert series(metrics, "largest_fitting_volume_bytes") == {}


def test_the_state_is_read_once_per_scrape() -> None:
    reads: list[int] = []

    def read() -> ClusterState:
        reads.append(1)
        return make.state(NODES)

    metrics = Metrics()
    metrics.capacity(read)
    assert reads == []
    generate_latest(metrics.registry)
    assert len(reads) == 1


def test_the_time_of_the_last_request_is_known() -> None:
    metrics = Metrics()
    assert series(metrics, "last_filter_request_timestamp_seconds") == {(): 0}
    metrics.count_request("error")
    assert series(metrics, "last_filter_request_timestamp_seconds")[()] > 0


def test_counters_have_no_twin_of_their_creation_time() -> None:
    text = generate_latest(Metrics().registry).decode()
    assert "_created" not in text
    assert f'{PREFIX}_build_info{{version="' in text
