"""`longhorn-extender schedule --watch` on a real API server, under its ServiceAccount. Spread and affinity, reasons, a replaced policy, and
fail-over.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pytest

from app.kube.resources import LEASES, NODES, PODS
from app.scheduler.lifecycle import LEASE
from devcluster.dev_cluster import DevCluster
from devcluster.http_check import http_request
from devcluster.polling import wait_until
from devcluster.process import Process, log_has
from devcluster.programs import NAMESPACE
from devcluster.stack import FAST_LEASE, LEASE_SECONDS, ROOT
from tests.control_plane import ControlPlane
from tests.e2e.objects import PAUSE, Object, condition_of, name_of, node_of, runs
from tests.worlds.service import EXTENDER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NAME = "classic"
POLICY = ROOT / "examples" / "policies" / "region-zone-rack.json"
RACKS = (
    ("r1", "z1", "s1"), ("r1", "z1", "s2"), ("r1", "z1", "s3"), ("r1", "z2", "s1"), ("r1", "z2", "s2"),
    ("r2", "z3", "s1"), ("r2", "z3", "s2"),
)  # fmt: skip
SERVICES = ("web", "db")
EACH = 30


@dataclass(frozen=True)
class Scheduler:
    """A scheduler's process and URL."""

    process: Process
    url: str


class Start(Protocol):
    """Starts a scheduler with a policy file."""

    def __call__(self, number: int, policy: Path = POLICY) -> Scheduler:
        """Starts the process with this number; the first is number 1."""


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[DevCluster]:
    """A cluster with one node per rack, and two services. Only the tests' schedulers schedule the pods."""
    with control_plane.borrow() as started:
        started.apply(ROOT / "manifests/test-cluster/namespace.yaml")
        started.apply(ROOT / "manifests/generic-scheduler/access")
        released = {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        started.api.create(LEASES.path(NAMESPACE), released)
        for region, zone, rack in RACKS:
            labels = {"region": region, "zone": zone, "rack": rack}
            started.create_node(f"{region}-{zone}-{rack}", labels=labels)
        started.wait_nodes_ready()
        for app in SERVICES:
            spec = {"selector": {"app": app}, "ports": [{"port": 80}]}
            started.api.create("/api/v1/namespaces/default/services", {"metadata": {"name": app}, "spec": spec})
        yield started


@pytest.fixture
def start(cluster: DevCluster) -> Iterator[Start]:
    """Starts schedulers, and stops them after the test. A traceback or a forbidden call in their logs fails the test."""
    account = cluster.service_account_kubeconfig(NAMESPACE, LEASE)
    started: list[Process] = []

    def start_scheduler(number: int, policy: Path = POLICY) -> Scheduler:
        port = cluster.free_port()
        command = [EXTENDER, "schedule", "--watch", "--scheduler-name", NAME, "--policy", str(policy)]
        command += ["--kubeconfig", str(account), "--identity", f"scheduler-{number}", "--log-format", "json"]
        command += ["--seed", str(number), "--port", str(port), *FAST_LEASE]
        process = cluster.spawn(f"scheduler-{number}", command, ready=log_has("Scheduling pods"))
        started.append(process)
        return Scheduler(process, f"http://127.0.0.1:{port}")

    yield start_scheduler
    for process in started:
        process.stop()
    remove_pods(cluster)
    logs = {process.name: process.log_text() for process in started}
    assert {name: text for name, text in logs.items() if "Traceback" in text or "forbidden" in text} == {}


def pod(name: str, app: str, **spec: Any) -> Object:
    """A pod of a service that requests half a CPU."""
    requests = {"cpu": "500m", "memory": "512Mi"}
    container = {"name": "main", "image": PAUSE, "resources": {"requests": requests}}
    base = {"schedulerName": NAME, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"metadata": {"name": name, "labels": {"app": app}}, "spec": {**base, **spec}}


def create_pods(cluster: DevCluster) -> None:
    for number in range(EACH):
        for app in SERVICES:
            cluster.api.create(PODS.path("default"), pod(f"{app}-{number}", app))


def pods(cluster: DevCluster) -> list[Object]:
    return list(cluster.api.get(PODS.path("default"))["items"])


def bound_nodes(cluster: DevCluster) -> dict[str, str]:
    return {name_of(raw): node_of(raw) for raw in pods(cluster) if node_of(raw)}


def remove_pods(cluster: DevCluster) -> None:
    cluster.api.delete(PODS.path("default"))
    wait_until("the pods are gone", lambda: not pods(cluster))


def holder(cluster: DevCluster) -> str:
    """The holder of the Lease, "" without one."""
    return str(cluster.api.get(LEASES.path(NAMESPACE, LEASE))["spec"].get("holderIdentity") or "")


def uid(cluster: DevCluster, name: str) -> str:
    return str(cluster.api.get(PODS.path("default", name))["metadata"]["uid"])


def events(cluster: DevCluster, reason: str, uid: str = "") -> list[Object]:
    """The Events with a reason, by default about every pod."""
    selector = quote(f"reason={reason}" + (f",involvedObject.uid={uid}" if uid else ""))
    return list(cluster.api.get(f"/api/v1/namespaces/default/events?fieldSelector={selector}")["items"])


def pods_with_event(cluster: DevCluster, reason: str) -> set[str]:
    return {event["involvedObject"]["uid"] for event in events(cluster, reason)}


def condition(cluster: DevCluster, name: str) -> Object:
    """The condition PodScheduled of a pod without its times, {} without one."""
    scheduled = condition_of(cluster.api.get(PODS.path("default", name)), "PodScheduled")
    times = ("lastTransitionTime", "lastProbeTime")
    return {field: value for field, value in scheduled.items() if field not in times}


def count_condition_writes(cluster: DevCluster, name: str) -> int:
    """How often a pod's condition was written, by the audit log. A write that the API server refused, for a version
    that is not the newest, is none.
    """
    account = f"system:serviceaccount:{NAMESPACE}:{LEASE}"
    calls = [entry for entry in cluster.audit_events() if entry["user"]["username"] == account]
    accepted = [entry for entry in calls if entry["responseStatus"]["code"] == 200]
    targets = [(entry["verb"], entry.get("objectRef") or {}) for entry in accepted]
    return sum(
        (verb, reference.get("subresource"), reference.get("name")) == ("patch", "status", name)
        for verb, reference in targets
    )


def count_attempts(scheduler: Scheduler, result: str) -> float:
    match = re.search(rf'attempts_total\{{result="{result}"\}} (\S+)', str(http_request(f"{scheduler.url}/metrics")[1]))
    return float(match[1]) if match else 0


def accepted_bindings(cluster: DevCluster) -> Counter[str]:
    """How often a pod of each name was bound, by the audit log."""
    bindings: Counter[str] = Counter()
    for entry in cluster.audit_events():
        reference = entry.get("objectRef") or {}
        if reference.get("subresource") == "binding" and entry["responseStatus"]["code"] == 201:
            bindings[reference["name"]] += 1
    return bindings


def assert_spread(nodes: dict[str, str]) -> None:
    """Each service is in one zone of one region, evenly on its racks."""
    for app in SERVICES:
        counts = Counter(node for name, node in nodes.items() if name.startswith(f"{app}-"))
        zones = {name.rpartition("-")[0] for name in counts}
        assert len(zones) == 1, f"{app} is in several zones: {counts}"
        racks = ["-".join(rack) for rack in RACKS if "-".join(rack[:2]) in zones]
        assert max(counts[rack] for rack in racks) - min(counts[rack] for rack in racks) <= 1, counts


def test_sixty_pods_of_two_services_stay_in_their_zone_and_spread_over_its_racks(
    cluster: DevCluster, start: Start
) -> None:
    """The sample policy decides, and every pod has an Event."""
    scheduler = start(1)
    create_pods(cluster)
    wait_until("every pod has a node", lambda: len(bound_nodes(cluster)) == 2 * EACH)
    assert_spread(bound_nodes(cluster))
    wait_until("it runs", lambda: all(map(runs, pods(cluster))))
    uids = {raw["metadata"]["uid"] for raw in pods(cluster)}
    wait_until("the events", lambda: uids <= pods_with_event(cluster, "Scheduled"))
    (event,) = events(cluster, "Scheduled", uid(cluster, "web-0"))
    assert event["message"] == f"Successfully assigned default/web-0 to {bound_nodes(cluster)['web-0']}"
    assert event["source"]["component"] == NAME
    assert http_request(f"{scheduler.url}/readyz") == (200, {"status": "ok", "role": "leader"})
    metrics = str(http_request(f"{scheduler.url}/metrics")[1])
    assert f'longhorn_generic_scheduler_attempts_total{{result="scheduled"}} {2 * EACH}.0' in metrics
    assert "longhorn_generic_scheduler_waiting_pods 0.0" in metrics


@pytest.mark.smoke
def test_an_unschedulable_pod_has_reasons_and_is_placed_when_a_node_appears(cluster: DevCluster, start: Start) -> None:
    """There is one Event and one condition, however many attempts."""
    scheduler = start(1)
    cluster.api.create(PODS.path("default"), pod("picky", "web", nodeSelector={"gpu": "yes"}))
    picky = uid(cluster, "picky")
    wait_until("the event", lambda: events(cluster, "FailedScheduling", picky))
    (event,) = events(cluster, "FailedScheduling", picky)
    nodes = len(RACKS)
    assert event["message"] == f"0/{nodes} nodes are available: {nodes} node selector does not match."
    wait_until("the condition", lambda: condition(cluster, "picky"))
    assert condition(cluster, "picky") == {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": event["message"],
        "observedGeneration": 1,
    }
    cluster.kubectl("wait", "--for=condition=PodScheduled=false", "pod/picky", "--timeout=5s")
    wait_until("more attempts", lambda: count_attempts(scheduler, "unschedulable") >= 3)
    assert count_condition_writes(cluster, "picky") == 1
    cluster.create_node("with-gpu", labels={"gpu": "yes", "region": "r1", "zone": "z1", "rack": "s9"})
    wait_until("it has a node", lambda: bound_nodes(cluster) == {"picky": "with-gpu"})
    assert len(events(cluster, "FailedScheduling", picky)) == 1
    assert condition(cluster, "picky")["status"] == "True"
    cluster.api.delete(NODES.path(name="with-gpu"))


def test_a_replaced_policy_file_takes_effect_at_once(cluster: DevCluster, start: Start, tmp_path: Path) -> None:
    """It needs no restart, and a wrong file changes nothing."""
    file = tmp_path / "policy.json"

    def replace_policy(*predicates: str) -> None:
        new_file = tmp_path / "policy.new"
        priorities = [{"name": "LeastRequestedPriority", "weight": 1}]
        policy = {"predicates": [{"name": name} for name in predicates], "priorities": priorities}
        new_file.write_text(json.dumps(policy))
        new_file.replace(file)

    replace_policy("PodFitsResources", "MatchNodeSelector")
    scheduler = start(1, file)
    cluster.api.create(PODS.path("default"), pod("waits", "web", nodeSelector={"gpu": "yes"}))
    wait_until("the refusal", lambda: condition(cluster, "waits").get("status") == "False")
    replace_policy("PodFitsResources")
    wait_until("it has a node", lambda: "waits" in bound_nodes(cluster), 15)
    replace_policy("Nonsense")
    wait_until("the refusal", lambda: "policy refused" in scheduler.process.log_text(), 15)
    cluster.api.create(PODS.path("default"), pod("comes", "web", nodeSelector={"gpu": "yes"}))
    wait_until("it has a node", lambda: "comes" in bound_nodes(cluster), 15)
    replace_policy("PodFitsResources", "MatchNodeSelector")
    wait_until("two policies", lambda: scheduler.process.log_text().count("policy in force") == 2, 15)
    cluster.api.create(PODS.path("default"), pod("late", "web", nodeSelector={"gpu": "yes"}))
    wait_until("the refusal", lambda: condition(cluster, "late").get("reason") == "Unschedulable")
    assert "late" not in bound_nodes(cluster)
    metrics = str(http_request(f"{scheduler.url}/metrics")[1])
    assert 'longhorn_generic_scheduler_policy_reloads_total{result="loaded"} 2.0' in metrics
    assert 'longhorn_generic_scheduler_policy_reloads_total{result="refused"} 1.0' in metrics
    assert 'longhorn_generic_scheduler_write_failures_total{what="condition"} 0.0' in metrics


@pytest.mark.smoke
def test_a_killed_leader_leaves_no_pod_unscheduled_and_none_bound_twice(cluster: DevCluster, start: Start) -> None:
    """Its successor takes over within the Lease, and spreads pods alike."""
    before = accepted_bindings(cluster)
    schedulers = {f"scheduler-{number}": start(number) for number in (1, 2)}
    wait_until("a leader", lambda: holder(cluster).partition("_")[0] in schedulers)
    create_pods(cluster)
    wait_until("some have a node", lambda: len(bound_nodes(cluster)) >= 5)
    first = holder(cluster).partition("_")[0]
    schedulers[first].process.kill()
    cluster.api.create(PODS.path("default"), pod("web-late", "web"))
    wait_until("every pod has a node", lambda: len(bound_nodes(cluster)) == 2 * EACH + 1, LEASE_SECONDS + 60)
    assert holder(cluster).partition("_")[0] not in ("", first)
    assert_spread(bound_nodes(cluster))
    # A call in flight when its caller died may have been carried out, although it is not logged as a success.
    bindings = accepted_bindings(cluster) - before
    assert set(bindings.values()) == {1}
    assert bindings.keys() <= bound_nodes(cluster).keys()


def test_a_terminated_leader_hands_over_at_once(cluster: DevCluster, start: Start) -> None:
    """It releases the Lease and exits with 0."""
    first = start(1)
    second = start(2)
    wait_until("a leader", lambda: holder(cluster).startswith("scheduler-"))
    leader = first if holder(cluster).startswith("scheduler-1_") else second
    former_holder = holder(cluster)
    leader.process.stop()
    assert leader.process.returncode == 0
    wait_until("the other one leads", lambda: holder(cluster) not in ("", former_holder), LEASE_SECONDS - 1)
    cluster.api.create(PODS.path("default"), pod("web-after", "web"))
    wait_until("it schedules", lambda: bound_nodes(cluster))


def test_no_event_of_a_burst_is_lost_and_a_warning_comes_at_once(cluster: DevCluster, start: Start) -> None:
    """The scheduler is terminated when the last of 500 pods is bound."""
    resources = {"requests": {"cpu": "1m", "memory": "1Mi"}}
    containers = [{"name": "main", "image": PAUSE, "resources": resources}]
    scheduler = start(1)
    for number in range(300):
        cluster.api.create(PODS.path("default"), pod(f"burst-{number}", "burst", containers=containers))
    wait_until("300 pods have a node", lambda: len(bound_nodes(cluster)) == 300)
    cluster.api.create(PODS.path("default"), pod("homeless", "burst", nodeSelector={"gpu": "yes"}))
    homeless = uid(cluster, "homeless")
    wait_until("the warning", lambda: events(cluster, "FailedScheduling", homeless), 5)
    for number in range(300, 500):
        cluster.api.create(PODS.path("default"), pod(f"burst-{number}", "burst", containers=containers))
    wait_until("500 pods have a node", lambda: len(bound_nodes(cluster)) == 500)
    scheduler.process.stop()
    uids = {raw["metadata"]["uid"] for raw in pods(cluster) if name_of(raw) != "homeless"}
    assert uids <= pods_with_event(cluster, "Scheduled")
