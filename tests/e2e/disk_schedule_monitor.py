"""Monitors every version of every DiskSchedule and Replica.

It reports over-allocations, lost bytes, and requests that are withdrawn although the replica is on the disk.

The versions of a disk are compared across DiskSchedules that are deleted and created again.
"""

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from app.disk_schedule.controller_cache import Informer, InformerObject
from app.kube.client import KubeClient
from app.kube.reflector import Key, Phase, Reflector, Timing
from app.kube.resources import DISK_SCHEDULES, LONGHORN_REPLICAS
from scheduler_core.convert.disk_schedule import read_disk_schedule
from scheduler_core.convert.snapshot_kinds import REPLICA
from scheduler_core.disk_schedule.occupancy import has_run
from scheduler_core.model import disk_schedule as ds
from scheduler_core.model.longhorn import Replica

_START_SECONDS = 20.0


class _ReplicaHistory(Informer[Replica]):
    """The replicas, with all of their versions."""

    def __init__(self) -> None:
        super().__init__(REPLICA.decode)
        self._versions: defaultdict[str, list[tuple[int, Replica | ds.Fault]]] = defaultdict(list)

    def _set(self, key: Key, value: InformerObject[Replica] | None) -> None:
        super()._set(key, value)
        if value is not None:
            self._versions[str(key)].append((int(value.version), value.value))

    def was_on_disk(self, name: str, uuid: str, version: int) -> bool:
        """Whether a replica was on a disk, and not being deleted, when an object got this version."""
        *_, last = (None, *(value for each, value in self._versions[name] if each < version))
        return isinstance(last, Replica) and last.disk_id == uuid and not last.deleting


class DiskScheduleMonitor:
    """Watches one namespace, while entered; at the end nothing must have been wrong."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.forged: set[str] = set()  # the resourceVersions of statuses and requests that a test has written itself
        self._faults: list[tuple[str, str]] = []
        self.grants = 0  # the number of grants, growth included
        self.rejections = 0  # the number of rejected requests
        # How often all objects were listed; with each list after the first, versions may have been missed.
        self.relists = 0
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        # By disk UUID; the last version of one that is gone stays.
        self._schedules: dict[str, ds.DiskSchedule] = {}
        self._statuses: dict[str, ds.DiskScheduleStatus] = {}
        # By disk UUID, the requests in the last version of its present DiskSchedule.
        self._requests: dict[str, ds.Requests] = {}
        self._withdrawals: list[tuple[str, str, str]] = []
        self._replicas = _ReplicaHistory()
        self._listed = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()), name="monitor")

    @property
    def faults(self) -> list[str]:
        """What was wrong, as sentences; a forged version is not the controllers' fault."""
        withdrawn = [
            (version, f"{uuid}: the request of {name} was withdrawn, which is on the disk")
            for version, uuid, name in self._withdrawals
            if self._replicas.was_on_disk(name, uuid, int(version))
        ]
        return [fault for version, fault in (*self._faults, *withdrawn) if version not in self.forged]

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listed.wait(_START_SECONDS), "the monitor sees nothing"
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if kind is None:
            assert (self.faults, self.relists) == ([], 1), "or versions may have been missed"

    async def _watch(self) -> None:
        client = await KubeClient.connect(str(self._kubeconfig))
        timing = Timing(time.monotonic, random.uniform)
        decode_schedule = Informer(read_disk_schedule).decode
        reflector = Reflector(client, DISK_SCHEDULES, decode_schedule, self, timing, namespace=self._namespace)
        decode_replica = self._replicas.decode
        replicas = Reflector(
            client, LONGHORN_REPLICAS, decode_replica, self._replicas, timing, namespace=self._namespace
        )
        tasks = [asyncio.create_task(each.run()) for each in (replicas, reflector)]
        while not self._end.is_set():
            if all(each.status.phase is Phase.SYNCED for each in (replicas, reflector)):
                self._listed.set()
            await asyncio.sleep(0.05)
        await reflector.catch_up()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()

    def replace(self, objects: Mapping[Key, InformerObject[ds.DiskSchedule]]) -> None:
        self.relists += 1
        for key, value in objects.items():
            self.change(key, value)

    def change(self, key: Key, value: InformerObject[ds.DiskSchedule] | None) -> None:
        """Receives a version from the reflector."""
        name = str(key)
        if value is None:
            self._requests.pop(name, None)
            return
        if isinstance(value.value, ds.Fault):
            self._faults.append((value.version, f"{name}: {value.value}"))
            return
        requests = value.value.spec.replicas
        withdrawn = self._requests.get(name, {}).keys() - requests.keys()
        self._withdrawals += [(value.version, name, replica) for replica in sorted(withdrawn)]
        self._requests[name] = requests
        before = self._schedules.get(name, ds.DiskSchedule(name))
        is_new_status = value.value.status not in (before.status, self._statuses.get(name))
        self._statuses[name] = value.value.status
        if value.value.decided:
            # A new object keeps what its predecessor had granted, and says so with its first status.
            self._schedules[name] = value.value
        total = value.value.status.storage_scheduled
        held = _held_bytes(value.value)
        if total != held and is_new_status:
            # A forged sum also stands in later versions, until a controller replaces it.
            self._faults.append((value.version, f"{name}: storageScheduled is {total}, the sum is {held}"))
        self._check(before, value.value, value.version)

    def _check(self, before: ds.DiskSchedule, now: ds.DiskSchedule, version: str) -> None:
        status = now.status
        total = _held_bytes(now)
        for kind in ds.RequestKind:
            for name, entry in status.allocations(kind).items():
                previous = before.status.allocations(kind).get(name)
                is_grant = entry.size > (previous.size if previous else 0)
                self.grants += is_grant
                self.rejections += entry.state is ds.AllocationState.REJECTED and (
                    previous is None or previous.state is not ds.AllocationState.REJECTED
                )
                if is_grant and total > (status.storage_available or 0):
                    fault = f"{now.name}: {name} was granted beyond {status.storage_available}: {total}"
                    self._faults.append((version, fault))
                # A deletion may have been made after the decision; the replica has its data until it is gone.
                if is_grant and not self._has_data(name, now.name, also_deleting=True):
                    self._check_reserved(now, name, total, version)

    def _has_data(self, replica: str, uuid: str, *, also_deleting: bool = False) -> bool:
        value = self._replicas.value(replica)
        if not isinstance(value, Replica) or (value.deleting and not also_deleting):
            return False
        return value.disk_id == uuid and has_run(value)

    def _check_reserved(self, now: ds.DiskSchedule, newcomer: str, total: int, version: str) -> None:
        """Reports a newcomer that got bytes which a replica with data on the disk lacks."""
        lacking = {
            name: replica.size - held
            for name, replica in self._replicas.readable.items()
            if self._has_data(name, now.name)
            for held in (now.status.replicas[name].size if name in now.status.replicas else 0,)
            if replica.size > held
        }
        available = now.status.storage_available or 0
        if total + sum(lacking.values()) > available:
            fault = f"{now.name}: {newcomer} got the bytes of {lacking}: {total} of {available} are held"
            self._faults.append((version, fault))


def _held_bytes(schedule: ds.DiskSchedule) -> int:
    return sum(entry.size for kind in ds.RequestKind for entry in schedule.status.allocations(kind).values())
