"""The objects of a cluster at one moment: all that a decision may read, immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.generic import DisruptionBudget

NamespacedName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The objects of a cluster, by name. Pods and claims are keyed by (namespace, name). The name of a DiskSchedule is
    its disk's UUID.
    """

    nodes: Mapping[str, kube.Node] = field(default_factory=dict[str, kube.Node])
    pods: Mapping[NamespacedName, kube.Pod] = field(default_factory=dict[NamespacedName, kube.Pod])
    claims: Mapping[NamespacedName, kube.Claim] = field(default_factory=dict[NamespacedName, kube.Claim])
    persistent_volumes: Mapping[str, kube.PersistentVolume] = field(default_factory=dict[str, kube.PersistentVolume])
    storage_classes: Mapping[str, kube.StorageClass] = field(default_factory=dict[str, kube.StorageClass])
    volume_attachments: Mapping[str, kube.VolumeAttachment] = field(default_factory=dict[str, kube.VolumeAttachment])
    longhorn_nodes: Mapping[str, longhorn.Node] = field(default_factory=dict[str, longhorn.Node])
    volumes: Mapping[str, longhorn.Volume] = field(default_factory=dict[str, longhorn.Volume])
    replicas: Mapping[str, longhorn.Replica] = field(default_factory=dict[str, longhorn.Replica])
    backing_images: Mapping[str, longhorn.BackingImage] = field(default_factory=dict[str, longhorn.BackingImage])
    backups: Mapping[str, longhorn.Backup] = field(default_factory=dict[str, longhorn.Backup])
    # The VolumeSnapshotContent of each VolumeSnapshot, "" for none.
    volume_snapshots: Mapping[NamespacedName, str] = field(default_factory=dict[NamespacedName, str])
    volume_snapshot_contents: Mapping[str, kube.VolumeSnapshotContent] = field(
        default_factory=dict[str, kube.VolumeSnapshotContent]
    )
    # `engine_images` and `instance_managers`: None if the source did not list these kinds at all; they then count as
    # ready everywhere, because a snapshot of fewer kinds is still useful to explain. An empty mapping means that none
    # exist, so nothing is ready..
    engine_images: Mapping[str, longhorn.EngineImage] | None = None
    instance_managers: Mapping[str, longhorn.InstanceManager] | None = None
    # The CSI drivers of each node; None if the source did not list CSINodes. `serve` does not list them.
    csi_nodes: Mapping[str, frozenset[str]] | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    disk_schedules: Mapping[str, DiskSchedule] = field(default_factory=dict[str, DiskSchedule])
    # Only predictions read them; `serve` does not list them.
    disruption_budgets: Mapping[NamespacedName, DisruptionBudget] = field(
        default_factory=dict[NamespacedName, DisruptionBudget]
    )
