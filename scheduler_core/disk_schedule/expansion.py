"""A volume that grows: every disk is asked for the new size, and none grows before all have answered yes.

Which way it goes is in the volume's condition, so that a controller that was stopped half-way goes on the same way:

    reason ExpansionPending    forward: ask every disk for the new size, wait for all answers; all granted: on to the next;
                               one rejected: turn round
    reason ExpansionGranted    no way back: write the sizes
    reason ExpansionRejected   back: ask every disk for the old size again, and stay so until every disk would grant the new
                               one; then forward again

The condition is written before what follows from it, against the version of the volume that was read. So of two controllers of
which one sees all disks granting and the other one of them refusing (before it found room after all), one only goes on. What
is granted is held, so once the first size is written the others follow, however often a controller is stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from scheduler_core.disk_schedule.allocation import claim, would_grant
from scheduler_core.disk_schedule.causes import disk_name, trouble
from scheduler_core.disk_schedule.conditions import (
    DISK_ALLOCATION,
    EXPANSION_GRANTED,
    EXPANSION_PENDING,
    EXPANSION_REJECTED,
    says,
)
from scheduler_core.disk_schedule.reconcile import limit_of
from scheduler_core.disk_schedule.replica_stage import Stage, Standing, has_run
from scheduler_core.disk_schedule.writes import Grow, Require, Write
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.model.disk_schedule import DiskSchedule, Kind, State
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import Volume
from scheduler_core.model.quantity import format_bytes


@dataclass(frozen=True, slots=True)
class Expansion:
    """What to write for a volume's growth, and the condition while it lasts, None without one."""

    writes: tuple[Write, ...] = ()
    condition: Condition | None = None
    waiting: bool = False


def expanded(
    volume: Volume,
    found: Iterable[Standing],
    schedules: Mapping[str, DiskSchedule],
    cluster: Cluster,
    known: Condition | None,
) -> Expansion:
    """What follows from `volume.size` being more than some replica's.

    All replicas with a place grow together, or none: also one that does not even hold what it needs now must be granted the
    new size. One that has no place yet just takes the new size when they do.
    """
    found = list(found)
    unplaced = [entry for entry in found if entry.stage is Stage.UNPLACED and entry.base < volume.size]
    growing = [entry for entry in found if entry.stage is not Stage.UNPLACED and entry.base < volume.size]
    if not growing:
        return Expansion((*_back(found), *_grown(unplaced, volume.size)))
    if known is not None and known.reason == EXPANSION_REJECTED:
        short = _short(volume, growing, schedules, cluster)
        if short or not all(_rests(entry) for entry in growing):
            return Expansion((*_back(found),), _rejected(volume, growing, schedules, short, known), waiting=True)
        return Expansion(_asked(volume, growing), _pending(volume))
    large = [entry for entry in growing if entry.stage is Stage.HOLDS and entry.held >= volume.size]
    if len(large) == len(growing) or says(known, _granted(volume)):
        lacking = len(large) < len(growing)
        asked = _asked(volume, growing) if lacking else ()
        return Expansion((*_grown((*large, *unplaced), volume.size), *asked), _granted(volume), waiting=lacking)
    if not all(_answered(entry, volume.size) for entry in growing):
        return Expansion(_asked(volume, growing), _pending(volume))
    return Expansion((*_back(found),), _rejected(volume, growing, schedules), waiting=True)


def _rests(entry: Standing) -> bool:
    """Whether a replica holds what it needs as it is, and asks for no more."""
    return entry.stage is Stage.HOLDS and entry.settled and entry.asked == entry.base


def _answered(entry: Standing, size: int) -> bool:
    """Whether its disk answered for the new size. One that has no request from a replica with data, and gets none, is gone."""
    if entry.stage is Stage.REFUSED:
        return not entry.listed or entry.asked == size
    rejected = entry.answer is not None and entry.answer.state is State.REJECTED
    return entry.stage is Stage.HOLDS and entry.asked == size and (entry.settled or rejected)


def _can_be_asked(entry: Standing) -> bool:
    """Whether the new size may be asked for now.

    A replica that never ran first gets what it needs as it is: refused more, it would leave a disk that has room for it, and
    might come back for ever.
    """
    return entry.stage is Stage.HOLDS or (
        entry.stage in {Stage.PENDING, Stage.REFUSED} and entry.listed and has_run(entry.replica)
    )


def _asked(volume: Volume, growing: Iterable[Standing]) -> tuple[Write, ...]:
    """Requests for the new size. A rejection of a size that is not asked any more must go first, or it would look like the answer."""
    return tuple(
        Require(entry.replica.disk_id, Kind.REPLICA, entry.name, volume.size)
        for entry in growing
        if _can_be_asked(entry) and entry.asked != volume.size and (entry.settled or entry.asked != entry.held)
    )


def _back(found: Iterable[Standing]) -> tuple[Write, ...]:
    """Requests for what replicas need as they are, where more is asked: an expansion failed or was called off."""
    return tuple(
        Require(entry.replica.disk_id, Kind.REPLICA, entry.name, entry.base)
        for entry in found
        if entry.asked is not None and entry.asked > entry.base and entry.stage is not Stage.REFUSED_NEW
    )


def _grown(found: Iterable[Standing], size: int) -> tuple[Write, ...]:
    return tuple(Grow(entry.name, size) for entry in found)


def _short(
    volume: Volume, growing: Iterable[Standing], schedules: Mapping[str, DiskSchedule], cluster: Cluster
) -> frozenset[str]:
    """The UUIDs of the disks that would not grant what all of their replicas lack together."""
    lacking = Counter[str]()
    for entry in growing:
        lacking[entry.replica.disk_id] += max(0, volume.size - claim(entry.asked, entry.answer))
    return frozenset(
        uuid
        for uuid, size in lacking.items()
        if (found := schedules.get(uuid))
        and not would_grant(found, limit_of(found, cluster.nodes.get(found.spec.node)), size)
    )


def _pending(volume: Volume) -> Condition:
    message = f"waiting for all disks to answer for {format_bytes(volume.size)} per replica"
    return Condition(DISK_ALLOCATION, "False", EXPANSION_PENDING, message)


def _granted(volume: Volume) -> Condition:
    message = f"all disks granted {format_bytes(volume.size)} per replica"
    return Condition(DISK_ALLOCATION, "False", EXPANSION_GRANTED, message)


def _rejected(
    volume: Volume,
    growing: Iterable[Standing],
    schedules: Mapping[str, DiskSchedule],
    short: Collection[str] = (),
    known: Condition | None = None,
) -> Condition:
    """Which disks refused, or would refuse; while replicas go back to the old size perhaps only the message still tells."""
    start = f"the volume cannot grow to {format_bytes(volume.size)}"
    refused = [entry.replica for entry in growing if _refused(entry) or entry.replica.disk_id in short]
    if not refused and known is not None and known.message.startswith(f"{start}:"):
        return Condition(DISK_ALLOCATION, "False", EXPANSION_REJECTED, known.message)
    nodes = {replica.disk_id: replica.node_id for replica in refused}
    full = [uuid for uuid in nodes if not trouble(schedules, uuid)]
    disks = ", ".join(f"disk {disk_name(schedules, uuid)} on node {nodes[uuid]}" for uuid in full)
    because = [
        *([f"no room on {disks}"] if disks else []),
        *(trouble(schedules, uuid) for uuid in nodes if uuid not in full),
    ]
    told = "; ".join(because) or "its disks are asked for the old size first"
    return Condition(DISK_ALLOCATION, "False", EXPANSION_REJECTED, f"{start}: {told}")


def _refused(entry: Standing) -> bool:
    return entry.stage is Stage.REFUSED or (entry.answer is not None and entry.answer.state is State.REJECTED)
