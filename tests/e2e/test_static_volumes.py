"""Claims that kube-scheduler binds to existing PersistentVolumes: predicted on random clusters, and the failures that were seen."""

from collections.abc import Iterator
from functools import partial

import pytest

from app.kube.resources import CLAIMS, LONGHORN_NAMESPACE, LONGHORN_VOLUMES, PERSISTENT_VOLUMES, PODS
from tests.builders import storage_class
from tests.control_plane import ControlPlane
from tests.e2e import static_volumes
from tests.e2e.objects import Object, Volume, Workload
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SEEDS = range(1, 6)


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One cluster; every test has nodes of its own."""
    with (
        control_plane.borrow() as cluster,
        Rig(tmp_path_factory.mktemp("static"), config=RECOMMENDED_MANAGED, running=cluster) as started,
    ):
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
        path = rig.delete_all(resource, f"app={app}")
        rig.until(f"the {resource.plural} are gone", partial(_is_empty, rig, path))

    def released() -> str:
        for raw in rig.items(PERSISTENT_VOLUMES.path()):
            claim = (raw["spec"].get("claimRef") or {}).get("name", "")
            if claim.endswith(f"{app}-0") and raw["status"]["phase"] == "Released":
                return str(raw["metadata"]["name"])
        return ""

    name = rig.until("the volume is released", released)
    rig.cluster.kubectl("patch", "pv", name, "--type=merge", "-p", '{"spec":{"claimRef":null}}')
    rig.until("it is available", lambda: _persistent_volume(rig, name)["status"]["phase"] == "Available")
    return name


def _is_empty(rig: Rig, path: str) -> bool:
    return not rig.items(path)


def _persistent_volume(rig: Rig, name: str) -> Object:
    return dict(rig.cluster.api.get(PERSISTENT_VOLUMES.path(name=name)))


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
    assert _persistent_volume(rig, volume)["status"]["phase"] == "Bound"
    assert rig.misplaced_pods(app) == []


def test_a_claim_that_is_bound_to_a_larger_volume_goes_where_that_fits(rig: Rig) -> None:
    """50Gi are requested and 100Gi are bound; most nodes have 60Gi."""
    rig.create(retaining_class("larger", "best-effort"))
    rig.add_nodes("larger", {"larger-1": ["60Gi"], "larger-2": ["60Gi"], "larger-3": ["120Gi"]})
    rig.load("larger-3", 0.8)
    longhorn_volume = static_volumes.longhorn_volume("larger-volume", "100Gi", "best-effort")
    rig.cluster.api.create(LONGHORN_VOLUMES.path(LONGHORN_NAMESPACE), longhorn_volume)
    volume = {
        "capacity": {"storage": "100Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "larger",
        "csi": {"driver": "driver.longhorn.io", "volumeHandle": "larger-volume"},
    }
    rig.cluster.api.create(
        PERSISTENT_VOLUMES.path(),
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "larger-pv"}, "spec": volume},
    )
    rig.until(
        "it is available", lambda: _persistent_volume(rig, "larger-pv").get("status", {}).get("phase") == "Available"
    )
    before = rig.misplacements()
    rig.post(Workload(app="larger", group="larger", volumes=[Volume("50Gi", "larger")]).loose())
    rig.until("the pod runs", lambda: rig.ready("larger", 1), 120)
    assert rig.nodes_of("larger") == {"larger-0": "larger-3"}
    assert _persistent_volume(rig, "larger-pv")["status"]["phase"] == "Bound"
    assert rig.misplaced_pods("larger") == []
    assert rig.misplacements() == before
