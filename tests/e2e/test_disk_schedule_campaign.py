"""Campaigns against the DiskSchedule controllers: random operations with kills, and starts beside replicas that run, with and without a
DiskSchedule that was lost or deleted. No byte is promised twice, nothing is left over, and every volume says the truth.

DISK_SCHEDULE_OPERATIONS and DISK_SCHEDULE_STARTS say how many, SOAK_SEED with which seed first, DISK_SCHEDULE_SEEDS with how many seeds.
"""

import os
import random
import time
from functools import partial

import pytest

from app.kube import resources
from devcluster.process import Process
from devcluster.stack import FAST_LEASE as FAST
from tests import builders
from tests.builders import GI
from tests.e2e.disk_schedule import Longhorn, image, replica
from tests.e2e.disk_schedule_campaign import NODES, Campaign
from tests.e2e.disk_schedule_monitor import DiskScheduleMonitor
from tests.e2e.disk_schedule_rounds import remove_everything

pytestmark = [pytest.mark.e2e, pytest.mark.campaign, pytest.mark.timeout(300)]

ROUNDS = int(os.environ.get("DISK_SCHEDULE_STARTS", "3"))
OPERATIONS = int(os.environ.get("DISK_SCHEDULE_OPERATIONS", "300"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
SEEDS = int(os.environ.get("DISK_SCHEDULE_SEEDS", "1"))
_BETWEEN_RESTS = 150
DISK = "n1-disk-1"
OLD = tuple(f"z-old-{number}" for number in range(4))
NEW = tuple(f"a-new-{number}" for number in range(6))


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


def add_running(longhorn: Longhorn) -> None:
    """Four replicas of 20 Gi run on the disk of 100 Gi."""
    longhorn.create(*(replica(f"{name}-r", name, 20, "n1", healthy=True) for name in OLD))
    longhorn.create(*(builders.volume(name, 20, locality="disabled") for name in OLD))


def granted(longhorn: Longhorn) -> list[str]:
    """The names of the replicas that hold 20 Gi on the disk."""
    answers = longhorn.status(DISK).get("replicas", {})
    return sorted(name for name, answer in answers.items() if answer["scheduledSize"] == 20 * GI)


def is_settled(longhorn: Longhorn) -> bool:
    """Whether every volume has an answer: allocated, or that no disk has room."""
    answers = [longhorn.allocation(name) for name in (*OLD, *NEW)]
    return all(answer.get("status") == "True" or answer.get("reason") == "NoDiskWithRoom" for answer in answers)


def check_settled(longhorn: Longhorn) -> None:
    """Waits until five replicas hold 100 Gi and the others have an answer; asserts that the four are among them."""
    longhorn.until(
        "every volume has an answer",
        lambda: is_settled(longhorn) and longhorn.status(DISK).get("storageScheduled") == 100 * GI,
        120,
    )
    assert [name for name in granted(longhorn) if name.startswith("z-old")] == [f"{name}-r" for name in OLD]


def erase_all(longhorn: Longhorn) -> None:
    """Removes volumes, replicas and DiskSchedules; the controllers do not run."""
    longhorn.erase(resources.LONGHORN_VOLUMES, resources.LONGHORN_REPLICAS, resources.DISK_SCHEDULES)


def _uid(longhorn: Longhorn) -> str:
    """The UID of the DiskSchedule, "" without one."""
    raw = longhorn.items(resources.DISK_SCHEDULES).get(DISK)
    return str(raw["metadata"]["uid"]) if raw else ""


def _has_successor(longhorn: Longhorn, uid: str) -> bool:
    return _uid(longhorn) not in ("", uid)


def start_and_kill(longhorn: Longhorn, process: Process, chance: random.Random) -> None:
    """Starts a process and kills it at a random moment of its first seconds; then it stays."""
    process.start(wait=False)
    time.sleep(chance.uniform(0.8, 3))
    process.kill()
    process.start(wait=False)


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_a_first_start_beside_running_replicas_takes_none_of_their_bytes(longhorn: Longhorn) -> None:
    """New volumes ask at the same time; their names come first, and the process is killed in between."""
    longhorn.add_nodes({"n1": 100})
    process = longhorn.start("one", "--no-leader-elect")
    longhorn.wait_ready()
    process.kill()
    erase_all(longhorn)
    for number in range(ROUNDS):
        add_running(longhorn)
        longhorn.add_volumes(NEW, 20)
        with DiskScheduleMonitor(longhorn.cluster.kubeconfig, longhorn.namespace):
            start_and_kill(longhorn, process, random.Random(number))  # noqa: S311 # a seed makes it repeatable
            check_settled(longhorn)
        process.kill()
        erase_all(longhorn)


@pytest.mark.parametrize("way", ["finalizer removed", "kubectl delete"])
@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_a_lost_disk_schedule_takes_no_bytes_of_running_replicas(longhorn: Longhorn, way: str) -> None:
    """Its successor has the same requests and grants, even if the process is killed and forgets them."""
    longhorn.add_nodes({"n1": 100})
    process = longhorn.start("one", "--no-leader-elect")
    longhorn.wait_ready()
    for number in range(ROUNDS):
        chance = random.Random(number)  # noqa: S311 # a seed makes it repeatable
        add_running(longhorn)
        longhorn.until("the four hold their bytes", lambda: len(granted(longhorn)) == 4)
        uid = _uid(longhorn)
        with DiskScheduleMonitor(longhorn.cluster.kubeconfig, longhorn.namespace):
            longhorn.add_volumes(NEW[:3], 20)
            if way == "finalizer removed":
                longhorn.patch(resources.DISK_SCHEDULES, DISK, {"metadata": {"finalizers": None}})
            longhorn.cluster.kubectl("-n", longhorn.namespace, "delete", "lhds", DISK, "--wait=false")
            longhorn.add_volumes(NEW[3:], 20)
            if chance.random() < 0.5:
                process.kill()
                process.start(wait=False)
            longhorn.until("there is a successor", partial(_has_successor, longhorn, uid))
            check_settled(longhorn)
        remove_everything(longhorn)


def test_a_disk_schedule_that_is_lost_while_its_disk_is_full_of_data_keeps_its_grants(longhorn: Longhorn) -> None:
    """80 Gi are held and 30 Gi are available: a decision from nothing would refuse three of four."""
    longhorn.add_nodes({"n1": 100})
    longhorn.start("one", *FAST)
    add_running(longhorn)
    longhorn.until("the four hold their bytes", lambda: len(granted(longhorn)) == 4)
    longhorn.set_available("n1", 30)
    longhorn.until("it is noticed", lambda: longhorn.schedulable(DISK).get("reason") == "OverAllocated")
    longhorn.cluster.kubectl("-n", longhorn.namespace, "delete", "lhds", DISK, "--wait=true", "--timeout=30s")
    longhorn.until("the four hold their bytes again", lambda: len(granted(longhorn)) == 4)
    longhorn.until("and it is said", lambda: longhorn.schedulable(DISK).get("reason") == "OverAllocated")
    longhorn.wait_allocated(*OLD)
    assert granted(longhorn) == [f"{name}-r" for name in OLD]


def test_a_granted_replica_that_never_ran_leaves_a_disk_that_is_gone(longhorn: Longhorn) -> None:
    """The disk has another UUID; one with data stays, and its volume says why."""
    longhorn.add_nodes({"n1": 100})
    longhorn.start("one", *FAST)
    longhorn.create(replica("old-r", "old", 20, "n1", healthy=True), replica("new-r", "new", 20))
    longhorn.create(builders.volume("old", 20, locality="disabled"), builders.volume("new", 20, locality="disabled"))
    longhorn.wait_allocated("old", "new")
    longhorn.add_nodes({"n2": 100})
    changed = {"status": {"diskStatus": {"disk-1": {"diskUUID": "another"}}}}
    longhorn.patch(resources.LONGHORN_NODES, "n1", changed, "status")
    longhorn.until(
        "the new one has moved",
        lambda: longhorn.get(resources.LONGHORN_REPLICAS, "new-r")["spec"]["diskID"] not in ("", DISK),
    )
    longhorn.wait_allocated("new")
    longhorn.until("the volume says so", lambda: longhorn.reason("old") == "AllocationRejected")
    assert "not n1-disk-1" in longhorn.allocation("old")["message"]


def test_a_replica_and_its_backing_image_are_granted_on_one_disk_or_not_at_all(longhorn: Longhorn) -> None:
    """On n2 there is room for the replica, not for its image of 30 Gi."""
    longhorn.add_nodes({"n1": 100, "n2": 25})
    longhorn.start("one", *FAST)
    longhorn.create(image("i", 30))
    longhorn.add_volumes(["v"], 2, replicas=2, backingImage="i")
    reason = longhorn.until("it is said", lambda: longhorn.reason("v") == "NoDiskWithRoom")
    assert reason
    longhorn.until("the other is there", lambda: len(longhorn.status(DISK).get("replicas", {})) == 1)
    message = longhorn.allocation("v")["message"]
    assert "2Gi and 30Gi for backing image i" in message
    assert "disk disk-1 on node n2 has 25Gi left" in message
    assert longhorn.status("n2-disk-1").get("storageScheduled") == 0
    assert sorted(longhorn.get(resources.LONGHORN_BACKING_IMAGES, "i")["spec"]["diskFileSpecMap"]) == [DISK]
    longhorn.set_available("n2", 32)
    longhorn.wait_allocated("v")
    assert longhorn.status("n2-disk-1")["storageScheduled"] == 32 * GI
