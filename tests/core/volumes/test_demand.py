"""Demand: one test for each source of a node, and for each way that demand ends."""

from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.volumes.demand import Demand, DemandSource
from scheduler_core.volumes.demand_index import DemandIndex
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


def with_selected_node(raw: Object, node: str) -> Object:
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


def derive(*objects: Object | list[Object]) -> list[Demand]:
    view = View.of(snapshot(NODES, make_class(), flat(*objects)), NOW)
    return list(DemandIndex.of(view).all)


def ties(demands: list[Demand]) -> list[tuple[str, str, DemandSource]]:
    return [(demand.volume.name, demand.node, demand.source) for demand in demands]


def test_a_bound_pod_s_volumes_demand_space_on_its_node() -> None:
    demands = derive(bound("x"), claim("y", 20), pod("x", "y", node="a"))
    assert ties(demands) == [("vol-x", "a", DemandSource.POD), ("y", "a", DemandSource.POD)]
    assert [demand.volume.volume.size for demand in demands] == [10 * GI, 20 * GI]
    assert {demand.pod for demand in demands} == {"default/pod"}


def test_the_selected_node_of_one_claim_ties_all_volumes_of_the_pod() -> None:
    demands = derive(bound("x"), with_selected_node(claim("y", 20), "b"), pod("x", "y"))
    assert ties(demands) == [("vol-x", "b", DemandSource.SELECTED_NODE), ("y", "b", DemandSource.SELECTED_NODE)]


def test_another_driver_s_selected_node_counts_too() -> None:
    foreign = with_selected_node(claim("other", 1, storage_class="foreign"), "b")
    demands = derive(bound("x"), foreign, pod("x", "other"), make_class("foreign", provisioner="example.com/disk"))
    assert ties(demands) == [("vol-x", "b", DemandSource.SELECTED_NODE)]


@pytest.mark.parametrize(
    ("provisioned", "expected"),
    [("2026-01-01T00:00:05Z", "b"), ("2026-01-01T00:00:04Z", "b"), ("2026-01-01T00:00:03Z", ""), ("", "")],
)
def test_a_claim_provisioned_for_the_pod_shows_its_node_until_the_pod_is_bound(provisioned: str, expected: str) -> None:
    [bound_claim, raw_volume, volume] = bound("x")
    requested = pod("x")
    requested["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    if provisioned:
        raw_volume["metadata"]["creationTimestamp"] = provisioned
    demands = derive(with_selected_node(bound_claim, "b"), raw_volume, volume, requested)
    assert ties(demands) == ([("vol-x", expected, DemandSource.SELECTED_NODE)] if expected else [])


def test_a_claim_provisioned_for_the_pod_ties_its_other_volumes_too() -> None:
    [bound_claim, raw_volume, volume] = bound("x")
    requested = pod("x", "y")
    requested["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    raw_volume["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    demands = derive(with_selected_node(bound_claim, "b"), raw_volume, volume, bound("y"), requested)
    assert ties(demands) == [("vol-x", "b", DemandSource.SELECTED_NODE), ("vol-y", "b", DemandSource.SELECTED_NODE)]


def test_the_selected_node_of_a_claim_bound_for_an_earlier_pod_ties_nothing() -> None:
    [bound_claim, *others] = bound("x")
    assert derive(with_selected_node(bound_claim, "b"), others, pod("x")) == []


def test_an_attachment_ties_a_volume_whose_pod_is_gone() -> None:
    assert ties(derive(bound("x"), attachment("a"))) == [("vol-x", "a", DemandSource.ATTACHMENT)]


def test_an_attachment_that_is_being_deleted_ties_nothing() -> None:
    assert derive(bound("x"), attachment("a", deletionTimestamp="2026-01-01T00:00:00Z")) == []


def test_the_node_that_longhorn_attaches_a_volume_to_ties_it() -> None:
    assert ties(derive(bound("x", nodeID="b"))) == [("vol-x", "b", DemandSource.ATTACHMENT)]


def test_a_replica_with_hard_node_affinity_ties_its_volume() -> None:
    """Longhorn tries to place it every 30 s."""
    unplaced = replica("r", "vol-x", size=10, hardNodeAffinity="a")
    assert ties(derive(bound("x"), unplaced)) == [("vol-x", "a", DemandSource.HARD_NODE_AFFINITY)]


def test_the_pod_s_node_counts_before_the_volume_s_attachment() -> None:
    demands = derive(bound("x", nodeID="a"), attachment("a"), pod("x", node="b"))
    assert ties(demands) == [("vol-x", "b", DemandSource.POD)]


@pytest.mark.parametrize(
    ("locality", "node"), [("strict-local", "a"), ("best-effort", "b")], ids=["strict-local", "best-effort"]
)
@pytest.mark.parametrize("source", [{"dataSource": "vol://y"}, {"status": {"restoreRequired": True}}])
def test_a_strict_local_volume_that_is_copied_stays_where_it_is_attached(
    locality: str, node: str, source: dict[str, Any]
) -> None:
    claim, persistent, volume = bound("x", nodeID="a", locality=locality, dataSource=source.get("dataSource", ""))
    volume["status"] |= source.get("status", {})
    assert [name for _, name, _ in ties(derive([claim, persistent, volume], pod("x", node="b")))] == [node]


@pytest.mark.parametrize("healthy", [True, False], ids=["healthy", "never healthy yet"])
def test_a_replica_on_the_node_ends_the_demand(healthy: bool) -> None:
    assert derive(bound("x"), pod("x", node="a"), replica("r", "vol-x", "a", size=10, healthy=healthy)) == []


def test_a_replica_on_another_node_does_not_end_the_demand() -> None:
    demands = derive(bound("x"), pod("x", node="b"), replica("r", "vol-x", "a", size=10))
    assert ties(demands) == [("vol-x", "b", DemandSource.POD)]


def test_an_evicting_replica_does_not_end_the_demand() -> None:
    demands = derive(bound("x"), pod("x", node="a"), replica("r", "vol-x", "a", size=10, evictionRequested=True))
    assert ties(demands) == [("vol-x", "a", DemandSource.POD)]


@pytest.mark.parametrize(
    "ended",
    [pod("x", node="a", phase="Succeeded"), pod("x", node="a", phase="Failed"), pod("x", node="a", deleting=True)],
    ids=["finished", "failed", "deleting"],
)
def test_a_finished_or_deleted_pod_demands_nothing(ended: Object) -> None:
    assert derive(bound("x"), ended) == []


def test_a_volume_that_needs_no_local_space_demands_none() -> None:
    """Its replicas may be on any node."""
    assert derive(bound("x", locality="disabled"), pod("x", node="a")) == []


def test_two_pods_that_share_a_claim_demand_it_once() -> None:
    demands = derive(bound("x"), pod("x", name="p", uid="p", node="a"), pod("x", name="q", uid="q", node="a"))
    assert ties(demands) == [("vol-x", "a", DemandSource.POD)]


def test_a_claim_with_a_reserved_volume_counts_as_that_volume() -> None:
    demands = derive(claim("x", 10), persistent_volume("x", uid="uid-x"), make_volume("vol-x", 10), pod("x", node="a"))
    assert ties(demands) == [("vol-x", "a", DemandSource.POD)]


@pytest.mark.parametrize(
    "delivered", [[], [persistent_volume("x", uid="uid-x")]], ids=["no volume", "the PersistentVolume"]
)
@pytest.mark.parametrize("tying_pod", [pod("x", node="a"), pod("x")], ids=["bound", "selected"])
def test_demand_does_not_vanish_between_two_watches(delivered: list[Object], tying_pod: Object) -> None:
    demands = derive(with_selected_node(claim("x", 10, bound=True), "a"), delivered, tying_pod)
    assert [(demand.volume.name, demand.node, demand.volume.volume.size) for demand in demands] == (
        [("x", "a", 10 * GI)] if tying_pod["spec"].get("nodeName") or not delivered else []
    )


def test_a_claim_that_cannot_become_a_volume_demands_nothing() -> None:
    """One has lost its PersistentVolume, one has no class."""
    assert derive(claim("x", 10, bound=True, phase="Lost"), pod("x", node="a")) == []
    assert derive(claim("x", 10, storage_class="gone"), pod("x", node="a")) == []


def test_the_selected_node_of_an_unbound_claim_counts_before_that_of_a_provisioned_one() -> None:
    [bound_claim, raw_volume, volume] = bound("x")
    requested = pod("x", "y")
    requested["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    raw_volume["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    demands = derive(
        with_selected_node(bound_claim, "a"), raw_volume, volume, with_selected_node(claim("y", 20), "b"), requested
    )
    assert ties(demands) == [("vol-x", "b", DemandSource.SELECTED_NODE), ("y", "b", DemandSource.SELECTED_NODE)]


def test_demand_is_sorted_by_node_and_age() -> None:
    def with_creation_time(raw: Object, when: str) -> Object:
        raw["metadata"]["creationTimestamp"] = when
        return raw

    demands = derive(
        with_creation_time(claim("young", 1), "2026-01-02T00:00:00Z"),
        with_creation_time(claim("old", 1), "2026-01-01T00:00:00Z"),
        with_creation_time(claim("twin", 1), "2026-01-01T00:00:00Z"),
        pod("young", "old", "twin", node="a"),
    )
    assert [demand.volume.name for demand in demands] == ["old", "twin", "young"]


def nominated(node: str, *conditions: Object) -> Object:
    raw = pod("x")
    raw["status"] |= {"nominatedNodeName": node, "conditions": list(conditions)}
    return raw


def test_a_nomination_ties_the_volumes_of_a_pod() -> None:
    assert ties(derive(claim("x", 10), nominated("b"))) == [("x", "b", DemandSource.NOMINATION)]
    assert ties(derive(bound("x"), nominated("b"))) == [("vol-x", "b", DemandSource.NOMINATION)]


def test_a_nomination_by_preemption_ties_nothing() -> None:
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    assert derive(claim("x", 10), nominated("b", unschedulable)) == []


def test_the_selected_node_counts_before_a_nomination() -> None:
    demands = derive(with_selected_node(claim("x", 10), "a"), nominated("b"))
    assert ties(demands) == [("x", "a", DemandSource.SELECTED_NODE)]
