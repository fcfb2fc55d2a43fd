"""What kube-scheduler filters before it calls the extender.

These are the nodes that its own plugins refuse. The plugins are those of Kubernetes 1.36 that read nodes, pods and
bound PersistentVolumes. Pods that are only nominated to a node do not count. The topology of volumes that do not exist
yet is not compared either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.cooperative import Cooperative
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import Policy, PolicyPredicate
from scheduler_core.generic.policy_filter import policy_refusals
from scheduler_core.model.constraints import NodeSelectorTerm
from scheduler_core.model.generic import Node, Pod

RESOURCES_PLUGIN: Final = "NodeResourcesFit"
VOLUME_PLUGIN: Final = "VolumeBinding"
VOLUME_AFFINITY: Final = "volume node affinity does not match"
# The predicate that decides as each plugin does, in kube-scheduler's order.
PLUGIN_RULES: Final = {
    "NodeUnschedulable": "CheckNodeUnschedulable",
    "TaintToleration": "PodToleratesNodeTaints",
    "NodeAffinity": "NodeAffinity",
    "NodePorts": "NodePorts",
    RESOURCES_PLUGIN: "NodeResourcesFit",
    "VolumeRestrictions": "NoDiskConflict",
    "PodTopologySpread": "EvenPodsSpread",
    "InterPodAffinity": "MatchInterPodAffinity",
}

VolumeAffinity = tuple[NodeSelectorTerm, ...]
"""The terms of a PersistentVolume's required node affinity, of which one must match."""


@dataclass(frozen=True, slots=True)
class PluginRefusal:
    """Why kube-scheduler refuses a node.

    Attributes:
        plugin: the name of the first plugin that refuses the node
        text: its reason
    """

    plugin: str
    text: str


def compares_resources(cluster: GenericClusterState) -> bool:
    """Whether some node of the source says what is allocatable.

    Otherwise resources cannot be compared.
    """
    return any(node_info.node.allocatable for node_info in cluster.nodes.values())


def kube_scheduler_refusals(
    pod: Pod, names: Sequence[str], cluster: GenericClusterState, affinities: Sequence[VolumeAffinity]
) -> Cooperative[dict[str, PluginRefusal]]:
    """Returns the nodes that kube-scheduler's own plugins refuse.

    Each has its first refusal. A pod that has a node is judged as if it were to be placed again. Nodes that the source
    does not list are not judged. `affinities` are those of the PersistentVolumes that the pod's claims are bound to.
    """
    waiting = replace(pod, node_name="")
    others = cluster.without_pod(pod.key)
    listed = [name for name in names if name in others.nodes]
    refused = yield from policy_refusals(waiting, listed, others, _policy(cluster))
    refusals: dict[str, PluginRefusal] = {}
    for name in listed if affinities else refused:
        if name in refused:
            plugin, _, text = refused[name].text.partition(": ")
            refusals[name] = PluginRefusal(plugin, text)
        elif not _admits(affinities, others.nodes[name].node):
            refusals[name] = PluginRefusal(VOLUME_PLUGIN, VOLUME_AFFINITY)
    return refusals


def _policy(cluster: GenericClusterState) -> Policy:
    compares = compares_resources(cluster)
    plugins = [plugin for plugin in PLUGIN_RULES if compares or plugin != RESOURCES_PLUGIN]
    return Policy(tuple(PolicyPredicate(plugin, PLUGIN_RULES[plugin]) for plugin in plugins))


def _admits(affinities: Sequence[VolumeAffinity], node: Node) -> bool:
    """Whether a node matches the node affinity of every volume (volume.CheckNodeAffinity)."""
    return all(any(term.matches(node.name, node.labels) for term in terms) for terms in affinities)
