"""Deciding beside other pods' demand and offers, against trying every assignment of every volume to every disk."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.view import View
from scheduler_core.cooperative import finish
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint
from scheduler_core.evaluation.equivalence_cache import Standing
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Options, Others, Packing, explain_nodes, filter_nodes
from scheduler_core.model.kube import Pod
from scheduler_core.offers.ledger import Ledger, Offered, PodSeen, step
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import GI, NOW, Object

NODES = ("a", "b", "c")
sizes = st.integers(1, 9)
disks = st.lists(st.integers(4, 20), min_size=1, max_size=2)
pods = st.tuples(
    st.sampled_from(("", "", *NODES)),
    st.lists(sizes, min_size=1, max_size=2),
    st.sets(st.sampled_from(NODES), min_size=1),
)


def _packs(volumes: list[int], free: list[int]) -> bool:
    """Whether some assignment works, found by trying all."""
    return any(
        all(
            sum(size for size, at in zip(volumes, choice, strict=True) if at == disk) <= room
            for disk, room in enumerate(free)
        )
        for choice in product(range(len(free)), repeat=len(volumes))
    )


def _cluster(layout: list[list[int]], others: list[tuple[str, list[int], set[str]]], asked: list[int]) -> list[Object]:
    objects: list[Object] = [make.storage_class("longhorn")]
    for name, found in zip(NODES, layout, strict=True):
        objects.append(
            make.longhorn_node(name, {f"disk-{index}": make.disk(size) for index, size in enumerate(found, start=1)})
        )
    for number, (node, wanted, _) in enumerate(others):
        names = [f"o{number}-{index}" for index in range(len(wanted))]
        objects += [_aged(make.claim(name, size), number) for name, size in zip(names, wanted, strict=True)]
        objects.append(make.pod(*names, name=f"o{number}", uid=f"uid-{number}", node=node))
    names = [f"p-{index}" for index in range(len(asked))]
    objects += [make.claim(name, size) for name, size in zip(names, asked, strict=True)]
    objects.append(make.pod(*names, name="p", uid="uid-p"))
    return objects


def _aged(raw: Object, number: int) -> Object:
    raw["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{number:02d}Z"
    return raw


def _offers(view: View, others: list[tuple[str, list[int], set[str]]]) -> Ledger:
    ledger = Ledger()
    for number, (node, _, offered) in enumerate(others):
        if not node:
            pod = view.snapshot.pods["default", f"o{number}"]
            seen = PodSeen(pod.uid, pod.namespace, pod.name)
            event = Offered(seen, frozenset(offered), resolve(pod, view).local)
            ledger, _ = step(ledger, event, float(number))
    return ledger


def _expected(layout: list[list[int]], others: list[tuple[str, list[int], set[str]]], asked: list[int]) -> list[bool]:
    fits = []
    for name, free in zip(NODES, layout, strict=True):
        taken: list[int] = []
        for node, wanted, _ in others:  # one volume at a time: a demand is a volume's
            for size in wanted if node == name else ():
                taken = [*taken, size] if _packs([*taken, size], free) else taken
        for node, wanted, offered in others:
            if not node and name in offered and _packs([*taken, *wanted], free):
                taken = [*taken, *wanted]
        fits.append(_packs([*taken, *asked], free))
    return fits


@settings(max_examples=400, deadline=None)
@given(st.lists(disks, min_size=3, max_size=3), st.lists(pods, max_size=4), st.lists(sizes, min_size=1, max_size=2))
def test_a_pod_fits_where_its_volumes_pack_jointly_with_what_others_will_take(
    layout: list[list[int]], others: list[tuple[str, list[int], set[str]]], asked: list[int]
) -> None:
    """Demand first, older before younger, hopeless ones left out; then offers; then the pod. Explain says the same."""
    view = View.of(make.snapshot(_cluster(layout, others, asked)), NOW)
    pod: Pod = view.snapshot.pods["default", "p"]
    options = Options(packing=Packing.EXACT)
    beside = Others(demands=Demands.of(view), ledger=_offers(view, others), joint=Joint())
    memory = Memory(view)
    decision = finish(filter_nodes(pod, NODES, memory, options, beside))
    assert [reason.fits for reason in decision.reasons] == _expected(layout, others, asked)
    explanation = finish(explain_nodes(pod, NODES, memory, options, beside))
    assert [verdict.reason for verdict in explanation.verdicts] == list(decision.reasons)
    names = {volume.name for volume in decision.resolution.local}
    assert all(set(verdict.plan) == names for verdict in explanation.verdicts if verdict.fits)
    alone = finish(filter_nodes(pod, NODES, Memory(view), options))
    assert all(
        alone_reason.fits for alone_reason, reason in zip(alone.reasons, decision.reasons, strict=True) if reason.fits
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(disks, min_size=3, max_size=3), st.lists(pods, max_size=4), st.lists(sizes, min_size=1, max_size=2))
def test_what_was_seen_of_a_node_is_forgotten_when_something_there_changes(
    layout: list[list[int]], others: list[tuple[str, list[int], set[str]]], asked: list[int]
) -> None:
    """One memory asked while the others appear one after the other answers as a fresh one does."""
    joint = Joint()
    for count in range(len(others) + 1):
        view = View.of(make.snapshot(_cluster(layout, others[:count], asked)), NOW)
        pod = view.snapshot.pods["default", "p"]
        demands, ledger = Demands.of(view), _offers(view, others[:count])
        kept = finish(
            filter_nodes(pod, NODES, Memory(view), Options(), Others(demands=demands, ledger=ledger, joint=joint))
        )
        fresh = finish(
            filter_nodes(pod, NODES, Memory(view), Options(), Others(demands=demands, ledger=ledger, joint=Joint()))
        )
        assert kept.reasons == fresh.reasons


def test_room_that_is_only_offered_elsewhere_is_worth_waiting_for() -> None:
    """The reason tells kube-scheduler's event, and the service that waits."""
    view = View.of(make.snapshot(_cluster([[10], [10], [2]], [("", [8], {"a", "b"})], [8])), NOW)
    pod = view.snapshot.pods["default", "p"]
    others = Others(demands=Demands.of(view), ledger=_offers(view, [("", [8], {"a", "b"})]), joint=Joint())
    decision = finish(filter_nodes(pod, NODES, Memory(view), Options(), others))
    assert [reason.name for reason in decision.reasons] == ["WAITING", "WAITING", "INSUFFICIENT_STORAGE"]


def test_order_safety_that_only_an_offer_spoils_is_worth_waiting_for() -> None:
    """With order-safe packing no other node is offered; one that would not be safe without the offer either is not waited for."""
    layout, offered = [[60, 50], [60], [2]], [("", [50], {"a"})]
    view = View.of(make.snapshot(_cluster(layout, offered, [60])), NOW)
    pod = view.snapshot.pods["default", "p"]
    others = Others(demands=Demands.of(view), ledger=_offers(view, offered), joint=Joint())
    options = Options(packing=Packing.ORDER_SAFE)
    decision = finish(filter_nodes(pod, ("a", "c"), Memory(view), options, others))
    assert [reason.name for reason in decision.reasons] == ["WAITING", "INSUFFICIENT_STORAGE"]


def test_demand_is_not_worth_waiting_for() -> None:
    """It will be there."""
    bound = [("a", [8], {"a"})]
    view = View.of(make.snapshot(_cluster([[10], [5], [2]], bound, [8])), NOW)
    pod = view.snapshot.pods["default", "p"]
    others = Others(demands=Demands.of(view), joint=Joint())
    decision = finish(filter_nodes(pod, NODES, Memory(view), Options(), others))
    assert [reason.name for reason in decision.reasons] == [
        "SPOKEN_FOR",
        "INSUFFICIENT_STORAGE",
        "INSUFFICIENT_STORAGE",
    ]


def test_a_pod_s_own_demand_and_offer_do_not_stand_in_its_way() -> None:
    """kube-scheduler asks again about a pod whose binding failed; its claim keeps the selected node."""
    objects = _cluster([[10 * 1], [10], [10]], [], [8])
    for raw in objects:
        if raw["metadata"]["name"] == "p-0":
            raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    view = View.of(make.snapshot(objects), NOW)
    pod = view.snapshot.pods["default", "p"]
    demands = Demands.of(view)
    assert [demand.volume.volume.size for demand in demands.all] == [8 * GI]
    offered = Offered(PodSeen("uid-p"), frozenset(NODES), resolve(pod, view).local)
    ledger, _ = step(Ledger(), offered, 0.0)
    others = Others(demands=demands, ledger=ledger, joint=Joint())
    decision = finish(filter_nodes(pod, NODES, Memory(view), Options(), others))
    assert [reason.name for reason in decision.reasons] == ["ROOM", "ROOM", "ROOM"]


def test_groups_of_volumes_are_never_confused_however_many_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of a node outlives the table of groups."""
    monkeypatch.setattr("scheduler_core.evaluation.contention._MOST_GROUPS", 1)
    layout, others = [[10], [20], [20]], [("a", [8], {"a"}), ("b", [12], {"b"}), ("c", [3], {"c"})]
    view = View.of(make.snapshot(_cluster(layout, others, [9])), NOW)
    pod, joint = view.snapshot.pods["default", "p"], Joint()
    for _ in range(2):
        beside = Others(demands=Demands.of(view), joint=joint)
        decision = finish(filter_nodes(pod, NODES, Memory(view), Options(packing=Packing.EXACT), beside))
        assert [reason.fits for reason in decision.reasons] == _expected(layout, others, [9])


SHARED = 6
sharing = st.tuples(
    st.sampled_from(("", "", *NODES)),
    st.lists(sizes, max_size=1),
    st.sets(st.sampled_from(NODES), min_size=1),
    st.booleans(),
)
Sharing = tuple[str, list[int], set[str], bool]


def _sharing_cluster(layout: list[list[int]], others: list[Sharing], asked: list[int], *, made: bool) -> list[Object]:
    """As `_cluster`; the pod that asks, and some others, mount one claim more, which is a volume if it is made already."""
    objects = _cluster(layout, [other[:3] for other in others], asked)
    mount = {"name": "shared", "persistentVolumeClaim": {"claimName": "s"}}
    for raw in objects:
        name = raw["metadata"]["name"]
        if raw["kind"] == "Pod" and (name == "p" or others[int(name[1:])][3]):
            raw["spec"]["volumes"].append(mount)
    return [*objects, *(make.bound("s", SHARED) if made else [make.claim("s", SHARED)])]


def _expected_beside_sharing(layout: list[list[int]], others: list[Sharing], asked: list[int]) -> list[bool]:
    """The shared claim is the asking pod's, so that it counts for that one alone; a pod that uses it ties it to its node."""
    users = {node for node, _, _, shares in others if node and shares}
    fits = _expected(layout, [other[:3] for other in others], [*asked, SHARED])
    return [fit and (not users or name in users) for name, fit in zip(NODES, fits, strict=True)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(disks, min_size=3, max_size=3),
    st.lists(sharing, min_size=1, max_size=4),
    st.lists(sizes, max_size=1),
    st.booleans(),
)
def test_a_claim_that_others_mount_too_counts_once(
    layout: list[list[int]], others: list[Sharing], asked: list[int], made: bool
) -> None:
    """Demanded, or offered to several, or made into a volume since; whoever looked at the nodes before."""
    before = View.of(make.snapshot(_sharing_cluster(layout, others, asked, made=False)), NOW)
    ledger, joint = _offers(before, [other[:3] for other in others]), Joint()
    options, standing = Options(packing=Packing.EXACT), Standing()
    for view in (before, View.of(make.snapshot(_sharing_cluster(layout, others, asked, made=made)), NOW)):
        beside = Others(demands=Demands.of(view), ledger=ledger, joint=joint, standing=standing)
        finish(filter_nodes(view.snapshot.pods["default", "o0"], NODES, Memory(view), options, beside))
        decision = finish(filter_nodes(view.snapshot.pods["default", "p"], NODES, Memory(view), options, beside))
        assert [reason.fits for reason in decision.reasons] == _expected_beside_sharing(layout, others, asked)
