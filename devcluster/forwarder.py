"""A stand-in for kube-proxy on one machine.

It forwards a local port to the ready endpoints of a Service.

    python -m devcluster.forwarder --kubeconfig F --namespace N --service S --listen 127.0.0.1:PORT

Data flow: EndpointSlices of the Service → `Endpoints` → `Forwarder`, which forwards each new connection to one endpoint. As with
kube-proxy, a change of the endpoints does not affect established connections, and without an endpoint connections are refused.
"""

import asyncio
import contextlib
import secrets
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer

from app.kube.client import KubeClient
from app.kube.reflector import Decode, Key, Reflector, Timing
from app.kube.resources import ENDPOINT_SLICES
from app.runtime import logs
from scheduler_core.errors import CoreError, ObjectError

log = structlog.get_logger("forwarder")

Address = tuple[str, int]

READY = "following the service"
_SERVICE_LABEL = "kubernetes.io/service-name"
_CONNECT_TIMEOUT = 5.0
_CHUNK_BYTES = 64 * 1024
_LISTEN_RETRY_INTERVAL = 0.5
_LINGER_ZERO = struct.pack("ii", 1, 0)  # SO_LINGER: on, zero seconds
_BAD_INPUT = 2


class _Metadata(msgspec.Struct):
    name: str
    namespace: str
    labels: dict[str, str] | None = None


class _Conditions(msgspec.Struct):
    ready: bool | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str]
    conditions: _Conditions | None = None


class _Port(msgspec.Struct):
    port: int | None = None


class _Slice(msgspec.Struct):
    metadata: _Metadata
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


def decoder(service: str) -> Decode[tuple[Address, ...]]:
    """A decoder that reads a Service's ready addresses from EndpointSlices. Slices of other Services are ignored. An endpoint
    without a readiness is ready, as the API defines it. The first port of a slice counts.
    """

    def decode(raw: bytes | msgspec.Raw) -> tuple[Key, tuple[Address, ...] | None]:
        try:
            body = msgspec.json.decode(raw, type=_Slice)
        except msgspec.DecodeError as error:
            raise ObjectError("EndpointSlice", "", f"cannot be read: {error}") from error
        key = (body.metadata.namespace, body.metadata.name)
        if (body.metadata.labels or {}).get(_SERVICE_LABEL) != service:
            return key, None
        port = next((port.port for port in body.ports or () if port.port), None)
        if port is None:
            return key, ()
        ready = [each for each in body.endpoints or () if each.conditions is None or each.conditions.ready is not False]
        return key, tuple((address, port) for endpoint in ready for address in endpoint.addresses)

    return decode


class Endpoints:
    """Collects the ready addresses in all slices of the Service. Each event calls `on_change` with all of them."""

    def __init__(self, on_change: Callable[[Sequence[Address]], None]) -> None:
        self._slices: dict[Key, tuple[Address, ...]] = {}
        self._on_change = on_change
        self._listed = False

    def replace(self, objects: Mapping[Key, tuple[Address, ...]]) -> None:
        """Replaces all slices."""
        self._slices = dict(objects)
        self._notify()
        if not self._listed:
            log.info(READY)
        self._listed = True

    def change(self, key: Key, value: tuple[Address, ...] | None) -> None:
        """Adds, replaces or removes one slice."""
        if value is None:
            self._slices.pop(key, None)
        else:
            self._slices[key] = value
        self._notify()

    def _notify(self) -> None:
        self._on_change(sorted({address for addresses in self._slices.values() for address in addresses}))


class Forwarder:
    """Listens on one address while there is an endpoint."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._targets: tuple[Address, ...] = ()
        self._changed = asyncio.Event()
        self._connections = 0

    def set_targets(self, targets: Sequence[Address]) -> None:
        """Sets the targets of new connections, used in turn. Without a target, connections are refused."""
        if tuple(targets) != self._targets:
            self._targets = tuple(targets)
            log.info("endpoints changed", endpoints=[f"{host}:{port}" for host, port in targets])
            self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled; listens while there is a target."""
        server: asyncio.Server | None = None
        try:
            while True:
                self._changed.clear()
                if self._targets and server is None:
                    server = await self._listen()
                elif not self._targets and server is not None:
                    server.close()
                    server = None
                await self._changed.wait()
        finally:
            if server is not None:
                server.close()

    async def _listen(self) -> asyncio.Server:
        while True:
            try:
                return await asyncio.start_server(self._serve, self._host, self._port)
            except OSError as error:
                log.warning("cannot listen, trying again", address=f"{self._host}:{self._port}", error=str(error))
                await asyncio.sleep(_LISTEN_RETRY_INTERVAL)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except (OSError, TimeoutError) as error:
            log.warning("endpoint not reachable", error=str(error) or type(error).__name__)
            _reset(writer)
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, far_writer), name="to the endpoint")
                both.create_task(_copy(far_reader, writer), name="from the endpoint")
        except* OSError:
            _reset(writer)
            _reset(far_writer)
        finally:
            writer.close()
            far_writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._targets:
            raise ConnectionRefusedError("there is no endpoint")
        self._connections += 1
        host, port = self._targets[self._connections % len(self._targets)]
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            return await asyncio.open_connection(host, port)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copies until the source ends, then ends the sink. The connection of the sink stays open in the other direction."""
    while data := await source.read(_CHUNK_BYTES):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Aborts a connection: the other side sees an error, not its end."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()


def parse_listen(text: str) -> Address:
    """Returns host and port of a text such as ``127.0.0.1:9504``."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not where to listen: write HOST:PORT")
    return host.strip("[]"), int(port)


async def forward(kubeconfig: Path, namespace: str, service: str, listen: Address) -> None:
    """Forwards until SIGTERM or SIGINT."""
    client = await KubeClient.connect(str(kubeconfig))
    forwarder = Forwarder(*listen)
    timing = Timing(clock=time.monotonic, between=secrets.SystemRandom().uniform)
    sink = Endpoints(forwarder.set_targets)
    reflector = Reflector(client, ENDPOINT_SLICES, decoder(service), sink, timing, namespace=namespace)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    jobs = [
        asyncio.create_task(reflector.run(), name="watch"),
        asyncio.create_task(forwarder.run(), name="forward"),
        asyncio.create_task(stop.wait(), name="stop"),
    ]
    try:
        done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        for job in done:
            job.result()
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await client.close()


def main(
    kubeconfig: Annotated[Path, typer.Option(help="Credentials that may list and watch EndpointSlices.")],
    service: Annotated[str, typer.Option(help="The Service whose endpoints to forward to.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen on.")],
    namespace: Annotated[str, typer.Option(help="The Service's namespace.")] = "longhorn-system",
) -> None:
    """Forwards a local port to the ready endpoints of a Service, as kube-proxy would."""
    logs.configure("json")
    try:
        asyncio.run(forward(kubeconfig, namespace, service, parse_listen(listen)))
    except (CoreError, ValueError) as error:
        typer.echo(f"forwarder: {error}", err=True)
        raise typer.Exit(_BAD_INPUT) from error


if __name__ == "__main__":
    typer.run(main)
