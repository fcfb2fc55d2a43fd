"""A cluster with everything that a user runs, and calls to it.

It has a control plane, simulated Longhorn, candidates of the extender, and the way to their leader. The extender runs under its own
ServiceAccount with the permissions of manifests/ and nothing else.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import msgspec
import yaml

from app.kube import resources
from app.kube.client import ApiError
from devcluster.dev_cluster import DevCluster
from devcluster.http_check import http_request
from devcluster.polling import wait_until
from devcluster.process import Process
from devcluster.programs import NAMESPACE
from devcluster.stack import FAST_LEASE, LEASE_SECONDS, ROOT, Disk, Stack, StackOptions, disk_statuses
from scheduler_core.decide.extender_settings import GuardMode
from simulator.config import Config
from tests.e2e.objects import HOSTNAME, PAUSE, Object

CONFIGS: Final = ROOT / "kube-scheduler-config"
PROPOSAL: Final = CONFIGS / "proposal.yaml"
RECOMMENDED: Final = CONFIGS / "recommended.yaml"
RECOMMENDED_MANAGED: Final = CONFIGS / "recommended-managed.yaml"
LEASE_BOUND: Final = LEASE_SECONDS
_POSTING: Final = 8
_STATEFUL_SETS: Final = resources.Resource("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)
_DRIVER: Final = "driver.longhorn.io"
_CAPACITY_SECONDS: Final = 120.0
_CREATED: Final = {resource.kind: resource for resource in (resources.PODS, resources.CLAIMS, _STATEFUL_SETS)}
_Value = TypeVar("_Value")


class Rig:
    """One stack, which entering it starts, and a test's calls to it.

    An empty `reservation` is the extender's default. Few tests read the audit log. `placement_guard` is as in `StackOptions`. A `running`
    control plane is used as it is, so that `audit` and `extra_args` have no effect.
    """

    def __init__(
        self,
        folder: Path,
        *,
        candidates: int = 1,
        config: Path = PROPOSAL,
        reservation: str = "",
        simulator: Mapping[str, Any] | None = None,
        more_arguments: Sequence[str] = (),
        audit: bool = False,
        extra_args: Mapping[str, Sequence[str]] | None = None,
        placement_guard: GuardMode = GuardMode.ENFORCE,
        running: DevCluster | None = None,
    ) -> None:
        options = StackOptions(
            candidates=candidates,
            arguments=(*FAST_LEASE, *(("--reservation", reservation) if reservation else ()), *more_arguments),
            scheduler_config=config,
            simulator=dict(simulator or {}),
            audit=audit,
            extra_args=extra_args or {},
            placement_guard=placement_guard,
        )
        self._stack = Stack(folder / "cluster", options, running=running)
        # After how many seconds Longhorn tries to place a replica again.
        self.replica_retry = msgspec.convert(simulator or {}, Config).schedule_retry
        self.cluster = self._stack.cluster  # the control plane

    def __enter__(self) -> Self:
        self._stack.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failures = self.status().get("failures", 0) if error is None else 0
        self._stack.stop()
        assert failures == 0, "the simulator met errors it did not expect; see its log"

    def use_config(self, config: Path) -> None:
        """Restarts kube-scheduler with one of the files that users install. Only addresses and credentials are this machine's."""
        self._stack.use_scheduler_config(config)

    def use_simulator(self, config: Mapping[str, Any]) -> None:
        """Restarts the simulator with another configuration and empty counters."""
        self._stack.use_simulator(config)

    def start_candidate(self, name: str, env: Mapping[str, str] | None = None) -> Process:
        """Starts a process of the extender. A former name gets its port again."""
        return self._stack.start_candidate(name, env=env)

    @property
    def candidates(self) -> list[str]:
        return [name for name in self._stack.candidates if self.cluster.processes[name].running]

    def leader(self) -> str:
        """The candidate that answers now, "" if none does."""
        answering = self._stack.answering()
        assert len(answering) <= 1, f"two leaders: {answering}"
        return answering[0] if answering else ""

    @property
    def address(self) -> str:
        """The address that kube-scheduler has; it leads to the leader."""
        return self._stack.address

    def answers(self, name: str) -> bool:
        """Whether a candidate answers kube-scheduler's verbs."""
        return self._stack.answers(name)

    def url(self, name: str) -> str:
        return self._stack.url(name)

    def guard_port(self, name: str) -> int:
        """The port on which API servers call a candidate's placement guard."""
        return self._stack.guard_port(name)

    def request(self, name: str, path: str, body: object | None = None, seconds: float = 15) -> tuple[int, Any]:
        """Sends a request to a candidate; status 0 means no answer."""
        return http_request(f"{self.url(name)}{path}", body, seconds)

    def status(self) -> Object:
        code, answer = http_request(f"{self._stack.simulator_url}/status", None, 15)
        return dict(answer) if code == 200 else {"unreachable": str(answer)}

    def misplacements(self) -> int:
        """How often a local replica was placed on another node. Mended ones are included."""
        return int(self.status()["counters"].get("misplacements", 0))

    def count_fits(self) -> float:
        """How many pods the leader has offered nodes so far. Probes name no node, and so do not count."""
        leader = self.until("a candidate answers", self.leader)
        return self.metric(leader, 'longhorn_scheduler_extender_filter_requests_total{result="fits"}')

    def metric(self, candidate: str, name: str) -> float:
        """The value of a candidate's metric; `name` includes the labels."""
        lines = str(self.request(candidate, "/metrics")[1]).splitlines()
        [value] = [line.split()[-1] for line in lines if line.startswith(f"{name} ")]
        return float(value)

    def add_nodes(self, group: str, disks: Mapping[str, Sequence[Disk]]) -> None:
        """Adds nodes with disks for the pods of `group` alone. Returns once Longhorn reports every disk, and their
        capacity where kube-scheduler looks at it.
        """
        self._stack.add_nodes(disks, {"group": group})
        # Reserved space may leave no capacity at all.
        roomy = {name for name, each in disks.items() if any(isinstance(disk, str) for disk in each)}
        self.until("their capacity is reported", lambda: self._has_capacity(roomy), _CAPACITY_SECONDS)

    def remove_nodes(self, *names: str) -> None:
        """Deletes nodes without pods, and their Longhorn nodes."""
        for name in names:
            self.cluster.api.delete(resources.NODES.path(name=name))

        def are_gone() -> bool:
            # Longhorn creates an object again until a watch shows that the Kubernetes node is gone.
            remaining = {_name(raw) for raw in self.items(resources.LONGHORN_NODES.path(NAMESPACE))} & set(names)
            for name in remaining:
                self.cluster.api.delete(resources.LONGHORN_NODES.path(NAMESPACE, name))
            return not remaining

        self.until("the nodes are gone", are_gone)

    def _has_capacity(self, nodes: Iterable[str]) -> bool:
        """Whether each node has capacity for every class with late binding. It is also true if kube-scheduler looks at no capacity."""
        if not self.cluster.api.get(f"/apis/storage.k8s.io/v1/csidrivers/{_DRIVER}")["spec"]["storageCapacity"]:
            return True
        classes = [
            _name(raw)
            for raw in self.items(resources.STORAGE_CLASSES.path())
            if (raw["provisioner"], raw["volumeBindingMode"]) == (_DRIVER, "WaitForFirstConsumer")
        ]
        reported = {
            (raw["nodeTopology"]["matchLabels"][HOSTNAME], raw["storageClassName"])
            for raw in self.items(resources.CAPACITIES.path())
            if raw["capacity"] != "0"
        }
        return all((node, each) in reported for node in nodes for each in classes)

    def load(self, node: str, share: float) -> None:
        """Gives a node other work: a share of its CPU and memory."""
        requests = {"cpu": f"{int(32_000 * share)}m", "memory": f"{int(256 * share)}Gi"}
        container = {"name": "work", "image": PAUSE, "resources": {"requests": requests}}
        metadata = {"name": f"work-on-{node}", "namespace": "default"}
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
        self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def items(self, path: str) -> list[Object]:
        return list(self.cluster.api.get(path)["items"])

    def create(self, *objects: Object) -> None:
        self.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))

    def post(self, objects: Iterable[Object]) -> None:
        """Creates objects by the API itself, claims first, several at a time. So the creation of a burst does not slow it down."""
        by_kind: dict[bool, list[Object]] = {True: [], False: []}
        for entry in objects:
            by_kind[entry["kind"] == resources.CLAIMS.kind].append(entry)
        with ThreadPoolExecutor(_POSTING) as pool:
            for group in (by_kind[True], by_kind[False]):
                for _ in pool.map(self._post, group):
                    pass  # an error is raised here

    def _post(self, entry: Object) -> None:
        self.cluster.api.create(_CREATED[entry["kind"]].path("default"), entry)

    def pods(self, app: str) -> list[Object]:
        return self.items(f"/api/v1/namespaces/default/pods?labelSelector=app%3D{app}")

    def nodes_of(self, app: str) -> dict[str, str]:
        """The node of each of an app's pods, "" for none."""
        return {_name(pod): pod["spec"].get("nodeName", "") for pod in self.pods(app)}

    def ready(self, app: str, count: int) -> bool:
        pods = self.pods(app)
        return len(pods) == count and all(
            pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"] for pod in pods
        )

    def misplaced_pods(self, app: str, *, placed: bool = False) -> list[str]:
        """Pods with a local volume that has no replica there. They are those of the app. With `placed`, only a volume
        counts that has a replica on another node.
        """
        claims = {_name(entry): entry for entry in self.items("/api/v1/namespaces/default/persistentvolumeclaims")}
        handles = {
            _name(volume): volume["spec"]["csi"]["volumeHandle"]
            for volume in self.items(resources.PERSISTENT_VOLUMES.path())
            if "csi" in volume["spec"]
        }
        homes: dict[str, set[str]] = {}
        for replica in self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/replicas"):
            if not replica["spec"].get("failedAt") and "deletionTimestamp" not in replica["metadata"]:
                homes.setdefault(replica["spec"]["volumeName"], set()).add(replica["spec"].get("nodeID", ""))
        misplaced_pods = set()
        for pod in self.pods(app):
            node = pod["spec"].get("nodeName")
            for volume in pod["spec"]["volumes"]:
                claim = claims.get(volume.get("persistentVolumeClaim", {}).get("claimName", ""))
                if not node or claim is None:
                    continue
                handle = handles.get(claim["spec"].get("volumeName", ""), "")
                nodes = homes.get(handle, set()) - ({""} if placed else set())
                if node not in nodes and (nodes or not placed):
                    misplaced_pods.add(_name(pod))
        return sorted(misplaced_pods)

    def overbooked_disks(self) -> list[str]:
        """Disks whose replicas add up to more than Longhorn allows now. They arise when two volumes are placed before the status follows."""
        sizes: dict[str, int] = {}
        for replica in self.items(resources.LONGHORN_REPLICAS.path(NAMESPACE)):
            disk = replica["spec"].get("diskID", "")
            sizes[disk] = sizes.get(disk, 0) + int(replica["spec"]["volumeSize"])
        percentage = self.over_provisioning()
        return sorted(
            f"{_name(node)} {name}"
            for node in self.items(resources.LONGHORN_NODES.path(NAMESPACE))
            for uuid, (name, limit) in disk_limits(node, percentage).items()
            if sizes.get(uuid, 0) > limit
        )

    def over_provisioning(self) -> int:
        values = {
            _name(setting): setting["value"] for setting in self.items(resources.LONGHORN_SETTINGS.path(NAMESPACE))
        }
        return int(values.get("storage-over-provisioning-percentage", 100))

    def remove(self, *apps: str) -> None:
        for resource in (_STATEFUL_SETS, resources.PODS, resources.CLAIMS):
            for app in apps:
                self._remove_all(resource, app)
        self.until(f"the volumes of {', '.join(apps)} are gone", self.reclaim)

    def reclaim(self) -> bool:
        """Deletes released volumes with policy Retain; returns whether all space is free."""
        for volume in self.items(resources.PERSISTENT_VOLUMES.path()):
            retained = volume["spec"].get("persistentVolumeReclaimPolicy") == "Retain"
            released = volume["status"].get("phase") == "Released" and "deletionTimestamp" not in volume["metadata"]
            if retained and released:
                self.cluster.api.delete(
                    resources.LONGHORN_VOLUMES.path(NAMESPACE, volume["spec"]["csi"]["volumeHandle"])
                )
                self.cluster.api.delete(resources.PERSISTENT_VOLUMES.path(name=_name(volume)))
        return self._are_volumes_gone() and self._lists_present_replicas()

    def _remove_all(self, resource: resources.Resource, app: str) -> None:
        path = self.delete_all(resource, f"app={app}")
        self.until(f"the {resource.plural} of {app} are gone", lambda: not self.items(path))

    def delete_all(self, resource: resources.Resource, selector: str) -> str:
        """Deletes the objects of a label selector at once; returns their path. kubectl would delete five a second."""
        path = f"{resource.path('default')}?labelSelector={quote(selector)}"

        def try_delete() -> bool:
            try:
                self.cluster.api.delete(path)
            except ApiError as error:
                if not error.unreachable:  # it gives up after a while; the next call deletes the remaining ones
                    raise
                return False
            return True

        # Hundreds of claims take longer than a minute while other tests use the processors.
        self.until(f"the {resource.plural} of {selector} are deleted", try_delete, 180)
        return path

    def _are_volumes_gone(self) -> bool:
        """Whether every volume that exists belongs to a claim. A PersistentVolume stays Bound for a moment after its claim is gone."""
        claimed = {claim["spec"].get("volumeName") for claim in self.items(resources.CLAIMS.path())}
        persistent_volumes = self.items(resources.PERSISTENT_VOLUMES.path())
        longhorn_volumes = self.items(resources.LONGHORN_VOLUMES.path(NAMESPACE))
        return {_name(volume) for volume in persistent_volumes} <= claimed and len(longhorn_volumes) == len(
            persistent_volumes
        )

    def _lists_present_replicas(self) -> bool:
        """Whether the status of Longhorn's ready nodes lists exactly their replicas. What a node's status lists stays
        as it was while the node has no manager.
        """
        replicas = self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/replicas")
        ready_nodes = {
            _name(node): node
            for node in self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/nodes")
            if _is_ready(node)
        }
        listed = {
            name
            for node in ready_nodes.values()
            for disk in disk_statuses(node).values()
            for name in disk.get("scheduledReplica") or {}
        }
        unready_nodes = {replica["spec"].get("nodeID", "") for replica in replicas} - {"", *ready_nodes}
        return listed == {
            _name(replica) for replica in replicas if replica["spec"].get("nodeID", "") not in unready_nodes
        }

    def until(self, what: str, done: Callable[[], _Value], seconds: float = 60) -> _Value:
        """Waits until `done` returns something true; returns that."""
        return wait_until(what, done, seconds, explain=lambda: f"simulator: {json.dumps(self.status())[:2000]}")


def _is_ready(longhorn_node: Object) -> bool:
    conditions = (longhorn_node.get("status") or {}).get("conditions") or []
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def disk_limits(node: Object, percentage: int) -> dict[str, tuple[str, int]]:
    """A Longhorn node's disks by UUID, each with its limit. It has the disk's name, and how many bytes may be promised."""
    limits: dict[str, tuple[str, int]] = {}
    for name, status in disk_statuses(node).items():
        reserved = (node["spec"]["disks"].get(name) or {}).get("storageReserved", 0)
        if status.get("diskUUID"):
            limits[status["diskUUID"]] = name, (status.get("storageMaximum", 0) - reserved) * percentage // 100
    return limits


def _name(raw: Object) -> str:
    return str(raw["metadata"]["name"])
