"""DiskSchedule (longhorn.io/v1beta2): what is asked of one disk, and what was granted. Sizes are in bytes.

Its name is the disk's UUID. Whoever wants room writes the spec, only the DiskSchedule controller writes the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from scheduler_core.model.kube import Condition

FINALIZER: Final = "longhorn.io"


class State(Enum):
    """What was decided about a request. One that is in the spec and not in the status is pending."""

    SCHEDULED = "scheduled"
    REJECTED = "rejected"


class Kind(Enum):
    """What asks for room; the value is the word in messages. Backing images come first wherever an order is needed."""

    BACKING_IMAGE = "backing image"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True)
class Allocation:
    """The answer to a request. `size` is what is held: a rejected growth keeps its old size, a rejected newcomer has 0."""

    state: State
    size: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an object: the path of the field ("" for the whole object) and why it cannot be used.

    `in_status` tells that the field was read as if it were not there, and is written anew.
    """

    field: str
    problem: str
    in_status: bool = False

    def __str__(self) -> str:
        """For a condition's message."""
        return f"{self.field} {self.problem}" if self.field else self.problem


Requests = Mapping[str, int | None]
Allocations = Mapping[str, Allocation]


@dataclass(frozen=True, slots=True)
class Spec:
    """The disk that is meant, and the bytes asked of it by name; None for a size that cannot be read."""

    disk: str = ""
    node: str = ""
    replicas: Requests = field(default_factory=dict[str, int | None])
    backing_images: Requests = field(default_factory=dict[str, int | None])

    def of(self, kind: Kind) -> Requests:
        """The requests of one kind."""
        return self.replicas if kind is Kind.REPLICA else self.backing_images


@dataclass(frozen=True, slots=True)
class Status:
    """What was answered. `storage_scheduled` is the sum of all that is held.

    `storage_available` is the limit it was decided by, None before the first decision.
    """

    replicas: Allocations = field(default_factory=dict[str, Allocation])
    backing_images: Allocations = field(default_factory=dict[str, Allocation])
    storage_scheduled: int = 0
    conditions: tuple[Condition, ...] = ()
    storage_available: int | None = None

    def of(self, kind: Kind) -> Allocations:
        """The answers of one kind."""
        return self.replicas if kind is Kind.REPLICA else self.backing_images


@dataclass(frozen=True, slots=True)
class DiskSchedule:
    """One DiskSchedule; `name` is the disk's UUID, `faults` what of it could not be read.

    A `mirrored` one only shows what Longhorn allocates by itself.
    """

    name: str
    spec: Spec = field(default_factory=Spec)
    status: Status = field(default_factory=Status)
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    faults: tuple[Fault, ...] = ()
    mirrored: bool = False

    @property
    def empty(self) -> bool:
        """Whether nobody asks for anything and nothing is held."""
        return not any(self.spec.of(kind) or self.status.of(kind) for kind in Kind)


@dataclass(frozen=True, slots=True)
class ImageCopies:
    """A backing image as its controller sees it.

    Attributes:
        size: bytes of one copy (status.realSize); 0 while Longhorn does not know it
        copies: least number of copies (spec.minNumberOfCopies), at least 1
        wanted: the disk UUIDs it is to be on (spec.diskFileSpecMap)
        found: the disk UUIDs that report a copy (status.diskFileStatusMap), with the copy's state
    """

    name: str
    size: int = 0
    copies: int = 1
    wanted: frozenset[str] = frozenset()
    found: Mapping[str, str] = field(default_factory=dict[str, str])
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    faults: tuple[Fault, ...] = ()
