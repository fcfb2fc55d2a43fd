"""Every rule by the name a policy calls it: the one table that a new predicate or priority is added to.

A static rule is named in the policy; a configurable one is given a name of the administrator's and told by its argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from scheduler_core.generic import longhorn_rules as longhorn
from scheduler_core.generic import predicates, priorities
from scheduler_core.generic.predicates import Predicate
from scheduler_core.generic.priorities import Priority

_Function = TypeVar("_Function")


@dataclass(frozen=True, slots=True)
class Rules(Generic[_Function]):
    """Predicates or priorities: the static ones by name, the configurable ones by the key of their argument."""

    what: str
    static: Mapping[str, _Function]
    configurable: Mapping[str, _Function]

    def __getitem__(self, rule: str) -> _Function:
        """The function of a rule of either sort; their names never meet, because a static one begins with a capital."""
        return self.static[rule] if rule in self.static else self.configurable[rule]


PREDICATES: Final[Rules[Predicate]] = Rules(
    "predicate",
    {
        "PodFitsPorts": predicates.pod_fits_ports,
        "PodFitsResources": predicates.pod_fits_resources,
        "NoDiskConflict": predicates.no_disk_conflict,
        "MatchNodeSelector": predicates.match_node_selector,
        "HostName": predicates.host_name,
        "LonghornVolumeFit": longhorn.volume_fit,
    },
    {"serviceAffinity": predicates.service_affinity, "labelsPresence": predicates.labels_presence},
)
PRIORITIES: Final[Rules[Priority]] = Rules(
    "priority",
    {
        "LeastRequestedPriority": priorities.least_requested,
        "BalancedResourceAllocation": priorities.balanced_resource_allocation,
        "ServiceSpreadingPriority": priorities.service_spreading,
        "EqualPriority": priorities.equal,
        "LonghornDataLocality": longhorn.data_locality,
        "LonghornOrderSafe": longhorn.order_safe,
        "LonghornBalancedDisks": longhorn.balanced_disks,
        "LonghornLeastFragmentation": longhorn.least_fragmentation,
    },
    {"serviceAntiAffinity": priorities.service_anti_affinity, "labelPreference": priorities.label_preference},
)
