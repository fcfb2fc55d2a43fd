"""What every predicted order keeps, on random clusters. No disk is overbooked, and pods run where they may and have their data."""

import math
import random
from dataclasses import dataclass
from functools import partial

from hypothesis import given, strategies as st

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Competing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model import kube
from scheduler_core.model.generic import DisruptionBudget
from scheduler_core.predict.cluster_additions import add_disk, add_nodes, scale
from scheduler_core.predict.cluster_changes import drain, expand, lose_disk, lose_nodes, set_setting
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import Choose
from scheduler_core.predict.prediction import Certainty, predict
from scheduler_core.predict.prediction_input import Change, Situation
from scheduler_core.predict.timeline import OrderProgress, OrderResult, run_order
from tests.builders import GI
from tests.examples import examples
from tests.worlds.predicted_clusters import (
    OPTIONS,
    add_labels,
    after,
    disruption_budget,
    draw_cluster,
    observe,
    play,
    situation,
    workload,
)

POLICIES = ("block-if-contains-last-replica", "always-allow", "block-for-eviction")
SIZES = (5, 10, 20, 40)


@dataclass(frozen=True)
class World:
    """A random cluster, in which nothing is overbooked, and random changes."""

    start: Situation
    changes: tuple[Change, ...]


@st.composite
def worlds(draw: st.DrawFn, *, plenty: bool = False) -> World:
    """Two to five nodes, up to eight pods with replicas. A volume has one or two. With `plenty` every node could hold everything."""
    chance = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311
    names = [f"n{number}" for number in range(chance.randint(2, 5))]
    sizes = {name: 5000 if plenty else chance.choice((60, 100, 200)) for name in names}
    localities = ("best-effort",) if plenty else ("best-effort", "disabled")
    nodes, pods = draw_cluster(chance, sizes, localities=localities)
    changes = () if plenty else _draw_changes(chance, names, [*pods])
    return World(situation(nodes, *pods.values()), (*changes, partial(drain, nodes=(names[0],))))


def _draw_changes(chance: random.Random, names: list[str], pods: list[str]) -> tuple[Change, ...]:
    options: list[Change] = [
        partial(set_setting, name="node-drain-policy", value=chance.choice(POLICIES)),
        partial(lose_disk, node_name=chance.choice(names), disk_name="disk-1"),
        partial(lose_nodes, nodes=(names[-1],)),
        partial(add_nodes, like=names[0], count=1),
        partial(add_disk, node_name=names[0], size=50 * GI),
        partial(scale, workload=workload(chance.choice(SIZES)), count=chance.randint(1, 4)),
    ]
    if pods:
        options.append(partial(expand, key=("default", f"data-{chance.choice(pods)}"), size=45 * GI))
    return tuple(chance.sample(options, chance.randint(0, 4)))


def _overbooked_disks(result: OrderResult) -> list[str]:
    """The disks whose replicas add up to more than Longhorn's limit. They are counted from the replicas alone."""
    view = result.cluster.state.view
    sums: dict[str, int] = {}
    for replica in view.snapshot.replicas.values():
        if replica.disk_id:
            sums[replica.disk_id] = sums.get(replica.disk_id, 0) + replica.size
    disks = [disk for node in view.cluster.nodes.values() for disk in node.disks if disk.ready]
    return [disk.uuid for disk in disks if sums.get(disk.uuid, 0) > scheduling_limit(disk, view.settings)]


def _choose_current_status(seed: int) -> Choose:
    """Chooses at random, but of two choices the second. It is the one in which the status shows the oldest placement."""
    randrange = random.Random(seed).randrange  # noqa: S311
    return lambda count: 1 if count == 2 else randrange(count)


@st.composite
def guarded_worlds(draw: st.DrawFn) -> tuple[World, DisruptionBudget]:
    """A random cluster with a budget, and a drain. Its pods are those of one workload, and one or two nodes are drained."""
    chance = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311
    names = [f"n{number}" for number in range(chance.randint(2, 5))]
    sizes = {name: chance.choice((60, 100, 200)) for name in names}
    nodes, pods = draw_cluster(chance, sizes, prefix="web", most_replicas=1, localities=("best-effort",))
    objects = [entry for pod in pods.values() for entry in add_labels(pod, app="web")]
    field = chance.choice(("minAvailable", "maxUnavailable"))
    count = chance.choice((*range(4), "0%", "30%", "50%", "75%", "100%"))
    start = situation(nodes, objects, disruption_budget(**{field: count}))
    (budget,) = start.cluster.snapshot.disruption_budgets.values()
    return World(
        start, (partial(drain, nodes=tuple(chance.sample(names, min(len(names), chance.randint(1, 2))))),)
    ), budget


@examples(50)
@given(guarded_worlds(), st.integers(0, 100))
def test_no_step_of_a_drain_violates_a_budget_and_what_holds_it_up_is_named(
    guarded: tuple[World, DisruptionBudget], seed: int
) -> None:
    """As many pods as the budget needs run after every step, counted by the field's own definition in the documentation. The budget is
    named for every pod that stays on a drained node, and for no other.
    """
    world, budget = guarded
    pods = len(world.start.cluster.snapshot.pods)
    amount = budget.min_available or budget.max_unavailable
    assert amount is not None
    share = math.ceil(pods * amount.value / 100) if amount.percent else amount.value
    needed = share if budget.min_available is not None else pods - share
    counts: list[int] = []

    def count(progress: OrderProgress) -> None:
        cluster = progress.cluster
        counts.append(sum(runs(cluster, pod) for pod in cluster.snapshot.pods.values()))

    changed = after(world.start, *world.changes)
    end = observe(changed, seed, count)
    assert counts[0] == pods
    assert min(counts) >= min(needed, pods)
    assert (needed < pods) or end.nodes == {}
    for name in changed.drained:
        left = sorted(pod.key for pod in end.cluster.snapshot.pods.values() if pod.node_name == name)
        texts = [text for text in end.blockers.get(name, ()) if "PodDisruptionBudget default/web needs" in text]
        assert [text.split()[1] for text in texts] == left


def runs(cluster: PredictedCluster, pod: kube.Pod) -> bool:
    return bool(pod.node_name) and all(volume.node_id == pod.node_name for volume in cluster.volumes_of(pod))


@examples(50)
@given(worlds())
def test_no_order_overbooks_a_disk_while_the_status_is_current(world: World) -> None:
    """Each placement sees the one before, unless Longhorn's status lags behind."""
    start = after(world.start, *world.changes)
    for seed in range(3):
        result = run_order(start, OPTIONS, _choose_current_status(seed))
        assert _overbooked_disks(result) == []


@examples(50)
@given(worlds())
def test_every_order_ends_in_a_cluster_that_can_be(world: World) -> None:
    """Every pod is placed or refused. A placed one may run where it is: its node is not gone, drained or lost, and its volumes have healthy
    replicas on ready nodes. Longhorn's status lists exactly the replicas, and a view of the last objects has the updates' free space.
    """
    start = after(world.start, *world.changes)
    for result in play(start, 3):
        view = result.cluster.state.view
        assert {entry.key for entry in start.all_pods()} == {*result.nodes, *result.refusals}
        assert not {*result.nodes} & {*result.refusals}
        assert {*result.stuck} <= {*result.nodes}
        for key, name in result.nodes.items():
            assert name in {*result.cluster.node_names} - {*start.lost} - {*start.drained}
            assert view.snapshot.pods[key].node_name == name
            for volume in result.cluster.volumes_of(view.snapshot.pods[key]) if key not in result.stuck else ():
                healthy = [each for each in view.replicas_of(volume.name) if each.healthy_at and not each.failed_at]
                assert any(view.cluster.nodes[each.node_id].ready for each in healthy)
        for disk in (disk for entry in view.cluster.nodes.values() for disk in entry.disks if disk.ready):
            on_disk = {each.name: each.size for each in view.indexes.replicas_by_disk.get(disk.uuid) or ()}
            assert (dict(disk.scheduled_replicas), disk.storage_scheduled) == (on_disk, sum(on_disk.values()))
        rebuilt = View.of(view.snapshot, view.cluster.now)
        assert dict(rebuilt.indexes.free_space) == dict(view.indexes.free_space)


@examples(50)
@given(worlds(plenty=True))
def test_the_order_does_not_matter_where_there_is_plenty_of_room(world: World) -> None:
    """Every pod is always placed, and the drain always finishes."""
    changed = after(world.start, *world.changes)
    result = predict(world.start, changed, play(changed, 4))
    assert {outcome.outcome for outcome in (*result.pods,)} <= {Certainty.ALWAYS}
    assert [outcome.outcome for outcome in result.drains] == [Certainty.ALWAYS]


@examples(50)
@given(worlds())
def test_one_waiting_pod_goes_where_the_extender_lets_it(world: World) -> None:
    """It is placed if /filter names a node, and there."""
    start = after(world.start, partial(scale, workload=workload(40), count=1))
    state = start.cluster.state
    pod = state.view.snapshot.pods["default", "web-0"]
    contenders = Competing.without_offers(state)
    decision = filter_nodes(pod, start.cluster.node_names, state, OPTIONS, contenders)
    outcome = next(each for each in predict(world.start, start, play(start, 5)).pods if each.pod == "default/web-0")
    assert {*outcome.nodes} <= {*decision.fitting_nodes}
    assert outcome.outcome is (Certainty.ALWAYS if decision.fits else Certainty.NEVER)
