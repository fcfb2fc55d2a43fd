"""`longhorn-extender serve` in a live cluster: which process answers, and when. Whole processes are run."""

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.extender.offers import SETTLE_TIMEOUT
from app.kube.client import ApiError
from app.kube.resources import CLAIMS, CONFIG_MAPS, ENDPOINT_SLICES, LEASES, LONGHORN_NODES, LONGHORN_SETTINGS, PODS
from devcluster.dev_cluster import DevCluster
from devcluster.http_check import is_filtered
from devcluster.process import Process, log_has
from tests.builders import Object
from tests.control_plane import ControlPlane
from tests.manifests.load import MANIFESTS, NAME, NAMESPACE
from tests.worlds.elector_process import ON_A_CLUSTER, election_flags
from tests.worlds.service import EXTENDER
from tests.worlds.stopwatch import Stopwatch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
FAST = election_flags(ON_A_CLUSTER)
ENABLED = "scheduler-extender-enabled"
POD_SCHEDULING_TIMEOUT = "scheduler-extender-pod-scheduling-timeout"
PREFIX = "longhorn_scheduler_extender"
NODES = ("node-1", "node-2")
# What a candidate may need beyond the Lease on two busy cores: a read of it, and catching up.
SLACK = 4.0


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Two nodes with a Longhorn disk of 100Gi each, without a scheduler."""
    folder = tmp_path_factory.mktemp("live")
    with control_plane.borrow() as running:
        running.apply(MANIFESTS / "test-cluster")
        disks = json.dumps([{"name": "disk-1", "size": "100Gi"}])
        for name in NODES:
            running.create_node(name, annotations={"simulator/disks": disks})
        config = folder / "simulator.yaml"
        config.write_text(f"known_settings_extra: [{ENABLED}]\n")
        simulator = [
            sys.executable,
            "-m",
            "simulator",
            "--kubeconfig",
            str(running.kubeconfig),
            "--config",
            str(config),
        ]
        running.spawn("simulator", simulator, ready=log_has('"ready"'))
        until("the Longhorn nodes", lambda: len(reported_nodes(running)) == len(NODES), 30)
        running.processes["kube-scheduler"].stop()
        yield running


def reported_nodes(cluster: DevCluster) -> list[str]:
    nodes = cluster.api.get(LONGHORN_NODES.path(NAMESPACE))["items"]
    return [node["metadata"]["name"] for node in nodes if (node.get("status") or {}).get("diskStatus")]


def until(what: str, true: Callable[[], Any], seconds: float = 20) -> float:
    """Returns once a condition is true; returns the seconds that took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.02)
    return time.monotonic() - began


@dataclass(frozen=True)
class Candidate:
    """One process of the extender."""

    process: Process
    port: int

    def request(
        self, path: str, body: Object | None = None, seconds: float = 15
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """Sends a request; returns status, decoded answer and headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(
                "POST" if body is not None else "GET", path, json.dumps(body) if body is not None else None
            )
            answer = connection.getresponse()
            data = answer.read()
            is_json = "json" in answer.headers.get("content-type", "")
            return answer.status, json.loads(data) if is_json else data.decode(), answer.headers
        finally:
            connection.close()

    def filter(self, pod: Object, seconds: float = 15) -> tuple[int, Any, http.client.HTTPMessage]:
        return self.request("/filter", {"Pod": pod, "Nodes": None, "NodeNames": list(NODES)}, seconds)

    def answers(self) -> bool:
        try:
            return is_filtered(*self.filter({"metadata": {"name": "probe"}}, 1)[:2])
        except OSError:
            return False

    def refusal(self) -> str:
        """Why it does not answer, "" if it does."""
        status, answer, headers = self.filter({"metadata": {"name": "probe"}})
        if is_filtered(status, answer):
            return ""
        assert headers["connection"] == "close"
        if status == 200:
            return str(answer["Error"])
        assert status == 503
        return str(answer["error"])

    def state(self) -> Any:
        return self.request("/state")[1]["service"]

    def metric(self, name: str) -> list[str]:
        return re.findall(rf"^{PREFIX}_{name}\S* \S+$", self.request("/metrics")[1], re.M)


@pytest.fixture
def start(cluster: DevCluster) -> Iterator[Callable[..., Candidate]]:
    """Starts candidates, and stops them after the test. It frees the Lease before the test."""
    account = cluster.service_account_kubeconfig(NAMESPACE, NAME)
    started: list[Process] = []
    put(cluster, LEASES, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})
    set_config(cluster, **{ENABLED: "true", POD_SCHEDULING_TIMEOUT: "1"})

    def start_candidate(number: int, *arguments: str) -> Candidate:
        port = cluster.free_port()
        command = [
            EXTENDER,
            "serve",
            "--port",
            str(port),
            "--kubeconfig",
            str(account),
            "--identity",
            f"candidate-{number}",
        ]
        command += ["--node-name", f"host-{number}", "--advertise", f"192.0.2.{number}", "--log-format", "json", *FAST]
        process = cluster.spawn(f"candidate-{number}", [*command, *arguments], ready=log_has("Serving a cluster"))
        started.append(process)
        return Candidate(process, port)

    yield start_candidate
    logs = {process.name: process.log_text() for process in started}
    for process in started:
        process.stop()
    # The next leader takes over the offers of pods that still exist, and no snapshot has these.
    # Those that are being deleted may end at any time, so they are not deleted by name.
    for resource in (PODS, CLAIMS):
        cluster.api.delete(resource.path("default"))
    assert {name: text for name, text in logs.items() if "Traceback" in text or "nclosed" in text} == {}


def put(cluster: DevCluster, resource: Any, body: Object, name: str = NAME) -> None:
    """Merges fields into an object of Longhorn's namespace, or creates it."""
    try:
        cluster.api.patch(resource.path(NAMESPACE, name), body)
    except ApiError as error:
        if not error.not_found:
            raise
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, **body}
        cluster.api.create(resource.path(NAMESPACE), whole)


def set_config(cluster: DevCluster, **data: str) -> None:
    current = cluster.api.get(CONFIG_MAPS.path(NAMESPACE, NAME)).get("data") or {}
    put(cluster, CONFIG_MAPS, {"data": {**dict.fromkeys(current), **data}})


def holder(cluster: DevCluster) -> str:
    return str(cluster.api.get(LEASES.path(NAMESPACE, NAME))["spec"].get("holderIdentity") or "")


def endpoints(cluster: DevCluster) -> list[str]:
    """The addresses that the Service leads to."""
    try:
        entries = cluster.api.get(ENDPOINT_SLICES.path(NAMESPACE, NAME))["endpoints"] or []
    except ApiError as error:
        if not error.not_found:
            raise
        return []
    return [address for entry in entries for address in entry["addresses"]]


def create_pod_with_claim(cluster: DevCluster, name: str) -> Object:
    """Creates a pod with an unbound claim of 10Gi. Returns the pod as kube-scheduler would send it."""
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "longhorn-local"}
    claim["resources"] = {"requests": {"storage": "10Gi"}}  # type: ignore[assignment]
    cluster.api.create(CLAIMS.path("default"), {"metadata": {"name": name}, "spec": claim})
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    spec = {"containers": [{"name": "main", "image": "none"}], "volumes": volumes}
    created: Object = cluster.api.create(PODS.path("default"), {"metadata": {"name": name}, "spec": spec})
    return created


def test_the_extender_is_enabled_and_disabled_while_it_runs(
    cluster: DevCluster, start: Callable[..., Candidate]
) -> None:
    set_config(cluster)
    candidate = start(1)
    refusal = "scheduler-extender-enabled is false (the default; see docs/configuration.md)"
    until("readiness", lambda: candidate.request("/readyz")[0] == 200)
    assert candidate.refusal() == refusal
    assert (holder(cluster), candidate.request("/healthz")[0]) == ("", 200)
    put(cluster, LONGHORN_SETTINGS, {"value": "true"}, ENABLED)
    until("the Setting", candidate.answers)
    assert candidate.state()["origins"][ENABLED] == "Setting"
    assert holder(cluster).startswith("candidate-1_")
    until("the Service to lead here", lambda: endpoints(cluster) == ["192.0.2.1"])
    assert candidate.metric("heartbeat") == [f'{PREFIX}_heartbeat{{node="host-1"}} 1.0']
    set_config(cluster, **{ENABLED: "false"})
    took = until("the ConfigMap", lambda: candidate.refusal() == f"{ENABLED} is false (says ConfigMap {NAME})")
    assert took < 1
    until("the Lease to be free", lambda: holder(cluster) == "")
    assert endpoints(cluster) == []
    until("the heartbeat", lambda: candidate.metric("heartbeat") == [f'{PREFIX}_heartbeat{{node="host-1"}} 0.0'])
    set_config(cluster, **{ENABLED: "perhaps"})
    until("the refused value", lambda: candidate.state()["refusedSettings"])
    assert candidate.refusal() == f"{ENABLED} is false (says ConfigMap {NAME})"  # its last good value stays
    set_config(cluster)
    until("the Setting again", candidate.answers)
    cluster.api.delete(LONGHORN_SETTINGS.path(NAMESPACE, ENABLED))
    until("the default again", lambda: candidate.refusal() == refusal)
    candidate.process.stop()
    candidate = start(1, "--enabled", "true")
    until("the environment", candidate.answers)
    assert candidate.state()["origins"][ENABLED] == "environment"
    set_config(cluster, **{ENABLED: "false"})
    until("the ConfigMap", lambda: candidate.refusal() == f"{ENABLED} is false (says ConfigMap {NAME})")


def test_a_leader_that_hands_over_answers_accepted_requests(
    cluster: DevCluster, start: Callable[..., Candidate]
) -> None:
    set_config(cluster, **{ENABLED: "true", POD_SCHEDULING_TIMEOUT: "2"})
    leader = start(1, "--reservation", "node")
    until("a leader", leader.answers)
    follower = start(2, "--reservation", "node")
    until("its readiness", lambda: follower.request("/readyz")[0] == 200)
    until("its knowledge of the leader", lambda: follower.refusal().startswith("not the leader, candidate-1_"))
    for verb in ("/filter", "/preempt", "/explain"):
        status, answer, headers = follower.request(verb, {"Pod": {"metadata": {"name": "x"}}, "NodeNames": []})
        assert (status, headers["connection"]) == (200 if verb == "/filter" else 503, "close")
        assert answer["Error" if verb == "/filter" else "error"].startswith("not the leader, candidate-1_")
    assert follower.request("/healthz")[0] == 200
    first = create_pod_with_claim(cluster, "first")
    second = create_pod_with_claim(cluster, "second")
    until("the first answer", lambda: leader.filter(first)[1].get("NodeNames") == list(NODES))
    with ThreadPoolExecutor() as pool:
        accepted: Future[Any] = pool.submit(leader.filter, second)
        time.sleep(1)  # it waits for its turn, two seconds after the first answer
        stopped_at = time.monotonic()
        stopping = pool.submit(leader.process.stop)
        until("the refusal of new requests", lambda: leader.refusal() == "shutting down")
        assert is_filtered(*accepted.result()[:2])
        answered_at = time.monotonic()
        until("the follower's answer", follower.answers)
        succeeded_at = time.monotonic()
        stopping.result()
    assert leader.process.returncode == 0
    until("the Service to lead there", lambda: endpoints(cluster) == ["192.0.2.2"])
    # The last pod is waited for as long as the setting says.
    print(
        f"accepted request answered after {answered_at - stopped_at:.1f} s, handed over {succeeded_at - answered_at - 2:.1f} s after its wait"
    )
    assert succeeded_at - answered_at - 2 < 2


def test_the_space_of_disks_is_current_without_any_request(
    cluster: DevCluster, start: Callable[..., Candidate]
) -> None:
    set_config(cluster, **{ENABLED: "true"})
    leader = start(1, "--reservation", "node")
    until("a leader", leader.answers)
    path = LONGHORN_NODES.path(NAMESPACE, NODES[0])
    [(disk, spec)] = cluster.api.get(path)["spec"]["disks"].items()

    def reserve(size: int) -> None:
        cluster.api.patch(path, {"spec": {"disks": {disk: {"storageReserved": size}}}})

    def has_reserved(size: int) -> bool:
        samples = [line for line in leader.metric("disk_reserved_bytes") if f'node="{NODES[0]}"' in line]
        return [float(line.split()[-1]) for line in samples] == [size]

    before = int(spec.get("storageReserved", 0))
    until("the disk", lambda: has_reserved(before))
    reserve(before + 2**30)
    until("the change", lambda: has_reserved(before + 2**30))
    reserve(before)
    leader.process.stop()
    leader = start(1, "--no-disk-metrics")
    until("a leader again", leader.answers)
    until("the nodes", lambda: leader.metric("node_demand_bytes"))
    assert leader.metric("disk_open") == []


@pytest.mark.smoke
def test_an_idle_leader_hands_over_at_once(cluster: DevCluster, start: Callable[..., Candidate]) -> None:
    leader = start(1)
    until("a leader", leader.answers)
    follower = start(2)
    until("its readiness", lambda: follower.request("/readyz")[0] == 200)
    time.sleep(1)
    stopwatch = Stopwatch(*(process.pid for process in (leader.process, follower.process)))
    threading.Thread(target=leader.process.stop).start()
    until("the follower's answer", follower.answers)
    took = stopwatch.seconds
    print(f"an idle leader handed over in {took:.2f} s")
    assert took < 2.5
    until("the end of the leader", lambda: leader.process.returncode == 0)


@pytest.mark.smoke
def test_a_killed_leader_is_succeeded_within_its_lease(cluster: DevCluster, start: Callable[..., Candidate]) -> None:
    leader = start(1)
    until("a leader", leader.answers)
    follower = start(2)
    until("its readiness", lambda: follower.request("/readyz")[0] == 200)
    leader.process.kill()
    took = until("the follower's answer", follower.answers)
    print(f"a killed leader was succeeded after {took:.1f} s")
    settling = SETTLE_TIMEOUT - (
        ON_A_CLUSTER.lease_duration - ON_A_CLUSTER.renew_deadline
    )  # pods of earlier tests wait for a scheduler that is not there
    assert ON_A_CLUSTER.lease_duration - 1 < took < ON_A_CLUSTER.lease_duration + settling + SLACK


def test_a_leader_whose_lease_was_stolen_stops_answering(cluster: DevCluster, start: Callable[..., Candidate]) -> None:
    leader = start(1)
    until("a leader", leader.answers)
    pod = create_pod_with_claim(cluster, "stolen")
    assert is_filtered(*leader.filter(pod)[:2])
    with ThreadPoolExecutor() as pool:
        queued = pool.submit(leader.filter, create_pod_with_claim(cluster, "queued"))
        put(cluster, LEASES, {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 4}})
        took = until("the refusal", lambda: leader.refusal().startswith("not the leader, thief is"))
        assert took < 1
        assert queued.result()[0] == 200
    until("its return", leader.answers)


def test_a_leader_without_an_api_server_stops_answering_until_it_is_back(
    cluster: DevCluster, start: Callable[..., Candidate]
) -> None:
    leader = start(1)
    until("a leader", leader.answers)
    server = cluster.processes["kube-apiserver"]
    server.pause()
    try:
        took = until("the refusal", lambda: not leader.answers())
        assert took < 3.5
        assert leader.request("/healthz")[0] == 200
        assert leader.refusal().startswith("not the leader, candidate-1_")
    finally:
        server.resume()
    back = until("its return", leader.answers, 20)
    print(f"without an API server: refused after {took:.1f} s, answers {back:.1f} s after it goes on")


def test_a_process_started_without_an_api_server_waits_for_it(
    cluster: DevCluster, start: Callable[..., Candidate]
) -> None:
    server = cluster.processes["kube-apiserver"]
    server.kill()
    try:
        candidate = start(1, "--enabled", "true")
        until("the reason", lambda: "cannot connect to" in str(candidate.request("/readyz")[1]))
        assert (candidate.request("/readyz")[0], candidate.request("/healthz")[0]) == (503, 200)
        assert candidate.refusal().startswith("not ready: ")
    finally:
        server.start()
    until("its answer", candidate.answers, 30)


def test_a_snapshot_gives_the_same_decisions_as_the_live_service(
    cluster: DevCluster, start: Callable[..., Candidate], tmp_path: Path
) -> None:
    leader = start(1)
    until("a leader", leader.answers)
    pod = create_pod_with_claim(cluster, "explained")
    create_pod_with_claim(cluster, "secretive")
    body = {"Pod": pod, "Nodes": None, "NodeNames": list(NODES)}
    answer = leader.request("/explain", body)[1]
    kubeconfig = str(cluster.service_account_kubeconfig(NAMESPACE, NAME))
    file = str(tmp_path / "snapshot.yaml")

    def run_extender(*arguments: str) -> str:
        done = subprocess.run([EXTENDER, *arguments], check=False, capture_output=True, text=True, timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        return done.stdout

    run_extender("snapshot", "--kubeconfig", kubeconfig, "-f", file)
    name = ["--pod", "default/explained", "-o", "json"]
    live = json.loads(run_extender("explain", "--kubeconfig", kubeconfig, *name))
    assert json.loads(run_extender("explain", "--snapshot", file, *name)) == live
    shared = {key: live[key] for key in answer}
    shared["nodes"] = {node: {key: live["nodes"][node][key] for key in answer["nodes"][node]} for node in NODES}
    assert shared == answer
    assert {node: entry["fits"] for node, entry in live["nodes"].items()} == dict.fromkeys(NODES, True)
    text = Path(file).read_text()
    assert "managedFields" not in text
    assert "kube-root-ca" not in text  # every pod mounts it, but only claims are written


def test_two_signals_end_the_process_at_once(cluster: DevCluster, start: Callable[..., Candidate]) -> None:
    set_config(cluster, **{ENABLED: "true", POD_SCHEDULING_TIMEOUT: "60"})
    leader = start(1)
    until("a leader", leader.answers)
    assert is_filtered(*leader.filter(create_pod_with_claim(cluster, "hurry"))[:2])
    api_server = cluster.processes["kube-apiserver"]
    # Without it the hand-over would take its whole time; with it, the process may end before it is asked.
    api_server.pause()
    try:
        threading.Thread(target=leader.process.stop).start()
        until("the hand-over", lambda: leader.refusal() == "shutting down")
        leader.process.stop(seconds=5)
    finally:
        api_server.resume()
    assert leader.process.returncode == 0


def test_a_missing_cluster_is_an_error_of_one_line(tmp_path: Path, cluster: DevCluster) -> None:
    process = Process(
        "none", [EXTENDER, "serve", "--port", "0", "--kubeconfig", str(tmp_path / "no")], tmp_path / "log"
    )
    process.start(wait=False)
    until("its end", lambda: process.returncode is not None)
    assert process.returncode == 2
    last = process.log_text().strip().splitlines()[-1]
    assert last == (
        f"longhorn-extender: no cluster to talk to: there is no file {tmp_path}/no; give --kubeconfig, or set KUBECONFIG"
    )
    assert "Traceback" not in process.log_text()
