"""Wires everything together and runs until it is told to stop."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from app.kube.client import KubeClient
from app.kube.reflector import Phase, Reflector, Timing
from app.kube.resources import CAPACITIES, LONGHORN_NAMESPACE
from simulator.action_runner import Performer
from simulator.config import Config
from simulator.controllers import Controllers
from simulator.install import install
from simulator.objects import Key, Obj
from simulator.status import StatusServer
from simulator.store import Store, Table

log = structlog.get_logger("simulator")

_POLL_SECONDS: Final = 0.05
LONGHORN_GROUP: Final = "longhorn.io"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    kubeconfig: str | None
    config: Config
    status_port: int
    install: bool = True


async def run(options: Options) -> None:
    """Plays Longhorn until SIGTERM or SIGINT.

    Raises:
        CoreError: there is no cluster, something cannot be installed, or the status port is taken
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    client = await KubeClient.connect(options.kubeconfig)
    try:
        await _until(stop, _play(client, options))
    finally:
        await client.close()
    log.info("stopped")


async def _until(stop: asyncio.Event, work: Any) -> None:
    """Runs until `stop` is set; trouble of the work is raised."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return
    await working


async def _play(client: KubeClient, options: Options) -> None:
    rng = random.Random(options.config.seed)  # noqa: S311 # chance in a simulation
    store = Store()
    controllers = Controllers(store, Performer(client, store, rng), options.config, rng)
    server = StatusServer(controllers)
    port = await server.start(options.status_port)
    log.info("listening", status=f"http://127.0.0.1:{port}/status", server=client.server)
    try:
        if options.install:
            await install(client, options.config)
        async with asyncio.TaskGroup() as group:
            # Without them being used, the definition of DiskSchedules need not be there.
            unused = None if options.config.disk_schedules else store.disk_schedules
            reflectors = [_reflector(client, table, rng) for table in store.tables if table is not unused]
            for reflector in reflectors:
                group.create_task(reflector.run(), name=reflector.label)
            await _synced(reflectors)
            server.ready = True
            log.info("ready", nodes=len(store.nodes.objects), volumes=len(store.volumes.objects))
            group.create_task(controllers.run(), name="controllers")
    finally:
        await server.stop()


def _reflector(client: KubeClient, table: Table[Any, Any], rng: random.Random) -> Reflector[Obj[Any]]:
    resource = table.resource
    ours = resource.group == LONGHORN_GROUP or resource == CAPACITIES
    timing = Timing(asyncio.get_running_loop().time, rng.uniform)
    namespace = LONGHORN_NAMESPACE if ours else ""
    return Reflector(client, resource, _decoder(table), table, timing, namespace=namespace)


def _decoder(table: Table[Any, Any]) -> Any:
    def decode(raw: bytes) -> tuple[Key, Obj[Any]]:
        return table.decode(raw)

    return decode


async def _synced(reflectors: Sequence[Reflector[Obj[Any]]]) -> None:
    """Waits until every kind has been listed; before that, what is missing might only not be known yet."""
    while any(reflector.standing.phase is Phase.STARTING for reflector in reflectors):  # noqa: ASYNC110 # the reflector tells nobody
        await asyncio.sleep(_POLL_SECONDS)
