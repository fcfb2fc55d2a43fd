"""Whether a drain can finish, by Longhorn's node-drain-policy: Longhorn keeps a PodDisruptionBudget on a node's
instance manager until it may go.

Source: controller/instance_manager_controller.go:canDeleteInstanceManagerPDB. The budgets of other pods are not read.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler_core.model import longhorn
from scheduler_core.predict.cluster_changes import BLOCK_FOR_EVICTION
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import replicas_on_node
from scheduler_core.volumes.existing_replicas import is_healthy

ALWAYS_ALLOW = "always-allow"
ALLOW_STOPPED = "allow-if-replica-is-stopped"


def drain_blockers(cluster: PredictedCluster, node: str, gone: Collection[str]) -> list[str]:
    """Returns why Longhorn's budget holds up a node's drain, empty if it does not. `gone` are nodes whose instance
    manager does not run any more.
    """
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
        if is_last_replica(cluster, replica, gone) and (policy != ALLOW_STOPPED or _runs(cluster, replica))
    ]


def is_last_replica(cluster: PredictedCluster, replica: longhorn.Replica, gone: Collection[str]) -> bool:
    """Whether no other node has a healthy replica; one that never had data does not count."""
    if not replica.healthy_at and not replica.failed_at:
        return False
    others = (other for other in cluster.state.view.replicas_of(replica.volume) if other.node_id != replica.node_id)
    return not any(is_healthy(other) and other.node_id not in gone for other in others)


def _runs(cluster: PredictedCluster, replica: longhorn.Replica) -> bool:
    volume = cluster.snapshot.volumes.get(replica.volume)
    return volume is not None and bool(volume.node_id)
