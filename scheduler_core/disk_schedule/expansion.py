"""Decides about a volume that grows: no replica gets the new size before all disks have granted it.

The direction is in the volume's condition, so that a controller that was stopped half-way goes on in the same direction:

    reason ExpansionPending    forward: request the new size on every disk, wait for all answers; all granted: go on to
                               ExpansionGranted; one rejected: turn to ExpansionRejected
    reason ExpansionGranted    no way back: write the sizes
    reason ExpansionRejected   back: request the old size on every disk again, and stay so until every disk would grant the
                               new size; then forward again

The condition is written before what follows from it, against the version of the volume that was read. So of two controllers of
which one sees all disks granting and the other sees one of them refusing (before it found space after all), only one goes on.
What is granted is held, so once the first size is written the others follow, however often a controller is stopped.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from scheduler_core.disk_schedule import allocation, writes
from scheduler_core.disk_schedule.disk_space import DiskSpace
from scheduler_core.disk_schedule.occupancy import ReplicaAllocation, Stage, has_run
from scheduler_core.disk_schedule.writes import Write, unallocated_condition
from scheduler_core.model.disk_schedule import DiskSchedule, RequestKind
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import Volume
from scheduler_core.model.quantity import format_bytes
from scheduler_core.structs import Struct


class Expansion(Struct, frozen=True):
    """What to do about a volume's growth."""

    writes: tuple[Write, ...] = ()  # in order; the first that fails ends them
    condition: Condition | None = None  # the condition while the volume grows, None if it does not
    requeue: bool = False  # no watch may bring the change that helps: reconcile again after a back-off


def expand(
    volume: Volume,
    allocations: Iterable[ReplicaAllocation],
    schedules: Mapping[str, DiskSchedule],
    space: Mapping[str, DiskSpace],
    current_condition: Condition | None,
) -> Expansion:
    """Decides what to write while `volume.size` exceeds the size of some replica. All replicas with a place grow
    together, or none does: a replica that does not even hold its current size must be granted the new size, too. A
    replica without a place just takes the new size when the others do.
    """
    allocations = list(allocations)
    unplaced = [entry for entry in allocations if entry.stage is Stage.UNPLACED and entry.current_size < volume.size]
    growing = [entry for entry in allocations if entry.stage is not Stage.UNPLACED and entry.current_size < volume.size]
    if not growing:
        return Expansion((*_rollback_requests(allocations), *_size_writes(unplaced, volume.size)))
    if current_condition is not None and current_condition.reason == writes.EXPANSION_REJECTED:
        growth = _growth_by_disk(volume, growing)
        full_disks = frozenset(uuid for uuid, size in growth.items() if uuid in space and not space[uuid].grants(size))
        at_current_size = all(
            entry.stage is Stage.ALLOCATED and entry.in_sync and entry.requested == entry.current_size
            for entry in growing
        )
        if full_disks or not at_current_size:
            causes = _Causes(schedules, space, full_disks)
            condition = _rejected_condition(volume, growing, causes, current_condition)
            return Expansion(_rollback_requests(allocations), condition, requeue=True)
        return Expansion(_growth_requests(volume, growing), _pending_condition(volume))
    granted = [entry for entry in growing if entry.stage is Stage.ALLOCATED and entry.held >= volume.size]
    if len(granted) == len(growing) or writes.condition_matches(current_condition, _granted_condition(volume)):
        incomplete = len(granted) < len(growing)
        requests = _growth_requests(volume, growing) if incomplete else ()
        sizes = _size_writes((*granted, *unplaced), volume.size)
        return Expansion((*sizes, *requests), _granted_condition(volume), requeue=incomplete)
    if not all(_has_answer(entry, volume.size) for entry in growing):
        return Expansion(_growth_requests(volume, growing), _pending_condition(volume))
    condition = _rejected_condition(volume, growing, _Causes(schedules, space))
    return Expansion(_rollback_requests(allocations), condition, requeue=True)


def _has_answer(entry: ReplicaAllocation, size: int) -> bool:
    if entry.stage is Stage.REFUSED:
        # A disk without a request from a replica with data, which gets none either, is gone.
        return not entry.has_request or entry.requested == size
    return entry.stage is Stage.ALLOCATED and entry.requested == size and (entry.in_sync or entry.rejected)


def _may_request_growth(entry: ReplicaAllocation) -> bool:
    # A replica that never ran is granted its current size first: if the new size were refused, it would leave a disk that has space for its
    # current size, and might come back again and again.
    return entry.stage is Stage.ALLOCATED or (
        entry.stage in {Stage.PENDING, Stage.REFUSED} and entry.has_request and has_run(entry.replica)
    )


def _growth_requests(volume: Volume, growing: Iterable[ReplicaAllocation]) -> tuple[Write, ...]:
    return tuple(
        writes.SetRequirement(entry.replica.disk_id, RequestKind.REPLICA, entry.name, volume.size)
        for entry in growing
        if _may_request_growth(entry)
        and entry.requested != volume.size
        # A rejection of a size that is not requested any more goes first: it would look like the answer to the new request.
        and (entry.in_sync or entry.requested != entry.held)
    )


def _rollback_requests(allocations: Iterable[ReplicaAllocation]) -> tuple[Write, ...]:
    """Returns requests for the current size where more is requested, because an expansion failed or was called off."""
    return tuple(
        writes.SetRequirement(entry.replica.disk_id, RequestKind.REPLICA, entry.name, entry.current_size)
        for entry in allocations
        if entry.requested is not None and entry.requested > entry.current_size and entry.stage is not Stage.REFUSED_NEW
    )


def _size_writes(allocations: Iterable[ReplicaAllocation], size: int) -> tuple[Write, ...]:
    return tuple(writes.SetReplicaSize(entry.name, size) for entry in allocations)


def _growth_by_disk(volume: Volume, growing: Iterable[ReplicaAllocation]) -> Counter[str]:
    growth = Counter[str]()
    for entry in growing:
        claimed = allocation.claim(entry.requested, entry.allocation)
        taken = max(claimed, entry.current_size) if has_run(entry.replica) else claimed
        growth[entry.replica.disk_id] += max(0, volume.size - taken)
    return growth


def _pending_condition(volume: Volume) -> Condition:
    message = f"waiting for all disks to answer for {format_bytes(volume.size)} per replica"
    return unallocated_condition(writes.EXPANSION_PENDING, message)


def _granted_condition(volume: Volume) -> Condition:
    message = f"all disks granted {format_bytes(volume.size)} per replica"
    return unallocated_condition(writes.EXPANSION_GRANTED, message)


class _Causes(Struct, frozen=True):
    schedules: Mapping[str, DiskSchedule]  # all DiskSchedules, by disk UUID
    space: Mapping[str, DiskSpace]  # what is left on each disk, by UUID
    full_disks: Collection[str] = ()  # UUIDs of disks that would refuse a request

    def describe(self, uuid: str, node: str, lacking: int) -> str:
        problem = writes.disk_problem(self.schedules, uuid)
        if problem:
            return problem
        # A disk without a DiskSchedule has a problem.
        disk = f"no room on disk {self.schedules[uuid].spec.disk} on node {node}"
        space = self.space.get(uuid)
        if space is None or space.problem:
            return disk
        return f"{disk} ({format_bytes(max(0, space.free))} left, {format_bytes(lacking)} more needed)"


def _rejected_condition(
    volume: Volume, growing: Iterable[ReplicaAllocation], causes: _Causes, current_condition: Condition | None = None
) -> Condition:
    start = f"the volume cannot grow to {format_bytes(volume.size)}"
    growing = list(growing)
    refused = [
        entry.replica
        for entry in growing
        if entry.stage is Stage.REFUSED or entry.rejected or entry.replica.disk_id in causes.full_disks
    ]
    # While replicas go back to the old size there may be no such disk: the message stays.
    if not refused and current_condition is not None and current_condition.message.startswith(f"{start}:"):
        return unallocated_condition(writes.EXPANSION_REJECTED, current_condition.message)
    lacking = _growth_by_disk(volume, growing)
    nodes = {replica.disk_id: replica.node_id for replica in refused}
    sentences = dict.fromkeys(causes.describe(uuid, node, lacking[uuid]) for uuid, node in nodes.items())
    cause = "; ".join(sentences) or "its disks are asked for the old size first"
    return unallocated_condition(writes.EXPANSION_REJECTED, f"{start}: {cause}")
