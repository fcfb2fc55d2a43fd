"""A cluster with everything that a user runs, and calls to it.

It has a control plane, simulated Longhorn, candidates of the extender, and the way to their leader. The extender runs under its own
ServiceAccount with the permissions of manifests/ and nothing else.
"""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import msgspec
import yaml

from app.kube import resources
from devcluster.dev_cluster import DevCluster
from devcluster.http_check import http_request
from devcluster.polling import wait_until
from devcluster.process import Process
from devcluster.programs import NAMESPACE, SERVICE
from devcluster.stack import FAST_LEASE, LEASE_SECONDS, ROOT, Disk, Stack, StackOptions, disk_statuses
from scheduler_core.decide.extender_settings import GuardMode
from simulator.config import Config
from tests.control_plane import ControlPlane
from tests.e2e.objects import HOSTNAME, PAUSE, Object, condition_of, name_of, node_of, runs, scheduling_message
from tests.worlds.service import EXTENDER

CONFIGS = ROOT / "kube-scheduler-config"
PROPOSAL = CONFIGS / "proposal.yaml"
RECOMMENDED = CONFIGS / "recommended.yaml"
RECOMMENDED_MANAGED = CONFIGS / "recommended-managed.yaml"
LEASE_BOUND = LEASE_SECONDS
CANDIDATES = ("extender-1", "extender-2")
_POSTING = 8
_STATEFUL_SETS = resources.Resource("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)
_DRIVER = "driver.longhorn.io"
_CAPACITY_SECONDS = 120.0
_CREATED = {resource.kind: resource for resource in (resources.PODS, resources.CLAIMS, _STATEFUL_SETS)}
_Value = TypeVar("_Value")


class Rig:
    """One stack, which entering it starts, and a test's calls to it.

    With a `shared` control plane, it borrows that; `extra_args` has no effect then. A control plane of its own has no audit log. An empty
    `reservation` is the extender's default. `placement_guard` and `free_lease` are as in `StackOptions`.
    """

    def __init__(
        self,
        folder: Path,
        shared: ControlPlane | None = None,
        *,
        candidates: int = 1,
        config: Path = RECOMMENDED_MANAGED,
        reservation: str = "",
        simulator: Mapping[str, Any] | None = None,
        more_arguments: Sequence[str] = (),
        extra_args: Mapping[str, Sequence[str]] | None = None,
        placement_guard: GuardMode = GuardMode.ENFORCE,
        free_lease: bool = True,
    ) -> None:
        self._folder = folder
        self._shared = shared
        self._options = StackOptions(
            candidates=candidates,
            arguments=(*FAST_LEASE, *(("--reservation", reservation) if reservation else ()), *more_arguments),
            create_free_lease=free_lease,
            scheduler_config=config,
            simulator=dict(simulator or {}),
            audit=False,
            extra_args=extra_args or {},
            placement_guard=placement_guard,
        )
        # After how many seconds Longhorn tries to place a replica again.
        self.replica_retry = msgspec.convert(simulator or {}, Config).schedule_retry
        self.cluster: DevCluster  # the control plane

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            running = entered.enter_context(self._shared.borrow()) if self._shared else None
            self._stack = Stack(self._folder / "cluster", self._options, running=running)
            self.cluster = self._stack.cluster
            entered.enter_context(self._stack)
            self._entered = entered.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._entered:
            failures = self.status().get("failures", 0) if error is None else 0
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

    def restore_candidates(self) -> None:
        """Starts candidates until two run and one of them answers."""
        for name in CANDIDATES:
            if len(self.candidates) < len(CANDIDATES) and name not in self.candidates:
                self.start_candidate(name)
        self.wait_for_leader()

    @property
    def candidates(self) -> list[str]:
        return [name for name in self._stack.candidates if self.cluster.processes[name].running]

    def leader(self) -> str:
        """The candidate that answers now, "" if none does."""
        answering = self._stack.answering()
        assert len(answering) <= 1, f"two leaders: {answering}"
        return answering[0] if answering else ""

    def wait_for_leader(self, seconds: float = 60) -> str:
        return self.until("a candidate answers", self.leader, seconds)

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

    def service(self, name: str = "") -> Any:
        """What a candidate, by default the leader, says about itself in /state."""
        status, answer = self.request(name or self.wait_for_leader(), "/state")
        assert status == 200, answer
        return answer["service"]

    def change_settings(self, settings: Mapping[str, str]) -> None:
        """Changes the extender's ConfigMap."""
        self.cluster.api.patch(resources.CONFIG_MAPS.path(NAMESPACE, SERVICE), {"data": dict(settings)})

    def status(self) -> Object:
        code, answer = http_request(f"{self._stack.simulator_url}/status", None, 15)
        return dict(answer) if code == 200 else {"unreachable": str(answer)}

    def misplacements(self) -> int:
        """How often a local replica was placed on another node. Mended ones are included."""
        return int(self.status()["counters"].get("misplacements", 0))

    def count_fits(self) -> float:
        """How many pods the leader has offered nodes so far. Probes name no node, and so do not count."""
        return self.metric(self.wait_for_leader(), 'longhorn_scheduler_extender_filter_requests_total{result="fits"}')

    def metric(self, candidate: str, name: str) -> float:
        """The value of a candidate's metric; `name` includes the labels."""
        return read_metric(self.url(candidate), name)

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
        for name in {name_of(raw) for raw in self.items(resources.NODES.path())} & set(names):
            self.cluster.api.delete(resources.NODES.path(name=name))

        def are_gone() -> bool:
            # Longhorn creates an object again until a watch shows that the Kubernetes node is gone.
            remaining = {name_of(raw) for raw in self.longhorn(resources.LONGHORN_NODES)} & set(names)
            for name in remaining:
                self.cluster.api.delete(resources.LONGHORN_NODES.path(NAMESPACE, name))
            return not remaining

        self.until("the nodes are gone", are_gone)

    def _has_capacity(self, nodes: Iterable[str]) -> bool:
        """Whether each node has capacity for every class with late binding. It is also true if kube-scheduler looks at no capacity."""
        if not self.cluster.api.get(f"/apis/storage.k8s.io/v1/csidrivers/{_DRIVER}")["spec"]["storageCapacity"]:
            return True
        classes = [
            name_of(raw)
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

    def longhorn(self, resource: resources.Resource) -> list[Object]:
        """All objects of a kind in Longhorn's namespace."""
        return self.items(resource.path(NAMESPACE))

    def replicas_on(self, node: str) -> list[Object]:
        return [raw for raw in self.longhorn(resources.LONGHORN_REPLICAS) if raw["spec"].get("nodeID") == node]

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
        return self.items(f"{resources.PODS.path('default')}?labelSelector=app%3D{app}")

    def claims(self, app: str) -> list[Object]:
        return self.items(f"{resources.CLAIMS.path('default')}?labelSelector=app%3D{app}")

    def nodes_of(self, app: str) -> dict[str, str]:
        """The node of each of an app's pods, "" for none."""
        return {name_of(pod): node_of(pod) for pod in self.pods(app)}

    def ready(self, app: str, count: int) -> bool:
        pods = self.pods(app)
        return len(pods) == count and all(runs(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)

    def refused_pods(self, app: str) -> list[Object]:
        """The pods of an app for which kube-scheduler has found no node."""
        return [pod for pod in self.pods(app) if condition_of(pod, "PodScheduled").get("reason") == "Unschedulable"]

    def scheduling_problem(self, app: str) -> str:
        """Why kube-scheduler has not placed an app's pods."""
        return " ".join(map(scheduling_message, self.pods(app)))

    def misplaced_pods(self, app: str, *, placed: bool = False) -> list[str]:
        """Pods with a local volume that has no replica there. They are those of the app. With `placed`, only a volume
        counts that has a replica on another node.
        """
        claims = {name_of(entry): entry for entry in self.items(resources.CLAIMS.path("default"))}
        handles = {
            name_of(volume): volume["spec"]["csi"]["volumeHandle"]
            for volume in self.items(resources.PERSISTENT_VOLUMES.path())
            if "csi" in volume["spec"]
        }
        homes: dict[str, set[str]] = {}
        for replica in self.longhorn(resources.LONGHORN_REPLICAS):
            if not replica["spec"].get("failedAt") and "deletionTimestamp" not in replica["metadata"]:
                homes.setdefault(replica["spec"]["volumeName"], set()).add(replica["spec"].get("nodeID", ""))
        misplaced_pods = set()
        for pod in self.pods(app):
            node = node_of(pod)
            for volume in pod["spec"]["volumes"]:
                claim = claims.get(volume.get("persistentVolumeClaim", {}).get("claimName", ""))
                if not node or claim is None:
                    continue
                handle = handles.get(claim["spec"].get("volumeName", ""), "")
                nodes = homes.get(handle, set()) - ({""} if placed else set())
                if node not in nodes and (nodes or not placed):
                    misplaced_pods.add(name_of(pod))
        return sorted(misplaced_pods)

    def replica_bytes(self) -> dict[str, int]:
        """The bytes of the replicas on each disk by its UUID, "" for replicas without one."""
        sizes: dict[str, int] = {}
        for replica in self.longhorn(resources.LONGHORN_REPLICAS):
            disk = replica["spec"].get("diskID", "")
            sizes[disk] = sizes.get(disk, 0) + int(replica["spec"]["volumeSize"])
        return sizes

    def scheduled_bytes(self) -> dict[tuple[str, str], int]:
        """What Longhorn's status says is scheduled, by node and disk."""
        return {
            (name_of(node), name): disk.get("storageScheduled", 0)
            for node in self.longhorn(resources.LONGHORN_NODES)
            for name, disk in disk_statuses(node).items()
        }

    def overbooked_disks(self) -> list[str]:
        """Disks whose replicas add up to more than Longhorn allows now. They arise when two volumes are placed before the status follows."""
        sizes = self.replica_bytes()
        percentage = self.over_provisioning()
        return sorted(
            f"{name_of(node)} {name}"
            for node in self.longhorn(resources.LONGHORN_NODES)
            for uuid, (name, limit) in disk_limits(node, percentage).items()
            if sizes.get(uuid, 0) > limit
        )

    def over_provisioning(self) -> int:
        values = {name_of(setting): setting["value"] for setting in self.longhorn(resources.LONGHORN_SETTINGS)}
        return int(values.get("storage-over-provisioning-percentage", 100))

    def remove(self, *apps: str) -> None:
        for resource in (_STATEFUL_SETS, resources.PODS, resources.CLAIMS):
            for app in apps:
                self.delete_all(resource, f"app={app}", wait=True)
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
                self.cluster.api.delete(resources.PERSISTENT_VOLUMES.path(name=name_of(volume)))
        return self._are_volumes_gone() and self._lists_present_replicas()

    def delete_all(self, resource: resources.Resource, selector: str, *, wait: bool = False) -> None:
        """Deletes the objects of a label selector at once; kubectl would delete five a second. With `wait` they are gone then."""
        path = f"{resource.path('default')}?labelSelector={quote(selector)}"
        # Hundreds of claims take longer than a minute while other tests use the processors.
        self.until(f"the {resource.plural} of {selector} are deleted", lambda: self.cluster.api.delete(path), 180)
        if wait:
            self.until(f"the {resource.plural} of {selector} are gone", lambda: not self.items(path))

    def _are_volumes_gone(self) -> bool:
        """Whether every volume that exists belongs to a claim. A PersistentVolume stays Bound for a moment after its claim is gone."""
        claimed = {claim["spec"].get("volumeName") for claim in self.items(resources.CLAIMS.path())}
        persistent_volumes = self.items(resources.PERSISTENT_VOLUMES.path())
        longhorn_volumes = self.longhorn(resources.LONGHORN_VOLUMES)
        return set(map(name_of, persistent_volumes)) <= claimed and len(longhorn_volumes) == len(persistent_volumes)

    def _lists_present_replicas(self) -> bool:
        """Whether the status of Longhorn's ready nodes lists exactly their replicas. What a node's status lists stays
        as it was while the node has no manager.
        """
        replicas = self.longhorn(resources.LONGHORN_REPLICAS)
        ready_nodes = {
            name_of(node): node
            for node in self.longhorn(resources.LONGHORN_NODES)
            if condition_of(node, "Ready").get("status") == "True"
        }
        listed = {
            name
            for node in ready_nodes.values()
            for disk in disk_statuses(node).values()
            for name in disk.get("scheduledReplica") or {}
        }
        unready_nodes = {replica["spec"].get("nodeID", "") for replica in replicas} - {"", *ready_nodes}
        return listed == {
            name_of(replica) for replica in replicas if replica["spec"].get("nodeID", "") not in unready_nodes
        }

    def until(self, what: str, done: Callable[[], _Value], seconds: float = 60) -> _Value:
        """Waits until `done` returns something true; returns that."""
        return wait_until(what, done, seconds, explain=lambda: f"simulator: {json.dumps(self.status())[:2000]}")


def run_extender(cluster: DevCluster | None, *arguments: str, codes: Sequence[int] = (0, 1), quiet: bool = True) -> str:
    """What a command prints, about the live cluster if there is one; with `quiet` it must print no error or warning."""
    source = () if cluster is None else ("--kubeconfig", str(cluster.kubeconfig))
    done = subprocess.run([EXTENDER, *arguments, *source], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in codes, done.stderr
    assert not quiet or done.stderr == ""
    return done.stdout


def read_metric(url: str, name: str) -> float:
    """The value of a metric of a process; `name` includes the labels."""
    lines = str(http_request(f"{url}/metrics")[1]).splitlines()
    [value] = [line.split()[-1] for line in lines if line.startswith(f"{name} ")]
    return float(value)


def disk_limits(node: Object, percentage: int) -> dict[str, tuple[str, int]]:
    """A Longhorn node's disks by UUID, each with its limit. It has the disk's name, and how many bytes may be promised."""
    limits: dict[str, tuple[str, int]] = {}
    for name, status in disk_statuses(node).items():
        reserved = (node["spec"]["disks"].get(name) or {}).get("storageReserved", 0)
        if status.get("diskUUID"):
            limits[status["diskUUID"]] = name, (status.get("storageMaximum", 0) - reserved) * percentage // 100
    return limits
