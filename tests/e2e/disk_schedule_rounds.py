"""The proposal's test plan for DiskSchedules, one function per round. Eight controllers compete and are killed."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.kube.resources import CLAIMS, DISK_SCHEDULES, LONGHORN_BACKING_IMAGES, LONGHORN_REPLICAS, LONGHORN_VOLUMES
from devcluster.process import Process
from scheduler_core.model.quantity import parse_bytes
from tests import builders
from tests.builders import GI, Object
from tests.e2e.disk_schedule import Longhorn, image, replica
from tests.e2e.disk_schedule_monitor import DiskScheduleMonitor
from tests.e2e.objects import statefulset
from tests.e2e.repeated import Repeated
from tests.e2e.rig import Rig


class Killer(Repeated):
    """Kills processes at random moments and restarts them, while entered. It kills at most `most` times."""

    def __init__(
        self, processes: Sequence[Process], seed: int, pause: tuple[float, float] = (0.5, 1.5), most: int = 20
    ) -> None:
        chance = random.Random(seed)  # noqa: S311 # a seed makes it repeatable
        super().__init__(self._kill, lambda: chance.uniform(*pause))
        self.killed = 0
        self._processes = processes
        self._chance = chance
        self._most = most

    def _kill(self) -> None:
        if self.killed < self._most:
            process = self._chance.choice(self._processes)
            process.kill()
            process.start(wait=False)
            self.killed += 1


@dataclass(frozen=True, slots=True)
class DiskState:
    """What is requested, granted and present on a disk, in bytes by name."""

    requested: Mapping[str, int]
    granted: Mapping[str, int]
    present: Mapping[str, int]
    available: int


def disk_states(longhorn: Longhorn) -> dict[str, DiskState]:
    """Every disk by its UUID; the names of images begin with "image/"."""
    present: dict[str, dict[str, int]] = {}
    for name, raw in longhorn.items(LONGHORN_REPLICAS).items():
        present.setdefault(raw["spec"]["diskID"], {})[name] = int(raw["spec"]["volumeSize"])
    for name, raw in longhorn.items(LONGHORN_BACKING_IMAGES).items():
        for uuid in raw["spec"].get("diskFileSpecMap") or {}:
            present.setdefault(uuid, {})[f"image/{name}"] = raw["status"]["realSize"]
    return {
        uuid: DiskState(
            requested=_merge(raw["spec"].get("replicas"), raw["spec"].get("backingImages")),
            granted={
                name: entry["scheduledSize"]
                for name, entry in _merge(
                    (raw.get("status") or {}).get("replicas"), (raw.get("status") or {}).get("backingImages")
                ).items()
                if entry["state"] == "scheduled"
            },
            present=present.get(uuid, {}),
            available=(raw.get("status") or {}).get("storageAvailable", 0),
        )
        for uuid, raw in longhorn.items(DISK_SCHEDULES).items()
    }


def _merge(replicas: Mapping[str, Any] | None, images: Mapping[str, Any] | None) -> dict[str, Any]:
    return {**(replicas or {}), **{f"image/{name}": each for name, each in (images or {}).items()}}


def unsettled_disks(longhorn: Longhorn) -> list[str]:
    """Disks on which requested, granted and present bytes differ. At rest there are none: every granted byte belongs to
    one object on the disk, and the reverse.
    """
    return [
        f"{uuid}: requested {sorted(disk.requested.items())}, granted {sorted(disk.granted.items())}, "
        f"present {sorted(disk.present.items())}"
        for uuid, disk in disk_states(longhorn).items()
        if not disk.requested == disk.granted == disk.present
    ]


def placeable_replicas(longhorn: Longhorn) -> list[str]:
    """Unplaced replicas for which a disk has room. The disk must be on a node without another replica of the volume."""
    replicas = longhorn.items(LONGHORN_REPLICAS)
    free = {uuid: disk.available - sum(disk.granted.values()) for uuid, disk in disk_states(longhorn).items()}
    placeable = []
    for name, raw in replicas.items():
        volume = raw["spec"]["volumeName"]
        size = int(raw["spec"]["volumeSize"])
        siblings = {each["spec"]["diskID"] for each in replicas.values() if each["spec"]["volumeName"] == volume}
        if not raw["spec"]["diskID"] and any(room >= size for uuid, room in free.items() if uuid not in siblings):
            placeable.append(name)
    return placeable


def growth(longhorn: Longhorn) -> dict[str, tuple[set[int], str]]:
    """The replicas' sizes in Gi and the condition's reason, by volume."""
    sizes: dict[str, set[int]] = {}
    for raw in longhorn.items(LONGHORN_REPLICAS).values():
        sizes.setdefault(raw["spec"]["volumeName"], set()).add(int(raw["spec"]["volumeSize"]) // GI)
    return {name: (sizes.get(name, set()), longhorn.reason(name)) for name in longhorn.items(LONGHORN_VOLUMES)}


def remove_everything(longhorn: Longhorn) -> None:
    """Deletes volumes, replicas and images; returns once nothing is granted."""
    for kind in (LONGHORN_VOLUMES, LONGHORN_REPLICAS, LONGHORN_BACKING_IMAGES):
        longhorn.delete_all(kind)
    longhorn.until(
        "everything is gone",
        lambda: not longhorn.items(LONGHORN_REPLICAS) and not longhorn.items(LONGHORN_BACKING_IMAGES),
        90,
    )
    longhorn.until(
        "nothing is requested or granted",
        lambda: all(not disk.requested and not disk.granted for disk in disk_states(longhorn).values()),
        90,
    )


DISKS = {f"n{number}": 100.0 for number in range(1, 5)}
# Killed processes come back one after the other, each with a whole interpreter to start.
_SETTLE_SECONDS = 240.0


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
