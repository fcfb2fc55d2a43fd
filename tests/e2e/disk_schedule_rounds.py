"""The proposal's test plan, one round each: eight controllers compete and are killed; and the same loads without DiskSchedules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from app.kube.resources import CLAIMS, LONGHORN_BACKING_IMAGES, LONGHORN_REPLICAS, LONGHORN_VOLUMES
from devcluster import Process
from scheduler_core.model.quantity import parse_bytes
from tests import builders
from tests.builders import GI, Object
from tests.e2e.disk_schedule import Longhorn, image, replica
from tests.e2e.disk_schedule_load import (
    Killer,
    NodeStatus,
    compete,
    disks,
    growing_to,
    growth,
    idle,
    over_allocated,
    remove_everything,
    take_copies,
    take_replica,
    unsettled,
)
from tests.e2e.disk_schedule_witness import Witness
from tests.e2e.objects import statefulset
from tests.e2e.rig import Rig

DISKS: Final = {f"n{number}": 100.0 for number in range(1, 5)}
# Killed processes come back one after the other, each with a whole interpreter to start.
_SETTLE_SECONDS: Final = 240.0
# For what is over in a second or two: the kills come fast, and half of the processes are left.
_SOON: Final = (0.05, 0.3)


def replica_round(longhorn: Longhorn, crowd: list[Process], number: int) -> str:
    """600 Gi of new replicas on disks with 400, of which data takes some meanwhile."""
    with Witness(longhorn.cluster.kubeconfig, longhorn.namespace) as witness:
        with Killer(crowd, number) as killer:
            longhorn.add_volumes([f"v{number}-{each}" for each in range(30)], 10, replicas=2)
            longhorn.until("much is placed", lambda: _count(longhorn) >= 20, _SETTLE_SECONDS)
            longhorn.available("n1", 60)
            longhorn.until("the room is taken", lambda: killer.killed and _count(longhorn) >= 34, _SETTLE_SECONDS)
        longhorn.until("all is settled", lambda: not unsettled(longhorn) and not idle(longhorn), _SETTLE_SECONDS)
    assert (witness.faults, witness.relists) == ([], 1), "or versions may have been missed"
    for uuid, disk in disks(longhorn).items():
        most = 100 * GI if uuid == "n1-disk-1" else disk.available
        assert sum(disk.held.values()) <= most, "n1 may have granted more before its room went"
    longhorn.available("n1", 100)
    return _end(longhorn, witness, killer)


def image_round(longhorn: Longhorn, crowd: list[Process], number: int) -> str:
    """28 copies of 20 Gi on four disks that hold five each: all room is used, and by nobody twice."""
    with Witness(longhorn.cluster.kubeconfig, longhorn.namespace) as witness:
        with Killer(crowd, number, pause=_SOON, most=4) as killer:
            longhorn.create(*(image(f"i{number}-{each}", 20, copies=2) for each in range(14)))
            longhorn.until("the room is taken", lambda: killer.killed and _count(longhorn) >= 18, _SETTLE_SECONDS)
        longhorn.until("all is settled", lambda: not unsettled(longhorn) and _count(longhorn) == 20, _SETTLE_SECONDS)
    assert (witness.faults, witness.relists) == ([], 1), "or versions may have been missed"
    return _end(longhorn, witness, killer)


def expansion_round(longhorn: Longhorn, crowd: list[Process], number: int) -> str:
    """Ten volumes of two replicas each want 15 Gi more on disks that have room for three of their five: wholly or not at all."""
    names = [f"v{number}-{each}" for each in range(10)]
    longhorn.create(*_spread(names))
    longhorn.create(*(builders.volume(name, 10, locality="disabled", numberOfReplicas=2) for name in names))
    for name in names:
        longhorn.wait_allocated(name)
    with Witness(longhorn.cluster.kubeconfig, longhorn.namespace) as witness:
        with Killer(crowd, number, pause=_SOON, most=4) as killer:
            for name in names:
                longhorn.patch(LONGHORN_VOLUMES, name, {"spec": {"size": str(25 * GI)}})
            longhorn.until("some have grown", lambda: killer.killed and _grown(longhorn), _SETTLE_SECONDS)
        longhorn.until(
            "all have grown or failed", lambda: not unsettled(longhorn) and _decided(longhorn), _SETTLE_SECONDS
        )
    assert (witness.faults, witness.relists) == ([], 1), "or versions may have been missed"
    assert all(sum(disk.held.values()) <= 100 * GI for disk in disks(longhorn).values())
    grown = len(_grown(longhorn))
    assert 0 < grown <= 6
    return f"{grown} of 10 grew, {_end(longhorn, witness, killer)}"


def _end(longhorn: Longhorn, witness: Witness, killer: Killer) -> str:
    assert killer.killed > 0
    remove_everything(longhorn)
    return f"{witness.grants} grants, {witness.rejections} rejections, {killer.killed} kills"


def _count(longhorn: Longhorn) -> int:
    return sum(len(disk.held) for disk in disks(longhorn).values())


def _spread(names: Iterable[str]) -> list[Object]:
    """Two replicas each, of 10 Gi, evenly on the four nodes."""
    return [
        replica(f"{name}-r{side}", name, 10, f"n{(number + side) % 4 + 1}")
        for number, name in enumerate(names)
        for side in (0, 1)
    ]


def _grown(longhorn: Longhorn) -> list[str]:
    return [name for name, (sizes, _) in growth(longhorn).items() if sizes == {25}]


def _decided(longhorn: Longhorn) -> bool:
    """Whether each volume has grown with both replicas, or is told that it cannot and has both as they were."""
    return all(
        (sizes, reason) in (({25}, ""), ({10}, "ExpansionRejected")) for sizes, reason in growth(longhorn).values()
    )


def naive_rounds(longhorn: Longhorn) -> dict[str, dict[str, int]]:
    """The same loads, written by who looks at the nodes' status and takes what it says: Gi too many, by node."""
    over = {}
    with NodeStatus(longhorn) as status:
        longhorn.add_volumes([f"v{each}" for each in range(30)], 10, replicas=2)
        compete(longhorn, list(longhorn.items(LONGHORN_REPLICAS).values()), take_replica)
        over["replicas"] = over_allocated(longhorn)
        _clear(longhorn, status)
        longhorn.create(*(image(f"i{each}", 20, copies=2) for each in range(14)))
        compete(longhorn, list(longhorn.items(LONGHORN_BACKING_IMAGES).values()), take_copies)
        over["backing images"] = over_allocated(longhorn)
        _clear(longhorn, status)
        names = [f"w{each}" for each in range(10)]
        longhorn.create(*_spread(names), *(builders.volume(name, 25) for name in names))
        status.write()
        compete(longhorn, list(longhorn.items(LONGHORN_VOLUMES).values()), growing_to(25))
        over["expansions"] = over_allocated(longhorn)
    return over


def _clear(longhorn: Longhorn, status: NodeStatus) -> None:
    """Deletes everything at once; nobody else works here."""
    for kind in (LONGHORN_VOLUMES, LONGHORN_REPLICAS, LONGHORN_BACKING_IMAGES):
        for name in longhorn.items(kind):
            longhorn.patch(kind, name, {"metadata": {"finalizers": None}})
        longhorn.delete_all(kind)
    longhorn.until("all is gone", lambda: not longhorn.items(LONGHORN_VOLUMES))
    status.write()


def pods_round(rig: Rig, longhorn: Longhorn, first: Process) -> None:
    """Four pods with four local volumes each, on four nodes with room for one pod; the controller that leads is killed meanwhile."""
    with Witness(rig.cluster.kubeconfig, longhorn.namespace) as witness:
        rig.create(statefulset("many", group="db", replicas=4, claims=4, size="90Gi"))
        longhorn.until("something is granted", lambda: witness.grants > 0)
        first.kill()
        rig.until("the pods are ready", lambda: rig.ready("many", 4), 120)
        assert sorted(rig.nodes_of("many").values()) == [f"db-{number}" for number in range(1, 5)]
        longhorn.until("all is settled", lambda: not unsettled(longhorn))
        assert (rig.misplaced("many"), rig.overfull()) == ([], [])
        assert (rig.status()["overbooked"], rig.status()["ungranted"]) == ([], [])

        grown = {"spec": {"resources": {"requests": {"storage": "110Gi"}}}}
        rig.cluster.api.patch(CLAIMS.path("default", "data-0-many-0"), grown)
        path = CLAIMS.path("default", "data-0-many-0")
        rig.until(
            "the claim has grown",
            lambda: parse_bytes(rig.cluster.api.get(path)["status"]["capacity"]["storage"]) == 110 * GI,
        )
        rig.cluster.api.patch(path, {"metadata": {"annotations": {"simulator/write": "60Gi"}}})
        home = rig.nodes_of("many")["many-0"]
        rig.until("the disk says that it is over-allocated", lambda: "OverAllocated" in longhorn.refusals(home))
    assert (witness.faults, witness.relists) == ([], 1), "or versions may have been missed"
    rig.remove("many")
    longhorn.until("nothing is held", lambda: not any(disk.held or disk.asked for disk in disks(longhorn).values()))
