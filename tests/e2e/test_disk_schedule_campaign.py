"""A campaign against the DiskSchedule controllers. No byte is promised twice, nothing is left over, and every volume says the truth.

DISK_SCHEDULE_OPERATIONS says how many operations, SOAK_SEED with which seed first, DISK_SCHEDULE_SEEDS with how many seeds.
"""

import os

import pytest

from tests.e2e.disk_schedule import Longhorn
from tests.e2e.disk_schedule_campaign import NODES, Campaign
from tests.e2e.disk_schedule_monitor import DiskScheduleMonitor

pytestmark = [pytest.mark.e2e, pytest.mark.campaign, pytest.mark.timeout(300)]

OPERATIONS = int(os.environ.get("DISK_SCHEDULE_OPERATIONS", "300"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
SEEDS = int(os.environ.get("DISK_SCHEDULE_SEEDS", "1"))
_BETWEEN_RESTS = 150


@pytest.mark.timeout(600 + 2 * OPERATIONS)
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_random_operations_with_kills_end_in_a_true_state(longhorn: Longhorn, seed: int) -> None:
    """Two processes work at the same time; in every third round they start over beside what runs."""
    longhorn.add_nodes(dict.fromkeys(NODES, 100.0))
    options = ("--no-leader-elect", "--release-orphans-after", "3")
    processes = [longhorn.start(f"controller-{number}", *options) for number in range(2)]
    longhorn.wait_ready()
    with DiskScheduleMonitor(longhorn.cluster.kubeconfig, longhorn.namespace) as monitor:
        campaign = Campaign(longhorn, processes, monitor, seed)
        for number in range(max(1, OPERATIONS // _BETWEEN_RESTS)):
            campaign.run(_BETWEEN_RESTS)
            if number % 3 == 1:
                campaign.start_over()
            campaign.check_rest()
            print(f"{campaign.operations} operations, {campaign.kills} kills, {monitor.grants} grants", flush=True)
