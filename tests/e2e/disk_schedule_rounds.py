"""The proposal's test plan for DiskSchedules, one function per round. Eight controllers compete and are killed. The same loads also run
without DiskSchedules.
"""

from collections.abc import Callable, Iterable
from typing import Final

from app.kube.resources import CLAIMS, LONGHORN_BACKING_IMAGES, LONGHORN_REPLICAS, LONGHORN_VOLUMES
from devcluster.process import Process
from scheduler_core.model.quantity import parse_bytes
from tests import builders
from tests.builders import GI, Object
from tests.e2e.disk_schedule import Longhorn, image, replica
from tests.e2e.disk_schedule_load import (
    Killer,
    NodeStatusWriter,
    compete,
    disk_states,
    expansion_to,
    growth,
    over_allocations,
    placeable_replicas,
    remove_everything,
    take_copies,
    take_replica,
    unsettled_disks,
)
from tests.e2e.disk_schedule_monitor import DiskScheduleMonitor
from tests.e2e.objects import statefulset
from tests.e2e.rig import Rig

DISKS: Final = {f"n{number}": 100.0 for number in range(1, 5)}
# Killed processes come back one after the other, each with a whole interpreter to start.
_SETTLE_SECONDS: Final = 240.0


def _compete(
    longhorn: Longhorn,
    killer: Killer,
    load: Callable[[], object],
    settled: Callable[[], bool],
    enough: Callable[[], object],
) -> str:
    """Makes a load, kills controllers until it has had enough effect, and waits until all is settled."""
    with DiskScheduleMonitor(longhorn.cluster.kubeconfig, longhorn.namespace) as monitor:
        with killer:
            load()
            longhorn.until("the room is taken", lambda: killer.killed and enough(), _SETTLE_SECONDS)
        longhorn.until("all is settled", lambda: not unsettled_disks(longhorn) and settled(), _SETTLE_SECONDS)
    return f"{monitor.grants} grants, {monitor.rejections} rejections, {killer.killed} kills"


def _kill_soon(crowd: list[Process], seed: int) -> Killer:
    """For rounds that last a second or two: the kills follow fast, and half of the processes are spared."""
    return Killer(crowd, seed, pause=(0.05, 0.3), most=4)


def replica_round(longhorn: Longhorn, crowd: list[Process], number: int) -> str:
    """Places 600 Gi of new replicas on disks of 400 Gi. Other data takes some of it meanwhile."""

    def load() -> None:
        longhorn.add_volumes([f"v{number}-{each}" for each in range(30)], 10, replicas=2)
        longhorn.until("much is placed", lambda: _count_grants(longhorn) >= 20, _SETTLE_SECONDS)
        longhorn.set_available("n1", 60)

    text = _compete(
        longhorn,
        Killer(crowd, number),
        load,
        lambda: not placeable_replicas(longhorn),
        lambda: _count_grants(longhorn) >= 34,
    )
    for uuid, disk in disk_states(longhorn).items():
        limit = 100 * GI if uuid == "n1-disk-1" else disk.available
        assert sum(disk.granted.values()) <= limit, "n1 may have granted more before its room was taken"
    longhorn.set_available("n1", 100)
    remove_everything(longhorn)
    return text


def image_round(longhorn: Longhorn, crowd: list[Process], number: int) -> str:
    """Places 28 copies of 20 Gi on four disks that hold five each. All room is used, and no byte twice."""
    text = _compete(
        longhorn,
        _kill_soon(crowd, number),
        lambda: longhorn.create(*(image(f"i{number}-{each}", 20, copies=2) for each in range(14))),
        lambda: _count_grants(longhorn) == 20,
        lambda: _count_grants(longhorn) >= 18,
    )
    remove_everything(longhorn)
    return text


def expansion_round(longhorn: Longhorn, crowd: list[Process], number: int) -> str:
    """Expands ten volumes of two replicas by 15 Gi each. Each disk has room for three of its five replicas. A volume
    grows with both replicas or not at all.
    """
    names = [f"v{number}-{each}" for each in range(10)]
    longhorn.create(*_spread_replicas(names))
    longhorn.create(*(builders.volume(name, 10, locality="disabled", numberOfReplicas=2) for name in names))
    longhorn.wait_allocated(*names)

    def load() -> None:
        for name in names:
            longhorn.patch(LONGHORN_VOLUMES, name, {"spec": {"size": str(25 * GI)}})

    text = _compete(
        longhorn,
        _kill_soon(crowd, number),
        load,
        lambda: _are_all_decided(longhorn),
        lambda: _expanded_volumes(longhorn),
    )
    assert all(sum(disk.granted.values()) <= 100 * GI for disk in disk_states(longhorn).values())
    expanded = len(_expanded_volumes(longhorn))
    assert 0 < expanded <= 6
    remove_everything(longhorn)
    return f"{expanded} of 10 grew, {text}"


def _count_grants(longhorn: Longhorn) -> int:
    return sum(len(disk.granted) for disk in disk_states(longhorn).values())


def _spread_replicas(names: Iterable[str]) -> list[Object]:
    """Two replicas of 10 Gi per volume, evenly on the four nodes."""
    return [
        replica(f"{name}-r{side}", name, 10, f"n{(number + side) % 4 + 1}")
        for number, name in enumerate(names)
        for side in (0, 1)
    ]


def _expanded_volumes(longhorn: Longhorn) -> list[str]:
    return [name for name, (sizes, _) in growth(longhorn).items() if sizes == {25}]


def _are_all_decided(longhorn: Longhorn) -> bool:
    """Whether each volume has grown, or kept its size and got a reason. Both of its replicas have the same size."""
    return all(
        (sizes, reason) in (({25}, ""), ({10}, "ExpansionRejected")) for sizes, reason in growth(longhorn).values()
    )


def naive_rounds(longhorn: Longhorn) -> dict[str, dict[str, int]]:
    """Runs the same loads with writers that trust the nodes' status. Returns the Gi too many by load and node."""
    over = {}
    kinds = (LONGHORN_VOLUMES, LONGHORN_REPLICAS, LONGHORN_BACKING_IMAGES)
    status = NodeStatusWriter(longhorn)
    status.write()
    with status:
        longhorn.add_volumes([f"v{each}" for each in range(30)], 10, replicas=2)
        compete(longhorn, list(longhorn.items(LONGHORN_REPLICAS).values()), take_replica)
        over["replicas"] = over_allocations(longhorn)
        longhorn.erase(*kinds)
        status.write()
        longhorn.create(*(image(f"i{each}", 20, copies=2) for each in range(14)))
        compete(longhorn, list(longhorn.items(LONGHORN_BACKING_IMAGES).values()), take_copies)
        over["backing images"] = over_allocations(longhorn)
        longhorn.erase(*kinds)
        names = [f"w{each}" for each in range(10)]
        longhorn.create(*_spread_replicas(names), *(builders.volume(name, 25) for name in names))
        status.write()
        compete(longhorn, list(longhorn.items(LONGHORN_VOLUMES).values()), expansion_to(25))
        over["expansions"] = over_allocations(longhorn)
    return over


def pods_round(rig: Rig, longhorn: Longhorn, first: Process) -> None:
    """Four pods with four local volumes each fill four nodes. The leading controller is killed meanwhile."""
    with DiskScheduleMonitor(rig.cluster.kubeconfig, longhorn.namespace) as monitor:
        rig.create(statefulset("many", group="db", replicas=4, claims=4, size="90Gi"))
        longhorn.until("something is granted", lambda: monitor.grants > 0)
        first.kill()
        rig.until("the pods are ready", lambda: rig.ready("many", 4), 120)
        assert sorted(rig.nodes_of("many").values()) == [f"db-{number}" for number in range(1, 5)]
        longhorn.until("all is settled", lambda: not unsettled_disks(longhorn))
        assert (rig.misplaced_pods("many"), rig.overbooked_disks()) == ([], [])
        assert (rig.status()["overbooked"], rig.status()["ungranted"]) == ([], [])

        grown = {"spec": {"resources": {"requests": {"storage": "110Gi"}}}}
        path = CLAIMS.path("default", "data-0-many-0")
        rig.cluster.api.patch(path, grown)
        rig.until(
            "the claim has grown",
            lambda: parse_bytes(rig.cluster.api.get(path)["status"]["capacity"]["storage"]) == 110 * GI,
        )
        rig.cluster.api.patch(path, {"metadata": {"annotations": {"simulator/write": "60Gi"}}})
        home = rig.nodes_of("many")["many-0"]
        rig.until("the disk says that it is over-allocated", lambda: "OverAllocated" in longhorn.refusals(home))
    rig.remove("many")
    longhorn.until(
        "nothing is granted", lambda: not any(disk.granted or disk.requested for disk in disk_states(longhorn).values())
    )
