"""manifests/overlays/second-scheduler on a real API server, with a real second kube-scheduler under its ServiceAccount."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from app.kube.resources import LEASES, PODS
from devcluster.build import ensure_built
from devcluster.dev_cluster import DevCluster
from devcluster.polling import wait_until
from tests.control_plane import ControlPlane
from tests.manifests.clusters import node_of, pod
from tests.manifests.load import MANIFESTS, NAMESPACE
from tests.worlds.service import serve_snapshot

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
FOLDER = MANIFESTS / "overlays/second-scheduler"
SCHEDULER = "longhorn-scheduler"


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[DevCluster]:
    """A cluster with two nodes and the access of both programs."""
    with control_plane.borrow(nodes=2) as running:
        running.kubectl("apply", "--server-side", "-k", str(MANIFESTS / "test-cluster"))
        running.kubectl("apply", "--server-side", "-k", str(FOLDER / "access"))
        yield running


@pytest.fixture(scope="module")
def log(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs the second kube-scheduler with exactly the permissions of the overlay, and an extender; the scheduler's log."""
    folder = tmp_path_factory.mktemp("second")
    credentials = cluster.service_account_kubeconfig(NAMESPACE, SCHEDULER)
    with serve_snapshot(folder) as extender:
        config = yaml.safe_load((FOLDER / "config/kube-scheduler.yaml").read_text())
        config["clientConnection"]["kubeconfig"] = str(credentials)
        for entry in config["extenders"]:
            entry["urlPrefix"] = f"http://127.0.0.1:{extender.port}"
        file = folder / "kube-scheduler.yaml"
        file.write_text(yaml.safe_dump(config))
        arguments = [
            f"--config={file}",
            f"--authentication-kubeconfig={credentials}",
            f"--authorization-kubeconfig={credentials}",
            "--bind-address=127.0.0.1",
            f"--secure-port={cluster.free_port()}",
        ]
        cluster.spawn("second", [ensure_built() / "kube-scheduler", *arguments])
        yield cluster.logs / "second.log"


@pytest.mark.smoke
def test_it_places_the_pods_that_name_it_and_no_others(cluster: DevCluster, log: Path) -> None:
    """With and without the resource: its second entry keeps it from looking for that on nodes. Nothing is forbidden; without the overlay's
    bindings it logs "forbidden" for ever.
    """
    names = ("with-resource", "without", "own")
    cluster.api.create(PODS.path("default"), pod("with-resource", schedulerName=SCHEDULER, resource=True))
    cluster.api.create(PODS.path("default"), pod("without", schedulerName=SCHEDULER))
    cluster.api.create(PODS.path("default"), pod("own", schedulerName="default-scheduler"))
    wait_until("the pods to be placed", lambda: all(node_of(cluster, name) for name in names))
    lease = LEASES.path(NAMESPACE, SCHEDULER)
    wait_until("its own Lease", lambda: bool((cluster.api.get(lease).get("spec") or {}).get("holderIdentity")))
    assert [line for line in log.read_text().splitlines() if "forbidden" in line.lower()] == []


def test_the_api_server_accepts_the_overlay(cluster: DevCluster) -> None:
    built = cluster.kubectl("kustomize", str(FOLDER))
    cluster.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", input=built)
    schedulers = [entry for entry in yaml.safe_load_all(built) if entry["metadata"]["name"].startswith(SCHEDULER)]
    assert {entry["metadata"]["namespace"] for entry in schedulers if "namespace" in entry["metadata"]} == {
        "longhorn-system", "kube-system",
    }  # fmt: skip
