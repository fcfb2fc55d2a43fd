"""Facts that a policy's Longhorn rules read: the reasons of /filter, order safety, kept replicas, and disks after the plan."""

import pytest

from scheduler_core.decide.decision import NO_CONTENDERS, Contenders, FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.score_facts import PlanCache
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.generic.cycle_state import DiskFacts, LonghornFacts, NodeFacts
from scheduler_core.model.verdict import Reason
from tests.builders import (
    GI,
    NOW,
    Object,
    as_pod,
    bound,
    claim,
    competing,
    disk,
    flat,
    kube_node,
    longhorn_node,
    pod,
    replica,
    setting,
    state,
    storage_class,
)
from tests.worlds.changes import changes_of, empty_state
from tests.worlds.engines import engines

NAMES = ("even", "home", "tight", "full", "gone")
EXACT = FilterOptions(packing=Packing.EXACT)


def cluster(*even_disks: Object) -> list[Object]:
    """A cluster for a pod of x and y, 30Gi each.

    Node `home` has a replica of x, on `tight` an unlucky order of y and z fails, `full` has no space. The disks of `even` may be given.
    """
    disks = {f"disk-{number}": raw for number, raw in enumerate(even_disks or (disk(100), disk(100)), start=1)}
    return flat(
        storage_class(),
        setting("storage-over-provisioning-percentage", "100"),
        [kube_node(name) for name in NAMES],
        longhorn_node("even", disks),
        longhorn_node("home", {"disk-1": disk(100), "disk-2": disk(100)}),
        longhorn_node("tight", {"disk-1": disk(60), "disk-2": disk(40)}),
        longhorn_node("full", 10),
        bound("x", 30),
        replica("r", "vol-x", "home", size=30),
        claim("y", 30),
        claim("z", 60),
    )


def facts_for(*claims: str, options: FilterOptions = EXACT, objects: list[Object] | None = None) -> LonghornFacts:
    return PlanCache().longhorn_facts(as_pod(pod(*claims)), NAMES, state(objects or cluster()), options)


@pytest.mark.parametrize("packing", list(Packing), ids=lambda packing: packing.value)
@pytest.mark.parametrize("claims", [("x",), ("y",), ("y", "z"), ("x", "z"), ()], ids="+".join)
def test_reasons_are_those_of_filter(packing: Packing, claims: tuple[str, ...]) -> None:
    options = FilterOptions(packing=packing)
    decision = filter_nodes(as_pod(pod(*claims)), NAMES, state(cluster()), options)
    nodes = facts_for(*claims, options=options).nodes
    assert {name: nodes[name].reason for name in NAMES} == dict(zip(NAMES, decision.reasons, strict=True))


def test_order_safety_is_examined_where_every_fitting_node_is_offered() -> None:
    """Volume y may take 30Gi of the only disk that z fits on."""
    nodes = facts_for("y", "z").nodes
    assert (nodes["even"].reason, nodes["even"].order_safe) == (Reason.ROOM, True)
    assert (nodes["tight"].reason, nodes["tight"].order_safe) == (Reason.ROOM, False)


def test_order_safety_is_examined_where_only_an_unsafe_node_is_offered() -> None:
    """With packing AUTO, because no other node fits."""
    facts = PlanCache().longhorn_facts(as_pod(pod("y", "z")), ["tight", "full"], state(cluster()), FilterOptions())
    assert (facts.nodes["tight"].reason, facts.nodes["tight"].order_safe) == (Reason.ROOM, False)
    assert not facts.nodes["full"].reason.fits


def test_stale_safety_is_examined_too() -> None:
    """A disk of `even` takes y and z together if it has 90Gi; one of `home` has 70Gi left."""
    safe = {name: node.stale_safe for name, node in facts_for("y", "z").nodes.items() if node.reason.fits}
    assert safe == {"even": True, "home": False, "tight": False}
    small_disks = cluster(disk(89), disk(89))
    facts = facts_for("y", "z", options=FilterOptions(packing=Packing.ORDER_SAFE), objects=small_disks).nodes["even"]
    assert (facts.reason, facts.order_safe, facts.stale_safe) == (Reason.ROOM, True, False)


def test_kept_replicas_count_with_the_size_of_their_volume() -> None:
    facts = facts_for("x", "y")
    assert facts.total_bytes == 30 * GI
    replica_bytes = {name: node.replica_bytes for name, node in facts.nodes.items()}
    assert replica_bytes == dict.fromkeys(NAMES, 0) | {"home": 30 * GI}
    evicting = [entry for entry in cluster() if entry["kind"] != "Replica"]
    evicting.append(replica("r", "vol-x", "home", size=30, evictionRequested=True))
    assert facts_for("x", "y", objects=evicting).nodes["home"].replica_bytes == 0


def test_disks_are_as_the_plan_leaves_them() -> None:
    """In schedulable bytes: y takes 30Gi of the disk of `home` that x is not on."""
    nodes = facts_for("x", "y").nodes
    assert sorted(entry.free for entry in nodes["home"].disks) == [70 * GI, 70 * GI]
    assert {entry.limit for entry in nodes["home"].disks} == {100 * GI}
    assert sum(entry.free for entry in nodes["even"].disks) == 140 * GI
    assert nodes["full"].disks == ()


def test_a_home_node_has_no_disks_because_nothing_is_placed() -> None:
    """So no order can fail."""
    assert facts_for("x").nodes["home"] == NodeFacts(
        Reason.HOME, order_safe=True, stale_safe=True, replica_bytes=30 * GI
    )


def test_a_pod_without_volumes_fits_everywhere() -> None:
    facts = facts_for()
    assert facts.total_bytes == 0
    assert set(facts.nodes.values()) == {NodeFacts(Reason.NO_VOLUMES, order_safe=True, stale_safe=True)}


def test_disks_with_equal_free_space_keep_their_own_limits() -> None:
    """Both have 80Gi left, of 80 and of 100; their UUIDs say which of them the plan takes."""
    disks = facts_for("y", objects=cluster(disk(80), disk(100, scheduled=20))).nodes["even"].disks
    assert {entry.limit for entry in disks} == {80 * GI, 100 * GI}
    assert sorted(entry.free for entry in disks) == [50 * GI, 80 * GI]


def test_a_closed_disk_is_left_out() -> None:
    disks = facts_for("y", objects=cluster(disk(80), disk(200, allow=False))).nodes["even"].disks
    assert disks == (DiskFacts(80 * GI, 50 * GI),)


BOUND_POD_OF_Z = pod("z", name="other", uid="uid-other", node="even")


def test_the_demand_of_other_pods_is_subtracted_from_the_disks() -> None:
    current = state(cluster(), BOUND_POD_OF_Z)
    nodes = PlanCache().longhorn_facts(as_pod(pod("y")), NAMES, current, EXACT, competing(current)).nodes
    assert sum(entry.free for entry in nodes["even"].disks) == (200 - 60 - 30) * GI
    assert sum(entry.free for entry in nodes["home"].disks) == (200 - 30 - 30) * GI


def test_facts_from_cached_plans_equal_facts_without_a_cache() -> None:
    plans = PlanCache()
    before = empty_state().update(changes_of(cluster(), engines(NAMES)), NOW)
    filled = before.update(changes_of(cluster(disk(100, scheduled=25), disk(100))), NOW)
    provisioned = filled.update(changes_of([setting("storage-over-provisioning-percentage", "200")]), NOW)
    with_demand = state(cluster(), BOUND_POD_OF_Z)
    states = (before, before, filled, before, provisioned, filled, with_demand)
    contenders_of: list[tuple[ClusterState, Contenders]] = [(current, NO_CONTENDERS) for current in states]
    contenders_of += [(with_demand, competing(with_demand)), (with_demand, NO_CONTENDERS)]
    for current, contenders in contenders_of:
        cached = plans.longhorn_facts(as_pod(pod("y")), NAMES, current, EXACT, contenders)
        assert cached == PlanCache().longhorn_facts(as_pod(pod("y")), NAMES, current, EXACT, contenders)
        assert cached.nodes["even"].disks


def test_volumes_are_spread_over_the_disks_as_far_as_they_fit() -> None:
    objects = [*cluster(), claim("p", 30), claim("q", 20)]
    disks = facts_for("y", "p", "q", objects=objects).nodes["even"].disks
    assert sorted(entry.free for entry in disks) == [50 * GI, 70 * GI]


def test_where_spreading_fails_the_disks_are_as_the_packing_leaves_them() -> None:
    """Two of 30Gi and three of 20Gi fill two disks of 60Gi in one way only."""
    objects = flat(cluster(disk(60), disk(60)), claim("p", 30), [claim(name, 20) for name in "qrs"])
    even = facts_for("y", "p", "q", "r", "s", objects=objects).nodes["even"]
    assert (even.reason, even.order_safe) == (Reason.ROOM, False)
    assert even.disks == (DiskFacts(60 * GI, 0), DiskFacts(60 * GI, 0))


def test_written_bytes_of_a_healthy_replica_count_too() -> None:
    objects = [*cluster(), *bound("w", 30, actual=20), replica("w-1", "vol-w", "even", size=30)]
    facts = facts_for("w", "y", objects=objects)
    assert (facts.nodes["even"].replica_bytes, facts.total_bytes) == (50 * GI, 50 * GI)
    rebuilding = [*objects[:-1], replica("w-1", "vol-w", "even", size=30, healthy=False)]
    facts = facts_for("w", "y", objects=rebuilding)
    assert (facts.nodes["even"].replica_bytes, facts.total_bytes) == (30 * GI, 50 * GI)
