"""The choice among candidates (getDiskWithMostBalanceScore): every disk Longhorn may pick, and why it may.

The score of a choice is (max - min) / mean of the usable bytes afterwards. The mean is the same for every choice, so
only the range decides. Often several ranges are equal: then Go's map order decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import nlargest, nsmallest

from scheduler_core.model.longhorn import Disk, Node


@dataclass(frozen=True, slots=True)
class DiskCandidate:
    """A disk that may take the replica."""

    node: Node
    disk: Disk

    @property
    def disk_uuid(self) -> str:
        """The disk's UUID."""
        return self.disk.uuid

    @property
    def usable_bytes(self) -> int:
        """Available bytes, neither reserved nor promised, at least 0.

        Used bytes count twice: they are missing from storageAvailable and part of storageScheduled.
        """
        disk = self.disk
        return max(0, disk.storage_available - disk.storage_reserved - disk.storage_scheduled)


class ChoiceReason(Enum):
    """Why a choice is possible.

    Attributes:
        text: the reason for people
        chance: whether other choices are possible, too
    """

    ONLY = ("the only candidate", False)
    BEST = ("the best balance score", False)
    TIE = ("ties with others for the best balance score", True)
    NO_NODE = ("no node has the usable space: a random candidate", True)
    NO_DISK = ("no disk of the best node has the usable space: a random candidate", True)

    def __init__(self, text: str, chance: bool) -> None:  # noqa: FBT001 # members are written as tuples
        self.text = text
        self.chance = chance


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate that Longhorn may choose, and why."""

    candidate: DiskCandidate
    reason: ChoiceReason


def possible_choices(candidates: Sequence[DiskCandidate], size: int) -> tuple[Choice, ...]:
    """Choices Longhorn may make for a replica of `size` bytes.

    The choices are in the candidates' order.
    """
    if len(candidates) == 1:
        return (Choice(candidates[0], ChoiceReason.ONLY),)
    by_node: dict[str, list[DiskCandidate]] = {}
    for candidate in candidates:
        by_node.setdefault(candidate.node.name, []).append(candidate)
    nodes = _Scores.of({name: sum(each.usable_bytes for each in group) for name, group in by_node.items()}, size)
    disks = _Scores.of({candidate.disk_uuid: candidate.usable_bytes for candidate in candidates}, size)
    best_nodes = nodes.best(by_node)
    if not best_nodes:
        return tuple(Choice(candidate, ChoiceReason.NO_NODE) for candidate in candidates)
    best_disks = {name: disks.best(each.disk_uuid for each in by_node[name]) for name in best_nodes}
    chosen = {uuid for uuids in best_disks.values() for uuid in uuids}
    if not all(best_disks.values()):
        return tuple(
            Choice(candidate, ChoiceReason.TIE if candidate.disk_uuid in chosen else ChoiceReason.NO_DISK)
            for candidate in candidates
        )
    why = ChoiceReason.TIE if len(chosen) > 1 else ChoiceReason.BEST
    return tuple(Choice(candidate, why) for candidate in candidates if candidate.disk_uuid in chosen)


@dataclass(frozen=True, slots=True)
class _Scores:
    """Balance scores of nodes or disks for one replica.

    Each score takes constant time. "Store" stands for a node or a disk here.

    Attributes:
        usable: usable bytes of each store
        size: bytes that are taken from one store
        mean: mean of the usable bytes afterwards
        largest: the two largest of the usable bytes
        smallest: the two smallest of the usable bytes
    """

    usable: Mapping[str, int]
    size: int
    mean: float
    largest: tuple[int, ...]
    smallest: tuple[int, ...]

    @classmethod
    def of(cls, usable: Mapping[str, int], size: int) -> _Scores:
        """Prepares the scores."""
        values = usable.values()
        # Two extremes are enough: whichever store is taken from, one of the two is unchanged.
        mean = float(sum(values) - size) / len(usable)
        return cls(usable, size, mean, tuple(nlargest(2, values)), tuple(nsmallest(2, values)))

    def best(self, keys: Iterable[str]) -> list[str]:
        """The stores with space that have the smallest score.

        None if everything would be full afterwards.
        """
        if self.mean <= 0:
            return []
        scores = {key: self._score(key) for key in keys if self.usable[key] >= self.size}
        best = min(scores.values(), default=0.0)
        return [key for key, score in scores.items() if score == best]

    def _score(self, key: str) -> float:
        before = self.usable[key]
        after = before - self.size
        top = max((after, *_without_own(self.largest, before)))
        bottom = min((after, *_without_own(self.smallest, before)))
        return float(top - bottom) / self.mean


def _without_own(extremes: tuple[int, ...], own: int) -> tuple[int, ...]:
    """The extremes without the store's own value, once."""
    return extremes[1:] if extremes[0] == own else extremes[:1]
