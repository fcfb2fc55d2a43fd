"""`reservation: capacity`: the proposal's goals without anybody waiting for a lock, and with a leader that dies in the burst."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import plan
from tests.e2e.rig import LEASE_BOUND, RECOMMENDED_MANAGED, Rig, statefulset

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("capacity"), pytest.mark.timeout(400)]

EVEN = {f"race-{number}": 4 for number in range(1, 5)}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates that offer instead of reserving, and the nodes of all goals."""
    arguments = ["--reservation", "capacity"]
    with Rig(
        tmp_path_factory.mktemp("capacity"), candidates=2, config=RECOMMENDED_MANAGED, more_arguments=arguments
    ) as started:
        plan.goal_1_nodes(started)
        plan.goal_2_nodes(started)
        plan.goal_3_nodes(started)
        yield started


def test_a_burst_of_16_pods_puts_4_on_each_node(rig: Rig) -> None:
    """Goal 1."""
    result = plan.goal_1(rig, asks=True)
    assert (result.per_node, result.misplaced, result.mended, result.overfull, result.stuck) == (EVEN, [], 0, [], [])


def test_a_pod_with_four_claims_goes_to_the_node_with_four_disks(rig: Rig) -> None:
    """Goal 2."""
    result = plan.goal_2(rig, asks=True)
    assert (result.nodes, result.misplaced, result.mended) == ({"many-0": "many-4"}, [], 0)


def test_drained_pods_move_to_the_other_node_that_has_room(rig: Rig) -> None:
    """Goal 3, case A: their healthy replicas on the old node do not count for the new one."""
    result = plan.goal_3_drain(rig, asks=True)
    assert (result.per_node, result.misplaced, result.mended, result.overfull) == ({"drain-2": 4}, [], 0, [])


def test_a_leader_killed_in_a_burst_loses_no_placement(rig: Rig) -> None:
    """The next one derives from the cluster what the last one had decided."""
    before = rig.misplacements()
    rig.create(statefulset("race", group="race", replicas=16))
    rig.until("some pods have a node", lambda: sum(map(bool, rig.nodes_of("race").values())) >= 2)
    leader = rig.leader()
    rig.cluster.processes[leader].kill()
    try:
        assert rig.until("another candidate answers", rig.leader, LEASE_BOUND + 5) != leader
        rig.until("all pods run", lambda: rig.ready("race", 16), plan.READY_SECONDS)
        assert sorted(rig.nodes_of("race").values()) == sorted(node for node in EVEN for _ in range(4))
        assert (rig.misplaced("race"), rig.misplacements() - before) == ([], 0)
    finally:
        rig.remove("race")
        rig.start_candidate(leader)
