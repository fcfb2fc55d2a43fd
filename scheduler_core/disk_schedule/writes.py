"""Writes that decisions about volumes, replicas and backing images return, and callers carry out in order."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_core.model.disk_schedule import RequestKind
from scheduler_core.model.kube import Condition


@dataclass(frozen=True, slots=True)
class SetRequirement:
    """Request `size` bytes for `name` on a disk; 0 withdraws the request.

    A request is withdrawn after its object has left the disk, and caches of two kinds are not equally new. So the caller reads
    the Replica (or BackingImage) from the API server, after the DiskSchedule version that it is about to change, and leaves the
    request alone if the object is on this disk and not being deleted.
    """

    disk: str  # the disk's UUID, which is the DiskSchedule's name
    kind: RequestKind  # what `name` is
    name: str  # the Replica or BackingImage
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class AssignReplica:
    """Write a replica's place into the Replica, "" for none, against the version that was read."""

    replica: str
    node: str = ""
    disk: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class SetReplicaSize:
    """Write a replica's new size, which its disk has granted, or which needs no grant without a place."""

    replica: str
    size: int


@dataclass(frozen=True, slots=True)
class SetVolumeCondition:
    """Set the volume's condition."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class ChangeCopies:
    """Add and remove disks in a backing image's spec, against the version that was read."""

    image: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove Longhorn's finalizer from the Replica or BackingImage, once everything that it held is released."""

    kind: RequestKind
    name: str


Write = SetRequirement | AssignReplica | SetReplicaSize | SetVolumeCondition | ChangeCopies | RemoveFinalizer
