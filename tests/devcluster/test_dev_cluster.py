"""A real cluster: etcd, API server, controllers, scheduler and kwok."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import programs
from devcluster.build import ensure_built
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.errors import ConfigError, KubectlError, ProcessError
from devcluster.polling import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),  # the first test may have to build everything
]

CONTAINERS = [{"name": "main", "image": "nothing"}]


def apply(cluster: DevCluster, *objects: dict[str, Any]) -> None:
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))


def running_in(folder: Path) -> list[str]:
    """The programs whose command line names a file in a folder."""
    names = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            argv = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(f"{folder}/" in argument for argument in argv[1:]):
            names.append(Path(argv[0]).name)
    return names


class Greeting(BaseHTTPRequestHandler):
    """Answers every GET with "hello"."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def get_body(address: str) -> str:
    connection = HTTPConnection(address, timeout=10)
    connection.request("GET", "/")
    with closing(connection):
        return connection.getresponse().read().decode()


def accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """A pod without a real image."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": CONTAINERS, **spec}}


def pod_with_volume(name: str) -> list[dict[str, Any]]:
    """A pod, its claim, and a PersistentVolume of a CSI driver."""
    claim = {"namespace": "default", "name": name}
    size = {"storage": "1Gi"}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
         "spec": {"capacity": size, "accessModes": ["ReadWriteOnce"], "claimRef": claim,
                  "csi": {"driver": "driver.longhorn.io", "volumeHandle": name}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
         "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": size}, "volumeName": name, "storageClassName": ""}},
        pod(name, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": name}}]),
    ]  # fmt: skip


def test_a_stateful_set_becomes_ready_and_is_deleted_at_once(cluster: DevCluster) -> None:
    labels = {"app": "plain"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": CONTAINERS}}
    spec = {"replicas": 3, "serviceName": "plain", "selector": {"matchLabels": labels}, "template": template}
    apply(cluster, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "plain"}, "spec": spec})
    cluster.kubectl("rollout", "status", "statefulset/plain", "--timeout=60s")
    pods = ("get", "pods", "-l", "app=plain", "-o", "name")
    assert cluster.kubectl(*pods).split() == [f"pod/plain-{number}" for number in range(3)]
    cluster.kubectl("delete", "statefulset", "plain", "--cascade=foreground", "--timeout=25s")
    assert cluster.kubectl(*pods) == ""


def test_a_pod_with_a_claim_runs_once_its_volumes_are_attached(cluster: DevCluster) -> None:
    apply(cluster, *pod_with_volume("claimed"))

    def attachments() -> list[str]:
        items = cluster.api.get("/apis/storage.k8s.io/v1/volumeattachments")["items"]
        return [it["spec"]["source"]["persistentVolumeName"] for it in items]

    wait_until("the attachment", lambda: attachments() == ["claimed"])
    time.sleep(0.5)
    assert cluster.kubectl("get", "pod", "claimed", "-o", "jsonpath={.status.phase}") == "Pending"
    cluster.kubectl("annotate", "pod", "claimed", "simulator/volumes-attached=true")
    cluster.kubectl("wait", "pod", "claimed", "--for=condition=Ready", "--timeout=60s")
    cluster.kubectl("delete", "pod", "claimed", "--timeout=25s")


def test_a_node_has_the_given_labels_annotations_and_taints(cluster: DevCluster) -> None:
    taint = {"key": "reserved", "value": "yes", "effect": "NoSchedule"}
    cluster.create_node("special", {"zone": "a"}, {"note": "b"}, [taint])
    cluster.wait_nodes_ready()
    node = cluster.api.get("/api/v1/nodes/special")
    cluster.kubectl("delete", "node", "special")
    assert node["metadata"]["labels"].items() >= {"zone": "a", "kubernetes.io/hostname": "special"}.items()
    assert (node["metadata"]["annotations"]["note"], node["spec"]["taints"]) == ("b", [taint])
    assert node["status"]["allocatable"].items() >= {"cpu": "32", "memory": "256Gi", "pods": "200"}.items()


def test_a_new_service_account_has_no_permissions(cluster: DevCluster) -> None:
    credentials = cluster.service_account_kubeconfig("default", "default")
    get_body = cluster.kubectl("--kubeconfig", str(credentials), "get", "pods", check=False)
    assert 'Forbidden): pods is forbidden: User "system:serviceaccount:default:default"' in get_body
    assert credentials.stat().st_mode & 0o777 == 0o600


def test_the_audit_log_has_user_verb_and_result_of_a_call(cluster: DevCluster) -> None:
    cluster.kubectl("get", "configmap", "asked-for", check=False)
    asked = [it for it in cluster.audit_events() if it.get("objectRef", {}).get("name") == "asked-for"]
    assert [(it["user"]["username"], it["verb"], it["responseStatus"]["code"]) for it in asked] == [
        ("admin", "get", 404)
    ]


def test_reading_a_disabled_audit_log_is_an_error(clusters: list[DevCluster]) -> None:
    """An empty answer would prove nothing."""
    with pytest.raises(ConfigError, match="audit=True"):
        next(clusters[1].audit_events())


def test_concurrent_clusters_are_independent(clusters: list[DevCluster]) -> None:
    nodes = [it.kubectl("get", "nodes", "-o", "name").split() for it in clusters]
    assert nodes == [["node/node-1", "node/node-2", "node/node-3"], ["node/node-1"]]


def test_a_failed_kubectl_raises_its_own_message(cluster: DevCluster) -> None:
    with pytest.raises(
        KubectlError, match=r'get pods nothing: Error from server \(NotFound\): pods "nothing" not found'
    ):
        cluster.kubectl("get", "pods", "nothing")


def test_a_kustomization_is_built_and_applied(cluster: DevCluster, tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(
        "namePrefix: pre-\nconfigMapGenerator: [{name: made, literals: [a=b]}]\n"
    )
    assert "configmap/pre-made" in cluster.apply(tmp_path)


def test_a_second_scheduler_serves_the_pods_that_name_it(cluster: DevCluster) -> None:
    second = cluster.start_scheduler("second", scheduler_name="second")
    apply(cluster, pod("mine", schedulerName="second"))
    cluster.kubectl("wait", "pod", "mine", "--for=condition=Ready", "--timeout=60s")
    columns = "jsonpath={.status.phase} {.spec.schedulerName}"
    assert cluster.kubectl("get", "pod", "mine", "-o", columns) == "Running second"
    cluster.kubectl("delete", "pod", "mine")
    second.stop()


def test_a_configured_extender_is_called_at_the_given_address(cluster: DevCluster, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    extender = {"urlPrefix": "http://in-cluster.example:9504", "filterVerb": "filter", "nodeCacheCapable": True}
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    file.write_text(json.dumps({**kind, "extenders": [extender]}))
    address = f"127.0.0.1:{cluster.free_port()}"
    scheduler = cluster.start_scheduler("extended", file, scheduler_name="extended", url_prefix=address)
    apply(cluster, pod("asking", schedulerName="extended"))
    wait_until("the event", lambda: f"{address}/filter" in cluster.kubectl("get", "events"))
    cluster.kubectl("delete", "pod", "asking")
    scheduler.stop()


def test_the_scheduler_restarts_with_another_configuration(clusters: list[DevCluster], tmp_path: Path) -> None:
    scheduler = clusters[1].processes["kube-scheduler"]
    before = scheduler.pid
    file = tmp_path / "scheduler.yaml"
    file.write_text("kind: Other")
    with pytest.raises(ConfigError, match=r"scheduler\.yaml"):
        clusters[1].use_scheduler_config(file)
    assert scheduler.pid == before
    file.write_text("kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\nparallelism: 3\n")
    clusters[1].use_scheduler_config(file)
    assert scheduler.running
    assert scheduler.pid != before


def test_the_cluster_survives_a_kill_of_etcd_and_the_api_server(clusters: list[DevCluster]) -> None:
    cluster = clusters[1]
    server = cluster.server
    for name in ("kube-apiserver", "etcd"):
        cluster.processes[name].kill()
    for name in ("etcd", "kube-apiserver"):
        cluster.processes[name].start()
    apply(cluster, pod("after"))
    cluster.kubectl("wait", "pod", "after", "--for=condition=Ready", "--timeout=60s")
    cluster.kubectl("delete", "pod", "after")
    assert cluster.server == server


def test_the_forwarder_follows_the_endpoints_of_a_service(cluster: DevCluster) -> None:
    address = programs.primary_address()
    metadata = {
        "name": "leader",
        "namespace": programs.NAMESPACE,
        "labels": {"kubernetes.io/service-name": programs.SERVICE},
    }
    cluster.kubectl("create", "namespace", programs.NAMESPACE)
    forwarded = programs.start_forwarder(cluster)
    with pytest.raises(ConnectionRefusedError):
        get_body(forwarded)
    with HTTPServer((address, 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoints = {"endpoints": [{"addresses": [address]}], "ports": [{"name": "http", "port": server.server_port}]}
        kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
        apply(cluster, {**kind, "metadata": metadata, **endpoints})
        wait_until("connections", lambda: accepts(forwarded))
        assert get_body(forwarded) == "hello"
        server.shutdown()
    cluster.processes["forwarder"].stop()
    assert cluster.processes["forwarder"].returncode == 0


def test_a_failed_start_shows_a_log_and_leaves_no_process(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "c", ClusterOptions(extra_args={"kube-apiserver": ["--no-such-flag"]}))
    with pytest.raises(
        ProcessError, match=r"(?s)kube-apiserver ended .* the end of .*kube-apiserver\.log:.*no-such-flag"
    ):
        cluster.start()
    assert running_in(tmp_path) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_process_outlives_the_command(tmp_path: Path, number: signal.Signals, code: int) -> None:
    ensure_built()
    folder = tmp_path / "c"
    with subprocess.Popen(
        [sys.executable, "-m", "devcluster", "up", "--directory", str(folder)], stderr=subprocess.DEVNULL
    ) as process:
        wait_until("the API server", lambda: "kube-apiserver" in running_in(folder))
        process.send_signal(number)
        assert process.wait(60) == code
    wait_until("the end of all", lambda: running_in(folder) == [])
