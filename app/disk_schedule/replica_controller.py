"""The replica controller: gives back what a replica held, when it is deleted and then only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import structlog

from app.disk_schedule.controller import Context, Controller
from app.disk_schedule.orphan_requests import Orphans
from app.disk_schedule.writer import Read, read_replica
from app.kube.resources import LONGHORN_REPLICAS
from app.runtime.work_queue import Again
from scheduler_core.convert.object_header import header
from scheduler_core.disk_schedule.replica_release import released
from scheduler_core.model.disk_schedule import DiskSchedule, Fault, Kind
from scheduler_core.model.longhorn import Replica

log = structlog.get_logger("controllers")


class ReplicaController(Controller):
    """Looks at replicas that are deleted or gone, and at requests for replicas that do not exist."""

    name = "replica"

    def __init__(self, context: Context) -> None:
        self._orphans = Orphans(context.orphans_after, context.clock)
        super().__init__(context)

    def listen(self) -> None:
        """Replicas, and the names in requests."""
        self.watches.replicas.listen(self._replica_changed)
        self.watches.schedules.listen(self._schedule_changed)

    def everything(self) -> Iterable[str]:
        """Replicas that are deleted or cannot be read, and requests without one."""
        known = self.watches.replicas.all()
        ours = {name for name, each in known.items() if isinstance(each.value, Fault) or each.value.deleting}
        asked = {name for each in self.watches.schedules.readable().values() for name in each.spec.replicas}
        return sorted(ours | (asked - known.keys()))

    def _replica_changed(self, name: str, _before: Replica | Fault | None, after: Replica | Fault | None) -> None:
        if after is None and self._works:
            self._orphans.gone(name)
        if not isinstance(after, Replica) or after.deleting:
            self.look(name)

    def _schedule_changed(
        self, _name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        if not isinstance(after, DiskSchedule):
            return
        known = before.spec.replicas if isinstance(before, DiskSchedule) else {}
        for name in sorted(after.spec.replicas.keys() - known.keys()):
            if self.watches.replicas.get(name) is None:
                self.look(name)

    async def reconcile(self, key: str) -> Again | None:
        """Withdraws what is asked for a replica that goes or is gone."""
        schedules = self.watches.schedules.all()
        values = {name: each.value for name, each in schedules.items() if not isinstance(each.value, Fault)}
        raw = await self.carrier.read(LONGHORN_REPLICAS, key)
        replica = None if raw is None else _going(key, raw)
        if replica is not None or not any(key in each.spec.replicas for each in values.values()):
            self._orphans.there(key)
        elif (wait := self._orphans.wait(key)) > 0:
            self.queue.add_later(key, wait)
            return None
        else:
            log.info("a request is withdrawn: there is no such replica", replica=key)
        objects = {} if raw is None else {(Kind.REPLICA, key): raw}
        await self.carrier.carry(released(key, replica, values), Read(schedules, objects=objects))
        self._orphans.there(key)
        return None


def _going(name: str, raw: bytes) -> Replica:
    """The replica; of one that cannot be read it is known whether it is being deleted, and that is enough."""
    replica = read_replica(raw)
    if not isinstance(replica, Fault):
        return replica
    return replace(Replica(name, ""), deleting=header(raw).deleting)
