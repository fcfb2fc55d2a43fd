"""The service under test: in this process over ASGI, or as a process of its own with a socket."""

import http.client
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from app.bootstrap import create_app
from app.runtime.server import BrowserRules
from app.schemas.state import ServiceState
from app.settings import Settings
from scheduler_core.decide.extender_settings import Enforcement
from tests.builders import NOW, Object, claim, flat, kube_node, longhorn_node, pod, snapshot, storage_class, write_list

if TYPE_CHECKING:
    from app.extender.leadership_lifecycle import ExtenderLifecycle

EXTENDER = str(Path(sys.executable).with_name("longhorn-extender"))
NODES = ("node-1", "node-2", "node-3", "node-4")
REFUSED = "insufficient Longhorn storage"


def small_cluster() -> list[Object]:
    """Four nodes, and the unbound claim data-db-0 of 50Gi, which fits on node-1 and node-3."""
    sizes = dict(zip(NODES, (100, 40, 60, 10), strict=True))
    return flat(
        [kube_node(name) for name in NODES],
        [longhorn_node(name, size) for name, size in sizes.items()],
        storage_class(),
        claim("data-db-0", 50),
    )


def db_pod(**metadata: Any) -> Object:
    raw = pod("data-db-0", name="db-0", uid="uid-db-0")
    raw["metadata"] |= metadata
    return raw


def application(*objects: Object | Iterable[Object], settings: Settings | None = None) -> FastAPI:
    """The application over some objects; over the small cluster without any."""
    return create_app(snapshot(*(objects or (small_cluster(),))), settings or Settings(), NOW)


@asynccontextmanager
async def http_client(app: FastAPI, *, raise_app_exceptions: bool = True) -> AsyncIterator[AsyncClient]:
    """A client of the application, without a socket."""
    transport = ASGITransport(BrowserRules(app), raise_app_exceptions=raise_app_exceptions)
    async with AsyncClient(transport=transport, base_url="http://extender") as client:
        yield client


@asynccontextmanager
async def small_service() -> AsyncIterator[AsyncClient]:
    async with http_client(application()) as client:
        yield client


@dataclass(frozen=True)
class FakeLifecycle:
    """What the routes read of a live extender's life cycle."""

    service: ServiceState
    readiness_problem: str

    @property
    def unreadable(self) -> list[str]:
        return list(self.service.unreadable)

    @property
    def refused_settings(self) -> list[str]:
        return list(self.service.refused_settings)

    def state(self) -> ServiceState:
        return self.service


def lifecycle(problem: str = "", **fields: Any) -> "ExtenderLifecycle":
    """The life cycle of a process that answers, unless the fields of its state say otherwise."""
    values: dict[str, Any] = {
        "answering": True, "refusal": "", "leader": "pod-1", "enabled": True, "enforcement": Enforcement.ENFORCE,
        "pod_scheduling_timeout": 5, "node_reservation_timeout": 6, "origins": {}, "refused_settings": (), "reserved_nodes": (),
    }  # fmt: skip
    return cast("ExtenderLifecycle", FakeLifecycle(ServiceState(**(values | fields)), problem))


def by_names(raw_pod: Object, names: Iterable[str] = NODES) -> Object:
    """ExtenderArgs in the names form, as Go writes it."""
    return {"Pod": raw_pod, "Nodes": None, "NodeNames": list(names)}


def by_nodes(raw_pod: Object, names: Iterable[str] = NODES) -> Object:
    """ExtenderArgs in the full form, as Go writes it."""
    return {"Pod": raw_pod, "Nodes": {"metadata": {}, "items": [kube_node(name) for name in names]}, "NodeNames": None}


@dataclass(frozen=True)
class SnapshotProcess:
    """A process that serves a snapshot, and its port."""

    process: subprocess.Popen[str]
    port: int

    def connect(self) -> http.client.HTTPConnection:
        """A new keep-alive connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)


@contextmanager
def serve_snapshot(folder: Path, *options: str, objects: Iterable[Object] | None = None) -> Iterator[SnapshotProcess]:
    """Runs `longhorn-extender serve` on a free port, over the small cluster or other objects."""
    file = write_list(folder, objects or small_cluster())
    process = subprocess.Popen(
        [EXTENDER, "serve", "--snapshot", file, "--port", "0", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        welcome = re.search(r":(\d+) ", process.stderr.readline())
        assert welcome is not None, process.stderr.read()
        yield SnapshotProcess(process, int(welcome[1]))
    finally:
        process.kill()
        process.communicate()
