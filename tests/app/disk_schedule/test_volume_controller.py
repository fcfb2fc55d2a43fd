"""The volume controller: what of the watches its decision gets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.disk_schedule.informer import reading
from app.disk_schedule.volume_controller import VolumeController
from app.kube.client import KubeClient
from app.kube.resources import LONGHORN_REPLICAS, LONGHORN_VOLUMES
from app.runtime.work_queue import Again
from scheduler_core.convert.snapshot_kinds import LONGHORN_GROUP
from scheduler_core.model.longhorn import Node
from tests import builders
from tests.builders import Object
from tests.worlds.controllers import BAD_NODE, World, Written, put
from tests.worlds.fake_api import served


def looked_at(folder: Path, nodes: list[Object]) -> tuple[Again | None, list[Object]]:
    """One look at a volume whose replica r has a place on node n and never ran, without any DiskSchedule."""

    async def play() -> tuple[Again | None, list[Object]]:
        api = Written()
        api.add(LONGHORN_VOLUMES.path("longhorn-system"), builders.volume("v", 5, locality="disabled"))
        replica = builders.replica("r", "v", "n", size=5, healthy=False)
        api.add(LONGHORN_REPLICAS.path("longhorn-system"), replica)
        async with served(api.handle, folder) as kubeconfig:
            client = await KubeClient.connect(str(kubeconfig))
            try:
                world = World(client)
                for raw in nodes:
                    put(world.watches.nodes, reading(LONGHORN_GROUP, "Node", Node), raw)
                again = await VolumeController(world.context).reconcile("v")
            finally:
                await client.close()
        return again, [body for body in api.bodies if body["kind"] == "Replica"]

    return asyncio.run(play())


@pytest.mark.parametrize("listed", [False, True], ids=["a node that cannot be read", "a node that lists it"])
def test_a_place_without_disk_schedule_is_kept_while_a_node_may_list_its_disk(tmp_path: Path, *, listed: bool) -> None:
    """One that cannot be read may."""
    nodes = [builders.longhorn_node("n")] if listed else [BAD_NODE]
    assert looked_at(tmp_path, nodes) == (Again.WAITING, [])


def test_a_place_without_disk_schedule_is_given_up_when_no_node_lists_its_disk(tmp_path: Path) -> None:
    """It never ran, so it may go elsewhere."""
    again, [body] = looked_at(tmp_path, [])
    assert (again, body["spec"]["diskID"]) == (Again.WAITING, "")
