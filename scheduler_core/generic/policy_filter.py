"""Applies a policy's predicates in the extender's /filter, and lists the kinds that a policy reads.

Whether a node is available is left to kube-scheduler, which knows tolerations: a pod of a DaemonSet belongs on cordoned
nodes, too. `LonghornVolumeFit` is skipped, because it is /filter's own decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.cooperative import Cooperative
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import CycleState
from scheduler_core.generic.policy import Policy
from scheduler_core.generic.predicates import Check
from scheduler_core.generic.rule_inputs import is_longhorn_rule, kinds_of
from scheduler_core.generic.scheduler import NODE_NOT_FOUND, bind_predicate
from scheduler_core.model.generic import Pod

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
_NODES_PER_SLICE: Final = 256


@dataclass(frozen=True, slots=True)
class PolicyRefusal:
    """Why a policy's predicate does not let the pod on a node.

    Attributes:
        text: the predicate's name in the policy, and its reason; without names and numbers of nodes, so that kube-scheduler
            can count equal ones together
        unresolvable: whether evicting pods would change nothing
    """

    text: str
    unresolvable: bool


@dataclass(frozen=True, slots=True)
class _BoundPredicate:
    """A predicate of the policy, bound to one pod.

    Attributes:
        name: the predicate's name in the policy
    """

    name: str
    unresolvable: bool
    check: Check


def kinds_read(policy: Policy) -> frozenset[str]:
    """The kinds that a policy's rules read.

    Empty if all rules are Longhorn's.
    """
    return kinds_of([*(entry.rule for entry in policy.predicates), *(entry.rule for entry in policy.priorities)])


def priorities_read_longhorn(policy: Policy) -> bool:
    """Whether a priority reads `LonghornFacts`."""
    return any(is_longhorn_rule(entry.rule) for entry in policy.priorities)


def policy_refusals(
    pod: Pod, names: Sequence[str], cluster: GenericClusterState, policy: Policy
) -> Cooperative[dict[str, PolicyRefusal]]:
    """Returns the nodes that the policy's predicates refuse.

    Each has the text of the first predicate that refuses it. Pauses every few nodes.

    Raises:
        UndecidableError: a predicate cannot be decided for any node
    """
    cycle_state = CycleState(pod, cluster)
    entries = [entry for entry in policy.predicates if not is_longhorn_rule(entry.rule)]
    refusals: dict[str, PolicyRefusal] = {}
    if not entries:
        return refusals
    node_infos = [node_info for node_info in cluster.node_infos(names) if node_info is not None]
    predicates: list[_BoundPredicate] = []
    for entry in entries:
        check = yield from bind_predicate(cycle_state, policy, entry, node_infos)
        predicates.append(_BoundPredicate(entry.name, not _eviction_helps(policy, entry.rule), check))
    checks = [predicate.check for predicate in predicates]
    # Many nodes fail alike: they share one value.
    refusal_by_texts: dict[tuple[str, ...], PolicyRefusal] = {}
    for count, name in enumerate(names, start=1):
        if count % _NODES_PER_SLICE == 0:
            yield
        node_info = cluster.nodes.get(name)
        if node_info is None:
            refusals[name] = PolicyRefusal(NODE_NOT_FOUND, unresolvable=True)
            continue
        texts = tuple([check(node_info) for check in checks])
        if any(texts):
            if texts not in refusal_by_texts:
                refusal_by_texts[texts] = _refusal(predicates, texts)
            refusals[name] = refusal_by_texts[texts]
    return refusals


def _eviction_helps(policy: Policy, rule: str) -> bool:
    plugin = policy.plugins.predicates.get(rule)
    return rule in _RESOLVABLE_BY_EVICTION if plugin is None else plugin.eviction_helps


def _refusal(predicates: Sequence[_BoundPredicate], texts: Sequence[str]) -> PolicyRefusal:
    """The refusal of the first predicate that fails.

    It is unresolvable if any predicate that fails is.
    """
    failures = [(predicate, text) for predicate, text in zip(predicates, texts, strict=True) if text]
    first, text = failures[0]
    return PolicyRefusal(f"{first.name}: {text}", unresolvable=any(predicate.unresolvable for predicate, _ in failures))
