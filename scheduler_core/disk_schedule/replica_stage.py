"""How far a replica has come: placed, asked for, answered."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from scheduler_core.model.disk_schedule import Allocation, DiskSchedule, State
from scheduler_core.model.longhorn import Replica, Volume


class Stage(Enum):
    """Where a replica stands with its present size; growing beyond it is another matter."""

    UNPLACED = auto()
    UNASKED = auto()
    PENDING = auto()
    REFUSED_NEW = auto()
    REFUSED = auto()
    HOLDS = auto()


@dataclass(frozen=True, slots=True)
class Standing:
    """A replica beside its disk's DiskSchedule.

    Attributes:
        base: the bytes it needs as it is: its own size; of one without, what is asked for it, and before that the volume's
        listed: whether its disk's DiskSchedule has a request for it
        asked: the bytes of that request, None if there is none that can be read
        answer: what the disk answered, None while it did not
    """

    replica: Replica
    base: int
    stage: Stage
    listed: bool = False
    asked: int | None = None
    answer: Allocation | None = None

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.replica.name

    @property
    def held(self) -> int:
        """The bytes it holds."""
        return self.answer.size if self.answer else 0

    @property
    def settled(self) -> bool:
        """Whether the answer is to the request as it is: neither granted less nor a rejection from before."""
        return self.answer is not None and self.answer.state is State.SCHEDULED and self.answer.size == self.asked


def standing(
    volume: Volume, replica: Replica, schedules: Mapping[str, DiskSchedule], disks: Collection[str]
) -> Standing:
    """How far a replica has come; `disks` are the UUIDs that some node's status lists.

    REFUSED_NEW has never run, so it can go elsewhere: its request was rejected, its DiskSchedule is being deleted, or there is
    none and no node lists the disk. REFUSED is the same for a replica with data. A listed disk without a DiskSchedule is
    PENDING: node sync creates it, or a cache has yet to show it.
    """
    schedule = schedules.get(replica.disk_id)
    asked = schedule.spec.replicas.get(replica.name) if schedule else None
    base = replica.size or min(asked or volume.size, volume.size)
    if not replica.node_id or not replica.disk_id:
        return Standing(replica, base, Stage.UNPLACED)
    refused = Stage.REFUSED if has_run(replica) else Stage.REFUSED_NEW
    if schedule is None:
        return Standing(replica, base, Stage.PENDING if replica.disk_id in disks else refused)
    listed = replica.name in schedule.spec.replicas
    answer = schedule.status.replicas.get(replica.name)
    if asked is None or asked < base:
        stage = refused if schedule.deleting else Stage.UNASKED
    elif answer is not None and answer.size >= base:
        stage = Stage.HOLDS
    else:
        stage = refused if answer is not None and answer.state is State.REJECTED else Stage.PENDING
    return Standing(replica, base, stage, listed, asked, answer)


def has_run(replica: Replica) -> bool:
    """Whether there may be data: it runs or ran, so it never leaves its disk for want of room."""
    return bool(replica.healthy_at or replica.failed_at) or replica.current_state not in {"", "stopped"}
