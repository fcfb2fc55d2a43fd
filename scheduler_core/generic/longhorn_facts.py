"""Facts that the Longhorn rules of a policy read. They are Longhorn's own decision about one pod, per node.

`scheduler_core/extender/longhorn_facts.py` computes them: each node's reason, order safety and stale safety, the volumes that keep a
replica there, and the bytes that the plan leaves free on each disk. This module does not know how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Final, NamedTuple

from scheduler_core.model.verdict import Reason

_ALL_TENTHS: Final = 10
_Share = tuple[int, int]


def _compare(first: _Share, second: _Share) -> int:
    """Compares two shares (part, whole) without rounding."""
    return first[0] * second[1] - second[0] * first[1]


_BY_SIZE: Final = cmp_to_key(_compare)


class DiskFacts(NamedTuple):
    """A disk that is open to the pod's volumes."""

    limit: int  # the most bytes that may be allocated on it (Longhorn's over-provisioning limit)
    # The bytes that remain of the limit after the plan for the pod's volumes and the space of other pods' volumes.
    free: int


class ScoreInputs(NamedTuple):
    """What Longhorn's priorities read about a node that fits. Thousands of nodes share a handful of values, so that a
    priority scores each value once.
    """

    order_safe: bool  # as in `NodeFacts`
    stale_safe: bool  # as in `NodeFacts`
    replica_bytes: int  # as in `NodeFacts`
    balance: int  # how evenly the disks are filled: 10 less the difference of their free shares in tenths, rounded up
    largest_share: int  # the share of the free bytes that is on one disk, in tenths, cut off


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about the pod's volumes on one node."""

    reason: Reason  # why the node fits or does not
    # Whether Longhorn finds space in whatever order it places the new replicas; true where none is new.
    order_safe: bool = False
    # Sizes, in sum, of the pod's Longhorn volumes with a replica on the node that stays there; for a healthy replica
    # also the bytes written, which need not be rebuilt.
    replica_bytes: int = 0
    disks: tuple[DiskFacts, ...] = ()  # the open disks after the plan; empty where nothing would be placed
    # Whether Longhorn finds space even if it sees none of its latest placements; true where none is new.
    stale_safe: bool = False
    # What the priorities read; None where the volumes do not fit.
    # Computed once, because the facts about a node are kept for later pods.
    score_inputs: ScoreInputs | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        inputs = None
        if self.reason.fits:
            balance = _balance(self.disks)
            share = _largest_share(self.disks)
            inputs = ScoreInputs(self.order_safe, self.stale_safe, self.replica_bytes, balance, share)
        object.__setattr__(self, "score_inputs", inputs)


def _balance(disks: Sequence[DiskFacts]) -> int:
    shares = [(max(0, min(disk.free, disk.limit)), disk.limit) for disk in disks if disk.limit > 0]
    if not shares:
        return _ALL_TENTHS
    limit = shares[0][1]
    if all(share[1] == limit for share in shares):
        # Mostly the disks of a node are alike, and need no comparison of fractions.
        return _ALL_TENTHS - -(-_ALL_TENTHS * (max(shares)[0] - min(shares)[0]) // limit)
    max_free, max_limit = max(shares, key=_BY_SIZE)
    min_free, min_limit = min(shares, key=_BY_SIZE)
    difference = max_free * min_limit - min_free * max_limit
    return _ALL_TENTHS - -(-_ALL_TENTHS * difference // (max_limit * min_limit))


def _largest_share(disks: Sequence[DiskFacts]) -> int:
    free = [max(0, disk.free) for disk in disks]
    total = sum(free)
    return _ALL_TENTHS * max(free) // total if total else _ALL_TENTHS


@dataclass(frozen=True, slots=True)
class LonghornFacts:
    """Facts about a pod's Longhorn volumes."""

    # By name; a node that is not named was not evaluated, so nothing fits on it.
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict[str, NodeFacts])
    # The `replica_bytes` of a node with a healthy replica of every volume that has a replica anywhere; if none has, the
    # sizes of all volumes.
    total_bytes: int = 0


NO_FACTS: Final = LonghornFacts()
