"""The placement guard on a real API server: harsh bursts come out right, and Longhorn goes on without it."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from app.kube.resources import CLAIMS, LONGHORN_REPLICAS, PODS
from devcluster.programs import NAMESPACE
from scheduler_core.decide.decision import Packing
from tests.control_plane import ControlPlane
from tests.e2e import harsh_burst
from tests.e2e.guard_faults import SIMULATOR, Fault, distrusted, killed, slow, stopped, wait_until_callable
from tests.e2e.harsh_burst import APP, HarshBurst
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.pod_states import PodState, wait_until_quiet
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SEEDS: Final = (1, 2)
PROVEN: Final = "longhorn_scheduler_extender_placement_guard_proven"


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates that enforce; every node with an exact packing is offered."""
    arguments = ("--packing", Packing.EXACT)
    folder = tmp_path_factory.mktemp("guard")
    with (
        control_plane.borrow() as cluster,
        Rig(
            folder,
            candidates=2,
            config=RECOMMENDED_MANAGED,
            more_arguments=arguments,
            simulator=SIMULATOR,
            running=cluster,
        ) as started,
    ):
        yield started


@pytest.fixture(autouse=True)
def restore(rig: Rig) -> Iterator[None]:
    """Starts missing candidates after each test."""
    yield
    for name in ("extender-1", "extender-2"):
        if name not in rig.candidates:
            rig.start_candidate(name)
    rig.until("a candidate answers", rig.leader)


def guard_of(rig: Rig, name: str) -> dict[str, Any]:
    status, answer = rig.request(name, "/state")
    assert status == 200, answer
    guard: dict[str, Any] = answer["service"]["placementGuard"]
    return guard


def bypassed_placements(rig: Rig, name: str) -> int:
    """How many placements a candidate has seen that it was not asked about."""
    count: int = guard_of(rig, name)["observations"].get("bypassed", 0)
    return count


def start_burst(rig: Rig, seed: int) -> HarshBurst:
    """Creates the nodes, claims and pods of a burst."""
    burst = HarshBurst.of(seed)
    burst.add_nodes(rig)
    objects = burst.objects()
    rig.post(entry for entry in objects if entry["kind"] == CLAIMS.kind)
    rig.post(entry for entry in objects if entry["kind"] == PODS.kind)
    return burst


def placed_replicas(rig: Rig) -> int:
    return sum(bool(raw["spec"].get("diskID")) for raw in rig.items(LONGHORN_REPLICAS.path(NAMESPACE)))


def remove_burst(rig: Rig, burst: HarshBurst) -> None:
    rig.remove(APP)
    rig.remove_nodes(*burst.nodes)


@pytest.mark.smoke
@pytest.mark.parametrize("seed", SEEDS)
def test_every_pod_of_a_harsh_burst_runs_and_no_disk_is_overbooked(rig: Rig, seed: int) -> None:
    """92 % of the orders fail by Longhorn's own choices."""
    leader = wait_until_callable(rig)
    bypassed = bypassed_placements(rig, leader)
    outcome = harsh_burst.run_once(rig, seed)
    assert not outcome.wrong, outcome
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
    with PlacementAudit(rig) as audit:
        burst = start_burst(rig, seed=3)
        rig.until("the moment of the fault", lambda: placed_replicas(rig) >= replicas)
        with fault(rig, leader):
            settled = wait_until_quiet(rig, APP, audit.started)
            if fault is distrusted:
                guard = guard_of(rig, leader)
                assert guard["observations"]["bypassed"] > 0
                assert guard["health"] == "unproven", "auto offers what is safe without the guard"
                assert rig.metric(leader, PROVEN) == 0
            else:
                assert bypassed_placements(rig, standby) == bypassed, "the standby has reviewed what the leader did not"
    assert settled.count(PodState.WAITING) == 0, "kube-scheduler decided about every pod"
    remove_burst(rig, burst)
    wait_until_callable(rig)
    outcome = harsh_burst.run_once(rig, seed=4)
    assert (outcome.overbooked, outcome.misplaced, outcome.mended, outcome.stuck) == (0, 0, 0, 0), outcome


def test_a_guard_that_is_switched_off_is_not_called(rig: Rig) -> None:
    """Its Service leads nowhere; switched on again, it is called at once."""
    leader = wait_until_callable(rig)
    path = "/api/v1/namespaces/longhorn-system/configmaps/longhorn-scheduler-extender"
    rig.cluster.api.patch(path, {"data": {"placement-guard": "off"}})
    rig.until("the Service leads nowhere", lambda: not guard_of(rig, leader)["published"])
    assert guard_of(rig, leader)["health"] == ""
    rig.cluster.api.patch(path, {"data": {"placement-guard": "enforce"}})
    wait_until_callable(rig)
