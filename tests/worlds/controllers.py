"""Watches that a test fills, and controllers that note what they look at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from app.disk_schedule.backing_image_controller import ImageController
from app.disk_schedule.controller import Context, Controller
from app.disk_schedule.disk_controller import Allocator, Mirror
from app.disk_schedule.informer import Collection, Seen, decoding, read_schedule, reading
from app.disk_schedule.metrics import ControllerMetrics
from app.disk_schedule.node_controller import NodeSync
from app.disk_schedule.replica_controller import ReplicaController
from app.disk_schedule.volume_controller import VolumeController
from app.disk_schedule.watches import Watches
from app.disk_schedule.writer import Carrier
from app.kube.client import KubeClient
from app.kube.reflector import Timing
from app.runtime.work_queue import Again
from scheduler_core.convert.snapshot_kinds import LONGHORN_GROUP
from scheduler_core.model.longhorn import Replica
from tests import builders
from tests.builders import Object
from tests.worlds.fake_api import FakeApi

ALL: tuple[type[Controller], ...] = (NodeSync, Allocator, VolumeController, ReplicaController, ImageController, Mirror)
Looked = set[tuple[str, str]]
read_replica = reading(LONGHORN_GROUP, "Replica", Replica)
BAD_NODE: Object = {"metadata": {"name": "bad"}, "spec": {"disks": {"disk-1": {"storageReserved": 2**70}}}}
"""A Longhorn node that cannot be read."""
_version = 0


def put(collection: Collection[Any], read: Callable[[Any], Any], raw: Object) -> None:
    """One object is as given, as a watch would tell."""
    global _version  # noqa: PLW0603 # as an API server counts
    _version += 1
    metadata = {**raw["metadata"], "resourceVersion": str(_version)}
    key, seen = decoding(read)(json.dumps({**raw, "metadata": metadata}).encode())
    assert isinstance(seen, Seen)
    collection.changed(key, seen)


class Written(FakeApi):
    """Keeps what was put, and answers with it."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[Object] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        if request.method == "PUT":
            self.bodies.append(await request.json())
            return web.json_response(self.bodies[-1])
        return await super().handle(request)


class World:
    """Watches that a test fills, and controllers of which it is only noted what they look at."""

    def __init__(self, client: KubeClient) -> None:
        timing = Timing(lambda: 0.0, lambda least, _: least)
        self.watches = Watches(client, "longhorn-system", timing, lambda: datetime.now(UTC), 60)
        carrier = Carrier(client, "longhorn-system", self.watches.schedules, lambda: True)
        metrics = ControllerMetrics()
        self.context = Context(
            namespace="longhorn-system",
            watches=self.watches,
            carrier=carrier,
            watcher=metrics,
            orphans_after=300,
            clock=timing.clock,
            now=lambda: datetime.now(UTC),
            random=lambda: 0.5,
        )
        self.looked: Looked = set()
        self.controllers = [self._noting(kind)(self.context) for kind in ALL]

    def _noting(self, kind: type[Controller]) -> Callable[[Context], Controller]:
        looked = self.looked

        async def reconcile(self: Controller, key: str) -> Again | None:
            looked.add((self.name, key))
            return None

        return type(kind.__name__, (kind,), {"reconcile": reconcile})

    def schedule(self, uuid: str, *, spec: Object | None = None, status: Object | None = None) -> None:
        """A DiskSchedule of disk-1 of node n."""
        raw = {
            "metadata": {"name": uuid},
            "spec": {"name": "disk-1", "nodeID": "n", **(spec or {})},
            "status": status or {},
        }
        put(self.watches.schedules, read_schedule, raw)

    def replica(self, name: str, volume: str, node: str = "n", **more: Any) -> None:
        """A replica."""
        put(self.watches.replicas, read_replica, builders.replica(name, volume, node, **more))

    def unreadable_replica(self, name: str, **metadata: Any) -> None:
        """A replica whose size is none."""
        put(self.watches.replicas, read_replica, {"metadata": {"name": name, **metadata}, "spec": {"volumeSize": "-5"}})

    async def after(self, event: Callable[[], None]) -> Looked:
        """What is looked at because of an event."""
        await asyncio.sleep(0.01)
        self.looked.clear()
        event()
        await asyncio.sleep(0.01)
        return set(self.looked)
