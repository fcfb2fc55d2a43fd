"""Demand: one test for each source of a node, and for each way that demand ends."""

from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.outstanding_demand import Demand, DemandSource
from tests.builders import (
    GI,
    NOW,
    Object,
    claim,
    flat,
    longhorn_node,
    persistent_volume,
    pod,
    replica,
    snapshot,
    storage_class as make_class,
    volume as make_volume,
)

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


def nominated(node: str, *conditions: Object) -> Object:
    raw = pod("x")
    raw["status"] |= {"nominatedNodeName": node, "conditions": list(conditions)}
    return raw


POD = DemandSource.POD
SELECTED = DemandSource.SELECTED_NODE
ATTACHED = DemandSource.ATTACHMENT
AFFINITY = DemandSource.HARD_NODE_AFFINITY
NOMINATED = DemandSource.NOMINATION
PREEMPTS = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
FOREIGN = [claim("other", 1, storage_class="foreign"), make_class("foreign", provisioner="example.com/disk")]
TIES: dict[str, tuple[list[Object | list[Object]], list[tuple[str, str, DemandSource]]]] = {
    "the selected node of one claim ties all volumes of the pod": (
        [bound("x"), with_selected_node(claim("y", 5), "b"), pod("x", "y")],
        [("vol-x", "b", SELECTED), ("y", "b", SELECTED)],
    ),
    "another driver's selected node counts too": (
        [bound("x"), with_selected_node(FOREIGN[0], "b"), pod("x", "other"), FOREIGN[1]],
        [("vol-x", "b", SELECTED)],
    ),
    "the selected node of a claim bound for an earlier pod ties nothing": (
        [with_selected_node(bound("x")[0], "b"), bound("x")[1:], pod("x")],
        [],
    ),
    "an attachment ties a volume whose pod is gone": ([bound("x"), attachment("a")], [("vol-x", "a", ATTACHED)]),
    "an attachment that is being deleted ties nothing": (
        [bound("x"), attachment("a", deletionTimestamp="2026-01-01T00:00:00Z")],
        [],
    ),
    "the node that Longhorn attaches a volume to ties it": ([bound("x", nodeID="b")], [("vol-x", "b", ATTACHED)]),
    # Longhorn tries to place it every 30 s.
    "a replica with hard node affinity ties its volume": (
        [bound("x"), replica("r", "vol-x", size=10, hardNodeAffinity="a")],
        [("vol-x", "a", AFFINITY)],
    ),
    "the pod's node counts before the volume's attachment": (
        [bound("x", nodeID="a"), attachment("a"), pod("x", node="b")],
        [("vol-x", "b", POD)],
    ),
    "a healthy replica on the node ends the demand": (
        [bound("x"), pod("x", node="a"), replica("r", "vol-x", "a", size=10)],
        [],
    ),
    "a replica on the node that was never healthy ends it, too": (
        [bound("x"), pod("x", node="a"), replica("r", "vol-x", "a", size=10, healthy=False)],
        [],
    ),
    "a replica on another node does not end it": (
        [bound("x"), pod("x", node="b"), replica("r", "vol-x", "a", size=10)],
        [("vol-x", "b", POD)],
    ),
    "an evicting replica does not end it": (
        [bound("x"), pod("x", node="a"), replica("r", "vol-x", "a", size=10, evictionRequested=True)],
        [("vol-x", "a", POD)],
    ),
    "a finished pod demands nothing": ([bound("x"), pod("x", node="a", phase="Succeeded")], []),
    "a failed pod demands nothing": ([bound("x"), pod("x", node="a", phase="Failed")], []),
    "a deleted pod demands nothing": ([bound("x"), pod("x", node="a", deleting=True)], []),
    "a volume that needs no local space demands none": ([bound("x", locality="disabled"), pod("x", node="a")], []),
    "two pods that share a claim demand it once": (
        [bound("x"), pod("x", name="p", uid="p", node="a"), pod("x", name="q", uid="q", node="a")],
        [("vol-x", "a", POD)],
    ),
    "a claim with a reserved volume counts as that volume": (
        [claim("x", 10), persistent_volume("x", uid="uid-x"), make_volume("vol-x", 10), pod("x", node="a")],
        [("vol-x", "a", POD)],
    ),
    "a claim that has lost its volume demands nothing": (
        [claim("x", 10, bound=True, phase="Lost"), pod("x", node="a")],
        [],
    ),
    "a claim without a class demands nothing": ([claim("x", 10, storage_class="gone"), pod("x", node="a")], []),
    "a nomination ties an unbound claim": ([claim("x", 10), nominated("b")], [("x", "b", NOMINATED)]),
    "a nomination ties a bound claim": ([bound("x"), nominated("b")], [("vol-x", "b", NOMINATED)]),
    "a nomination by preemption ties nothing": ([claim("x", 10), nominated("b", PREEMPTS)], []),
    "the selected node counts before a nomination": (
        [with_selected_node(claim("x", 10), "a"), nominated("b")],
        [("x", "a", SELECTED)],
    ),
}


@pytest.mark.parametrize(("objects", "expected"), TIES.values(), ids=TIES)
def test_volumes_are_tied_to_nodes(
    objects: list[Object | list[Object]], expected: list[tuple[str, str, DemandSource]]
) -> None:
    assert ties(derive(*objects)) == expected


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


@pytest.mark.parametrize(
    "delivered", [[], [persistent_volume("x", uid="uid-x")]], ids=["no volume", "the PersistentVolume"]
)
@pytest.mark.parametrize("tying_pod", [pod("x", node="a"), pod("x")], ids=["bound", "selected"])
def test_demand_does_not_vanish_between_two_watches(delivered: list[Object], tying_pod: Object) -> None:
    demands = derive(with_selected_node(claim("x", 10, bound=True), "a"), delivered, tying_pod)
    assert [(demand.volume.name, demand.node, demand.volume.volume.size) for demand in demands] == (
        [("x", "a", 10 * GI)] if tying_pod["spec"].get("nodeName") or not delivered else []
    )


def test_the_selected_node_of_an_unbound_claim_counts_before_that_of_a_provisioned_one() -> None:
    [bound_claim, raw_volume, volume] = bound("x")
    requested = pod("x", "y")
    requested["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    raw_volume["metadata"]["creationTimestamp"] = "2026-01-01T00:00:04Z"
    demands = derive(
        with_selected_node(bound_claim, "a"), raw_volume, volume, with_selected_node(claim("y", 5), "b"), requested
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
