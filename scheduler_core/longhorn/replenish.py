"""How many replicas to add to a volume (controller/volume_controller.go:getReplenishReplicasCount); which failed replica
Longhorn reuses instead, and how long it waits (scheduler/replica_scheduler.go).

Best-effort auto-balance also moves replicas off disks under pressure to another disk of their node, one per disk at a time.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from scheduler_core.longhorn import placement, refusal_rules, space, stages
from scheduler_core.longhorn.cluster import DEGRADED, Cluster, parse_time, time_to_replacement
from scheduler_core.longhorn.replica_request import ReplicaRequest, auto_balance_mode, balances_best_effort, is_v2
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import BEST_EFFORT, Disk, Node, Replica, Volume
from scheduler_core.structs import Struct


def replicas_under_disk_pressure(cluster: Cluster, volume: Volume, replicas: Iterable[Replica]) -> list[Replica]:
    """Replicas of the volume that move off disks under pressure. Its node must have the condition Schedulable
    (getReplicasUnderDiskPressure), whatever its allowScheduling says. It must be the replica's turn on its disk, and
    another disk of its node must be able to take it.
    """
    percentage = cluster.settings.replica_auto_balance_disk_pressure_percentage
    if percentage == 0:
        return []
    return [
        replica
        for replica in replicas
        if (node := cluster.nodes.get(replica.node_id)) is not None
        and node.schedulable
        and any(
            disk.uuid == replica.disk_id
            and space.under_pressure(disk, percentage)
            and _first_in_turn(cluster, disk) == replica.name
            for disk in node.disks
            if disk.in_status
        )
        and any(_can_relieve(cluster, volume, disk) for disk in node.disks if disk.uuid != replica.disk_id)
    ]


def _first_in_turn(cluster: Cluster, disk: Disk) -> str | None:
    """The first replica, by name, of a healthy volume."""
    for name in sorted(disk.scheduled_replicas):
        replica = cluster.snapshot.replicas.get(name)
        volume = None if replica is None else cluster.snapshot.volumes.get(replica.volume)
        if volume is not None and volume.robustness == "healthy":
            return name
    return None


def _can_relieve(cluster: Cluster, volume: Volume, disk: Disk) -> bool:
    """Whether an eligible disk can take the volume and stay below the pressure percentage."""
    request = ReplicaRequest.for_volume(volume)
    return (
        stages.prefilter_refusal(cluster, request, disk) is None
        and stages.eligibility_refusal(cluster, request, disk) is None
        and space.fits_without_pressure(disk, cluster.settings, volume.size, volume.actual_size)
    )


class Replenishment(Struct, frozen=True):
    """How many replicas to add, and where."""

    count: int = 0
    hard_node_affinity: str = ""  # the node they must be on, "" for any


HEALTHY = "healthy"
NO_REPLENISHMENT = Replenishment()


def replenishments(cluster: Cluster, volume: Volume, replicas: Sequence[Replica]) -> frozenset[Replenishment]:
    """Every number of replicas that Longhorn may add, and where: several if the answer depends on Go's map order."""
    missing = volume.number_of_replicas - sum(1 for replica in replicas if is_usable(volume, replica))
    if missing:
        return frozenset({Replenishment(max(0, missing))})
    if auto_balance_mode(volume, cluster.settings) == AUTO_BALANCE_DISABLED or volume.robustness != HEALTHY:
        return frozenset({NO_REPLENISHMENT})
    nodes = auto_balance_nodes(cluster, volume, replicas)
    count = _count_to_spread_zones(cluster, volume, replicas, nodes)
    used = extra_replicas(volume, replicas, nodes)
    if not count and used is not None:
        # So that more nodes are used.
        unused = sum(name not in used and _is_open_to_replica(cluster, volume, node) for name, node in nodes.items())
        count = max(0, min(unused, volume.number_of_replicas - len(used)))
    if count:
        return frozenset({Replenishment(count)})
    if not balances_best_effort(volume, cluster.settings):
        return frozenset({NO_REPLENISHMENT})
    return _balance_best_effort(cluster, volume, replicas, used or {})


def is_usable(volume: Volume, replica: Replica) -> bool:
    """Whether a replica counts: active, not failed, not evicting, and no local one that is not placed."""
    unplaced_local = (
        volume.data_locality == BEST_EFFORT
        and not (replica.healthy_at or replica.failed_at or replica.node_id)
        and volume.current_node_id != ""
        and replica.hard_node_affinity == volume.current_node_id
    )
    return replica.active and not replica.failed_at and not replica.eviction_requested and not unplaced_local


def auto_balance_nodes(cluster: Cluster, volume: Volume, replicas: Iterable[Replica]) -> Mapping[str, Node]:
    """The nodes of listReadySchedulableAndScheduledNodes; ready ones with a running replica always count."""
    running = {replica.node_id for replica in replicas if replica.current_state == stages.RUNNING}
    return {
        name: node
        for name, node in cluster.nodes.items()
        if node.ready and (name in running or _can_take_replica(cluster, volume, node))
    }


def _can_take_replica(cluster: Cluster, volume: Volume, node: Node) -> bool:
    disks = [disk for disk in node.disks if disk.in_spec and disk.in_status]
    # The disk that is open and the disk that has the space need not be the same one.
    has_open_disk = any(disk.allow_scheduling and not disk.eviction_requested for disk in disks)
    has_space = any(
        space.space_refusal(volume.size, volume.actual_size, space.disk_space(disk, cluster.settings)) is None
        for disk in disks
    )
    has_tags = not volume.node_selector or refusal_rules.selectors_match(
        node.tags, volume.node_selector, allow_empty=True
    )
    fits_topology = stages.topology_refusal(cluster, ReplicaRequest.for_volume(volume), node) is None
    return node.schedulable and has_open_disk and has_space and has_tags and fits_topology


def _is_open_to_replica(cluster: Cluster, volume: Volume, node: Node) -> bool:
    return node.allow_scheduling and stages.engine_image_ready(cluster, volume.data_engine, volume.image, node.name)


def _count_to_spread_zones(
    cluster: Cluster, volume: Volume, replicas: Sequence[Replica], nodes: Mapping[str, Node]
) -> int:
    """Replicas to add so that more zones are used (getReplicaCountForAutoBalanceZone)."""
    # The engine's node counts with any replica, other nodes only with a running one.
    counting = [
        replica.node_id
        for replica in replicas
        if replica.node_id in nodes and (replica.node_id == volume.node_id or replica.current_state == stages.RUNNING)
    ]
    used = {nodes[name].zone for name in counting}
    unused = {
        node.zone for node in nodes.values() if node.zone not in used and _is_open_to_replica(cluster, volume, node)
    }
    return min(len(unused), volume.number_of_replicas - len(used)) if unused else 0


def extra_replicas(volume: Volume, replicas: Iterable[Replica], nodes: Mapping[str, Node]) -> dict[str, int] | None:
    """Running replicas beyond the first, per node; None if a node has more than the volume should have replicas."""
    extra: dict[str, int] = {}
    for replica in replicas:
        if replica.current_state == stages.RUNNING and replica.node_id in nodes:
            extra[replica.node_id] = extra.get(replica.node_id, -1) + 1
    return None if max(extra.values(), default=0) > volume.number_of_replicas else extra


def _balance_best_effort(
    cluster: Cluster, volume: Volume, replicas: Sequence[Replica], extra: Mapping[str, int]
) -> frozenset[Replenishment]:
    """Replicas to add to even out nodes, else to relieve disks (getReplicaCountForAutoBalanceBestEffort)."""
    moving = replicas_under_disk_pressure(cluster, volume, replicas)
    to_relieve = [replica.node_id for replica in moving]
    most = max(extra.values(), default=0)
    # The first candidate becomes the hard node affinity, without a look at its disks. Longhorn loses the count with which it would even out
    # the zones.
    answers: set[Replenishment] = set()
    for least, least_loaded in _fewest_extra(extra) or [(most, [])]:
        if most in (0, least):
            answers |= _each_candidate(len(moving), to_relieve)
        elif most - least == 1:
            # Longhorn appends the nodes under pressure to the least loaded ones, so one of the latter is the first.
            answers |= _each_candidate(len(moving), least_loaded)
        else:
            answers |= _each_candidate(most - least - 1, least_loaded)
    return frozenset(answers)


def _each_candidate(count: int, node_names: Iterable[str]) -> set[Replenishment]:
    # Any of the nodes may come first in Longhorn's list.
    return {Replenishment(count, name) for name in node_names} if count else {NO_REPLENISHMENT}


def _fewest_extra(extra: Mapping[str, int]) -> list[tuple[int, list[str]]]:
    """The smallest count of extra replicas, and its nodes, for each result that some order of Longhorn's map can have."""
    if len(extra) <= 1:
        return []
    without_extra = [name for name, count in extra.items() if count == 0]
    counts = sorted({count for count in extra.values() if count})
    if not without_extra:
        return [(counts[0], [name for name, count in extra.items() if count == counts[0]])]
    # Longhorn's loop starts over after any node with 0 extras, so what comes after the last of these nodes decides: that node alone, or any
    # of the other counts.
    alone: list[tuple[int, list[str]]] = [(0, [name]) for name in without_extra]
    return alone + [(count, [name]) for name, count in extra.items() if count]


_CLOCK_SKEW = timedelta(seconds=1)
_NEVER = datetime.min.replace(tzinfo=UTC)


def replica_to_reuse(
    cluster: Cluster, volume: Volume, replicas: Iterable[Replica], hard_node_affinity: str = ""
) -> frozenset[str]:
    """Names of the failed replicas Longhorn may reuse (CheckAndReuseFailedReplica): the reusable ones that failed last.
    Anti-affinity ignores failed replicas.
    """
    if not _allows_reuse(cluster, volume):
        return frozenset()
    active = tuple(replica for replica in replicas if replica.active)
    request = ReplicaRequest.for_volume(volume)
    nodes = {
        name: node for name, node in cluster.nodes.items() if stages.schedulable_refusal(cluster, request, node) is None
    }
    reusable = [
        replica
        for replica in active
        if hard_node_affinity in ("", replica.node_id) and is_reusable(cluster, volume, replica, nodes)
    ]
    replica_nodes = {replica.node_id: nodes[replica.node_id] for replica in reusable}

    # Without `replicas`, space is not checked: the data is on the disk already.
    def split(node: Node) -> placement.DiskSplit:
        return placement.eligible_disks(cluster, request, node, _disks_with_replica(node, reusable), None)

    candidates = placement.disk_candidates(cluster, request, replica_nodes, split, active, reuse=True).disks
    open_disks = {(candidate.node.name, candidate.disk.uuid) for candidate in candidates}
    times = {
        replica.name: parse_time(replica.failed_at) or _NEVER
        for replica in reusable
        if (replica.node_id, replica.disk_id) in open_disks
    }
    latest = max(times.values(), default=_NEVER)
    return frozenset(name for name, time in times.items() if time == latest)


def _allows_reuse(cluster: Cluster, volume: Volume) -> bool:
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
    """Whether node, disk, image and instance manager of a failed replica are usable (isFailedReplicaReusable)."""
    node = nodes.get(replica.node_id)
    return (
        node is not None
        and replica.failed_at != ""
        and replica.potentially_reusable
        and stages.engine_image_ready(cluster, replica.data_engine, replica.image, node.name)
        and any(_is_disk_usable(cluster, volume, disk) for disk in _disks_with_replica(node, [replica]))
        and stages.instance_manager_running(cluster, replica.data_engine, node.name)
    )


def _is_disk_usable(cluster: Cluster, volume: Volume, disk: Disk) -> bool:
    allow_empty = cluster.settings.allow_empty_disk_selector_volume
    # Reuse needs no new scheduling space, so a disk under pressure will do while it has available space.
    pressure = condition(disk.conditions, "Schedulable").reason == stages.DISK_PRESSURE
    has_space = pressure and disk.storage_maximum > 0 and space.disk_space(disk, cluster.settings).headroom > 0
    return (
        disk.ready
        and (disk.schedulable or has_space)
        and disk.allow_scheduling
        and not disk.eviction_requested
        and refusal_rules.selectors_match(disk.tags, volume.disk_selector, allow_empty)
    )


def wait_before_new_replica(
    cluster: Cluster, volume: Volume, replicas: Iterable[Replica], hard_node_affinity: str = ""
) -> timedelta:
    """How long a failed replica delays a new one (RequireNewReplica); zero if Longhorn adds a new replica at once."""
    if volume.robustness != DEGRADED or hard_node_affinity or not _allows_reuse(cluster, volume):
        return timedelta(0)
    if not any(replica.failed_at and replica.potentially_reusable for replica in replicas):
        return timedelta(0)
    wait = time_to_replacement(cluster, volume)
    return wait + _CLOCK_SKEW if wait else wait
