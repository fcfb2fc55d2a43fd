"""Serves the simulator's report at GET /status, for tests and people."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import msgspec
from aiohttp import web

from scheduler_core.errors import CoreError
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model.longhorn import DISABLED
from simulator.controllers import Controllers
from simulator.disk_schedule_grants import has_grant
from simulator.objects import Json
from simulator.pods import Pod
from simulator.volumes.observation import ATTACHED

HOST = "127.0.0.1"


class StatusError(CoreError):
    """The port of the status server cannot be used."""


def report(controllers: Controllers, *, ready: bool) -> Json:
    """The body of GET /status."""
    store = controllers.store
    models = store.volumes.models.values()
    now = asyncio.get_running_loop().time()
    stuck = [
        {"pod": "/".join(key), "node": pod.model.node_name, "seconds": round(now - since, 1), "reason": reason}
        for key, (since, reason) in sorted(controllers.waiting_pods.items())
        if now - since >= controllers.config.stuck_after and (pod := store.pods.get(key)) is not None
    ]
    return {
        "ready": ready,
        "volumes": len(store.volumes.models),
        "attached": sum(1 for volume in models if volume.state == ATTACHED),
        "local": sum(1 for volume in models if volume.data_locality != DISABLED),
        "states": dict(Counter(volume.state for volume in models)),
        "robustness": dict(Counter(volume.robustness for volume in models)),
        "replicas": len(store.replicas.models),
        "unplaced": sorted(name for name, replica in store.replicas.models.items() if not replica.node_id),
        "ungranted": sorted(_ungranted_replicas(controllers)),
        "misplaced": list(misplaced_volumes(controllers)),
        "overbooked": list(overbooked_disks(controllers)),
        "waiting": [
            {"pod": "/".join(key), "reason": reason} for key, (_, reason) in sorted(controllers.waiting_pods.items())
        ],
        "stuck": stuck,
        "counters": dict(sorted(controllers.runner.counters.items())),
        "queues": {queue.name: len(queue) for queue in controllers.queues},
        "failures": sum(queue.failures for queue in controllers.queues),
    }


def _ungranted_replicas(controllers: Controllers) -> Iterator[str]:
    """Placed replicas whose DiskSchedule has not granted their size. A replica with data runs all the same. Without DiskSchedules
    there are none.
    """
    schedules = controllers.store.disk_schedules.models
    for name, replica in controllers.store.replicas.models.items():
        if controllers.config.disk_schedules and replica.node_id and not has_grant(schedules, replica):
            yield name


def misplaced_volumes(controllers: Controllers) -> Iterator[Json]:
    """Local volumes whose replicas are all on other nodes than their pod."""
    store = controllers.store
    for _, pod in sorted(store.pods.objects.items()):
        if not pod.model.node_name or not pod.model.live:
            continue
        for handle in _handles(controllers, pod):
            volume = store.volumes.models.get(handle)
            if volume is None or volume.data_locality == DISABLED:
                continue
            nodes = sorted(
                {
                    each.model.node_id
                    for each in store.replicas_by_volume.get(handle)
                    if each.model.node_id and not each.model.failed_at
                }
            )
            if nodes and pod.model.node_name not in nodes:
                yield {"volume": handle, "pod": pod.model.key, "node": pod.model.node_name, "replicas": nodes}


def overbooked_disks(controllers: Controllers) -> Iterator[Json]:
    """Disks on which more is scheduled than their limit. They arise when volumes are placed faster than a node's status is written."""
    settings = controllers.store.longhorn_settings
    for name, node in sorted(controllers.store.longhorn_nodes.models.items()):
        for disk in node.disks:
            limit = scheduling_limit(disk, settings)
            if disk.ready and disk.storage_scheduled > limit:
                yield {"node": name, "disk": disk.name, "scheduled": disk.storage_scheduled, "limit": limit}


def _handles(controllers: Controllers, pod: Pod) -> list[str]:
    return [
        mount.persistent_volume.model.handle for mount in controllers.mounts(pod) if mount.persistent_volume is not None
    ]


class StatusServer:
    """Serves the report on the loopback address."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._runner: web.AppRunner | None = None
        self.ready = False

    async def start(self, port: int) -> int:
        """Starts to listen; returns the port, a free one for 0."""
        application = web.Application()
        application.router.add_get("/status", self._status)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, port)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            problem = error.strerror or str(error)
            raise StatusError(f"--status-port {port}: cannot listen on {HOST}: {problem}") from error
        chosen: int = self._runner.addresses[0][1]
        return chosen

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _status(self, _: web.Request) -> web.Response:
        body = msgspec.json.encode(report(self._controllers, ready=self.ready))
        return web.Response(body=body, content_type="application/json")
