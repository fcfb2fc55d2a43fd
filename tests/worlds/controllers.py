"""Caches of the DiskSchedule controllers that tests fill, and controllers that record what they reconcile."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from aiohttp import web

from app.disk_schedule.controller_base import Controller, ControllerContext, ControllerMetrics
from app.disk_schedule.controller_cache import ControllerCache, Informer
from app.disk_schedule.schedule_controllers import Allocator, Mirror, NodeController, OrphanController
from app.disk_schedule.volume_controllers import ImageController, ReplicaController, VolumeController
from app.disk_schedule.writer import ObjectWriter
from app.kube.client import KubeClient
from app.kube.reflector import Timing
from app.runtime.work_queue import Requeue
from tests import builders
from tests.builders import Object
from tests.worlds.fake_api import FakeApi

ALL: tuple[type[Controller], ...] = (
    NodeController,
    Allocator,
    VolumeController,
    ReplicaController,
    ImageController,
    OrphanController,
    Mirror,
)
Reconciled = set[tuple[str, str]]
BAD_NODE: Object = {"metadata": {"name": "bad"}, "spec": {"disks": {"disk-1": {"storageReserved": 2**70}}}}
"""A Longhorn node that cannot be read."""
_version = 0


def put(informer: Informer[Any], raw: Object) -> None:
    global _version  # noqa: PLW0603 # as an API server counts
    _version += 1
    metadata = {**raw["metadata"], "resourceVersion": str(_version)}
    informer.change(*informer.decode(json.dumps({**raw, "metadata": metadata}).encode()))


class RecordingApi(FakeApi):
    """Records the bodies of PUT requests, and answers with them."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[Object] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PUT":
            self.bodies.append(await request.json())
            return web.json_response(self.bodies[-1])
        return await super().handle(request)


class World:
    """The caches, which tests fill, and controllers that only record what they reconcile."""

    def __init__(self, client: KubeClient | None = None) -> None:
        client = cast("KubeClient", client)  # None: the test needs no API server
        timing = Timing(lambda: 0.0, lambda least, _: least)
        self.watches = ControllerCache(client, "longhorn-system", timing, lambda: datetime.now(UTC), 60)
        writer = ObjectWriter(client, "longhorn-system", self.watches, lambda: True)
        metrics = ControllerMetrics()
        self.context = ControllerContext(
            namespace="longhorn-system",
            cache=self.watches,
            writer=writer,
            observer=metrics,
            events=None,
            orphans_after=300,
            clock=timing.clock,
            now=lambda: datetime.now(UTC),
            random=lambda: 0.5,
        )
        self.reconciled: Reconciled = set()
        self.controllers = [self._recording(kind)(self.context) for kind in ALL]

    def _recording(self, kind: type[Controller]) -> Callable[[ControllerContext], Controller]:
        reconciled = self.reconciled

        async def reconcile(self: Controller, key: str) -> Requeue | None:
            reconciled.add((self.name, key))
            return None

        return type(kind.__name__, (kind,), {"reconcile": reconcile})

    def schedule(self, uuid: str, *, spec: Object | None = None, status: Object | None = None) -> None:
        """Delivers a DiskSchedule of disk-1 of node n."""
        raw = {
            "metadata": {"name": uuid},
            "spec": {"name": "disk-1", "nodeID": "n", **(spec or {})},
            "status": status or {},
        }
        put(self.watches.schedules, raw)

    def replica(self, name: str, volume: str, node: str = "n", **more: Any) -> None:
        put(self.watches.replicas, builders.replica(name, volume, node, **more))

    def unreadable_replica(self, name: str, **metadata: Any) -> None:
        put(self.watches.replicas, {"metadata": {"name": name, **metadata}, "spec": {"volumeSize": "-5"}})

    async def reconciled_after(self, event: Callable[[], None]) -> Reconciled:
        """What is reconciled because of an event, as (controller, key)."""
        await asyncio.sleep(0.01)
        self.reconciled.clear()
        event()
        await asyncio.sleep(0.01)
        return set(self.reconciled)
