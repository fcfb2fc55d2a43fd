"""The Helm chart on a real API server, by the real helm. It is installed, upgraded, rolled back, and removed without a trace."""

import json
import socket
import ssl
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from app.extender.offer_store import KEY
from app.kube import resources
from devcluster.chart import CHART, SECOND_SCHEDULER
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.http_check import http_request
from devcluster.polling import wait_until
from devcluster.process import Process, log_has
from tests.manifests.helm import RELEASE, Helm, write_secret
from tests.manifests.load import GUARD, NAME, NAMESPACE, OFFERS
from tests.worlds.elector_process import OF_A_CHART, election_flags
from tests.worlds.service import EXTENDER
from tests.worlds.tls import client_context, serial_shown

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
DEPLOYMENTS = resources.Resource("apps", "v1", "deployments", "Deployment", namespaced=True)
CERTIFICATES = ("ca", "tls", "client")
NODES = ["node-1", "node-2"]
FAST = election_flags(OF_A_CHART)
PARTS = ("askPolicy", "secondScheduler", "schedulerNamePolicy", "tls")
TLS = ("--set", "tls.enabled=true,networkPolicy.enabled=true,networkPolicy.controlPlaneNetworks={192.168.10.0/24}")
SERVER_NAME = f"{NAME}.{NAMESPACE}.svc"
EVERYTHING = ("--set", ",".join(f"{part}.enabled=true" for part in PARTS))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Two nodes with a Longhorn disk of 100Gi each. Longhorn's namespace is under the restricted Pod Security Standard."""
    with DevCluster(tmp_path_factory.mktemp("chart") / "cluster", ClusterOptions(audit=False)) as running:
        running.api.create(resources.NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
        running.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        for name in NODES:
            running.create_node(
                name, annotations={"simulator/disks": json.dumps([{"name": "disk-1", "size": "100Gi"}])}
            )
        simulator = [sys.executable, "-m", "simulator", "--kubeconfig", str(running.kubeconfig)]
        running.spawn("simulator", simulator, ready=log_has('"ready"'))
        wait_until("the Longhorn nodes", lambda: len(nodes_with_disks(running)) == len(NODES))
        yield running


@pytest.fixture
def helm(cluster: DevCluster, tmp_path: Path) -> Iterator[Helm]:
    """The program with the administrator's rights. Removes what a failed test has left."""
    program = Helm(tmp_path, cluster.kubeconfig)
    yield program
    program.run("uninstall", RELEASE, "--ignore-not-found")


@pytest.fixture
def spawn_extender(cluster: DevCluster) -> Iterator[Callable[..., int]]:
    """Starts one process of the extender, and returns its port. It has further flags, and its own ServiceAccount."""
    started: list[Process] = []

    def spawn(*flags: str) -> int:
        port = cluster.free_port()
        account = cluster.service_account_kubeconfig(NAMESPACE, NAME)
        command = [EXTENDER, "serve", "--port", str(port), "--kubeconfig", str(account), "--advertise", "192.0.2.1"]
        process = cluster.spawn(
            f"extender-{port}",
            [*command, "--placement-guard-port", "0", *FAST, *flags],
            ready=log_has("Serving a cluster"),
        )
        started.append(process)
        return port

    yield spawn
    for process in started:
        # It would try to hand over to a successor, and what it needs for that may be gone.
        process.kill()


@pytest.fixture
def start_extender(spawn_extender: Callable[..., int]) -> Callable[[], str]:
    """Starts one process of the extender; returns its address once it answers."""

    def start() -> str:
        address = f"http://127.0.0.1:{spawn_extender()}"
        wait_until("the extender to answer", lambda: state(address)["answering"])
        return address

    return start


def nodes_with_disks(cluster: DevCluster) -> list[str]:
    """The Longhorn nodes whose disk is in their status. There are none before Longhorn's kinds exist."""
    text = cluster.kubectl("-n", NAMESPACE, "get", resources.LONGHORN_NODES.label, "-o", "json", check=False)
    nodes = json.loads(text)["items"] if text.startswith("{") else []
    return [node["metadata"]["name"] for node in nodes if (node.get("status") or {}).get("diskStatus")]


def state(address: str) -> dict[str, Any]:
    code, answer = http_request(f"{address}/state")
    return dict(answer["service"]) if code == 200 else {"answering": False}


def nodes_that_fit(address: str, pod: dict[str, Any]) -> list[str]:
    code, answer = http_request(f"{address}/filter", {"Pod": pod, "NodeNames": NODES})
    assert (code, answer.get("Error", "")) == (200, "")
    return list(answer["NodeNames"])


def would_refuse(address: str) -> str:
    text = http_request(f"{address}/metrics")[1]
    (line,) = (line for line in text.splitlines() if line.startswith("longhorn_scheduler_extender_would_refuse_total "))
    return str(line).split()[1]


def remains(cluster: DevCluster) -> list[str]:
    """Every object that is named after the extender or second kube-scheduler. Events of the past do not count."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    kinds = [kind for kind in kinds if not kind.startswith("events") and kind != "componentstatuses"]
    return [
        line for line in cluster.kubectl("get", ",".join(kinds), "-A", "-o", "name").split() if SECOND_SCHEDULER in line
    ]


def names_of_owners(cluster: DevCluster, resource: resources.Resource, name: str = NAME) -> list[tuple[str, str]]:
    metadata = cluster.api.get(resource.path(NAMESPACE, name))["metadata"]
    return [(owner["kind"], owner["name"]) for owner in metadata.get("ownerReferences", [])]


def test_a_release_begins_to_enforce_without_a_restart(
    cluster: DevCluster, helm: Helm, start_extender: Callable[[], str]
) -> None:
    helm.run("install", RELEASE, str(CHART), "--set", "settings.enforcement=observe")
    address = start_extender()
    pod = create_large_pod(cluster)
    assert (nodes_that_fit(address, pod), would_refuse(address)) == (NODES, "1.0")
    cluster.api.patch(resources.CONFIG_MAPS.path(NAMESPACE, OFFERS), {"binaryData": {"kept": "AAAA"}})
    helm.run("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values", "--set", "settings.enforcement=enforce")
    wait_until("enforcement", lambda: state(address)["enforcement"] == "enforce")
    assert nodes_that_fit(address, pod) == []
    helm.run("rollback", RELEASE, "1")
    wait_until("observation", lambda: state(address)["enforcement"] == "observe")
    assert nodes_that_fit(address, pod) == NODES
    assert cluster.api.get(DEPLOYMENTS.path(NAMESPACE, NAME))["metadata"]["generation"] == 1
    assert cluster.api.get(resources.CONFIG_MAPS.path(NAMESPACE, OFFERS))["binaryData"].keys() == {KEY, "kept"}


def create_large_pod(cluster: DevCluster) -> dict[str, Any]:
    """A pod with a claim that is larger than every disk. It is as kube-scheduler would send it."""
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "longhorn-local"}
    spec = {**claim, "resources": {"requests": {"storage": "200Gi"}}}
    cluster.api.create(resources.CLAIMS.path("default"), {"metadata": {"name": "large"}, "spec": spec})
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "large"}}]
    containers = [{"name": "main", "image": "none"}]
    body = {"metadata": {"name": "large"}, "spec": {"containers": containers, "volumes": volumes,
            "schedulerName": "none"}}  # fmt: skip
    created: dict[str, Any] = cluster.api.create(resources.PODS.path("default"), body)
    return created


def secret(cluster: DevCluster, suffix: str) -> dict[str, Any]:
    return dict(cluster.api.get(resources.SECRETS.path(NAMESPACE, f"{NAME}-{suffix}")))


def serial(entry: dict[str, Any]) -> int:
    return x509.load_pem_x509_certificate(b64decode(entry["data"]["tls.crt"])).serial_number


def test_the_chart_makes_certificates_with_which_the_extender_is_reached(
    cluster: DevCluster, helm: Helm, spawn_extender: Callable[..., int], tmp_path: Path
) -> None:
    helm.run("install", RELEASE, str(CHART), *TLS)
    server, caller = (write_secret(tmp_path, secret(cluster, suffix)) for suffix in ("tls", "client"))
    flags = {"tls-cert-file": "tls.crt", "tls-private-key-file": "tls.key", "client-ca-file": "ca.crt"}
    port = spawn_extender("--probe-port", "0", *(f"--{flag}={server / file}" for flag, file in flags.items()))
    context = client_context((caller / "ca.crt").read_bytes())
    assert answer_by_tls(port, context) == b""
    context.load_cert_chain(caller / "tls.crt", caller / "tls.key")
    assert answer_by_tls(port, context).startswith(b"HTTP/1.1 200")
    assert serial_shown(port, context, SERVER_NAME) == serial(secret(cluster, "tls"))


def answer_by_tls(port: int, context: ssl.SSLContext) -> bytes:
    """The beginning of the answer of /healthz, "" without one. There is none if the extender ends the connection."""
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        context.wrap_socket(connection, server_hostname=SERVER_NAME) as tls,
    ):
        tls.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return tls.recv(1024)
    return b""


def test_an_upgrade_makes_only_the_certificates_that_were_deleted(cluster: DevCluster, helm: Helm) -> None:
    """The others are kept, and the same authority signs. Without the authority's Secret all are new."""
    helm.run("install", RELEASE, str(CHART), *TLS)
    first = {suffix: secret(cluster, suffix)["data"] for suffix in CERTIFICATES}
    upgrade = ("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values")
    helm.run(*upgrade)
    assert {suffix: secret(cluster, suffix)["data"] for suffix in CERTIFICATES} == first
    cluster.api.delete(resources.SECRETS.path(NAMESPACE, f"{NAME}-tls"))
    helm.run(*upgrade)
    second = {suffix: secret(cluster, suffix)["data"] for suffix in CERTIFICATES}
    assert {suffix for suffix in CERTIFICATES if second[suffix] != first[suffix]} == {"tls"}
    assert second["tls"]["ca.crt"] == first["tls"]["ca.crt"] == second["ca"]["tls.crt"]
    cluster.api.delete(resources.SECRETS.path(NAMESPACE, f"{NAME}-ca"))
    helm.run(*upgrade)
    third = {suffix: secret(cluster, suffix)["data"] for suffix in CERTIFICATES}
    assert {suffix for suffix in CERTIFICATES if third[suffix] != second[suffix]} == set(CERTIFICATES)
    assert third["client"]["ca.crt"] == third["tls"]["ca.crt"] == third["ca"]["tls.crt"]


@pytest.mark.smoke
def test_an_uninstallation_leaves_nothing(cluster: DevCluster, helm: Helm, start_extender: Callable[[], str]) -> None:
    """What the extender has created goes with its ServiceAccount. That is so even while a process still runs."""
    helm.run("install", RELEASE, str(CHART), *EVERYTHING)
    start_extender()
    wait_until("both Services to lead to it", lambda: slices(cluster) >= {NAME, GUARD})
    for resource, name in (
        (resources.LEASES, NAME),
        (resources.ENDPOINT_SLICES, NAME),
        (resources.ENDPOINT_SLICES, GUARD),
    ):
        assert names_of_owners(cluster, resource, name) == [("ServiceAccount", NAME)]
    # As the second kube-scheduler does; an upgrade leaves it alone.
    cluster.api.patch(resources.LEASES.path(NAMESPACE, SECOND_SCHEDULER), {"spec": {"holderIdentity": "a"}})
    helm.run("upgrade", RELEASE, str(CHART), *EVERYTHING)
    assert cluster.api.get(resources.LEASES.path(NAMESPACE, SECOND_SCHEDULER))["spec"] == {"holderIdentity": "a"}
    helm.run("uninstall", RELEASE)
    wait_until("everything to be gone", lambda: remains(cluster) == [])


def slices(cluster: DevCluster) -> set[str]:
    return {entry["metadata"]["name"] for entry in cluster.api.get(resources.ENDPOINT_SLICES.path(NAMESPACE))["items"]}


DOCTOR = f"{NAME}-doctor"


def run_helm_test(cluster: DevCluster, helm: Helm, run_pod: Callable[[list[str], Path], int]) -> tuple[int, str]:
    """Runs `helm test`. `run_pod` plays the kubelet: it runs the pod's command as its ServiceAccount, and returns the
    exit code. Returns helm's exit code and output.
    """
    command = helm.command("test", RELEASE, "--timeout", "60s")
    with subprocess.Popen(
        command, env=helm.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as test:
        try:
            wait_until("the doctor's pod", lambda: phase(cluster, DOCTOR) == "Running")
            (container,) = cluster.api.get(resources.PODS.path(NAMESPACE, DOCTOR))["spec"]["containers"]
            account = cluster.service_account_kubeconfig(NAMESPACE, DOCTOR)
            code = run_pod([*container["command"], *container["args"]], account)
            status = {"status": {"phase": "Failed" if code else "Succeeded"}}
            cluster.api.patch(resources.PODS.path(NAMESPACE, DOCTOR, "status"), status)
            output, _ = test.communicate(timeout=60)
        finally:
            test.kill()
    return test.returncode, output


def phase(cluster: DevCluster, name: str) -> str:
    text = cluster.kubectl("-n", NAMESPACE, "get", "pod", name, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
    return text.strip()


def doctor(command: list[str], account: Path) -> dict[str, Any]:
    program = [EXTENDER, *command[1:], "--kubeconfig", str(account), "-o", "json"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("enforcement", "registration"),
    [pytest.param("observe", "skipped", id="without a probe"), pytest.param("enforce", "error", id="with a probe")],
)
def test_the_doctor_may_read_everything_that_it_needs(
    cluster: DevCluster, helm: Helm, enforcement: str, registration: str
) -> None:
    if subprocess.run([EXTENDER, "doctor", "--help"], capture_output=True, check=False).returncode:
        pytest.skip("this version has no doctor")
    helm.run("install", RELEASE, str(CHART), "--set", f"settings.enforcement={enforcement}")
    findings: list[dict[str, Any]] = []

    def run_pod(command: list[str], account: Path) -> int:
        findings.extend(doctor(command, account)["findings"])
        return 1

    code, output = run_helm_test(cluster, helm, run_pod)
    assert code != 0, output
    severities = {entry["check"]: entry["severity"] for entry in findings}
    assert [entry for entry in findings if "forbidden" in entry["what"]] == []
    assert (severities["facts"], severities["permissions"], severities["registration"]) == ("ok", "ok", registration)
    wait_until("the doctor to be gone", lambda: [line for line in remains(cluster) if DOCTOR in line] == [])


def test_a_doctor_that_finds_nothing_passes_the_test(cluster: DevCluster, helm: Helm) -> None:
    helm.run("install", RELEASE, str(CHART))
    code, output = run_helm_test(cluster, helm, lambda *_: 0)
    assert (code, "Succeeded" in output) == (0, True), output
    assert [line for line in remains(cluster) if DOCTOR in line] == []
