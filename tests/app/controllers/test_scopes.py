"""What makes which controller look at what: the proposal's watch scopes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.controllers.carry import Carrier
from app.controllers.controller import Context, Controller
from app.controllers.disks import Allocator, Mirror
from app.controllers.images import ImageController
from app.controllers.metrics import ControllerMetrics
from app.controllers.node_sync import NodeSync
from app.controllers.queue import Again
from app.controllers.replicas import ReplicaController
from app.controllers.store import Collection, Seen, decoding, read_image, read_schedule, read_volume, reading
from app.controllers.volumes import VolumeController
from app.controllers.watches import Watches
from app.kube.client import KubeClient
from app.kube.reflector import Timing
from scheduler_core.convert.registry import LONGHORN_GROUP
from scheduler_core.model.longhorn import Node, Replica
from tests import builders
from tests.app.fake_api import write_kubeconfig
from tests.builders import Object

ALL: tuple[type[Controller], ...] = (NodeSync, Allocator, VolumeController, ReplicaController, ImageController, Mirror)
Looked = set[tuple[str, str]]
_version = 0


def put(collection: Collection[Any], read: Callable[[Any], Any], raw: Object) -> None:
    """One object is as given, as a watch would tell."""
    global _version  # noqa: PLW0603 # as an API server counts
    _version += 1
    metadata = {**raw["metadata"], "resourceVersion": str(_version)}
    key, seen = decoding(read)(json.dumps({**raw, "metadata": metadata}).encode())
    assert isinstance(seen, Seen)
    collection.changed(key, seen)


class World:
    """Watches that a test fills, and controllers of which it is only noted what they look at."""

    def __init__(self, client: KubeClient) -> None:
        timing = Timing(lambda: 0.0, lambda least, _: least)
        self.watches = Watches(client, "longhorn-system", timing, lambda: datetime.now(UTC), 60)
        carrier = Carrier(client, "longhorn-system", self.watches.schedules, lambda: True)
        metrics = ControllerMetrics()
        context = Context(
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
        self.controllers = [self._noting(kind)(context) for kind in ALL]

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
        put(
            self.watches.replicas,
            reading(LONGHORN_GROUP, "Replica", Replica),
            builders.replica(name, volume, node, **more),
        )

    async def after(self, event: Callable[[], None]) -> Looked:
        """What is looked at because of an event."""
        await asyncio.sleep(0.01)
        self.looked.clear()
        event()
        await asyncio.sleep(0.01)
        return set(self.looked)


def played(tmp_path: Path, event: Callable[[World], None]) -> Looked:
    """A volume v with replica r and a backing image i on disk n-disk-1; what an event makes look."""

    async def play() -> Looked:
        client = await KubeClient.connect(str(write_kubeconfig(tmp_path, "http://127.0.0.1:1")))
        world = World(client)
        put(world.watches.nodes, reading(LONGHORN_GROUP, "Node", Node), builders.longhorn_node("n"))
        put(world.watches.volumes, read_volume, builders.volume("v", backingImage="i"))
        put(world.watches.images, read_image, {"metadata": {"name": "i"}, "spec": {}})
        world.replica("r", "v")
        world.schedule("n-disk-1", spec={"replicas": {"r": 5}, "backingImages": {"i": 5}})
        running = [asyncio.create_task(controller.run()) for controller in world.controllers]
        found = await world.after(lambda: event(world))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await client.close()
        return found

    return asyncio.run(play())


ASKED = {"replicas": {"r": 5}, "backingImages": {"i": 5}}
HELD = {"state": "scheduled", "scheduledSize": 5}
DISK = {("disk-schedule", "n-disk-1"), ("mirror", "n-disk-1")}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec=ASKED, status={"replicas": {"r": HELD}}),
            {("volume", "v")},
            id="a replica is answered",
        ),
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec=ASKED, status={"backingImages": {"i": HELD}}),
            {("backing-image", "i")},
            id="a backing image is answered: no volume looks",
        ),
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec={**ASKED, "replicas": {"r": 5, "ghost": 5}}),
            {("replica", "ghost")},
            id="a request for a replica that does not exist",
        ),
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec={**ASKED, "backingImages": {"i": 7}}),
            set(),
            id="a request is made: only the disk looks",
        ),
    ],
)
def test_who_looks_when_a_disk_schedule_changes(
    tmp_path: Path, event: Callable[[World], None], expected: Looked
) -> None:
    """Beside the controller of DiskSchedules, who always does. Node sync does not: neither its disk nor whether it is empty changed."""
    assert played(tmp_path, event) == expected | DISK


def test_a_node_whose_room_changes_wakes_its_disks_and_one_with_another_disk_node_sync(tmp_path: Path) -> None:
    """Nobody else."""

    def node(**more: Any) -> Callable[[World], None]:
        raw = builders.longhorn_node("n", **more)
        return lambda world: put(world.watches.nodes, reading(LONGHORN_GROUP, "Node", Node), raw)

    assert played(tmp_path, node(disks=50)) == DISK
    two = node(disks={"disk-1": builders.disk(100), "disk-2": builders.disk(100)})
    assert played(tmp_path, two) == DISK | {("node-sync", "all disks")}


def test_a_replica_wakes_its_volume_and_its_controller_only_when_it_goes(tmp_path: Path) -> None:
    """With a new place also the image it is made from, and the mirror of both disks."""
    moved = played(tmp_path, lambda world: world.replica("r", "v", "m"))
    assert moved == {("volume", "v"), ("backing-image", "i"), ("mirror", "n-disk-1"), ("mirror", "m-disk-1")}
    going = played(tmp_path, lambda world: world.replica("r", "v", deleting=True))
    assert going == {("volume", "v"), ("replica", "r"), ("mirror", "n-disk-1")}


def test_what_is_as_it_was_wakes_nobody(tmp_path: Path) -> None:
    """Another version of the same."""
    assert played(tmp_path, lambda world: world.replica("r", "v")) == set()
