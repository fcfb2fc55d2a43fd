"""`reservation: node`, the proposal to the letter: one pod at a time, and its node is reserved until Longhorn lists its replicas."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest

from devcluster.programs import NAMESPACE, SERVICE
from tests.e2e import plan
from tests.e2e.objects import statefulset
from tests.e2e.rig import Rig
from tests.e2e.witness import Witness

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("node"), pytest.mark.timeout(900)]

EVEN = {f"race-{number}": 4 for number in range(1, 5)}
CONFIG_MAP = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{SERVICE}"
TIMEOUT = "scheduler-extender-node-reservation-timeout"
# For so long after a take-over a node may stay reserved for a pod that is gone, and a little.
_ADOPTED_SECONDS = 90.0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates that reserve nodes, and the nodes of goal 1."""
    with Rig(tmp_path_factory.mktemp("node"), candidates=2, reservation="node") as started:
        plan.goal_1_nodes(started)
        yield started


def test_a_burst_of_16_pods_puts_4_on_each_node_which_is_reserved_meanwhile(rig: Rig) -> None:
    """Goal 1."""
    with Reservations(rig) as seen:
        result = plan.goal_1(rig, asks=True)
    assert (result.per_node, result.misplaced, result.mended, result.overfull, result.stuck) == (EVEN, [], 0, [], [])
    assert seen.nodes == set(EVEN)


def test_a_leader_killed_in_a_burst_loses_no_placement(rig: Rig) -> None:
    """The next one reserves the nodes of pods whose replicas Longhorn does not list yet."""
    before = rig.misplacements()
    with Witness(rig) as witness:
        rig.create(statefulset("race", group="race", replicas=16))
        rig.until("some pods have a node", lambda: sum(map(bool, rig.nodes_of("race").values())) >= 3)
        leader = rig.until("a candidate answers", rig.leader)
        rig.cluster.processes[leader].kill()
        try:
            assert rig.until("another candidate answers", rig.leader) != leader
            rig.until("all pods run", lambda: rig.ready("race", 16), plan.READY_SECONDS)
            assert sorted(rig.nodes_of("race").values()) == sorted(node for node in EVEN for _ in range(4))
            assert (rig.misplaced("race"), rig.misplacements() - before) == ([], 0)
        finally:
            rig.remove("race")
            rig.start_candidate(leader)
    assert witness.both == []


def test_a_time_out_of_0_reserves_no_node(rig: Rig) -> None:
    """The setting takes effect while it runs, and back."""
    try:
        _set_timeout(rig, 0)
        leader = rig.until("a candidate answers", rig.leader)
        rig.until("nothing is reserved any more", lambda: not _service(rig, leader)["reservedNodes"], _ADOPTED_SECONDS)
        with Reservations(rig) as seen:
            plan.goal_1(rig, asks=True)
        assert seen.nodes == set()
    finally:
        _set_timeout(rig, 5)


class Reservations:
    """Asks the leader again and again which nodes are reserved, and keeps their names."""

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
    rig.until("the time-out counts", lambda: _service(rig, leader)["nodeReservationTimeout"] == seconds)


def _service(rig: Rig, leader: str) -> Any:
    return rig.ask(leader, "/state")[1]["service"]
