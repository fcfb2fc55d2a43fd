"""A cluster in which Longhorn is installed after the extender: what the extender says until then, and what a real kube-scheduler makes of it."""

from functools import partial
from pathlib import Path
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
def test_an_extender_without_longhorn_is_not_ready_and_answers_once_it_is_installed(tmp_path: Path) -> None:
    """It is alive, says why it is not ready, and has no Lease. kube-scheduler repeats what it said, and not the number of an HTTP status;
    where it is ignorable, the pod is scheduled without it, as it is for a status other than 200.
    """
    with DevCluster(tmp_path / "cluster", ClusterOptions(nodes=1)) as cluster:
        cluster.apply(ROOT / "manifests/test-cluster")
        account = cluster.service_account_kubeconfig(NAMESPACE, SERVICE)
        port = cluster.free_port()
        start_extender(cluster, "extender", account, port, FAST_LEASE)
        address = f"{primary_address()}:{port}"
        ask = partial(_ask, f"http://{address}")
        wait_until("its reason", lambda: "nodes.longhorn.io: is Longhorn installed?" in str(ask("/readyz")[1]))
        assert (ask("/readyz")[0], ask("/healthz")[0]) == (503, 200)
        assert cluster.kubectl("-n", NAMESPACE, "get", "leases", "-o", "name").strip() == ""

        cluster.use_scheduler_config(RECOMMENDED, address)
        create_pod(cluster, "refused")
        refusal = wait_until("the condition", lambda: scheduling_message(pod(cluster, "refused")))
        status, answer = ask("/filter")
        assert (status, bool(answer["Error"])) == (200, True)
        assert answer["Error"] in refusal
        assert node_of(pod(cluster, "refused")) == ""
        config = yaml.safe_load(RECOMMENDED.read_text())
        config["extenders"][0]["ignorable"] = True
        file = tmp_path / "ignorable.yaml"
        file.write_text(yaml.safe_dump(config))
        cluster.use_scheduler_config(file, address)
        create_pod(cluster, "ignored")
        assert wait_until("a node", lambda: node_of(pod(cluster, "ignored"))) == "node-1"

        start_simulator(cluster)
        wait_until("its readiness", lambda: ask("/readyz")[0] == 200)
        wait_until("its answer", lambda: is_filtered(*ask("/filter")))
