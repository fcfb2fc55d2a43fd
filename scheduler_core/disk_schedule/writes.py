"""What the volume, replica and backing image controllers may write: values, carried out in order by the caller."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_core.model.disk_schedule import Kind
from scheduler_core.model.kube import Condition


@dataclass(frozen=True, slots=True)
class Require:
    """Ask disk `disk` (a UUID) for `size` bytes for `name`; 0 withdraws the request.

    With `stray`, the object is not on this disk as far as is known. Caches of two kinds are not equally new, so the caller
    reads the Replica (or BackingImage) once more from the API server, after it has read the DiskSchedule version that it
    is about to change, and leaves the request alone if the object says that it is on this disk after all.
    """

    disk: str
    kind: Kind
    name: str
    size: int
    stray: bool = False


@dataclass(frozen=True, slots=True)
class Assign:
    """Note a replica's place in the Replica, at the version that was read; with "" take it away."""

    replica: str
    node: str = ""
    disk: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Grow:
    """Write a replica's new size, which its disk has granted (or nobody needs to grant: it has no place yet)."""

    replica: str
    size: int


@dataclass(frozen=True, slots=True)
class Report:
    """Set the volume's condition."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Copies:
    """Write the disks a backing image is to be on, at the version that was read: some more, some fewer."""

    image: str
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finalize:
    """Take Longhorn's finalizer off the Replica or BackingImage: all that it held is released."""

    kind: Kind
    name: str


Write = Require | Assign | Grow | Report | Copies | Finalize
