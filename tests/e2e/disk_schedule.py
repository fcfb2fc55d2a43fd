"""DiskSchedules on a real API server: Longhorn's objects without Longhorn, and controllers as processes of their own.

Each test has a namespace. Nobody but the controllers places anything there; what a disk has available is written by the test.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

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
from devcluster import DevCluster, Process
from devcluster.build import ensure_built
from devcluster.http_check import http_request
from devcluster.stack import ROOT
from tests import builders
from tests.builders import GI, Object
from tests.manifests.load import documents, permissions

ACCOUNT: Final = "longhorn-disk-schedule"
LONGHORN: Final = "longhorn-system"
MANIFESTS: Final = ROOT / "manifests/disk-schedule"
MIRROR: Final = MANIFESTS / "mirror"
_DOCS: Final = ROOT / "docs/disk-schedule.md"
# Far larger than what is available, so that storageAvailable alone decides and Longhorn's own rules never do.
_HUGE: Final = 100_000
_KINDS: Final = {
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
NO_RESERVE: Final = builders.setting("storage-minimal-available-percentage", "0")
WORKING: Final = "longhorn_scheduler_extender_disk_schedule_working"
_POLL: Final = 0.1
_POSTING: Final = 8
# Of eight that start at once, beside another cluster's processes.
_START_SECONDS: Final = 120.0
_Value = TypeVar("_Value")
_names = itertools.count(1)


def install(cluster: DevCluster) -> Path:
    """Longhorn's definitions and the manifests; returns the kubeconfig of the controllers' ServiceAccount."""
    cluster.apply(ROOT / "simulator/crds")
    cluster.apply(ROOT / "manifests/test-cluster/namespace.yaml")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    cluster.apply(MANIFESTS)
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    account = cluster.service_account_kubeconfig(LONGHORN, ACCOUNT)
    Longhorn(cluster, account, LONGHORN).wait_served()
    return account


class Longhorn:
    """One namespace with Longhorn's objects, and the controllers that work there."""

    def __init__(self, cluster: DevCluster, account: Path, namespace: str = "", *, manifests: Path = MANIFESTS) -> None:
        self.cluster = cluster
        self.account = account
        self.namespace = namespace or f"disks-{next(_names)}"
        self.processes: list[Process] = []
        self.ports: dict[str, int] = {}
        if not namespace:
            self._open(manifests)
            self.create(NO_RESERVE)

    def _open(self, manifests: Path) -> None:
        """A namespace in which the ServiceAccount may do what the manifests let it do in Longhorn's, with a Lease that is free."""
        self.cluster.kubectl("create", "namespace", self.namespace)
        released = {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        self.cluster.api.create(LEASES.path(self.namespace), released)
        role = list(yaml.safe_load_all((manifests / "role.yaml").read_text()))
        self.cluster.kubectl("-n", self.namespace, "apply", "-f", "-", input=yaml.safe_dump_all(role))

    def wait_served(self) -> None:
        """The API server lists every kind; of a new one it refuses to, until its cache is filled."""

        def served(resource: Resource) -> bool:
            try:
                self.items(resource)
            except ApiError as error:
                if not error.unreachable:
                    raise
                return False
            return True

        for resource in (DISK_SCHEDULES, *_KINDS.values()):
            self.until(f"the {resource.plural} are served", partial(served, resource))

    def start(self, name: str, *arguments: str) -> Process:
        """One more process; it is not waited for."""
        port = self.cluster.free_port()
        program = Path(sys.executable).with_name("longhorn-extender")
        argv = [str(program), "disk-schedule", "--kubeconfig", str(self.account), "--namespace", self.namespace]
        argv += ["--port", str(port), "--identity", name, *arguments]
        process = self.cluster.spawn(f"{self.namespace}-{name}", argv)
        self.processes.append(process)
        self.ports[process.name] = port
        return process

    def start_crowd(self, count: int = 8) -> list[Process]:
        """So many that all work at the same time, because none asks for the Lease; returns when they are ready."""
        crowd = [self.start(f"controller-{number}", "--no-leader-elect") for number in range(count)]
        self.wait_ready()
        return crowd

    def wait_ready(self) -> None:
        """Every process that runs could reconcile."""
        for process in self.processes:
            if process.running:
                self.until(f"{process.name} is ready", partial(self._ready, process), _START_SECONDS)

    def wait_working(self, process: Process) -> None:
        """A process holds the Lease and reconciles."""
        ready = partial(self._ready, process)
        self.until(f"{process.name} works", lambda: ready() and self.metric(process, WORKING) == 1, _START_SECONDS)

    def _ready(self, process: Process) -> bool:
        return self.ask(process, "/readyz")[0] == 200

    def ask(self, process: Process, path: str) -> tuple[int, Any]:
        """Asks one process."""
        return http_request(f"http://127.0.0.1:{self.ports[process.name]}{path}", None, 15)

    def metric(self, process: Process, name: str) -> float:
        """The value of one of its metrics; `name` with its labels."""
        [value] = [
            line.split()[-1]
            for line in str(self.ask(process, "/metrics")[1]).splitlines()
            if line.startswith(f"{name} ")
        ]
        return float(value)

    def stop(self) -> None:
        """Ends every process; each must end well."""
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
        """Nodes with one disk each, of which so many Gi are available; and what Longhorn needs to run there."""
        self.create(
            *(
                builders.longhorn_node(name, {"disk-1": builders.disk(maximum, available=size)})
                for name, size in available.items()
            ),
            *(_manager(name) for name in available),
            _engine_image(available),
        )

    def available(self, node: str, size: float) -> None:
        """Data was written to, or deleted from, the disk of a node: so many Gi are available now."""
        status = {"diskStatus": {"disk-1": {"storageAvailable": int(size * GI)}}}
        self.cluster.api.patch(LONGHORN_NODES.path(self.namespace, node, "status"), {"status": status})

    def add_volumes(self, names: Iterable[str], size: float, replicas: int = 1, **spec: Any) -> None:
        """Volumes and their replicas, without a place; all replicas come before the first controller may see a volume of them."""
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
        """A pod that looks like longhorn-manager, and that nobody schedules: from a node that is not there it would be removed."""
        metadata = {"name": name, "labels": {"app": "longhorn-manager"}}
        spec = {"containers": [{"name": "manager", "image": "longhorn"}], "schedulerName": "nobody"}
        self.cluster.api.create(PODS.path(self.namespace), {"metadata": metadata, "spec": spec})

    def sizes(self) -> set[int]:
        """The bytes of the replicas."""
        return {int(raw["spec"]["volumeSize"]) for raw in self.items(LONGHORN_REPLICAS).values()}

    def asked(self, uuid: str) -> int:
        """The bytes that are asked of a disk for replicas."""
        return sum(self.get(DISK_SCHEDULES, uuid)["spec"]["replicas"].values())

    def written(self) -> str:
        """Everything of Longhorn's own objects that a mirror must leave as it is."""
        kinds = (LONGHORN_NODES, LONGHORN_VOLUMES, LONGHORN_REPLICAS, LONGHORN_BACKING_IMAGES)
        return json.dumps({kind.kind: self.items(kind) for kind in kinds}, sort_keys=True)

    def items(self, resource: Resource) -> dict[str, Object]:
        """The objects of a kind, by name."""
        found = self.cluster.api.get(resource.path(self.namespace))["items"]
        return {entry["metadata"]["name"]: entry for entry in found}

    def get(self, resource: Resource, name: str) -> Object:
        """One object."""
        return dict(self.cluster.api.get(resource.path(self.namespace, name)))

    def patch(self, resource: Resource, name: str, body: Object, subresource: str = "") -> None:
        """Merges this into an object."""
        self.cluster.api.patch(resource.path(self.namespace, name, subresource), body)

    def replace(self, resource: Resource, name: str, body: Object, subresource: str = "") -> Object:
        """Writes a whole object, as a controller does; what the API server made of it.

        Raises:
            ApiError: it was refused
        """

        async def written() -> Object:
            client = await KubeClient.connect(str(self.cluster.kubeconfig))
            try:
                return dict(json.loads(await client.replace(resource.path(self.namespace, name, subresource), body)))
            finally:
                await client.close()

        return asyncio.run(written())

    def delete(self, resource: Resource, name: str) -> None:
        """Deletes an object."""
        self.cluster.api.delete(resource.path(self.namespace, name))

    def delete_all(self, resource: Resource) -> None:
        """Deletes all of a kind at one go; a busy API server gives up after a while, and the rest is for the next call."""

        def accepted() -> bool:
            try:
                self.cluster.api.delete(resource.path(self.namespace))
            except ApiError as error:
                if not error.unreachable:
                    raise
                return False
            return True

        self.until(f"the {resource.plural} are deleted", accepted)

    def exists(self, resource: Resource, name: str) -> bool:
        """Whether an object is there."""
        try:
            self.get(resource, name)
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return True

    def status(self, uuid: str) -> Object:
        """The status of a DiskSchedule, empty if there is none."""
        if not self.exists(DISK_SCHEDULES, uuid):
            return {}
        return dict(self.get(DISK_SCHEDULES, uuid).get("status") or {})

    def condition(self, resource: Resource, name: str, kind: str) -> Object:
        """A condition of an object, empty if it has none."""
        found = (self.get(resource, name).get("status") or {}).get("conditions") or []
        return next((dict(entry) for entry in found if entry["type"] == kind), {})

    def schedulable(self, uuid: str) -> Object:
        """The condition Schedulable of a DiskSchedule, empty if there is none."""
        return self.condition(DISK_SCHEDULES, uuid, "Schedulable") if self.exists(DISK_SCHEDULES, uuid) else {}

    def refusals(self, node: str) -> list[str]:
        """Why the disks of a node grant nothing, "" for those that do."""
        found = [uuid for uuid, raw in self.items(DISK_SCHEDULES).items() if raw["spec"]["nodeID"] == node]
        return [self.schedulable(uuid).get("reason", "") for uuid in found]

    def reason(self, volume: str) -> str:
        """The reason of a volume's condition DiskAllocation."""
        return str(self.condition(LONGHORN_VOLUMES, volume, "DiskAllocation").get("reason", ""))

    def wait_allocated(self, volume: str) -> None:
        """Returns when all replicas of a volume hold their size."""

        def allocated() -> bool:
            return self.condition(LONGHORN_VOLUMES, volume, "DiskAllocation").get("status") == "True"

        self.until(f"{volume} is allocated", allocated)

    def until(self, what: str, done: Callable[[], _Value], seconds: float = 60) -> _Value:
        """Waits for something; returns what `done` did.

        Raises:
            AssertionError: it did not happen in time
        """
        deadline = time.monotonic() + seconds
        while True:
            value = done()
            if value:
                return value
            assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}; {self.summary()}"
            time.sleep(_POLL)

    def at_rest(self, quiet: float, seconds: float = 120) -> None:
        """Returns when no object has changed for so many seconds."""
        last, since, deadline = self._versions(), time.monotonic(), time.monotonic() + seconds
        while time.monotonic() - since < quiet:
            assert time.monotonic() < deadline, f"not at rest after {seconds:g} s; {self.summary()}"
            time.sleep(_POLL)
            now = self._versions()
            if now != last:
                last, since = now, time.monotonic()

    def _versions(self) -> set[tuple[str, str, str]]:
        kinds = (DISK_SCHEDULES, LONGHORN_REPLICAS, LONGHORN_VOLUMES, LONGHORN_BACKING_IMAGES)
        return {
            (kind.kind, name, raw["metadata"]["resourceVersion"])
            for kind in kinds
            for name, raw in self.items(kind).items()
        }

    def summary(self) -> str:
        """The DiskSchedules, for messages of failures."""
        parts = []
        for name, raw in self.items(DISK_SCHEDULES).items():
            status = raw.get("status") or {}
            parts.append(
                f"{name}: asked {len(raw['spec'].get('replicas', {}))}+{len(raw['spec'].get('backingImages', {}))}, "
                f"{status.get('storageScheduled', 0) // GI}Gi of {status.get('storageAvailable', 0) // GI}Gi"
            )
        return "; ".join(parts)


def replica(name: str, volume: str, size: float, node: str = "", *, healthy: bool = False) -> Object:
    """A replica as Longhorn makes it, with the label by which it finds those of a volume."""
    raw = builders.replica(name, volume, node, size=size, healthy=healthy)
    return {**raw, "metadata": {**raw["metadata"], "labels": {"longhornvolume": volume}, "finalizers": ["longhorn.io"]}}


def image(name: str, size: float, copies: int = 1, disks: Iterable[str] = ()) -> Object:
    """A backing image of so many Gi, wanted on some disks, without a copy yet."""
    files = {uuid: {"evictionRequested": False} for uuid in disks}
    return {
        "apiVersion": builders.LONGHORN,
        "kind": "BackingImage",
        "metadata": {"name": name, "finalizers": ["longhorn.io"]},
        "spec": {"dataEngine": "v1", "minNumberOfCopies": copies, "diskFileSpecMap": files},
        "status": {"realSize": int(size * GI), "diskFileStatusMap": {}},
    }


def _manager(node: str) -> Object:
    return {
        "apiVersion": builders.LONGHORN,
        "kind": "InstanceManager",
        "metadata": {"name": f"manager-{node}"},
        "spec": {"nodeID": node, "dataEngine": "v1", "image": "manager"},
        "status": {"currentState": "running"},
    }


def _engine_image(nodes: Iterable[str]) -> Object:
    return {
        "apiVersion": builders.LONGHORN,
        "kind": "EngineImage",
        "metadata": {"name": f"engine-{min(nodes)}"},
        "spec": {"image": ""},
        "status": {"state": "deployed", "nodeDeploymentMap": dict.fromkeys(nodes, True)},
    }


def permissions_of(manifests: Path) -> set[tuple[str, str, str]]:
    """Verb, group and resource of all that the controllers' roles grant."""
    roles = [*documents(manifests / "role.yaml"), *documents(MANIFESTS / "parts/clusterrole.yaml")]
    return {(verb, group, what) for role in roles if "rules" in role for verb, group, what, _ in permissions(role)}


def calls_of_the_account(cluster: DevCluster, namespace: str = LONGHORN) -> tuple[set[tuple[str, str, str]], list[str]]:
    """Verb, group and resource of each call of the controllers' ServiceAccount in a namespace; and what was forbidden."""
    used: set[tuple[str, str, str]] = set()
    refused: list[str] = []
    for event in cluster.audit_events():
        where = event.get("objectRef") or {}
        ours = event["user"]["username"] == f"system:serviceaccount:{LONGHORN}:{ACCOUNT}"
        if not ours or where.get("namespace", "") not in ("", namespace):
            continue
        if event["responseStatus"]["code"] == 403:
            refused.append(event["requestURI"])
        parts = (where.get("resource", ""), where.get("subresource", ""))
        used.add((event["verb"], where.get("apiGroup", ""), "/".join(part for part in parts if part)))
    return used, refused


def commands_that_remove() -> list[str]:
    """What the documentation has an administrator type to remove the controllers."""
    (block,) = re.findall(r"```console\n(\$ kubectl .*?)```", _DOCS.read_text().partition("**Remove**")[2], re.S)
    return [line.removeprefix("$ ") for line in block.splitlines()]


def typed(cluster: DevCluster, command: str) -> None:
    """Runs a command as an administrator types it in the repository's folder.

    Raises:
        subprocess.CalledProcessError: it failed
    """
    environment = {
        **os.environ,
        "PATH": f"{ensure_built()}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
        "KUBECACHEDIR": str(cluster.directory / "kubectl-cache"),
    }
    subprocess.run(["bash", "-o", "pipefail", "-c", command], env=environment, cwd=ROOT, timeout=120, check=True)
