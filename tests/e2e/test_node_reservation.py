"""`reservation: node`, as in the proposal: a pod reserves its node. One pod at a time is placed there, and the reservation ends when
Longhorn lists the pod's replicas.
"""

from collections.abc import Iterator

import pytest

from tests.control_plane import ControlPlane
from tests.e2e import plan
from tests.e2e.bursts import READY_SECONDS
from tests.e2e.leader_monitor import LeaderMonitor
from tests.e2e.repeated import Repeated
from tests.e2e.rig import PROPOSAL, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# A little longer than a node may stay reserved for a deleted pod after a take-over.
_ADOPTED_SECONDS = 90.0


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates that reserve nodes, and the nodes of goal 1."""
    folder = tmp_path_factory.mktemp("node")
    with Rig(folder, control_plane, candidates=2, config=PROPOSAL, reservation="node") as started:
        plan.goal_1_nodes(started)
        yield started


def test_a_burst_of_16_pods_puts_4_on_each_node_and_reserves_it(rig: Rig) -> None:
    with ReservationRecorder(rig) as recorder:
        result = plan.goal_1(rig, asks=True)
    assert (result.per_node, result.wrong) == (plan.EVEN, {})
    assert recorder.nodes == plan.EVEN.keys()


def test_a_leader_killed_in_a_burst_loses_no_placement(rig: Rig) -> None:
    """Its successor reserves the nodes of pods whose replicas are not listed yet."""
    before = rig.misplacements()
    with LeaderMonitor(rig) as monitor:
        plan.start_goal_1(rig)
        leader = rig.wait_for_leader()
        rig.cluster.processes[leader].kill()
        try:
            assert rig.wait_for_leader() != leader
            rig.until("all pods run", lambda: rig.ready("race", 16), READY_SECONDS)
            assert sorted(rig.nodes_of("race").values()) == sorted(node for node in plan.EVEN for _ in range(4))
            assert (rig.misplaced_pods("race"), rig.misplacements() - before) == ([], 0)
        finally:
            rig.remove("race")
            rig.start_candidate(leader)
    assert monitor.double_answers == []


def test_a_time_out_of_0_reserves_no_node(rig: Rig) -> None:
    """The setting takes effect without a restart."""
    try:
        _set_timeout(rig, 0)
        rig.until("nothing is reserved any more", lambda: not rig.service()["reservedNodes"], _ADOPTED_SECONDS)
        with ReservationRecorder(rig) as recorder:
            plan.goal_1(rig, asks=True)
        assert recorder.nodes == set()
    finally:
        _set_timeout(rig, 5)


class ReservationRecorder(Repeated):
    """Records the names of all nodes that the leader reserves, while entered."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(self._note, lambda: 0.1)
        self.nodes: set[str] = set()
        self._rig = rig
        self._leader = rig.wait_for_leader()

    def _note(self) -> None:
        self.nodes |= set(self._rig.service(self._leader)["reservedNodes"])


def _set_timeout(rig: Rig, seconds: int) -> None:
    rig.change_settings({"scheduler-extender-node-reservation-timeout": str(seconds)})
    rig.until("the time-out is in force", lambda: rig.service()["nodeReservationTimeout"] == seconds)
