"""A burst that exactly fits, with the extender and with DiskSchedules."""

import pytest

from scheduler_core.longhorn.node_status import ROUNDING
from scheduler_core.model.quantity import parse_bytes
from scheduler_core.values import replace
from tests.e2e import disk_schedule_burst
from tests.e2e.burst import APP, EXACT, SIZE, Burst
from tests.e2e.disk_schedule_burst import WITH, WITHOUT
from tests.e2e.plan import Result

FINE = Result(100.0, {}, [], 0, [], [])


@pytest.mark.parametrize(("disk", "pods"), [(EXACT, 10), ("360Gi", 9)], ids=["exact", "rounded down"])
def test_a_disk_schedule_grants_what_longhorn_reports_as_free(disk: str, pods: int) -> None:
    """Longhorn rounds the free space of a disk down, so bytes that fill a disk exactly may not be granted."""
    available = parse_bytes(disk) - parse_bytes(disk) % ROUNDING
    assert available // (2 * parse_bytes(SIZE)) == pods


@pytest.mark.parametrize(
    ("result", "count"),
    [
        pytest.param(replace(FINE, seconds=125.0), 0, id="fine"),
        pytest.param(replace(FINE, seconds=126.0), 1, id="too slow"),
        pytest.param(replace(FINE, misplaced=["pod"]), 1, id="misplaced"),
        pytest.param(replace(FINE, overbooked=["disk"]), 1, id="overbooked"),
    ],
)
def test_report_fails_if_schedules_cost_too_much_or_do_not_help(result: Result, count: int) -> None:
    """They may take a quarter more time, and no disk may be overbooked."""
    assert len(disk_schedule_burst.failures({WITHOUT: [FINE], WITH: [result]})) == count


@pytest.mark.campaign
@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_every_pod_of_a_fitting_burst_runs_with_disk_schedules(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Extender and DiskSchedules count the same bytes once, so there is room for exactly these pods."""
    burst = Burst(pods=40, nodes=4, disk=EXACT)
    with disk_schedule_burst.rig_with_schedules(tmp_path_factory.mktemp("burst")) as rig:
        burst.add_nodes(rig)
        result = burst.run(rig, asks=True, must=True)
        rig.remove(APP)
    assert set(result.per_node.values()) == {10}
    assert (result.misplaced, result.mended, result.overbooked, result.stuck) == ([], 0, [], [])
