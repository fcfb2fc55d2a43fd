"""Draws a cluster of any size, and pods with Longhorn volumes, from a source of chance that is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.model import kube, longhorn
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.predict.predicted_cluster import WhatIfError
from scheduler_core.predict.predicted_replicas import Choose
from scheduler_core.predict.situation import Situation

GIBIBYTE: Final = 2**30
STORAGE_CLASS: Final = "longhorn"
HOST_NAME_LABEL: Final = "kubernetes.io/hostname"
VOLUME_SIZES: Final = tuple(size * GIBIBYTE for size in (10, 20, 40, 80))
NAMESPACE: Final = "generated"
_MOST_DISKS: Final = 3
# How large a disk is compared with others.
_DISK_SHARES: Final = (1, 2, 3)
_OPEN: Final = (kube.Condition("Ready", "True"), kube.Condition("Schedulable", "True"))


def draw_volume_sizes(pods: int, volumes: int, choose: Choose) -> list[tuple[int, ...]]:
    """Returns the sizes of each pod's volumes, in bytes."""
    return [tuple(VOLUME_SIZES[choose(len(VOLUME_SIZES))] for _ in range(volumes)) for _ in range(pods)]


def draw_cluster(nodes: int, capacity: int, choose: Choose) -> Snapshot:
    """Returns a cluster of nodes with one to three empty disks of at least 1 GiB each, whose limits add up to about `capacity` bytes. Its
    only StorageClass is that of Longhorn's proposal: best-effort data locality and one replica. Longhorn's settings have their defaults.
    """
    shares = [[_DISK_SHARES[choose(len(_DISK_SHARES))] for _ in range(choose(_MOST_DISKS) + 1)] for _ in range(nodes)]
    unit = capacity / max(1, sum(map(sum, shares)))
    names = [f"node-{number:0{len(str(nodes))}}" for number in range(1, nodes + 1)]
    longhorn_nodes = {name: _longhorn_node(name, of_node, unit) for name, of_node in zip(names, shares, strict=True)}
    parameters = {"numberOfReplicas": "1", "dataLocality": longhorn.BEST_EFFORT}
    storage_class = kube.StorageClass(STORAGE_CLASS, DRIVER, parameters, is_default=True, waits_for_consumer=True)
    return Snapshot(
        nodes={name: kube.Node(name, {HOST_NAME_LABEL: name}, conditions=(_OPEN[0],)) for name in names},
        longhorn_nodes=longhorn_nodes,
        storage_classes={STORAGE_CLASS: storage_class},
    )


def _longhorn_node(name: str, shares: Sequence[int], unit: float) -> longhorn.Node:
    disks = tuple(
        _disk(f"{name}-disk-{number}", f"disk-{number}", max(1, round(share * unit / GIBIBYTE)) * GIBIBYTE)
        for number, share in enumerate(shares, start=1)
    )
    return longhorn.Node(name, allow_scheduling=True, conditions=_OPEN, disks=disks)


def _disk(uuid: str, name: str, size: int) -> longhorn.Disk:
    return longhorn.Disk(
        name=name,
        uuid=uuid,
        path=f"/var/lib/{name}/",
        allow_scheduling=True,
        spec_type=longhorn.FILESYSTEM,
        status_type=longhorn.FILESYSTEM,
        filesystem_type="ext4",
        storage_maximum=size,
        storage_available=size,
        conditions=_OPEN,
    )


@dataclass(frozen=True, slots=True)
class AddPods:
    """New pods, each with new volumes."""

    sizes: Sequence[Sequence[int]]  # of each pod's volumes, in bytes
    # The name of their class; None for the cluster's default class, or else the first of Longhorn's by name.
    storage_class: str | None = None

    def apply(self, situation: Situation) -> Situation:
        """Adds the pods."""
        name = self.storage_class or _longhorn_class(situation)
        digits = len(str(len(self.sizes)))
        for number, sizes in enumerate(self.sizes, start=1):
            situation = situation.with_new_pod(_pod(f"pod-{number:0{digits}}", sizes, name))
        return situation


def _longhorn_class(situation: Situation) -> str:
    classes = situation.cluster.snapshot.storage_classes.values()
    usable = [entry for entry in classes if entry.provisioner == DRIVER and entry.waits_for_consumer]
    if not usable:
        raise WhatIfError(
            "there is no StorageClass of Longhorn with volumeBindingMode: WaitForFirstConsumer for generated pods"
        )
    return min(usable, key=lambda entry: (not entry.is_default, entry.name)).name


def _pod(name: str, sizes: Sequence[int], storage_class: str) -> kube.Pod:
    templates = [kube.ClaimSpec(storage_class, size, ("ReadWriteOnce",)) for size in sizes]
    mounts = tuple(
        kube.ClaimVolume(f"data-{number}", f"data-{number}-{name}", template)
        for number, template in enumerate(templates, start=1)
    )
    return kube.Pod(NAMESPACE, name, uid=f"generated-{name}", volumes=mounts)
