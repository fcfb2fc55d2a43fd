"""Failed replicas: which one Longhorn reuses, and how long it waits (scheduler/replica_scheduler.go)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_stage import DISK_PRESSURE
from scheduler_core.longhorn.node_stage import engine_image_ready, instance_manager_running, schedulable_refusal
from scheduler_core.longhorn.placement import disk_candidates
from scheduler_core.longhorn.refusal_rules import selectors_match
from scheduler_core.longhorn.replenish_wait import DEGRADED, parse_time, time_to_replacement
from scheduler_core.longhorn.replica_request import ReplicaRequest, is_v2
from scheduler_core.longhorn.space import disk_space
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import Disk, Node, Replica, Volume

_CLOCK_SKEW: Final = timedelta(seconds=1)
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_AT_ONCE: Final = timedelta(0)


def replica_to_reuse(
    cluster: Cluster, volume: Volume, replicas: Iterable[Replica], hard_node_affinity: str = ""
) -> frozenset[str]:
    """Names of the failed replicas Longhorn may reuse (CheckAndReuseFailedReplica): the reusable ones that failed last.

    Anti-affinity ignores failed replicas, and space is not checked: their data is on the disk already.
    """
    if not _allows_reuse(cluster, volume):
        return frozenset()
    active = tuple(replica for replica in replicas if replica.active)
    request = ReplicaRequest.for_volume(volume)
    nodes = {name: node for name, node in cluster.nodes.items() if schedulable_refusal(cluster, request, node) is None}
    reusable = [
        replica
        for replica in active
        if hard_node_affinity in ("", replica.node_id) and is_reusable(cluster, volume, replica, nodes)
    ]
    replica_nodes = {replica.node_id: nodes[replica.node_id] for replica in reusable}
    disks = {name: _disks_with_replica(node, reusable) for name, node in sorted(replica_nodes.items())}
    candidates = disk_candidates(cluster, request, replica_nodes, disks, active, reuse=True).disks
    open_disks = {(candidate.node.name, candidate.disk.uuid) for candidate in candidates}
    return _last_to_fail([replica for replica in reusable if (replica.node_id, replica.disk_id) in open_disks])


def _allows_reuse(cluster: Cluster, volume: Volume) -> bool:
    """Whether a volume's failed replicas may be reused."""
    # v1 always may; v2 only with fast rebuilding. A setting that does not parse counts as false.
    if not is_v2(volume.data_engine):
        return True
    settings = cluster.settings
    readable = settings.first_fault(("fast-replica-rebuild-enabled",)) is None
    return readable and settings.fast_replica_rebuild_enabled.get(volume.data_engine, False)


def _disks_with_replica(node: Node, replicas: Iterable[Replica]) -> tuple[Disk, ...]:
    uuids = {replica.disk_id for replica in replicas if replica.node_id == node.name}
    return tuple(disk for disk in node.disks if disk.in_status and disk.in_spec and disk.uuid in uuids)


def is_reusable(cluster: Cluster, volume: Volume, replica: Replica, nodes: Mapping[str, Node]) -> bool:
    """Whether a failed replica may be reused (isFailedReplicaReusable): its node, disk, engine image and instance
    manager must all be usable.
    """
    node = nodes.get(replica.node_id)
    return (
        node is not None
        and replica.failed_at != ""
        and replica.potentially_reusable
        and engine_image_ready(cluster, replica.data_engine, replica.image, node.name)
        and any(_is_disk_usable(cluster, volume, disk) for disk in _disks_with_replica(node, [replica]))
        and instance_manager_running(cluster, replica.data_engine, node.name)
    )


def _is_disk_usable(cluster: Cluster, volume: Volume, disk: Disk) -> bool:
    allow_empty = cluster.settings.allow_empty_disk_selector_volume
    return (
        disk.ready
        and (disk.schedulable or _has_pressure_but_space(cluster, disk))
        and disk.allow_scheduling
        and not disk.eviction_requested
        and selectors_match(disk.tags, volume.disk_selector, allow_empty)
    )


def _has_pressure_but_space(cluster: Cluster, disk: Disk) -> bool:
    """Whether a disk under pressure still has available space. Reuse needs no new scheduling space."""
    pressure = condition(disk.conditions, "Schedulable").reason == DISK_PRESSURE
    return pressure and disk.storage_maximum > 0 and disk_space(disk, cluster.settings).headroom > 0


def _last_to_fail(replicas: Iterable[Replica]) -> frozenset[str]:
    times = {replica.name: parse_time(replica.failed_at) or _NEVER for replica in replicas}
    latest = max(times.values(), default=_NEVER)
    return frozenset(name for name, time in times.items() if time == latest)


def wait_before_new_replica(
    cluster: Cluster, volume: Volume, replicas: Iterable[Replica], hard_node_affinity: str = ""
) -> timedelta:
    """How long a failed replica delays a new one (RequireNewReplica); zero if Longhorn adds a new replica at once."""
    if volume.robustness != DEGRADED or hard_node_affinity or not _allows_reuse(cluster, volume):
        return _AT_ONCE
    if not any(replica.failed_at and replica.potentially_reusable for replica in replicas):
        return _AT_ONCE
    wait = time_to_replacement(cluster, volume)
    return wait + _CLOCK_SKEW if wait else _AT_ONCE
