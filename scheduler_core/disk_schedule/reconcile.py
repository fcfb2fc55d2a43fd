"""Decides the next status of a DiskSchedule from its requests and the state of its disk, and says in sentences what a new status
grants, rejects or releases. The mirror describes a disk whose Longhorn allocates by itself: observed, never decided.

Node sync decides which DiskSchedules to create, update and delete: one for each entry of `Node.status.diskStatus`.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from scheduler_core.disk_schedule import writes
from scheduler_core.disk_schedule.allocation import Limit, allocate
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy
from scheduler_core.model import kube, longhorn, quantity
from scheduler_core.model.disk_schedule import (
    FINALIZER,
    Adoption,
    Allocation,
    Allocations,
    AllocationState,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    Fault,
    RequestKind,
    Requests,
)
from scheduler_core.structs import Struct, replace

# What Kubernetes accepts as an object's name (DNS-1123 subdomain).
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_OBJECT_NAME = 253


class Create(Struct, frozen=True):
    """Create a disk's DiskSchedule, as `new_schedule` describes it, named by the disk's UUID."""

    uuid: str
    disk: str
    node: str


class UpdateSpec(Struct, frozen=True):
    """Write disk and node into the spec and add the finalizer, against the version that was read."""

    schedule: DiskSchedule
    disk: str
    node: str


class Delete(Struct, frozen=True):
    """Delete the DiskSchedule at the version that was read: a request that was written since must keep it."""

    schedule: DiskSchedule


class Recreate(Struct, frozen=True):
    """Remove the finalizer of a DiskSchedule whose disk still exists. The DiskSchedule is being deleted, so this lets a
    successor be created, which gets its requests and grants (`new_schedule`).
    """

    schedule: DiskSchedule


Change = Create | UpdateSpec | Delete | Recreate


class DiskSync(Struct, frozen=True):
    """The changes that node sync wants."""

    changes: tuple[Change, ...] = ()  # what to write, in order of the names
    problems: tuple[str, ...] = ()  # what is wrong with the nodes, as sentences


def sync_disks(
    nodes: Iterable[longhorn.Node], schedules: Mapping[str, DiskSchedule], unreadable_nodes: Collection[str] = ()
) -> DiskSync:
    """Decides which changes make the DiskSchedules match the nodes' disks.

    A disk without UUID is not known yet and waits. One UUID on two nodes (a disk that was moved) stays where its DiskSchedule
    says, if that node still lists it, else it belongs to the first node by name. A DiskSchedule whose disk is gone is deleted
    only when it has no requests and nothing is held, so that no allocation is lost with it; until then it grants nothing
    (`reconcile.limit_of`). A DiskSchedule that is deleted although its disk is there is replaced by a successor.

    `nodes` are all Longhorn nodes that can be read. The others may list any disk, so nothing is deleted while there is one.
    """
    places, problems = _locate_disks(nodes, schedules)
    changes: list[Change] = []
    for uuid in sorted(places.keys() | schedules.keys()):
        schedule = schedules.get(uuid)
        place = places.get(uuid)
        if schedule is None and place is not None:
            node, disk = place
            changes.append(Create(uuid, disk, node))
        elif schedule is not None and schedule.deleting:
            changes += [Recreate(schedule)] if place is not None and FINALIZER in schedule.finalizers else []
        elif schedule is not None:
            unused = schedule.empty and not schedule.faults
            up_to_date = (schedule.spec.node, schedule.spec.disk) == place and FINALIZER in schedule.finalizers
            if place is not None and not up_to_date:
                changes.append(UpdateSpec(schedule, disk=place[1], node=place[0]))
            elif place is None and unused and not unreadable_nodes:
                changes.append(Delete(schedule))
    return DiskSync(tuple(changes), problems)


def new_schedule(create: Create, occupancy: DiskOccupancy, predecessor: DiskSchedule | None = None) -> DiskSchedule:
    """Returns the DiskSchedule to create, with the requests of everything that is on the disk. So no newcomer can
    request the bytes of a replica that runs there before the replica does. A replica or copy that the disk's earlier
    DiskSchedule knew keeps its request and what it was granted. `occupancy` is read after it was seen that there is no
    DiskSchedule; `predecessor` is the last version of the earlier one, None if there was none, or it is not known.
    """
    earlier = predecessor or DiskSchedule(create.uuid)
    requests: dict[RequestKind, dict[str, int]] = {kind: {} for kind in RequestKind}
    adopted: dict[RequestKind, dict[str, int]] = {kind: {} for kind in RequestKind}
    for kind in RequestKind:
        for name, occupant in sorted(occupancy.occupants(kind).items()):
            allocation = earlier.status.allocations(kind).get(name)
            held = allocation.size if allocation is not None and name in earlier.spec.requests(kind) else 0
            requests[kind][name] = max(occupant.size, earlier.spec.requests(kind).get(name) or 0)
            if held or occupant.has_data:
                adopted[kind][name] = held
    return DiskSchedule(
        create.uuid,
        DiskScheduleSpec(create.disk, create.node, requests[RequestKind.REPLICA], requests[RequestKind.BACKING_IMAGE]),
        finalizers=(FINALIZER,),
        adoption=Adoption(adopted[RequestKind.REPLICA], adopted[RequestKind.BACKING_IMAGE]),
    )


def _locate_disks(
    nodes: Iterable[longhorn.Node], schedules: Mapping[str, DiskSchedule]
) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    entries: dict[str, list[tuple[str, str]]] = {}
    for node in nodes:
        for disk in node.disks:
            if disk.in_status and disk.uuid:
                entries.setdefault(disk.uuid, []).append((node.name, disk.name))
    places: dict[str, tuple[str, str]] = {}
    problems: list[str] = []
    for uuid, listed in sorted(entries.items()):
        listed.sort()
        if len(uuid) > _MAX_OBJECT_NAME or not _OBJECT_NAME.fullmatch(uuid):
            problems.append(f"disk {listed[0][1]} of node {listed[0][0]}: the UUID {uuid!r} cannot be an object's name")
            continue
        schedule = schedules.get(uuid)
        current = (schedule.spec.node, schedule.spec.disk) if schedule else None
        places[uuid] = current if current is not None and current in listed else listed[0]
        if len(listed) > 1:
            all_places = ", ".join(f"disk {disk} of node {node}" for node, disk in listed)
            problems.append(f"the UUID {uuid} is listed more than once: {all_places}")
    return places, tuple(problems)


# Of storageAvailable: a smaller change is not written at once.
_MATERIAL_PART = 100

NodeLookup = longhorn.Node | Fault | None
"""A Longhorn node; None if it does not exist, a Fault if it cannot be read."""


class Reconciliation(Struct, frozen=True):
    """What to write for a DiskSchedule, in this order."""

    status: DiskScheduleStatus | None = None  # the next status, None if it is up to date
    remove_finalizer: bool = False  # whether to remove Longhorn's finalizer, so that the object goes
    # Whether the status may be written later, because it only follows a small change of the free space, by which no
    # decision differs.
    deferrable: bool = False


def reconcile(
    schedule: DiskSchedule, node: NodeLookup, now: str, occupancy: DiskOccupancy = NO_OCCUPANTS
) -> Reconciliation:
    """Decides the next status of a DiskSchedule. `node` is the Longhorn node that `spec.node` names; `now` is RFC 3339;
    `occupancy` is what is on the disk. An object that is being deleted grants nothing more and goes when it has no
    requests and nothing is held.
    """
    limit = limit_of(schedule, node)
    occupancy = occupancy.with_adoption(schedule.adoption, schedule.spec)
    grants = schedule.status
    if not schedule.decided:
        # A new DiskSchedule's first decision starts from the grants of its predecessor.
        grants = grants.with_allocations(lambda kind: _grant_all(schedule.adoption.sizes(kind)))
    status = allocate(schedule.spec, grants, limit, occupancy)
    status = describe_status(schedule, status, limit, now)
    # Fields of the status that cannot be read are ignored: they have to be overwritten even if nothing else differs.
    outdated = status != schedule.status or any(fault.in_status for fault in schedule.faults)
    finished = schedule.deleting and replace(schedule, status=status).empty
    return Reconciliation(
        status if outdated else None,
        remove_finalizer=finished and FINALIZER in schedule.finalizers,
        deferrable=outdated and not schedule.faults and _differs_only_in_limit(schedule.status, status),
    )


def _differs_only_in_limit(current: DiskScheduleStatus, wanted: DiskScheduleStatus) -> bool:
    # The messages that name storageAvailable differ, too.
    if current.storage_available is None or wanted.storage_available is None:
        return False
    change = abs(wanted.storage_available - current.storage_available)
    material = change * _MATERIAL_PART >= abs(current.storage_available)
    first, second = (
        [replace(each, message="") if each.reason == writes.OVER_ALLOCATED else each for each in status.conditions]
        for status in (current, wanted)
    )
    as_current = replace(wanted, storage_available=current.storage_available, conditions=current.conditions)
    return not material and first == second and as_current == current


def _grant_all(sizes: Requests) -> Allocations:
    return {name: Allocation(AllocationState.SCHEDULED, size) for name, size in sorted(sizes.items()) if size}


def limit_of(schedule: DiskSchedule, node: NodeLookup) -> Limit:
    """Returns how much a DiskSchedule may grant. Only a node that cannot be read leaves requests undecided: its disks
    are unknown, but they may be known soon. A node or disk that does not exist refuses, so that its requests are made
    on other disks; what is held stays held.
    """
    disks = node.disks if isinstance(node, longhorn.Node) else ()
    disk = next((each for each in disks if each.name == schedule.spec.disk and each.in_status), None)
    where = f"Disk {schedule.spec.disk} on node {schedule.spec.node}"
    if isinstance(node, Fault):
        if schedule.deleting:
            return Limit(0, writes.BEING_DELETED, f"{where}: its DiskSchedule is being deleted")
        return Limit(None, message=f"{where}: the node cannot be read: {node}")
    # A disk that is gone keeps its reason while its DiskSchedule is being deleted: volumes depend on it.
    deletion = "; its DiskSchedule is being deleted" if schedule.deleting else ""
    if node is None:
        return Limit(0, writes.NODE_MISSING, f"{where}: there is no such Longhorn node{deletion}")
    if disk is None:
        return Limit(0, writes.DISK_MISSING, f"{where}: the node's status lists no such disk{deletion}")
    if disk.uuid != schedule.name:
        return Limit(
            0, writes.DISK_REPLACED, f"{where} has the UUID {disk.uuid or 'none'}, not {schedule.name}{deletion}"
        )
    if schedule.deleting:
        return Limit(0, writes.BEING_DELETED, f"{where}: its DiskSchedule is being deleted", deferred=True)
    for kind, reason in (("Ready", writes.DISK_NOT_READY), (writes.SCHEDULABLE, writes.DISK_NOT_SCHEDULABLE)):
        entry = kube.condition(disk.conditions, kind)
        if entry.status != "True":
            details = f": {entry.message}" if entry.message else ""
            return Limit(disk.storage_available, entry.reason or reason, f"{where} has {kind} {entry.status}{details}")
    return Limit(disk.storage_available)


def describe_status(schedule: DiskSchedule, status: DiskScheduleStatus, limit: Limit, now: str) -> DiskScheduleStatus:
    """Returns a status with its limit and its conditions. The limit is the one it was decided by. The conditions say
    whether the disk grants anything at all, and which fields of the object cannot be read.
    """
    available = status.storage_available if limit.available is None else limit.available
    status = replace(status, storage_available=available)
    conditions = writes.with_condition(status.conditions, _schedulable_condition(schedule, status, limit), now)
    if not schedule.faults:
        return replace(status, conditions=tuple(each for each in conditions if each.type != writes.REQUESTS_VALID))
    message = quantity.join_first([str(fault) for fault in schedule.faults], "; ")
    invalid = kube.Condition(writes.REQUESTS_VALID, "False", writes.INVALID_REQUESTS, message)
    return replace(status, conditions=writes.with_condition(conditions, invalid, now))


def _schedulable_condition(schedule: DiskSchedule, status: DiskScheduleStatus, limit: Limit) -> kube.Condition:
    where = f"Disk {schedule.spec.disk} %s on node {schedule.spec.node}"
    if limit.reason:
        return kube.Condition(writes.SCHEDULABLE, "False", limit.reason, limit.message)
    if limit.available is None:
        return kube.Condition(writes.SCHEDULABLE, "Unknown", writes.NODE_UNREADABLE, limit.message)
    if status.storage_scheduled > max(0, limit.available):
        held = quantity.format_bytes(status.storage_scheduled)
        available = quantity.format_bytes(limit.available)
        message = f"{where % 'is over-allocated'}: {held} are scheduled, {available} are available"
        return kube.Condition(writes.SCHEDULABLE, "False", writes.OVER_ALLOCATED, message)
    return kube.Condition(writes.SCHEDULABLE, "True", "", where % "is ready for scheduling")


def mirror_spec(
    schedule: DiskSchedule, replicas: Iterable[longhorn.Replica], images: Iterable[longhorn.BackingImage]
) -> DiskScheduleSpec:
    """Returns the spec that requests what is on the disk: every Replica object placed there, and every backing image
    with the disk in its spec.
    """
    placed = {each.name: each.size for each in replicas if each.disk_id == schedule.name and each.size}
    copies = {each.name: each.real_size for each in images if schedule.name in each.disks and each.real_size}
    return replace(schedule.spec, replicas=dict(sorted(placed.items())), backing_images=dict(sorted(copies.items())))


def mirror_status(schedule: DiskSchedule, node: NodeLookup, now: str) -> DiskScheduleStatus | None:
    """Returns the next status of a mirrored spec, if it differs. Everything counts as scheduled, whatever the limit.
    More than storageAvailable is an over-allocation: condition Schedulable is False with reason OverAllocated.
    """
    status = schedule.status.with_allocations(lambda kind: _grant_all(schedule.spec.requests(kind)))
    total = sum(entry.size for kind in RequestKind for entry in status.allocations(kind).values())
    status = replace(status, storage_scheduled=min(total, quantity.MAX_BYTES))
    status = describe_status(schedule, status, limit_of(schedule, node), now)
    return None if status == schedule.status else status


GRANTED = "Granted"
REJECTED = "Rejected"
RELEASED = "Released"


class AllocationEvent(Struct, frozen=True):
    """What happened to some requests."""

    reason: str  # GRANTED, REJECTED or RELEASED
    message: str  # names and bytes, and the disk's numbers

    @property
    def normal(self) -> bool:
        return self.reason != REJECTED


def allocation_events(schedule: DiskSchedule, status: DiskScheduleStatus) -> tuple[AllocationEvent, ...]:
    """Returns what a new status changes for the requests of a DiskSchedule."""
    changes: dict[str, list[str]] = {GRANTED: [], REJECTED: [], RELEASED: []}
    for kind in RequestKind:
        before = schedule.status.allocations(kind)
        after = status.allocations(kind)
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            old_size = old.size if old else 0
            new_size = new.size if new else 0
            requested = schedule.spec.requests(kind).get(name) or 0
            if new_size > old_size:
                changes[GRANTED].append(f"{quantity.format_bytes(new_size)} for {kind.value} {name}")
            elif new_size < old_size:
                changes[RELEASED].append(f"{quantity.format_bytes(old_size - new_size)} of {kind.value} {name}")
            rejected = new is not None and new.state is AllocationState.REJECTED
            if rejected and (old is None or old.state is not AllocationState.REJECTED):
                changes[REJECTED].append(f"{quantity.format_bytes(requested - new_size)} more for {kind.value} {name}")
    held = quantity.format_bytes(status.storage_scheduled)
    limit = "" if status.storage_available is None else f" of {quantity.format_bytes(status.storage_available)}"
    return tuple(
        AllocationEvent(reason, f"{quantity.join_first(sentences, ', ')}; {held}{limit} are held")
        for reason, sentences in changes.items()
        if sentences
    )
