"""The proposal's test plan, one repetition of each goal with the extender. `make e2e-report` runs all of them, and those without."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.programs import NAMESPACE, SERVICE
from tests.control_plane import ControlPlane
from tests.e2e import plan
from tests.e2e.rig import PROPOSAL, RECOMMENDED, RECOMMENDED_MANAGED, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{SERVICE}"


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One cluster with the nodes of all goals."""
    with Rig(tmp_path_factory.mktemp("plan"), control_plane) as started:
        plan.goal_1_nodes(started)
        plan.goal_2_nodes(started)
        plan.goal_3_nodes(started)
        yield started


@pytest.mark.parametrize(
    ("config", "asks"),
    [
        pytest.param(PROPOSAL, True, id="whole nodes", marks=pytest.mark.smoke),
        pytest.param(RECOMMENDED_MANAGED, True, id="names", marks=pytest.mark.smoke),
        # Every pod is filtered; its second entry manages the resource and is never called.
        pytest.param(RECOMMENDED, False, id="every pod, without the resource"),
        pytest.param(RECOMMENDED, True, id="every pod, with the resource"),
    ],
)
def test_a_burst_of_16_pods_puts_4_on_each_node(rig: Rig, config: Path, asks: bool) -> None:
    """Goal 1 holds with each form of the request, and where the configuration says that pods are filtered."""
    rig.use_config(config)
    result = plan.goal_1(rig, asks=asks)
    assert (result.per_node, result.wrong) == (plan.EVEN, {})


def test_without_the_extender_the_same_burst_overbooks_some_nodes(rig: Rig) -> None:
    """Otherwise this rig would prove nothing. The extender counts the same overbooked disks as the audit."""
    rig.use_config(PROPOSAL)
    overbookings = "longhorn_scheduler_extender_overbookings_total"
    before = rig.metric(rig.leader(), overbookings)
    result = plan.goal_1(rig, asks=False)
    rig.until(
        "the extender has counted them",
        lambda: rig.metric(rig.leader(), overbookings) - before == len(result.overbooked),
        10,
    )
    assert max(result.per_node.values()) > 4
    assert result.misplaced or result.mended or result.overbooked


def test_the_proposals_configuration_does_not_filter_pods_without_the_resource(rig: Rig) -> None:
    """Goals 2, 3A and 3B run without it and without a request. The plan leaves open where such pods go."""
    rig.use_config(PROPOSAL)
    before = rig.count_fits()
    plan.goal_2(rig, asks=False)
    plan.goal_3_drain(rig, asks=False)
    assert rig.count_fits() == before
    result, nodes = plan.goal_3_restart(rig, asks=False)
    assert result.nodes != nodes


@pytest.mark.smoke
def test_drained_pods_move_to_the_other_node_with_room(rig: Rig) -> None:
    """This is goal 3, case A; every volume gets its replica there."""
    rig.use_config(PROPOSAL)
    result = plan.goal_3_drain(rig, asks=True)
    assert (result.per_node, result.misplaced, result.mended, result.overbooked) == ({"drain-2": 4}, [], 0, [])


@pytest.mark.smoke
def test_restarted_pods_return_to_the_nodes_of_their_replicas(rig: Rig) -> None:
    rig.use_config(PROPOSAL)
    result, before = plan.goal_3_restart(rig, asks=True)
    assert result.nodes == before
    assert Counter(before.values()) == plan.EVEN
    assert (result.misplaced, result.mended, result.overbooked) == ([], 0, [])


@pytest.mark.smoke
def test_a_pod_with_four_claims_goes_to_the_node_with_four_disks(rig: Rig) -> None:
    """Goal 2. The audit log of its decision has no other calls than watches, the Lease, the EndpointSlices, the record of offers, what the
    placement guard needs, and GETs of objects that a pod names and no watch has delivered.
    """
    earlier_calls = sum(1 for _ in rig.cluster.audit_events())
    claims = 4
    rig.use_config(PROPOSAL)
    result = plan.goal_2(rig, asks=True)
    assert (result.nodes, result.misplaced, result.mended) == ({"many-0": "many-4"}, [], 0)
    calls = Counter(
        (event["verb"], event["objectRef"]["resource"])
        for event in list(rig.cluster.audit_events())[earlier_calls:]
        if event["user"]["username"] == ACCOUNT and event["stage"] == "ResponseComplete"
    )
    named = {"persistentvolumeclaims", "persistentvolumes", "volumes", "storageclasses"}
    expected = {("get", "leases"), ("update", "leases"), ("get", "endpointslices"), *(("get", kind) for kind in named)}
    expected |= {("patch", "configmaps")}
    # The cluster lacks these optional kinds, and the extender retries.
    expected |= {("list", kind) for kind in ("backups", "diskschedules", "volumesnapshotcontents", "volumesnapshots")}
    # The placement guard looks at its certificate, and at where API servers have it from.
    expected |= {("get", "secrets"), ("get", "mutatingwebhookconfigurations")}
    assert {call for call in calls if call[0] != "watch"} <= expected
    assert sum(calls["get", kind] for kind in named) <= 3 * claims, "each object that a pod names is read once at most"
    assert calls["update", "leases"] > 0
