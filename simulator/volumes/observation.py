"""The observation of one volume: the input of every decision. The module also has the patches that decisions return."""

import random
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from app.kube.resources import LONGHORN_REPLICAS, LONGHORN_VOLUMES
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.stages import engine_image_ready, instance_manager_running
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED
from simulator.actions import DeleteObject, PatchObject
from simulator.config import Config
from simulator.disk_schedule_grants import Schedules, granted_size, has_grant
from simulator.objects import DISK_LABEL, EVICTING, NODE_LABEL, Json, KubeObject, timestamp

Volume = KubeObject[longhorn.Volume]
Replica = KubeObject[longhorn.Replica]
Shard = KubeObject[None]

CREATING = "creating"
DETACHED = "detached"
ATTACHING = "attaching"
ATTACHED = "attached"
DETACHING = "detaching"
UNKNOWN = "unknown"
HEALTHY = "healthy"
DEGRADED = "degraded"
FAULTED = "faulted"
NEW_STATES = frozenset(("", CREATING, DETACHING))
"""The states of a new volume before it is detached for the first time, in this order (measured with Longhorn v1.12.1's control code)."""
RUNNING = "running"
STOPPED = "stopped"


class VolumeObservation(Struct, frozen=True):
    """A volume, its replicas by name, and the cluster around them.

    Attributes:
        kubernetes_status: the PersistentVolume and claim of the volume, {} if there are none
        write_target: bytes to write to the volume, 0 if nothing requests any
        abandoned: whether the claim of the volume was gone before its PersistentVolume existed
        disks_awaiting_image: disks that do not have the volume's backing image yet
        auto_salvage: whether failed replicas are salvaged when all of them failed
        schedules: the DiskSchedules by disk UUID, where they reserve every byte
        shards: those of a sharded volume, which has no replicas
    """

    config: Config
    cluster: Cluster
    volume: Volume
    replicas: tuple[Replica, ...]
    rng: random.Random
    now: datetime
    kubernetes_status: Mapping[str, str] = {}
    write_target: int = 0
    abandoned: bool = False
    disks_awaiting_image: frozenset[str] = frozenset()
    auto_salvage: bool = True
    schedules: Schedules = {}
    shards: tuple[Shard, ...] = ()

    @property
    def model(self) -> longhorn.Volume:
        return self.volume.model

    @property
    def replica_models(self) -> tuple[longhorn.Replica, ...]:
        return tuple(replica.model for replica in self.replicas)

    @property
    def live_replicas(self) -> tuple[Replica, ...]:
        return tuple(replica for replica in self.replicas if not replica.model.deleting)

    @property
    def writable_size(self) -> int:
        """The bytes that the volume can hold, with DiskSchedules the granted ones."""
        if not self.config.disk_schedules:
            return self.model.size
        return granted_size(self.schedules, self.model, self.replica_models)

    def may_start(self, replica: Replica) -> bool:
        """Whether a replica's disk has its backing image and granted its space. A replica with data occupies its space already,
        so it starts even if the space was never granted.
        """
        model = replica.model
        has_space = not self.config.disk_schedules or model.healthy_at != "" or has_grant(self.schedules, model)
        return has_space and model.disk_id not in self.disks_awaiting_image

    @property
    def is_new(self) -> bool:
        """Whether the volume has not been detached, and so not been attached, before."""
        return self.model.state in NEW_STATES and not self.model.current_node_id

    @property
    def best_effort(self) -> bool:
        return self.model.data_locality == BEST_EFFORT

    @property
    def locality_disabled(self) -> bool:
        return self.model.data_locality == DISABLED

    @property
    def attached_for_eviction(self) -> bool:
        return EVICTING in self.volume.annotations

    @property
    def time(self) -> str:
        return timestamp(self.now)

    def is_node_up(self, name: str) -> bool:
        node = self.cluster.nodes.get(name)
        return node is not None and node.ready

    def can_run(self, name: str) -> bool:
        """Whether a node can run the volume's engine and replicas. It is ready, and has the volume's engine image and a running
        instance manager.
        """
        model = self.model
        return (
            self.is_node_up(name)
            and engine_image_ready(self.cluster, model.data_engine, model.image, name)
            and instance_manager_running(self.cluster, model.data_engine, name)
        )

    def is_disk_ready(self, replica: Replica) -> bool:
        node = self.cluster.nodes.get(replica.model.node_id)
        return node is not None and any(disk.uuid == replica.model.disk_id and disk.ready for disk in node.disks)


def is_healthy(replica: Replica) -> bool:
    """Whether a replica holds the volume's data (getHealthyAndActiveReplicaCount)."""
    model = replica.model
    return model.active and model.healthy_at != "" and model.failed_at == "" and not model.deleting


def is_working(replica: Replica) -> bool:
    """Whether a healthy replica runs: the engine's mode RW."""
    return is_healthy(replica) and replica.model.current_state == RUNNING


def needs_rebuild(replica: Replica) -> bool:
    model = replica.model
    return model.node_id != "" and not model.healthy_at and not model.failed_at and not model.deleting


def lacks_place(replica: Replica) -> bool:
    model = replica.model
    return model.node_id == "" and not model.failed_at and not model.deleting


def patch_volume_status(observation: VolumeObservation, status: Json, event: str, counter: str = "") -> PatchObject:
    return PatchObject(LONGHORN_VOLUMES, observation.volume, {"status": status}, event, status=True, counter=counter)


def patch_replica_status(replica: Replica, status: Json, event: str) -> PatchObject:
    return PatchObject(LONGHORN_REPLICAS, replica, {"status": status}, event, status=True)


def patch_replica_spec(replica: Replica, spec: Json, event: str, counter: str = "") -> PatchObject:
    """Writes some fields of a replica's spec, and the labels that follow from it. Mirrors Longhorn's UpdateReplica: so labels
    that another process left as they were are right after the next write.
    """
    labels = place_labels({**replica.spec, **spec})
    changed = {name: value for name, value in labels.items() if replica.labels.get(name, "") != value}
    body = {"metadata": {"labels": changed}, "spec": spec} if changed else {"spec": spec}
    return PatchObject(LONGHORN_REPLICAS, replica, body, event, counter=counter)


def place_labels(spec: Json) -> dict[str, str]:
    return {NODE_LABEL: spec.get("nodeID") or "", DISK_LABEL: spec.get("diskID") or ""}


def delete_replica(replica: Replica, event: str) -> DeleteObject:
    """Deletes a replica, whose space is free when its object is gone."""
    return DeleteObject(LONGHORN_REPLICAS, replica, event, counter="replicas_deleted")
