"""A burst that exactly fits, with the extender and with DiskSchedules."""

import pytest

from devcluster.stack import FAST_LEASE
from scheduler_core.longhorn.node_controller import ROUNDING
from scheduler_core.model.quantity import parse_bytes
from tests.control_plane import ControlPlane
from tests.e2e.bursts import BURST, EXACT, SIZE, Burst
from tests.e2e.disk_schedule import started_controllers
from tests.e2e.disk_schedule_rounds import disk_states, pods_round
from tests.e2e.rig import Rig

SIMULATOR = {"disk_schedules": True}


@pytest.mark.parametrize(("disk", "pods"), [(EXACT, 10), ("360Gi", 9)], ids=["exact", "rounded down"])
def test_a_disk_schedule_grants_what_longhorn_reports_as_free(disk: str, pods: int) -> None:
    """Longhorn rounds the free space of a disk down, so bytes that fill a disk exactly may not be granted."""
    available = parse_bytes(disk) - parse_bytes(disk) % ROUNDING
    assert available // (2 * parse_bytes(SIZE)) == pods


@pytest.mark.campaign
@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_every_pod_of_a_fitting_burst_runs_with_disk_schedules(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Extender and DiskSchedules count the same bytes once, so there is room for exactly these pods."""
    burst = Burst(pods=40, nodes=4, disk=EXACT)
    with Rig(tmp_path_factory.mktemp("burst"), simulator=SIMULATOR) as rig, started_controllers(rig):
        burst.add_nodes(rig)
        result = burst.run(rig, asks=True, must=True)
        rig.remove(BURST)
    assert set(result.per_node.values()) == {10}
    assert result.wrong == {}


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_pods_get_their_volumes_through_disk_schedules(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The whole stack runs, and a controller is killed meanwhile."""
    folder = tmp_path_factory.mktemp("pods")
    with Rig(folder, control_plane, simulator=SIMULATOR) as rig, started_controllers(rig) as longhorn:
        longhorn.start("second", *FAST_LEASE)
        longhorn.wait_ready()
        rig.add_nodes("db", {f"db-{number}": ["400Gi"] for number in range(1, 5)})
        pods_round(rig, longhorn, longhorn.processes[0])
        assert [uuid for uuid, disk in disk_states(longhorn).items() if disk.granted] == [], "all pods are removed"
