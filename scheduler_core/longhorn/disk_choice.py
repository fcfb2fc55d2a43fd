"""The choice among candidates (getDiskWithMostBalanceScore): every disk Longhorn may pick, and why it may.

The score of a choice is (max - min) / mean of the usable bytes afterwards. The mean is the same for every choice, so
only the range decides, and it often does not: then Go's map order does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import nlargest, nsmallest

from scheduler_core.model.longhorn import Disk, Node


@dataclass(frozen=True, slots=True)
class Candidate:
    """A disk that may take the replica, with its node."""

    node: Node
    disk: Disk

    @property
    def disk_uuid(self) -> str:
        """The disk's UUID."""
        return self.disk.uuid

    @property
    def usable(self) -> int:
        """Bytes available, neither reserved nor promised, at least 0; used bytes count twice (also in scheduled)."""
        disk = self.disk
        return max(0, disk.storage_available - disk.storage_reserved - disk.storage_scheduled)


class Why(Enum):
    """Why a choice is possible; `chance` tells that others are possible beside it."""

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
    """A possible choice."""

    candidate: Candidate
    why: Why


def choices(candidates: Sequence[Candidate], size: int) -> tuple[Choice, ...]:
    """Every candidate Longhorn may choose for a replica of `size` bytes, in the candidates' order."""
    if len(candidates) == 1:
        return (Choice(candidates[0], Why.ONLY),)
    by_node: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_node.setdefault(candidate.node.name, []).append(candidate)
    nodes = _Scores.of({name: sum(each.usable for each in own) for name, own in by_node.items()}, size)
    disks = _Scores.of({candidate.disk_uuid: candidate.usable for candidate in candidates}, size)
    best_nodes = nodes.best(by_node)
    if not best_nodes:
        return tuple(Choice(candidate, Why.NO_NODE) for candidate in candidates)
    best_disks = {name: disks.best(each.disk_uuid for each in by_node[name]) for name in best_nodes}
    chosen = {uuid for uuids in best_disks.values() for uuid in uuids}
    if not all(best_disks.values()):
        return tuple(
            Choice(candidate, Why.TIE if candidate.disk_uuid in chosen else Why.NO_DISK) for candidate in candidates
        )
    why = Why.TIE if len(chosen) > 1 else Why.BEST
    return tuple(Choice(candidate, why) for candidate in candidates if candidate.disk_uuid in chosen)


@dataclass(frozen=True, slots=True)
class _Scores:
    """The scores of taking `size` bytes from one of several stores (nodes or disks), each in constant time."""

    usable: Mapping[str, int]
    size: int
    mean: float
    largest: tuple[int, ...]
    smallest: tuple[int, ...]

    @classmethod
    def of(cls, usable: Mapping[str, int], size: int) -> _Scores:
        """Prepares the two largest and the two smallest: one of them is left whichever store is taken from."""
        values = usable.values()
        mean = float(sum(values) - size) / len(usable)
        return cls(usable, size, mean, tuple(nlargest(2, values)), tuple(nsmallest(2, values)))

    def best(self, among: Iterable[str]) -> list[str]:
        """Those with the smallest score that can take the size; none if everything would be full afterwards."""
        if self.mean <= 0:
            return []
        scores = {key: self._score(key) for key in among if self.usable[key] >= self.size}
        best = min(scores.values(), default=0.0)
        return [key for key, score in scores.items() if score == best]

    def _score(self, key: str) -> float:
        before = self.usable[key]
        after = before - self.size
        top = max((after, *_others(self.largest, before)))
        bottom = min((after, *_others(self.smallest, before)))
        return float(top - bottom) / self.mean


def _others(extremes: tuple[int, ...], own: int) -> tuple[int, ...]:
    """The extremes without the store's own value, once."""
    return extremes[1:] if extremes[0] == own else extremes[:1]
