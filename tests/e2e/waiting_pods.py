"""Pods that wait, each on a node of its own for a reason that one kind of remedy lifts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.kube.resources import LONGHORN_NODES, NODES
from devcluster.programs import NAMESPACE
from scheduler_core.model.quantity import parse_bytes
from tests.builders import storage_class
from tests.e2e.objects import LOCAL, Object, Volume, Workload
from tests.e2e.rig import Rig

GROUP = "mended"
DISK = "disk-1"
_TAG_OF_NODE = "mended-node-tag"
_TAG_OF_DISK = "mended-disk-tag"
MOVED = "mended-moved"
SHIFTED = "mended-shifted"
_CLOSED = {"allowScheduling": False, "evictionRequested": True}


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod with a claim of 100Gi that may only run on one node, which refuses it."""

    name: str  # of the node, and of the pod without its number
    remedy: str  # the kind of the remedy that makes it fit
    # Fields of the node's disk, as in the annotation `simulator/disks`.
    disk: Mapping[str, Any] = field(default_factory=lambda: {"size": "300Gi"})
    node: Mapping[str, Any] = field(default_factory=dict[str, Any])  # changed fields of the Longhorn node's spec
    cordoned: bool = False
    storage_class: str = LOCAL
    present: Sequence[str] = ()  # the sizes of volumes that are on the node already

    @property
    def pod(self) -> str:
        return f"{self.name}-0"

    def objects(self) -> list[Object]:
        return _loose(self.name, self.name, Volume("100Gi", self.storage_class))

    def present_apps(self) -> list[str]:
        """The apps of the volumes that are on the node already, in the order of their sizes."""
        return [f"{self.name}-has-{size.lower()}" for size in self.present]

    def present_objects(self) -> list[Object]:
        """The pods and claims of the volumes that are on the node already."""
        entries = zip(self.present_apps(), self.present, strict=True)
        return [each for app, size in entries for each in _loose(app, self.name, Volume(size))]


WAITING_PODS = (
    WaitingPod("cordoned", "uncordon", cordoned=True),
    WaitingPod("closed-node", "allow-node", node=_CLOSED),
    WaitingPod("closed-disk", "allow-disk", node={"disks": {DISK: _CLOSED}}),
    WaitingPod("untagged-node", "tag-node", node={"tags": ["old"]}, storage_class=_TAG_OF_NODE),
    WaitingPod("untagged-disk", "tag-disk", disk={"size": "300Gi", "tags": ["old"]}, storage_class=_TAG_OF_DISK),
    WaitingPod("reserved", "lower-reserve", disk={"size": "200Gi", "reserved": "150Gi"}),
    WaitingPod("scheduled", "free-scheduled", disk={"size": "200Gi"}, present=("50Gi", "100Gi")),
    WaitingPod("written", "free-available", disk={"size": "400Gi", "used": "350Gi"}),
    WaitingPod("small", "grow-disk", disk={"size": "60Gi"}),
)


def _loose(app: str, node: str, volume: Volume) -> list[Object]:
    return Workload(app=app, group=GROUP, volumes=[volume], only=node, labels={"suite": GROUP}).loose()


def storage_classes() -> list[Object]:
    """StorageClasses whose volumes select tags; the volumes of two of them need not be on their pod's node."""
    return [
        storage_class(_TAG_OF_NODE, nodeSelector="gold"),
        storage_class(_TAG_OF_DISK, diskSelector="fast"),
        storage_class(MOVED, numberOfReplicas="2", diskSelector=MOVED),
        storage_class(SHIFTED, dataLocality="disabled", diskSelector=SHIFTED, replicaAutoBalance="least-effort"),
    ]


def movable_volume(storage_class: str, node: str) -> list[Object]:
    """A pod on a node, and its claim of 150Gi; a replica of it may be moved."""
    return _loose(f"{storage_class}-has", node, Volume("150Gi", storage_class))


def small_pod(app: str, node: str) -> list[Object]:
    """A pod that may only run on one node, with a local claim of 100Gi."""
    return _loose(app, node, Volume("100Gi"))


def refuse_pods(rig: Rig) -> None:
    """Makes each node refuse its pod; returns before Longhorn's status shows it."""
    for entry in WAITING_PODS:
        if entry.cordoned:
            rig.cluster.kubectl("cordon", entry.name)
        if entry.node:
            rig.cluster.api.patch(LONGHORN_NODES.path(NAMESPACE, entry.name), {"spec": dict(entry.node)})


def change_disk(rig: Rig, node: str, field_name: str, size: int) -> None:
    """Adds `size` bytes to the size or the use of the node's disk."""
    metadata = rig.cluster.api.get(NODES.path(name=node))["metadata"]
    (disk,) = json.loads(metadata["annotations"]["simulator/disks"])
    changed = {**disk, field_name: str(parse_bytes(disk[field_name]) + size)}
    annotations = {"simulator/disks": json.dumps([changed])}
    rig.cluster.api.patch(NODES.path(name=node), {"metadata": {"annotations": annotations}})
