"""A cluster in which Longhorn is installed after the extender: what the extender says until then, and what a real kube-scheduler makes of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import yaml

from app.kube.resources import PODS
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.http_check import http_request, is_filtered
from devcluster.polling import wait_until
from devcluster.programs import NAMESPACE, SERVICE, primary_address, start_extender, start_simulator
from devcluster.stack import FAST_LEASE, ROOT
from tests.e2e.objects import node_of, scheduling_message
from tests.e2e.rig import RECOMMENDED

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@dataclass(frozen=True)
class Start:
    """What happened without Longhorn, and whether the extender answered once it was installed."""

    ready: tuple[int, Any]  # the answers to /readyz, /healthz and /filter
    healthy: tuple[int, Any]
    filtered: tuple[int, Any]
    leases: str
    refusal: str  # what kube-scheduler said about a pod
    ignored: str  # the node of a pod where the extender is ignorable


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """An extender that runs and says that Longhorn is not installed; Longhorn is installed at the end, and the extender answers."""
    folder = tmp_path_factory.mktemp("start")
    with DevCluster(folder / "cluster", ClusterOptions(nodes=1)) as cluster:
        cluster.apply(ROOT / "manifests/test-cluster")
        account = cluster.service_account_kubeconfig(NAMESPACE, SERVICE)
        port = cluster.free_port()
        start_extender(cluster, "extender", account, port, FAST_LEASE)
        address = f"{primary_address()}:{port}"
        ask = partial(_ask, f"http://{address}")
        wait_until("its reason", lambda: "nodes.longhorn.io: is Longhorn installed?" in str(ask("/readyz")[1]))
        health = (ask("/readyz"), ask("/healthz"))
        leases = cluster.kubectl("-n", NAMESPACE, "get", "leases", "-o", "name").strip()

        cluster.use_scheduler_config(RECOMMENDED, address)
        create_pod(cluster, "refused")
        refusal = wait_until("the condition", lambda: scheduling_message(pod(cluster, "refused")))
        filtered = ask("/filter")
        assert node_of(pod(cluster, "refused")) == ""
        config = yaml.safe_load(RECOMMENDED.read_text())
        config["extenders"][0]["ignorable"] = True
        file = folder / "ignorable.yaml"
        file.write_text(yaml.safe_dump(config))
        cluster.use_scheduler_config(file, address)
        create_pod(cluster, "ignored")
        ignored = wait_until("a node", lambda: node_of(pod(cluster, "ignored")))

        start_simulator(cluster)
        wait_until("its readiness", lambda: ask("/readyz")[0] == 200)
        wait_until("its answer", lambda: is_filtered(*ask("/filter")))
        yield Start(*health, filtered, leases, refusal, ignored)


def _ask(url: str, path: str) -> tuple[int, Any]:
    body = {"Pod": {"metadata": {"name": "refused"}}, "NodeNames": ["node-1"]} if path == "/filter" else None
    return http_request(f"{url}{path}", body, 5)


def create_pod(cluster: DevCluster, name: str) -> None:
    spec = {"containers": [{"name": "main", "image": "none"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.api.create(PODS.path("default"), body)


def pod(cluster: DevCluster, name: str) -> Any:
    return cluster.api.get(PODS.path("default", name))


@pytest.mark.smoke
def test_an_extender_without_longhorn_is_not_ready_and_answers_once_it_is_installed(start: Start) -> None:
    """It is alive, says why it is not ready, and has no Lease."""
    assert (start.ready[0], start.healthy[0], start.leases) == (503, 200, "")
    status, answer = start.filtered
    assert (status, bool(answer["Error"])) == (200, True)


@pytest.mark.smoke
def test_the_reason_is_in_the_pods_condition(start: Start) -> None:
    """It is what the extender said, and not the number of an HTTP status."""
    assert start.filtered[1]["Error"] in start.refusal


def test_ignorable_is_honoured_for_an_answer_with_an_error(start: Start) -> None:
    """The pod is scheduled without the extender, as it is for a status other than 200."""
    assert start.ignored == "node-1"
