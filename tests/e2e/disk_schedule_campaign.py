"""A random campaign against the DiskSchedule controllers on a real API server.

Users create, expand and delete volumes and images; the test plays Longhorn's instances (a replica runs, and an image is copied,
only after its bytes are granted); disks fill up, nodes and disks vanish, some for a moment, UUIDs are replaced; DiskSchedules are deleted, lost, edited and
forged; processes are killed and stopped. Now and then everything comes to rest, and every volume is either placed or says why not.
"""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from app.kube.client import ApiError
from app.kube.resources import (
    DISK_SCHEDULES,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_NODES,
    LONGHORN_REPLICAS,
    LONGHORN_VOLUMES,
    Resource,
)
from devcluster.process import Process
from tests import builders
from tests.builders import GI, Object
from tests.e2e.disk_schedule import Longhorn, image
from tests.e2e.disk_schedule_monitor import DiskScheduleMonitor
from tests.e2e.disk_schedule_rounds import disk_states, placeable_replicas
from tests.e2e.objects import condition_of

NODES = tuple(f"n{number}" for number in range(1, 5))
_REST_SECONDS = 150.0
# More than can be held by then: what runs finds its bytes again, whatever was lost.
_REST_AVAILABLE = 160
_MAX_VOLUMES = 24
_MAX_IMAGES = 5


class Campaign:
    """The operations, and what must hold at rest."""

    def __init__(self, longhorn: Longhorn, processes: list[Process], monitor: DiskScheduleMonitor, seed: int) -> None:
        self.operations = 0  # how many were carried out
        self.kills = 0  # how many processes were killed or stopped
        self._longhorn = longhorn
        self._processes = processes
        self._monitor = monitor
        self._random = random.Random(seed)  # noqa: S311 # a seed makes it repeatable
        self._numbers = itertools.count()
        self._paused: dict[Process, float] = {}
        # When a node or its disk, which is missing for a moment, is there again.
        self._blinking: dict[str, float] = {}
        self._choices: list[Callable[[], None]] = [
            *[self.create_volume] * 5,
            *[self.delete_volume] * 4,
            *[self.expand_volume] * 3,
            *[self.run_replicas] * 5,
            *[self.create_image] * 1,
            *[self.delete_image] * 1,
            *[self.copy_images] * 2,
            *[self.fill_disk] * 4,
            *[self.kill_process] * 1,
            *[self.stop_process] * 1,
            *[self.forge_status] * 2,
            *[self.edit_requests] * 2,
            *[self.delete_disk_schedule] * 2,
            *[self.lose_disk_schedule] * 2,
            *[self.remove_node] * 1,
            *[self.replace_uuid] * 1,
            *[self.blink_node] * 3,
            *[self.blink_disk] * 3,
            *[self.restore_nodes] * 3,
        ]

    def run(self, operations: int) -> None:
        """Carries out operations; one that another writer has overtaken does nothing."""
        for _ in range(operations):
            now = time.monotonic()
            self._resume_paused(now)
            operation = self._random.choice(self._choices)
            try:
                self._end_blinks(now)
                operation()
            except ApiError as error:
                if not (error.conflict or error.not_found or error.status == 422):
                    raise
            self.operations += 1

    def create_volume(self) -> None:
        """A volume of one or two replicas, perhaps from an image that may not exist."""
        if len(self._items(LONGHORN_VOLUMES)) < _MAX_VOLUMES:
            image_name = self._random.choice(["", "", "", "missing", *sorted(self._items(LONGHORN_BACKING_IMAGES))])
            name = f"{self._random.choice('az')}{next(self._numbers)}"
            size = self._random.randint(2, 30)
            self._longhorn.add_volumes([name], size, self._random.randint(1, 2), backingImage=image_name)

    def delete_volume(self) -> None:
        if volumes := self._items(LONGHORN_VOLUMES):
            self._delete_volume(self._random.choice(sorted(volumes)))

    def expand_volume(self) -> None:
        """To more, or back to what its replicas have."""
        if volumes := self._items(LONGHORN_VOLUMES):
            name = self._random.choice(sorted(volumes))
            sizes = [int(raw["spec"]["volumeSize"]) for raw in self._replicas_of(name)]
            least = max(sizes, default=2 * GI)
            size = self._random.choice([least, least + self._random.randint(1, 20) * GI])
            self._longhorn.patch(LONGHORN_VOLUMES, name, {"spec": {"size": str(size)}})

    def run_replicas(self) -> None:
        """Every replica runs whose bytes are granted, as Longhorn would start it."""
        schedules = self._items(DISK_SCHEDULES)
        for name, raw in self._items(LONGHORN_REPLICAS).items():
            answers = (schedules.get(raw["spec"]["diskID"], {}).get("status") or {}).get("replicas") or {}
            granted = answers.get(name, {}).get("scheduledSize", 0) >= int(raw["spec"]["volumeSize"])
            if granted and not raw["spec"].get("healthyAt") and self._random.random() < 0.5:
                self._start(name, raw)

    def _start(self, name: str, raw: Object) -> None:
        """Starts a replica at the version that was read, unless its DiskSchedule was lost since."""
        uuid = raw["spec"]["diskID"]
        if self._longhorn.status(uuid).get("replicas", {}).get(name, {}).get("scheduledSize", 0):
            version = {"resourceVersion": raw["metadata"]["resourceVersion"]}
            body = {"metadata": version, "spec": {"healthyAt": "2026-01-01T00:00:00Z"}}
            self._longhorn.patch(LONGHORN_REPLICAS, name, body)

    def create_image(self) -> None:
        if len(self._items(LONGHORN_BACKING_IMAGES)) < _MAX_IMAGES:
            copies = self._random.randint(1, 2)
            self._longhorn.create(image(f"i{next(self._numbers)}", self._random.randint(2, 20), copies))

    def delete_image(self) -> None:
        used = {raw["spec"].get("backingImage") for raw in self._items(LONGHORN_VOLUMES).values()}
        if unused := sorted(self._items(LONGHORN_BACKING_IMAGES).keys() - used):
            self._longhorn.delete(LONGHORN_BACKING_IMAGES, self._random.choice(unused))

    def copy_images(self) -> None:
        """Every copy is made whose bytes are granted."""
        schedules = self._items(DISK_SCHEDULES)
        for name, raw in self._items(LONGHORN_BACKING_IMAGES).items():
            copied = (raw.get("status") or {}).get("diskFileStatusMap") or {}
            for uuid in raw["spec"].get("diskFileSpecMap") or {}:
                answers = (schedules.get(uuid, {}).get("status") or {}).get("backingImages") or {}
                if uuid not in copied and answers.get(name, {}).get("scheduledSize", 0):
                    body = {"status": {"diskFileStatusMap": {uuid: {"state": "ready"}}}}
                    self._longhorn.patch(LONGHORN_BACKING_IMAGES, name, body, "status")

    def fill_disk(self) -> None:
        """Data is written, or removed."""
        self._longhorn.set_available(self._random.choice(NODES), self._random.randint(30, 130))

    def kill_process(self) -> None:
        """A process is killed and starts again."""
        process = self._random.choice(self._processes)
        self._resume(process)
        process.kill()
        process.start(wait=False)
        self.kills += 1

    def stop_process(self) -> None:
        """A process stands still for a while, and then goes on with what it has read."""
        process = self._random.choice(self._processes)
        if process not in self._paused and process.running:
            process.pause()
            self._paused[process] = time.monotonic() + self._random.uniform(0.2, 2)
            self.kills += 1

    def forge_status(self) -> None:
        """Answers are removed, or the sum is wrong."""
        if schedules := self._items(DISK_SCHEDULES):
            uuid = self._random.choice(sorted(schedules))
            answers = (schedules[uuid].get("status") or {}).get("replicas") or {}
            wiped: Object = {"replicas": dict.fromkeys(answers)}
            forged: Object = self._random.choice([wiped, {"storageScheduled": 1, "conditions": None}])
            self._forge(uuid, {"status": forged}, "status")

    def edit_requests(self) -> None:
        """A request without an object is added, or one with an object removed."""
        if schedules := self._items(DISK_SCHEDULES):
            uuid = self._random.choice(sorted(schedules))
            names = sorted(schedules[uuid]["spec"].get("replicas") or {})
            request = (
                {"ghost": 5 * GI} if not names or self._random.random() < 0.5 else {self._random.choice(names): None}
            )
            self._forge(uuid, {"spec": {"replicas": request}})

    def delete_disk_schedule(self) -> None:
        if schedules := self._items(DISK_SCHEDULES):
            self._longhorn.delete(DISK_SCHEDULES, self._random.choice(sorted(schedules)))

    def lose_disk_schedule(self) -> None:
        """Deleted without its finalizer."""
        if schedules := self._items(DISK_SCHEDULES):
            uuid = self._random.choice(sorted(schedules))
            self._longhorn.patch(DISK_SCHEDULES, uuid, {"metadata": {"finalizers": None}})
            self._longhorn.delete(DISK_SCHEDULES, uuid)

    def remove_node(self) -> None:
        self._longhorn.delete(LONGHORN_NODES, self._random.choice(NODES))

    def replace_uuid(self) -> None:
        """A node reports another disk under the old name."""
        node = self._random.choice(NODES)
        status = {"diskStatus": {"disk-1": {"diskUUID": f"{node}-disk-other"}}}
        self._longhorn.patch(LONGHORN_NODES, node, {"status": status}, "status")

    def blink_node(self) -> None:
        node = self._random.choice(NODES)
        self._longhorn.delete(LONGHORN_NODES, node)
        self._blinking[node] = time.monotonic() + self._random.uniform(0.1, 2.5)

    def blink_disk(self) -> None:
        """A node's status does not list its disk for a moment."""
        node = self._random.choice(NODES)
        self._longhorn.patch(LONGHORN_NODES, node, {"status": {"diskStatus": {"disk-1": None}}}, "status")
        self._blinking[node] = time.monotonic() + self._random.uniform(0.1, 2.5)

    def _end_blinks(self, now: float) -> None:
        for node in [node for node, until in self._blinking.items() if until <= now]:
            del self._blinking[node]
            self._restore_node(node, self._items(LONGHORN_NODES).get(node))

    def restore_nodes(self) -> None:
        nodes = self._items(LONGHORN_NODES)
        for node in NODES:
            self._restore_node(node, nodes.get(node))

    def _restore_node(self, node: str, current: Object | None) -> None:
        wanted = builders.longhorn_node(node, {"disk-1": builders.disk(100_000, available=100)})
        if current is None:
            self._longhorn.create(wanted)
            return
        disk = (current.get("status") or {}).get("diskStatus", {}).get("disk-1", {})
        if disk.get("diskUUID") != f"{node}-disk-1":
            self._longhorn.patch(LONGHORN_NODES, node, {"status": wanted["status"]}, "status")

    def start_over(self) -> None:
        """All processes end, all DiskSchedules are lost, and the processes start beside what runs."""
        self._resume_paused(float("inf"))
        for process in self._processes:
            process.kill()
        for uuid in self._items(DISK_SCHEDULES):
            self._longhorn.patch(DISK_SCHEDULES, uuid, {"metadata": {"finalizers": None}})
        self._longhorn.delete_all(DISK_SCHEDULES)
        for process in self._processes:
            process.start(wait=False)
        self.kills += len(self._processes)

    def check_rest(self) -> None:
        """Lets everything come to rest, and asserts what must hold then."""
        self._resume_paused(float("inf"))
        self.restore_nodes()
        for node in NODES:
            self._longhorn.set_available(node, _REST_AVAILABLE)
        deadline = time.monotonic() + _REST_SECONDS
        while violations := self.violations():
            assert time.monotonic() < deadline, f"never at rest: {violations}; {self._longhorn.summary()}"
            time.sleep(0.5)
        assert not self._monitor.faults, self._monitor.faults

    def violations(self) -> list[str]:
        """What does not hold now, as sentences; at rest nothing."""
        replicas = self._items(LONGHORN_REPLICAS)
        images = self._items(LONGHORN_BACKING_IMAGES)
        schedules = self._items(DISK_SCHEDULES)
        found: list[str] = []
        for uuid, disk in disk_states(self._longhorn).items():
            found += [
                f"{uuid}: {name} is requested and not there" for name in disk.requested.keys() - disk.present.keys()
            ]
            found += [
                f"{uuid}: {name} is granted and not requested" for name in disk.granted.keys() - disk.requested.keys()
            ]
            if f"{uuid}" in {f"{node}-disk-1" for node in NODES} and disk.present.keys() != disk.granted.keys():
                found.append(f"{uuid}: {sorted(disk.present.keys() ^ disk.granted.keys())} without answer")
        placeable = set(placeable_replicas(self._longhorn))
        for name, raw in self._items(LONGHORN_VOLUMES).items():
            own = [each for each in replicas.values() if each["spec"]["volumeName"] == name]
            condition = condition_of(raw, "DiskAllocation")
            if condition.get("status") == "True":
                found += _lies(name, raw, own, schedules)
            elif not _is_true_reason(condition, raw, own, (images, schedules, placeable)):
                found.append(f"{name} says {condition.get('reason')}: {condition.get('message')}")
        return found

    def _delete_volume(self, name: str) -> None:
        for raw in self._replicas_of(name):
            self._longhorn.delete(LONGHORN_REPLICAS, raw["metadata"]["name"])
        self._longhorn.delete(LONGHORN_VOLUMES, name)

    def _replicas_of(self, volume: str) -> list[Object]:
        return [raw for raw in self._items(LONGHORN_REPLICAS).values() if raw["spec"]["volumeName"] == volume]

    def _items(self, resource: Resource) -> dict[str, Object]:
        return self._longhorn.items(resource)

    def _forge(self, uuid: str, body: Any, subresource: str = "") -> None:
        path = DISK_SCHEDULES.path(self._longhorn.namespace, uuid, subresource)
        version = self._longhorn.cluster.api.patch(path, body)["metadata"]["resourceVersion"]
        self._monitor.forged.add(version)

    def _resume_paused(self, now: float) -> None:
        for process in [each for each, until in self._paused.items() if until <= now]:
            self._resume(process)

    def _resume(self, process: Process) -> None:
        if self._paused.pop(process, None) is not None:
            process.resume()


def _lies(name: str, volume: Object, replicas: list[Object], schedules: dict[str, Object]) -> list[str]:
    """What is missing although the volume says that it is allocated."""
    found: list[str] = []
    wanted = volume["spec"].get("backingImage")
    for raw in replicas:
        uuid = raw["spec"]["diskID"]
        status = schedules.get(uuid, {}).get("status") or {}
        answer = (status.get("replicas") or {}).get(raw["metadata"]["name"], {})
        if answer.get("scheduledSize", 0) < int(raw["spec"]["volumeSize"]):
            found.append(f"{name} says True, and {raw['metadata']['name']} holds {answer} on {uuid!r}")
        if wanted and not (status.get("backingImages") or {}).get(wanted, {}).get("scheduledSize"):
            found.append(f"{name} says True, and image {wanted} holds nothing on {uuid!r}")
        if uuid not in {f"{node}-disk-1" for node in NODES}:
            found.append(f"{name} says True, and disk {uuid!r} is gone")
    return found


def _is_true_reason(
    condition: Object,
    volume: Object,
    replicas: list[Object],
    cluster: tuple[dict[str, Object], dict[str, Object], set[str]],
) -> bool:
    """Whether a volume may say at rest that it is not allocated."""
    images, _, placeable = cluster
    wanted = volume["spec"].get("backingImage")
    match condition.get("reason"):
        case "BackingImageMissing":
            return wanted not in images
        case "NoDiskWithRoom":
            # With an image more is needed than the replica's bytes.
            return bool(wanted) or not any(raw["metadata"]["name"] in placeable for raw in replicas)
        case "AllocationRejected":
            return any(raw["spec"]["diskID"] not in {f"{node}-disk-1" for node in NODES} for raw in replicas)
        case "ExpansionRejected":
            return any(int(raw["spec"]["volumeSize"]) < int(volume["spec"]["size"]) for raw in replicas)
        case _:
            return False
