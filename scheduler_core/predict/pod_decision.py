"""The decision about one pod, as the cluster makes it: kube-scheduler's filters, the extender's, then the choice of a
node that is offered.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from scheduler_core.decide import kube_scheduler_filters, offered_nodes
from scheduler_core.decide.decision import Competing, Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.evaluation.disk_profiles import unready_volume
from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.longhorn.volume_validation import CLONED
from scheduler_core.model import generic, kube, longhorn
from scheduler_core.offers.ledger import Ledger
from scheduler_core.predict.predicted_cluster import ChangesByObject, PredictedCluster
from scheduler_core.predict.predicted_replicas import Choose, choose_first, remove_replica
from scheduler_core.structs import Struct, field, replace
from scheduler_core.volumes.resolve import PodVolume, domain_of_node, volume_of_claim

_NO_NODE = "there is no node"


class PodDecision(Struct, frozen=True):
    """Where a pod goes, or why nowhere."""

    node: str = ""  # "" if no node fits
    # Number of nodes per reason; 0 for a reason that is not about nodes.
    reasons: Counter[str] = field(default_factory=Counter)
    decision: Decision | None = None  # the extender's; None if it was not asked


class PodDecider:
    """The decision of `/filter` about the pods of one order, with caches that live as long as the order."""

    def __init__(self, options: FilterOptions) -> None:
        self._options = options
        self._contention = Contention()
        self._equivalence = EquivalenceCache()
        # There are no offers. One ledger for all decisions: the caches ask its change log what changed since the decision before.
        self._ledger = Ledger()

    def decide(
        self, pod: kube.Pod, cluster: PredictedCluster, choose: Choose, names: Sequence[str] | None = None
    ) -> PodDecision:
        """Returns one of the nodes that pass kube-scheduler's filters and the extender's, at random. The pod is
        decided about on `names`, or on all nodes.
        """
        names = cluster.node_names if names is None else names
        if not names:
            return PodDecision(reasons=Counter({_NO_NODE: 0}))
        claims = cluster.pod_claims(pod)
        refusals = kube_scheduler_filters.kube_scheduler_refusals(pod, names, cluster.scheduling, claims)
        reasons = Counter(refusal.text for refusal in refusals.values())
        admitted = [name for name in names if name not in refusals]
        if not admitted:
            return PodDecision(reasons=reasons)
        try:
            decision = self.filter(pod, admitted, cluster)
        except ResolutionError as error:
            return PodDecision(reasons=Counter({str(error): 0}))
        nodes = decision.fitting_nodes
        if not nodes:
            unready = unready_volume(cluster.state.view, decision.resolution)
            if unready is not None:
                return PodDecision(reasons=Counter({unready.detail: 0}), decision=decision)
            reasons.update(reason.text for reason in decision.reasons)
            return PodDecision(reasons=reasons, decision=decision)
        return PodDecision(nodes[choose(len(nodes))], decision=decision)

    def filter(self, pod: kube.Pod, admitted: Sequence[str], cluster: PredictedCluster) -> Decision:
        """Returns the decision about the nodes that passed kube-scheduler's own filters, as `/filter` answers it, in
        which the demand of pods bound before counts. Raises a ResolutionError if an object the pod names does not exist
        or contradicts it.
        """
        state = cluster.state
        contenders = Competing(state.demand, self._ledger, self._contention, self._equivalence)
        decision = filter_nodes(pod, admitted, state, self._options, contenders)
        _, answered = offered_nodes.make_offer(pod, decision, state.view, Ledger())
        return answered


def bind_pod(cluster: PredictedCluster, pod: kube.Pod, node: str) -> PredictedCluster:
    """Returns the cluster with the pod on its node, for which its unbound claims are to be provisioned."""
    changes: ChangesByObject = {}
    for mount in pod.volumes:
        key = (pod.namespace, mount.claim)
        claim = cluster.snapshot.claims.get(key)
        if claim is None and mount.template is not None:
            owners = (("Pod", pod.name, pod.uid),) if mount.ephemeral else ()
            claim = kube.Claim(*key, mount.template, uid=f"what-if-{pod.namespace}-{mount.claim}", owners=owners)
        if claim is not None and not claim.spec.volume_name:
            changes["claims", key] = replace(claim, selected_node=node)
    bound = replace(pod, node_name=node, unschedulable="", phase="Running")
    return cluster.update(changes).with_pod(bound)


def attach_volumes(cluster: PredictedCluster, pod: kube.Pod, decision: Decision) -> PredictedCluster:
    """Returns the cluster with the pod's claims bound, and its Longhorn volumes attached to its node."""
    node = pod.node_name
    shared = cluster.shared_volume(pod)
    if shared is not None:
        cluster = cluster.update({("volumes", shared.name): _attach(replace(shared, node_id=""), node)})
    matches = {volume.claim: volume.persistent_volume for volume in decision.resolution_on(node).volumes}
    domain = domain_of_node(node, cluster.state.view)
    for mount in pod.volumes:
        claim = cluster.snapshot.claims.get((pod.namespace, mount.claim))
        if claim is None:
            continue
        matched = matches.get(f"{pod.namespace}/{mount.claim}", "")
        resolved = volume_of_claim(claim, cluster.state.view, matched, domain)
        if resolved is not None:
            cluster = cluster.update(_attachment_changes(cluster, claim, resolved, node))
    return cluster


def _attachment_changes(
    cluster: PredictedCluster, claim: kube.Claim, resolved: PodVolume, node: str
) -> ChangesByObject:
    changes: ChangesByObject = {}
    volume = resolved.volume
    if not resolved.bound:
        name = f"pvc-{claim.uid or f'{claim.namespace}-{claim.name}'}"
        # A clone has its data by the time that its pod runs.
        volume = replace(volume, name=name, clone_state=CLONED if volume.data_source else "")
        reference = (claim.namespace, claim.name, claim.uid)
        created = cluster.state.view.cluster.now.isoformat()
        size = volume.whole_size or volume.size
        changes["persistent_volumes", name] = kube.PersistentVolume(name, DRIVER, name, reference, created, size)
    elif resolved.persistent_volume:
        name = resolved.persistent_volume
        reserved = cluster.snapshot.persistent_volumes[name]
        reference = (claim.namespace, claim.name, claim.uid)
        changes["persistent_volumes", name] = replace(reserved, claim=reference, available=None)
    else:
        name = claim.spec.volume_name or cluster.state.view.pre_bound_volume(claim)
    if name != claim.spec.volume_name:
        bound = replace(claim, spec=replace(claim.spec, volume_name=name))
        changes["claims", (claim.namespace, claim.name)] = bound
    changes["volumes", volume.name] = _attach(volume, node)
    return changes


def _attach(volume: longhorn.Volume, node: str) -> longhorn.Volume:
    """Returns the volume attached to a node; a shared one stays where its share-manager is."""
    shared = volume.access_mode == "rwx" and not volume.migratable
    target = (volume.node_id if shared else "") or node
    robustness = "healthy" if volume.robustness in ("", "unknown") else volume.robustness
    return replace(volume, node_id=target, current_node_id=target, state="attached", robustness=robustness)


def detach_volumes(cluster: PredictedCluster, pod: kube.Pod) -> PredictedCluster:
    """Returns the cluster without the attachments of volumes that only this pod uses on its node."""
    changes: ChangesByObject = {}
    shared = cluster.shared_volume(pod)
    if shared is not None:
        changes["volumes", shared.name] = _detach(shared)
    for mount in pod.volumes:
        claim = cluster.snapshot.claims.get((pod.namespace, mount.claim))
        volume = cluster.volume_of_claim(claim) if claim is not None else None
        if claim is None or volume is None:
            continue
        users = cluster.state.view.pods_of(claim.namespace, claim.name)
        if any(user.live and user.node_name and user.name != pod.name for user in users):
            continue
        changes["volumes", volume.name] = _detach(volume)
        for attachment in cluster.state.view.indexes.attachments.get(claim.spec.volume_name) or ():
            changes["volume_attachments", attachment.name] = None
    cluster = cluster.update(changes)
    # The claims of generic ephemeral volumes are deleted with the pod.
    for key in [(pod.namespace, mount.claim) for mount in pod.volumes if mount.ephemeral]:
        claim = cluster.snapshot.claims.get(key)
        if claim is None:
            continue
        deleted: ChangesByObject = {("claims", key): None}
        volume = cluster.volume_of_claim(claim)
        if volume is not None:
            for replica in cluster.state.view.replicas_of(volume.name):
                cluster = remove_replica(cluster, replica)
            deleted["persistent_volumes", claim.spec.volume_name] = None
            deleted["volumes", volume.name] = None
        cluster = cluster.update(deleted)
    return cluster


def _detach(volume: longhorn.Volume) -> longhorn.Volume:
    return replace(volume, node_id="", current_node_id="", state="detached")


def take_away(cluster: PredictedCluster, pod: kube.Pod) -> PredictedCluster:
    """Returns the cluster in which the pod waits."""
    waiting = replace(pod, node_name="", nominated_node="", unschedulable="", phase="Pending", deleting=False)
    return detach_volumes(cluster, pod).with_pod(replace(waiting, scheduling=replace(pod.scheduling, ready=True)))


def each_fits(keys: Iterable[generic.PodKey], cluster: PredictedCluster, options: FilterOptions) -> Iterator[bool]:
    """Returns of each pod, for itself, whether it fits on some node."""
    decider = PodDecider(options)
    return (bool(decider.decide(cluster.snapshot.pods[key], cluster, choose_first).node) for key in keys)
