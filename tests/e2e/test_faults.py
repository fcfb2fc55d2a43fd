"""What may go wrong around the extender: after each fault nothing is misplaced, and pods go on being placed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from devcluster.programs import NAMESPACE, SERVICE
from tests.e2e import plan
from tests.e2e.objects import statefulset
from tests.e2e.rig import LEASE_BOUND, Rig
from tests.e2e.witness import Witness

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

EVEN = {f"race-{number}": 4 for number in range(1, 5)}
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{SERVICE}"
SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{SERVICE}"
CONFIG_MAP = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{SERVICE}"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{SERVICE}"
# After the Lease is free: a retry, a second to catch up, and reading it all on two busy cores.
CATCHING_UP = 4.0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates, and the nodes of goal 1."""
    with Rig(tmp_path_factory.mktemp("faults"), candidates=2) as started:
        plan.goal_1_nodes(started)
        yield started


@pytest.fixture
def witness(rig: Rig) -> Iterator[Witness]:
    """Watches over a test; two candidates that answer at once fail it."""
    with Witness(rig) as watching:
        yield watching
    assert watching.both == []


@pytest.fixture(autouse=True)
def whole(rig: Rig) -> Iterator[None]:
    """Every test begins and ends with two candidates and no pods."""
    yield
    rig.remove("race")
    for number in (1, 2):
        if f"extender-{number}" not in rig.candidates:
            rig.start_candidate(f"extender-{number}")
    rig.until("a candidate answers", rig.leader)


def burst(rig: Rig) -> None:
    """Goal 1's pods; returns when some, but not all, have a node."""
    rig.create(statefulset("race", group="race", replicas=16))
    rig.until("some pods have a node", lambda: sum(map(bool, rig.nodes_of("race").values())) >= 3)


def leading(rig: Rig) -> str:
    """The candidate that answers, as soon as one does."""
    return rig.until("a candidate answers", rig.leader)


def evenly_placed(rig: Rig) -> None:
    """Every pod runs, 4 on each node, beside its volume."""
    started = time.monotonic()
    result = plan.run(rig, "race", 16, started, must=True)
    assert (result.per_node, result.misplaced, result.stuck) == (EVEN, [], [])
    assert rig.misplacements() == 0, "none was mended either"


def test_a_leader_killed_in_a_burst_loses_no_placement(rig: Rig, witness: Witness) -> None:
    """The other candidate answers within the Lease's bound, and finds what was reserved."""
    burst(rig)
    leader = leading(rig)
    rig.cluster.processes[leader].kill()
    killed = time.monotonic()
    successor = rig.until("another candidate answers", rig.leader)
    assert successor != leader
    assert time.monotonic() - killed < LEASE_BOUND + CATCHING_UP
    evenly_placed(rig)


def test_a_leader_told_to_end_hands_over_within_two_seconds_of_the_last_placement(rig: Rig, witness: Witness) -> None:
    """It waits for the pod it has just answered about, releases the Lease, and its successor answers."""
    burst(rig)
    leader = leading(rig)
    ending = rig.cluster.processes[leader]
    stopper = threading.Thread(target=ending.stop)
    stopper.start()
    rig.until("the Lease is released", lambda: not _holder(rig).startswith(leader))
    released = time.monotonic()
    successor = leading(rig)
    assert successor != leader
    assert time.monotonic() - released < 2
    stopper.join()
    evenly_placed(rig)


def test_a_stopped_leader_that_wakes_up_again_does_not_answer(rig: Rig, witness: Witness) -> None:
    """Its clock has gone on: the Lease it held has expired."""
    leader = leading(rig)
    process = rig.cluster.processes[leader]
    process.pause()
    others = [name for name in rig.candidates if name != leader]
    rig.until("another candidate answers", lambda: rig.answers(others[0]))
    process.resume()
    for _ in range(20):
        assert not rig.answers(leader)
    assert witness.longest_silence < LEASE_BOUND + CATCHING_UP


def test_a_candidate_whose_watches_are_too_old_lists_everything_again(rig: Rig, witness: Witness) -> None:
    """Stopped while the API server restarts: what its watches ask for is no longer in the server's history (410)."""
    leader = leading(rig)
    follower = next(name for name in rig.candidates if name != leader)
    rig.until("the other one knows the cluster", lambda: rig.ask(follower, "/readyz")[0] == 200)
    lists = _lists(rig, follower)
    rig.cluster.processes[follower].pause()
    for number in range(30):
        rig.cluster.kubectl("annotate", "node", "race-1", f"change={number}", "--overwrite")
    rig.cluster.processes["kube-apiserver"].restart()
    rig.cluster.processes[follower].resume()
    rig.until("it has listed nodes again", lambda: _lists(rig, follower) > lists)
    rig.until("it is ready", lambda: rig.ask(follower, "/readyz")[0] == 200)
    leading(rig)


def test_an_api_server_that_is_down_for_30_seconds_costs_nothing_but_time(rig: Rig, witness: Witness) -> None:
    """Nobody answers without knowing the cluster; afterwards the burst goes on."""
    burst(rig)
    server = rig.cluster.processes["kube-apiserver"]
    server.kill()
    time.sleep(30)
    assert [name for name in rig.candidates if rig.answers(name)] == []
    server.start()
    back = time.monotonic()
    leading(rig)
    assert time.monotonic() - back < LEASE_BOUND + CATCHING_UP + 5
    evenly_placed(rig)


def test_an_etcd_that_restarts_costs_nothing_but_time(rig: Rig, witness: Witness) -> None:
    """Watches break or are told that they are too old; everything is listed again where needed."""
    burst(rig)
    rig.cluster.processes["etcd"].restart()
    evenly_placed(rig)
    assert witness.longest_silence < LEASE_BOUND + CATCHING_UP


def test_a_stolen_lease_silences_the_leader(rig: Rig, witness: Witness) -> None:
    """A stranger holds it; when the stranger does not renew it, a candidate takes it back."""
    stolen = {"holderIdentity": "stranger", "leaseDurationSeconds": 3}
    rig.cluster.api.patch(LEASE, {"spec": stolen})
    rig.until("nobody answers", lambda: not rig.leader(), 10)
    rig.until("a candidate answers again", rig.leader, 3 + LEASE_BOUND + CATCHING_UP)


def test_an_endpointslice_that_somebody_deletes_comes_back(rig: Rig) -> None:
    """The leader looks at it now and then."""
    rig.until("a candidate answers", rig.leader)
    rig.until("the Service leads somewhere", lambda: rig.cluster.api.get(SLICE).get("endpoints"), 20)
    rig.cluster.api.delete(SLICE)
    rig.until("it leads there again", lambda: _endpoints(rig), 20)


def test_settings_change_while_it_runs(rig: Rig) -> None:
    """Disabled: no answer, no Lease, an empty Service. Enabled again: all as before."""
    rig.until("the Service leads somewhere", lambda: _endpoints(rig))
    rig.cluster.api.patch(CONFIG_MAP, {"data": {"scheduler-extender-enabled": "false"}})
    rig.until("nobody answers", lambda: not rig.leader())
    rig.until("the Service leads nowhere", lambda: not _endpoints(rig))
    rig.until("nobody holds the Lease", lambda: not _holder(rig))
    status, text = rig.ask("extender-1", "/filter", {"Pod": {"metadata": {"name": "probe"}}, "NodeNames": []})
    assert status == 503
    assert "scheduler-extender-enabled is false" in text
    assert rig.ask("extender-1", "/healthz")[0] == 200
    rig.cluster.api.patch(CONFIG_MAP, {"data": {"scheduler-extender-enabled": "perhaps"}})
    for name in rig.candidates:
        state = rig.until(f"{name} has read it", partial(_refused, rig, name))
        assert not state["enabled"], "a value that is no boolean changes nothing"
        assert not rig.answers(name)
    rig.cluster.api.patch(CONFIG_MAP, {"data": {"scheduler-extender-enabled": "true"}})
    leading(rig)
    assert _service(rig)["enabled"]
    rig.cluster.api.patch(CONFIG_MAP, {"data": {"scheduler-extender-pod-scheduling-timeout": "7"}})
    rig.cluster.api.patch(CONFIG_MAP, {"data": {"scheduler-extender-node-reservation-timeout": "0"}})
    rig.until("both time-outs count", lambda: _timeouts(rig) == (7, 0))
    rig.cluster.api.patch(CONFIG_MAP, {"data": {"scheduler-extender-pod-scheduling-timeout": "5"}})
    rig.cluster.api.patch(CONFIG_MAP, {"data": {"scheduler-extender-node-reservation-timeout": "5"}})
    rig.until("both count again", lambda: _timeouts(rig) == (5, 5))


def test_a_candidate_without_permission_says_what_it_lacks_and_recovers(rig: Rig) -> None:
    """Its readiness names the call and the account; once it may, it is ready."""
    binding = f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{SERVICE}"
    granted = rig.cluster.api.get(binding)
    rig.cluster.api.delete(binding)
    rig.until("the API server refuses", lambda: not _may_list_nodes(rig))
    leader = leading(rig)
    follower = next(name for name in rig.candidates if name != leader)
    rig.cluster.processes[follower].stop()
    rig.start_candidate(follower)
    text = rig.until("its readiness is refused", lambda: _lacks(rig, follower))
    assert f"system:serviceaccount:{NAMESPACE}:{SERVICE}" in text
    granted["metadata"] = {"name": SERVICE}
    rig.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **granted})
    rig.until("it is ready", lambda: rig.ask(follower, "/readyz")[0] == 200)


def _endpoints(rig: Rig) -> object:
    slices = rig.items(SLICE.rpartition("/")[0])
    return [entry for found in slices if found["metadata"]["name"] == SERVICE for entry in found.get("endpoints") or ()]


def _service(rig: Rig) -> Any:
    return rig.ask(leading(rig), "/state")[1]["service"]


def _refused(rig: Rig, name: str) -> Any:
    """The service's state once a candidate refuses a setting."""
    state = rig.ask(name, "/state")[1]["service"]
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


def _timeouts(rig: Rig) -> tuple[int, int]:
    service = _service(rig)
    return service["podSchedulingTimeout"], service["nodeReservationTimeout"]


def _lists(rig: Rig, name: str) -> float:
    return rig.metric(name, 'longhorn_scheduler_extender_cache_lists_total{kind="nodes"}')


def _lacks(rig: Rig, name: str) -> str:
    status, text = rig.ask(name, "/readyz")
    return str(text) if status == 503 and "forbidden" in str(text) else ""


def _holder(rig: Rig) -> str:
    return str(rig.cluster.api.get(LEASE)["spec"].get("holderIdentity") or "")
