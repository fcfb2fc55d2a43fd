"""The kinds and fields of objects that each rule reads: a policy needs these kinds, and `policy check` prints the
fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

NODES: Final = frozenset({"nodes"})
PODS: Final = NODES | {"pods"}
SERVICES: Final = PODS | {"services"}
CONTROLLERS: Final = frozenset({"replicationcontrollers", "replicasets", "statefulsets"})
NAMESPACES: Final = frozenset({"namespaces"})
ALL_KINDS: Final = SERVICES | CONTROLLERS | NAMESPACES
_NOTHING: Final = frozenset[str]()
_LONGHORN: Final = "Longhorn"
_FINISHED: Final = "pod status.phase"


@dataclass(frozen=True, slots=True)
class RuleInputs:
    """What a rule reads."""

    kinds: frozenset[str]  # the kinds of objects, by their plural names; not those of Longhorn's rules
    fields: tuple[str, ...] = ()  # the fields, each with its kind


# A rule that has no entry below: that of a plugin.
PLUGIN_INPUTS: Final = RuleInputs(SERVICES, ("nodes, pods and services",))
_LONGHORN_INPUTS: Final = RuleInputs(_NOTHING, ("Longhorn's objects", "the pod's claims and their volumes"))
_REQUESTS: Final = ("pod spec.containers[].resources", _FINISHED)
_SERVICE: Final = ("service spec.selector", "pod metadata.labels")
_INPUTS: Final[Mapping[str, RuleInputs]] = {
    "EqualPriority": RuleInputs(_NOTHING),
    "HostName": RuleInputs(_NOTHING, ("pod spec.nodeName",)),
    "MatchNodeSelector": RuleInputs(NODES, ("pod spec.nodeSelector", "node metadata.labels")),
    "labelsPresence": RuleInputs(NODES, ("node metadata.labels",)),
    "labelPreference": RuleInputs(NODES, ("node metadata.labels",)),
    "PodFitsPorts": RuleInputs(PODS, ("pod spec.containers[].ports[].hostPort", "pod spec.hostNetwork", _FINISHED)),
    "PodFitsResources": RuleInputs(PODS, (*_REQUESTS, "node status.capacity")),
    "NoDiskConflict": RuleInputs(
        PODS,
        ("pod spec.volumes[].gcePersistentDisk", "pod spec.volumes[].awsElasticBlockStore", _FINISHED),
    ),
    "LeastRequestedPriority": RuleInputs(PODS, (*_REQUESTS, "node status.capacity")),
    "BalancedResourceAllocation": RuleInputs(PODS, (*_REQUESTS, "node status.capacity")),
    "NodeAffinity": RuleInputs(
        NODES,
        ("pod spec.nodeSelector", "pod spec.affinity.nodeAffinity", "node metadata.labels", "node metadata.name"),
    ),
    "NodePorts": RuleInputs(
        PODS,
        (
            "pod spec.containers[].ports[]",
            "pod spec.initContainers[].ports[]",
            "pod spec.hostNetwork",
            _FINISHED,
        ),
    ),
    "NodeResourcesFit": RuleInputs(
        PODS,
        (
            "pod spec.containers[].resources",
            "pod spec.initContainers[].resources",
            "pod spec.resources",
            "pod spec.overhead",
            _FINISHED,
            "node status.allocatable",
        ),
    ),
    "PodToleratesNodeTaints": RuleInputs(NODES, ("pod spec.tolerations", "node spec.taints")),
    "CheckNodeUnschedulable": RuleInputs(NODES, ("pod spec.tolerations", "node spec.unschedulable")),
    "MatchInterPodAffinity": RuleInputs(
        PODS | NAMESPACES,
        (
            "pod spec.affinity.podAffinity",
            "pod spec.affinity.podAntiAffinity",
            "pod metadata.labels",
            _FINISHED,
            "node metadata.labels",
            "namespace metadata.labels",
        ),
    ),
    "EvenPodsSpread": RuleInputs(
        PODS,
        (
            "pod spec.topologySpreadConstraints",
            "pod spec.nodeSelector",
            "pod spec.affinity.nodeAffinity",
            "pod spec.tolerations",
            "pod metadata.labels",
            "pod metadata.deletionTimestamp",
            _FINISHED,
            "node metadata.labels",
            "node spec.taints",
        ),
    ),
    "serviceAffinity": RuleInputs(
        SERVICES, (*_SERVICE, "pod spec.nodeSelector", "node metadata.labels", "node spec.unschedulable")
    ),
    "serviceAntiAffinity": RuleInputs(SERVICES, (*_SERVICE, "node metadata.labels")),
    "ServiceSpreadingPriority": RuleInputs(SERVICES, _SERVICE),
    "SelectorSpreadPriority": RuleInputs(
        SERVICES | CONTROLLERS,
        (
            *_SERVICE,
            "replicationcontroller spec.selector",
            "replicaset spec.selector",
            "statefulset spec.selector",
        ),
    ),
}
_ALIASES: Final = {"PodFitsHostPorts": "PodFitsPorts"}


def is_longhorn_rule(rule: str) -> bool:
    return rule.startswith(_LONGHORN)


def rule_inputs(rule: str) -> RuleInputs:
    if is_longhorn_rule(rule):
        return _LONGHORN_INPUTS
    return _INPUTS.get(_ALIASES.get(rule, rule), PLUGIN_INPUTS)


def kinds_of(rules: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(rule_inputs(rule).kinds for rule in rules))
