"""A cluster in which Longhorn is installed after the extender."""

import pytest

from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.http_check import http_request, is_filtered
from devcluster.polling import wait_until
from devcluster.programs import NAMESPACE, SERVICE, primary_address, start_extender, start_simulator
from devcluster.stack import FAST_LEASE, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.mark.smoke
def test_an_extender_without_longhorn_is_not_ready_and_answers_once_it_is_installed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """It is alive, says why it is not ready, and has no Lease."""
    with DevCluster(tmp_path_factory.mktemp("start"), ClusterOptions(nodes=1)) as cluster:
        cluster.apply(ROOT / "manifests/test-cluster")
        account = cluster.service_account_kubeconfig(NAMESPACE, SERVICE)
        port = cluster.free_port()
        start_extender(cluster, "extender", account, port, FAST_LEASE)
        url = f"http://{primary_address()}:{port}"
        body = {"Pod": {"metadata": {"name": "probe"}}, "NodeNames": ["node-1"]}

        wait_until(
            "its reason",
            lambda: "nodes.longhorn.io: is Longhorn installed?" in str(http_request(f"{url}/readyz", None, 5)[1]),
        )
        assert http_request(f"{url}/readyz", None, 5)[0] == 503
        assert http_request(f"{url}/healthz", None, 5)[0] == 200
        status, answer = http_request(f"{url}/filter", body, 5)
        assert (status, bool(answer["Error"])) == (200, True)
        assert cluster.kubectl("-n", NAMESPACE, "get", "leases", "-o", "name").strip() == ""

        start_simulator(cluster)
        wait_until("its readiness", lambda: http_request(f"{url}/readyz", None, 5)[0] == 200)
        wait_until("its answer", lambda: is_filtered(*http_request(f"{url}/filter", body, 5)))
