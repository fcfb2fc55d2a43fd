"""Competition for the bytes of a few disks. The competitors are controllers that are killed, or writers that look only at the nodes'
status.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from app.kube.resources import (
    DISK_SCHEDULES,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_NODES,
    LONGHORN_REPLICAS,
    LONGHORN_VOLUMES,
)
from devcluster.process import Process
from tests.builders import GI, Object
from tests.e2e.disk_schedule import Longhorn
from tests.e2e.repeated import Repeated

WRITERS: Final = 8
# How late the naive writers' node status is. Longhorn's own may be later by far.
_LAG_SECONDS: Final = 0.5
# The writers wait for each other; a longer wait means that one has failed.
_PATIENCE_SECONDS: Final = 30.0


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
    return {
        name: (
            sizes.get(name, set()),
            longhorn.reason(name),
        )
        for name in longhorn.items(LONGHORN_VOLUMES)
    }


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


class NodeStatusWriter(Repeated):
    """Writes periodically what is on each disk, as Longhorn's node controller does. It runs while entered."""

    def __init__(self, longhorn: Longhorn) -> None:
        super().__init__(self.write, lambda: _LAG_SECONDS)
        self._longhorn = longhorn
        self._writing = threading.Lock()

    def write(self) -> None:
        with self._writing:
            for name, total in used_bytes(self._longhorn).items():
                status = {"diskStatus": {"disk-1": {"storageScheduled": total}}}
                self._longhorn.patch(LONGHORN_NODES, name, {"status": status}, "status")


def used_bytes(longhorn: Longhorn) -> dict[str, int]:
    """The bytes on each node's disk."""
    total: Counter[str] = Counter(dict.fromkeys(longhorn.items(LONGHORN_NODES), 0))
    for raw in longhorn.items(LONGHORN_REPLICAS).values():
        if raw["spec"]["nodeID"]:
            total[raw["spec"]["nodeID"]] += int(raw["spec"]["volumeSize"])
    for raw in longhorn.items(LONGHORN_BACKING_IMAGES).values():
        for uuid in raw["spec"].get("diskFileSpecMap") or {}:
            total[uuid.removesuffix("-disk-1")] += raw["status"]["realSize"]
    return dict(total)


def over_allocations(longhorn: Longhorn) -> dict[str, int]:
    """By node, the Gi on its disk beyond its available space. Nodes with enough space are left out."""
    nodes = longhorn.items(LONGHORN_NODES)
    over = {
        name: (total - nodes[name]["status"]["diskStatus"]["disk-1"]["storageAvailable"]) // GI
        for name, total in used_bytes(longhorn).items()
    }
    return {name: more for name, more in over.items() if more > 0}


Take = Callable[[Longhorn, Object, dict[str, int]], None]
"""Places an object if it fits; the arguments are the object and the free bytes by node."""


def compete(longhorn: Longhorn, objects: Sequence[Object], take: Take) -> None:
    """Eight writers place objects by the nodes' status, which they read first. All of them read before any of them
    writes: that is the race, and it must not depend on the machine's speed.
    """
    all_have_read = threading.Barrier(WRITERS, timeout=_PATIENCE_SECONDS)

    def work(number: int) -> None:
        for first in range(0, len(objects), WRITERS):
            room = _free_bytes(longhorn)
            all_have_read.wait()
            for raw in objects[first:][number : number + 1]:
                take(longhorn, raw, room)

    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in pool.map(work, range(WRITERS)):
            pass  # an error is raised here


def _free_bytes(longhorn: Longhorn) -> dict[str, int]:
    free = {}
    for name, raw in longhorn.items(LONGHORN_NODES).items():
        disk = raw["status"]["diskStatus"]["disk-1"]
        free[name] = disk["storageAvailable"] - disk["storageScheduled"]
    return free


def take_replica(longhorn: Longhorn, raw: Object, room: dict[str, int]) -> None:
    node = max(sorted(room), key=lambda name: room[name])
    if room[node] >= int(raw["spec"]["volumeSize"]):
        place = {"nodeID": node, "diskID": f"{node}-disk-1"}
        longhorn.patch(LONGHORN_REPLICAS, raw["metadata"]["name"], {"spec": place})


def take_copies(longhorn: Longhorn, raw: Object, room: dict[str, int]) -> None:
    """Places an image's copies on nodes with enough room."""
    fitting = [
        name for name in sorted(room, key=lambda name: (-room[name], name)) if room[name] >= raw["status"]["realSize"]
    ]
    files: dict[str, Object] = {f"{name}-disk-1": {} for name in fitting[: raw["spec"]["minNumberOfCopies"]]}
    longhorn.patch(LONGHORN_BACKING_IMAGES, raw["metadata"]["name"], {"spec": {"diskFileSpecMap": files}})


def expansion_to(size: int) -> Take:
    """Expands a volume's replicas to some Gi, if each node has the room."""

    def take(longhorn: Longhorn, raw: Object, room: dict[str, int]) -> None:
        replicas = [
            each for each in longhorn.items(LONGHORN_REPLICAS).values()
            if each["spec"]["volumeName"] == raw["metadata"]["name"]
        ]  # fmt: skip
        if all(room[each["spec"]["nodeID"]] >= size * GI - int(each["spec"]["volumeSize"]) for each in replicas):
            for each in replicas:
                longhorn.patch(LONGHORN_REPLICAS, each["metadata"]["name"], {"spec": {"volumeSize": str(size * GI)}})

    return take
