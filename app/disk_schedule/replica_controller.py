"""Releases what a replica held, only when it is deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import structlog

from app.disk_schedule.controller import Controller, ControllerContext
from app.disk_schedule.orphan_requests import OrphanRequests
from app.disk_schedule.writer import ReadObjects, read_replica
from app.kube.resources import LONGHORN_REPLICAS
from app.runtime.work_queue import Requeue
from scheduler_core.convert.object_header import header
from scheduler_core.disk_schedule.replica_release import release_replica
from scheduler_core.model.disk_schedule import DiskSchedule, Fault, RequestKind
from scheduler_core.model.longhorn import Replica

log = structlog.get_logger("controllers")


class ReplicaController(Controller):
    """Reconciles deleted replicas, and requests for replicas that do not exist."""

    name = "replica"

    def __init__(self, context: ControllerContext) -> None:
        self._orphans = OrphanRequests(context.orphans_after, context.clock)
        super().__init__(context)

    def subscribe(self) -> None:
        """Subscribes to replicas, and to DiskSchedules for their requests."""
        self.cache.replicas.subscribe(self._on_replica_change)
        self.cache.schedules.subscribe(self._on_schedule_change)

    def all_keys(self) -> Iterable[str]:
        """Returns names of deleted and unreadable replicas, and of orphaned requests."""
        replicas = self.cache.replicas.all()
        to_release = {name for name, each in replicas.items() if isinstance(each.value, Fault) or each.value.deleting}
        requested = {name for each in self.cache.schedules.readable().values() for name in each.spec.replicas}
        return sorted(to_release | (requested - replicas.keys()))

    def _on_replica_change(self, name: str, _before: Replica | Fault | None, after: Replica | Fault | None) -> None:
        if after is None and self._running:
            self._orphans.mark_deleted(name)
        if not isinstance(after, Replica) or after.deleting:
            self.enqueue(name)

    def _on_schedule_change(
        self, _name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        if not isinstance(after, DiskSchedule):
            return
        old_requests = before.spec.replicas if isinstance(before, DiskSchedule) else {}
        for name in sorted(after.spec.replicas.keys() - old_requests.keys()):
            if self.cache.replicas.get(name) is None:
                self.enqueue(name)

    async def reconcile(self, key: str) -> Requeue | None:
        """Withdraws the requests for a replica that is deleted or gone."""
        cached_schedules = self.cache.schedules.all()
        schedules = {name: each.value for name, each in cached_schedules.items() if not isinstance(each.value, Fault)}
        raw = await self.writer.read(LONGHORN_REPLICAS, key)
        replica = None if raw is None else _read_deletion(key, raw)
        if replica is not None or not any(key in each.spec.replicas for each in schedules.values()):
            self._orphans.stop_waiting(key)
        elif all(each.keeps_requests for each in schedules.values() if key in each.spec.replicas):
            return None
        elif (wait := self._orphans.remaining_wait(key)) > 0:
            self.queue.add_later(key, wait)
            return None
        else:
            log.info("a request is withdrawn: there is no such replica", replica=key)
        objects = {} if raw is None else {(RequestKind.REPLICA, key): raw}
        if replica is None:
            schedules = {name: each for name, each in schedules.items() if not each.keeps_requests}
        writes = release_replica(key, replica, schedules)
        await self.writer.write_all(writes, ReadObjects(cached_schedules, objects=objects))
        self._orphans.stop_waiting(key)
        return None


def _read_deletion(name: str, raw: bytes) -> Replica:
    """Returns the replica, or one that only says whether it is being deleted.

    A replica that cannot be read still shows that, and more is not needed.
    """
    replica = read_replica(raw)
    if not isinstance(replica, Fault):
        return replica
    return replace(Replica(name, ""), deleting=header(raw).deleting)
