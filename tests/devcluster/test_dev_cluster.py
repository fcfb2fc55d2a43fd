"""A real cluster: etcd, API server, controllers, scheduler and kwok."""

import signal
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from devcluster.build import ensure_built
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.errors import ConfigError, KubectlError, ProcessError
from devcluster.polling import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),  # the first test may have to build everything
]


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


def get_body(address: str) -> str:
    connection = HTTPConnection(address, timeout=10)
    connection.request("GET", "/")
    with closing(connection):
        return connection.getresponse().read().decode()


def test_a_new_service_account_has_no_permissions(cluster: DevCluster) -> None:
    credentials = cluster.service_account_kubeconfig("default", "default")
    get_body = cluster.kubectl("--kubeconfig", str(credentials), "get", "pods", check=False)
    assert 'Forbidden): pods is forbidden: User "system:serviceaccount:default:default"' in get_body
    assert credentials.stat().st_mode & 0o777 == 0o600


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
