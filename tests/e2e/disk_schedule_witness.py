"""Somebody who sees every version of every DiskSchedule, and says when one promises more than it may."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from app.disk_schedule.informer import InformerObject, decode_schedule
from app.kube.client import KubeClient
from app.kube.reflector import Key, Phase, Reflector, Timing
from app.kube.resources import DISK_SCHEDULES
from scheduler_core.model.disk_schedule import AllocationState, DiskSchedule, Fault, RequestKind

_START_SECONDS = 20.0


class Witness:
    """Watches one namespace, while entered.

    Attributes:
        faults: what was wrong, as sentences
        grants: how many grants were seen, growth included
        rejections: how many requests were seen to become rejected
        relists: how often all were listed; with each after the first, versions may have been missed
    """

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.faults: list[str] = []
        self.grants = 0
        self.rejections = 0
        self.relists = 0
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._known: dict[str, DiskSchedule] = {}
        self._listed = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()), name="witness")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listed.wait(_START_SECONDS), "the witness sees nothing"
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    async def _watch(self) -> None:
        client = await KubeClient.connect(str(self._kubeconfig))
        timing = Timing(time.monotonic, random.uniform)
        reflector = Reflector(client, DISK_SCHEDULES, decode_schedule, self, timing, namespace=self._namespace)
        running = asyncio.create_task(reflector.run())
        while not self._end.is_set():
            if reflector.status.phase is Phase.SYNCED:
                self._listed.set()
            await asyncio.sleep(0.05)
        await reflector.catch_up()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()

    def replaced(self, objects: Mapping[Key, InformerObject[DiskSchedule]]) -> None:
        """Called by the reflector."""
        self.relists += 1
        for key, seen in objects.items():
            self.changed(key, seen)

    def changed(self, key: Key, value: InformerObject[DiskSchedule] | None) -> None:
        """Called by the reflector for every version."""
        name = str(key)
        if value is None:
            self._known.pop(name, None)
            return
        if isinstance(value.value, Fault):
            self.faults.append(f"{name}: {value.value}")
            return
        before, now = self._known.get(name, DiskSchedule(name)), value.value
        self._known[name] = now
        self._judge(before, now)

    def _judge(self, before: DiskSchedule, now: DiskSchedule) -> None:
        status = now.status
        total = sum(entry.size for kind in RequestKind for entry in status.allocations(kind).values())
        if status.storage_scheduled != total:
            self.faults.append(f"{now.name}: storageScheduled is {status.storage_scheduled}, the sum is {total}")
        for kind in RequestKind:
            for name, entry in status.allocations(kind).items():
                was = before.status.allocations(kind).get(name)
                grown = entry.size > (was.size if was else 0)
                self.grants += grown
                self.rejections += entry.state is AllocationState.REJECTED and (
                    was is None or was.state is not AllocationState.REJECTED
                )
                if grown and total > (status.storage_available or 0):
                    self.faults.append(f"{now.name}: {name} was granted beyond {status.storage_available}: {total}")
