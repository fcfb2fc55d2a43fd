"""DiskSchedules, their answers to requests, and the conditions of a disk that may grant some."""

from collections.abc import Mapping

from scheduler_core.disk_schedule.disk_space import DiskSpaces, disk_space
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy
from scheduler_core.disk_schedule.reconcile import NodeLookup
from scheduler_core.model.disk_schedule import Allocation, AllocationState, DiskSchedule
from scheduler_core.model.kube import Condition
from tests.builders import GI, LONGHORN, Object

READY = (Condition("Ready", "True"), Condition("Schedulable", "True"))


def grant(size: int) -> Allocation:
    return Allocation(AllocationState.SCHEDULED, size)


def rejection(held: int = 0) -> Allocation:
    """The answer to a request that is rejected; `held` bytes stay held."""
    return Allocation(AllocationState.REJECTED, held)


Sizes = Mapping[str, float]
"""Requested sizes in Gi, by name."""
Answers = Mapping[str, tuple[str, float]]
"""The controller's answers, (state, size in Gi), by name."""


def disk_schedule(
    uuid: str = "n-disk-1",
    *,
    replicas: Sizes | None = None,
    answers: Answers | None = None,
    images: Sizes | None = None,
    image_answers: Answers | None = None,
    node: str = "n",
    disk: str = "disk-1",
    deleting: bool = False,
) -> Object:
    """A diskschedules.longhorn.io with requests for replicas and backing images, and the controller's answers."""
    metadata: Object = {"name": uuid, "namespace": "longhorn-system", "finalizers": ["longhorn.io"]}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": LONGHORN,
        "kind": "DiskSchedule",
        "metadata": metadata,
        "spec": {"name": disk, "nodeID": node, "replicas": _requests(replicas), "backingImages": _requests(images)},
        "status": {"replicas": _allocations(answers), "backingImages": _allocations(image_answers)},
    }


def owned_by_longhorn(schedule: Object, *, owner: bool = True, ready: bool = True) -> Object:
    """The DiskSchedule as longhorn-manager's own controller writes it (longhorn-manager pull request 4366)."""
    metadata = {**schedule["metadata"], "ownerReferences": []}
    if owner:
        node = {"apiVersion": LONGHORN, "kind": "Node", "name": schedule["spec"]["nodeID"], "uid": "uid-of-the-node"}
        metadata["ownerReferences"] = [node]
    conditions = [{"type": "Ready", "status": "True", "reason": "", "message": ""}] if ready else None
    return {**schedule, "metadata": metadata, "status": {**schedule["status"], "conditions": conditions}}


def _requests(sizes: Sizes | None) -> Object:
    return {name: int(size * GI) for name, size in (sizes or {}).items()}


def _allocations(answers: Answers | None) -> Object:
    return {name: {"state": state, "scheduledSize": int(size * GI)} for name, (state, size) in (answers or {}).items()}


def disk_spaces(
    schedules: Mapping[str, DiskSchedule], nodes: Mapping[str, NodeLookup], occupancy: Mapping[str, DiskOccupancy]
) -> DiskSpaces:
    """Returns what a newcomer can get on each disk, by UUID."""
    spaces = {
        uuid: disk_space(schedule, nodes.get(schedule.spec.node), occupancy.get(uuid, NO_OCCUPANTS))
        for uuid, schedule in schedules.items()
    }
    return DiskSpaces(spaces)
