"""Claims that kube-scheduler binds to existing PersistentVolumes: predicted on random clusters, and the failures that were seen."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.kube.resources import CLAIMS, LONGHORN_NAMESPACE, LONGHORN_VOLUMES, PERSISTENT_VOLUMES, PODS
from tests.builders import storage_class
from tests.control_plane import ControlPlane
from tests.e2e import static_volumes
from tests.e2e.objects import Object, Volume, Workload, longhorn_volume, name_of, retained_volume
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SEEDS = range(1, 6)


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One cluster; every test has nodes of its own."""
    with Rig(tmp_path_factory.mktemp("static"), control_plane) as started:
        yield started


def test_the_predicted_persistent_volume_is_the_one_that_is_bound(rig: Rig) -> None:
    """Several classes, sizes, access modes, selectors and node affinities; pods with several claims."""
    bindings = static_volumes.compare(rig, SEEDS)
    assert bindings.wrong == []
    assert bindings.matched > 0
    assert bindings.provisioned > 0


def release(rig: Rig, app: str) -> str:
    """Deletes the app's only pod and claim, and makes its kept PersistentVolume available again; returns its name."""
    for resource in (PODS, CLAIMS):
        rig.delete_all(resource, f"app={app}", wait=True)

    def released() -> str:
        for raw in rig.items(PERSISTENT_VOLUMES.path()):
            claim = (raw["spec"].get("claimRef") or {}).get("name", "")
            if claim.endswith(f"{app}-0") and raw["status"]["phase"] == "Released":
                return name_of(raw)
        return ""

    name = rig.until("the volume is released", released)
    rig.cluster.kubectl("patch", "pv", name, "--type=merge", "-p", '{"spec":{"claimRef":null}}')
    rig.until("it is available", lambda: phase(rig, name) == "Available")
    return name


def phase(rig: Rig, volume: str) -> Any:
    return rig.cluster.api.get(PERSISTENT_VOLUMES.path(name=volume)).get("status", {}).get("phase")


def retaining_class(name: str, locality: str) -> Object:
    return {**storage_class(name, dataLocality=locality), "reclaimPolicy": "Retain"}


@pytest.mark.parametrize("locality", ["strict-local", "best-effort"])
def test_a_pod_follows_a_kept_volume_to_the_node_with_its_data(rig: Rig, locality: str) -> None:
    """kube-scheduler alone prefers the other nodes, which are idle."""
    app = f"kept-{locality}"
    nodes = {f"{app}-{number}": ["500Gi"] for number in range(1, 4)}
    rig.create(retaining_class(app, locality))
    rig.add_nodes(app, nodes)
    first = Workload(app=app, group=app, volumes=[Volume("100Gi", app)], only=f"{app}-1")
    rig.post(first.loose())
    rig.until("the first pod runs", lambda: rig.ready(app, 1), 120)
    volume = release(rig, app)
    rig.load(f"{app}-1", 0.8)
    second = Workload(app=app, group=app, volumes=[Volume("100Gi", app)])
    rig.post(second.loose(1))
    rig.until("the second pod runs", lambda: rig.ready(app, 1), 120)
    assert rig.nodes_of(app) == {f"{app}-1": f"{app}-1"}
    assert phase(rig, volume) == "Bound"
    assert rig.misplaced_pods(app) == []


def test_a_claim_that_is_bound_to_a_larger_volume_goes_where_that_fits(rig: Rig) -> None:
    """50Gi are requested and 100Gi are bound; most nodes have 60Gi."""
    rig.create(retaining_class("larger", "best-effort"))
    rig.add_nodes("larger", {"larger-1": ["60Gi"], "larger-2": ["60Gi"], "larger-3": ["120Gi"]})
    rig.load("larger-3", 0.8)
    rig.cluster.api.create(LONGHORN_VOLUMES.path(LONGHORN_NAMESPACE), longhorn_volume("larger-volume"))
    csi = {"driver": "driver.longhorn.io", "volumeHandle": "larger-volume"}
    rig.cluster.api.create(PERSISTENT_VOLUMES.path(), retained_volume("larger-pv", "100Gi", "larger", csi=csi))
    rig.until("it is available", lambda: phase(rig, "larger-pv") == "Available")
    before = rig.misplacements()
    rig.post(Workload(app="larger", group="larger", volumes=[Volume("50Gi", "larger")]).loose())
    rig.until("the pod runs", lambda: rig.ready("larger", 1), 120)
    assert rig.nodes_of("larger") == {"larger-0": "larger-3"}
    assert phase(rig, "larger-pv") == "Bound"
    assert rig.misplaced_pods("larger") == []
    assert rig.misplacements() == before
