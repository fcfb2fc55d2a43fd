"""The placement guard on a real API server: harsh bursts come out right, and Longhorn goes on without it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scheduler_core.decide.decision import Packing
from tests.control_plane import ControlPlane
from tests.e2e import harsh_burst
from tests.e2e.bursts import settled_burst
from tests.e2e.guard_faults import (
    SIMULATOR,
    Fault,
    distrusted,
    killed,
    placed_replicas,
    slow,
    stopped,
    wait_until_callable,
)
from tests.e2e.harsh_burst import APP, HarshBurst
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SEEDS = (1, 2)
PROVEN = "longhorn_scheduler_extender_placement_guard_proven"


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates that enforce; every node with an exact packing is offered."""
    arguments = ("--packing", Packing.EXACT)
    folder = tmp_path_factory.mktemp("guard")
    with Rig(folder, control_plane, candidates=2, more_arguments=arguments, simulator=SIMULATOR) as started:
        yield started


@pytest.fixture(autouse=True)
def restore(rig: Rig) -> Iterator[None]:
    """Starts missing candidates after each test."""
    yield
    rig.restore_candidates()


def guard_of(rig: Rig, name: str) -> dict[str, Any]:
    guard: dict[str, Any] = rig.service(name)["placementGuard"]
    return guard


def bypassed_placements(rig: Rig, name: str) -> int:
    """How many placements a candidate has seen that it was not asked about."""
    count: int = guard_of(rig, name)["observations"].get("bypassed", 0)
    return count


@pytest.mark.smoke
@pytest.mark.parametrize("seed", SEEDS)
def test_every_pod_of_a_harsh_burst_runs_and_no_disk_is_overbooked(rig: Rig, seed: int) -> None:
    """92 % of the orders fail by Longhorn's own choices."""
    leader = wait_until_callable(rig)
    bypassed = bypassed_placements(rig, leader)
    outcome = harsh_burst.run_once(rig, seed)
    assert not harsh_burst.is_wrong(outcome), outcome
    assert outcome.seconds is not None
    guard = guard_of(rig, leader)
    assert guard["outcomes"].get("changed", 0) > 0
    assert bypassed_placements(rig, leader) == bypassed
    assert (guard["health"], guard["problem"]) == ("proven", "")
    assert rig.metric(leader, PROVEN) == 1


@pytest.mark.parametrize(
    ("fault", "replicas"),
    [(killed, 12), (stopped, 4), (slow, 0), (distrusted, 1)],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_longhorn_goes_on_while_the_guard_fails_in_a_burst(rig: Rig, fault: Fault, replicas: int) -> None:
    """Every pod gets a node, every replica that finds a disk is placed; the plans of the next burst are kept. The fault
    begins when so many replicas have a disk. A process that does not lead reviews what the leader does not.
    """
    leader = wait_until_callable(rig)
    [standby] = set(rig.candidates) - {leader}
    bypassed = bypassed_placements(rig, standby)

    @contextmanager
    def fail() -> Iterator[None]:
        rig.until("the moment of the fault", lambda: placed_replicas(rig) >= replicas)
        with fault(rig, leader):
            yield
            if fault is distrusted:
                guard = guard_of(rig, leader)
                assert guard["observations"]["bypassed"] > 0
                assert guard["health"] == "unproven", "auto offers what is safe without the guard"
                assert rig.metric(leader, PROVEN) == 0
            else:
                assert bypassed_placements(rig, standby) == bypassed, "the standby has reviewed what the leader did not"

    burst = HarshBurst.of(3)
    burst.add_nodes(rig)
    with settled_burst(rig, APP, burst.objects(), burst.nodes, fail) as (_, settled):
        assert settled.waiting == set(), "kube-scheduler decided about every pod"
    wait_until_callable(rig)
    outcome = harsh_burst.run_once(rig, seed=4)
    assert (outcome.overbooked, outcome.misplaced, outcome.mended, outcome.stuck) == (0, 0, 0, 0), outcome


def test_a_guard_that_is_switched_off_is_not_called(rig: Rig) -> None:
    """Its Service leads nowhere; switched on again, it is called at once."""
    leader = wait_until_callable(rig)
    rig.change_settings({"placement-guard": "off"})
    rig.until("the Service leads nowhere", lambda: not guard_of(rig, leader)["published"])
    assert guard_of(rig, leader)["health"] == ""
    rig.change_settings({"placement-guard": "enforce"})
    wait_until_callable(rig)
