"""Applies a policy's predicates in the extender's /filter, and lists the kinds that a policy reads.

Whether a node is available is left to kube-scheduler, which knows tolerations: a pod of a DaemonSet belongs on cordoned
nodes, too. `LonghornVolumeFit` is skipped, because it is /filter's own decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import CycleState
from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.generic.policy import Policy, PolicyPredicate
from scheduler_core.generic.predicates import Check
from scheduler_core.generic.rule_inputs import is_longhorn_rule, kinds_of
from scheduler_core.generic.rule_results import LOCAL_RULES
from scheduler_core.generic.scheduler import NODE_NOT_FOUND, BoundPredicates, bind_predicate
from scheduler_core.model.kube import Pod

# Predicates whose refusal may end when pods are evicted.
_RESOLVABLE_BY_EVICTION: Final = frozenset(
    {
        "PodFitsHostPorts",
        "PodFitsPorts",
        "PodFitsResources",
        "NoDiskConflict",
        "NodePorts",
        "NodeResourcesFit",
        "MatchInterPodAffinity",
        "EvenPodsSpread",
    }
)


@dataclass(frozen=True, slots=True)
class PolicyRefusal:
    """Why a policy's predicate does not let the pod on a node."""

    # The predicate's name in the policy, and its reason; without names and numbers of nodes, so that kube-scheduler can
    # count equal ones together.
    text: str
    unresolvable: bool  # whether evicting pods would change nothing


def kinds_read(policy: Policy) -> frozenset[str]:
    """The kinds that a policy's rules read; empty if all rules are Longhorn's."""
    return kinds_of([*(entry.rule for entry in policy.predicates), *(entry.rule for entry in policy.priorities)])


def priorities_read_longhorn(policy: Policy) -> bool:
    return any(is_longhorn_rule(entry.rule) for entry in policy.priorities)


def policy_refusals(
    pod: Pod, names: Sequence[str], cluster: GenericClusterState, policy: Policy
) -> dict[str, PolicyRefusal]:
    """Returns the nodes that the policy's predicates refuse. Each has the text of the first predicate that refuses it.

    Raises:
        UndecidableError: a predicate cannot be decided for any node
    """
    cycle_state = CycleState(pod, cluster)
    entries = [entry for entry in policy.predicates if not is_longhorn_rule(entry.rule)]
    refusals: dict[str, PolicyRefusal] = {}
    if not entries:
        return refusals
    node_infos = [node_info for node_info in cluster.node_infos(names) if node_info is not None]
    if len(node_infos) < len(names):
        not_found = PolicyRefusal(NODE_NOT_FOUND, unresolvable=True)
        refusals.update((name, not_found) for name in names if name not in cluster.nodes)
    bound = _bind_predicates(cycle_state, policy, entries, node_infos)
    order = [entries.index(entry) for entry in (*bound.local, *bound.others)]
    # Many nodes fail alike: they share one value.
    refusal_by_texts: dict[tuple[str, ...], PolicyRefusal] = {}
    for node_info, texts in zip(node_infos, bound.texts(node_infos), strict=True):
        if not any(texts):
            continue
        if texts not in refusal_by_texts:
            failures = [(entries[index], text) for index, text in sorted(zip(order, texts, strict=True)) if text]
            refusal_by_texts[texts] = _refusal(policy, failures)
        refusals[node_info.node.name] = refusal_by_texts[texts]
    return refusals


def _bind_predicates(
    cycle_state: CycleState, policy: Policy, entries: Sequence[PolicyPredicate], node_infos: Sequence[NodeInfo]
) -> BoundPredicates:
    local: dict[PolicyPredicate, Check] = {}
    others: dict[PolicyPredicate, Check] = {}
    for entry in entries:
        check = bind_predicate(cycle_state, policy, entry, node_infos)
        (local if entry.rule in LOCAL_RULES else others)[entry] = check
    return BoundPredicates(cycle_state, local, others)


def _eviction_helps(policy: Policy, rule: str) -> bool:
    plugin = policy.plugins.predicates.get(rule)
    return rule in _RESOLVABLE_BY_EVICTION if plugin is None else plugin.eviction_helps


def _refusal(policy: Policy, failures: Sequence[tuple[PolicyPredicate, str]]) -> PolicyRefusal:
    """The refusal of the first predicate that fails. It is unresolvable if any predicate that fails is."""
    first, text = failures[0]
    unresolvable = not all(_eviction_helps(policy, entry.rule) for entry, _ in failures)
    return PolicyRefusal(f"{first.name}: {text}", unresolvable)
