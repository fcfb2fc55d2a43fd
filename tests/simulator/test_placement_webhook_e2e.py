"""Placements that an admission webhook changes or refuses, on a real API server. The webhook is reached through a Service without selector:
the API server resolves it by its EndpointSlices.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.kube.resources import LONGHORN_NODES
from simulator.nodes import disk_uuid
from simulator.objects import DISK_LABEL, NODE_LABEL
from tests.control_plane import ControlPlane
from tests.worlds.simulator_cluster import Rig, Scene, until
from tests.worlds.webhook_server import Answer, Json, PlacementWebhook

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

_SMALL = "disk-1"
_SMALL_PATH = "/var/lib/longhorn/disk-1"


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("webhook")
    with control_plane.borrow() as cluster:
        yield Rig(cluster, folder)


def _use_small_disk(request: Json) -> Answer:
    """Changes a placement to the smaller disk of its node, where Longhorn would not put it."""
    uuid = disk_uuid(request["object"]["spec"]["nodeID"], _SMALL)
    values = {"/spec/diskID": uuid, "/spec/diskPath": _SMALL_PATH, f"/metadata/labels/{DISK_LABEL}": uuid}
    return True, [{"op": "replace", "path": path, "value": value} for path, value in values.items()]


@pytest.mark.parametrize("storage_class", ["longhorn-local", "longhorn-strict"])
def test_changed_placement_is_consistent(rig: Rig, tmp_path: Path, storage_class: str) -> None:
    scene = Scene(rig, f"changed-{storage_class}")
    home = scene.add_node("20Gi", "40Gi")
    with PlacementWebhook(rig.cluster, tmp_path, _use_small_disk) as webhook:
        scene.start("5Gi", home, storage_class)
    uuid = disk_uuid(home, _SMALL)
    [replica] = scene.replicas("data")
    name = replica["metadata"]["name"]
    until("status lists it", lambda: _scheduled(rig, home) == {_SMALL: {name: 5 * 2**30}})
    assert [replica["spec"][key] for key in ("nodeID", "diskID", "diskPath")] == [home, uuid, _SMALL_PATH]
    assert [replica["metadata"]["labels"][key] for key in (NODE_LABEL, DISK_LABEL)] == [home, uuid]
    [request] = webhook.requests
    wanted = request["object"]
    assert (request["operation"], request["oldObject"]["spec"]["diskID"]) == ("UPDATE", "")
    assert wanted["spec"]["diskID"] == wanted["metadata"]["labels"][DISK_LABEL] == disk_uuid(home, "disk-2")
    assert wanted["spec"]["dataDirectoryName"] == replica["spec"]["dataDirectoryName"] != ""
    scene.clean()
    assert rig.status()["failures"] == 0


def test_refused_placement_is_repeated(rig: Rig, tmp_path: Path) -> None:
    scene = Scene(rig, "refused")
    home = scene.add_node("20Gi")
    answers = [False, False, True]
    with PlacementWebhook(rig.cluster, tmp_path, lambda _: (answers.pop(0), [])) as webhook:
        scene.start("5Gi", home)
    assert scene.replica_nodes("data") == [home]
    assert len(webhook.requests) == 3
    scene.clean()
    assert rig.status()["failures"] == 0


def _scheduled(rig: Rig, node: str) -> dict[str, dict[str, int]]:
    """What a node's status counts, by disk; without empty disks."""
    longhorn_node = rig.find(LONGHORN_NODES, node)
    assert longhorn_node is not None
    disks = longhorn_node["status"]["diskStatus"]
    return {name: disk["scheduledReplica"] for name, disk in disks.items() if disk["scheduledReplica"]}
