"""The DiskSchedule controller's decision: what is asked of a disk, what the disk is, and the status that follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.disk_schedule.allocation import Limit, allocate
from scheduler_core.disk_schedule.conditions import (
    BEING_DELETED,
    DISK_MISSING,
    DISK_NOT_READY,
    DISK_NOT_SCHEDULABLE,
    DISK_REPLACED,
    INVALID_REQUESTS,
    NODE_MISSING,
    NODE_UNREADABLE,
    OVER_ALLOCATED,
    REQUESTS_VALID,
    SCHEDULABLE,
    with_condition,
    without_condition,
)
from scheduler_core.model.disk_schedule import FINALIZER, DiskSchedule, Fault, Status
from scheduler_core.model.kube import Condition, condition
from scheduler_core.model.longhorn import Disk, Node
from scheduler_core.model.quantity import format_bytes

NodeRead = Node | Fault | None
_MOST_FAULTS: Final = 5


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What to write: the status unless it is None, and then, if it is over, the object without Longhorn's finalizer."""

    status: Status | None = None
    drop_finalizer: bool = False


def reconciled(schedule: DiskSchedule, node: NodeRead, now: str) -> Reconciled:
    """The next status of a DiskSchedule, None if it is right as it is.

    `node` is the one that `spec.node` names, None if there is none, a Fault if it cannot be read; `now` is RFC 3339. An
    object that is being deleted grants nothing more and goes when nobody asks for anything and nothing is held.
    """
    limit = limit_of(schedule, node)
    status = described(schedule, allocate(schedule.spec, schedule.status, limit), limit, now)
    over = schedule.deleting and replace(schedule, status=status).empty
    return Reconciled(
        status if status != schedule.status or _misread(schedule.faults) else None,
        drop_finalizer=over and FINALIZER in schedule.finalizers,
    )


def limit_of(schedule: DiskSchedule, node: NodeRead) -> Limit:
    """How much may be granted on the disk of a DiskSchedule.

    Only a node that cannot be read leaves requests undecided: what that node says is unknown, but it may be known soon.
    A node or disk that is not there refuses, so that whoever asked looks elsewhere; what is held stays held.
    """
    disk, where = _disk(node, schedule.spec.disk), f"Disk {schedule.spec.disk} on node {schedule.spec.node}"
    if schedule.deleting:
        return Limit(0, BEING_DELETED, f"{where}: its DiskSchedule is being deleted")
    if isinstance(node, Fault):
        return Limit(None, message=f"{where}: the node cannot be read: {node}")
    if node is None:
        return Limit(0, NODE_MISSING, f"{where}: there is no such Longhorn node")
    if disk is None:
        return Limit(0, DISK_MISSING, f"{where}: the node's status lists no such disk")
    if disk.uuid != schedule.name:
        return Limit(0, DISK_REPLACED, f"{where} has the UUID {disk.uuid or 'none'}, not {schedule.name}")
    for kind, reason in (("Ready", DISK_NOT_READY), (SCHEDULABLE, DISK_NOT_SCHEDULABLE)):
        found = condition(disk.conditions, kind)
        if found.status != "True":
            told = f": {found.message}" if found.message else ""
            return Limit(disk.storage_available, found.reason or reason, f"{where} has {kind} {found.status}{told}")
    return Limit(disk.storage_available)


def described(schedule: DiskSchedule, status: Status, limit: Limit, now: str) -> Status:
    """A status with the limit it was decided by and its conditions.

    Those are whether the disk grants anything at all, and what of the object cannot be read.
    """
    available = status.storage_available if limit.available is None else max(0, limit.available)
    status = replace(status, storage_available=available)
    conditions = with_condition(status.conditions, _schedulable(schedule, status, limit), now)
    if not schedule.faults:
        return replace(status, conditions=without_condition(conditions, REQUESTS_VALID))
    message = _listed(schedule.faults)
    invalid = Condition(REQUESTS_VALID, "False", INVALID_REQUESTS, message)
    return replace(status, conditions=with_condition(conditions, invalid, now))


def _schedulable(schedule: DiskSchedule, status: Status, limit: Limit) -> Condition:
    where = f"Disk {schedule.spec.disk} %s on node {schedule.spec.node}"
    if limit.reason:
        return Condition(SCHEDULABLE, "False", limit.reason, limit.message)
    if limit.available is None:
        return Condition(SCHEDULABLE, "Unknown", NODE_UNREADABLE, limit.message)
    if status.storage_scheduled > max(0, limit.available):
        held, available = format_bytes(status.storage_scheduled), format_bytes(max(0, limit.available))
        message = f"{where % 'is over-allocated'}: {held} are scheduled, {available} are available"
        return Condition(SCHEDULABLE, "False", OVER_ALLOCATED, message)
    return Condition(SCHEDULABLE, "True", "", where % "is ready for scheduling")


def _disk(node: NodeRead, name: str) -> Disk | None:
    disks: Iterable[Disk] = node.disks if isinstance(node, Node) else ()
    return next((disk for disk in disks if disk.name == name and disk.in_status), None)


def _misread(faults: Iterable[Fault]) -> bool:
    """Whether the status as it is written is not the one that was read, so that it has to be written again."""
    return any(fault.in_status for fault in faults)


def _listed(faults: tuple[Fault, ...]) -> str:
    shown = "; ".join(str(fault) for fault in faults[:_MOST_FAULTS])
    more = len(faults) - _MOST_FAULTS
    return f"{shown}; and {more} more" if more > 0 else shown
