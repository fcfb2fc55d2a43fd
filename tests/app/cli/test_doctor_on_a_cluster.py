"""`longhorn-extender doctor` on a real control plane.

All is well at first. Then mistakes are made one after the other.
"""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    CSI_DRIVERS,
    EVENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    SERVICES,
    STORAGE_CLASSES,
    Resource,
)
from devcluster.build import SCHEDULER
from devcluster.polling import wait_until
from devcluster.programs import NAMESPACE, SERVICE
from devcluster.scheduler_config import DEFAULT
from devcluster.stack import ROOT, Stack, StackOptions
from scheduler_core.convert.installed_objects import TAG
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD
from tests.control_plane import ControlPlane
from tests.worlds.installed_extender import (
    DRIVER,
    mend_longhorn,
    print_scheduler_config,
    put_setting,
    run_doctor,
    show_as_pod,
)
from tests.worlds.service import EXTENDER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
RECOMMENDED = ROOT / "kube-scheduler-config/recommended.yaml"
PROBE_RESOURCES = (PODS, CLAIMS, STORAGE_CLASSES, NAMESPACES)


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A cluster with Longhorn and two candidates, and nothing to mend. The candidates' processes are shown as pods."""
    nodes = {name: ["100Gi"] for name in ("node-1", "node-2")}
    options = StackOptions(
        nodes=nodes,
        candidates=2,
        create_free_lease=True,
        scheduler_config=RECOMMENDED,
        simulator={"storage_capacity": False},
    )
    with (
        control_plane.borrow() as cluster,
        Stack(tmp_path_factory.mktemp("doctor"), options, running=cluster) as running,
    ):
        for name in running.candidates:
            show_as_pod(running.cluster, name, running.url(name), running.guard_port(name), "node-1")
        mend_longhorn(running.cluster)
        yield running


def doctor(stack: Stack, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code, findings = run_doctor(stack.cluster, *arguments)
    return code, {entry["check"]: entry for entry in findings if entry["severity"] in ("warning", "error")}


def leftovers(stack: Stack, *resources: Resource) -> list[str]:
    """What probes have left in the cluster. What is being deleted does not count."""
    selector = f"?labelSelector=app.kubernetes.io/managed-by%3D{TAG}"
    return [
        entry["metadata"]["name"]
        for resource in resources or PROBE_RESOURCES
        for entry in stack.cluster.api.get(f"{resource.path()}{selector}")["items"]
        if "deletionTimestamp" not in entry["metadata"]
    ]


def test_all_is_well(stack: Stack) -> None:
    assert doctor(stack) == (0, {})
    assert leftovers(stack) == []


def test_every_check_has_been_made(stack: Stack) -> None:
    _, findings = run_doctor(stack.cluster)
    assert {entry["severity"] for entry in findings} == {"ok"}
    (requests,) = [entry["what"] for entry in findings if entry["check"] == "requests"]
    assert requests.startswith("with names of nodes come from ")


def test_the_probe_works_in_a_given_namespace(stack: Stack) -> None:
    assert doctor(stack, "--probe-namespace", "default") == (0, {})
    assert leftovers(stack) == []


def test_the_leaders_decisions_are_read_through_the_api_server(stack: Stack) -> None:
    assert doctor(stack) == (0, {})
    kubeconfig = ("--kubeconfig", str(stack.cluster.kubeconfig), "-o", "json")
    answers = {}
    for command in ("decisions", "top", "waiting"):
        done = subprocess.run([EXTENDER, command, *kubeconfig], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        answers[command] = json.loads(done.stdout)
    probes = [each for each in answers["decisions"]["items"] if TAG in each["pod"]]
    # The latest are first. What doctor has read is its probe's first decision; later ones see objects that are being removed.
    entry = [each for each in probes if each["pod"] == probes[0]["pod"]][-1]
    assert (entry["verb"], entry["outcome"], entry["observed"]) == ("filter", "refused", False)
    assert (entry["nodes"], entry["fits"], list(entry["refused"].values())) == (2, 0, [2])
    assert {node["node"]: node["condition"] for node in answers["top"]["items"]} == {"node-1": "open", "node-2": "open"}
    name = entry["pod"].partition("/")[2]
    by_name = [EXTENDER, "decisions", name, *kubeconfig[:2], "-o", "name"]
    assert subprocess.run(by_name, capture_output=True, text=True, timeout=60, check=True).stdout == f"pod/{name}\n"


def test_it_must_not_be_uninstalled_while_it_is_registered(stack: Stack) -> None:
    code, problems = doctor(stack, "--uninstall")
    assert (code, list(problems)) == (1, ["uninstall"])


def test_a_scheduler_that_does_not_exist_says_nothing(stack: Stack) -> None:
    code, problems = doctor(stack, "--scheduler-name", "other", "--probe-timeout", "2")
    assert (code, list(problems)) == (0, ["registration"])
    assert "other has said nothing" in problems["registration"]["what"]
    assert doctor(stack, "--scheduler-name", "other", "--probe-timeout", "2", "--strict")[0] == 1
    assert leftovers(stack) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_probe_is_removed(stack: Stack, number: signal.Signals) -> None:
    command = [EXTENDER, "doctor", "--kubeconfig", str(stack.cluster.kubeconfig), "--scheduler-name", "other"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until("the probe", lambda: any(name.startswith(TAG) for name in leftovers(stack, PODS)))
        process.send_signal(number)
        _, problem = process.communicate(timeout=60)
    assert (process.returncode, problem) == (130, "longhorn-extender: interrupted; the probe pod is removed\n")
    assert leftovers(stack) == []


def test_mistakes_in_the_cluster_are_found(stack: Stack) -> None:
    api = stack.cluster.api
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/{SERVICE}"
    rules = api.get(role)["rules"]
    late: dict[str, Any] = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": DRIVER}
    late |= {"metadata": {"name": "late"}, "volumeBindingMode": "Immediate", "parameters": {"diskSelector": "tape"}}
    api.create(STORAGE_CLASSES.path(), late)
    put_setting(stack.cluster, "storage-over-provisioning-percentage", "300")
    api.patch(CSI_DRIVERS.path(name=DRIVER), {"spec": {"storageCapacity": True}})
    api.patch(role, {"rules": [rule for rule in rules if "volumes" not in rule["resources"]]})
    try:
        code, problems = doctor(stack, "--no-probe")
    finally:
        api.patch(role, {"rules": rules})
        api.delete(STORAGE_CLASSES.path(name="late"))
        put_setting(stack.cluster, "storage-over-provisioning-percentage", "100")
        api.patch(CSI_DRIVERS.path(name=DRIVER), {"spec": {"storageCapacity": False}})
    assert code == 1
    assert set(problems) == {"storage-classes", "tags", "longhorn-settings", "capacity-tracking", "permissions"}
    assert doctor(stack, "--no-probe") == (0, {})


def asking_pod(namespace: str) -> dict[str, Any]:
    """A pod that requests the extender's resource, and runs without kube-scheduler."""
    resources = {"longhorn.io/scheduler-extender": "1"}
    container = {"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}}
    metadata = {"name": "asking", "namespace": namespace}
    spec = {"schedulerName": "none", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def failed_call() -> dict[str, Any]:
    """An event of a pod for which kube-scheduler's call failed now."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    call = 'Post "http://10.0.0.1:9504/filter": dial tcp 10.0.0.1:9504: connect: connection refused'
    pod = {"kind": "Pod", "namespace": "default", "name": "db-0"}
    times = {"firstTimestamp": now, "lastTimestamp": now}
    event = {"metadata": {"name": "db-0.1"}, "involvedObject": pod, "reason": "FailedScheduling", "message": call}
    return {"apiVersion": "v1", "kind": "Event", "type": "Warning", **event, **times}


@contextmanager
def created(stack: Stack, resource: Resource, body: dict[str, Any], namespace: str) -> Iterator[None]:
    """An object that exists meanwhile."""
    stack.cluster.api.create(resource.path(namespace), body)
    try:
        yield
    finally:
        stack.cluster.api.delete(resource.path(namespace, body["metadata"]["name"]), {"gracePeriodSeconds": 0})


@contextmanager
def old_longhorn(stack: Stack) -> Iterator[None]:
    """Another version of Longhorn."""
    put_setting(stack.cluster, "current-longhorn-version", "v1.9.2")
    try:
        yield
    finally:
        put_setting(stack.cluster, "current-longhorn-version", "v1.12.0")


@contextmanager
def one_pod(stack: Stack) -> Iterator[None]:
    """Only the leader's pod."""
    (follower,) = set(stack.candidates) - set(stack.answering())
    stack.cluster.kubectl("-n", NAMESPACE, "delete", "pod", follower, "--force", "--grace-period=0")
    try:
        yield
    finally:
        show_as_pod(stack.cluster, follower, stack.url(follower), stack.guard_port(follower), "node-1")


@contextmanager
def no_service(stack: Stack) -> Iterator[None]:
    """The Service does not exist."""
    raw = stack.cluster.api.get(SERVICES.path(NAMESPACE, SERVICE))
    stack.cluster.api.delete(SERVICES.path(NAMESPACE, SERVICE))
    try:
        yield
    finally:
        stack.cluster.api.create(SERVICES.path(NAMESPACE), {**raw, "metadata": {"name": SERVICE}})


@contextmanager
def leader_at(stack: Stack, address: str) -> Iterator[None]:
    """The leader's pod has another address than its process."""
    (leader,) = stack.answering()
    path = PODS.path(NAMESPACE, leader)
    before = stack.cluster.api.get(path)["status"]["podIP"]

    def show(value: str) -> None:
        stack.cluster.api.patch(f"{path}/status", {"status": {"podIP": value, "podIPs": [{"ip": value}]}})

    show(address)
    try:
        yield
    finally:
        show(before)


@contextmanager
def misspelt_setting(stack: Stack) -> Iterator[None]:
    """A key of the ConfigMap that is no setting."""
    path = CONFIG_MAPS.path(NAMESPACE, SERVICE)
    stack.cluster.api.patch(path, {"data": {"scheduler-extender-enforcment": "observe"}})
    try:
        yield
    finally:
        stack.cluster.api.patch(path, {"data": {"scheduler-extender-enforcment": None}})


MISTAKES: dict[str, Callable[[Stack], AbstractContextManager[None]]] = {
    "longhorn-version": old_longhorn,
    "pods": one_pod,
    "own-pods": lambda stack: created(stack, PODS, asking_pod("kube-system"), "kube-system"),
    "service": no_service,
    "leader": lambda stack: leader_at(stack, "127.0.0.2"),
    "caches": lambda stack: leader_at(stack, "127.0.0.2"),
    "answers": misspelt_setting,
    "events": lambda stack: created(stack, EVENTS, failed_call(), "default"),
    "requesting-pods": lambda stack: created(stack, PODS, asking_pod("default"), "default"),
}


@pytest.mark.parametrize("check", MISTAKES)
def test_a_finding_goes_with_its_fact(stack: Stack, check: str) -> None:
    arguments = ["--no-probe", *(["--uninstall"] if check == "requesting-pods" else [])]
    with MISTAKES[check](stack):
        assert check in doctor(stack, *arguments)[1]
    assert check not in doctor(stack, *arguments)[1]


def test_what_the_credentials_may_not_read_is_a_finding(stack: Stack) -> None:
    command = [EXTENDER, "doctor", "--no-probe", "--kubeconfig", str(stack.account), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    findings = [entry for entry in json.loads(done.stdout)["findings"] if entry["check"] == "facts"]
    assert {entry["command"] for entry in findings} == {"ask with more rights"}
    for entry in findings:
        path = entry["what"].partition(": ")[2].partition(" ")[2].partition(":")[0].partition("?")[0]
        assert path.startswith("/"), entry


def test_a_placement_guard_that_the_api_server_does_not_reach_is_found(stack: Stack) -> None:
    api = stack.cluster.api
    path = MUTATING_WEBHOOKS.path(name=PLACEMENT_GUARD.name)
    webhook, standby = api.get(path)["webhooks"]
    called = webhook["clientConfig"]
    (leader,) = stack.answering()

    def call(port: int) -> None:
        changed = {**called, "service": {**called["service"], "port": port}}
        api.patch(path, {"webhooks": [{**webhook, "clientConfig": changed}, standby]})

    def show(guard_port: int) -> None:
        stack.cluster.kubectl("-n", NAMESPACE, "delete", "pod", leader, "--force", "--grace-period=0")
        show_as_pod(stack.cluster, leader, stack.url(leader), guard_port, "node-1")

    def finding() -> str:
        findings = doctor(stack, "--no-probe")[1]
        return str(findings["placement-guard"]["what"]) if list(findings) == ["placement-guard"] else ""

    call(445)
    try:
        wait_until("the Service to be named", lambda: "not by its Service" in finding())
        show(stack.cluster.free_port())
        assert "connection refused" in finding()
    finally:
        call(called["service"]["port"])
        show(stack.guard_port(leader))
    wait_until("the guard to answer again", lambda: doctor(stack, "--no-probe") == (0, {}))


@pytest.mark.parametrize("pods", ["requesting", "all"])
def test_the_printed_configuration_registers_the_extender(stack: Stack, tmp_path: Path, pods: str) -> None:
    """It has the Service's address, and the real kube-scheduler reads it. Only the policy may be missing."""
    text = print_scheduler_config(stack.cluster, "kubeadm", "--pods", pods)
    address = stack.cluster.api.get(SERVICES.path(NAMESPACE, SERVICE))["spec"]["clusterIP"]
    assert f"urlPrefix: http://{address}:9504\n" in text
    file = tmp_path / "kube-scheduler-config.yaml"
    file.write_text(text)
    stack.use_scheduler_config(file)
    try:
        code, problems = doctor(stack)
    finally:
        stack.use_scheduler_config(RECOMMENDED)
    assert (code, set(problems)) == (0, {"ask-policy"} if pods == "requesting" else set())


def test_an_extender_that_is_not_registered_is_found(stack: Stack, tmp_path: Path) -> None:
    plain = tmp_path / "plain.yaml"
    plain.write_text(DEFAULT)
    stack.use_scheduler_config(plain)
    try:
        code, problems = doctor(stack)
        uninstall, left = doctor(stack, "--uninstall")
    finally:
        stack.use_scheduler_config(RECOMMENDED)
    assert left == {}
    assert (code, uninstall) == (1, 0)
    assert set(problems) == {"resource", "registration"}
    assert leftovers(stack) == []


def test_a_cluster_without_kube_scheduler_is_found(stack: Stack) -> None:
    process = stack.cluster.processes[SCHEDULER]
    process.stop()
    try:
        code, problems = doctor(stack, "--probe-timeout", "2")
    finally:
        process.start()
    assert (code, set(problems)) == (0, {"registration"})
    assert leftovers(stack) == []
