"""Table of every rule by its name in a policy; a new predicate or priority is added here.

A policy names a static rule. A configurable rule has a name that the administrator chooses; its argument says which rule
it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from scheduler_core.generic import (
    current_predicates,
    longhorn_rules,
    predicates,
    priorities,
    topology_predicates,
)
from scheduler_core.generic.predicates import Predicate
from scheduler_core.generic.priorities import Priority

_Function = TypeVar("_Function")


@dataclass(frozen=True, slots=True)
class RuleRegistry(Generic[_Function]):
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
        "NodeAffinity": current_predicates.node_affinity,
        "NodePorts": current_predicates.node_ports,
        "NodeResourcesFit": current_predicates.node_resources_fit,
        "PodToleratesNodeTaints": current_predicates.pod_tolerates_node_taints,
        "CheckNodeUnschedulable": current_predicates.check_node_unschedulable,
        "MatchInterPodAffinity": topology_predicates.match_inter_pod_affinity,
        "EvenPodsSpread": topology_predicates.even_pods_spread,
        "LonghornVolumeFit": longhorn_rules.volume_fit,
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
        "LonghornDataLocality": longhorn_rules.data_locality,
        "LonghornOrderSafe": longhorn_rules.order_safe,
        "LonghornStaleSafe": longhorn_rules.stale_safe,
        "LonghornBalancedDisks": longhorn_rules.balanced_disks,
        "LonghornLeastFragmentation": longhorn_rules.least_fragmentation,
    },
    {"serviceAntiAffinity": priorities.service_anti_affinity, "labelPreference": priorities.label_preference},
)
