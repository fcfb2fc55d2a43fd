"""The volume controller: what its decision reads of the caches."""

import asyncio
from pathlib import Path

import pytest

from app.disk_schedule.volume_controller import VolumeController
from app.kube.client import KubeClient
from app.kube.resources import DISK_SCHEDULES, LONGHORN_REPLICAS, LONGHORN_VOLUMES
from app.runtime.work_queue import Requeue
from tests import builders
from tests.builders import Object
from tests.worlds.controllers import BAD_NODE, RecordingApi, World, put
from tests.worlds.disk_schedules import disk_schedule
from tests.worlds.fake_api import serve


def reconcile(folder: Path, nodes: list[Object]) -> tuple[Requeue | None, list[Object]]:
    """Reconciles a volume; returns the result and what was written.

    Its replica r has a place on node n and never ran. There is no DiskSchedule.
    """

    async def reconcile_volume() -> tuple[Requeue | None, list[Object]]:
        api = RecordingApi()
        volume = builders.volume("v", 5, locality="disabled")
        replica = builders.replica("r", "v", "n", size=5, healthy=False)
        async with serve(api.handle, folder) as kubeconfig:
            client = await KubeClient.connect(str(kubeconfig))
            try:
                world = World(client)
                put(world.watches.volumes, volume)
                put(world.watches.replicas, replica)
                for raw in nodes:
                    put(world.watches.nodes, raw)
                result = await VolumeController(world.context).reconcile("v")
            finally:
                await client.close()
        return result, [body for body in api.bodies if body["kind"] == "Replica"]

    return asyncio.run(reconcile_volume())


@pytest.mark.parametrize("listed", [False, True], ids=["a node that cannot be read", "a node that lists it"])
def test_a_place_without_disk_schedule_stays_while_a_node_may_list_its_disk(tmp_path: Path, *, listed: bool) -> None:
    nodes = [builders.longhorn_node("n")] if listed else [BAD_NODE]
    assert reconcile(tmp_path, nodes) == (Requeue.WAITING, [])


def test_a_place_without_disk_schedule_is_cleared_if_no_node_lists_its_disk(tmp_path: Path) -> None:
    result, [body] = reconcile(tmp_path, [])
    assert (result, body["spec"]["diskID"]) == (Requeue.WAITING, "")


def held_disk(reason: str) -> Object:
    """The DiskSchedule of n-disk-1, where r holds its bytes; `reason` says why the disk is gone, "" if it is there."""
    status = "False" if reason else "True"
    condition = {"type": "Schedulable", "status": status, "reason": reason, "message": reason}
    raw = disk_schedule(replicas={"r": 5}, answers={"r": ("scheduled", 5)})
    raw["status"] |= {"conditions": [condition]}
    return raw


@pytest.mark.parametrize(("reason", "disk"), [("NodeMissing", [""]), ("", [])], ids=["gone still", "there again"])
def test_a_replica_leaves_held_bytes_only_if_its_disk_is_gone_still(
    tmp_path: Path, reason: str, disk: list[str]
) -> None:
    async def reconcile_volume() -> list[Object]:
        api = RecordingApi()
        api.version = 1_000_000  # newer than the cache
        volume = builders.volume("v", 5, locality="disabled")
        replica = builders.replica("r", "v", "n", size=5, healthy=False)
        for resource, raw in (
            (LONGHORN_VOLUMES, volume),
            (LONGHORN_REPLICAS, replica),
            (DISK_SCHEDULES, held_disk(reason)),
        ):
            api.add(resource.path("longhorn-system"), raw)
        async with serve(api.handle, tmp_path) as kubeconfig:
            client = await KubeClient.connect(str(kubeconfig))
            try:
                world = World(client)
                put(world.watches.volumes, volume)
                put(world.watches.replicas, replica)
                put(world.watches.schedules, held_disk("NodeMissing"))
                await VolumeController(world.context).reconcile("v")
            finally:
                await client.close()
        assert not [body for body in api.bodies if body["kind"] == "DiskSchedule"]
        return [body for body in api.bodies if body["kind"] == "Replica"]

    assert [body["spec"]["diskID"] for body in asyncio.run(reconcile_volume())] == disk
