"""Table of every rule by its name in a policy; a new predicate or priority is added here.

A policy names a static rule. A configurable rule has a name that the administrator chooses; its argument says which rule
it is.

After the table: which rules are local; the kinds and fields of objects that each rule reads (a policy needs these kinds, and
`policy check` prints the fields); and names of later Kubernetes rules that this scheduler does not have, each with what to use in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from msgspec import Struct

from scheduler_core.generic import (
    predicates,
    priorities,
)
from scheduler_core.generic.predicates import Predicate
from scheduler_core.generic.priorities import Priority

_Function = TypeVar("_Function")


class RuleRegistry(Struct, Generic[_Function], frozen=True):
    """All predicates, or all priorities."""

    rule_kind: str  # what messages call a rule of this registry
    static: Mapping[str, _Function]  # by name
    configurable: Mapping[str, _Function]  # by the key of their argument

    def __getitem__(self, rule: str) -> _Function:
        # The two kinds of names never collide: only a static one begins with a capital.
        return self.static[rule] if rule in self.static else self.configurable[rule]


PREDICATES: Final[RuleRegistry[Predicate]] = RuleRegistry(
    "predicate",
    {
        "PodFitsHostPorts": predicates.pod_fits_ports,
        # The name of Kubernetes 1.0, which 1.1 accepts as well.
        "PodFitsPorts": predicates.pod_fits_ports,
        "PodFitsResources": predicates.pod_fits_resources,
        "NoDiskConflict": predicates.no_disk_conflict,
        "MatchNodeSelector": predicates.match_node_selector,
        "HostName": predicates.host_name,
        "NodeAffinity": predicates.node_affinity,
        "NodePorts": predicates.node_ports,
        "NodeResourcesFit": predicates.node_resources_fit,
        "PodToleratesNodeTaints": predicates.pod_tolerates_node_taints,
        "CheckNodeUnschedulable": predicates.check_node_unschedulable,
        "MatchInterPodAffinity": predicates.match_inter_pod_affinity,
        "EvenPodsSpread": predicates.even_pods_spread,
        "LonghornVolumeFit": predicates.volume_fit,
    },
    {"serviceAffinity": predicates.service_affinity, "labelsPresence": predicates.labels_presence},
)
PRIORITIES: Final[RuleRegistry[Priority]] = RuleRegistry(
    "priority",
    {
        "LeastRequestedPriority": priorities.least_requested,
        "BalancedResourceAllocation": priorities.balanced_resource_allocation,
        "SelectorSpreadPriority": priorities.selector_spread,
        "ServiceSpreadingPriority": priorities.service_spreading,
        "EqualPriority": priorities.equal,
        "LonghornDataLocality": priorities.data_locality,
        "LonghornOrderSafe": priorities.order_safe,
        "LonghornStaleSafe": priorities.stale_safe,
        "LonghornBalancedDisks": priorities.balanced_disks,
        "LonghornLeastFragmentation": priorities.least_fragmentation,
    },
    {"serviceAntiAffinity": priorities.service_anti_affinity, "labelPreference": priorities.label_preference},
)


# A *local rule* reads nothing but one node with its pods, and the pod itself without its name, UID and labels. So its result holds for
# every pod that is equal apart from these, until the node changes (`RuleResults`).
LOCAL_RULES: Final = frozenset(
    {
        "PodFitsPorts", "PodFitsHostPorts", "PodFitsResources", "NoDiskConflict", "MatchNodeSelector", "HostName",
        "labelsPresence", "LeastRequestedPriority", "BalancedResourceAllocation", "EqualPriority",
        "labelPreference", "CheckNodeUnschedulable", "NodeAffinity", "NodePorts", "NodeResourcesFit",
        "PodToleratesNodeTaints",
    }
)  # fmt: skip


NODES: Final = frozenset({"nodes"})
PODS: Final = NODES | {"pods"}
SERVICES: Final = PODS | {"services"}
CONTROLLERS: Final = frozenset({"replicationcontrollers", "replicasets", "statefulsets"})
NAMESPACES: Final = frozenset({"namespaces"})
ALL_KINDS: Final = SERVICES | CONTROLLERS | NAMESPACES
_NOTHING: Final = frozenset[str]()
_LONGHORN: Final = "Longhorn"
_FINISHED: Final = "pod status.phase"


class RuleInputs(Struct, frozen=True):
    """What a rule reads."""

    kinds: frozenset[str]  # the kinds of objects, by their plural names; not those of Longhorn's rules
    fields: tuple[str, ...] = ()  # the fields, each with its kind


# A rule that has no entry below: that of a plugin.
PLUGIN_INPUTS: Final = RuleInputs(SERVICES, ("nodes, pods and services",))
_LONGHORN_INPUTS: Final = RuleInputs(_NOTHING, ("Longhorn's objects", "the pod's claims and their volumes"))
_REQUESTS: Final = ("pod spec.containers[].resources", _FINISHED)
_SERVICE: Final = ("service spec.selector", "pod metadata.labels")
# fmt: off
_INPUTS: Final[Mapping[str, RuleInputs]] = {
    "EqualPriority": RuleInputs(_NOTHING),
    "HostName": RuleInputs(_NOTHING, ("pod spec.nodeName",)),
    "MatchNodeSelector": RuleInputs(NODES, ("pod spec.nodeSelector", "node metadata.labels")),
    "labelsPresence": RuleInputs(NODES, ("node metadata.labels",)),
    "labelPreference": RuleInputs(NODES, ("node metadata.labels",)),
    "PodFitsPorts": RuleInputs(PODS, ("pod spec.containers[].ports[].hostPort", "pod spec.hostNetwork", _FINISHED)),
    "PodFitsResources": RuleInputs(PODS, (*_REQUESTS, "node status.capacity")),
    "NoDiskConflict": RuleInputs(PODS, ("pod spec.volumes[].gcePersistentDisk", "pod spec.volumes[].awsElasticBlockStore", _FINISHED)),
    "LeastRequestedPriority": RuleInputs(PODS, (*_REQUESTS, "node status.capacity")),
    "BalancedResourceAllocation": RuleInputs(PODS, (*_REQUESTS, "node status.capacity")),
    "NodeAffinity": RuleInputs(
        NODES, ("pod spec.nodeSelector", "pod spec.affinity.nodeAffinity", "node metadata.labels", "node metadata.name")),
    "NodePorts": RuleInputs(
        PODS, ("pod spec.containers[].ports[]", "pod spec.initContainers[].ports[]", "pod spec.hostNetwork", _FINISHED)),
    "NodeResourcesFit": RuleInputs(
        PODS, ("pod spec.containers[].resources", "pod spec.initContainers[].resources", "pod spec.resources", "pod spec.overhead",
               _FINISHED, "node status.allocatable")),
    "PodToleratesNodeTaints": RuleInputs(NODES, ("pod spec.tolerations", "node spec.taints")),
    "CheckNodeUnschedulable": RuleInputs(NODES, ("pod spec.tolerations", "node spec.unschedulable")),
    "MatchInterPodAffinity": RuleInputs(
        PODS | NAMESPACES, ("pod spec.affinity.podAffinity", "pod spec.affinity.podAntiAffinity", "pod metadata.labels", _FINISHED,
                            "node metadata.labels", "namespace metadata.labels")),
    "EvenPodsSpread": RuleInputs(
        PODS, ("pod spec.topologySpreadConstraints", "pod spec.nodeSelector", "pod spec.affinity.nodeAffinity", "pod spec.tolerations",
               "pod metadata.labels", "pod metadata.deletionTimestamp", _FINISHED, "node metadata.labels", "node spec.taints")),
    "serviceAffinity": RuleInputs(
        SERVICES, (*_SERVICE, "pod spec.nodeSelector", "node metadata.labels", "node spec.unschedulable")),
    "serviceAntiAffinity": RuleInputs(SERVICES, (*_SERVICE, "node metadata.labels")),
    "ServiceSpreadingPriority": RuleInputs(SERVICES, _SERVICE),
    "SelectorSpreadPriority": RuleInputs(
        SERVICES | CONTROLLERS,
        (*_SERVICE, "replicationcontroller spec.selector", "replicaset spec.selector", "statefulset spec.selector")),
}
# fmt: on
_ALIASES: Final = {"PodFitsHostPorts": "PodFitsPorts"}


def is_longhorn_rule(rule: str) -> bool:
    return rule.startswith(_LONGHORN)


def rule_inputs(rule: str) -> RuleInputs:
    if is_longhorn_rule(rule):
        return _LONGHORN_INPUTS
    return _INPUTS.get(_ALIASES.get(rule, rule), PLUGIN_INPUTS)


# They are the names of the policy files of Kubernetes 1.2 to 1.22, and of the plugins that followed them. Sources:
# pkg/scheduler/algorithmprovider and pkg/scheduler/framework/plugins/legacy_registry.go.
_NO_RULE: Final = "no rule here does that; remove it, or let kube-scheduler schedule and use `serve --policy`"
_VOLUMES: Final = (
    "no rule reads cloud volumes' limits and zones; remove it, and use LonghornVolumeFit for Longhorn's volumes"
)
_CONDITIONS: Final = (
    "nodes that are not ready are always left out; the node's other conditions are taints: use PodToleratesNodeTaints"
)

_VOLUME_PREDICATES: Final = (
    "NoVolumeZoneConflict", "NoVolumeNodeConflict", "CheckVolumeBinding", "MaxEBSVolumeCount", "MaxGCEPDVolumeCount",
    "MaxAzureDiskVolumeCount", "MaxCinderVolumeCount", "MaxCSIVolumeCountPred", "VolumeBinding",
    "VolumeRestrictions", "VolumeZone", "NodeVolumeLimits", "EBSLimits", "GCEPDLimits", "AzureDiskLimits",
)  # fmt: skip
_OTHER_PRIORITIES: Final = (
    "MostRequestedPriority", "NodeResourcesMostAllocated", "RequestedToCapacityRatioPriority",
    "RequestedToCapacityRatio", "NodeAffinityPriority", "TaintTolerationPriority", "InterPodAffinityPriority",
    "EvenPodsSpreadPriority", "NodePreferAvoidPodsPriority", "ImageLocalityPriority", "ImageLocality",
    "ResourceLimitsPriority",
)  # fmt: skip
PREDICATE_ADVICE: Final[Mapping[str, str]] = {
    "GeneralPredicates": "use PodFitsResources, PodFitsHostPorts, MatchNodeSelector and HostName, or today's NodeResourcesFit, "
    "NodePorts and NodeAffinity",
    "CheckServiceAffinity": 'use a name of your own with the argument {"serviceAffinity": {"labels": [...]}}',
    "ServiceAffinity": 'use a name of your own with the argument {"serviceAffinity": {"labels": [...]}}',
    "CheckNodeLabelPresence": 'use a name of your own with the argument {"labelsPresence": {"labels": [...], "presence": true}}',
    "NodeLabel": 'use a name of your own with the argument {"labelsPresence": {"labels": [...], "presence": true}}',
    "PodToleratesNodeNoExecuteTaints": "use PodToleratesNodeTaints",
    "TaintToleration": "use PodToleratesNodeTaints",
    "NodeUnschedulable": "use CheckNodeUnschedulable",
    "InterPodAffinity": "use MatchInterPodAffinity",
    "PodTopologySpread": "use EvenPodsSpread",
    "NodeName": "use HostName",
    "CheckNodeCondition": _CONDITIONS,
    "CheckNodeMemoryPressure": _CONDITIONS,
    "CheckNodeDiskPressure": _CONDITIONS,
    "CheckNodePIDPressure": _CONDITIONS,
    **dict.fromkeys(_VOLUME_PREDICATES, _VOLUMES),
    "DynamicResources": _NO_RULE,
}
PRIORITY_ADVICE: Final[Mapping[str, str]] = {
    "NodeLabelPriority": 'use a name of your own with the argument {"labelPreference": {"label": ..., "presence": true}}',
    "ServiceAntiAffinityPriority": 'use a name of your own with the argument {"serviceAntiAffinity": {"label": ...}}',
    "SelectorSpread": "use SelectorSpreadPriority",
    "NodeResourcesLeastAllocated": "use LeastRequestedPriority",
    "NodeResourcesBalancedAllocation": "use BalancedResourceAllocation",
    **dict.fromkeys(_OTHER_PRIORITIES, _NO_RULE),
}
