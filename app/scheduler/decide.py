"""One decision by a policy that may have rules of Longhorn's.

Longhorn's rules are asked last, about the nodes that all others leave, as kube-scheduler asks the extender: they judge the nodes together (a node
that holds the pod's data rules out all others, order-safe ones rule out those that are not), so a node that is out anyway must not be among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from scheduler_core.cooperative import Steps
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.policy import Policy, PolicyPredicate
from scheduler_core.generic.scheduler import Choose, Decision, filter_nodes, schedule
from scheduler_core.generic.volume_facts import LonghornFacts
from scheduler_core.model.generic import Pod

FactsFor = Callable[[Sequence[str]], Steps[LonghornFacts]]
"""Finds what a pod's Longhorn volumes find on some nodes, by their names."""


def decide(pod: Pod, state: State, policy: Policy, choose: Choose, facts: FactsFor | None) -> Steps[Decision]:
    """Where a pod goes; `facts` is needed if the policy has rules of Longhorn's.

    Raises:
        ResolutionError: `facts` cannot tell, because the pod names an object that does not exist or contradicts it
    """
    if facts is None:
        return (yield from schedule(pod, None, state, policy, choose))
    classic = replace(policy, predicates=tuple(entry for entry in policy.predicates if not _longhorns(entry)))
    found = yield from filter_nodes(pod, None, state, classic)
    if not found.feasible:
        return (yield from schedule(pod, None, state, classic, choose))
    names = [entry.node.name for entry in found.feasible]
    longhorn = replace(policy, predicates=tuple(entry for entry in policy.predicates if _longhorns(entry)))
    known = yield from facts(names)
    decision = yield from schedule(pod, names, state, longhorn, choose, known)
    failures = {**found.failures, **decision.failures}
    return replace(decision, unavailable=found.unavailable, failures=failures)


def _longhorns(entry: PolicyPredicate) -> bool:
    return entry.rule.startswith("Longhorn")
