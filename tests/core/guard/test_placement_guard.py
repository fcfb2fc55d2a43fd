"""The guard of placements: what it leaves, what it changes, and what it never touches.

In most examples the replica of volume x is placed while the older volume y of another pod is still to come. Disk a has space for x
alone, disk b for either. Longhorn chooses b for x.
"""

from typing import Any

import pytest

from scheduler_core.convert.disk_schedule import MIRROR_LABEL
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.guard.placement_guard import GuardDecision, GuardOutcome, guards_every_node
from scheduler_core.model.longhorn import Placement
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import replace
from tests import builders as make
from tests.builders import Object
from tests.worlds.disk_schedules import disk_schedule
from tests.worlds.engines import engines
from tests.worlds.offers import with_offer
from tests.worlds.placements import NODE, decide, node_with_disks, path_of, placement, state_of, waiting_volume

ON_A = placement("x", 10, "a")
ON_B = placement("x", 10, "b")


def _node(a: dict[str, Any] | None = None, b: dict[str, Any] | None = None, **more: float) -> list[Object]:
    disks = {"a": make.disk(**{"size": 10, **(a or {})}), "b": make.disk(**{"size": 20, **(b or {})})}
    return node_with_disks(disks | {name: make.disk(size) for name, size in more.items()})


def _outcome(decision: GuardDecision) -> tuple[str, str]:
    return decision.outcome.value, decision.allowance.disk.removeprefix(f"{NODE}-")


X = waiting_volume("x", 10, age=2)
Y = waiting_volume("y", 20, age=1)


def test_longhorns_disk_is_changed_if_older_demand_would_no_longer_fit() -> None:
    decision = decide(state_of(_node(), X, Y), ON_B)
    assert decision == GuardDecision(
        GuardOutcome.CHANGED,
        ON_A,
        "default/pod-x",
        "everything to come to node n (2 volumes, 30Gi) is proven to fit with volume vol-x on disk a, not on disk b",
    )


def test_longhorns_disk_stays_if_everything_still_fits() -> None:
    decision = decide(state_of(_node(c=20), X, Y), ON_B)
    detail = "everything to come to node n (2 volumes, 30Gi) fits with volume vol-x on disk b"
    assert decision == GuardDecision(GuardOutcome.LEFT, ON_B, "default/pod-x", detail)


def _unbound(name: str, size: float, age: int) -> list[Object]:
    """A pod with a selected node, whose claim is not bound yet."""
    claim = make.claim(name, size)
    claim["metadata"] |= {
        "annotations": {"volume.kubernetes.io/selected-node": NODE},
        "creationTimestamp": f"2026-01-01T00:00:{age:02d}Z",
    }
    return [claim, make.pod(name, name=f"pod-{name}", uid=f"uid-pod-{name}")]


def _image(disks: list[str]) -> Object:
    return {
        "apiVersion": make.LONGHORN,
        "kind": "BackingImage",
        "metadata": {"name": "image", "namespace": "longhorn-system"},
        "spec": {"dataEngine": "v1", "diskFileSpecMap": {uuid: {} for uuid in disks}},
        "status": {"realSize": 3 * make.GI},
    }


FREE_X = [make.volume("vol-x", 10), make.replica("r-x", "vol-x", size=10, healthy=False)]
Z = waiting_volume("z", 15, age=3)
Y_ON_B = placement("y", 20, "b")
Z_ON_A = placement("z", 5, "a")
OLD_X = make.replica("r-0", "vol-x", NODE, size=10, disk="b")
OLD_X_ON_A = make.replica("r-0", "vol-x", NODE, size=10, disk="a", deleting=True)
X_OF_TWO = waiting_volume("x", 10, numberOfReplicas=2)
SECOND_X = [make.replica("r-2", "vol-x", size=10, healthy=False)]
SHOWN_Y = [*Y[:-1], make.replica("r-y", "vol-y", NODE, size=20, disk="b")]
UNBOUND_Y = [*_unbound("y", 5, 0), make.replica("r-y", "pvc-uid-y", NODE, size=5, disk="b", healthy=False)]
SELECTED_X = [
    X[0] | {"metadata": X[0]["metadata"] | {"annotations": {"volume.kubernetes.io/selected-node": NODE}}},
    X[1],
    X[3],
]
WITH_IMAGE = waiting_volume("x", 10, age=2, backingImage="image")
FIRST_WITH_IMAGE = waiting_volume("z", 5, age=0, backingImage="image")
TAGGED_X = waiting_volume("x", 10, age=2, diskSelector=["ssd"])
TAGGED_DISKS = {
    "a": make.disk(10),
    "b": make.disk(20, tags=["ssd"]),
    "c": make.disk(10, tags=["ssd", "fast"]),
    "d": make.disk(10, tags=["ssd"], schedulable=False),
}
CORDONED = node_with_disks({"a": make.disk(10), "b": make.disk(20)}, schedulable=False)
PERCENTAGE = "storage-over-provisioning-percentage"


def _other(size: float) -> list[Object]:
    """A volume of another pod on disk b that the status does not list."""
    return [make.volume("vol-o", size), make.replica("r-o", "vol-o", NODE, size=size, disk="b")]


# Objects, Longhorn's choice, what was allowed before -> outcome and disk.
CHOICES: dict[str, tuple[list[list[Object]], Placement, list[Placement], str]] = {
    "the planned disk stays": ([_node(), X, Y], ON_A, [], "left a"),
    "younger demand is kept, too": ([_node(), X, waiting_volume("y", 20, age=3)], ON_B, [], "changed a"),
    "hopeless demand is left out": ([_node(), X, waiting_volume("y", 25, age=3)], ON_B, [], "left b"),
    "an overbooked disk is changed though nothing else is to come": ([_node(), X, _other(15)], ON_B, [], "changed a"),
    "an allowed placement takes its space before a watch shows it": ([_node(), X, Y], ON_B, [Y_ON_B], "changed a"),
    "also that of a volume that is not shown yet": ([_node(), X], ON_B, [Y_ON_B], "changed a"),
    "the bytes of an allowed volume do not count twice": ([_node(), X, Y], ON_A, [Y_ON_B], "left a"),
    "an allowed placement that a watch shows counts once": ([_node(c=10), X, SHOWN_Y], ON_A, [Y_ON_B], "left a"),
    "also if it was shown elsewhere than it was allowed": (
        [_node(c=10), X, SHOWN_Y], ON_A, [placement("y", 10, "a")], "left a",
    ),
    "the same replica may be allowed once more": ([_node(), X, Y], ON_A, [ON_A], "left a"),
    "a retry replaces the allowance of its replica": ([_node(), X, Y], ON_B, [ON_A], "changed a"),
    "an allowance on another node takes no space here": (
        [_node(), X], ON_B, [replace(Y_ON_B, node="m", disk="m-b")], "left b",
    ),
    "a replica that takes no promised space stays": ([_node(), FREE_X, Y], ON_A, [], "left a"),
    "a replica that would overfill its disk gets another one": ([_node(), _other(15), FREE_X], ON_B, [], "changed a"),
    "unless no other has room": ([_node(a={"size": 5}), _other(15), FREE_X], ON_B, [], "no-plan b"),
    "a demand that is hopeless is promised nothing": ([_node(), FREE_X, [OLD_X], Y], ON_B, [], "not-guarded b"),
    "the second of two replicas on one node is not the local one": (
        [_node(), X_OF_TWO, SECOND_X, Y], replace(ON_B, replica="r-2"), [], "changed a",
    ),
    "also before a watch shows the first": (
        [_node(), X_OF_TWO, SECOND_X, Y], replace(ON_B, replica="r-2"), [ON_A], "promised-space-taken b",
    ),
    # Minimal available is 25 % of 10Gi, and 8Gi are copied.
    "the actual size of a rebuilt volume must be available": (
        [_node(), waiting_volume("x", 10, age=2, actual=8), Y], ON_B, [], "no-plan b",
    ),
    "a backing image of 3Gi is copied to a disk that lacks it": (
        [_node({"size": 13}), WITH_IMAGE, Y, [_image(["n-b"])]], ON_B, [], "changed a",
    ),
    "its bytes must fit, too": ([_node({"size": 12}), WITH_IMAGE, Y, [_image(["n-b"])]], ON_B, [], "no-plan b"),
    "a copy that an allowed replica waits for takes space": (
        [_node({"size": 18}), FIRST_WITH_IMAGE, X, Y, [_image([])]], ON_B, [Z_ON_A], "changed a",
    ),
    "to the byte": ([_node({"size": 17}), FIRST_WITH_IMAGE, X, Y, [_image([])]], ON_B, [Z_ON_A], "no-plan b"),
    "Longhorn's rules read the true load": (
        [_node({"size": 20, "listed": {"r-0": 10}}), X, _other(20), [OLD_X_ON_A]], ON_B, [], "changed a",
    ),
    "over-provisioning counts": ([_node(), X, Y, [make.setting(PERCENTAGE, "200")]], ON_B, [], "left b"),
    "a setting that cannot be read leaves everything": (
        [_node(), X, Y, [make.setting(PERCENTAGE, "many")]], ON_B, [], "no-plan b",
    ),
    "a best-effort volume is guarded on its pod's node": (
        [_node(), waiting_volume("x", 10, age=2, locality="best-effort"), Y], ON_B, [], "changed a",
    ),
    # It may have been cordoned since.
    "a node that takes no replicas is left alone": ([CORDONED, X, Y], ON_B, [], "no-plan b"),
    "an open disk is written though others are closed": (
        [node_with_disks(TAGGED_DISKS), TAGGED_X, Y], ON_B, [], "changed c",
    ),
    "a claim bound to a volume that is not shown is known by its handle": (
        [_node(), SELECTED_X, Y], ON_B, [], "changed a",
    ),
    # The watch of replicas may be ahead of those of claims: y would count twice, and z would seem hopeless.
    "an unbound claim's volume that a watch shows as placed is no longer to come": (
        [_node(), X, UNBOUND_Y, Z], ON_B, [], "changed a",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "wanted", "allowed", "expected"), CHOICES.values(), ids=CHOICES)
def test_longhorns_choice_is_left_or_changed(
    objects: list[list[Object]], wanted: Placement, allowed: list[Placement], expected: str
) -> None:
    decision = decide(state_of(*objects), wanted, allowed)
    assert " ".join(_outcome(decision)) == expected
    assert decision.allowance.disk_path == path_of(decision.allowance.disk.removeprefix(f"{NODE}-"))


def test_offers_are_kept() -> None:
    claim = make.claim("y", 20)
    state = state_of(_node(), X, claim, make.pod("y", name="pod-y", uid="uid-pod-y"))
    ledger = with_offer(Ledger(), state.view, "pod-y", [NODE], 0.0)
    assert _outcome(decide(state, ON_B)) == ("left", "b")
    assert _outcome(decide(state, ON_B, ledger=ledger)) == ("changed", "a")


def test_offers_give_way_to_demand() -> None:
    claim = make.claim("z", 15)
    state = state_of(_node(), X, Y, claim, make.pod("z", name="pod-z", uid="uid-pod-z"))
    ledger = with_offer(Ledger(), state.view, "pod-z", [NODE], 0.0)
    assert _outcome(decide(state, ON_B, ledger=ledger)) == ("changed", "a")
    assert _outcome(decide(state, ON_A, ledger=ledger)) == ("left", "a")


def test_an_offer_gives_way_if_longhorn_allows_no_other_disk() -> None:
    selector = make.storage_class("fast", diskSelector="ssd")
    z = [selector, make.claim("z", 10, storage_class="fast"), make.pod("z", name="pod-z", uid="uid-pod-z")]
    old = make.replica("r-0", "vol-x", NODE, size=10, disk="c", deleting=True)
    disks = {"a": make.disk(10, tags=["ssd"]), "c": make.disk(20, listed={"r-0": 10})}
    state = state_of(node_with_disks(disks), X, old, z)
    ledger = with_offer(Ledger(), state.view, "pod-z", [NODE], 0.0)
    assert _outcome(decide(state, ON_A, ledger=ledger)) == ("left", "a")


def test_a_volume_that_older_demand_leaves_no_space_stays_on_longhorns_disk() -> None:
    older = [waiting_volume("y", 10, age=0), waiting_volume("z", 20, age=1)]
    decision = decide(state_of(_node(), X, *older), ON_B)
    assert (decision.outcome, decision.allowance) == (GuardOutcome.NO_PLAN, ON_B)
    assert decision.detail == "volume vol-x does not fit there together with older demand"


# Replicas that no pod needs on the node.


def test_where_nothing_is_promised_a_replica_that_no_pod_needs_is_left_alone() -> None:
    decision = decide(state_of(_node(), FREE_X), ON_B)
    assert decision == GuardDecision(
        GuardOutcome.NOT_GUARDED, ON_B, detail="no pod needs volume vol-x on node n, and none was promised space there"
    )


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param(FREE_X, id="no pod needs it"),
        pytest.param(waiting_volume("x", 10, node="m"), id="its pod runs on another node"),
        pytest.param(waiting_volume("x", 10, locality="disabled"), id="it needs no local replica"),
    ],
)
def test_a_replica_that_would_take_promised_space_gets_another_disk(objects: list[Object]) -> None:
    decision = decide(state_of(_node(), objects, Y), ON_B)
    assert decision == GuardDecision(
        GuardOutcome.CHANGED,
        ON_A,
        detail="1 volume that pods were promised space for on node n fit no more; on disk n-a of node n volume vol-x takes no promised space",
    )


def test_without_another_disk_promised_space_is_taken() -> None:
    decision = decide(state_of(_node(a={"size": 5}), FREE_X, Y), ON_B)
    assert decision == GuardDecision(
        GuardOutcome.PROMISED_SPACE_TAKEN,
        ON_B,
        detail="1 volume that pods were promised space for on node n fit no more, and there is no other place that Longhorn allows",
    )


def test_of_many_nodes_those_with_most_space_are_considered() -> None:
    """Longhorn's rules about all nodes of a large cluster would take seconds; the last of these has most space."""
    others = [make.longhorn_node(f"m{number:03d}", {"c": make.disk(10 + (number == 149))}) for number in range(150)]
    for closed in others[:-1]:
        closed["spec"]["allowScheduling"] = False
    names = [raw["metadata"]["name"] for raw in others]
    state = state_of(_node(a={"size": 5}), *others, *engines([NODE, *names]), FREE_X, Y)
    assert decide(state, ON_B, other_nodes=True).allowance.node == names[-1]


def test_a_place_that_keeps_what_is_decided_is_better_than_one_that_keeps_offers() -> None:
    other = make.longhorn_node("m", {"c": make.disk(10)})
    other["spec"]["disks"]["c"]["path"] = path_of("c")
    undecided = [make.claim("z", 10), make.pod("z", name="pod-z", uid="uid-pod-z")]
    state = state_of(_node(a={"size": 5}), other, *engines([NODE, "m"]), FREE_X, Y, undecided)
    ledger = with_offer(Ledger(), state.view, "pod-z", ["m"], 0.0)
    assert decide(state, ON_B, ledger=ledger, other_nodes=True).allowance.disk == "m-c"


@pytest.mark.parametrize(
    ("promised", "tags", "place"),
    [
        pytest.param([], [], "m-c", id="free"),
        pytest.param(waiting_volume("z", 10, node="m"), [], "n-b", id="promised to another pod"),
        pytest.param([], ["ssd"], "n-b", id="closed to it by a tag"),
    ],
)
def test_if_that_is_allowed_the_replica_gets_a_disk_of_another_node(
    promised: list[Object], tags: list[str], place: str
) -> None:
    other = make.longhorn_node("m", {"c": make.disk(10)})
    other["spec"]["disks"]["c"]["path"] = path_of("c")
    free = [make.volume("vol-x", 10, diskSelector=tags), FREE_X[1]]
    node = _node(a={"size": 5}, b={"tags": tags})
    state = state_of(node, other, *engines([NODE, "m"]), free, Y, promised)
    assert decide(state, ON_B).allowance == ON_B
    moved = decide(state, ON_B, other_nodes=True).allowance
    assert (moved.disk, moved.node) == (place, place[0])
    assert moved.disk_path == path_of(place[2])


@pytest.mark.parametrize(("labels", "outcome"), [({}, "not-guarded"), ({MIRROR_LABEL: "true"}, "changed")])
def test_a_node_with_a_disk_schedule_is_left_alone(labels: dict[str, str], outcome: str) -> None:
    schedule = disk_schedule(f"{NODE}-b", node=NODE, disk="b")
    schedule["metadata"]["labels"] = labels
    state = state_of(_node(), schedule, X, Y)
    assert decide(state, ON_B).outcome == outcome
    assert guards_every_node(state.view) is bool(labels)


# Volumes that the watches show late.


def test_an_unbound_claims_volume_is_known_by_the_claims_uid() -> None:
    """The watch of Longhorn's volumes may be behind that of the API server's webhook call."""
    state = state_of(_node(), _unbound("x", 10, 2), Y)
    decision = decide(state, replace(ON_B, volume="pvc-uid-x"))
    assert (_outcome(decision), decision.pod) == (("changed", "a"), "default/pod-x")


@pytest.mark.parametrize("offers", [[], ["pod-y"]])
def test_a_volume_that_a_watch_shows_before_its_claim_is_bound_counts_once(offers: list[str]) -> None:
    y = [*_unbound("y", 5, 0), make.volume("pvc-uid-y", 5, locality="strict-local", nodeID=NODE)]
    state = state_of(_node(), X, y, waiting_volume("z", 15, age=3))
    ledger = Ledger()
    for name in offers:
        ledger = with_offer(ledger, state.view, name, [NODE], 0.0)
    assert _outcome(decide(state, ON_B, ledger=ledger)) == ("changed", "a")
    assert _outcome(decide(state, replace(placement("y", 5, "a"), volume="pvc-uid-y"), ledger=ledger)) == (
        "changed",
        "b",
    )


def _undecided(*claims: tuple[str, float]) -> list[Object]:
    names = [name for name, _ in claims]
    return [*(make.claim(*claim) for claim in claims), make.pod(*names, name="pod-new", uid="uid-pod-new")]


def test_an_offered_volume_is_guarded_before_a_watch_shows_its_pods_node() -> None:
    state = state_of(_node(), _undecided(("x", 10)), Y)
    ledger = with_offer(Ledger(), state.view, "pod-new", [NODE, "m"], 0.0)
    decision = decide(state, replace(ON_B, volume="pvc-uid-x"), ledger=ledger)
    assert (_outcome(decision), decision.pod) == (("changed", "a"), "default/pod-new")


def _two_offers(*claims: tuple[str, float]) -> tuple[ClusterState, Ledger]:
    """An older offer of 10Gi to pod-o, and an offer to pod-new; disk c has 5Gi, and volume w of another pod needs 10Gi."""
    other = [make.claim("o", 10), make.pod("o", name="pod-o", uid="uid-pod-o")]
    state = state_of(_node(c=5), _undecided(*claims), other, waiting_volume("w", 10))
    ledger = with_offer(Ledger(), state.view, "pod-o", [NODE], 0.0)
    return state, with_offer(ledger, state.view, "pod-new", [NODE], 1.0)


def test_the_offer_of_a_pod_whose_volume_is_placed_counts_as_demand() -> None:
    """Its 20Gi come before the older offer, and keep disk b."""
    state, ledger = _two_offers(("v", 5), ("z", 20))
    assert _outcome(decide(state, replace(placement("v", 5, "b"), volume="pvc-uid-v"), ledger=ledger)) == (
        "changed",
        "c",
    )


def test_the_offer_of_a_pod_with_an_allowed_volume_counts_as_demand() -> None:
    """Its 20Gi come before the older offer, which would fit with volume w on disk b."""
    state, ledger = _two_offers(("v", 5), ("z", 20))
    on_c = replace(placement("v", 5, "c"), volume="pvc-uid-v")
    assert _outcome(decide(state, placement("w", 10, "b"), [on_c], ledger)) == ("changed", "a")


def test_a_held_volume_is_not_needed_on_the_node() -> None:
    state = state_of(_node(), _undecided(("x", 10)), Y)
    ledger = with_offer(Ledger(), state.view, "pod-new", [NODE], 0.0, priority=1)
    assert _outcome(decide(state, replace(ON_B, volume="pvc-uid-x"), ledger=ledger)) == ("promised-space-taken", "b")


def test_an_unbound_claims_volume_that_was_allowed_is_no_longer_to_come() -> None:
    state = state_of(_node(), X, _unbound("y", 20, 1))
    ledger = with_offer(Ledger(), state.view, "pod-y", [NODE], 0.0)
    allowed = replace(placement("y", 20, "b"), volume="pvc-uid-y")
    assert _outcome(decide(state, ON_A, [allowed], ledger)) == ("left", "a")


# Which disks Longhorn allows.


def test_a_disk_that_the_watches_show_as_closed_is_left() -> None:
    decision = decide(state_of(_node(b={"schedulable": False}, c=20), X, Y), ON_B)
    assert _outcome(decision) == ("no-plan", "b")
    assert decision.detail == "the watches show disk b as closed to volume vol-x"


def test_a_search_that_gives_up_changes_nothing() -> None:
    sizes = (37, 27, 18, 24, 30, 31, 35, 37, 13, 7, 21, 36)
    disks = {f"d{index}": make.disk(size) for index, size in enumerate((59, 103, 86, 68))}
    volumes = [waiting_volume(f"v{index}", size) for index, size in enumerate(sizes)]
    state = state_of(node_with_disks(disks), *volumes)
    wanted = placement("v0", sizes[0], "d0")
    assert _outcome(decide(state, wanted, steps=0)) == ("no-plan", "d0")
    assert _outcome(decide(state, wanted)) == ("changed", "d3")


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"node": "m"}, "there is no nodes.longhorn.io m"),
        ({"disk": "m-a"}, "node n has no disk with UUID m-a"),
        ({"disk": "n-a"}, "disk a of node n has path /data/a/, not /data/b/"),
        ({"disk_path": "/data/b"}, "disk b of node n has path /data/b/, not /data/b"),
    ],
)
def test_a_place_that_the_node_does_not_list_is_refused(change: dict[str, Any], detail: str) -> None:
    decision = decide(state_of(_node(), X, Y), replace(ON_B, **change))
    assert (decision.outcome, decision.detail) == (GuardOutcome.REFUSED_SHAPE, detail)
    assert decision.allowance == replace(ON_B, **change)


def test_the_decision_does_not_depend_on_the_order_of_objects() -> None:
    objects = [*_node(c=10, d=10), *X, *Y]
    decisions = {decide(state_of(order), ON_B) for order in (objects, objects[::-1])}
    assert len(decisions) == 1
    assert {decision.outcome for decision in decisions} == {GuardOutcome.CHANGED}


def test_the_decision_changes_neither_state_nor_offers() -> None:
    state = state_of(_node(), X, Y)
    allowed = [placement("y", 20, "b")]
    assert decide(state, ON_B, allowed) == decide(state, ON_B, allowed)
    assert state.view.version == 1
