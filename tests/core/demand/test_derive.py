"""Demand: one test per source of a node, and per way a demand ends."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.demand.derive import Demand, Source
from scheduler_core.demand.index import Demands
from tests.builders import GI, NOW, Object, claim, flat, longhorn_node, persistent_volume, pod, replica, snapshot
from tests.builders import storage_class as make_class
from tests.builders import volume as make_volume

NODES = [longhorn_node("a"), longhorn_node("b")]


def bound(name: str, **volume: Any) -> list[Object]:
    """A bound claim with a PersistentVolume that names it, and its Longhorn volume of 10Gi."""
    return [
        claim(name, 10, bound=True),
        persistent_volume(name, uid=f"uid-{name}"),
        make_volume(f"vol-{name}", 10, **volume),
    ]


def selected(raw: Object, node: str) -> Object:
    """A claim for which kube-scheduler has selected a node."""
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": node}
    return raw


def attachment(node: str, **metadata: Any) -> Object:
    """A VolumeAttachment of claim x's PersistentVolume."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": "attachment", **metadata},
        "spec": {"attacher": "driver.longhorn.io", "nodeName": node, "source": {"persistentVolumeName": "pv-x"}},
    }


def demands(*objects: Object | list[Object]) -> list[Demand]:
    """The demands in a cluster of nodes a and b with some objects."""
    view = View.of(snapshot(NODES, make_class(), flat(*objects)), NOW)
    return list(Demands.of(view).all)


def told(found: list[Demand]) -> list[tuple[str, str, Source]]:
    """Which volume demands room where, and why."""
    return [(demand.volume.name, demand.node, demand.source) for demand in found]


def test_a_bound_pod_s_volumes_demand_room_on_its_node() -> None:
    """Bound claims and unbound ones, in their sizes."""
    found = demands(bound("x"), claim("y", 20), pod("x", "y", node="a"))
    assert told(found) == [("vol-x", "a", Source.POD), ("y", "a", Source.POD)]
    assert [demand.volume.volume.size for demand in found] == [10 * GI, 20 * GI]
    assert {demand.pod for demand in found} == {"default/pod"}


def test_the_selected_node_of_one_claim_ties_all_volumes_of_the_pod() -> None:
    """kube-scheduler has decided, whichever claim says so."""
    found = demands(bound("x"), selected(claim("y", 20), "b"), pod("x", "y"))
    assert told(found) == [("vol-x", "b", Source.SELECTED_NODE), ("y", "b", Source.SELECTED_NODE)]


def test_another_driver_s_selected_node_counts_too() -> None:
    """The pod goes there with all its volumes."""
    foreign = selected(claim("other", 1, storage_class="foreign"), "b")
    found = demands(bound("x"), foreign, pod("x", "other"), make_class("foreign", provisioner="example.com/disk"))
    assert told(found) == [("vol-x", "b", Source.SELECTED_NODE)]


@pytest.mark.parametrize(
    ("provisioned", "expected"),
    [("2026-01-01T00:00:05Z", "b"), ("2026-01-01T00:00:04Z", "b"), ("2026-01-01T00:00:03Z", ""), ("", "")],
)
def test_a_claim_provisioned_for_the_pod_says_its_node_until_the_pod_is_bound(provisioned: str, expected: str) -> None:
    """Binding the pod comes up to seconds after binding its last claim; an older volume tells of an earlier pod."""
    [claimed, persistent, volume] = bound("x")
    asked = pod("x")
    asked["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    if provisioned:
        persistent["metadata"]["creationTimestamp"] = provisioned
    found = demands(selected(claimed, "b"), persistent, volume, asked)
    assert told(found) == ([("vol-x", expected, Source.SELECTED_NODE)] if expected else [])


def test_it_says_the_node_of_the_pod_s_other_volumes_too() -> None:
    """One of them existed before."""
    [claimed, persistent, volume] = bound("x")
    asked = pod("x", "y")
    asked["metadata"]["creationTimestamp"] = persistent["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    found = demands(selected(claimed, "b"), persistent, volume, bound("y"), asked)
    assert told(found) == [("vol-x", "b", Source.SELECTED_NODE), ("vol-y", "b", Source.SELECTED_NODE)]


def test_a_selected_node_of_a_claim_that_is_bound_meanwhile_says_nothing() -> None:
    """It is of an earlier pod."""
    [claimed, *others] = bound("x")
    assert demands(selected(claimed, "b"), others, pod("x")) == []


def test_an_attachment_ties_a_volume_whose_pod_is_gone() -> None:
    """The pod was deleted while its volume was being attached."""
    assert told(demands(bound("x"), attachment("a"))) == [("vol-x", "a", Source.ATTACHMENT)]


def test_an_attachment_that_is_being_deleted_ties_nothing() -> None:
    """The volume is on its way elsewhere, or nowhere."""
    assert demands(bound("x"), attachment("a", deletionTimestamp="2026-01-01T00:00:00Z")) == []


def test_the_node_longhorn_attaches_to_ties_a_volume() -> None:
    """Attached without Kubernetes, by Longhorn's own UI for instance."""
    assert told(demands(bound("x", nodeID="b"))) == [("vol-x", "b", Source.ATTACHMENT)]


def test_a_replica_that_may_only_go_to_one_node_ties_its_volume() -> None:
    """Longhorn tries it again every 30 s."""
    waiting = replica("r", "vol-x", size=10, hardNodeAffinity="a")
    assert told(demands(bound("x"), waiting)) == [("vol-x", "a", Source.HARD_NODE_AFFINITY)]


def test_the_pod_s_node_wins_over_where_the_volume_still_is() -> None:
    """After a drain the old attachment lingers."""
    found = demands(bound("x", nodeID="a"), attachment("a"), pod("x", node="b"))
    assert told(found) == [("vol-x", "b", Source.POD)]


@pytest.mark.parametrize("healthy", [True, False], ids=["healthy", "never healthy yet"])
def test_a_replica_on_the_node_ends_the_demand(healthy: bool) -> None:
    """From then on it counts on its disk."""
    assert demands(bound("x"), pod("x", node="a"), replica("r", "vol-x", "a", size=10, healthy=healthy)) == []


def test_a_replica_elsewhere_does_not_end_it() -> None:
    """Drained: the healthy replica is on the old node, the pod on the new one."""
    found = demands(bound("x"), pod("x", node="b"), replica("r", "vol-x", "a", size=10))
    assert told(found) == [("vol-x", "b", Source.POD)]


def test_an_evicting_replica_does_not_end_it() -> None:
    """A new one is needed beside it."""
    found = demands(bound("x"), pod("x", node="a"), replica("r", "vol-x", "a", size=10, evictionRequested=True))
    assert told(found) == [("vol-x", "a", Source.POD)]


@pytest.mark.parametrize(
    "ended", [pod("x", node="a", phase="Succeeded"), pod("x", node="a", deleting=True)], ids=["finished", "deleting"]
)
def test_a_pod_that_is_over_demands_nothing(ended: Object) -> None:
    """Its volume may still be attached, and then demands by itself."""
    assert demands(bound("x"), ended) == []


def test_a_volume_that_needs_no_local_room_demands_none() -> None:
    """Its replicas may be anywhere."""
    assert demands(bound("x", locality="disabled"), pod("x", node="a")) == []


def test_two_pods_that_share_a_claim_demand_it_once() -> None:
    """One volume, one replica on the node."""
    found = demands(bound("x"), pod("x", name="p", uid="p", node="a"), pod("x", name="q", uid="q", node="a"))
    assert told(found) == [("vol-x", "a", Source.POD)]


def test_a_claim_that_a_volume_is_reserved_for_is_that_volume() -> None:
    """Counted as the volume, not once more as a claim."""
    found = demands(claim("x", 10), persistent_volume("x", uid="uid-x"), make_volume("vol-x", 10), pod("x", node="a"))
    assert told(found) == [("vol-x", "a", Source.POD)]


@pytest.mark.parametrize(
    "heard", [[], [persistent_volume("x", uid="uid-x")]], ids=["no volume", "the PersistentVolume"]
)
@pytest.mark.parametrize("tied", [pod("x", node="a"), pod("x")], ids=["bound", "selected"])
def test_a_volume_does_not_vanish_between_two_watches(heard: list[Object], tied: Object) -> None:
    """The claim is bound, and what it is bound to is not heard of yet: it demands what it asks for."""
    found = demands(selected(claim("x", 10, bound=True), "a"), heard, tied)
    assert [(demand.volume.name, demand.node, demand.volume.volume.size) for demand in found] == (
        [("x", "a", 10 * GI)] if tied["spec"].get("nodeName") or not heard else []
    )


def test_what_cannot_become_a_volume_demands_nothing() -> None:
    """A claim that has lost its PersistentVolume; one without a class."""
    assert demands(claim("x", 10, bound=True, phase="Lost"), pod("x", node="a")) == []
    assert demands(claim("x", 10, storage_class="gone"), pod("x", node="a")) == []


def test_the_choice_for_an_unbound_claim_is_later_than_that_for_a_provisioned_one() -> None:
    """Provisioning the second claim failed where the first one was provisioned."""
    [claimed, persistent, volume] = bound("x")
    asked = pod("x", "y")
    asked["metadata"]["creationTimestamp"] = persistent["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    found = demands(selected(claimed, "a"), persistent, volume, selected(claim("y", 20), "b"), asked)
    assert told(found) == [("vol-x", "b", Source.SELECTED_NODE), ("y", "b", Source.SELECTED_NODE)]


def test_demands_are_ordered_by_node_and_age() -> None:
    """Older claims first, ties by name."""

    def created(raw: Object, when: str) -> Object:
        raw["metadata"]["creationTimestamp"] = when
        return raw

    found = demands(
        created(claim("young", 1), "2026-01-02T00:00:00Z"),
        created(claim("old", 1), "2026-01-01T00:00:00Z"),
        created(claim("twin", 1), "2026-01-01T00:00:00Z"),
        pod("young", "old", "twin", node="a"),
    )
    assert [demand.volume.name for demand in found] == ["old", "twin", "young"]
