"""One cluster at one moment: every object a decision may read, immutable and keyed by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule

NamespacedName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The objects of a cluster. Pods and claims are keyed by (namespace, name), everything else by name; a DiskSchedule's is
    its disk's UUID.

    `engine_images` and `instance_managers` are None when the source did not list these kinds at all; then they count as
    ready everywhere, because a snapshot made of fewer kinds is still worth explaining. An empty mapping means that
    there are none, so nothing is ready.
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
    engine_images: Mapping[str, longhorn.EngineImage] | None = None
    instance_managers: Mapping[str, longhorn.InstanceManager] | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    disk_schedules: Mapping[str, DiskSchedule] = field(default_factory=dict[str, DiskSchedule])
