"""`reservation: node`, as in the proposal: a pod reserves its node. One pod at a time is placed there, and the reservation ends when
Longhorn lists the pod's replicas.
"""

import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest

from devcluster.programs import NAMESPACE, SERVICE
from tests.control_plane import ControlPlane
from tests.e2e import plan
from tests.e2e.leader_monitor import LeaderMonitor
from tests.e2e.objects import statefulset
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

EVEN = {f"race-{number}": 4 for number in range(1, 5)}
CONFIG_MAP = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{SERVICE}"
TIMEOUT = "scheduler-extender-node-reservation-timeout"
# A little longer than a node may stay reserved for a deleted pod after a take-over.
_ADOPTED_SECONDS = 90.0


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates that reserve nodes, and the nodes of goal 1."""
    with (
        control_plane.borrow() as cluster,
        Rig(tmp_path_factory.mktemp("node"), candidates=2, reservation="node", running=cluster) as started,
    ):
        plan.goal_1_nodes(started)
        yield started


def test_a_burst_of_16_pods_puts_4_on_each_node_and_reserves_it(rig: Rig) -> None:
    with ReservationRecorder(rig) as recorder:
        result = plan.goal_1(rig, asks=True)
    assert (result.per_node, result.misplaced, result.mended, result.overbooked, result.stuck) == (EVEN, [], 0, [], [])
    assert recorder.nodes == set(EVEN)


def test_a_leader_killed_in_a_burst_loses_no_placement(rig: Rig) -> None:
    """Its successor reserves the nodes of pods whose replicas are not listed yet."""
    before = rig.misplacements()
    with LeaderMonitor(rig) as monitor:
        rig.create(statefulset("race", group="race", replicas=16))
        rig.until("some pods have a node", lambda: sum(map(bool, rig.nodes_of("race").values())) >= 3)
        leader = rig.until("a candidate answers", rig.leader)
        rig.cluster.processes[leader].kill()
        try:
            assert rig.until("another candidate answers", rig.leader) != leader
            rig.until("all pods run", lambda: rig.ready("race", 16), plan.READY_SECONDS)
            assert sorted(rig.nodes_of("race").values()) == sorted(node for node in EVEN for _ in range(4))
            assert (rig.misplaced_pods("race"), rig.misplacements() - before) == ([], 0)
        finally:
            rig.remove("race")
            rig.start_candidate(leader)
    assert monitor.double_answers == []


def test_a_time_out_of_0_reserves_no_node(rig: Rig) -> None:
    """The setting takes effect without a restart."""
    try:
        _set_timeout(rig, 0)
        leader = rig.until("a candidate answers", rig.leader)
        rig.until("nothing is reserved any more", lambda: not _service(rig, leader)["reservedNodes"], _ADOPTED_SECONDS)
        with ReservationRecorder(rig) as recorder:
            plan.goal_1(rig, asks=True)
        assert recorder.nodes == set()
    finally:
        _set_timeout(rig, 5)


class ReservationRecorder:
    """Records the names of all nodes that the leader reserves, while entered."""

    def __init__(self, rig: Rig) -> None:
        self.nodes: set[str] = set()
        self._rig = rig
        self._leader = rig.until("a candidate answers", rig.leader)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            self.nodes |= set(_service(self._rig, self._leader)["reservedNodes"])


def _set_timeout(rig: Rig, seconds: int) -> None:
    rig.cluster.api.patch(CONFIG_MAP, {"data": {TIMEOUT: str(seconds)}})
    leader = rig.until("a candidate answers", rig.leader)
    rig.until("the time-out is in force", lambda: _service(rig, leader)["nodeReservationTimeout"] == seconds)


def _service(rig: Rig, leader: str) -> Any:
    return rig.request(leader, "/state")[1]["service"]
