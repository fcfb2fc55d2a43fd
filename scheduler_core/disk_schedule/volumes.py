"""The volume controller's decision: places, requests and sizes of one volume's replicas, and its condition DiskAllocation.

`expansion` decides about a volume that grows; this module about everything else, and puts both together. Caches of different
kinds are not equally new: whoever calls this takes the DiskSchedules first, from a cache if he likes, and reads the volume
and its replicas after them from the API server. Then a request is never younger than the place or size it was made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from scheduler_core.disk_schedule.candidates import place_for
from scheduler_core.disk_schedule.causes import trouble
from scheduler_core.disk_schedule.conditions import (
    ALLOCATION_PENDING,
    ALLOCATION_REJECTED,
    DISK_ALLOCATION,
    NO_DISK,
    PLACE_CONTRADICTED,
    says,
)
from scheduler_core.disk_schedule.expansion import expanded
from scheduler_core.disk_schedule.replica_stage import Stage, Standing, standing
from scheduler_core.disk_schedule.writes import Assign, Grow, Report, Require, Write
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.new_volume import waits_for_attachment
from scheduler_core.model.disk_schedule import DiskSchedule, Kind
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import Replica, Volume
from scheduler_core.model.quantity import format_bytes


@dataclass(frozen=True, slots=True)
class VolumeSight:
    """What a decision about a volume reads.

    Attributes:
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
        ready: the names of the replicas whose room is granted, so that their instances may be created
        waiting: something is refused, so no watch may bring the change that helps: look again after a back-off
    """

    writes: tuple[Write, ...] = ()
    ready: frozenset[str] = frozenset()
    waiting: bool = False


def decided(sight: VolumeSight, now: str) -> VolumeDecision:
    """What to write for a volume; `now` is RFC 3339.

    A replica without a place gets one, is noted there, and its size is asked for. One that was rejected before it ever ran loses
    request and place and is tried on another disk; one that has data stays and asks on. A request on a disk
    that is not the replica's is withdrawn. A replica without a size gets one, or it would never count as one that has to grow. A
    volume that is being deleted is left to the replica controller.
    """
    if sight.volume.deleting:
        return VolumeDecision()
    disks = {disk.uuid for node in sight.cluster.nodes.values() for disk in node.disks if disk.in_status}
    found = [
        standing(sight.volume, replica, sight.schedules, disks)
        for replica in sorted(sight.replicas, key=lambda each: each.name)
        if not replica.deleting
    ]
    growth = expanded(sight.volume, found, sight.schedules, sight.cluster, sight.condition)
    sizes = tuple(Grow(entry.name, entry.base) for entry in found if entry.base and not entry.replica.size)
    requests = tuple(
        Require(entry.replica.disk_id, Kind.REPLICA, entry.name, entry.base)
        for entry in found
        if entry.stage is Stage.UNASKED
    )
    moves, homeless = _placed(sight, found)
    contradicted = tuple(_contradictions(sight, found))
    condition = growth.condition or _condition(sight, found, homeless, contradicted, moved=bool(moves))
    report = _report(sight.condition, condition, now)
    return VolumeDecision(
        writes=(*report, *_strays(sight, found), *sizes, *growth.writes, *requests, *moves),
        ready=frozenset(entry.name for entry in found if entry.stage is Stage.HOLDS),
        waiting=growth.waiting or bool(homeless or contradicted) or any(_unwatched(sight, entry) for entry in found),
    )


def _unwatched(sight: VolumeSight, entry: Standing) -> bool:
    """Whether what a replica waits for wakes nobody: room on its disk, or a DiskSchedule that is not there yet."""
    missing = entry.stage is Stage.PENDING and entry.replica.disk_id not in sight.schedules
    return missing or entry.stage is Stage.REFUSED


def _report(known: Condition | None, wanted: Condition, now: str) -> tuple[Write, ...]:
    """The condition is written first: an expansion must not be forgotten half-way (see `expansion`)."""
    if says(known, wanted):
        return ()
    same = known is not None and known.status == wanted.status
    since = known.last_transition_time if known is not None and same else now
    return (Report(replace(wanted, last_transition_time=since or now)),)


def _strays(sight: VolumeSight, found: Iterable[Standing]) -> tuple[Write, ...]:
    """Requests on disks their replica is not on: left by a controller that was stopped, or was behind."""
    return tuple(
        Require(uuid, Kind.REPLICA, entry.name, 0, stray=True)
        for entry in found
        for uuid, schedule in sorted(sight.schedules.items())
        if entry.name in schedule.spec.replicas and uuid != entry.replica.disk_id
    )


def _placed(sight: VolumeSight, found: Iterable[Standing]) -> tuple[tuple[Write, ...], tuple[str, ...]]:
    """A place for one replica, since the next one's depends on it, and the names of those that found none."""
    writes: list[Write] = []
    homeless: list[str] = []
    for entry in found:
        if _idle(sight.volume, entry) or entry.stage not in {Stage.UNPLACED, Stage.REFUSED_NEW}:
            continue
        choice = place_for(sight.cluster, sight.schedules, sight.volume, entry.replica, sight.replicas)
        if entry.replica.disk_id and entry.listed:
            writes.append(Require(entry.replica.disk_id, Kind.REPLICA, entry.name, 0))
        if choice is not None:
            disk = choice.disk
            writes += [
                Assign(entry.name, choice.node.name, disk.uuid, disk.path),
                Require(disk.uuid, Kind.REPLICA, entry.name, entry.base),
            ]
            break
        if entry.replica.node_id or entry.replica.disk_id:
            writes.append(Assign(entry.name))
        homeless.append(entry.name)
    return tuple(writes), tuple(homeless)


def _idle(volume: Volume, entry: Standing) -> bool:
    """Whether a replica is to be placed once the volume is attached, and not before."""
    return entry.stage is Stage.UNPLACED and waits_for_attachment(volume)


def _contradictions(sight: VolumeSight, found: Iterable[Standing]) -> Iterable[str]:
    """Places whose node is not the disk's: edited by hand, or a disk that was moved. Only told; the disk is where the data is."""
    for entry in found:
        replica, schedule = entry.replica, sight.schedules.get(entry.replica.disk_id)
        moves = entry.stage in {Stage.UNPLACED, Stage.REFUSED_NEW}
        if schedule is not None and not moves and replica.node_id != schedule.spec.node:
            disk = f"disk {replica.disk_id} is on node {schedule.spec.node}"
            yield f"replica {entry.name} is said to be on node {replica.node_id}, but its {disk}"


def _condition(
    sight: VolumeSight,
    found: Iterable[Standing],
    homeless: tuple[str, ...],
    contradicted: tuple[str, ...],
    *,
    moved: bool,
) -> Condition:
    found = list(found)
    refused = [_refusal(sight, entry) for entry in found if entry.stage is Stage.REFUSED]
    if refused:
        return _not_yet(ALLOCATION_REJECTED, "; ".join(refused))
    if homeless:
        return _not_yet(NO_DISK, f"no disk can be asked for {format_bytes(sight.volume.size)} for {_names(homeless)}")
    if contradicted:
        return _not_yet(PLACE_CONTRADICTED, "; ".join(contradicted))
    idle = tuple(entry.name for entry in found if _idle(sight.volume, entry))
    pending = tuple(entry.name for entry in found if entry.stage is not Stage.HOLDS and entry.name not in idle)
    if pending or moved:
        return _not_yet(ALLOCATION_PENDING, f"waiting for room for {_names(pending)}")
    if idle:
        return _not_yet(ALLOCATION_PENDING, f"waiting for the volume to be attached, then for room for {_names(idle)}")
    return Condition(DISK_ALLOCATION, "True")


def _refusal(sight: VolumeSight, entry: Standing) -> str:
    what = f"{format_bytes(entry.base)} for replica {entry.name}, which has data there"
    cause = trouble(sight.schedules, entry.replica.disk_id)
    return f"{cause}: it cannot grant {what}" if cause else f"the disk has no room for {what}"


def _not_yet(reason: str, message: str) -> Condition:
    return Condition(DISK_ALLOCATION, "False", reason, message)


def _names(names: tuple[str, ...]) -> str:
    return f"replica{'s' if len(names) > 1 else ''} {', '.join(names)}"
