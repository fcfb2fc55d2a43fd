"""What a policy's Longhorn rules are told of a pod's volumes: /filter's decision, order safety, kept replicas, disks after the plan."""

from __future__ import annotations

import pytest

from scheduler_core.cooperative import finish
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import NOBODY, Options, Others, Packing, filter_nodes
from scheduler_core.extender.volume_facts import Plans, facts_for
from scheduler_core.generic.volume_facts import DiskFacts, LonghornFacts, NodeFacts
from scheduler_core.model.verdict import Reason
from tests.builders import (
    GI,
    Object,
    as_pod,
    bound,
    claim,
    disk,
    flat,
    kube_node,
    longhorn_node,
    pod,
    replica,
    setting,
    storage_class,
    view,
)

NAMES = ("even", "home", "tight", "full", "gone")
EXACT = Options(packing=Packing.EXACT)


def cluster() -> list[Object]:
    """A pod of x and y, 30Gi each: `home` has x, on `tight` an unlucky order of y and z fails, `full` has no room."""
    return flat(
        storage_class(),
        setting("storage-over-provisioning-percentage", "100"),
        [kube_node(name) for name in NAMES],
        longhorn_node("even", {"disk-1": disk(100), "disk-2": disk(100)}),
        longhorn_node("home", {"disk-1": disk(100), "disk-2": disk(100)}),
        longhorn_node("tight", {"disk-1": disk(60), "disk-2": disk(40)}),
        longhorn_node("full", 10),
        bound("x", 30),
        replica("r", "vol-x", "home", size=30),
        claim("y", 30),
        claim("z", 60),
    )


def facts(
    *claims: str, options: Options = EXACT, others: Others = NOBODY, objects: list[Object] | None = None
) -> LonghornFacts:
    """Of a pod with these claims."""
    memory = Memory(view(objects or cluster()))
    return finish(facts_for(as_pod(pod(*claims)), NAMES, memory, options, others))


@pytest.mark.parametrize("packing", list(Packing), ids=lambda packing: packing.value)
@pytest.mark.parametrize("claims", [("x",), ("y",), ("y", "z"), ("x", "z"), ()], ids="+".join)
def test_reasons_are_those_of_filter(packing: Packing, claims: tuple[str, ...]) -> None:
    """Whatever is offered; a name nobody knows has one, too."""
    options = Options(packing=packing)
    memory = Memory(view(cluster()))
    decision = finish(filter_nodes(as_pod(pod(*claims)), NAMES, memory, options))
    found = facts(*claims, options=options).nodes
    assert {name: found[name].reason for name in NAMES} == dict(zip(NAMES, decision.reasons, strict=True))


def test_order_safety_is_told_where_everything_with_room_is_offered() -> None:
    """Volume y may take 30Gi of the only disk that z fits on."""
    found = facts("y", "z").nodes
    assert (found["even"].reason, found["even"].order_safe) == (Reason.ROOM, True)
    assert (found["tight"].reason, found["tight"].order_safe) == (Reason.ROOM, False)


def test_where_only_an_unsafe_node_is_offered_it_is_still_told() -> None:
    """With packing auto, because no other has room."""
    memory = Memory(view(cluster()))
    found = finish(facts_for(as_pod(pod("y", "z")), ["tight", "full"], memory, Options())).nodes
    assert (found["tight"].reason, found["tight"].order_safe) == (Reason.ROOM, False)
    assert not found["full"].reason.fits


def test_kept_replicas_count_with_the_size_of_their_volume() -> None:
    """Of all the pod's volumes, whether the node fits or not; a replica that is being evicted does not stay."""
    found = facts("x", "y")
    assert found.total == 60 * GI
    assert {name: node.kept for name, node in found.nodes.items()} == dict.fromkeys(NAMES, 0) | {"home": 30 * GI}
    leaving = [entry for entry in cluster() if entry["kind"] != "Replica"]
    leaving.append(replica("r", "vol-x", "home", size=30, evictionRequested=True))
    assert facts("x", "y", objects=leaving).nodes["home"].kept == 0


def test_disks_are_told_as_the_plan_leaves_them() -> None:
    """In bytes of what may be promised: y takes 30Gi of the disk of `home` that x is not on."""
    found = facts("x", "y").nodes
    assert sorted(entry.free for entry in found["home"].disks) == [70 * GI, 70 * GI]
    assert {entry.limit for entry in found["home"].disks} == {100 * GI}
    assert sum(entry.free for entry in found["even"].disks) == 140 * GI
    assert found["full"].disks == ()


def test_at_home_nothing_is_placed() -> None:
    """So there are no disks to compare, and no order can go wrong."""
    assert facts("x").nodes["home"] == NodeFacts(Reason.HOME, order_safe=True, kept=30 * GI)


def test_a_pod_without_volumes_fits_everywhere() -> None:
    """And has no bytes."""
    found = facts()
    assert found.total == 0
    assert set(found.nodes.values()) == {NodeFacts(Reason.NO_VOLUMES, order_safe=True)}


def test_disks_with_equal_room_keep_their_own_limits() -> None:
    """Both have 80Gi left, of 80 and of 100; which of them the plan takes is told by their UUIDs."""
    objects = flat(
        [entry for entry in cluster() if entry["metadata"]["name"] != "even" or entry["apiVersion"] == "v1"],
        longhorn_node("even", {"disk-1": disk(80), "disk-2": disk(100, scheduled=20)}),
    )
    found = facts("y", objects=objects).nodes["even"].disks
    assert {entry.limit for entry in found} == {80 * GI, 100 * GI}
    assert sorted(entry.free for entry in found) == [50 * GI, 80 * GI]


def test_a_closed_disk_is_not_told() -> None:
    """It takes nothing, so its free bytes are nobody's."""
    objects = flat(
        [entry for entry in cluster() if entry["metadata"]["name"] != "even" or entry["apiVersion"] == "v1"],
        longhorn_node("even", {"disk-1": disk(80), "disk-2": disk(200, allow=False)}),
    )
    assert facts("y", objects=objects).nodes["even"].disks == (DiskFacts(80 * GI, 50 * GI),)


def test_what_others_will_take_is_gone_from_the_disks() -> None:
    """The pod of z is bound to `even` and has no replica there yet."""
    memory = Memory(view(cluster(), pod("z", name="other", uid="uid-other", node="even")))
    others = Others(demands=Demands.of(memory.view), joint=Joint())
    found = finish(facts_for(as_pod(pod("y")), NAMES, memory, EXACT, others)).nodes
    assert sum(entry.free for entry in found["even"].disks) == (200 - 60 - 30) * GI
    assert sum(entry.free for entry in found["home"].disks) == (200 - 30 - 30) * GI


def test_what_is_remembered_is_what_would_be_found_anew() -> None:
    """Also when a disk has changed in between, or others take something."""
    plans, memory = Plans(), Memory(view(cluster()))
    later = view([entry for entry in cluster() if entry["metadata"]["name"] != "even" or entry["apiVersion"] == "v1"],
                 longhorn_node("even", {"disk-1": disk(100, scheduled=25), "disk-2": disk(100)}))  # fmt: skip
    taken = view(cluster(), pod("z", name="other", uid="uid-other", node="even"))
    for current in (memory, memory, memory.after(later, frozenset({"even"})), Memory(taken)):
        others = Others(demands=Demands.of(current.view), joint=Joint()) if current.view is taken else NOBODY
        arguments = (as_pod(pod("y")), NAMES, current, EXACT, others)
        assert finish(facts_for(*arguments, plans)) == finish(facts_for(*arguments))


def test_volumes_are_spread_over_the_disks_as_far_as_that_works_out() -> None:
    """The largest first on the disk with most room left: 30, 30 and 20 leave 50 and 70."""
    objects = [*cluster(), claim("p", 30), claim("q", 20)]
    assert sorted(entry.free for entry in facts("y", "p", "q", objects=objects).nodes["even"].disks) == [
        50 * GI,
        70 * GI,
    ]


def test_where_spreading_does_not_work_out_the_packing_is_told() -> None:
    """Two of 30Gi and three of 20Gi fill two disks of 60Gi in one way only."""
    objects = flat(
        [entry for entry in cluster() if entry["metadata"]["name"] != "even" or entry["apiVersion"] == "v1"],
        longhorn_node("even", {"disk-1": disk(60), "disk-2": disk(60)}),
        claim("p", 30),
        [claim(name, 20) for name in "qrs"],
    )
    found = facts("y", "p", "q", "r", "s", objects=objects).nodes["even"]
    assert (found.reason, found.order_safe) == (Reason.ROOM, False)
    assert found.disks == (DiskFacts(60 * GI, 0), DiskFacts(60 * GI, 0))
