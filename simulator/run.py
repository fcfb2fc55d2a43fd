"""Creates and connects the parts of the simulator, and runs them until a signal arrives."""

import asyncio
import random
import signal
from collections.abc import Sequence
from typing import Any

import structlog
from msgspec import Struct

from app.kube.client import KubeClient
from app.kube.reflector import Phase, Reflector, Timing
from app.kube.resources import CAPACITIES, LONGHORN_NAMESPACE
from simulator.action_runner import ActionRunner
from simulator.claim_webhook import VALIDATING_WEBHOOKS, ClaimWebhook
from simulator.config import Config
from simulator.controllers import Controllers
from simulator.install import ensure, install
from simulator.objects import Key, KubeObject
from simulator.status import StatusServer
from simulator.tables import Store, Table

log = structlog.get_logger("simulator")

_POLL_INTERVAL = 0.05
LONGHORN_GROUP = "longhorn.io"


class RunOptions(Struct, frozen=True):
    """The options of the command line."""

    kubeconfig: str | None
    config: Config
    status_port: int
    install: bool = True


async def run(options: RunOptions) -> None:
    """Simulates Longhorn until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    client = await KubeClient.connect(options.kubeconfig)
    try:
        await _run_until(stop, _simulate(client, options))
    finally:
        await client.close()
    log.info("stopped")


async def _run_until(stop: asyncio.Event, work: Any) -> None:
    job = asyncio.ensure_future(work)
    stop_wait = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait((job, stop_wait), return_when=asyncio.FIRST_COMPLETED)
    stop_wait.cancel()
    if not job.done():
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        return
    await job


async def _simulate(client: KubeClient, options: RunOptions) -> None:
    rng = random.Random(options.config.seed)  # noqa: S311 # chance in a simulation
    store = Store()
    controllers = Controllers(store, ActionRunner(client, store, rng), options.config, rng)
    server = StatusServer(controllers)
    webhook = ClaimWebhook(controllers)
    port = await server.start(options.status_port)
    log.info("listening", status=f"http://127.0.0.1:{port}/status", server=client.server)
    try:
        if options.install:
            await install(client, options.config)
        async with asyncio.TaskGroup() as group:
            # Where DiskSchedules are not used, their definition need not exist.
            unused = None if options.config.disk_schedules else store.disk_schedules
            reflectors = [_reflector(client, table, rng) for table in store.tables if table is not unused]
            for reflector in reflectors:
                group.create_task(reflector.run(), name=reflector.label)
            await _wait_for_lists(reflectors)
            if options.install:
                await ensure(client, VALIDATING_WEBHOOKS, await webhook.start(), update=True)
            server.ready = True
            log.info("ready", nodes=len(store.nodes.objects), volumes=len(store.volumes.objects))
            group.create_task(controllers.run(), name="controllers")
    finally:
        await server.stop()
        await webhook.stop()


def _reflector(client: KubeClient, table: Table[Any, Any], rng: random.Random) -> Reflector[KubeObject[Any]]:
    resource = table.resource
    is_namespaced_here = resource.group == LONGHORN_GROUP or resource == CAPACITIES
    timing = Timing(asyncio.get_running_loop().time, rng.uniform)
    namespace = LONGHORN_NAMESPACE if is_namespaced_here else ""
    return Reflector(client, resource, _decoder(table), table, timing, namespace=namespace)


def _decoder(table: Table[Any, Any]) -> Any:
    def decode(raw: bytes) -> tuple[Key, KubeObject[Any]]:
        return table.decode(raw)

    return decode


async def _wait_for_lists(reflectors: Sequence[Reflector[KubeObject[Any]]]) -> None:
    """Waits until every kind has been listed. Before that, a missing object may just not have been read yet."""
    while any(reflector.status.phase is Phase.STARTING for reflector in reflectors):  # noqa: ASYNC110 # a reflector has no event for it
        await asyncio.sleep(_POLL_INTERVAL)
