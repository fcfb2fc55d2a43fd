"""The volume controller: places, requests and sizes of a volume's replicas, and its condition DiskAllocation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from app.disk_schedule.controller import Context, Controller
from app.disk_schedule.informer import Seen, VolumeSeen, condition_of, read_volume
from app.disk_schedule.writer import Read, read_replica
from app.kube.resources import LONGHORN_VOLUMES
from app.runtime.work_queue import Again
from scheduler_core.disk_schedule.conditions import DISK_ALLOCATION, says
from scheduler_core.disk_schedule.replica_release import changed
from scheduler_core.disk_schedule.volumes import VolumeSight, decided
from scheduler_core.disk_schedule.writes import Report
from scheduler_core.errors import ObjectError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.model.disk_schedule import DiskSchedule, Fault, Kind
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import Disk, Node, Replica

UNREADABLE: Final = "Unreadable"
"""Reason of DiskAllocation: the volume, or one of its replicas, cannot be read, so nothing is decided about it."""


class VolumeController(Controller):
    """Looks at volumes: when one changes, when a replica of it does, and when a disk has answered one of its replicas."""

    name = "volume"

    def __init__(self, context: Context) -> None:
        self._replicas: defaultdict[str, set[str]] = defaultdict(set)
        super().__init__(context)

    def listen(self) -> None:
        """Of DiskSchedules only answers to replicas and the disk's node: what becomes of backing images is nothing to a volume."""
        self.watches.volumes.listen(self._volume_changed)
        self.watches.replicas.listen(self._replica_changed)
        self.watches.schedules.listen(self._schedule_changed)

    def everything(self) -> Iterable[str]:
        """All volumes."""
        return self.watches.volumes.all()

    def _volume_changed(self, name: str, _before: VolumeSeen | Fault | None, after: VolumeSeen | Fault | None) -> None:
        if after is None:
            self._replicas.pop(name, None)
        else:
            self.look(name)

    def _replica_changed(self, name: str, before: Replica | Fault | None, after: Replica | Fault | None) -> None:
        if isinstance(before, Replica):
            self._replicas[before.volume].discard(name)
            self.look(before.volume)
        if isinstance(after, Replica):
            self._replicas[after.volume].add(name)
            self.look(after.volume)

    def _schedule_changed(
        self, _name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        was = before.status.replicas if isinstance(before, DiskSchedule) else {}
        now = after.status.replicas if isinstance(after, DiskSchedule) else {}
        moved = (
            isinstance(before, DiskSchedule) and isinstance(after, DiskSchedule) and before.spec.node != after.spec.node
        )
        for name in sorted(changed(was, now) | (now.keys() if moved else set())):
            replica = self.watches.replicas.value(name)
            if isinstance(replica, Replica):
                self.look(replica.volume)

    async def reconcile(self, key: str) -> Again | None:
        """Reads DiskSchedules first, then the volume and its replicas; decides; writes."""
        schedules = self.watches.schedules.all()
        raw = await self.carrier.read(LONGHORN_VOLUMES, key)
        if raw is None:
            return None
        raws = await self.carrier.replicas_of(key, self._replicas.get(key, ()))
        replicas = {name: read_replica(found) for name, found in raws.items()}
        volume = _volume(raw)
        read = Read(schedules, raw, {(Kind.REPLICA, name): found for name, found in raws.items()})
        problem = _problem(volume, replicas)
        if isinstance(volume, Fault) or problem:
            await self._report(raw, problem, read)
            return None
        known = tuple(each for each in replicas.values() if isinstance(each, Replica))
        values = {name: each.value for name, each in schedules.items() if not isinstance(each.value, Fault)}
        missing = {replica.disk_id for replica in known if replica.disk_id} - values.keys()
        cluster = _with_unreadable(self.watches.cluster(), self.watches.nodes.all().values(), missing)
        sight = VolumeSight(cluster, volume.volume, known, values, volume.condition)
        decision = decided(sight, self.context.time)
        await self.carrier.carry(decision.writes, read)
        return Again.WAITING if decision.waiting else None

    async def _report(self, raw: bytes, problem: str, read: Read) -> None:
        wanted, known = Condition(DISK_ALLOCATION, "False", UNREADABLE, problem), condition_of(raw)
        if not says(known, wanted):
            same = known is not None and known.status == wanted.status
            since = known.last_transition_time if known is not None and same else self.context.time
            stamped = Condition(wanted.type, wanted.status, wanted.reason, wanted.message, since or self.context.time)
            await self.carrier.carry((Report(stamped),), read)


def _with_unreadable(cluster: Cluster, nodes: Iterable[Seen[Node]], disks: Collection[str]) -> Cluster:
    """The cluster with its nodes as they are now. One that cannot be read is closed, and lists all the disks without a DiskSchedule.

    A replica's place is given up only if no node lists its disk, and of that node it is not known.
    """
    if not disks:
        return cluster
    listed = tuple(Disk("", uuid=uuid) for uuid in sorted(disks))
    return cluster.with_nodes(
        Node(each.name, disks=listed) if isinstance(each.value, Fault) else each.value for each in nodes
    )


def _volume(raw: bytes) -> VolumeSeen | Fault:
    try:
        return read_volume(raw)
    except ObjectError as error:
        return Fault(error.field, error.problem)


def _problem(volume: VolumeSeen | Fault, replicas: Mapping[str, Replica | Fault]) -> str:
    """What cannot be read of a volume, as a sentence; a replica that cannot be read may be anywhere and of any size."""
    if isinstance(volume, Fault):
        return f"the volume cannot be read: {volume}"
    faults = [
        f"replica {name} cannot be read: {each}" for name, each in sorted(replicas.items()) if isinstance(each, Fault)
    ]
    return "; ".join(faults)
