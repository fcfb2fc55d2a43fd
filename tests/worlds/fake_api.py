"""A small API server with lists and watches, which misbehaves on demand as a real one cannot be made to."""

import asyncio
import json
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from app.kube.client import KubeClient

Object = dict[str, Any]
Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]
KUBECONFIG: Object = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "it",
    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    "users": [{"name": "it", "user": {"token": "secret-token"}}],
}


def write_kubeconfig(folder: Path, server: str, **cluster: Any) -> Path:
    """Writes a kubeconfig of a server, with further fields of its cluster."""
    file = folder / "kubeconfig"
    file.write_text(
        yaml.safe_dump({**KUBECONFIG, "clusters": [{"name": "it", "cluster": {"server": server, **cluster}}]})
    )
    return file


def event(kind: str, raw: Object) -> bytes:
    return json.dumps({"type": kind, "object": raw}).encode() + b"\n"


def failing(status: int, message: str = "no", reason: str = "") -> Behaviour:
    """Returns a behaviour that answers with a Status."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"kind": "Status", "message": message, "reason": reason, "code": status}, status=status
        )

    return answer


def sending(*lines: bytes, hang: bool = False, abort: bool = False) -> Behaviour:
    """Returns a behaviour that sends these bytes, and then ends, hangs or aborts."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        if hang:
            await asyncio.sleep(60)
        if abort and request.transport is not None:
            request.transport.abort()
        return response

    return answer


async def silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


@dataclass
class Collection:
    """The objects of one path, and their watch events."""

    objects: dict[str, Object] = field(default_factory=dict)
    history: list[tuple[int, bytes]] = field(default_factory=list)


class FakeApi:
    """Collections by path."""

    def __init__(self) -> None:
        self.version = 100
        self.page = 500  # objects per page at most, whatever limit a request has
        self.collections: dict[str, Collection] = defaultdict(Collection)
        self.missing: set[str] = set()  # paths that answer 404, as those of a kind that is not installed
        # By verb ("list", "watch" or "get"), behaviours that answer the next requests in place of the right answer.
        self.plans: dict[str, list[Behaviour]] = defaultdict(list)
        self.always: dict[str, Behaviour] = {}  # by verb, the behaviour that answers every request
        self.requests: list[tuple[str, str, dict[str, str]]] = []  # the requests so far, as (verb, path, query)
        self._watch_transports: list[asyncio.Transport] = []
        self._event_sent = asyncio.Condition()

    @property
    def open_watches(self) -> int:
        return len(self._watch_transports)

    def abort_watches(self) -> None:
        """Breaks the connection of every open watch."""
        for transport in self._watch_transports:
            transport.abort()

    def count(self, verb: str, path: str = "") -> int:
        return sum(1 for requested, where, _ in self.requests if requested == verb and path in ("", where))

    def add(self, path: str, *objects: Object) -> None:
        """Adds objects without a watch event."""
        self.collections[path]  # exists, even empty
        for raw in objects:
            self.version += 1
            raw["metadata"]["resourceVersion"] = str(self.version)
            self.collections[path].objects[_key(raw)] = raw

    async def put(self, path: str, *objects: Object) -> None:
        for raw in objects:
            kind = "MODIFIED" if _key(raw) in self.collections[path].objects else "ADDED"
            self.add(path, raw)
            await self._send(path, event(kind, raw))

    async def remove(self, path: str, name: str, namespace: str = "") -> None:
        """Deletes an object."""
        raw = self.collections[path].objects.pop(f"{namespace}/{name}")
        self.version += 1
        await self._send(
            path, event("DELETED", {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(self.version)}})
        )

    async def bookmark(self, path: str) -> None:
        await self._send(path, event("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))

    async def _send(self, path: str, line: bytes) -> None:
        async with self._event_sent:
            self.collections[path].history.append((self.version, line))
            self._event_sent.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        path = request.path
        query = dict(request.query)
        verb = "watch" if query.get("watch") else "list" if path in self.collections or path in self.missing else "get"
        self.requests.append((verb, path, query))
        plan = self.plans[verb]
        if plan:
            return await plan.pop(0)(request)
        if verb in self.always:
            return await self.always[verb](request)
        if path in self.missing:
            return web.Response(status=404, text="404 page not found")
        if verb == "get":
            return self.answer_get(path)
        if request.method != "GET":
            return await failing(405)(request)
        return await self._watch(request) if verb == "watch" else self.answer_list(path, query)

    def answer_get(self, path: str) -> web.StreamResponse:
        """Answers a GET of one object."""
        collection, _, name = path.rpartition("/")
        for listed_at, entry in self.collections.items():
            plural = listed_at.rpartition("/")[2]
            if collection.rpartition("/")[2] == plural:
                for raw in entry.objects.values():
                    namespace = raw["metadata"].get("namespace")
                    if raw["metadata"]["name"] == name and (not namespace or f"/namespaces/{namespace}/" in path):
                        return web.json_response(raw)
        return web.json_response({"message": f"{path} not found", "reason": "NotFound"}, status=404)

    def answer_list(self, path: str, query: dict[str, str]) -> web.StreamResponse:
        """Answers with one page of a list."""
        everything = [raw for _, raw in sorted(self.collections[path].objects.items())]
        start = int(query.get("continue", "0"))
        end = start + min(int(query.get("limit", str(self.page))), self.page)
        metadata: Object = {"resourceVersion": str(self.version)}
        if end < len(everything):
            metadata["continue"] = str(end)
        return web.json_response({"metadata": metadata, "items": everything[start:end]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        entry = self.collections[request.path]
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        sent = 0
        assert request.transport is not None
        transport = request.transport
        self._watch_transports.append(transport)
        try:
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while True:
                    async with self._event_sent:
                        while len(entry.history) == sent:
                            await self._event_sent.wait()
                    while sent < len(entry.history):
                        version, line = entry.history[sent]
                        sent += 1
                        if version > since:
                            await response.write(line)
        except TimeoutError:
            return response
        except ConnectionError:
            return response
        finally:
            self._watch_transports.remove(transport)


def _key(raw: Object) -> str:
    return f"{raw['metadata'].get('namespace', '')}/{raw['metadata']['name']}"


@asynccontextmanager
async def serve(
    handler: Behaviour, folder: Path, tls: ssl.SSLContext | None = None, **cluster: Any
) -> AsyncIterator[Path]:
    """Serves a handler; yields a kubeconfig of the server, with further fields of its cluster."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield write_kubeconfig(folder, f"http{'s' if tls else ''}://{host}:{port}", **cluster)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connect_client(api: FakeApi, folder: Path) -> AsyncIterator[KubeClient]:
    """Serves a fake API server; yields a client of it."""
    async with serve(api.handle, folder) as kubeconfig:
        client = await KubeClient.connect(str(kubeconfig))
        try:
            yield client
        finally:
            await client.close()


async def until(what: str, true: Callable[[], Any], seconds: float = 10) -> None:
    """Returns once a condition is true; fails after so many seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not true():
        assert loop.time() < deadline, f"waited {seconds:g} s in vain for {what}"
        await asyncio.sleep(0.01)


def names(objects: Iterable[Object]) -> list[str]:
    return [raw["metadata"]["name"] for raw in objects]
