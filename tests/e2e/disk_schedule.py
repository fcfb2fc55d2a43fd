"""DiskSchedules on a real API server: Longhorn's objects, and controllers as processes.

Longhorn itself does not run. Each test has a namespace, in which only the controllers place anything. The tests write the available
space of the disks.
"""

import asyncio
import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from app.disk_schedule.lifecycle import LEASE
from app.kube.client import ApiError, KubeClient
from app.kube.resources import (
    DISK_SCHEDULES,
    LEASES,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_ENGINE_IMAGES,
    LONGHORN_INSTANCE_MANAGERS,
    LONGHORN_NODES,
    LONGHORN_REPLICAS,
    LONGHORN_SETTINGS,
    LONGHORN_VOLUMES,
    PODS,
    Resource,
)
from devcluster.build import ensure_built
from devcluster.dev_cluster import DevCluster
from devcluster.http_check import http_request
from devcluster.polling import wait_until
from devcluster.process import Process
from devcluster.stack import FAST_LEASE, ROOT
from tests import builders
from tests.builders import GI, Object
from tests.e2e.objects import condition_of, name_of
from tests.e2e.permissions import Call, account_calls, granted_calls
from tests.e2e.rig import Rig, read_metric
from tests.worlds.engines import engine_image, instance_manager
from tests.worlds.service import EXTENDER

ACCOUNT = "longhorn-disk-schedule"
LONGHORN = "longhorn-system"
MANIFESTS = ROOT / "manifests/disk-schedule"
MIRROR = MANIFESTS / "mirror"
CRD = ROOT / "manifests/crd"
_DOCS = ROOT / "docs/disk-schedule.md"
# Far larger than the available space, so that storageAvailable alone decides and Longhorn's own rules never do.
_HUGE = 100_000
_KINDS = {
    resource.kind: resource
    for resource in (
        LONGHORN_NODES,
        LONGHORN_VOLUMES,
        LONGHORN_REPLICAS,
        LONGHORN_BACKING_IMAGES,
        LONGHORN_SETTINGS,
        LONGHORN_ENGINE_IMAGES,
        LONGHORN_INSTANCE_MANAGERS,
    )
}
NO_RESERVE = builders.setting("storage-minimal-available-percentage", "0")
WORKING = "longhorn_scheduler_extender_disk_schedule_working"
_POLL = 0.1
_POSTING = 8
# Eight processes start at the same time as those of another cluster.
_START_SECONDS = 120.0
_Value = TypeVar("_Value")
_names = itertools.count(1)


def install(cluster: DevCluster) -> Path:
    """Installs Longhorn's definitions and the manifests. Returns the kubeconfig of the controllers' ServiceAccount."""
    cluster.apply(ROOT / "simulator/crds")
    cluster.apply(ROOT / "manifests/test-cluster/namespace.yaml")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    cluster.apply(CRD)
    cluster.apply(MANIFESTS)
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    account = cluster.service_account_kubeconfig(LONGHORN, ACCOUNT)
    Longhorn(cluster, account, LONGHORN).wait_served()
    return account


class Longhorn:
    """A namespace with Longhorn's objects, and the controllers that work in it."""

    def __init__(self, cluster: DevCluster, account: Path, namespace: str = "", *, manifests: Path = MANIFESTS) -> None:
        self.cluster = cluster
        self.account = account
        self.namespace = namespace or f"disks-{next(_names)}"
        self.processes: list[Process] = []
        self.ports: dict[str, int] = {}
        if not namespace:
            self._create_namespace(manifests)
            self.create(NO_RESERVE)

    def _create_namespace(self, manifests: Path) -> None:
        self.cluster.kubectl("create", "namespace", self.namespace)
        released = {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        self.cluster.api.create(LEASES.path(self.namespace), released)
        role = list(yaml.safe_load_all((manifests / "role.yaml").read_text()))
        self.cluster.kubectl("-n", self.namespace, "apply", "-f", "-", input=yaml.safe_dump_all(role))

    def wait_served(self) -> None:
        """Waits until the API server lists every kind. It refuses to list a new one until its cache is filled."""
        for resource in (DISK_SCHEDULES, *_KINDS.values()):
            self.until(f"the {resource.plural} are served", partial(self._is_served, resource))

    def _is_served(self, resource: Resource) -> bool:
        self.items(resource)
        return True

    @property
    def command(self) -> list[str]:
        """The command line of a controller in this namespace, without a port."""
        options = ("--kubeconfig", str(self.account), "--longhorn-namespace", self.namespace)
        return [EXTENDER, "disk-schedule", *options]

    def refusal_to_start(self, *arguments: str) -> tuple[int, str]:
        """The exit code of a process that ends at once, and what it says."""
        argv = [*self.command, "--port", "0", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    def start(self, name: str, *arguments: str) -> Process:
        """Starts one more process, without waiting for it."""
        port = self.cluster.free_port()
        argv = [*self.command, "--port", str(port), "--identity", name, *arguments]
        process = self.cluster.spawn(f"{self.namespace}-{name}", argv)
        self.processes.append(process)
        self.ports[process.name] = port
        return process

    def start_crowd(self, count: int = 8) -> list[Process]:
        """Starts processes that all work at the same time, without a Lease. Returns when they are ready."""
        crowd = [self.start(f"controller-{number}", "--no-leader-elect") for number in range(count)]
        self.wait_ready()
        return crowd

    def wait_ready(self) -> None:
        for process in self.processes:
            if process.running:
                self.until(f"{process.name} is ready", partial(self._ready, process), _START_SECONDS)

    def wait_working(self, process: Process) -> None:
        """Waits until a process holds the Lease and reconciles."""
        ready = partial(self._ready, process)
        self.until(f"{process.name} works", lambda: ready() and self.metric(process, WORKING) == 1, _START_SECONDS)

    def _ready(self, process: Process) -> bool:
        return self.get_path(process, "/readyz")[0] == 200

    def get_path(self, process: Process, path: str) -> tuple[int, Any]:
        """Sends a GET to a process; returns status and answer."""
        return http_request(f"{self._url(process)}{path}", None, 15)

    def metric(self, process: Process, name: str) -> float:
        """The value of a metric of a process; `name` includes the labels."""
        return read_metric(self._url(process), name)

    def _url(self, process: Process) -> str:
        return f"http://127.0.0.1:{self.ports[process.name]}"

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

    def create(self, *objects: Object) -> None:
        """Creates objects, several at a time, and writes their status."""
        with ThreadPoolExecutor(_POSTING) as pool:
            for _ in pool.map(self._create, objects):
                pass  # an error is raised here

    def _create(self, raw: Object) -> None:
        resource = _KINDS[raw["kind"]]
        metadata = {**raw["metadata"], "namespace": self.namespace}
        self.cluster.api.create(resource.path(self.namespace), {**raw, "metadata": metadata})
        if "status" in raw:
            path = resource.path(self.namespace, metadata["name"], "status")
            self.cluster.api.patch(path, {"status": raw["status"]})

    def add_nodes(self, available: Mapping[str, float], *, maximum: float = _HUGE) -> None:
        """Adds nodes with one disk each, and what Longhorn needs on them. `available` is in Gi."""
        self.create(
            *(
                builders.longhorn_node(name, {"disk-1": builders.disk(maximum, available=size)})
                for name, size in available.items()
            ),
            *map(instance_manager, available),
            {**engine_image(available), "metadata": {"name": f"engine-{min(available)}"}},
        )

    def set_available(self, node: str, size: float) -> None:
        """Writes the available space, in Gi, of a node's disk."""
        status = {"diskStatus": {"disk-1": {"storageAvailable": int(size * GI)}}}
        self.cluster.api.patch(LONGHORN_NODES.path(self.namespace, node, "status"), {"status": status})

    def add_volumes(self, names: Iterable[str], size: float, replicas: int = 1, **spec: Any) -> None:
        """Adds volumes whose replicas are not placed. All replicas exist before a controller may see the first volume."""
        volumes = [
            builders.volume(name, size, locality="disabled", numberOfReplicas=replicas, **spec) for name in names
        ]
        self.create(
            *(
                replica(f"{raw['metadata']['name']}-r{number}", raw["metadata"]["name"], size)
                for raw in volumes
                for number in range(replicas)
            )
        )
        self.create(*volumes)

    def add_manager(self, name: str) -> None:
        """Adds a pod that looks like longhorn-manager and is never scheduled. On a node that does not exist it would be removed."""
        metadata = {"name": name, "labels": {"app": "longhorn-manager"}}
        spec = {"containers": [{"name": "manager", "image": "longhorn"}], "schedulerName": "none"}
        self.cluster.api.create(PODS.path(self.namespace), {"metadata": metadata, "spec": spec})

    def sizes(self) -> set[int]:
        """The sizes of the replicas in bytes."""
        return {int(raw["spec"]["volumeSize"]) for raw in self.items(LONGHORN_REPLICAS).values()}

    def requested_bytes(self, uuid: str) -> int:
        """The bytes that a DiskSchedule's spec requests for replicas."""
        return sum(self.get(DISK_SCHEDULES, uuid)["spec"]["replicas"].values())

    def dump_longhorn(self) -> str:
        """Longhorn's own objects as a text, which a mirror must not change."""
        kinds = (LONGHORN_NODES, LONGHORN_VOLUMES, LONGHORN_REPLICAS, LONGHORN_BACKING_IMAGES)
        return json.dumps({kind.kind: self.items(kind) for kind in kinds}, sort_keys=True)

    def items(self, resource: Resource) -> dict[str, Object]:
        return {name_of(entry): entry for entry in self.cluster.api.get(resource.path(self.namespace))["items"]}

    def get(self, resource: Resource, name: str) -> Object:
        return dict(self.cluster.api.get(resource.path(self.namespace, name)))

    def patch(self, resource: Resource, name: str, body: Object, subresource: str = "") -> None:
        self.cluster.api.patch(resource.path(self.namespace, name, subresource), body)

    def replace(self, resource: Resource, name: str, body: Object, subresource: str = "") -> Object:
        """Writes a whole object, as a controller does; returns the stored one."""

        async def write() -> Object:
            client = await KubeClient.connect(str(self.cluster.kubeconfig))
            try:
                return dict(json.loads(await client.replace(resource.path(self.namespace, name, subresource), body)))
            finally:
                await client.close()

        return asyncio.run(write())

    def delete(self, resource: Resource, name: str) -> None:
        self.cluster.api.delete(resource.path(self.namespace, name))

    def delete_all(self, resource: Resource) -> None:
        """Deletes all objects of a kind with as few calls as possible. A busy API server gives up after a while; the
        next call deletes the remaining ones.
        """
        path = resource.path(self.namespace)
        self.until(f"the {resource.plural} are deleted", lambda: self.cluster.api.delete(path))

    def find(self, resource: Resource, name: str) -> Object:
        """An object, {} if there is none."""
        try:
            return self.get(resource, name)
        except ApiError as error:
            if not error.not_found:
                raise
            return {}

    def exists(self, resource: Resource, name: str) -> bool:
        return self.find(resource, name) != {}

    def status(self, uuid: str) -> Object:
        """The status of a DiskSchedule, {} without one."""
        return dict(self.find(DISK_SCHEDULES, uuid).get("status") or {})

    def condition(self, resource: Resource, name: str, kind: str) -> Object:
        """A condition of an object, {} without one."""
        return condition_of(self.find(resource, name), kind)

    def schedulable(self, uuid: str) -> Object:
        """The condition Schedulable of a DiskSchedule, {} without one."""
        return self.condition(DISK_SCHEDULES, uuid, "Schedulable")

    def refusals(self, node: str) -> list[str]:
        """The reasons why a node's disks grant nothing, "" for those that do."""
        uuids = [uuid for uuid, raw in self.items(DISK_SCHEDULES).items() if raw["spec"]["nodeID"] == node]
        return [self.schedulable(uuid).get("reason", "") for uuid in uuids]

    def allocation(self, volume: str) -> Object:
        """The condition DiskAllocation of a volume, {} without one."""
        return self.condition(LONGHORN_VOLUMES, volume, "DiskAllocation")

    def reason(self, volume: str) -> str:
        return str(self.allocation(volume).get("reason", ""))

    def wait_allocated(self, *volumes: str) -> None:
        """Waits until all replicas of some volumes have their size granted."""
        for volume in volumes:
            self.until(f"{volume} is allocated", partial(self._is_allocated, volume))

    def _is_allocated(self, volume: str) -> bool:
        return self.allocation(volume).get("status") == "True"

    def until(self, what: str, done: Callable[[], _Value], seconds: float = 60) -> _Value:
        """Waits until `done` returns something true; returns that."""
        return wait_until(what, done, seconds, explain=self.summary, poll=_POLL)

    def summary(self) -> str:
        """The DiskSchedules, for the messages of failures."""
        parts = []
        for name, raw in self.items(DISK_SCHEDULES).items():
            status = raw.get("status") or {}
            parts.append(
                f"{name}: requested {len(raw['spec'].get('replicas', {}))}+{len(raw['spec'].get('backingImages', {}))}, "
                f"{status.get('storageScheduled', 0) // GI}Gi of {status.get('storageAvailable', 0) // GI}Gi"
            )
        return "; ".join(parts)


@contextmanager
def started_controllers(rig: Rig) -> Iterator[Longhorn]:
    """A controller that places the replicas of a rig whose simulator leaves that to DiskSchedules."""
    rig.cluster.apply(CRD)
    rig.cluster.apply(MANIFESTS)
    longhorn = Longhorn(rig.cluster, rig.cluster.service_account_kubeconfig(LONGHORN, ACCOUNT), LONGHORN)
    longhorn.wait_working(longhorn.start("controllers", *FAST_LEASE))
    try:
        yield longhorn
    finally:
        longhorn.stop()


def replica(name: str, volume: str, size: float, node: str = "", *, healthy: bool = False) -> Object:
    raw = builders.replica(name, volume, node, size=size, healthy=healthy)
    return {**raw, "metadata": {**raw["metadata"], "labels": {"longhornvolume": volume}, "finalizers": ["longhorn.io"]}}


def image(name: str, size: float, copies: int = 1, disks: Iterable[str] = ()) -> Object:
    """A backing image of some Gi, wanted on some disks, without copies."""
    files = {uuid: {"evictionRequested": False} for uuid in disks}
    return {
        "apiVersion": builders.LONGHORN,
        "kind": "BackingImage",
        "metadata": {"name": name, "finalizers": ["longhorn.io"]},
        "spec": {"dataEngine": "v1", "minNumberOfCopies": copies, "diskFileSpecMap": files},
        "status": {"realSize": int(size * GI), "diskFileStatusMap": {}},
    }


def granted(manifests: Path) -> set[Call]:
    return granted_calls([manifests / "role.yaml", MANIFESTS / "parts/clusterrole.yaml"])


def controller_calls(cluster: DevCluster, namespace: str = LONGHORN) -> tuple[set[Call], list[str]]:
    return account_calls(cluster, f"system:serviceaccount:{LONGHORN}:{ACCOUNT}", [namespace])


def removal_commands() -> list[str]:
    (block,) = re.findall(r"```console\n(\$ kubectl .*?)```", _DOCS.read_text().partition("**Remove**")[2], re.S)
    return [line.removeprefix("$ ") for line in block.splitlines()]


def run_command(cluster: DevCluster, command: str) -> None:
    """Runs a command in the repository's folder, as an administrator would."""
    environment = {
        **os.environ,
        "PATH": f"{ensure_built()}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
        "KUBECACHEDIR": str(cluster.directory / "kubectl-cache"),
    }
    subprocess.run(["bash", "-o", "pipefail", "-c", command], env=environment, cwd=ROOT, timeout=120, check=True)
