"""What a decision about one volume sees."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from app.kube.resources import LONGHORN_REPLICAS, LONGHORN_VOLUMES
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.readiness import engine_image_ready, running_instance_manager
from scheduler_core.model import longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED
from simulator.actions import Delete, Patch
from simulator.config import Config
from simulator.disk_schedule_grants import Schedules, granted, granted_size
from simulator.objects import EVICTING, Json, Obj, timestamp

Volume = Obj[longhorn.Volume]
Replica = Obj[longhorn.Replica]

CREATING = "creating"
DETACHED = "detached"
ATTACHING = "attaching"
ATTACHED = "attached"
DETACHING = "detaching"
UNKNOWN = "unknown"
HEALTHY = "healthy"
DEGRADED = "degraded"
FAULTED = "faulted"
RUNNING = "running"
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Sight:
    """A volume, its replicas by name, and the cluster around them.

    Attributes:
        kubernetes: the PersistentVolume and claim it belongs to, {} if there are none
        write_target: bytes that are to be written to the volume, 0 if nothing says so
        abandoned: whether the claim it was provisioned for went before its PersistentVolume came
        copying: the disks that still wait for the volume's backing image
        auto_salvage: whether failed replicas are taken up again when all of them failed
        schedules: the DiskSchedules by disk UUID, where they hold every byte
    """

    config: Config
    cluster: Cluster
    volume: Volume
    replicas: tuple[Replica, ...]
    rng: random.Random
    now: datetime
    kubernetes: Mapping[str, str] = field(default_factory=dict[str, str])
    write_target: int = 0
    abandoned: bool = False
    copying: frozenset[str] = frozenset()
    auto_salvage: bool = True
    schedules: Schedules = field(default_factory=dict[str, DiskSchedule])

    @property
    def model(self) -> longhorn.Volume:
        """The volume."""
        return self.volume.model

    @property
    def models(self) -> tuple[longhorn.Replica, ...]:
        """Its replicas."""
        return tuple(replica.model for replica in self.replicas)

    @property
    def present(self) -> tuple[Replica, ...]:
        """Its replicas that are not being deleted."""
        return tuple(replica for replica in self.replicas if not replica.model.deleting)

    @property
    def size(self) -> int:
        """The bytes that can be written to it: with DiskSchedules what is granted, however much its user wishes."""
        if not self.config.disk_schedules:
            return self.model.size
        return granted_size(self.schedules, self.model, self.models)

    def may_start(self, replica: Replica) -> bool:
        """Whether a replica's disk is ready for its process: it has the backing image, and has granted the replica's room.

        A replica with data occupies its room already, so it starts even if that was never granted.
        """
        model = replica.model
        held = not self.config.disk_schedules or model.healthy_at != "" or granted(self.schedules, model)
        return held and model.disk_id not in self.copying

    @property
    def best_effort(self) -> bool:
        """Whether its data should be where it is attached."""
        return self.model.data_locality == BEST_EFFORT

    @property
    def locality_disabled(self) -> bool:
        """Whether it does not matter where its data is."""
        return self.model.data_locality == DISABLED

    @property
    def attached_for_eviction(self) -> bool:
        """Whether no pod uses it: it is only attached so that its replicas can move."""
        return EVICTING in self.volume.annotations

    @property
    def time(self) -> str:
        """This moment, as Longhorn writes it."""
        return timestamp(self.now)

    def node_up(self, name: str) -> bool:
        """Whether a Longhorn node exists and is ready."""
        node = self.cluster.nodes.get(name)
        return node is not None and node.ready

    def can_run(self, name: str) -> bool:
        """Whether the volume's engine and replicas can be started on a node: its engine image and manager are there."""
        model = self.model
        return (
            self.node_up(name)
            and engine_image_ready(self.cluster, model.data_engine, model.image, name)
            and running_instance_manager(self.cluster, model.data_engine, name)
        )

    def disk_ready(self, replica: Replica) -> bool:
        """Whether the disk of a replica is ready."""
        node = self.cluster.nodes.get(replica.model.node_id)
        return node is not None and any(disk.uuid == replica.model.disk_id and disk.ready for disk in node.disks)


def healthy(replica: Replica) -> bool:
    """Whether a replica holds the volume's data (getHealthyAndActiveReplicaCount)."""
    model = replica.model
    return model.active and model.healthy_at != "" and model.failed_at == "" and not model.deleting


def working(replica: Replica) -> bool:
    """Whether a healthy replica runs: the engine's mode RW."""
    return healthy(replica) and replica.model.current_state == RUNNING


def rebuilding(replica: Replica) -> bool:
    """Whether a replica has a place but not yet the data."""
    model = replica.model
    return model.node_id != "" and not model.healthy_at and not model.failed_at and not model.deleting


def waiting(replica: Replica) -> bool:
    """Whether a replica has no place yet."""
    model = replica.model
    return model.node_id == "" and not model.failed_at and not model.deleting


def volume_status(sight: Sight, status: Json, why: str, counts: str = "") -> Patch:
    """Writes some fields of the volume's status."""
    return Patch(LONGHORN_VOLUMES, sight.volume, {"status": status}, why, status=True, counts=counts)


def replica_status(replica: Replica, status: Json, why: str) -> Patch:
    """Writes some fields of a replica's status."""
    return Patch(LONGHORN_REPLICAS, replica, {"status": status}, why, status=True)


def replica_spec(replica: Replica, spec: Json, why: str, counts: str = "") -> Patch:
    """Writes some fields of a replica's spec."""
    return Patch(LONGHORN_REPLICAS, replica, {"spec": spec}, why, counts=counts)


def remove(replica: Replica, why: str) -> Delete:
    """Deletes a replica; its space is free once the object is gone."""
    return Delete(LONGHORN_REPLICAS, replica, why, counts="replicas_deleted")
