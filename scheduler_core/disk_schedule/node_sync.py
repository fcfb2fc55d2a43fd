"""The node controller's decision: one DiskSchedule for each entry of `Node.status.diskStatus`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler_core.model.disk_schedule import FINALIZER, DiskSchedule
from scheduler_core.model.longhorn import Node

# What Kubernetes takes as an object's name (DNS-1123 subdomain).
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class Create:
    """Create the DiskSchedule `uuid` of a disk, with Longhorn's finalizer and no requests."""

    uuid: str
    disk: str
    node: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Write disk and node into the spec and put the finalizer on, at the version that was read."""

    schedule: DiskSchedule
    disk: str
    node: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete it if it still is at the version that was read: a request that came since must keep it."""

    schedule: DiskSchedule


Change = Create | Rename | Delete


@dataclass(frozen=True, slots=True)
class Synced:
    """What to write, in order of the names, and what is wrong with the nodes, as sentences."""

    changes: tuple[Change, ...] = ()
    problems: tuple[str, ...] = ()


def synced(nodes: Iterable[Node], schedules: Mapping[str, DiskSchedule], unread: Collection[str] = ()) -> Synced:
    """What makes the DiskSchedules those of the nodes' disks.

    A disk without UUID is not known yet and waits. One UUID on two nodes (a disk that was moved) stays where its
    DiskSchedule says, if that still lists it, else it is the first node's by name. A DiskSchedule whose disk is gone is deleted only
    when nobody asks for anything and nothing is held, so that no allocation is lost with it; until then it grants
    nothing (`reconcile.limit_of`). One that is being deleted is left alone: it is created again when it is gone.

    Args:
        nodes: all Longhorn nodes that can be read
        schedules: all DiskSchedules by name
        unread: the nodes that cannot be read; they may list any disk, so nothing is deleted while there is one
    """
    places, problems = _places(nodes, schedules)
    changes: list[Change] = []
    for uuid in sorted(places.keys() | schedules.keys()):
        schedule, place = schedules.get(uuid), places.get(uuid)
        if schedule is None and place is not None:
            changes.append(Create(uuid, place[1], place[0]))
        elif schedule is not None and not schedule.deleting:
            changes += _kept(schedule, place) if place else _gone(schedule, unread)
    return Synced(tuple(changes), problems)


def _places(
    nodes: Iterable[Node], schedules: Mapping[str, DiskSchedule]
) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Node and disk name of each UUID, and the problems."""
    found: dict[str, list[tuple[str, str]]] = {}
    for node in nodes:
        for disk in node.disks:
            if disk.in_status and disk.uuid:
                found.setdefault(disk.uuid, []).append((node.name, disk.name))
    places: dict[str, tuple[str, str]] = {}
    problems: list[str] = []
    for uuid, listed in sorted(found.items()):
        listed.sort()
        if len(uuid) > _LONGEST_NAME or not _NAME.fullmatch(uuid):
            problems.append(f"disk {listed[0][1]} of node {listed[0][0]}: the UUID {uuid!r} cannot be an object's name")
            continue
        current = schedules.get(uuid)
        known = (current.spec.node, current.spec.disk) if current else None
        places[uuid] = known if known is not None and known in listed else listed[0]
        if len(listed) > 1:
            others = ", ".join(f"disk {disk} of node {node}" for node, disk in listed)
            problems.append(f"the UUID {uuid} is listed more than once: {others}")
    return places, tuple(problems)


def _kept(schedule: DiskSchedule, place: tuple[str, str]) -> list[Change]:
    node, disk = place
    right = (schedule.spec.node, schedule.spec.disk) == place and FINALIZER in schedule.finalizers
    return [] if right else [Rename(schedule, disk, node)]


def _gone(schedule: DiskSchedule, unread: Collection[str]) -> list[Change]:
    unused = schedule.empty and not schedule.faults
    return [Delete(schedule)] if unused and not unread else []
