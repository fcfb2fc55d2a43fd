"""Pods and volumes on a real control plane, from claim to reclaim."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.kube.client import ApiError
from app.kube.resources import CLAIMS, LONGHORN_NAMESPACE, LONGHORN_NODES, LONGHORN_VOLUMES
from devcluster.errors import KubectlError
from tests.control_plane import ControlPlane
from tests.worlds.simulator_cluster import Rig, Scene, claim, pod, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("simulator")
    with control_plane.borrow() as cluster:
        yield Rig(cluster, folder)


@pytest.fixture
def scene(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Scene]:
    own_scene = Scene(rig, re.sub("[^a-z]+", "-", request.node.name.removeprefix("test_"))[:50].strip("-"))
    yield own_scene
    own_scene.clean()
    assert rig.status()["failures"] == 0, rig.simulator.log_tail()


@pytest.mark.smoke
def test_local_volume_is_placed_on_the_node_of_its_pod(scene: Scene) -> None:
    _, home = scene.add_nodes("40Gi", "40Gi")
    scene.start("10Gi", home)
    assert scene.replica_nodes("data") == [home]
    name = scene.replicas("data")[0]["metadata"]["name"]
    until("status lists the replica", lambda: _disk(scene, home)["scheduledReplica"] == {name: 10 * 2**30})
    assert _disk(scene, home)["storageScheduled"] == 10 * 2**30


def test_best_effort_replica_goes_elsewhere_from_a_full_node(scene: Scene) -> None:
    home, other = scene.add_nodes("10Gi", "40Gi")
    _fill(scene, home, "longhorn-local")
    scene.add_provisioned("second", "6Gi", "longhorn-local", home)
    scene.force_pod("late", home, "second")
    until("pod runs", lambda: scene.running("late"))
    assert scene.replica_nodes("second") == [other]
    late = (f"{scene.name}/late", home)
    until("it is counted", lambda: [(each["pod"], each["node"]) for each in scene.rig.status()["misplaced"]] == [late])


def test_strict_local_volume_is_not_attached_on_a_foreign_node(scene: Scene) -> None:
    home, other = scene.add_nodes("20Gi", "20Gi")
    scene.start("5Gi", home, "longhorn-strict", "first")
    scene.rig.cluster.kubectl("delete", "pod", "first", "-n", scene.name)
    scene.force_pod("forced", other, "data")
    until("stuck", lambda: f"its replica is on node {home}" in _stuck_reason(scene))
    assert not scene.running("forced")


def test_settings_unknown_to_longhorn_are_refused(rig: Rig) -> None:
    setting = {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "Setting",
        "metadata": {"name": "scheduler-extender-enabled", "namespace": "longhorn-system"},
        "value": "true",
    }

    create = ("create", "--dry-run=server", "-f", "-")
    assert "setting scheduler-extender-enabled is not supported" in _refusal(rig, *create, input=json.dumps(setting))
    known_setting = {**setting, "metadata": {"name": "taint-toleration", "namespace": "longhorn-system"}}
    rig.cluster.kubectl(*create, input=json.dumps(known_setting))


def test_disk_eviction_requires_disabled_scheduling(scene: Scene) -> None:
    [home] = scene.add_nodes("20Gi")

    patch = ("patch", "lhn", home, "-n", "longhorn-system", "--dry-run=server", "--type=merge", "-p")
    evicted, closed = (
        json.dumps({"spec": {"disks": {"disk-1": {"evictionRequested": True, **more}}}})
        for more in ({}, {"allowScheduling": False})
    )
    assert "need to disable scheduling on disk disk-1 for disk eviction" in _refusal(scene.rig, *patch, evicted)
    scene.rig.cluster.kubectl(*patch, closed)


def _refusal(rig: Rig, *arguments: str, **options: str) -> str:
    """What kubectl says once an admission policy refuses the call: the API server applies it some time after its creation."""

    def refusal() -> str:
        try:
            rig.cluster.kubectl(*arguments, **options)  # type: ignore[arg-type] # only input is given
        except KubectlError as error:
            return str(error)
        return ""

    return str(until("refused", refusal))


def test_killed_simulator_resumes_its_work(scene: Scene) -> None:
    [home] = scene.add_nodes("100Gi")
    before = _volume_names(scene.rig)
    names = [f"app-{index}" for index in range(6)]
    scene.rig.apply(
        *(claim(scene.name, f"data-{name}", "2Gi", "longhorn-local", {}) for name in names),
        *(pod(scene.name, name, (f"data-{name}",), home) for name in names),
    )
    until("some volumes exist", lambda: _volume_names(scene.rig) - before)
    scene.rig.simulator.kill()
    scene.rig.simulator.restart()
    until("all run", lambda: scene.running(*names))
    assert [len(scene.replicas(f"data-{name}")) for name in names] == [1] * 6
    claims = {each["spec"]["volumeName"] for each in scene.rig.list(CLAIMS, scene.name)}
    assert len([each for each in scene.rig.list(LONGHORN_VOLUMES) if each["metadata"]["name"] in claims]) == 6


def test_grown_claim_grows_its_volume(scene: Scene) -> None:
    [home] = scene.add_nodes("20Gi")
    scene.start("5Gi", home)
    scene.add_claim("data", "8Gi")
    until("grown", lambda: _capacity(scene) == str(8 * 2**30))
    assert scene.replicas("data")[0]["spec"]["volumeSize"] == str(8 * 2**30)
    with pytest.raises(ApiError, match=r"validator\.longhorn\.io.*CheckReplicasSizeExpansion.*insufficient storage"):
        _request(scene, "30Gi")
    claim = scene.rig.find(CLAIMS, "data", scene.name)
    assert claim is not None
    assert claim["spec"]["resources"]["requests"]["storage"] == "8Gi"
    volume = LONGHORN_VOLUMES.path(LONGHORN_NAMESPACE, claim["spec"]["volumeName"])
    with pytest.raises(ApiError, match="shrinking volume"):
        scene.rig.cluster.api.patch(volume, {"spec": {"size": str(5 * 2**30)}})


def test_a_growth_is_refused_while_longhorn_does_not_answer(scene: Scene) -> None:
    [home] = scene.add_nodes("20Gi")
    scene.start("5Gi", home)
    scene.rig.simulator.kill()
    try:
        with pytest.raises(ApiError, match=r"failed calling webhook .*validator\.longhorn\.io"):
            _request(scene, "6Gi")
        scene.rig.cluster.api.patch(CLAIMS.path(scene.name, "data"), {"metadata": {"labels": {"other": "update"}}})
    finally:
        scene.rig.simulator.restart()
    _request(scene, "6Gi")
    until("grown", lambda: _capacity(scene) == str(6 * 2**30))


def _request(scene: Scene, size: str) -> None:
    body = {"spec": {"resources": {"requests": {"storage": size}}}}
    scene.rig.cluster.api.patch(CLAIMS.path(scene.name, "data"), body)


def _fill(scene: Scene, home: str, storage_class: str) -> None:
    """Takes 6 GiB of the node; returns when its status lists them."""
    scene.add_provisioned("first", "6Gi", storage_class, home)
    scene.force_pod("early", home, "first")
    until("first pod runs", lambda: scene.running("early"))
    until("status lists its replica", lambda: _disk(scene, home)["scheduledReplica"])


def _disk(scene: Scene, node: str) -> dict[str, Any]:
    longhorn_node = scene.rig.find(LONGHORN_NODES, node)
    assert longhorn_node is not None
    disk: dict[str, Any] = longhorn_node["status"]["diskStatus"]["disk-1"]
    return disk


def _stuck_reason(scene: Scene) -> str:
    """Why a pod of the scene is stuck, "" if none is. It may be stuck for another reason at first, such as a volume
    that is not detached yet.
    """
    entries = scene.rig.status()["stuck"]
    return next((str(each["reason"]) for each in entries if each["pod"].startswith(f"{scene.name}/")), "")


def _volume_names(rig: Rig) -> set[str]:
    """The Longhorn volumes; those of earlier scenes may still be in deletion."""
    return {each["metadata"]["name"] for each in rig.list(LONGHORN_VOLUMES)}


def _capacity(scene: Scene) -> str:
    claim = scene.rig.find(CLAIMS, "data", scene.name)
    assert claim is not None
    return str(claim["status"]["capacity"]["storage"])
