"""Competition for the bytes of a few disks: by controllers that are killed, and by writers who only look at the nodes' status."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self

from app.kube.resources import (
    DISK_SCHEDULES,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_NODES,
    LONGHORN_REPLICAS,
    LONGHORN_VOLUMES,
)
from devcluster import Process
from tests.builders import GI, Object
from tests.e2e.disk_schedule import Longhorn

WRITERS: Final = 8
# How late the naive writers' node status is. Longhorn's own may be later by far.
_LAG_SECONDS: Final = 0.5
# For each other; none keeps the others waiting unless it has failed.
_PATIENCE_SECONDS: Final = 30.0


class Killer:
    """Kills one process after the other at odd moments, at most `most` times, and starts each again, while entered."""

    def __init__(
        self, processes: Sequence[Process], seed: int, pause: tuple[float, float] = (0.5, 1.5), most: int = 20
    ) -> None:
        self.killed = 0
        self._processes = processes
        self._random = random.Random(seed)  # noqa: S311 # a seed makes it repeatable
        self._pause = pause
        self._most = most
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._kill, name="killer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _kill(self) -> None:
        while self.killed < self._most and not self._end.wait(self._random.uniform(*self._pause)):
            process = self._random.choice(self._processes)
            process.kill()
            process.start(wait=False)
            self.killed += 1


@dataclass(frozen=True, slots=True)
class Held:
    """One disk at rest: what is asked and held there, by name, and what is there, in bytes."""

    asked: Mapping[str, int]
    held: Mapping[str, int]
    there: Mapping[str, int]
    available: int


def disks(longhorn: Longhorn) -> dict[str, Held]:
    """Every disk by its UUID; the names of images begin with "image/"."""
    there: dict[str, dict[str, int]] = {}
    for name, raw in longhorn.items(LONGHORN_REPLICAS).items():
        there.setdefault(raw["spec"]["diskID"], {})[name] = int(raw["spec"]["volumeSize"])
    for name, raw in longhorn.items(LONGHORN_BACKING_IMAGES).items():
        for uuid in raw["spec"].get("diskFileSpecMap") or {}:
            there.setdefault(uuid, {})[f"image/{name}"] = raw["status"]["realSize"]
    return {
        uuid: Held(
            asked=_named(raw["spec"].get("replicas"), raw["spec"].get("backingImages")),
            held={
                name: entry["scheduledSize"]
                for name, entry in _named(
                    (raw.get("status") or {}).get("replicas"), (raw.get("status") or {}).get("backingImages")
                ).items()
                if entry["state"] == "scheduled"
            },
            there=there.get(uuid, {}),
            available=(raw.get("status") or {}).get("storageAvailable", 0),
        )
        for uuid, raw in longhorn.items(DISK_SCHEDULES).items()
    }


def _named(replicas: Mapping[str, Any] | None, images: Mapping[str, Any] | None) -> dict[str, Any]:
    return {**(replicas or {}), **{f"image/{name}": each for name, each in (images or {}).items()}}


def unsettled(longhorn: Longhorn) -> list[str]:
    """What is lost, counted twice or left behind: empty at rest. Every byte held is of one thing that is on the disk, and the reverse."""
    return [
        f"{uuid}: asked {sorted(disk.asked.items())}, held {sorted(disk.held.items())}, there {sorted(disk.there.items())}"
        for uuid, disk in disks(longhorn).items()
        if not disk.asked == disk.held == disk.there
    ]


def idle(longhorn: Longhorn) -> list[str]:
    """Replicas without a place although some disk has room for them, on a node where none of their volume is."""
    replicas = longhorn.items(LONGHORN_REPLICAS)
    free = {uuid: disk.available - sum(disk.held.values()) for uuid, disk in disks(longhorn).items()}
    found = []
    for name, raw in replicas.items():
        volume, size = raw["spec"]["volumeName"], int(raw["spec"]["volumeSize"])
        siblings = {each["spec"]["diskID"] for each in replicas.values() if each["spec"]["volumeName"] == volume}
        if not raw["spec"]["diskID"] and any(room >= size for uuid, room in free.items() if uuid not in siblings):
            found.append(name)
    return found


def growth(longhorn: Longhorn) -> dict[str, tuple[set[int], str]]:
    """By volume, the sizes of its replicas in Gi and the reason of its condition."""
    sizes: dict[str, set[int]] = {}
    for raw in longhorn.items(LONGHORN_REPLICAS).values():
        sizes.setdefault(raw["spec"]["volumeName"], set()).add(int(raw["spec"]["volumeSize"]) // GI)
    return {
        name: (
            sizes.get(name, set()),
            str(longhorn.condition(LONGHORN_VOLUMES, name, "DiskAllocation").get("reason", "")),
        )
        for name in longhorn.items(LONGHORN_VOLUMES)
    }


def remove_everything(longhorn: Longhorn) -> None:
    """Deletes volumes, replicas and images, as users do; returns once nothing is held any more."""
    for kind in (LONGHORN_VOLUMES, LONGHORN_REPLICAS, LONGHORN_BACKING_IMAGES):
        longhorn.delete_all(kind)
    longhorn.until(
        "everything is gone",
        lambda: not longhorn.items(LONGHORN_REPLICAS) and not longhorn.items(LONGHORN_BACKING_IMAGES),
        90,
    )
    longhorn.until(
        "nothing is asked or held",
        lambda: all(not disk.asked and not disk.held for disk in disks(longhorn).values()),
        90,
    )


class NodeStatus:
    """Longhorn's node controller: writes now and then what is on each disk, while entered."""

    def __init__(self, longhorn: Longhorn) -> None:
        self._longhorn = longhorn
        self._writing = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="node status")

    def __enter__(self) -> Self:
        self.write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _write_on(self) -> None:
        while not self._end.wait(_LAG_SECONDS):
            self.write()

    def write(self) -> None:
        """Once; what is there when this is called is in the status when it returns."""
        with self._writing:
            for name, total in taken(self._longhorn).items():
                status = {"diskStatus": {"disk-1": {"storageScheduled": total}}}
                self._longhorn.patch(LONGHORN_NODES, name, {"status": status}, "status")


def taken(longhorn: Longhorn) -> dict[str, int]:
    """By node, the bytes of everything that is on its disk."""
    total: Counter[str] = Counter(dict.fromkeys(longhorn.items(LONGHORN_NODES), 0))
    for raw in longhorn.items(LONGHORN_REPLICAS).values():
        if raw["spec"]["nodeID"]:
            total[raw["spec"]["nodeID"]] += int(raw["spec"]["volumeSize"])
    for raw in longhorn.items(LONGHORN_BACKING_IMAGES).values():
        for uuid in raw["spec"].get("diskFileSpecMap") or {}:
            total[uuid.removesuffix("-disk-1")] += raw["status"]["realSize"]
    return dict(total)


def over_allocated(longhorn: Longhorn) -> dict[str, int]:
    """By node, how many Gi more are on its disk than are available; nodes with enough are left out."""
    nodes = longhorn.items(LONGHORN_NODES)
    over = {
        name: (total - nodes[name]["status"]["diskStatus"]["disk-1"]["storageAvailable"]) // GI
        for name, total in taken(longhorn).items()
    }
    return {name: more for name, more in over.items() if more > 0}


Take = Callable[[Longhorn, Object, dict[str, int]], None]
"""Looks at the room on each node, by the node's status, and takes some for an object if it fits."""


def compete(longhorn: Longhorn, objects: Sequence[Object], take: Take) -> None:
    """Eight writers share some objects; each checks the nodes' status before each of its objects, and takes what it sees.

    All look before any of them takes: that is the race, and it must not depend on how fast the machine is.
    """
    looked = threading.Barrier(WRITERS, timeout=_PATIENCE_SECONDS)

    def work(number: int) -> None:
        for first in range(0, len(objects), WRITERS):
            room = _room(longhorn)
            looked.wait()
            for raw in objects[first:][number : number + 1]:
                take(longhorn, raw, room)

    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in pool.map(work, range(WRITERS)):
            pass  # an error is raised here


def _room(longhorn: Longhorn) -> dict[str, int]:
    found = {}
    for name, raw in longhorn.items(LONGHORN_NODES).items():
        disk = raw["status"]["diskStatus"]["disk-1"]
        found[name] = disk["storageAvailable"] - disk["storageScheduled"]
    return found


def take_replica(longhorn: Longhorn, raw: Object, room: dict[str, int]) -> None:
    """The node with the most room, if it is enough."""
    node = max(sorted(room), key=lambda name: room[name])
    if room[node] >= int(raw["spec"]["volumeSize"]):
        place = {"nodeID": node, "diskID": f"{node}-disk-1"}
        longhorn.patch(LONGHORN_REPLICAS, raw["metadata"]["name"], {"spec": place})


def take_copies(longhorn: Longhorn, raw: Object, room: dict[str, int]) -> None:
    """As many nodes with enough room as copies are wanted."""
    fitting = [
        name for name in sorted(room, key=lambda name: (-room[name], name)) if room[name] >= raw["status"]["realSize"]
    ]
    files: dict[str, Object] = {f"{name}-disk-1": {} for name in fitting[: raw["spec"]["minNumberOfCopies"]]}
    longhorn.patch(LONGHORN_BACKING_IMAGES, raw["metadata"]["name"], {"spec": {"diskFileSpecMap": files}})


def growing_to(size: int) -> Take:
    """A volume's replicas grow to so many Gi if each node has room for the difference."""

    def take(longhorn: Longhorn, raw: Object, room: dict[str, int]) -> None:
        replicas = [
            each for each in longhorn.items(LONGHORN_REPLICAS).values()
            if each["spec"]["volumeName"] == raw["metadata"]["name"]
        ]  # fmt: skip
        if all(room[each["spec"]["nodeID"]] >= size * GI - int(each["spec"]["volumeSize"]) for each in replicas):
            for each in replicas:
                longhorn.patch(LONGHORN_REPLICAS, each["metadata"]["name"], {"spec": {"volumeSize": str(size * GI)}})

    return take
