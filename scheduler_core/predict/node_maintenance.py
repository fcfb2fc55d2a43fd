"""One node is drained, maintained and uncordoned.

What became of its pods and replicas carries over. A drain fits if it finishes, every pod that it moves is placed, and
no attached volume is without a healthy replica. Volumes may lack a replica meanwhile: the replicas on the node are
there again after the maintenance, unless Longhorn has rebuilt them elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler_core.extender.decision import FilterOptions
from scheduler_core.longhorn.replenish import HEALTHY, is_usable
from scheduler_core.longhorn.replenish_wait import DEGRADED
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import BEST_EFFORT
from scheduler_core.model.snapshot import NamespacedName
from scheduler_core.predict.cluster_changes import BLOCK_FOR_EVICTION, EVICT_LAST_REPLICA, Drain
from scheduler_core.predict.drain_policy import ALLOW_STOPPED, ALWAYS_ALLOW, is_last_replica
from scheduler_core.predict.node_loss import pod_problem
from scheduler_core.predict.predicted_cluster import ChangesByObject, PredictedCluster
from scheduler_core.predict.predicted_replicas import Choose, holds_data, replicas_on_node
from scheduler_core.predict.prediction import longest_wait
from scheduler_core.predict.situation import Situation, pods_on_nodes
from scheduler_core.predict.timeline import OrderResult, run_order

# With these policies, a node may be drained although it holds a last replica, or the replica is moved first.
_LAST_REPLICA_MAY_GO = frozenset({ALWAYS_ALLOW, ALLOW_STOPPED, BLOCK_FOR_EVICTION, EVICT_LAST_REPLICA})


@dataclass(frozen=True, slots=True)
class Maintenance:
    """One node's maintenance in one order."""

    cluster: PredictedCluster  # after the node was uncordoned, and everything has settled
    pods: int = 0  # how many pods the drain moves
    copied_bytes: int = 0  # data that rebuilds copy
    reduced_volumes: int = 0  # how many volumes have fewer healthy replicas meanwhile
    problems: tuple[str, ...] = ()  # why the drain does not fit; empty if it does
    rebuild_wait: float = 0  # for how many seconds nothing is rebuilt where Longhorn could reuse a failed replica


def maintain_node(
    cluster: PredictedCluster,
    node: str,
    parallel: frozenset[NamespacedName],
    options: FilterOptions,
    choose: Choose,
) -> Maintenance:
    """Drains a node, and uncordons it once the drain has finished.

    Raises:
        WhatIfError: there is no such node
    """
    drained = Drain((node,)).apply(Situation(cluster, parallel=parallel))
    result = run_order(drained, options, choose)
    problems = _problems(cluster, drained, result, node)
    if problems:
        return Maintenance(result.cluster, problems=problems)
    returned = _return_node(cluster, result.cluster, node)
    settled = run_order(Situation(returned, parallel=parallel), options, choose)
    return Maintenance(
        cluster=settled.cluster,
        pods=len(drained.pods) + len(drained.evictions),
        copied_bytes=result.copied_bytes + settled.copied_bytes,
        reduced_volumes=len(result.fewer_replicas),
        rebuild_wait=longest_wait(result.waits.values()),
    )


def _problems(before: PredictedCluster, drained: Situation, result: OrderResult, node: str) -> tuple[str, ...]:
    problems = [*result.blockers.get(node, ())]
    cluster = result.cluster
    for entry in (*drained.pods, *drained.evictions):
        problem = pod_problem(entry.key, result)
        # The blockers name the pods that may not be evicted.
        if problem and cluster.snapshot.pods[entry.key].node_name != node:
            problems.append(problem)
    for name in sorted({replica.volume for replica in replicas_on_node(before, node)}):
        volume = cluster.snapshot.volumes.get(name)
        if volume is not None and volume.node_id and not _has_data(cluster, name) and _has_data(before, name):
            problems.append(f"volume {name} has no healthy replica meanwhile")
    return tuple(problems)


def _has_data(cluster: PredictedCluster, volume: str) -> bool:
    return any(holds_data(cluster, replica) for replica in cluster.state.view.replicas_of(volume))


def _return_node(before: PredictedCluster, after: PredictedCluster, name: str) -> PredictedCluster:
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
        cluster = replace(cluster, scheduling=scheduling)
    volumes: ChangesByObject = {
        ("volumes", volume): _restore_robustness(before, cluster, volume) for volume in sorted(restored)
    }
    return cluster.update({key: volume for key, volume in volumes.items() if volume is not None})


def _restore_robustness(before: PredictedCluster, cluster: PredictedCluster, name: str) -> longhorn.Volume | None:
    """Returns a volume that has all of its replicas again, None if there is no such volume."""
    volume = cluster.snapshot.volumes.get(name)
    if volume is None:
        return None
    usable = sum(1 for replica in cluster.state.view.replicas_of(name) if is_usable(volume, replica))
    if usable < volume.number_of_replicas or volume.robustness != DEGRADED:
        return volume
    earlier = before.snapshot.volumes.get(name)
    detached = earlier is not None and not volume.node_id and earlier.robustness != DEGRADED
    robustness = earlier.robustness if earlier is not None and detached else HEALTHY
    return replace(volume, robustness=robustness, last_degraded_at="")


def permanent_blockers(cluster: PredictedCluster, node: str) -> list[str]:
    """Returns what holds up a node's drain whatever happens to other nodes.

    A pod without a controller stays on its node. So does the last healthy replica of a volume if nothing rebuilds or
    moves it: the volume has only one and need not follow its pod, or no pod attaches it; and neither the
    node-drain-policy nor an eviction moves it.
    """
    pods = [f"pod {pod.key} has no controller" for pod in pods_on_nodes(cluster, (node,)) if not pod.owner]
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
    if volume is None or not is_usable(volume, replica) or replica.eviction_requested:
        return False
    alone = volume.number_of_replicas <= 1 and volume.data_locality != BEST_EFFORT
    return (alone or _has_no_user(cluster, volume)) and is_last_replica(cluster, replica, ())


def _has_no_user(cluster: PredictedCluster, volume: longhorn.Volume) -> bool:
    view = cluster.state.view
    names = view.indexes.volumes_by_handle.get(volume.name) or ()
    claims = [cluster.snapshot.persistent_volumes[name].claim for name in names]
    users = (pod for claim in claims if claim is not None for pod in view.pods_of(claim[0], claim[1]))
    return not volume.node_id and not any(pod.live for pod in users)
