"""Table of every rule by its name in a policy; a new predicate or priority is added here, with the objects that it reads.

A policy names a static rule. A configurable rule has a name that the administrator chooses; its argument says which rule
it is.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from scheduler_core.generic import predicates, priorities
from scheduler_core.generic.predicates import Predicate
from scheduler_core.generic.priorities import Priority
from scheduler_core.structs import Struct

_Function = TypeVar("_Function", bound="Predicate | Priority")

NODES = frozenset({"nodes"})
PODS = NODES | {"pods"}
SERVICES = PODS | {"services"}
CONTROLLERS = frozenset({"replicationcontrollers", "replicasets", "statefulsets"})
NAMESPACES = frozenset({"namespaces"})
ALL_KINDS = SERVICES | CONTROLLERS | NAMESPACES
_NOTHING = frozenset[str]()
_LONGHORN = "Longhorn"


class RuleInputs(Struct, frozen=True):
    """What a rule reads."""

    kinds: frozenset[str]  # the kinds of objects, by their plural names; not those of Longhorn's rules
    fields: tuple[str, ...] = ()  # the fields, each with its kind


# A rule that is not in the table: that of a plugin.
PLUGIN_INPUTS = RuleInputs(SERVICES, ("nodes, pods and services",))


class PolicyRule(Struct, Generic[_Function], frozen=True):
    """A predicate or priority."""

    function: _Function
    inputs: RuleInputs
    # Whether it reads nothing but one node with its pods, and the pod itself without its name, UID and labels. So its result holds
    # for every pod that is equal apart from these, until the node changes (`RuleResults`).
    local: bool = False
    eviction_helps: bool = False  # of a predicate: whether a refusal may end when pods are evicted


class RuleRegistry(Struct, Generic[_Function], frozen=True):
    """All predicates, or all priorities."""

    rule_kind: str  # what messages call a rule of this registry
    static: Mapping[str, PolicyRule[_Function]]  # by name
    configurable: Mapping[str, PolicyRule[_Function]]  # by the key of their argument

    def __getitem__(self, rule: str) -> PolicyRule[_Function]:
        # The two kinds of names never collide: only a static one begins with a capital.
        return self.static[rule] if rule in self.static else self.configurable[rule]

    def __contains__(self, rule: str) -> bool:
        return rule in self.static or rule in self.configurable

    def is_local(self, rule: str) -> bool:
        return rule in self and self[rule].local


def is_longhorn_rule(rule: str) -> bool:
    return rule.startswith(_LONGHORN)


_FINISHED = "pod status.phase"
_REQUESTS = ("pod spec.containers[].resources", _FINISHED)
_CLASSIC_RESOURCES = RuleInputs(PODS, (*_REQUESTS, "node status.capacity"))
_NODE_LABELS = RuleInputs(NODES, ("node metadata.labels",))
_SERVICE = ("service spec.selector", "pod metadata.labels")
_LONGHORN_INPUTS = RuleInputs(_NOTHING, ("Longhorn's objects", "the pod's claims and their volumes"))
# fmt: off
# The name of Kubernetes 1.0 is PodFitsPorts, which 1.1 accepts as well.
_HOST_PORTS: PolicyRule[Predicate] = PolicyRule(
    predicates.pod_fits_ports,
    RuleInputs(PODS, ("pod spec.containers[].ports[].hostPort", "pod spec.hostNetwork", _FINISHED)), local=True, eviction_helps=True)
PREDICATES: RuleRegistry[Predicate] = RuleRegistry(
    "predicate",
    {
        "PodFitsHostPorts": _HOST_PORTS,
        "PodFitsPorts": _HOST_PORTS,
        "PodFitsResources": PolicyRule(predicates.pod_fits_resources, _CLASSIC_RESOURCES, local=True, eviction_helps=True),
        "NoDiskConflict": PolicyRule(
            predicates.no_disk_conflict,
            RuleInputs(PODS, ("pod spec.volumes[].gcePersistentDisk", "pod spec.volumes[].awsElasticBlockStore", _FINISHED)), local=True, eviction_helps=True),
        "MatchNodeSelector": PolicyRule(
            predicates.match_node_selector, RuleInputs(NODES, ("pod spec.nodeSelector", "node metadata.labels")), local=True),
        "HostName": PolicyRule(predicates.host_name, RuleInputs(_NOTHING, ("pod spec.nodeName",)), local=True),
        "NodeAffinity": PolicyRule(
            predicates.node_affinity,
            RuleInputs(NODES, ("pod spec.nodeSelector", "pod spec.affinity.nodeAffinity", "node metadata.labels", "node metadata.name")), local=True),
        "NodePorts": PolicyRule(
            predicates.node_ports,
            RuleInputs(PODS, ("pod spec.containers[].ports[]", "pod spec.initContainers[].ports[]", "pod spec.hostNetwork", _FINISHED)),
            local=True, eviction_helps=True),
        "NodeResourcesFit": PolicyRule(
            predicates.node_resources_fit,
            RuleInputs(PODS, ("pod spec.containers[].resources", "pod spec.initContainers[].resources", "pod spec.resources", "pod spec.overhead",
             _FINISHED, "node status.allocatable")), local=True, eviction_helps=True),
        "PodToleratesNodeTaints": PolicyRule(
            predicates.pod_tolerates_node_taints, RuleInputs(NODES, ("pod spec.tolerations", "node spec.taints")), local=True),
        "CheckNodeUnschedulable": PolicyRule(
            predicates.check_node_unschedulable, RuleInputs(NODES, ("pod spec.tolerations", "node spec.unschedulable")), local=True),
        "MatchInterPodAffinity": PolicyRule(
            predicates.match_inter_pod_affinity,
            RuleInputs(PODS | NAMESPACES, ("pod spec.affinity.podAffinity", "pod spec.affinity.podAntiAffinity", "pod metadata.labels", _FINISHED,
             "node metadata.labels", "namespace metadata.labels")), eviction_helps=True),
        "EvenPodsSpread": PolicyRule(
            predicates.even_pods_spread,
            RuleInputs(PODS, ("pod spec.topologySpreadConstraints", "pod spec.nodeSelector", "pod spec.affinity.nodeAffinity", "pod spec.tolerations",
             "pod metadata.labels", "pod metadata.deletionTimestamp", _FINISHED, "node metadata.labels", "node spec.taints")),
            eviction_helps=True),
        "LonghornVolumeFit": PolicyRule(predicates.volume_fit, _LONGHORN_INPUTS),
    },
    {
        "serviceAffinity": PolicyRule(
            predicates.service_affinity,
            RuleInputs(SERVICES, (*_SERVICE, "pod spec.nodeSelector", "node metadata.labels", "node spec.unschedulable"))),
        "labelsPresence": PolicyRule(predicates.labels_presence, _NODE_LABELS, local=True),
    },
)
PRIORITIES: RuleRegistry[Priority] = RuleRegistry(
    "priority",
    {
        "LeastRequestedPriority": PolicyRule(priorities.least_requested, _CLASSIC_RESOURCES, local=True),
        "BalancedResourceAllocation": PolicyRule(priorities.balanced_resource_allocation, _CLASSIC_RESOURCES, local=True),
        "SelectorSpreadPriority": PolicyRule(
            priorities.selector_spread,
            RuleInputs(SERVICES | CONTROLLERS, (*_SERVICE, "replicationcontroller spec.selector", "replicaset spec.selector", "statefulset spec.selector"))),
        "ServiceSpreadingPriority": PolicyRule(priorities.service_spreading, RuleInputs(SERVICES, _SERVICE)),
        "EqualPriority": PolicyRule(priorities.equal, RuleInputs(_NOTHING), local=True),
        "LonghornDataLocality": PolicyRule(priorities.data_locality, _LONGHORN_INPUTS),
        "LonghornOrderSafe": PolicyRule(priorities.order_safe, _LONGHORN_INPUTS),
        "LonghornStaleSafe": PolicyRule(priorities.stale_safe, _LONGHORN_INPUTS),
        "LonghornBalancedDisks": PolicyRule(priorities.balanced_disks, _LONGHORN_INPUTS),
        "LonghornLeastFragmentation": PolicyRule(priorities.least_fragmentation, _LONGHORN_INPUTS),
    },
    {
        "serviceAntiAffinity": PolicyRule(priorities.service_anti_affinity, RuleInputs(SERVICES, (*_SERVICE, "node metadata.labels"))),
        "labelPreference": PolicyRule(priorities.label_preference, _NODE_LABELS, local=True),
    },
)
# fmt: on


def rule_inputs(rule: str) -> RuleInputs:
    registry: RuleRegistry[Any] = PREDICATES if rule in PREDICATES else PRIORITIES
    return registry[rule].inputs if rule in registry else PLUGIN_INPUTS
