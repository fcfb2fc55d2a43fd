"""Volumes that need no local room: until Longhorn has placed them they may take room anywhere, for 30 s at most."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.cooperative import finish
from scheduler_core.demand.index import Demands
from scheduler_core.demand.unplaced import ROAMING_LIFE
from scheduler_core.evaluation.contention import Joint, Own
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Decision, Options, Others, filter_nodes
from scheduler_core.extender.offer import offer_of
from scheduler_core.offers.ledger import Ledger, Offered, PodSeen, step
from scheduler_core.volumes.resolve import resolve
from tests.builders import (
    NOW,
    Object,
    as_pod,
    claim,
    flat,
    longhorn_node,
    persistent_volume,
    pod,
    replica,
    snapshot,
    storage_class,
    volume,
)

CLUSTER = [
    longhorn_node("a", 100),
    longhorn_node("b", 50),
    storage_class(),
    storage_class("far", dataLocality="disabled"),
]


def selected(raw: Object, node: str) -> Object:
    """A claim for which kube-scheduler has selected a node."""
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": node}
    return raw


def at(seconds: float, *objects: Object | list[Object]) -> View:
    """The cluster with some objects, so many seconds later."""
    return View.of(snapshot(CLUSTER, flat(*objects)), NOW + timedelta(seconds=seconds))


def roaming(demands: Demands) -> list[str]:
    """What roams."""
    return [entry.volume.name for entry in demands.roaming.young]


def remote(name: str = "x", **fields: Any) -> list[Object]:
    """A bound claim of 30Gi whose Longhorn volume needs no local room."""
    return [
        claim(name, 30, bound=True, storage_class="far"),
        persistent_volume(name),
        volume(f"vol-{name}", 30, locality="disabled", **fields),
    ]


def test_an_unbound_claim_roams_once_its_pod_has_a_node() -> None:
    """Before, nobody will provision it."""
    assert roaming(Demands.of(at(0, claim("x", 30, storage_class="far"), pod("x")))) == []
    assert roaming(Demands.of(at(0, selected(claim("x", 30, storage_class="far"), "b"), pod("x")))) == ["x"]


@pytest.mark.parametrize(
    ("placed", "expected"),
    [
        pytest.param([], ["vol-x"], id="no replica"),
        pytest.param([replica("r", "vol-x")], ["vol-x"], id="a replica without a place"),
        pytest.param([replica("r", "vol-x", "a")], [], id="a placed replica"),
    ],
)
def test_a_volume_roams_until_a_replica_has_a_place(placed: list[Object], expected: list[str]) -> None:
    """Whoever uses it."""
    assert roaming(Demands.of(at(0, remote(), placed))) == expected


def test_a_local_volume_does_not_roam() -> None:
    """It demands its node."""
    assert roaming(Demands.of(at(0, [claim("x", 30), pod("x", node="a")]))) == []


def test_a_volume_that_finds_no_place_stops_counting() -> None:
    """Otherwise one that can never be placed would stop others for ever; changed settings do not make it young again."""
    before = at(0, remote())
    demands = Demands.of(before)
    last = at(ROAMING_LIFE.total_seconds() - 1, remote())
    assert roaming(demands.after(before, {}, last)) == ["vol-x"]
    end = at(ROAMING_LIFE.total_seconds(), remote())
    late = demands.after(before, {}, end)
    assert roaming(late) == []
    again = late.after(end, {("settings", "any"): None}, end)
    assert roaming(again) == []
    assert roaming(late.after(end, {("volumes", "vol-x"): end.snapshot.volumes["vol-x"]}, end)) == []


def decided(view: View, name: str, ledger: Ledger | None = None) -> Decision:
    """What a pod of the view is told, beside all others."""
    others = Others(demands=Demands.of(view), ledger=ledger or Ledger(), joint=Joint())
    asked = view.snapshot.pods["default", name]
    return finish(filter_nodes(asked, ("a", "b"), Memory(view), Options(), others))


def told(decision: Decision) -> list[str]:
    """The reasons."""
    return [reason.name for reason in decision.reasons]


def test_it_counts_on_every_node_where_it_has_room() -> None:
    """80Gi beside 30Gi that may come do not fit on 100Gi; on b there is room for neither 80Gi nor both."""
    cluster = at(0, remote(), claim("y", 80), pod("y", name="asks"))
    assert told(decided(cluster, "asks")) == ["WAITING", "INSUFFICIENT_STORAGE"]
    smaller = at(0, remote(), claim("y", 60), pod("y", name="asks"))
    assert told(decided(smaller, "asks")) == ["ROOM", "INSUFFICIENT_STORAGE"]


def test_where_it_has_no_room_beside_what_is_meant_for_the_node_it_does_not_count() -> None:
    """It cannot come there: 80Gi are demanded of a."""
    cluster = at(0, remote(), claim("z", 80), pod("z", name="runs", node="a"), claim("y", 20), pod("y", name="asks"))
    assert told(decided(cluster, "asks")) == ["ROOM", "ROOM"]


def test_a_pod_s_own_roaming_volume_is_not_counted_against_it() -> None:
    """Longhorn sees to both; one of them may go elsewhere."""
    mixed = pod("x", "y", name="asks", uid="uid-asks")
    view = at(0, selected(claim("x", 30, storage_class="far"), "a"), claim("y", 80), mixed)
    assert told(decided(view, "asks"))[0] == "ROOM"


def test_from_the_answer_on_it_counts_as_offered() -> None:
    """Until kube-scheduler's decision is seen no object tells of it; a pod with nothing else is offered every node."""
    asks = [claim("x", 30, storage_class="far"), pod("x", name="far", uid="uid-far")]
    view = at(0, asks, claim("y", 80), pod("y", name="asks", uid="uid-asks"))
    decision = decided(view, "far")
    event, answered = offer_of(as_pod(asks[1]), decision, view, competing=3)
    assert told(answered) == ["ATTACHABLE", "ATTACHABLE"]
    ledger, _ = step(Ledger(), event, 0.0)
    assert told(decided(view, "asks", ledger)) == ["WAITING", "INSUFFICIENT_STORAGE"]
    assert ledger.competing("uid-asks") == 0, "it takes no node from anybody"
    assert told(decided(view, "far", ledger)) == ["ATTACHABLE", "ATTACHABLE"]


def test_a_volume_that_is_both_offered_and_selected_counts_once() -> None:
    """The offer ends a moment after the decision is seen."""
    raw = pod("x", name="far", uid="uid-far")
    view = at(0, selected(claim("x", 30, storage_class="far"), "b"), raw, claim("y", 60), pod("y", name="asks"))
    offered = Offered(PodSeen("uid-far"), frozenset(), roaming=resolve(as_pod(raw), view).unplaced)
    ledger, _ = step(Ledger(), offered, 0.0)
    assert told(decided(view, "asks", ledger))[0] == "ROOM"


def keys(demands: Demands) -> list[tuple[str, float]]:
    """What counts, and since when."""
    return [(entry.key, (entry.since - NOW).total_seconds()) for entry in demands.roaming.young]


def changed(*objects: Object | list[Object]) -> dict[tuple[str, Key], object | None]:
    """Changes that bring these objects."""
    pairs = ((KINDS[group_of(raw["apiVersion"]), raw["kind"]], raw) for raw in flat(*objects))
    return {(kind.field, kind.read(raw)[0]): kind.read(raw)[1] for kind, raw in pairs}


def test_a_claim_and_the_volume_provisioned_for_it_count_once_and_no_longer_than_one() -> None:
    """The volume appears before its claim is bound."""
    wanted = [selected(claim("x", 30, storage_class="far"), "b"), pod("x")]
    made = [*wanted, volume("pvc-uid-x", 30, locality="disabled")]
    bound = [*made[1:], claim("x", 30, bound=True, storage_class="far"), persistent_volume("x", handle="pvc-uid-x")]
    before = at(0, *wanted)
    demands = Demands.of(before)
    assert keys(demands) == [("default/x (claim)", 0)]
    for second, objects in ((10, made), (20, bound)):
        after = at(second, *objects)
        fresh, demands = Demands.of(after), demands.after(before, changed(*objects), after)
        assert keys(demands) == [("pvc-uid-x", 0)]
        assert keys(fresh) == [("pvc-uid-x", second)]
        before = after
    assert keys(demands.after(before, {}, at(30, *bound))) == []


def test_a_volume_that_is_provisioned_late_counts_for_a_time_of_its_own() -> None:
    """Its claim has stopped to count, and only now is it about to be placed."""
    wanted = [selected(claim("x", 30, storage_class="far"), "b"), pod("x")]
    made = [*wanted, volume("pvc-uid-x", 30, locality="disabled")]
    before, late, last = at(0, *wanted), at(30, *made), at(59, *made)
    demands = Demands.of(before).after(before, changed(*made), late)
    assert keys(demands) == [("pvc-uid-x", 30)]
    assert keys(demands.after(late, {}, last)) == [("pvc-uid-x", 30)]


def test_what_roams_is_known_by_age_and_by_size() -> None:
    """As if all had been sorted anew; nothing is made anew where nothing changed and nothing is due."""
    sizes = {"a": 3, "b": 9, "c": 9, "d": 1, "e": 5}
    objects = [volume(name, size, locality="disabled", numberOfReplicas=2) for name, size in sizes.items()]
    before = at(0)
    demands = Demands.of(before)
    for second, raw in enumerate(objects):
        after = at(second, *objects[: second + 1])
        demands = demands.after(before, changed(raw), after)
        before = after
    roamers = demands.roaming
    assert [entry.key for entry in roamers.young] == list("abcde")
    assert [entry.key for entry in roamers.by_size] == list("bcead")
    assert roamers.replicas == 10
    assert demands.after(before, {}, at(29, *objects)).roaming is roamers
    grown = volume("a", 20, locality="disabled", numberOfReplicas=3)
    after = at(31, grown, *objects[1:])
    roamers = demands.after(before, changed(grown), after).roaming
    assert [entry.key for entry in roamers.young] == list("cde"), "a's age has not changed with its size"
    assert [entry.key for entry in roamers.by_size] == list("ced")
    assert roamers.replicas == 6


def test_an_offered_volume_counts_once_when_it_has_been_made() -> None:
    """Beside another pod's 60Gi; twice 30Gi would be too much, were it two of a node's share."""
    raw = pod("x", name="far", uid="uid-far")
    asks = [claim("y", 60), pod("y", name="asks")]
    before = at(0, claim("x", 30, storage_class="far"), raw, asks)
    offered = Offered(PodSeen("uid-far"), frozenset(), roaming=resolve(as_pod(raw), before).unplaced)
    ledger, _ = step(Ledger(), offered, 0.0)
    after = at(0, remote(numberOfReplicas=2), raw, asks)
    joint = Joint()
    share = joint.share(Demands.of(after), ledger, Own("", frozenset()), after)
    assert [entry.volume.name for entry in share] == ["vol-x"]
    assert told(decided(after, "asks", ledger))[0] == "ROOM"
    assert joint.share(Demands.of(after), ledger, Own.of("uid-far", resolve(as_pod(raw), after).volumes), after) == ()
