"""Names of later Kubernetes rules that this scheduler does not have, each with what to use in its place.

They are the names of the policy files of Kubernetes 1.2 to 1.22, and of the plugins that followed them. Sources:
pkg/scheduler/algorithmprovider and pkg/scheduler/framework/plugins/legacy_registry.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NO_RULE: Final = "no rule here does that; remove it, or let kube-scheduler schedule and use `serve --policy`"
_VOLUMES: Final = (
    "no rule reads cloud volumes' limits and zones; remove it, and use LonghornVolumeFit for Longhorn's volumes"
)
_CONDITIONS: Final = (
    "nodes that are not ready are always left out; the node's other conditions are taints: use PodToleratesNodeTaints"
)

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
    **dict.fromkeys(
        (
            "NoVolumeZoneConflict",
            "NoVolumeNodeConflict",
            "CheckVolumeBinding",
            "MaxEBSVolumeCount",
            "MaxGCEPDVolumeCount",
            "MaxAzureDiskVolumeCount",
            "MaxCinderVolumeCount",
            "MaxCSIVolumeCountPred",
            "VolumeBinding",
            "VolumeRestrictions",
            "VolumeZone",
            "NodeVolumeLimits",
            "EBSLimits",
            "GCEPDLimits",
            "AzureDiskLimits",
        ),
        _VOLUMES,
    ),
    "DynamicResources": _NO_RULE,
}
PRIORITY_ADVICE: Final[Mapping[str, str]] = {
    "NodeLabelPriority": 'use a name of your own with the argument {"labelPreference": {"label": ..., "presence": true}}',
    "ServiceAntiAffinityPriority": 'use a name of your own with the argument {"serviceAntiAffinity": {"label": ...}}',
    "SelectorSpread": "use SelectorSpreadPriority",
    "NodeResourcesLeastAllocated": "use LeastRequestedPriority",
    "NodeResourcesBalancedAllocation": "use BalancedResourceAllocation",
    **dict.fromkeys(
        (
            "MostRequestedPriority",
            "NodeResourcesMostAllocated",
            "RequestedToCapacityRatioPriority",
            "RequestedToCapacityRatio",
            "NodeAffinityPriority",
            "TaintTolerationPriority",
            "InterPodAffinityPriority",
            "EvenPodsSpreadPriority",
            "NodePreferAvoidPodsPriority",
            "ImageLocalityPriority",
            "ImageLocality",
            "ResourceLimitsPriority",
        ),
        _NO_RULE,
    ),
}
