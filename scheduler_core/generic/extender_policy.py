"""A policy beside kube-scheduler: what its predicates refuse in the extender's /filter, and what all of that reads.

Availability is left to kube-scheduler, which knows tolerations: a pod of a DaemonSet belongs on cordoned nodes, too. So is
`LonghornVolumeFit`, which is /filter's own decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.cooperative import Steps
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.cycle_state import Question
from scheduler_core.generic.policy import Policy
from scheduler_core.generic.predicates import Check
from scheduler_core.generic.rule_registry import PREDICATES
from scheduler_core.generic.scheduler import UNKNOWN
from scheduler_core.model.generic import Pod

NODES: Final = frozenset({"nodes"})
PODS: Final = NODES | {"pods"}
SERVICES: Final = PODS | {"services"}
_NOTHING: Final = frozenset[str]()
# A rule that is not named here reads everything.
_READS: Final = {
    "EqualPriority": _NOTHING,
    "HostName": _NOTHING,
    "MatchNodeSelector": NODES,
    "labelsPresence": NODES,
    "labelPreference": NODES,
    "PodFitsPorts": PODS,
    "PodFitsResources": PODS,
    "NoDiskConflict": PODS,
    "LeastRequestedPriority": PODS,
    "BalancedResourceAllocation": PODS,
}
# What evicting pods may change.
_PASSING: Final = frozenset({"PodFitsPorts", "PodFitsResources", "NoDiskConflict"})
_NODES_A_SLICE: Final = 256


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a policy's predicate does not let the pod on a node.

    Attributes:
        text: the predicate's name in the policy, and what it says; without names and numbers of nodes, so that kube-scheduler can
            count equal ones together
        lasting: whether evicting pods would change nothing
    """

    text: str
    lasting: bool


def reads(policy: Policy) -> frozenset[str]:
    """Which kinds (nodes, pods, services) a policy's rules read; none if they are all Longhorn's."""
    rules = [*(entry.rule for entry in policy.predicates), *(entry.rule for entry in policy.priorities)]
    return frozenset().union(*(_reads(rule) for rule in rules))


def _reads(rule: str) -> frozenset[str]:
    return _NOTHING if _of_longhorn(rule) else _READS.get(rule, SERVICES)


def scores_longhorn(policy: Policy) -> bool:
    """Whether a priority reads `LonghornFacts`."""
    return any(_of_longhorn(entry.rule) for entry in policy.priorities)


def _of_longhorn(rule: str) -> bool:
    return rule.startswith("Longhorn")


def refusals(pod: Pod, names: Sequence[str], state: State, policy: Policy) -> Steps[dict[str, Refused]]:
    """The nodes among those asked that a predicate refuses, each with the first one that does; pauses every few nodes.

    Raises:
        UndecidableError: a predicate cannot be decided for any node
    """
    question = Question(pod, state)
    checks: list[tuple[str, bool, Check]] = [
        (entry.name, entry.rule not in _PASSING, PREDICATES[entry.rule](question, entry.argument))
        for entry in policy.predicates
        if not _of_longhorn(entry.rule)
    ]
    refused: dict[str, Refused] = {}
    if not checks:
        return refused
    alike: dict[tuple[str, ...], Refused] = {}
    for count, name in enumerate(names, start=1):
        if count % _NODES_A_SLICE == 0:
            yield
        known = state.nodes.get(name)
        if known is None:
            refused[name] = Refused(UNKNOWN, lasting=True)
            continue
        texts = tuple([check(known) for _, _, check in checks])
        if any(texts):
            if texts not in alike:
                alike[texts] = _first(checks, texts)
            refused[name] = alike[texts]
    return refused


def _first(checks: Sequence[tuple[str, bool, Check]], texts: Sequence[str]) -> Refused:
    failed = [(f"{name}: {text}", lasting) for (name, lasting, _), text in zip(checks, texts, strict=True) if text]
    return Refused(failed[0][0], lasting=any(lasting for _, lasting in failed))
