"""One decision by a policy that may have Longhorn's rules, and its result as one line.

Longhorn's rules are checked last, on the nodes that pass all other rules, as kube-scheduler calls its extenders last. They judge the
nodes together (a node that holds the pod's data excludes all others, safer nodes exclude those that are less safe), so a node that
is excluded anyway must not be among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.longhorn_facts import LonghornFacts
from scheduler_core.generic.policy import Policy, PolicyPredicate
from scheduler_core.generic.scheduler import NO_NODES, ScheduleResult, SelectHost, find_nodes_that_fit, schedule
from scheduler_core.model.kube import Pod

_NONE: Final[Mapping[str, str]] = MappingProxyType({})

FactsFor = Callable[[Sequence[str]], LonghornFacts]
"""Computes the facts about a pod's Longhorn volumes on nodes of these names."""


def decide(  # noqa: PLR0913, PLR0917 # the inputs of a decision
    pod: Pod,
    state: GenericClusterState,
    policy: Policy,
    select_host: SelectHost,
    facts_for: FactsFor | None,
    closed: Mapping[str, str] = _NONE,
) -> ScheduleResult:
    """Selects a node for the pod. A policy with Longhorn's rules needs `facts_for`. Nodes that are `closed`, each with
    its reason, are left out.

    Raises:
        ResolutionError: `facts_for` fails, because the pod names an object that does not exist or contradicts it
    """
    open_nodes = [name for name in state.node_names if name not in closed] if closed else None
    if facts_for is None:
        result = schedule(pod, open_nodes, state, policy, select_host)
        return replace(result, unavailable={**result.unavailable, **closed}) if closed else result
    classic = replace(policy, predicates=tuple(entry for entry in policy.predicates if not _is_longhorns(entry)))
    filtered = find_nodes_that_fit(pod, open_nodes, state, classic)
    unavailable = {**filtered.unavailable, **closed}
    if not filtered.feasible:
        result = schedule(pod, open_nodes, state, classic, select_host)
        return replace(result, unavailable=unavailable)
    names = [node_info.node.name for node_info in filtered.feasible]
    longhorn = replace(policy, predicates=tuple(entry for entry in policy.predicates if _is_longhorns(entry)))
    facts = facts_for(names)
    result = schedule(pod, names, state, longhorn, select_host, facts)
    failures = {**filtered.failures, **result.failures}
    return replace(result, unavailable=unavailable, failures=failures)


def _is_longhorns(entry: PolicyPredicate) -> bool:
    return entry.rule.startswith("Longhorn")


def message(result: ScheduleResult) -> str:
    """Returns why no node fits the pod, in kube-scheduler's form. Equal reasons are counted together. Where nothing can
    be decided at all, the message is that problem alone.
    """
    if result.error not in ("", NO_NODES):
        return result.error
    nodes = len(result.feasible) + len(result.unavailable) + len(result.failures)
    if not nodes:
        return NO_NODES
    counts = ", ".join(f"{count} {text}" for text, count in result.count_by_reason().items())
    return f"0/{nodes} nodes are available: {counts}."
