"""Releases what a replica held, only when it is deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from app.disk_schedule.controller import Controller
from app.disk_schedule.writer import ReadObjects, read_replica
from app.kube.resources import LONGHORN_REPLICAS
from app.runtime.work_queue import Requeue
from scheduler_core.convert.object_header import header
from scheduler_core.disk_schedule.replica_release import release_replica
from scheduler_core.model.disk_schedule import DiskSchedule, Fault, RequestKind
from scheduler_core.model.longhorn import Replica


class ReplicaController(Controller):
    """Reconciles replicas that are being deleted."""

    name = "replica"

    def subscribe(self) -> None:
        self.cache.replicas.subscribe(self._on_replica_change)

    def all_keys(self) -> Iterable[str]:
        """Returns the names of replicas that are being deleted, or may be because they cannot be read."""
        replicas = self.cache.replicas.all()
        return sorted(name for name, each in replicas.items() if isinstance(each.value, Fault) or each.value.deleting)

    def _on_replica_change(self, name: str, _before: Replica | Fault | None, after: Replica | Fault | None) -> None:
        if isinstance(after, Fault) or (after is not None and after.deleting):
            self.enqueue(name)

    async def reconcile(self, key: str) -> Requeue | None:
        """Withdraws the requests for a replica that is being deleted, then removes its finalizer."""
        cached_schedules = self.cache.schedules.all()
        schedules = {
            name: each.value for name, each in cached_schedules.items() if isinstance(each.value, DiskSchedule)
        }
        raw = await self.writer.read(LONGHORN_REPLICAS, key)
        if raw is not None:
            writes = release_replica(_read_deletion(key, raw), schedules)
            await self.writer.write_all(
                writes, ReadObjects(cached_schedules, objects={(RequestKind.REPLICA, key): raw})
            )
        return None


def _read_deletion(name: str, raw: bytes) -> Replica:
    """Returns the replica; one that cannot be read still shows whether it is being deleted."""
    replica = read_replica(raw)
    if not isinstance(replica, Fault):
        return replica
    return replace(Replica(name, ""), deleting=header(raw).deleting)
