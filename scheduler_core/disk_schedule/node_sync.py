"""Decides which DiskSchedules to create, update and delete: one for each entry of `Node.status.diskStatus`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler_core.disk_schedule.occupancy import DiskOccupancy
from scheduler_core.model.disk_schedule import FINALIZER, Adoption, DiskSchedule, DiskScheduleSpec, RequestKind
from scheduler_core.model.longhorn import Node

# What Kubernetes accepts as an object's name (DNS-1123 subdomain).
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_OBJECT_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class Create:
    """Create a disk's DiskSchedule, as `new_schedule` describes it, named by the disk's UUID."""

    uuid: str
    disk: str
    node: str


@dataclass(frozen=True, slots=True)
class UpdateSpec:
    """Write disk and node into the spec and add the finalizer, against the version that was read."""

    schedule: DiskSchedule
    disk: str
    node: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the DiskSchedule at the version that was read: a request that was written since must keep it."""

    schedule: DiskSchedule


@dataclass(frozen=True, slots=True)
class Recreate:
    """Remove the finalizer of a DiskSchedule whose disk still exists. The DiskSchedule is being deleted, so this lets a
    successor be created, which gets its requests and grants (`new_schedule`).
    """

    schedule: DiskSchedule


Change = Create | UpdateSpec | Delete | Recreate


@dataclass(frozen=True, slots=True)
class DiskSync:
    """The changes that node sync wants."""

    changes: tuple[Change, ...] = ()  # what to write, in order of the names
    problems: tuple[str, ...] = ()  # what is wrong with the nodes, as sentences


def sync_disks(
    nodes: Iterable[Node], schedules: Mapping[str, DiskSchedule], unreadable_nodes: Collection[str] = ()
) -> DiskSync:
    """Decides which changes make the DiskSchedules match the nodes' disks.

    A disk without UUID is not known yet and waits. One UUID on two nodes (a disk that was moved) stays where its DiskSchedule
    says, if that node still lists it, else it belongs to the first node by name. A DiskSchedule whose disk is gone is deleted
    only when it has no requests and nothing is held, so that no allocation is lost with it; until then it grants nothing
    (`reconcile.limit_of`). A DiskSchedule that is deleted although its disk is there is replaced by a successor.

    Args:
        nodes: all Longhorn nodes that can be read
        schedules: all DiskSchedules by name
        unreadable_nodes: names of the other nodes; they may list any disk, so nothing is deleted while there is one
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
            changes += _updates(schedule, place) if place else _deletions(schedule, unreadable_nodes)
    return DiskSync(tuple(changes), problems)


def new_schedule(create: Create, occupancy: DiskOccupancy, predecessor: DiskSchedule | None = None) -> DiskSchedule:
    """Returns the DiskSchedule to create, with the requests of everything that is on the disk. So no newcomer can
    request the bytes of a replica that runs there before the replica does. A replica or copy that the disk's earlier
    DiskSchedule knew keeps its request and what it was granted.

    Args:
        create: the disk
        occupancy: what is on the disk, read after it was seen that there is no DiskSchedule
        predecessor: the last version of the disk's earlier DiskSchedule; None if there was none, or it is not known
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
    nodes: Iterable[Node], schedules: Mapping[str, DiskSchedule]
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


def _updates(schedule: DiskSchedule, place: tuple[str, str]) -> list[Change]:
    node, disk = place
    up_to_date = (schedule.spec.node, schedule.spec.disk) == place and FINALIZER in schedule.finalizers
    return [] if up_to_date else [UpdateSpec(schedule, disk, node)]


def _deletions(schedule: DiskSchedule, unreadable_nodes: Collection[str]) -> list[Change]:
    unused = schedule.empty and not schedule.faults
    return [Delete(schedule)] if unused and not unreadable_nodes else []
