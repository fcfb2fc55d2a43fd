"""The volume controller: what its decision reads of the caches."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from app.disk_schedule.volume_controllers import VolumeController
from app.kube.resources import DISK_SCHEDULES, LONGHORN_REPLICAS, LONGHORN_VOLUMES
from app.runtime.work_queue import Requeue
from tests import builders
from tests.builders import Object
from tests.worlds.controllers import BAD_NODE, RecordingApi, World, put
from tests.worlds.disk_schedules import disk_schedule
from tests.worlds.fake_api import connect_client


async def reconcile(
    folder: Path, nodes: Iterable[Object] = (), cached: Iterable[Object] = (), stored: Object | None = None
) -> tuple[Requeue | None, list[Object]]:
    """Reconciles a volume; returns the result and what was written of Replicas.

    Its replica r has a place on node n and never ran. The API server may have stored another DiskSchedule than is cached.
    """
    api = RecordingApi()
    api.version = 1_000_000  # newer than the cache
    volume = builders.volume("v", 5, locality="disabled")
    replica = builders.replica("r", "v", "n", size=5, healthy=False)
    for resource, raw in ((LONGHORN_VOLUMES, volume), (LONGHORN_REPLICAS, replica), (DISK_SCHEDULES, stored)):
        if raw is not None:
            api.add(resource.path("longhorn-system"), raw)
    async with connect_client(api, folder) as client:
        world = World(client)
        put(world.watches.volumes, volume)
        put(world.watches.replicas, replica)
        for informer, objects in ((world.watches.nodes, nodes), (world.watches.schedules, cached)):
            for raw in objects:
                put(informer, raw)
        result = await VolumeController(world.context).reconcile("v")
    assert not [body for body in api.bodies if body["kind"] == "DiskSchedule"]
    return result, [body for body in api.bodies if body["kind"] == "Replica"]


@pytest.mark.parametrize("listed", [False, True], ids=["a node that cannot be read", "a node that lists it"])
async def test_a_place_without_disk_schedule_stays_while_a_node_may_list_its_disk(
    tmp_path: Path, *, listed: bool
) -> None:
    nodes = [builders.longhorn_node("n")] if listed else [BAD_NODE]
    assert await reconcile(tmp_path, nodes) == (Requeue.WAITING, [])


async def test_a_place_without_disk_schedule_is_cleared_if_no_node_lists_its_disk(tmp_path: Path) -> None:
    result, [body] = await reconcile(tmp_path)
    assert (result, body["spec"]["diskID"]) == (Requeue.WAITING, "")


def held_disk(reason: str) -> Object:
    """The DiskSchedule of n-disk-1, where r holds its bytes; `reason` says why the disk is gone, "" if it is there."""
    status = "False" if reason else "True"
    condition = {"type": "Schedulable", "status": status, "reason": reason, "message": reason}
    raw = disk_schedule(replicas={"r": 5}, answers={"r": ("scheduled", 5)})
    raw["status"] |= {"conditions": [condition]}
    return raw


@pytest.mark.parametrize(("reason", "disk"), [("NodeMissing", [""]), ("", [])], ids=["gone still", "there again"])
async def test_a_replica_leaves_held_bytes_only_if_its_disk_is_gone_still(
    tmp_path: Path, reason: str, disk: list[str]
) -> None:
    _, written = await reconcile(tmp_path, cached=[held_disk("NodeMissing")], stored=held_disk(reason))
    assert [body["spec"]["diskID"] for body in written] == disk
