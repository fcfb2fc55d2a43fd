"""The forwarder, a stand-in for kube-proxy, on real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from devcluster.forwarder import Address, Endpoints, Forwarder, decoder, parse_listen
from devcluster.ports import Ports
from scheduler_core.errors import ObjectError

SECONDS = 10.0


@asynccontextmanager
async def endpoint(name: str) -> AsyncIterator[Address]:
    """A server that answers with its name and everything it has read. It reads until the client half-closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{name}:".encode() + await reader.read(-1))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield host, port
    finally:
        server.close()


@dataclass
class Proxy:
    """A running forwarder and its port."""

    forwarder: Forwarder
    port: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, text: str = "") -> str:
        """Sends a text over a new connection; returns an endpoint's answer. The client half-closes the connection after the text."""
        reader, writer = await self.connect()
        writer.write(text.encode())
        writer.write_eof()
        try:
            async with asyncio.timeout(SECONDS):
                return (await reader.read(-1)).decode()
        finally:
            writer.close()

    async def set_endpoints(self, *targets: Address) -> None:
        """Changes the endpoints and gives the forwarder time to notice."""
        self.forwarder.set_targets(targets)
        for _ in range(10):
            await asyncio.sleep(0.01)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A forwarder without endpoints."""
    ports = Ports()
    port = ports.take()
    forwarder = Forwarder("127.0.0.1", port)
    task = asyncio.create_task(forwarder.run(), name="forwarder")
    yield Proxy(forwarder, port)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    ports.release()


async def test_connections_are_refused_again_without_the_last_endpoint(proxy: Proxy) -> None:
    async with endpoint("a") as address:
        await proxy.set_endpoints(address)
        await proxy.set_endpoints()
        with pytest.raises(ConnectionRefusedError):
            await proxy.send()
        await proxy.set_endpoints(address)
        assert await proxy.send("again") == "a:again"


async def test_an_established_connection_stays_with_its_endpoint(proxy: Proxy) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(endpoint("first"))
        second = await stack.enter_async_context(endpoint("second"))
        await proxy.set_endpoints(first)
        reader, writer = await proxy.connect()
        await proxy.set_endpoints(second)
        assert await proxy.send("new") == "second:new"
        writer.write(b"old")
        writer.write_eof()
        assert await reader.read(-1) == b"first:old"
        writer.close()


async def test_an_unreachable_endpoint_resets_the_connection(proxy: Proxy) -> None:
    """The client must not mistake it for an empty answer."""
    async with endpoint("a") as address:
        pass
    await proxy.set_endpoints(address)
    with pytest.raises(ConnectionResetError):
        await proxy.send("request")


async def test_several_endpoints_take_turns(proxy: Proxy) -> None:
    async with endpoint("a") as first, endpoint("b") as second:
        await proxy.set_endpoints(first, second)
        assert {await proxy.send(), await proxy.send()} == {"a:", "b:"}


def endpoint_slice(service: str = "it", *, ready: bool | None = True, port: int | None = 9504) -> dict[str, Any]:
    """An EndpointSlice with one endpoint."""
    return {
        "metadata": {"namespace": "ns", "name": "s", "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {} if ready is None else {"ready": ready}}],
        "ports": [{"name": "http", "port": port}],
    }


@pytest.mark.parametrize(
    ("raw", "addresses"),
    [
        pytest.param(endpoint_slice(), (("10.0.0.1", 9504),), id="ready"),
        pytest.param(endpoint_slice(ready=None), (("10.0.0.1", 9504),), id="readiness unknown counts as ready"),
        pytest.param(endpoint_slice(ready=False), (), id="not ready"),
        pytest.param(endpoint_slice(port=None), (), id="no port"),
        pytest.param(endpoint_slice("other"), None, id="another service"),
        pytest.param({"metadata": {"namespace": "ns", "name": "s"}}, None, id="no service"),
    ],
)
def test_ready_addresses_are_read_from_a_slice(raw: dict[str, Any], addresses: tuple[Address, ...] | None) -> None:
    assert decoder("it")(json.dumps(raw).encode()) == (("ns", "s"), addresses)


def test_an_unreadable_slice_is_an_object_error() -> None:
    with pytest.raises(ObjectError, match="EndpointSlice"):
        decoder("it")(b'{"metadata": 1}')


def test_endpoints_of_all_slices_are_reported_together() -> None:
    reports: list[list[Address]] = []

    def report(addresses: Iterable[Address]) -> None:
        reports.append(list(addresses))

    endpoints = Endpoints(report)
    endpoints.replace({("ns", "b"): (("10.0.0.2", 1),)})
    endpoints.change(("ns", "a"), (("10.0.0.1", 1), ("10.0.0.2", 1)))
    endpoints.change(("ns", "b"), None)
    endpoints.change(("ns", "a"), None)
    both = [("10.0.0.1", 1), ("10.0.0.2", 1)]
    assert reports == [[("10.0.0.2", 1)], both, both, []]


@pytest.mark.parametrize("text", ["127.0.0.1", ":80", "host:0", "host:x", "host:70000"])
def test_a_wrong_address_to_listen_on_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_listen(text)
