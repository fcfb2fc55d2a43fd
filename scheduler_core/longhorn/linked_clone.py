"""Linked clones: a replica must sit on the node and disk of a healthy source replica."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.model.longhorn import Replica


@dataclass(frozen=True, slots=True)
class Sources:
    """Where source replicas are: node names and disk UUIDs."""

    nodes: frozenset[str]
    disks: frozenset[str]


def source_missing(cluster: Cluster, ask: Ask) -> bool:
    """Whether the replica names a source replica that does not exist: a client error in Longhorn."""
    return (
        ask.linked_clone and ask.linked_clone_source != "" and ask.linked_clone_source not in cluster.snapshot.replicas
    )


def sources(cluster: Cluster, ask: Ask) -> Sources:
    """The places of usable source replicas: of the named one, or of all of the source volume."""
    usable = [replica for replica in _candidates(cluster, ask) if _usable(replica)]
    return Sources(frozenset(replica.node_id for replica in usable), frozenset(replica.disk_id for replica in usable))


def _candidates(cluster: Cluster, ask: Ask) -> tuple[Replica, ...]:
    if not ask.linked_clone_source:
        return cluster.replicas_of(ask.linked_clone_source_volume)
    named = cluster.snapshot.replicas.get(ask.linked_clone_source)
    return () if named is None else (named,)


def _usable(replica: Replica) -> bool:
    placed = replica.node_id != "" and replica.disk_id != ""
    healthy = replica.healthy_at != "" and replica.failed_at == ""
    return placed and healthy and not replica.eviction_requested
