"""The DiskSchedule controllers on a real API server: contention, a foreign writer, and a large cluster.

`python -m tests.bench disk-schedules [--section burst|foreign|large] [--scale 1.0]` prints one row per figure, with its goal.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.kube.resources import DISK_SCHEDULES, LONGHORN_REPLICAS, LONGHORN_VOLUMES, Resource
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from scheduler_core.convert.disk_schedule import with_status
from scheduler_core.model.disk_schedule import Allocation, AllocationState, DiskScheduleStatus
from scheduler_core.model.kube import Condition
from tests import builders
from tests.bench.http import cpu_seconds, resident_mb
from tests.builders import GI, Object
from tests.e2e.disk_schedule import ACCOUNT, LONGHORN, Longhorn, install, replica
from tests.e2e.objects import condition_of
from tests.e2e.repeated import Repeated

_WRITES = ("create", "update", "patch", "delete", "get", "list")
_POSTING = 16


def main(
    section: Annotated[list[str] | None, typer.Option(help="burst, foreign, large; all if none is given")] = None,
    scale: Annotated[float, typer.Option(help="size of the large cluster: 1 is 1,000 disks and 10,000 volumes")] = 1.0,
) -> None:
    """Measures the DiskSchedule controllers and prints a table."""
    print("| measured | goal | value |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder, DevCluster(Path(folder), ClusterOptions(audit=True)) as cluster:
        account = install(cluster)
        for name in section or _SECTIONS:
            longhorn = Longhorn(cluster, account)
            for measured, goal, value in _SECTIONS[name](longhorn, scale):
                print(f"| {measured} | {goal} | {value} |", flush=True)
            longhorn.stop()


Rows = Iterator[tuple[str, str, str]]


def _calls(longhorn: Longhorn) -> Counter[tuple[str, str, int]]:
    """The controllers' calls in a namespace by verb, resource and status, without the Lease and watches."""
    calls: Counter[tuple[str, str, int]] = Counter()
    user = f"system:serviceaccount:{LONGHORN}:{ACCOUNT}"
    for event in longhorn.cluster.audit_events():
        reference = event.get("objectRef") or {}
        if event["user"]["username"] != user or reference.get("namespace", "") != longhorn.namespace:
            continue
        if event["verb"] in _WRITES and reference.get("resource") != "leases":
            calls[event["verb"], reference.get("resource", ""), event["responseStatus"]["code"]] += 1
    return calls


def _placed(longhorn: Longhorn, prefix: str) -> int:
    return sum(
        condition_of(raw, "DiskAllocation").get("status") == "True"
        for name, raw in longhorn.items(LONGHORN_VOLUMES).items()
        if name.startswith(prefix)
    )


def _burst(longhorn: Longhorn, _scale: float) -> Rows:
    """500 volumes of one replica over 50 disks that hold eleven each."""
    longhorn.add_nodes({f"n{number:02}": 110.0 for number in range(50)})
    longhorn.start("one", "--no-leader-elect")
    longhorn.wait_ready()
    longhorn.until("the disks are there", lambda: len(longhorn.items(DISK_SCHEDULES)) == 50)
    before = _calls(longhorn)
    began = time.monotonic()
    longhorn.add_volumes([f"v{number}" for number in range(500)], 10)
    longhorn.until("all are allocated", lambda: _placed(longhorn, "v") == 500, 300)
    seconds = time.monotonic() - began
    calls = _calls(longhorn) - before
    updates = sum(count for (verb, kind, _), count in calls.items() if (verb, kind) == ("update", "diskschedules"))
    conflicts = calls["update", "diskschedules", 409]
    yield "burst of 500 over 50 disks: seconds", "", f"{seconds:.1f}"
    ratio = f"{conflicts / updates:.3f} ({conflicts}/{updates})"
    yield "burst: conflicts of all PUTs of DiskSchedules", "≤ 0.05", ratio
    yield "burst: calls per allocation", "≤ 6", f"{sum(calls.values()) / 500:.2f}"


def _foreign_writer(longhorn: Longhorn, _scale: float) -> Rows:
    """A disk's DiskSchedule is written 20 times a second; ten volumes ask for its bytes."""
    longhorn.add_nodes({"n1": 1000.0})
    longhorn.start("one", "--no-leader-elect")
    longhorn.wait_ready()
    longhorn.until("the disk is there", lambda: longhorn.schedulable("n1-disk-1").get("status") == "True")
    written: list[float] = []

    def write() -> None:
        written.append(time.monotonic())
        body = {"metadata": {"annotations": {"example.com/count": str(len(written))}}}
        longhorn.patch(DISK_SCHEDULES, "n1-disk-1", body)

    longest = 0.0
    with Repeated(write, lambda: max(0.0, 0.05 - (time.monotonic() - written[-1])) if written else 0.0):
        for number in range(10):
            began = time.monotonic()
            longhorn.add_volumes([f"v{number}"], 10)
            longhorn.wait_allocated(f"v{number}")
            longest = max(longest, time.monotonic() - began)
    rate = len(written) / (written[-1] - written[0])
    yield f"foreign writer at {rate:.0f}/s: longest allocation of ten, in seconds", "≤ 2", f"{longest:.2f}"


def _large(longhorn: Longhorn, scale: float) -> Rows:
    """1,000 disks, 10,000 volumes and 20,000 replicas, all settled; then a process takes over."""
    disks = int(1000 * scale)
    volumes = int(10_000 * scale)
    _create_settled(longhorn, disks, volumes)
    process = longhorn.start("one", "--no-leader-elect")
    began = time.monotonic()
    longhorn.add_volumes(["first"], 10)
    longhorn.until("the first new volume is allocated", lambda: _is_allocated(longhorn, "first"), 300)
    yield "large: start of a process to the first new grant, in seconds", "≤ 30", f"{time.monotonic() - began:.1f}"
    longest = 0.0
    for number in range(5):
        asked = time.monotonic()
        longhorn.add_volumes([f"during-{number}"], 10)
        longhorn.until("it is allocated", partial(_is_allocated, longhorn, f"during-{number}"), 300)
        longest = max(longest, time.monotonic() - asked)
    depth = 'longhorn_scheduler_extender_disk_schedule_queue_depth{controller="volume"}'
    yield (
        f"large: new claim during the sweep ({longhorn.metric(process, depth):.0f} left), longest of five",
        "≤ 2",
        f"{longest:.2f}",
    )
    longhorn.until("the sweep is over", lambda: longhorn.metric(process, depth) == 0, 600)
    yield "large: the sweep is over after seconds", "", f"{time.monotonic() - began:.1f}"
    before = cpu_seconds(process.pid)
    longhorn.add_volumes([f"new-{number}" for number in range(200)], 10)
    for number in range(200):
        longhorn.until("it is allocated", partial(_is_allocated, longhorn, f"new-{number}"), 300)
    used = (cpu_seconds(process.pid) - before) / 200
    yield "large: processor time per placed replica, in ms", "≤ 5", f"{used * 1000:.1f}"
    yield "large: memory", "", f"{resident_mb(process.pid):.0f} MB"


def _is_allocated(longhorn: Longhorn, volume: str) -> bool:
    return longhorn.allocation(volume).get("status") == "True"


def _create_settled(longhorn: Longhorn, disks: int, volumes: int) -> None:
    nodes = [f"n{number:04}" for number in range(disks)]
    by_disk: dict[str, dict[str, int]] = {node: {} for node in nodes}
    replicas: list[Object] = []
    for number in range(volumes):
        for side in (0, 1):
            node = nodes[(number + side * (disks // 2)) % disks]
            name = f"s{number:05}-r{side}"
            by_disk[node][name] = 10 * GI
            replicas.append(replica(name, f"s{number:05}", 10, node, healthy=True))
    condition = {**builders.condition("DiskAllocation"), "lastTransitionTime": "2026-01-01T00:00:00Z"}
    settled = [
        {**builders.volume(f"s{number:05}", 10, locality="disabled"), "status": {"conditions": [condition]}}
        for number in range(volumes)
    ]
    available = 10.0 * (2 * volumes // disks) + 1000
    longhorn.add_nodes(dict.fromkeys(nodes, available))
    schedules = [_settled_schedule(node, requests, int(available * GI)) for node, requests in by_disk.items()]
    _create(longhorn, DISK_SCHEDULES, schedules)
    _create(longhorn, LONGHORN_REPLICAS, replicas)
    _create(longhorn, LONGHORN_VOLUMES, settled)


def _settled_schedule(node: str, requests: dict[str, int], available: int) -> Object:
    answers = {name: Allocation(AllocationState.SCHEDULED, size) for name, size in requests.items()}
    message = f"Disk disk-1 is ready for scheduling on node {node}"
    status = DiskScheduleStatus(
        replicas=answers,
        storage_scheduled=sum(requests.values()),
        conditions=(Condition("Schedulable", "True", "", message, "2026-01-01T00:00:00Z"),),
        storage_available=available,
    )
    metadata = {"name": f"{node}-disk-1", "finalizers": ["longhorn.io"]}
    spec = {"name": "disk-1", "nodeID": node, "replicas": requests}
    body = {"apiVersion": builders.LONGHORN, "kind": "DiskSchedule", "metadata": metadata, "spec": spec}
    return with_status(json.dumps(body).encode(), status)


def _create(longhorn: Longhorn, resource: Resource, objects: list[Any]) -> None:
    """Creates objects; a call that a busy API server did not answer is repeated."""

    def create(raw: Object) -> None:
        path = resource.path(longhorn.namespace)
        body = {**raw, "metadata": {**raw["metadata"], "namespace": longhorn.namespace}}
        longhorn.until("the object is created", lambda: longhorn.cluster.api.create(path, body))
        if "status" in raw and resource is not LONGHORN_REPLICAS:
            path = resource.path(longhorn.namespace, raw["metadata"]["name"], "status")
            longhorn.until("its status", lambda: longhorn.cluster.api.patch(path, {"status": raw["status"]}))

    with ThreadPoolExecutor(_POSTING) as pool:
        for _ in pool.map(create, objects):
            pass  # an error is raised here


_SECTIONS: dict[str, Callable[[Longhorn, float], Rows]] = {"burst": _burst, "foreign": _foreign_writer, "large": _large}
