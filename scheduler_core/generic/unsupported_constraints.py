"""Constraints of a pod, and of nodes and other pods against it, that a policy's rules do not read.

The classic rules are those of Kubernetes 1.1. Newer fields of a pod would have no effect, and nothing would report
that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.current_predicates import (
    EXISTING_ANTI_AFFINITY,
    UNTOLERATED_TAINT,
    closed_domains,
    taint_test,
)
from scheduler_core.generic.cycle_state import CycleState
from scheduler_core.generic.policy import Policy
from scheduler_core.model.kube import Pod

NODE_AFFINITY_RULE: Final = "NodeAffinity"
POD_AFFINITY_RULE: Final = "MatchInterPodAffinity"
SPREAD_RULE: Final = "EvenPodsSpread"
RESOURCE_RULE: Final = "NodeResourcesFit"
TAINT_RULE: Final = "PodToleratesNodeTaints"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class UnsupportedMode(StrEnum):
    """What becomes of a constraint that the policy does not read."""

    REFUSE = "refuse"
    WARN = "warn"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class UnsupportedConstraint:
    """A constraint that no rule of the policy reads."""

    field: str  # where the pod, or the node, has it
    rule: str = ""  # the rule that would read it, "" if there is none

    def __str__(self) -> str:
        return f"{self.field} ({f'rule {self.rule}' if self.rule else 'no rule'})"


NODE_TAINTS: Final = UnsupportedConstraint("node spec.taints", TAINT_RULE)
EXISTING_PODS: Final = UnsupportedConstraint(
    f"spec.affinity.podAntiAffinity.{_REQUIRED} of a placed pod", POD_AFFINITY_RULE
)
_REASONS: Final = {NODE_TAINTS: UNTOLERATED_TAINT, EXISTING_PODS: EXISTING_ANTI_AFFINITY}


def unsupported_constraints(pod: Pod, policy: Policy) -> tuple[UnsupportedConstraint, ...]:
    """The pod's constraints that no rule of the policy reads, in a fixed order. What only permits more, such as a
    toleration, is none, nor is a preference.
    """
    constraints = pod.scheduling.constraints
    fields = [
        (
            NODE_AFFINITY_RULE,
            [f"spec.affinity.nodeAffinity.{_REQUIRED}"] if constraints.node_affinity is not None else [],
        ),
        (POD_AFFINITY_RULE, [f"spec.affinity.podAffinity.{_REQUIRED}"] if constraints.pod_affinity else []),
        (POD_AFFINITY_RULE, [f"spec.affinity.podAntiAffinity.{_REQUIRED}"] if constraints.pod_anti_affinity else []),
        (SPREAD_RULE, ["spec.topologySpreadConstraints[].whenUnsatisfiable"] if constraints.spread else []),
        (RESOURCE_RULE, constraints.request_fields),
        ("", constraints.claim_fields),
    ]
    rules = _rules(policy)
    return tuple(UnsupportedConstraint(field, rule) for rule, names in fields if rule not in rules for field in names)


def unsupported_nodes(pod: Pod, cluster: GenericClusterState, policy: Policy) -> dict[str, UnsupportedConstraint]:
    """The nodes that only an unsupported constraint closes to the pod."""
    # That is a taint that it does not tolerate, or the required anti-affinity of a placed pod. Only nodes that are
    # ready and not cordoned are among them: the others are left out anyway.
    return _closed_nodes(pod, cluster.node_names, cluster, policy)


def _closed_nodes(
    pod: Pod, names: Sequence[str], cluster: GenericClusterState, policy: Policy
) -> dict[str, UnsupportedConstraint]:
    rules = _rules(policy)
    closed: dict[str, UnsupportedConstraint] = {}
    domains = frozenset() if POD_AFFINITY_RULE in rules else closed_domains(CycleState(pod, cluster))
    tolerates = taint_test(pod)
    reads_taints = TAINT_RULE in rules
    for name in names if domains else sorted(cluster.constrained_nodes.intersection(names)):
        node = cluster.nodes[name].node
        if node.unschedulable or not node.ready:
            continue
        if node.taints and not reads_taints and not tolerates(node):
            closed[name] = NODE_TAINTS
        elif domains and not domains.isdisjoint(node.labels.items()):
            closed[name] = EXISTING_PODS
    return closed


def ignored_constraints(
    pod: Pod, node: str, cluster: GenericClusterState, policy: Policy
) -> tuple[UnsupportedConstraint, ...]:
    closed = _closed_nodes(pod, [node], cluster, policy)
    return (*unsupported_constraints(pod, policy), *closed.values())


def node_refusal(constraint: UnsupportedConstraint) -> str:
    return f"{_REASONS[constraint]}, which the policy does not read (rule {constraint.rule})"


def unsupported_message(constraints: Sequence[UnsupportedConstraint]) -> str:
    return f"the policy does not read {', '.join(map(str, constraints))}"


def _rules(policy: Policy) -> frozenset[str]:
    return frozenset(entry.rule for entry in policy.predicates)
