"""The nodes that kube-scheduler's own plugins refuse before it calls the extender. The plugins are those of Kubernetes
1.36 that read nodes, pods, claims and bound PersistentVolumes. Pods that are only nominated to a node do not count, and
the topology of volumes that do not exist yet is not compared.

Data flow: a pod's claims → `PodClaims`: why they refuse every node, or the node affinity of their volumes → the
plugins, node by node → the first refusal of each node.
"""

from collections.abc import Mapping, Sequence

from scheduler_core.cluster.view import default_class
from scheduler_core.generic import cluster_state, scheduler
from scheduler_core.generic.policy import Policy, PolicyPredicate
from scheduler_core.model import constraints, kube
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import Struct, replace

RESOURCES_PLUGIN = "NodeResourcesFit"
VOLUME_PLUGIN = "VolumeBinding"
RESTRICTIONS_PLUGIN = "VolumeRestrictions"
VOLUME_AFFINITY = "volume node affinity does not match"
READ_WRITE_ONCE_POD = "ReadWriteOncePod"
_UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
_IN_USE = "a pod uses the claim, whose access mode is ReadWriteOncePod"
# The predicate that decides as each plugin does, in kube-scheduler's order.
PLUGIN_RULES = {
    "NodeUnschedulable": "CheckNodeUnschedulable",
    "TaintToleration": "PodToleratesNodeTaints",
    "NodeAffinity": "NodeAffinity",
    "NodePorts": "NodePorts",
    RESOURCES_PLUGIN: "NodeResourcesFit",
    RESTRICTIONS_PLUGIN: "NoDiskConflict",
    "PodTopologySpread": "EvenPodsSpread",
    "InterPodAffinity": "MatchInterPodAffinity",
}

VolumeAffinity = tuple[constraints.NodeSelectorTerm, ...]
"""The terms of a PersistentVolume's required node affinity, of which one must match."""


class PluginRefusal(Struct, frozen=True):
    """Why kube-scheduler refuses a node."""

    plugin: str  # the name of the first plugin that refuses the node
    text: str  # its reason


class PodClaims(Struct, frozen=True):
    """What kube-scheduler's filters read of a pod's claims."""

    affinities: tuple[VolumeAffinity, ...] = ()  # of the PersistentVolumes that the claims are bound to
    refusal: PluginRefusal | None = None  # a reason for which every node is refused, or None


def pod_claims(
    pod: kube.Pod, snapshot: Snapshot, affinities: Mapping[str, VolumeAffinity], *, provisioned: bool = False
) -> PodClaims:
    """Returns what decides about a pod's claims (VolumeBinding and VolumeRestrictions, PreFilter and Filter);
    `affinities` are those of all PersistentVolumes, by name. With `provisioned`, claims of a class that does not wait
    for a pod count as provisioned, as they soon will be.
    """
    terms: list[VolumeAffinity] = []
    for mount in pod.volumes:
        claim = snapshot.claims.get((pod.namespace, mount.claim))
        refusal = _claim_refusal(pod, mount, claim, snapshot, provisioned=provisioned)
        if refusal is not None:
            return PodClaims(refusal=refusal)
        if claim is not None and claim.spec.volume_name in affinities:
            terms.append(affinities[claim.spec.volume_name])
    return PodClaims(tuple(terms))


def _claim_refusal(
    pod: kube.Pod, mount: kube.ClaimVolume, claim: kube.Claim | None, snapshot: Snapshot, *, provisioned: bool
) -> PluginRefusal | None:
    if claim is None:
        # It is created with the pod. A class that does not wait then binds it, and the pod waits for that only.
        problem = "" if mount.template is None else _class_problem(mount.template, snapshot)
        return PluginRefusal(VOLUME_PLUGIN, f"{_UNBOUND}: {mount.claim}: {problem}") if problem else None
    if claim.lost:
        text = f'persistentvolumeclaim "{claim.name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
        return PluginRefusal(VOLUME_PLUGIN, text)
    if claim.deleting:
        return PluginRefusal(VOLUME_PLUGIN, f'persistentvolumeclaim "{claim.name}" is being deleted')
    if not claim.spec.volume_name:
        problem = _class_problem(claim.spec, snapshot)
        named = claim.spec.storage_class
        storage_class = default_class(snapshot) if named is None else snapshot.storage_classes.get(named)
        # Whether it is bound when its pod is scheduled (volume.IsDelayBindingMode).
        delayed = storage_class is not None and storage_class.waits_for_consumer
        if not problem and not provisioned and not delayed:
            problem = "it waits until the claim is provisioned"
        if problem:
            return PluginRefusal(VOLUME_PLUGIN, f"{_UNBOUND}: {claim.name}: {problem}")
    if READ_WRITE_ONCE_POD not in claim.spec.access_modes:
        return None
    # A pod that has a node uses the claim (NodeInfo.PVCRefCounts).
    used = any(
        other.node_name and not other.finished and other.key != pod.key
        for other in snapshot.pods.values()
        if other.namespace == claim.namespace and any(each.claim == claim.name for each in other.volumes)
    )
    return PluginRefusal(RESTRICTIONS_PLUGIN, _IN_USE) if used else None


def _class_problem(spec: kube.ClaimSpec, snapshot: Snapshot) -> str:
    if spec.storage_class is None:
        return "" if default_class(snapshot) is not None else "it names no StorageClass, and there is no default"
    # Without a class it waits for a PersistentVolume that is made by hand.
    if not spec.storage_class or spec.storage_class in snapshot.storage_classes:
        return ""
    return f"StorageClass {spec.storage_class} does not exist"


def compares_resources(cluster: cluster_state.GenericClusterState) -> bool:
    """Whether some node of the source says what is allocatable; otherwise resources cannot be compared."""
    return any(node_info.node.allocatable for node_info in cluster.nodes.values())


def kube_scheduler_refusals(
    pod: kube.Pod, names: Sequence[str], cluster: cluster_state.GenericClusterState, claims: PodClaims
) -> dict[str, PluginRefusal]:
    """Returns the nodes that kube-scheduler's own plugins refuse, each with its first refusal. Nodes that the source
    does not list are not judged.
    """
    # A pod that has a node is judged as if it were to be placed again.
    waiting = replace(pod, node_name="")
    others = cluster.without_pod(pod.namespaced_name)
    listed = [name for name in names if name in others.nodes]
    if claims.refusal is not None:
        return dict.fromkeys(listed, claims.refusal)
    affinities = claims.affinities
    compares = compares_resources(cluster)
    predicates = [
        PolicyPredicate(plugin, rule) for plugin, rule in PLUGIN_RULES.items() if compares or plugin != RESOURCES_PLUGIN
    ]
    refused = scheduler.policy_refusals(waiting, listed, others, Policy(tuple(predicates)))
    refusals: dict[str, PluginRefusal] = {}
    for name in listed if affinities else refused:
        if name in refused:
            plugin, _, text = refused[name].text.partition(": ")
            refusals[name] = PluginRefusal(plugin, text)
        elif not all(any(term.matches(name, others.nodes[name].node.labels) for term in terms) for terms in affinities):
            refusals[name] = PluginRefusal(VOLUME_PLUGIN, VOLUME_AFFINITY)
    return refusals
