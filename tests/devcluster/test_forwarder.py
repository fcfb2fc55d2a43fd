"""The stand-in for kube-proxy, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
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
    """A server that reads until the client has no more to say, then answers with its name and what it read."""

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
    """A running forwarder."""

    forwarder: Forwarder
    port: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to its port."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, text: str = "") -> str:
        """What an endpoint answers, asked over a new connection which is half-closed after the question."""
        reader, writer = await self.connect()
        writer.write(text.encode())
        writer.write_eof()
        try:
            async with asyncio.timeout(SECONDS):
                return (await reader.read(-1)).decode()
        finally:
            writer.close()

    async def lead_to(self, *targets: Address) -> None:
        """Changes the endpoints and gives the forwarder time to notice."""
        self.forwarder.set_targets(targets)
        for _ in range(10):
            await asyncio.sleep(0.01)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A forwarder that leads nowhere yet."""
    ports = Ports()
    forwarder = Forwarder("127.0.0.1", ports.take())
    port = next(iter(ports._claims))
    job = asyncio.create_task(forwarder.run(), name="forwarder")
    yield Proxy(forwarder, port)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    ports.release()


async def test_a_question_reaches_the_endpoint_and_its_answer_comes_back(proxy: Proxy) -> None:
    """Also when the client half-closes its side first, as HTTP/1.0 clients may."""
    async with endpoint("a") as there:
        await proxy.lead_to(there)
        assert await proxy.ask("question") == "a:question"


async def test_much_data_arrives_whole(proxy: Proxy) -> None:
    """More than all buffers on the way hold."""
    text = "0123456789abcdef" * (1 << 18)
    async with endpoint("a") as there:
        await proxy.lead_to(there)
        assert await proxy.ask(text) == f"a:{text}"


async def test_without_endpoints_connections_are_refused(proxy: Proxy) -> None:
    """At the level of TCP, as kube-proxy rejects them."""
    with pytest.raises(ConnectionRefusedError):
        await proxy.ask()


async def test_connections_are_refused_again_when_the_last_endpoint_goes(proxy: Proxy) -> None:
    """And served again when one comes back."""
    async with endpoint("a") as there:
        await proxy.lead_to(there)
        await proxy.lead_to()
        with pytest.raises(ConnectionRefusedError):
            await proxy.ask()
        await proxy.lead_to(there)
        assert await proxy.ask("again") == "a:again"


async def test_an_established_connection_stays_with_its_endpoint(proxy: Proxy) -> None:
    """Only new ones go to the new endpoint."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(endpoint("first"))
        second = await stack.enter_async_context(endpoint("second"))
        await proxy.lead_to(first)
        reader, writer = await proxy.connect()
        await proxy.lead_to(second)
        assert await proxy.ask("new") == "second:new"
        writer.write(b"old")
        writer.write_eof()
        assert await reader.read(-1) == b"first:old"
        writer.close()


async def test_an_endpoint_that_does_not_answer_breaks_the_connection_off(proxy: Proxy) -> None:
    """An error, not an empty answer: the client must not take it for one."""
    async with endpoint("a") as there:
        pass
    await proxy.lead_to(there)
    with pytest.raises(ConnectionResetError):
        await proxy.ask("question")


async def test_several_endpoints_take_turns(proxy: Proxy) -> None:
    """As kube-proxy spreads connections."""
    async with endpoint("a") as one, endpoint("b") as other:
        await proxy.lead_to(one, other)
        assert {await proxy.ask(), await proxy.ask()} == {"a:", "b:"}


def slice_of(service: str = "it", *, ready: bool | None = True, port: int | None = 9504) -> dict[str, Any]:
    """An EndpointSlice with one endpoint."""
    return {
        "metadata": {"namespace": "ns", "name": "s", "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {} if ready is None else {"ready": ready}}],
        "ports": [{"name": "http", "port": port}],
    }


@pytest.mark.parametrize(
    ("raw", "addresses"),
    [
        pytest.param(slice_of(), (("10.0.0.1", 9504),), id="ready"),
        pytest.param(slice_of(ready=None), (("10.0.0.1", 9504),), id="readiness unknown counts as ready"),
        pytest.param(slice_of(ready=False), (), id="not ready"),
        pytest.param(slice_of(port=None), (), id="no port"),
        pytest.param(slice_of("other"), None, id="another service"),
        pytest.param({"metadata": {"namespace": "ns", "name": "s"}}, None, id="no service"),
    ],
)
def test_ready_addresses_are_read_from_a_slice(raw: dict[str, Any], addresses: tuple[Address, ...] | None) -> None:
    """Only those of the Service."""
    assert decoder("it")(json.dumps(raw).encode()) == (("ns", "s"), addresses)


def test_a_slice_that_cannot_be_read_is_an_object_error() -> None:
    """Which the reflector counts and leaves out."""
    with pytest.raises(ObjectError, match="EndpointSlice"):
        decoder("it")(b'{"metadata": 1}')


def test_endpoints_of_all_slices_are_told_together() -> None:
    """Sorted, each once, whatever changed."""
    told: list[list[Address]] = []
    note: Callable[[Any], None] = lambda addresses: told.append(list(addresses))  # noqa: E731
    endpoints = Endpoints(note)
    endpoints.replaced({("ns", "b"): (("10.0.0.2", 1),)})
    endpoints.changed(("ns", "a"), (("10.0.0.1", 1), ("10.0.0.2", 1)))
    endpoints.changed(("ns", "b"), None)
    endpoints.changed(("ns", "a"), None)
    both = [("10.0.0.1", 1), ("10.0.0.2", 1)]
    assert told == [[("10.0.0.2", 1)], both, both, []]


@pytest.mark.parametrize("text", ["127.0.0.1", ":80", "host:0", "host:x", "host:70000"])
def test_a_wrong_address_to_listen_on_is_refused(text: str) -> None:
    """With what to write instead."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_listen(text)
