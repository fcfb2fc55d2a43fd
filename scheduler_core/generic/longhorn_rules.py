"""Longhorn's rules in the shape of the classic scheduler's, all computed from `LonghornFacts`.

They exist so that one policy can mix both; /filter's own decision does not need them. Scores are exact integer arithmetic; where
the pod's volumes do not fit, or nobody looked, each is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from typing import Final

from scheduler_core.generic.cycle_state import Argument, Question
from scheduler_core.generic.node_info import NodeState
from scheduler_core.generic.predicates import FITS, Check
from scheduler_core.generic.priorities import BEST
from scheduler_core.generic.volume_facts import DiskFacts, NodeFacts

NOT_LOOKED_AT: Final = "node was not looked at for Longhorn volumes"
_Share = tuple[int, int]


def _compared(one: _Share, other: _Share) -> int:
    """Shares (part, whole) by cross-multiplication, so that nothing is rounded."""
    return one[0] * other[1] - other[0] * one[1]


_BY_SIZE: Final = cmp_to_key(_compared)


def volume_fit(question: Question, _: Argument) -> Check:
    """All the pod's Longhorn volumes have room on the node together, or need none: /filter's decision, with its reason."""
    nodes = question.longhorn.nodes

    def check(state: NodeState) -> str:
        facts = nodes.get(state.node.name)
        if facts is None:
            return NOT_LOOKED_AT
        return FITS if facts.reason.fits else facts.reason.text

    return check


def data_locality(question: Question, _: Argument, states: Sequence[NodeState]) -> list[int]:
    """The share of the bytes of the pod's Longhorn volumes that have a kept replica on the node, in tenths; 10 without volumes."""
    total = question.longhorn.total
    if not total:
        return [BEST] * len(states)
    return [min(facts.kept, total) * BEST // total if facts else 0 for facts in _facts(question, states)]


def order_safe(question: Question, _: Argument, states: Sequence[NodeState]) -> list[int]:
    """10 where Longhorn finds room in whatever order it places the volumes, or places none; otherwise 0."""
    return [BEST if facts is not None and facts.order_safe else 0 for facts in _facts(question, states)]


def balanced_disks(question: Question, _: Argument, states: Sequence[NodeState]) -> list[int]:
    """10 less the difference between the fullest and the emptiest disk of the node after the plan, in tenths of their limits.

    10 where nothing would be placed, or there is one disk only.
    """
    return [0 if facts is None else evenness(facts.disks) for facts in _facts(question, states)]


def evenness(disks: Sequence[DiskFacts]) -> int:
    """The score of disks that are left so."""
    shares = [(max(0, min(disk.free, disk.limit)), disk.limit) for disk in disks if disk.limit > 0]
    if not shares:
        return BEST
    (most, whole), (least, other) = max(shares, key=_BY_SIZE), min(shares, key=_BY_SIZE)
    return BEST - -(-BEST * (most * other - least * whole) // (whole * other))


def least_fragmentation(question: Question, _: Argument, states: Sequence[NodeState]) -> list[int]:
    """How much of the node's free bytes after the plan is on one disk, in tenths: what a large volume could still have.

    10 where nothing would be placed, or nothing is left.
    """
    return [0 if facts is None else wholeness(facts.disks) for facts in _facts(question, states)]


def wholeness(disks: Sequence[DiskFacts]) -> int:
    """The score of disks that are left so."""
    free = [max(0, disk.free) for disk in disks]
    total = sum(free)
    return BEST * max(free) // total if total else BEST


def _facts(question: Question, states: Sequence[NodeState]) -> list[NodeFacts | None]:
    """What is known of each node; None where it was not looked at or does not fit, which is worth nothing."""
    nodes = question.longhorn.nodes
    found = (nodes.get(state.node.name) for state in states)
    return [facts if facts is not None and facts.reason.fits else None for facts in found]
