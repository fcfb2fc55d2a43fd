"""What a real kube-scheduler makes of an extender that says why it cannot answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from app.kube.resources import PODS
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.http_check import http_request
from devcluster.polling import wait_until
from devcluster.programs import NAMESPACE, SERVICE, primary_address, start_extender
from devcluster.stack import FAST_LEASE, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
RECOMMENDED = ROOT / "kube-scheduler-config/recommended.yaml"


@dataclass(frozen=True)
class RefusingExtender:
    """A cluster without Longhorn, so that its extender never answers; the extender's address."""

    cluster: DevCluster
    address: str


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefusingExtender]:
    """An extender that runs and says that Longhorn is not installed."""
    with DevCluster(tmp_path_factory.mktemp("refused"), ClusterOptions(nodes=1)) as cluster:
        cluster.apply(ROOT / "manifests/test-cluster")
        account = cluster.service_account_kubeconfig(NAMESPACE, SERVICE)
        port = cluster.free_port()
        start_extender(cluster, "extender", account, port, FAST_LEASE)
        address = f"{primary_address()}:{port}"
        wait_until("the extender", lambda: "Longhorn" in str(http_request(f"http://{address}/readyz", None, 5)[1]))
        yield RefusingExtender(cluster, address)


def create_pod(cluster: DevCluster, name: str) -> None:
    spec = {"containers": [{"name": "main", "image": "none"}]}
    cluster.api.create(
        PODS.path("default"), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    )


def condition(cluster: DevCluster, name: str) -> str:
    conditions = cluster.api.get(PODS.path("default", name))["status"].get("conditions", [])
    return " ".join(entry.get("message", "") for entry in conditions if entry["type"] == "PodScheduled")


def node_of(cluster: DevCluster, name: str) -> str:
    """The node of a pod, "" while it waits."""
    return str(cluster.api.get(PODS.path("default", name))["spec"].get("nodeName", ""))


@pytest.mark.smoke
def test_the_reason_is_in_the_pods_condition(refusing: RefusingExtender) -> None:
    """It is what the extender said, and not the number of an HTTP status."""
    refusing.cluster.use_scheduler_config(RECOMMENDED, refusing.address)
    create_pod(refusing.cluster, "refused")
    wait_until("the condition", lambda: bool(condition(refusing.cluster, "refused")))
    body = {"Pod": {"metadata": {"name": "refused"}}, "NodeNames": ["node-1"]}
    status, answer = http_request(f"http://{refusing.address}/filter", body, 5)
    assert (status, bool(answer["Error"])) == (200, True)
    assert answer["Error"] in condition(refusing.cluster, "refused")
    assert node_of(refusing.cluster, "refused") == ""


def test_ignorable_is_honoured_for_an_answer_with_an_error(refusing: RefusingExtender, tmp_path: Path) -> None:
    """The pod is scheduled without the extender, as it is for a status other than 200."""
    config = yaml.safe_load(RECOMMENDED.read_text())
    config["extenders"][0]["ignorable"] = True
    file = tmp_path / "ignorable.yaml"
    file.write_text(yaml.safe_dump(config))
    refusing.cluster.use_scheduler_config(file, refusing.address)
    create_pod(refusing.cluster, "ignored")
    wait_until("a node", lambda: bool(node_of(refusing.cluster, "ignored")))
    assert node_of(refusing.cluster, "ignored") == "node-1"
