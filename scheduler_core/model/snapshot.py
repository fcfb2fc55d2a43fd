"""The objects of a cluster at one moment: all that a decision may read, immutable."""

from collections.abc import Mapping

from scheduler_core.model import generic, kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.structs import Struct

NamespacedName = tuple[str, str]


class Snapshot(Struct, frozen=True):
    """The objects of a cluster by name, pods and claims by (namespace, name), DiskSchedules by their disk's UUID."""

    nodes: Mapping[str, kube.Node] = {}
    pods: Mapping[NamespacedName, kube.Pod] = {}
    claims: Mapping[NamespacedName, kube.Claim] = {}
    persistent_volumes: Mapping[str, kube.PersistentVolume] = {}
    storage_classes: Mapping[str, kube.StorageClass] = {}
    volume_attachments: Mapping[str, kube.VolumeAttachment] = {}
    longhorn_nodes: Mapping[str, longhorn.Node] = {}
    volumes: Mapping[str, longhorn.Volume] = {}
    replicas: Mapping[str, longhorn.Replica] = {}
    backing_images: Mapping[str, longhorn.BackingImage] = {}
    backups: Mapping[str, longhorn.Backup] = {}
    volume_snapshots: Mapping[NamespacedName, str] = {}  # the VolumeSnapshotContent of each VolumeSnapshot, "" for none
    volume_snapshot_contents: Mapping[str, kube.VolumeSnapshotContent] = {}
    # `engine_images` and `instance_managers`: None if the source did not list these kinds at all; they then count as
    # ready everywhere, because a snapshot of fewer kinds is still useful to explain. An empty mapping means that none
    # exist, so nothing is ready..
    engine_images: Mapping[str, longhorn.EngineImage] | None = None
    instance_managers: Mapping[str, longhorn.InstanceManager] | None = None
    # The CSI drivers of each node; None if the source did not list CSINodes. `serve` does not list them.
    csi_nodes: Mapping[str, frozenset[str]] | None = None
    settings: Mapping[str, str] = {}
    disk_schedules: Mapping[str, DiskSchedule] = {}
    # Only predictions read them; `serve` does not list them.
    disruption_budgets: Mapping[NamespacedName, generic.DisruptionBudget] = {}
