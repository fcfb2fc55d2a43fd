"""Changes that take something away or alter it: drain and return, lose, set, expand; and whether a drain can finish."""

from collections.abc import Collection

from scheduler_core.longhorn import node_controller, replenish, settings, volume_validation
from scheduler_core.longhorn.cluster import DEGRADED
from scheduler_core.model import kube, longhorn
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import BEST_EFFORT
from scheduler_core.model.snapshot import NamespacedName
from scheduler_core.predict.pod_decision import detach_volumes
from scheduler_core.predict.predicted_cluster import (
    ChangesByObject,
    PredictedCluster,
    WhatIfError,
    list_replica,
    with_conditions,
    with_disk,
)
from scheduler_core.predict.predicted_replicas import fail_replicas, replicas_on_node
from scheduler_core.predict.prediction_input import ExpansionOutcome, Situation, live_pods
from scheduler_core.structs import replace
from scheduler_core.volumes.existing_replicas import is_healthy

ALWAYS_ALLOW = "always-allow"
ALLOW_STOPPED = "allow-if-replica-is-stopped"
BLOCK_FOR_EVICTION = "block-for-eviction"
EVICT_LAST_REPLICA = "block-for-eviction-if-contains-last-replica"
# With these policies, a node may be drained although it holds a last replica, or the replica is moved first.
_LAST_REPLICA_MAY_GO = frozenset({ALWAYS_ALLOW, ALLOW_STOPPED, BLOCK_FOR_EVICTION, EVICT_LAST_REPLICA})
# Who refuses a claim's update at the API server.
_RESIZE_PLUGIN = "PersistentVolumeClaimResize"
_LONGHORN_WEBHOOK = "validator.longhorn.io"


def drain(situation: Situation, nodes: tuple[str, ...]) -> Situation:
    """`kubectl drain --ignore-daemonsets --delete-emptydir-data` of nodes: cordons them and evicts their pods, and the
    replicas that the node-drain-policy evicts. Raises a WhatIfError if there is no such node.
    """
    cluster = situation.cluster
    for name in nodes:
        check_node(cluster, name)
        kube_node = cluster.snapshot.nodes.get(name) or kube.Node(name)
        cluster = cluster.update({("nodes", name): replace(kube_node, unschedulable=True)})
        if name in cluster.scheduling.nodes:
            node = replace(cluster.scheduling.nodes[name].node, unschedulable=True)
            cluster = cluster.with_scheduling(cluster.scheduling.with_node(node))
        longhorn_node = cluster.snapshot.longhorn_nodes.get(name)
        if longhorn_node is not None:
            condition = node_controller.schedulable_condition(cluster.state.view.cluster, longhorn_node)
            others = tuple(entry for entry in longhorn_node.conditions if entry.type != condition.type)
            cordoned = replace(longhorn_node, conditions=(*others, condition))
            cluster = cluster.update({("longhorn_nodes", name): cordoned})
    on_nodes, waiting = live_pods(cluster, nodes)
    cluster, evicted = _request_evictions(cluster, nodes)
    drained = tuple(dict.fromkeys((*situation.drained, *nodes)))
    evicted |= situation.evicted
    unmanaged = (*situation.unmanaged, *((pod.key, pod.node_name) for pod in on_nodes if not pod.owner))
    changed = replace(
        situation, cluster=cluster, drained=drained, evicted=evicted, unmanaged=unmanaged, waiting=waiting
    )
    return changed.evict(on_nodes)


def check_node(cluster: PredictedCluster, name: str) -> None:
    if name not in cluster.snapshot.nodes and name not in cluster.snapshot.longhorn_nodes:
        raise WhatIfError(f"there is no node {name}")


def _request_evictions(cluster: PredictedCluster, nodes: Collection[str]) -> tuple[PredictedCluster, frozenset[str]]:
    # As syncReplicaEvictionRequested; also returns the volumes of the evicted replicas.
    policy = cluster.state.view.settings.node_drain_policy
    if policy not in (BLOCK_FOR_EVICTION, EVICT_LAST_REPLICA):
        return cluster, frozenset()
    changes: ChangesByObject = {}
    for name in nodes:
        for replica in replicas_on_node(cluster, name):
            others = cluster.state.view.replicas_of(replica.volume)
            protected = any(is_healthy(other) and other.node_id not in nodes for other in others)
            if policy == BLOCK_FOR_EVICTION or not protected:
                changes["replicas", replica.name] = replace(replica, eviction_requested=True)
    volumes = {replica.volume for replica in changes.values() if isinstance(replica, longhorn.Replica)}
    return cluster.update(changes), frozenset(volumes)


def return_node(before: PredictedCluster, after: PredictedCluster, name: str) -> PredictedCluster:
    """Returns the cluster with a drained node as it was before, and with the replicas that stayed on it."""
    changes: ChangesByObject = {("nodes", name): before.snapshot.nodes.get(name)}
    node = after.snapshot.longhorn_nodes.get(name)
    if node is not None:
        changes["longhorn_nodes", name] = replace(node, conditions=before.snapshot.longhorn_nodes[name].conditions)
    restored: set[str] = set()
    for replica in replicas_on_node(after, name):
        earlier = before.snapshot.replicas.get(replica.name, replica)
        if earlier is replica or not earlier.failed_at:
            requested = earlier.eviction_requested
            changes["replicas", replica.name] = replace(
                replica, failed_at="", current_state=earlier.current_state, eviction_requested=requested
            )
            restored.add(replica.volume)
    cluster = after.update(changes)
    if name in before.scheduling.nodes:
        scheduling = cluster.scheduling.with_node(before.scheduling.nodes[name].node)
        cluster = cluster.with_scheduling(scheduling)
    changes = {}
    for volume_name in restored:
        volume = cluster.snapshot.volumes.get(volume_name)
        replicas = cluster.state.view.replicas_of(volume_name)
        if volume is None or volume.robustness != DEGRADED:
            continue
        # It has all of its replicas again.
        if sum(replenish.is_usable(volume, replica) for replica in replicas) >= volume.number_of_replicas:
            earlier_volume = before.snapshot.volumes.get(volume_name)
            robustness = earlier_volume.robustness if earlier_volume is not None else DEGRADED
            healthy = robustness == DEGRADED or bool(volume.node_id)
            changes["volumes", volume_name] = replace(
                volume, robustness=replenish.HEALTHY if healthy else robustness, last_degraded_at=""
            )
    return cluster.update(changes)


def lose_nodes(situation: Situation, nodes: tuple[str, ...]) -> Situation:
    """Nodes are gone for good, with their disks: fails their replicas; controllers create their pods again. Raises a
    WhatIfError if there is no such node.
    """
    for name in nodes:
        check_node(situation.cluster, name)
    on_nodes, waiting = live_pods(situation.cluster, nodes)
    managed = situation.evict(on_nodes, lost=True)
    cluster = managed.cluster
    for pod in on_nodes:
        # The others wait again.
        if cluster.snapshot.pods[pod.namespaced_name].node_name:
            cluster = detach_volumes(cluster, pod).without_pod(pod.namespaced_name)
    failed: list[longhorn.Replica] = []
    for name in nodes:
        failed += replicas_on_node(cluster, name)
        cluster = cluster.update({("nodes", name): None}).with_scheduling(cluster.scheduling.without_node(name))
        node = cluster.snapshot.longhorn_nodes.get(name)
        if node is not None:
            gone = node_controller.sync_node_remotely(cluster.state.view.cluster, node, ())
            cluster = cluster.update({("longhorn_nodes", name): gone})
    return replace(
        managed,
        cluster=fail_replicas(cluster, failed),
        lost=situation.lost | set(nodes),
        gone_pods=(*situation.gone_pods, *(pod.namespaced_name for pod in on_nodes if not pod.owner)),
        degraded=situation.degraded | {replica.volume for replica in failed},
        waiting=waiting,
    )


def lose_zone(situation: Situation, zone: str) -> Situation:
    """All nodes of a zone, by Kubernetes' label or Longhorn's status, are gone. Raises a WhatIfError if there is none."""
    snapshot = situation.cluster.snapshot
    by_label = {name for name, node in snapshot.nodes.items() if node.labels.get(node_controller.ZONE_LABEL) == zone}
    by_status = {name for name, node in snapshot.longhorn_nodes.items() if node.zone == zone}
    if not by_label | by_status:
        raise WhatIfError(f"no node is in the zone {zone}")
    return lose_nodes(situation, tuple(sorted(by_label | by_status)))


def lose_disk(situation: Situation, node_name: str, disk_name: str) -> Situation:
    """A disk is gone with its replicas, which fail; its node stays."""
    cluster = situation.cluster
    node = cluster.snapshot.longhorn_nodes.get(node_name)
    disk = next((entry for entry in node.disks if entry.name == disk_name), None) if node is not None else None
    if node is None or disk is None:
        raise WhatIfError(f"there is no Longhorn disk {node_name}/{disk_name}")
    gone = tuple(Condition(kind, "False", "NoDiskInfo", "the disk is lost") for kind in ("Ready", "Schedulable"))
    lost = replace(with_conditions(disk, gone), storage_maximum=0, storage_available=0)
    failed = [replica for replica in replicas_on_node(cluster, node_name) if replica.disk_id == disk.uuid]
    cluster = cluster.update({("longhorn_nodes", node.name): with_disk(node, lost)})
    volumes = {replica.volume for replica in failed}
    return replace(situation, cluster=fail_replicas(cluster, failed), degraded=situation.degraded | volumes)


def set_setting(situation: Situation, name: str, value: str) -> Situation:
    """A Longhorn setting has another value. Raises a SettingError if Longhorn refuses the value; a WhatIfError if no
    decision reads the setting.
    """
    try:
        settings.check_new_value(name, value)
    except KeyError:
        raise WhatIfError(f"{name} is no Longhorn setting that decisions read") from None
    return replace(situation, cluster=situation.cluster.update({("settings", name): value}))


def expand(situation: Situation, key: NamespacedName, size: int) -> Situation:
    """A claim requests another size, in bytes: grows its volume if the API server admits the claim's update, that is, its
    StorageClass and Longhorn let it.
    """
    cluster = situation.cluster
    claim = cluster.snapshot.claims.get(key)
    name = "/".join(key)
    if claim is None:
        raise WhatIfError(f"there is no PersistentVolumeClaim {name}")
    volume = cluster.volume_of_claim(claim)
    if volume is None:
        raise WhatIfError(f"PersistentVolumeClaim {name} is bound to no Longhorn volume")
    if size < volume.size:
        raise WhatIfError(f"PersistentVolumeClaim {name}: a volume cannot shrink")
    refused_by, refusals = _expansion_refusals(cluster, claim, volume, size)
    if not refusals:
        cluster = _grow(cluster, claim, volume, size)
    entry = ExpansionOutcome(name, size, not refusals, refusals, refused_by)
    return replace(situation, cluster=cluster, expansions=(*situation.expansions, entry))


def _expansion_refusals(
    cluster: PredictedCluster, claim: kube.Claim, volume: longhorn.Volume, size: int
) -> tuple[str, tuple[str, ...]]:
    """Returns which admission refuses a larger claim, "" if none does, and why."""
    # A class that the source lacks refuses none.
    storage_class = cluster.snapshot.storage_classes.get(claim.spec.storage_class or "")
    if size > volume.size and storage_class is not None and not storage_class.allows_expansion:
        return _RESIZE_PLUGIN, (f"StorageClass {storage_class.name} does not set allowVolumeExpansion",)
    view = cluster.state.view
    # As Longhorn's webhook, which compares the requests.
    before = replace(volume, size=claim.spec.request or volume.size)
    answers = volume_validation.check_expansion(view.cluster, before, view.replicas_of(volume.name), size)
    nodes = view.cluster.nodes.values()
    places = {disk.uuid: f"{node.name}/{disk.name}" for node in nodes for disk in node.disks if disk.uuid}
    refusals = tuple(
        sorted(
            f"{answer.reason} ({places.get(answer.disk, answer.disk)}){f': {answer.detail}' if answer.detail else ''}"
            for answer in answers
            if answer.reason
        )
    )
    return (_LONGHORN_WEBHOOK if refusals else ""), refusals


def _grow(cluster: PredictedCluster, claim: kube.Claim, volume: longhorn.Volume, size: int) -> PredictedCluster:
    for replica in cluster.state.view.replicas_of(volume.name):
        changes: ChangesByObject = {("replicas", replica.name): replace(replica, size=size)}
        place = cluster.disk_of(replica)
        if place is not None:
            changes["longhorn_nodes", place[0].name] = list_replica(cluster, *place, replica.name, size)
        cluster = cluster.update(changes)
    requested = replace(claim, spec=replace(claim.spec, request=size))
    return cluster.update(
        {("volumes", volume.name): replace(volume, size=size), ("claims", (claim.namespace, claim.name)): requested}
    )


def drain_blockers(cluster: PredictedCluster, node: str, gone: Collection[str]) -> list[str]:
    """Returns why Longhorn's budget holds up a node's drain, empty if it does not. `gone` are nodes whose instance
    manager does not run any more.
    """
    # controller/instance_manager_controller.go:canDeleteInstanceManagerPDB: Longhorn keeps a PodDisruptionBudget on a node's instance
    # manager until it may go. The budgets of other pods are not read.
    attached = sorted(
        volume.name for volume in cluster.snapshot.volumes.values() if node in (volume.node_id, volume.current_node_id)
    )
    if attached:
        return [f"volume {name} is attached to {node}" for name in attached]
    policy = cluster.state.view.settings.node_drain_policy
    replicas = replicas_on_node(cluster, node)
    if policy == ALWAYS_ALLOW:
        return []
    if policy == BLOCK_FOR_EVICTION:
        return [f"{node} holds a replica of volume {replica.volume}" for replica in replicas]
    return [
        f"{node} holds the last healthy replica of volume {replica.volume}"
        for replica in replicas
        if is_last_replica(cluster, replica, gone)
        and (
            policy != ALLOW_STOPPED
            or ((volume := cluster.snapshot.volumes.get(replica.volume)) is not None and volume.node_id)
        )
    ]


def is_last_replica(cluster: PredictedCluster, replica: longhorn.Replica, gone: Collection[str]) -> bool:
    """Whether no other node has a healthy replica; one that never had data does not count."""
    if not replica.healthy_at and not replica.failed_at:
        return False
    others = (other for other in cluster.state.view.replicas_of(replica.volume) if other.node_id != replica.node_id)
    return not any(is_healthy(other) and other.node_id not in gone for other in others)


def permanent_blockers(cluster: PredictedCluster, node: str) -> list[str]:
    """Returns what holds up a node's drain whatever happens to other nodes.

    A pod without a controller stays on its node. So does the last healthy replica of a volume if nothing rebuilds or
    moves it: the volume has only one and need not follow its pod, or no pod attaches it; and neither the
    node-drain-policy nor an eviction moves it.
    """
    pods = [f"pod {pod.key} has no controller" for pod in live_pods(cluster, (node,))[0] if not pod.owner]
    if cluster.state.view.settings.node_drain_policy in _LAST_REPLICA_MAY_GO:
        return pods
    return pods + [
        f"{node} holds the last healthy replica of volume {replica.volume}"
        for replica in replicas_on_node(cluster, node)
        if _stays(cluster, replica)
    ]


def _stays(cluster: PredictedCluster, replica: longhorn.Replica) -> bool:
    """Whether a replica is and stays its volume's last healthy one, whatever other node is drained."""
    volume = cluster.snapshot.volumes.get(replica.volume)
    if volume is None or not replenish.is_usable(volume, replica) or replica.eviction_requested:
        return False
    alone = volume.number_of_replicas <= 1 and volume.data_locality != BEST_EFFORT
    view = cluster.state.view
    names = view.indexes.volumes_by_handle.get(volume.name) or ()
    claims = [cluster.snapshot.persistent_volumes[name].claim for name in names]
    users = (pod for claim in claims if claim is not None for pod in view.pods_of(claim[0], claim[1]))
    unused = not volume.node_id and not any(pod.live for pod in users)
    return (alone or unused) and is_last_replica(cluster, replica, ())
