"""Decides about one volume: places, requests and sizes of its replicas, and its condition DiskAllocation.

`expansion` decides about a volume that grows; this module decides about everything else, and combines both. Caches of
different kinds are not equally new: the caller takes the DiskSchedules first, from a cache if it likes, and reads the volume
and its replicas after them from the API server. Then a request is never younger than the place or size it was made for.
"""

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from datetime import datetime, timedelta

from scheduler_core.disk_schedule import disk_space, expansion, writes
from scheduler_core.disk_schedule.occupancy import ReplicaAllocation, Stage, has_run, replica_allocation
from scheduler_core.disk_schedule.writes import Write, unallocated_condition
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.new_volume_placement import waits_for_attachment
from scheduler_core.model import kube, longhorn, quantity
from scheduler_core.model.disk_schedule import DiskSchedule, RequestKind
from scheduler_core.structs import Struct, replace

_PLACING_TIME = timedelta(seconds=3)


class VolumeSnapshot(Struct, frozen=True):
    """Input of a decision about a volume."""

    cluster: Cluster  # what Longhorn's placement rules read
    volume: longhorn.Volume
    replicas: tuple[longhorn.Replica, ...]
    schedules: Mapping[str, DiskSchedule]  # all DiskSchedules, by disk UUID
    space: disk_space.DiskSpaces  # what a newcomer can get on each disk, by UUID
    condition: kube.Condition | None = None  # the volume's condition DiskAllocation, None if it has none
    image_fault: str = ""  # why the volume's backing image cannot be read; "" if it can, or does not exist
    created: str = ""  # when the volume was created, RFC 3339; "" if that does not matter, because it has a condition
    # The UUIDs of the DiskSchedules that have requests for the volume's replicas, by the replica's name; None to look
    # into each DiskSchedule.
    requested_disks: Mapping[str, AbstractSet[str]] | None = None

    def disks_with_request(self, replica: str) -> AbstractSet[str]:
        if self.requested_disks is not None:
            return self.requested_disks.get(replica, frozenset())
        return {uuid for uuid, schedule in self.schedules.items() if replica in schedule.spec.replicas}

    @property
    def image_problem(self) -> kube.Condition | None:
        """The condition of a volume whose backing image or the image's size is not known, or None."""
        name = self.volume.backing_image
        image = self.cluster.backing_image(name) if name else None
        if not name or (image is not None and image.real_size > 0):
            return None
        if self.image_fault:
            return unallocated_condition(writes.UNREADABLE, f"backing image {name} cannot be read: {self.image_fault}")
        if image is None:
            return unallocated_condition(writes.BACKING_IMAGE_MISSING, f"there is no backing image {name}")
        return unallocated_condition(writes.BACKING_IMAGE_PENDING, f"the size of backing image {name} is not known yet")


class VolumeDecision(Struct, frozen=True):
    """What to do about a volume."""

    writes: tuple[Write, ...] = ()  # in order; the first that fails ends them
    # The names of the replicas whose space is granted, so that their instances may be created.
    ready: frozenset[str] = frozenset()
    requeue: bool = False  # no watch may bring the change that helps: reconcile again after a back-off


def decide_volume(snapshot: VolumeSnapshot, now: str) -> VolumeDecision:
    """Decides what to write for a volume; `now` is RFC 3339. A replica without a place gets one, which is noted in the
    Replica, and its size is requested there. A replica that was rejected before it ever ran, or whose disk is gone by
    then, loses its place and is tried on another disk; a replica with data stays and keeps its request. A place without
    a request is given up, too, if the disk has no room for it any more. A request on a disk that is not the replica's
    is withdrawn, so a place is always given up before its request. A replica without a size gets one, or it would never
    count as one that has to grow. A volume that is being deleted is left to the replica controller. A new volume gets
    its first condition when it is placed, or when that takes long: most are placed within a second.
    """
    if snapshot.volume.deleting:
        return VolumeDecision()
    is_new = snapshot.condition is None and _is_recent(snapshot.created, now)
    if is_new and not snapshot.replicas:
        return VolumeDecision(requeue=True)
    placed = {replica.disk_id for replica in snapshot.replicas if replica.disk_id}
    disks = frozenset[str]()
    if placed - snapshot.schedules.keys():
        nodes = snapshot.cluster.nodes.values()
        disks = frozenset(disk.uuid for node in nodes for disk in node.disks if disk.in_status)
    allocations = [
        _without_lost_place(snapshot, replica_allocation(snapshot.volume, replica, snapshot.schedules, disks))
        for replica in sorted(snapshot.replicas, key=lambda each: each.name)
        if not replica.deleting
    ]
    growth = expansion.expand(snapshot.volume, allocations, snapshot.schedules, snapshot.space, snapshot.condition)
    # The size is written before it is requested: it would otherwise follow the volume's, which may change.
    sizes = tuple(
        writes.SetReplicaSize(entry.name, entry.current_size)
        for entry in allocations
        if entry.current_size and not entry.replica.size
    )
    requests = tuple(
        writes.SetRequirement(entry.replica.disk_id, RequestKind.REPLICA, entry.name, entry.current_size)
        for entry in allocations
        if entry.stage is Stage.UNREQUESTED
    )
    placement = _place_next_replica(snapshot, allocations)
    contradictions = _contradictions(snapshot, allocations)
    condition = growth.condition or _condition(snapshot, allocations, placement, contradictions)
    strays = _stray_withdrawals(snapshot, allocations)
    unresolved = bool(placement.without_disk or contradictions)
    # A disk has no DiskSchedule yet, does not answer, or refuses a replica with data, or its backing image is missing.
    unanswered = any(entry.stage in {Stage.REFUSED, Stage.PENDING} or entry.obstacle for entry in allocations)
    requeue = growth.requeue or unresolved or unanswered
    other_writes = (*strays, *sizes, *growth.writes, *requests, *placement.writes)
    # The condition is written first: an expansion must not be forgotten half-way (see `expansion`).
    first_writes = condition_writes(snapshot.condition, condition, now)
    if is_new and condition.reason == writes.ALLOCATION_PENDING and (requeue or other_writes):
        first_writes = ()
    return VolumeDecision(
        writes=(*first_writes, *other_writes),
        ready=frozenset(entry.name for entry in allocations if entry.stage is Stage.ALLOCATED and not entry.obstacle),
        requeue=requeue,
    )


def _without_lost_place(snapshot: VolumeSnapshot, entry: ReplicaAllocation) -> ReplicaAllocation:
    """Returns the allocation, refused if the disk cannot grant it any more."""
    # Only a replica that never ran is refused. Its place was noted before the process ended, and the space was given to
    # another meanwhile; or its backing image was deleted while it waited.
    if entry.stage not in {Stage.UNREQUESTED, Stage.PENDING} or has_run(entry.replica):
        return entry
    if snapshot.image_problem is not None and not snapshot.image_fault:
        return replace(entry, stage=Stage.REFUSED_NEW)
    if entry.stage is Stage.PENDING or entry.has_request:
        return entry
    uuid = entry.replica.disk_id
    space = snapshot.space.get(uuid)
    if space is None or space.undecided:
        return entry
    # The place itself counts as taken already.
    name = snapshot.volume.backing_image
    image = snapshot.cluster.backing_image(name) if name else None
    more = disk_space.unclaimed_image_bytes(snapshot.schedules.get(uuid), image.name, image.real_size) if image else 0
    return entry if space.grants(more) else replace(entry, stage=Stage.REFUSED_NEW)


def condition_writes(current: kube.Condition | None, wanted: kube.Condition, now: str) -> tuple[Write, ...]:
    """Sets a volume's condition where it differs."""
    if writes.condition_matches(current, wanted):
        return ()
    # While a volume is being placed, its message would change with every step; it is updated only once that takes long.
    if (
        current is not None
        and current.reason == wanted.reason == writes.ALLOCATION_PENDING
        and _is_recent(current.last_transition_time, now)
    ):
        return ()
    same_status = current is not None and current.status == wanted.status
    since = current.last_transition_time if current is not None and same_status else now
    return (writes.SetVolumeCondition(replace(wanted, last_transition_time=since or now)),)


def _is_recent(time: str, now: str) -> bool:
    """Whether something happened within the last seconds, by two clocks; an unreadable time is long ago."""
    try:
        age = datetime.fromisoformat(now) - datetime.fromisoformat(time)
    except ValueError:
        return False
    return abs(age) < _PLACING_TIME


def _stray_withdrawals(snapshot: VolumeSnapshot, allocations: Iterable[ReplicaAllocation]) -> tuple[Write, ...]:
    # A controller may also have requested them while its cache was behind.
    return tuple(
        writes.SetRequirement(uuid, RequestKind.REPLICA, entry.name, 0)
        for entry in allocations
        for uuid in sorted(snapshot.disks_with_request(entry.name))
        if uuid != entry.replica.disk_id
    )


class _Placement(Struct, frozen=True):
    writes: tuple[Write, ...] = ()  # what places the first replica that can be placed
    without_disk: tuple[str, ...] = ()  # names of the replicas before it for which there is no disk
    explanation: str = ""  # what they need and what the disks have, as a sentence
    undecided: bool = False  # whether a node that cannot be read might have room for them


def _place_next_replica(snapshot: VolumeSnapshot, allocations: Iterable[ReplicaAllocation]) -> _Placement:
    placing: list[Write] = []
    without_disk: list[str] = []
    explanation = ""
    undecided = False
    view = disk_space.PlacementView(snapshot.cluster, snapshot.schedules, snapshot.space)
    for entry in allocations:
        if _waits_for_attachment(snapshot.volume, entry) or entry.stage not in {Stage.UNPLACED, Stage.REFUSED_NEW}:
            continue
        if snapshot.image_problem is None:
            choice = disk_space.choose_disk(view, snapshot.volume, entry.replica, snapshot.replicas)
        else:
            choice = disk_space.DiskChoice(None)
        if choice.candidate is not None:
            disk = choice.candidate.disk
            placing += [
                # First the place: a place without a request is seen, and requests; a request without a place would be stray.
                writes.AssignReplica(entry.name, choice.candidate.node.name, disk.uuid, disk.path),
                writes.SetRequirement(disk.uuid, RequestKind.REPLICA, entry.name, entry.current_size),
            ]
            # Only one is placed, because the next one's place depends on it.
            break
        if entry.replica.node_id or entry.replica.disk_id:
            placing.append(writes.AssignReplica(entry.name))
        without_disk.append(entry.name)
        explanation = explanation or choice.explanation
        undecided |= choice.undecided
    return _Placement(tuple(placing), tuple(without_disk), explanation, undecided)


def _waits_for_attachment(volume: longhorn.Volume, entry: ReplicaAllocation) -> bool:
    return entry.stage is Stage.UNPLACED and waits_for_attachment(volume)


def _contradictions(snapshot: VolumeSnapshot, allocations: Iterable[ReplicaAllocation]) -> list[str]:
    sentences: list[str] = []
    for entry in allocations:
        replica = entry.replica
        schedule = snapshot.schedules.get(replica.disk_id)
        moves = entry.stage in {Stage.UNPLACED, Stage.REFUSED_NEW}
        if schedule is not None and not moves and replica.node_id != schedule.spec.node:
            # The place was edited by hand, or the disk was moved. It is only reported: the disk is where the data is.
            disk = f"disk {replica.disk_id} is on node {schedule.spec.node}"
            sentences.append(f"replica {entry.name} is said to be on node {replica.node_id}, but its {disk}")
    return sentences


def _condition(
    snapshot: VolumeSnapshot,
    allocations: Sequence[ReplicaAllocation],
    placement: _Placement,
    contradictions: Sequence[str],
) -> kube.Condition:
    # True only if every replica holds its size on a disk that is there, together with the volume's backing image.
    refusals = [_refusal(snapshot, entry) for entry in allocations if entry.stage is Stage.REFUSED]
    if refusals:
        return unallocated_condition(writes.ALLOCATION_REJECTED, "; ".join(refusals))
    obstacles = [entry.obstacle for entry in allocations if entry.stage is Stage.ALLOCATED and entry.obstacle]
    image_problem = snapshot.image_problem
    if image_problem is not None and not all(entry.stage is Stage.ALLOCATED for entry in allocations):
        return image_problem
    if placement.without_disk:
        replicas = _list_replicas(placement.without_disk)
        reason = writes.NODE_UNREADABLE if placement.undecided else writes.NO_DISK
        return unallocated_condition(
            reason, f"no disk can be asked for room for {replicas}, which needs {placement.explanation}"
        )
    if contradictions:
        return unallocated_condition(writes.PLACE_CONTRADICTED, "; ".join(contradictions))
    detached = tuple(entry.name for entry in allocations if _waits_for_attachment(snapshot.volume, entry))
    pending = [entry for entry in allocations if entry.stage is not Stage.ALLOCATED and entry.name not in detached]
    if pending or placement.writes:
        return _pending_condition(snapshot, pending)
    if detached:
        message = f"waiting for the volume to be attached, then for room for {_list_replicas(detached)}"
        return unallocated_condition(writes.ALLOCATION_PENDING, message)
    if image_problem is not None:
        return image_problem
    if obstacles:
        worst = next((each for each in obstacles if each.reason == writes.ALLOCATION_REJECTED), obstacles[0])
        messages = dict.fromkeys(each.message for each in obstacles if each.reason == worst.reason)
        return replace(worst, message="; ".join(messages))
    return kube.Condition(writes.DISK_ALLOCATION, "True")


def _pending_condition(snapshot: VolumeSnapshot, pending: Iterable[ReplicaAllocation]) -> kube.Condition:
    waiting: list[str] = []
    for entry in pending:
        schedule = snapshot.schedules.get(entry.replica.disk_id)
        disk = f"disk {schedule.spec.disk} on node {schedule.spec.node}" if schedule else "a disk"
        waiting.append(f"{quantity.format_bytes(entry.current_size)} for replica {entry.name} on {disk}")
    return unallocated_condition(writes.ALLOCATION_PENDING, f"waiting for {', '.join(waiting)}")


def _refusal(snapshot: VolumeSnapshot, entry: ReplicaAllocation) -> str:
    uuid = entry.replica.disk_id
    request = f"{quantity.format_bytes(entry.current_size)} for replica {entry.name}, which has data there"
    cause = writes.disk_problem(snapshot.schedules, uuid)
    if cause:
        return f"{cause}: it cannot grant {request}"
    space = snapshot.space.get(uuid)
    if space is None or space.problem:
        return f"the disk has no room for {request}"
    # What the replica lacks counts as taken, so that no other gets it.
    left = quantity.format_bytes(max(0, space.free + entry.current_size - entry.held))
    return f"disk {space.disk} on node {space.node} has {left} left, no room for {request}"


def _list_replicas(names: tuple[str, ...]) -> str:
    return f"replica{'s' if len(names) > 1 else ''} {', '.join(names)}"
