"""Decides about one volume: places, requests and sizes of its replicas, and its condition DiskAllocation.

`expansion` decides about a volume that grows; this module decides about everything else, and combines both. Caches of
different kinds are not equally new: the caller takes the DiskSchedules first, from a cache if it likes, and reads the volume
and its replicas after them from the API server. Then a request is never younger than the place or size it was made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_core.disk_schedule.candidates import choose_disk
from scheduler_core.disk_schedule.conditions import (
    ALLOCATION_PENDING,
    ALLOCATION_REJECTED,
    DISK_ALLOCATION,
    NO_DISK,
    PLACE_CONTRADICTED,
    condition_matches,
    disk_problem,
)
from scheduler_core.disk_schedule.expansion import expand
from scheduler_core.disk_schedule.replica_stage import ReplicaAllocation, Stage, replica_allocation
from scheduler_core.disk_schedule.writes import AssignReplica, SetReplicaSize, SetRequirement, SetVolumeCondition, Write
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.new_volume_placement import waits_for_attachment
from scheduler_core.model.disk_schedule import DiskSchedule, RequestKind
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import Replica, Volume
from scheduler_core.model.quantity import format_bytes


@dataclass(frozen=True, slots=True)
class VolumeSnapshot:
    """Input of a decision about a volume.

    Attributes:
        cluster: what Longhorn's placement rules read
        volume: the volume
        replicas: all of the volume
        schedules: all DiskSchedules, by disk UUID
        condition: the volume's condition DiskAllocation, None if it has none
    """

    cluster: Cluster
    volume: Volume
    replicas: tuple[Replica, ...]
    schedules: Mapping[str, DiskSchedule]
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class VolumeDecision:
    """What to do about a volume.

    Attributes:
        writes: in order; the first that fails ends them
        ready: the names of the replicas whose space is granted, so that their instances may be created
        requeue: no watch may bring the change that helps: reconcile again after a back-off
    """

    writes: tuple[Write, ...] = ()
    ready: frozenset[str] = frozenset()
    requeue: bool = False


def decide_volume(snapshot: VolumeSnapshot, now: str) -> VolumeDecision:
    """Decides what to write for a volume; `now` is RFC 3339.

    A replica without a place gets one, which is noted in the Replica, and its size is requested there. A replica that was
    rejected before it ever ran loses request and place and is tried on another disk; a replica with data stays and keeps its
    request. A request on a disk that is not the replica's is withdrawn. A replica without a size gets one, or it would never
    count as one that has to grow. A volume that is being deleted is left to the replica controller.
    """
    if snapshot.volume.deleting:
        return VolumeDecision()
    disks = {disk.uuid for node in snapshot.cluster.nodes.values() for disk in node.disks if disk.in_status}
    allocations = [
        replica_allocation(snapshot.volume, replica, snapshot.schedules, disks)
        for replica in sorted(snapshot.replicas, key=lambda each: each.name)
        if not replica.deleting
    ]
    growth = expand(snapshot.volume, allocations, snapshot.schedules, snapshot.cluster, snapshot.condition)
    sizes = tuple(
        SetReplicaSize(entry.name, entry.current_size)
        for entry in allocations
        if entry.current_size and not entry.replica.size
    )
    requests = tuple(
        SetRequirement(entry.replica.disk_id, RequestKind.REPLICA, entry.name, entry.current_size)
        for entry in allocations
        if entry.stage is Stage.UNREQUESTED
    )
    placement, without_disk = _place_next_replica(snapshot, allocations)
    contradictions = tuple(_contradictions(snapshot, allocations))
    condition = growth.condition or _condition(
        snapshot, allocations, without_disk, contradictions, placing=bool(placement)
    )
    # The condition is written first: an expansion must not be forgotten half-way (see `expansion`).
    condition_writes = _condition_writes(snapshot.condition, condition, now)
    strays = _stray_withdrawals(snapshot, allocations)
    unresolved = bool(without_disk or contradictions)
    return VolumeDecision(
        writes=(*condition_writes, *strays, *sizes, *growth.writes, *requests, *placement),
        ready=frozenset(entry.name for entry in allocations if entry.stage is Stage.ALLOCATED),
        requeue=growth.requeue or unresolved or any(_needs_requeue(snapshot, entry) for entry in allocations),
    )


def _needs_requeue(snapshot: VolumeSnapshot, entry: ReplicaAllocation) -> bool:
    """Whether a replica waits for something that no event may show.

    Either its disk has no DiskSchedule yet, or it has data and its disk refuses the request.
    """
    missing = entry.stage is Stage.PENDING and entry.replica.disk_id not in snapshot.schedules
    return missing or entry.stage is Stage.REFUSED


def _condition_writes(current: Condition | None, wanted: Condition, now: str) -> tuple[Write, ...]:
    """Returns the write of a condition that changed."""
    if condition_matches(current, wanted):
        return ()
    same_status = current is not None and current.status == wanted.status
    since = current.last_transition_time if current is not None and same_status else now
    return (SetVolumeCondition(replace(wanted, last_transition_time=since or now)),)


def _stray_withdrawals(snapshot: VolumeSnapshot, allocations: Iterable[ReplicaAllocation]) -> tuple[Write, ...]:
    """Returns withdrawals of requests on other disks than the replica's.

    Such a request was left by a controller that was stopped, or whose cache was behind.
    """
    return tuple(
        SetRequirement(uuid, RequestKind.REPLICA, entry.name, 0, stray=True)
        for entry in allocations
        for uuid, schedule in sorted(snapshot.schedules.items())
        if entry.name in schedule.spec.replicas and uuid != entry.replica.disk_id
    )


def _place_next_replica(
    snapshot: VolumeSnapshot, allocations: Iterable[ReplicaAllocation]
) -> tuple[tuple[Write, ...], tuple[str, ...]]:
    """Places the first replica that can be placed.

    Only one is placed, because the next one's place depends on it. Returns the writes, and the names of the replicas before it
    for which there is no disk.
    """
    writes: list[Write] = []
    without_disk: list[str] = []
    for entry in allocations:
        if _waits_for_attachment(snapshot.volume, entry) or entry.stage not in {Stage.UNPLACED, Stage.REFUSED_NEW}:
            continue
        choice = choose_disk(snapshot.cluster, snapshot.schedules, snapshot.volume, entry.replica, snapshot.replicas)
        if entry.replica.disk_id and entry.has_request:
            writes.append(SetRequirement(entry.replica.disk_id, RequestKind.REPLICA, entry.name, 0))
        if choice is not None:
            disk = choice.disk
            writes += [
                AssignReplica(entry.name, choice.node.name, disk.uuid, disk.path),
                SetRequirement(disk.uuid, RequestKind.REPLICA, entry.name, entry.current_size),
            ]
            break
        if entry.replica.node_id or entry.replica.disk_id:
            writes.append(AssignReplica(entry.name))
        without_disk.append(entry.name)
    return tuple(writes), tuple(without_disk)


def _waits_for_attachment(volume: Volume, entry: ReplicaAllocation) -> bool:
    """Whether a replica is placed only once the volume is attached."""
    return entry.stage is Stage.UNPLACED and waits_for_attachment(volume)


def _contradictions(snapshot: VolumeSnapshot, allocations: Iterable[ReplicaAllocation]) -> Iterable[str]:
    """Yields replicas whose node is not their disk's node, as sentences.

    The place was edited by hand, or the disk was moved. It is only reported: the disk is where the data is.
    """
    for entry in allocations:
        replica = entry.replica
        schedule = snapshot.schedules.get(replica.disk_id)
        moves = entry.stage in {Stage.UNPLACED, Stage.REFUSED_NEW}
        if schedule is not None and not moves and replica.node_id != schedule.spec.node:
            disk = f"disk {replica.disk_id} is on node {schedule.spec.node}"
            yield f"replica {entry.name} is said to be on node {replica.node_id}, but its {disk}"


def _condition(
    snapshot: VolumeSnapshot,
    allocations: Sequence[ReplicaAllocation],
    without_disk: tuple[str, ...],
    contradictions: tuple[str, ...],
    *,
    placing: bool,
) -> Condition:
    """Returns the condition DiskAllocation of a volume that does not grow."""
    refusals = [_refusal(snapshot, entry) for entry in allocations if entry.stage is Stage.REFUSED]
    if refusals:
        return _false_condition(ALLOCATION_REJECTED, "; ".join(refusals))
    if without_disk:
        size = format_bytes(snapshot.volume.size)
        return _false_condition(NO_DISK, f"no disk can be asked for {size} for {_list_replicas(without_disk)}")
    if contradictions:
        return _false_condition(PLACE_CONTRADICTED, "; ".join(contradictions))
    detached = tuple(entry.name for entry in allocations if _waits_for_attachment(snapshot.volume, entry))
    pending = tuple(
        entry.name for entry in allocations if entry.stage is not Stage.ALLOCATED and entry.name not in detached
    )
    if pending or placing:
        return _false_condition(ALLOCATION_PENDING, f"waiting for room for {_list_replicas(pending)}")
    if detached:
        message = f"waiting for the volume to be attached, then for room for {_list_replicas(detached)}"
        return _false_condition(ALLOCATION_PENDING, message)
    return Condition(DISK_ALLOCATION, "True")


def _refusal(snapshot: VolumeSnapshot, entry: ReplicaAllocation) -> str:
    request = f"{format_bytes(entry.current_size)} for replica {entry.name}, which has data there"
    cause = disk_problem(snapshot.schedules, entry.replica.disk_id)
    return f"{cause}: it cannot grant {request}" if cause else f"the disk has no room for {request}"


def _false_condition(reason: str, message: str) -> Condition:
    return Condition(DISK_ALLOCATION, "False", reason, message)


def _list_replicas(names: tuple[str, ...]) -> str:
    return f"replica{'s' if len(names) > 1 else ''} {', '.join(names)}"
