"""Longhorn's rules as predicates and priorities, all computed from `LonghornFacts`. They exist so that one policy can
mix both kinds; /filter's own decision does not need them. Scores are exact integer arithmetic; each is 0 on a node
where the pod's volumes do not fit or that was not evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from scheduler_core.generic.cycle_state import Argument, CycleState
from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.generic.predicates import FITS, Check
from scheduler_core.generic.priorities import MAX_SCORE

NOT_EVALUATED: Final = "node was not looked at for Longhorn volumes"


def volume_fit(cycle_state: CycleState, _: Argument) -> Check:
    """Whether /filter accepts the node for the pod's Longhorn volumes. All volumes fit on the node together, or need no
    space there; a refusal has /filter's reason.
    """
    facts_by_node = cycle_state.longhorn_facts.nodes

    def check(node_info: NodeInfo) -> str:
        facts = facts_by_node.get(node_info.node.name)
        if facts is None:
            return NOT_EVALUATED
        return FITS if facts.reason.fits else facts.reason.text

    return check


def data_locality(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Scores the bytes of the pod's Longhorn volumes with a kept replica on the node, in tenths of those that have a
    replica anywhere; 0 if none has, 10 for a pod without volumes.
    """
    total = cycle_state.longhorn_facts.total_bytes
    if not total:
        return [MAX_SCORE] * len(node_infos)
    # Of two nodes with as much of the data, the one comes first where fewer bytes must be rebuilt.
    return cycle_state.score_facts(node_infos, lambda facts: min(facts.replica_bytes, total) * MAX_SCORE // total)


def order_safe(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """10 where every order of placement succeeds or Longhorn places no volume, otherwise 0."""
    return cycle_state.score_facts(node_infos, lambda facts: MAX_SCORE if facts.order_safe else 0)


def stale_safe(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """10 where placement succeeds even on outdated status or Longhorn places no volume, otherwise 0."""
    return cycle_state.score_facts(node_infos, lambda facts: MAX_SCORE if facts.stale_safe else 0)


def balanced_disks(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """10 less the difference between the fullest and the emptiest disk after the plan, in tenths of their limits."""
    # 10 where nothing would be placed, or there is only one disk.
    return cycle_state.score_facts(node_infos, attrgetter("balance"))


def least_fragmentation(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """The share of the node's free bytes that is on one disk, in tenths, after the plan."""
    # The larger it is, the larger a volume that still fits. 10 where nothing would be placed, or nothing is free.
    return cycle_state.score_facts(node_infos, attrgetter("largest_share"))
