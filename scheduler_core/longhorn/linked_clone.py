"""Linked clones: a replica must sit on the node and disk of a healthy source replica."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.model.longhorn import Replica


@dataclass(frozen=True, slots=True)
class Sources:
    """Places of usable source replicas: node names, disk UUIDs."""

    nodes: frozenset[str]
    disks: frozenset[str]


def source_missing(cluster: Cluster, request: ReplicaRequest) -> bool:
    """Whether the named source replica does not exist, which is a client error in Longhorn."""
    return (
        request.linked_clone
        and request.linked_clone_source != ""
        and request.linked_clone_source not in cluster.snapshot.replicas
    )


def sources(cluster: Cluster, request: ReplicaRequest) -> Sources:
    """The nodes and disks of the named source replica, or of all usable replicas of the source volume."""
    usable = [replica for replica in _source_replicas(cluster, request) if _is_usable(replica)]
    return Sources(frozenset(replica.node_id for replica in usable), frozenset(replica.disk_id for replica in usable))


def _source_replicas(cluster: Cluster, request: ReplicaRequest) -> tuple[Replica, ...]:
    if not request.linked_clone_source:
        return cluster.replicas_of(request.linked_clone_source_volume)
    named = cluster.snapshot.replicas.get(request.linked_clone_source)
    return () if named is None else (named,)


def _is_usable(replica: Replica) -> bool:
    placed = replica.node_id != "" and replica.disk_id != ""
    healthy = replica.healthy_at != "" and replica.failed_at == ""
    return placed and healthy and not replica.eviction_requested
