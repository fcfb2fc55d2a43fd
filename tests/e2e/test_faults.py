"""Faults around the extender: nothing is misplaced, and pods are still placed."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from app.kube.resources import ENDPOINT_SLICES, LEASES, PERSISTENT_VOLUMES
from devcluster.build import API_SERVER, CONTROLLER_MANAGER, ETCD
from devcluster.programs import NAMESPACE, SERVICE
from scheduler_core.convert.generic import NUDGE_ANNOTATION
from tests.e2e import hand_over, plan
from tests.e2e.bursts import wait_for_result
from tests.e2e.leader_monitor import PROBE, LeaderMonitor
from tests.e2e.objects import name_of
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.rig import LEASE_BOUND, PROPOSAL, Rig
from tests.worlds.stopwatch import Stopwatch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
# On a busy machine pods are bound before more of them are offered nodes.
_OPEN = 15

LEASE = LEASES.path(NAMESPACE, SERVICE)
SLICE = ENDPOINT_SLICES.path(NAMESPACE, SERVICE)
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{SERVICE}"
# After an outage kwok's nodes may be late to renew their Leases. A node that is not ready gets no replica.
NODES_STAY_READY = {CONTROLLER_MANAGER: ["--node-monitor-grace-period=5m"]}
# Once the Lease is free: a retry, a second to catch up, and reading the cluster on two busy cores.
CATCHING_UP = 4.0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates, the nodes of goal 1, and nodes for a burst that outruns kube-scheduler's client."""
    folder = tmp_path_factory.mktemp("faults")
    simulator = hand_over.FAST_ATTACHER
    with Rig(folder, candidates=2, config=PROPOSAL, simulator=simulator, extra_args=NODES_STAY_READY) as started:
        plan.goal_1_nodes(started)
        hand_over.SHORT.add_nodes(started)
        yield started


@pytest.fixture
def monitor(rig: Rig) -> Iterator[LeaderMonitor]:
    """Monitors the candidates; two that answer at once fail the test."""
    with LeaderMonitor(rig) as monitor:
        yield monitor
    assert monitor.double_answers == []


@pytest.fixture(autouse=True)
def restore(rig: Rig) -> Iterator[None]:
    """Removes the pods after each test, and starts missing candidates."""
    yield
    rig.remove("race")
    hand_over.remove(rig)
    rig.restore_candidates()


def other_candidate(rig: Rig, leader: str) -> str:
    """The candidate that does not lead."""
    return next(name for name in rig.candidates if name != leader)


def start_stopwatch(rig: Rig, *candidates: str) -> Stopwatch:
    """Measures how long candidates take, and the API server that they call."""
    return Stopwatch(*(rig.cluster.processes[name].pid for name in (*candidates, API_SERVER, ETCD)))


def assert_even_placement(rig: Rig) -> None:
    """Every pod runs with its volume, 4 on each node."""
    with PlacementAudit(rig) as audit:
        result = wait_for_result(rig, "race", 16, audit, must=True)
    assert (result.per_node, result.misplaced, result.stuck) == (plan.EVEN, [], [])
    assert rig.misplacements() == 0, "there is none that was mended later either"
    assert late_nudges(rig, "race") == [], "a pod whose volume exists was nudged"


def late_nudges(rig: Rig, app: str) -> list[str]:
    """The pods of an app that were nudged after the second in which their volume was created."""
    volumes = {
        volume["spec"]["claimRef"]["name"]: volume["metadata"]["creationTimestamp"]
        for volume in rig.items(PERSISTENT_VOLUMES.path())
    }
    late = []
    for pod in rig.pods(app):
        nudged = (pod["metadata"].get("annotations") or {}).get(NUDGE_ANNOTATION, "")
        claims = [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["spec"]["volumes"]]
        # Times of RFC 3339 to the second are compared as texts.
        if any(nudged[:19] > volumes[claim][:19] for claim in claims if claim in volumes):
            late.append(name_of(pod))
    return late


@pytest.mark.smoke
def test_a_leader_killed_in_a_burst_loses_no_placement(rig: Rig, monitor: LeaderMonitor) -> None:
    """Its successor answers within the Lease's bound, and knows what was reserved."""
    plan.start_goal_1(rig)
    leader = rig.wait_for_leader()
    rig.cluster.processes[leader].kill()
    stopwatch = start_stopwatch(rig, other_candidate(rig, leader))
    successor = rig.wait_for_leader()
    assert successor != leader
    assert stopwatch.seconds < LEASE_BOUND + CATCHING_UP
    assert_even_placement(rig)


@pytest.mark.smoke
def test_a_terminated_leader_hands_over_within_two_seconds(rig: Rig, monitor: LeaderMonitor) -> None:
    """It records its open offers, then releases the Lease."""
    plan.start_goal_1(rig)
    leader = rig.wait_for_leader()
    ending = rig.cluster.processes[leader]
    stopper = threading.Thread(target=ending.stop)
    stopper.start()
    rig.until("the Lease is released", lambda: not _holder(rig).startswith(leader))
    stopwatch = start_stopwatch(rig, other_candidate(rig, leader))
    successor = rig.wait_for_leader()
    assert successor != leader
    assert stopwatch.seconds < 2
    stopper.join()
    assert_even_placement(rig)


def test_a_terminated_leader_hands_its_open_offers_over(rig: Rig) -> None:
    """Their decisions are under way; its successor knows what was offered."""
    outcome = hand_over.run(rig, hand_over.SHORT, lambda rig: hand_over.terminate_leader(rig, offers=_OPEN))
    assert outcome.wrong == 0, outcome
    assert outcome.longest_silence < LEASE_BOUND + CATCHING_UP


def test_a_killed_leaders_open_offers_are_known(rig: Rig) -> None:
    outcome = hand_over.run(rig, hand_over.SHORT, lambda rig: hand_over.kill_leader(rig, offers=_OPEN, recorded=True))
    assert outcome.wrong == 0, outcome


def test_a_resumed_leader_does_not_answer(rig: Rig, monitor: LeaderMonitor) -> None:
    """Its Lease has expired meanwhile by its own clock."""
    leader = rig.wait_for_leader()
    process = rig.cluster.processes[leader]
    process.pause()
    other = other_candidate(rig, leader)
    rig.until("another candidate answers", lambda: rig.answers(other))
    process.resume()
    for _ in range(20):
        assert not rig.answers(leader)
    assert monitor.longest_silence < LEASE_BOUND + CATCHING_UP


def test_a_candidate_with_expired_watches_lists_everything_again(rig: Rig, monitor: LeaderMonitor) -> None:
    """The restarted API server answers its watches with 410."""
    leader = rig.wait_for_leader()
    follower = other_candidate(rig, leader)
    rig.until("the other one has read the cluster", lambda: rig.request(follower, "/readyz")[0] == 200)
    lists = _count_lists(rig, follower)
    rig.cluster.processes[follower].pause()
    for number in range(30):
        rig.cluster.kubectl("annotate", "node", "race-1", f"change={number}", "--overwrite")
    rig.cluster.processes[API_SERVER].restart()
    rig.cluster.processes[follower].resume()
    rig.until("it has listed nodes again", lambda: _count_lists(rig, follower) > lists)
    rig.until("it is ready", lambda: rig.request(follower, "/readyz")[0] == 200)
    assert rig.wait_for_leader() in rig.candidates


def test_an_api_server_that_is_down_for_30_seconds_only_delays_pods(rig: Rig, monitor: LeaderMonitor) -> None:
    """No candidate answers meanwhile; afterwards the burst continues."""
    plan.start_goal_1(rig)
    server = rig.cluster.processes[API_SERVER]
    server.kill()
    time.sleep(30)
    assert [name for name in rig.candidates if rig.answers(name)] == []
    server.start()
    stopwatch = start_stopwatch(rig, *rig.candidates)
    rig.wait_for_leader()
    assert stopwatch.seconds < LEASE_BOUND + CATCHING_UP + 5
    assert_even_placement(rig)


@pytest.mark.smoke
def test_a_restart_of_etcd_only_delays_pods(rig: Rig, monitor: LeaderMonitor) -> None:
    """Watches break or expire, and are listed again where necessary."""
    plan.start_goal_1(rig)
    rig.cluster.processes[ETCD].restart()
    assert_even_placement(rig)
    assert monitor.longest_silence < LEASE_BOUND + CATCHING_UP


def test_a_stolen_lease_silences_the_leader(rig: Rig, monitor: LeaderMonitor) -> None:
    """A candidate takes it back once the stranger stops renewing it."""
    spec = {"holderIdentity": "stranger", "leaseDurationSeconds": 3}
    rig.cluster.api.patch(LEASE, {"spec": spec})
    rig.until("no candidate answers", lambda: not rig.leader(), 10)
    leader = rig.wait_for_leader(3 + LEASE_BOUND + CATCHING_UP)
    assert rig.cluster.api.get(LEASE)["spec"]["holderIdentity"] != "stranger"
    assert rig.answers(leader)


def test_a_deleted_endpointslice_is_created_again(rig: Rig) -> None:
    rig.wait_for_leader()
    rig.until("the Service has an endpoint", lambda: _endpoints(rig), 20)
    rig.cluster.api.delete(SLICE)
    rig.until("it has an endpoint again", lambda: _endpoints(rig), 20)
    assert len(_endpoints(rig)) == 1


@pytest.mark.smoke
def test_settings_take_effect_without_a_restart(rig: Rig) -> None:
    """A disabled extender does not answer, and has neither Lease nor endpoints. Once enabled, it works as before."""
    rig.until("the Service has an endpoint", lambda: _endpoints(rig))
    rig.change_settings({"scheduler-extender-enabled": "false"})
    rig.until("no candidate answers", lambda: not rig.leader())
    rig.until("the Service has no endpoint", lambda: not _endpoints(rig))
    rig.until("the Lease has no holder", lambda: not _holder(rig))
    status, answer = rig.request("extender-1", "/filter", PROBE)
    assert status == 503
    assert "scheduler-extender-enabled is false" in answer
    assert rig.request("extender-1", "/healthz")[0] == 200
    rig.change_settings({"scheduler-extender-enabled": "perhaps"})
    for name in rig.candidates:
        state = rig.until(f"{name} has read it", partial(_state_with_refusal, rig, name))
        assert not state["enabled"], "a value that is not a boolean changes nothing"
        assert not rig.answers(name)
    rig.change_settings({"scheduler-extender-enabled": "true"})
    rig.wait_for_leader()
    assert rig.service()["enabled"]
    for pod_timeout, node_timeout in ((7, 0), (5, 5)):
        rig.change_settings(
            {
                "scheduler-extender-pod-scheduling-timeout": str(pod_timeout),
                "scheduler-extender-node-reservation-timeout": str(node_timeout),
            }
        )
        rig.until("both time-outs count", partial(_has_timeouts, rig, pod_timeout, node_timeout))


@pytest.mark.smoke
def test_a_candidate_reports_missing_permissions_and_recovers(rig: Rig) -> None:
    binding = f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{SERVICE}"
    original = rig.cluster.api.get(binding)
    rig.cluster.api.delete(binding)
    rig.until("the API server refuses", lambda: not _may_list_nodes(rig))
    leader = rig.wait_for_leader()
    follower = other_candidate(rig, leader)
    rig.cluster.processes[follower].stop()
    rig.start_candidate(follower)
    text = rig.until("its readiness is refused", lambda: _missing_permission(rig, follower))
    assert f"system:serviceaccount:{NAMESPACE}:{SERVICE}" in text
    original["metadata"] = {"name": SERVICE}
    rig.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **original})
    rig.until("it is ready", lambda: rig.request(follower, "/readyz")[0] == 200)


def _endpoints(rig: Rig) -> list[object]:
    slices = rig.items(ENDPOINT_SLICES.path(NAMESPACE))
    return [entry for raw in slices if name_of(raw) == SERVICE for entry in raw.get("endpoints") or ()]


def _state_with_refusal(rig: Rig, name: str) -> Any:
    state = rig.service(name)
    return state if state["refusedSettings"] else None


def _may_list_nodes(rig: Rig) -> bool:
    attributes = {"verb": "list", "resource": "nodes"}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": attributes},
    }
    answer = rig.cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def _has_timeouts(rig: Rig, pod_timeout: int, node_timeout: int) -> bool:
    service = rig.service()
    return (service["podSchedulingTimeout"], service["nodeReservationTimeout"]) == (pod_timeout, node_timeout)


def _count_lists(rig: Rig, name: str) -> float:
    return rig.metric(name, 'longhorn_scheduler_extender_cache_lists_total{kind="nodes"}')


def _missing_permission(rig: Rig, name: str) -> str:
    status, text = rig.request(name, "/readyz")
    return str(text) if status == 503 and "forbidden" in str(text) else ""


def _holder(rig: Rig) -> str:
    return str(rig.cluster.api.get(LEASE)["spec"].get("holderIdentity") or "")
