"""The placement guard on a real API server: harsh bursts come out right, and Longhorn goes on without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from app.kube.resources import CLAIMS, PODS
from scheduler_core.extender.decision import Packing
from tests.e2e import harsh_burst
from tests.e2e.harsh_burst import APP, HarshBurst
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.pod_states import PodState, wait_until_quiet
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("placement-guard"), pytest.mark.timeout(600)]

SEEDS: Final = (1, 2)
# kube-scheduler asks about every pod before the first volume is placed: nothing is promised to a pod that has no answer yet.
SLOW_PROVISIONING: Final = {"provision_seconds": [4.0, 5.0]}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates that enforce; every node with an exact packing is offered."""
    arguments = ("--packing", Packing.EXACT)
    folder = tmp_path_factory.mktemp("guard")
    with Rig(
        folder,
        candidates=2,
        config=RECOMMENDED_MANAGED,
        more_arguments=arguments,
        simulator=SLOW_PROVISIONING,
        placement_guard=harsh_burst.ENFORCE,
    ) as started:
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
    """What /state of a candidate shows of the guard."""
    status, answer = rig.request(name, "/state")
    assert status == 200, answer
    guard: dict[str, Any] = answer["service"]["placementGuard"]
    return guard


def wait_until_callable(rig: Rig) -> str:
    """The leader, once its guard can be called."""

    def callable_leader() -> str:
        leader = rig.leader()
        return leader if leader and guard_of(rig, leader)["published"] else ""

    return rig.until("the guard can be called", callable_leader)


def start_burst(rig: Rig, seed: int) -> HarshBurst:
    """Creates the nodes, claims and pods of a burst."""
    burst = HarshBurst.of(seed)
    burst.add_nodes(rig)
    objects = burst.objects()
    rig.post(entry for entry in objects if entry["kind"] == CLAIMS.kind)
    rig.post(entry for entry in objects if entry["kind"] == PODS.kind)
    return burst


def remove_burst(rig: Rig, burst: HarshBurst) -> None:
    """Removes pods, claims and nodes."""
    rig.remove(APP)
    rig.remove_nodes(*burst.nodes)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pod_of_a_harsh_burst_runs_and_no_disk_is_overbooked(rig: Rig, seed: int) -> None:
    """92 % of the orders fail by Longhorn's own choices."""
    leader = wait_until_callable(rig)
    outcome = harsh_burst.run_once(rig, seed)
    assert not outcome.wrong, outcome
    assert outcome.seconds is not None
    guard = guard_of(rig, leader)
    assert guard["outcomes"].get("changed", 0) > 0
    assert guard["observations"].get("bypassed", 0) == 0
    assert (guard["health"], guard["problem"]) == ("proven", "")


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_longhorn_goes_on_while_the_guard_is_lost_in_a_burst(rig: Rig, fault: str) -> None:
    """Every replica of a strict-local or best-effort volume that finds a disk is placed; the successor keeps later plans."""
    leader = wait_until_callable(rig)
    process = rig.cluster.processes[leader]
    with PlacementAudit(rig) as audit:
        burst = start_burst(rig, seed=3)
        rig.until("some pods have a node", lambda: sum(map(bool, rig.nodes_of(APP).values())) >= 2)
        if fault == "killed":
            process.kill()
        else:
            process.pause()
        settled = wait_until_quiet(rig, APP, audit.started)
        if fault == "stopped":
            process.resume()
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
    rig.cluster.api.patch(path, {"data": {"placement-guard": None}})
    wait_until_callable(rig)
