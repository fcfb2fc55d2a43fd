"""The choice among candidates (getDiskWithMostBalanceScore): every disk Longhorn may pick, and why it may.

The score of a choice is (max - min) / mean of the usable bytes afterwards. The mean is the same for every choice, so
only the range decides. Often several ranges are equal: then Go's map order decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from scheduler_core.model.longhorn import Disk, Node


@dataclass(frozen=True, slots=True)
class DiskCandidate:
    """A disk that may take the replica."""

    node: Node
    disk: Disk

    @property
    def disk_uuid(self) -> str:
        return self.disk.uuid

    @property
    def usable_bytes(self) -> int:
        """Available bytes, neither reserved nor promised, at least 0."""
        disk = self.disk
        # Used bytes count twice: they are missing from storageAvailable and part of storageScheduled.
        return max(0, disk.storage_available - disk.storage_reserved - disk.storage_scheduled)


class ChoiceReason(Enum):
    """Why a choice is possible."""

    ONLY = ("the only candidate", False)
    BEST = ("the best balance score", False)
    TIE = ("ties with others for the best balance score", True)
    NO_NODE = ("no node has the usable space: a random candidate", True)
    NO_DISK = ("no disk of the best node has the usable space: a random candidate", True)
    FIRST_FOUND = ("a shard takes the first candidate that Longhorn comes upon", True)

    def __init__(self, text: str, chance: bool) -> None:  # noqa: FBT001 # members are written as tuples
        self.text = text  # the reason for people
        self.chance = chance  # whether other choices are possible, too


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate that Longhorn may choose, and why."""

    candidate: DiskCandidate
    reason: ChoiceReason


def possible_choices(candidates: Sequence[DiskCandidate], size: int) -> tuple[Choice, ...]:
    """Choices Longhorn may make for a replica of `size` bytes, in the candidates' order."""
    if len(candidates) == 1:
        return (Choice(candidates[0], ChoiceReason.ONLY),)
    by_node: dict[str, list[DiskCandidate]] = {}
    usable: dict[str, int] = {}
    usable_of_node: dict[str, int] = {}
    for candidate in candidates:
        name = candidate.node.name
        by_node.setdefault(name, []).append(candidate)
        usable[candidate.disk_uuid] = candidate.usable_bytes
        usable_of_node[name] = usable_of_node.get(name, 0) + candidate.usable_bytes
    nodes = _Scores.of(usable_of_node, size)
    disks = _Scores.of(usable, size)
    best_nodes = nodes.best(by_node)
    if not best_nodes:
        return tuple(Choice(candidate, ChoiceReason.NO_NODE) for candidate in candidates)
    best_disks: dict[str, list[str]] = {}
    for name in best_nodes:
        best_disks[name] = disks.best(each.disk_uuid for each in by_node[name])
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
    """Balance scores of nodes or disks for one replica. Each score takes constant time. "Store" stands for a node or a
    disk here.
    """

    usable: Mapping[str, int]  # usable bytes of each store
    size: int  # bytes that are taken from one store
    mean: float  # mean of the usable bytes afterwards
    largest: tuple[int, ...]  # the two largest of the usable bytes
    smallest: tuple[int, ...]  # the two smallest of the usable bytes

    @classmethod
    def of(cls, usable: Mapping[str, int], size: int) -> _Scores:
        values = sorted(usable.values())
        # Two extremes are enough: whichever store is taken from, one of the two is unchanged.
        mean = float(sum(values) - size) / len(usable)
        return cls(usable, size, mean, tuple(values[:-3:-1]), tuple(values[:2]))

    def best(self, keys: Iterable[str]) -> list[str]:
        """The stores with space that have the smallest score; none if every store would be full afterwards."""
        if self.mean <= 0:
            return []
        scores: dict[str, float] = {}
        for key in keys:
            if self.usable[key] >= self.size:
                scores[key] = self._score(key)
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
