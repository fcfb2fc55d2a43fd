"""The volumes of other pods on one node, and the pod that they are compared with.

The Longhorn volume identifies a volume, or the claim while there is none. So a claim that two pods share counts once,
as does a pod's own demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from scheduler_core.demand.unplaced import claim_identity
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.packing.items import Items
from scheduler_core.volumes.requirements import volume_class
from scheduler_core.volumes.resolve import PodVolume

# A cluster has a handful of sizes and classes in many combinations; beyond this they get new numbers, never numbers in use.
_MAX_GROUPS: Final = 100_000
_GroupKey = tuple[tuple[int, int, int], ...]
# Separates the volumes that are left out in a key.
_LEFT_OUT: Final = (-1, -1, -1)

Volumes = tuple[PodVolume, ...]


def identity(volume: PodVolume) -> str:
    """Returns the name of the Longhorn volume, or the claim's identity while there is none."""
    return volume.volume.name if volume.bound else claim_identity(volume.claim)


def volumes_key(volumes: Volumes) -> object:
    return tuple((volume_class(volume.volume), volume.volume.size, volume.volume.actual_size) for volume in volumes)


@dataclass(frozen=True, slots=True)
class Requester:
    """The pod that is evaluated; its own volumes and offer do not count as competitors."""

    uid: str
    volumes: frozenset[str]  # identities of its volumes, also those that they had as unbound claims
    priority: int = 0  # holds of a lower priority do not count against it

    @classmethod
    def of(cls, uid: str, volumes: Iterable[PodVolume], priority: int = 0) -> Requester:
        volumes = list(volumes)
        claims = (claim_identity(volume.claim) for volume in volumes if volume.claim)
        return cls(uid, frozenset(identity(volume) for volume in volumes).union(claims), priority)


NO_REQUESTER: Final = Requester("", frozenset())


@dataclass(frozen=True, slots=True)
class Competitors:
    """Other pods' volumes that fit on one node together."""

    demanded: Volumes  # volumes that will be placed there, and roaming ones, which will be placed on some node
    offered: Volumes  # volumes that may be placed there
    group: int  # equal for nodes with equal competitors
    demand_group: int  # the same without what is only offered
    total: int = 0  # bytes of all volumes
    offered_total: int = 0  # bytes of the volumes that may be placed there
    largest: int = 0  # bytes of the largest volume
    # Volumes of the node's demand and offers that do not fit there together with these, each with an open disk;
    # outdated status may still lead one of them to a disk.
    left_out: Volumes = ()
    # The class of all volumes, if they are new volumes of one class; None where volumes are left out.
    volume_class: ReplicaRequest | None = None
    items: Items | None = None  # the sizes of all volumes, if `volume_class` is not None
    bytes_by_class: tuple[tuple[ReplicaRequest, int], ...] = ()  # bytes of all volumes by their class

    @property
    def volumes(self) -> Volumes:
        return self.demanded + self.offered


class CompetitorGroups:
    """Numbers sets of volumes; equal sets share a number."""

    def __init__(self) -> None:
        self._numbers = count()
        self._class_numbers: dict[ReplicaRequest, int] = {}
        self._numbers_by_key: dict[_GroupKey, int] = {}

    def competitors(self, demanded: Volumes, offered: Volumes, left_out: Volumes = ()) -> Competitors:
        """Returns these volumes with their group numbers and sums."""
        volumes = demanded + offered
        classes = [volume_class(volume.volume) for volume in volumes]
        sizes = [volume.volume.size for volume in volumes]
        bytes_by_class = _bytes_by_class(classes, sizes)
        new = all(not volume.volume.actual_size and not volume.volume.backing_image for volume in volumes)
        uniform = len(bytes_by_class) == 1 and new and not left_out
        return Competitors(
            demanded=demanded,
            offered=offered,
            left_out=left_out,
            group=self._group(volumes, classes, left_out),
            demand_group=self._group(demanded, classes[: len(demanded)]),
            total=sum(sizes),
            offered_total=sum(sizes[len(demanded) :]),
            largest=max(sizes, default=0),
            volume_class=bytes_by_class[0][0] if uniform else None,
            items=Items(sizes) if uniform else None,
            bytes_by_class=bytes_by_class,
        )

    def _group(self, volumes: Volumes, classes: Sequence[ReplicaRequest], left_out: Volumes = ()) -> int:
        if len(self._numbers_by_key) >= _MAX_GROUPS:
            self._numbers_by_key.clear()
            # Every linked clone is a class of its own.
            self._class_numbers.clear()
        key = self._group_key(volumes, classes)
        if left_out:
            key = (*key, _LEFT_OUT, *self._group_key(left_out, [volume_class(volume.volume) for volume in left_out]))
        return self._numbers_by_key.setdefault(key, next(self._numbers))

    def _group_key(self, volumes: Volumes, classes: Sequence[ReplicaRequest]) -> _GroupKey:
        numbers = self._class_numbers
        return tuple(
            sorted(
                (volume.volume.size, volume.volume.actual_size, numbers.setdefault(entry, len(numbers)))
                for volume, entry in zip(volumes, classes, strict=True)
            )
        )


def _bytes_by_class(classes: Sequence[ReplicaRequest], sizes: Sequence[int]) -> tuple[tuple[ReplicaRequest, int], ...]:
    # Comparing identities first is faster than hashing every class.
    if all(entry is classes[0] for entry in classes):
        return ((classes[0], sum(sizes)),) if classes else ()
    totals: dict[ReplicaRequest, int] = {}
    for entry, size in zip(classes, sizes, strict=True):
        totals[entry] = totals.get(entry, 0) + size
    return tuple(totals.items())
