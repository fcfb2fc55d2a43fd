"""A cluster with everything a user would run: control plane, Longhorn (simulated), candidates of the extender, and the way to
their leader. The extender runs under its own ServiceAccount with the permissions of manifests/ and nothing else.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import yaml

from devcluster import DevCluster, Options
from devcluster.process import Process
from devcluster.stack import NAMESPACE, SERVICE, primary_address, start_extender, start_forwarder, start_simulator

Object = dict[str, Any]
ROOT: Final = Path(__file__).parents[2]
CONFIGS: Final = ROOT / "kube-scheduler-config"
PROPOSAL: Final = CONFIGS / "proposal.yaml"
RECOMMENDED: Final = CONFIGS / "recommended.yaml"
RECOMMENDED_MANAGED: Final = CONFIGS / "recommended-managed.yaml"
PAUSE: Final = "registry.k8s.io/pause:3.10"  # named only: nothing is pulled here
RESOURCE: Final = "longhorn.io/scheduler-extender"
# Shorter than the defaults in proportion, so that a test of what happens after a leader's death need not wait 15 s.
FAST_LEASE: Final = ("--lease-duration", "6", "--renew-deadline", "4", "--retry-period", "0.5")
LEASE_BOUND: Final = 6.0
_POLL: Final = 0.1
_Value = TypeVar("_Value")


class Rig:
    """One cluster, started by entering it."""

    def __init__(
        self,
        folder: Path,
        *,
        candidates: int = 1,
        config: Path = PROPOSAL,
        simulator: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = FAST_LEASE,
    ) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._candidates = candidates
        self._config = config
        self._simulator = dict(simulator or {})
        self._arguments = list(arguments)
        self._address = ""
        self._ports: dict[str, int] = {}
        self._account = Path()
        self.cluster = DevCluster(folder / "cluster", Options())

    def __enter__(self) -> Self:
        self._stack.enter_context(self.cluster)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        cluster = self.cluster
        cluster.apply(ROOT / "manifests/test-cluster")
        settings = self._folder / "simulator.yaml"
        settings.write_text(yaml.safe_dump(self._simulator))
        self._status_port = cluster.free_port()
        start_simulator(cluster, settings, status_port=self._status_port)
        self._account = cluster.service_account_kubeconfig(NAMESPACE, SERVICE)
        for number in range(1, self._candidates + 1):
            self.start_candidate(f"extender-{number}")
        self._address = start_forwarder(cluster)
        self.until("a candidate answers", self.leader)
        self.use_config(self._config)

    def use_config(self, config: Path) -> None:
        """Restarts kube-scheduler with one of the files users install; only addresses and credentials are this machine's."""
        self.cluster.use_scheduler_config(config, url_prefix=self._address)

    def start_candidate(self, name: str) -> Process:
        """One more process of the extender; a name used before gets its port again."""
        port = self._ports.setdefault(name, 0) or self.cluster.free_port()
        self._ports[name] = port
        arguments = ["--identity", name, "--node-name", name, *self._arguments]
        return start_extender(self.cluster, name, self._account, port, arguments)

    @property
    def candidates(self) -> list[str]:
        """The names of the running candidates."""
        return [name for name in self._ports if self.cluster.processes[name].running]

    def leader(self) -> str:
        """The candidate that answers now; "" for none.

        Raises:
            AssertionError: several do
        """
        answering = [name for name in self.candidates if self.answers(name)]
        assert len(answering) <= 1, f"two leaders: {answering}"
        return answering[0] if answering else ""

    def answers(self, name: str) -> bool:
        """Whether a candidate answers kube-scheduler's verbs."""
        return self.ask(name, "/filter", {"Pod": {"metadata": {"name": "probe"}}, "NodeNames": []})[0] == 200

    def ask(self, name: str, path: str, body: object | None = None, seconds: float = 15) -> tuple[int, Any]:
        """Asks one candidate; status 0 means that nothing answered."""
        url = f"http://{primary_address()}:{self._ports[name]}{path}"
        return _http(url, body, seconds)

    def status(self) -> Object:
        """What the simulator sees."""
        return dict(_http(f"http://127.0.0.1:{self._status_port}/status", None, 5)[1])

    def add_nodes(self, group: str, disks: Mapping[str, Sequence[str]]) -> None:
        """Nodes by name with the sizes of their disks; pods of `group` run on these alone.

        Returns once Longhorn reports every disk, and kube-scheduler may know their capacity.
        """
        for name, sizes in disks.items():
            layout = [{"name": f"disk-{index}", "size": size} for index, size in enumerate(sizes, start=1)]
            self.cluster.create_node(name, labels={"group": group}, annotations={"simulator/disks": json.dumps(layout)})
        self.cluster.wait_nodes_ready()
        self.until("Longhorn reports the disks", lambda: all(self._reported(name, len(disks[name])) for name in disks))
        time.sleep(1.5)  # CSIStorageCapacity follows a second later

    def load(self, node: str, share: float) -> None:
        """Gives a node other work: one pod that requests this share of its CPU and memory."""
        requests = {"cpu": f"{int(32_000 * share)}m", "memory": f"{int(256 * share)}Gi"}
        container = {"name": "work", "image": PAUSE, "resources": {"requests": requests}}
        metadata = {"name": f"work-on-{node}", "namespace": "default"}
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
        self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def remove_nodes(self, names: Iterable[str]) -> None:
        """Takes nodes away, and Longhorn's with them."""
        for name in names:
            self.cluster.api.delete(f"/api/v1/nodes/{name}")
            self.cluster.kubectl(
                "-n", NAMESPACE, "delete", "nodes.longhorn.io", name, "--ignore-not-found", "--wait=false"
            )

    def _reported(self, name: str, count: int) -> bool:
        found = [
            node
            for node in self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/nodes")
            if _name(node) == name
        ]
        disks = (found[0].get("status") or {}).get("diskStatus", {}) if found else {}
        return len(disks) == count and all(disk.get("storageMaximum") for disk in disks.values())

    def items(self, path: str) -> list[Object]:
        """The objects of a collection."""
        return list(self.cluster.api.get(path)["items"])

    def create(self, *objects: Object) -> None:
        """Applies objects."""
        self.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))

    def pods(self, app: str) -> list[Object]:
        """The pods of an app."""
        return self.items(f"/api/v1/namespaces/default/pods?labelSelector=app%3D{app}")

    def nodes_of(self, app: str) -> dict[str, str]:
        """The node of each of an app's pods, "" for none."""
        return {_name(pod): pod["spec"].get("nodeName", "") for pod in self.pods(app)}

    def ready(self, app: str, count: int) -> bool:
        """Whether so many of an app's pods are Running, and no others are there."""
        pods = self.pods(app)
        return len(pods) == count and all(
            pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"] for pod in pods
        )

    def misplaced(self, app: str) -> list[str]:
        """The app's pods that have a local volume without a replica on their node."""
        claims = {_name(entry): entry for entry in self.items("/api/v1/namespaces/default/persistentvolumeclaims")}
        homes: dict[str, set[str]] = {}
        for replica in self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/replicas"):
            homes.setdefault(replica["spec"]["volumeName"], set()).add(replica["spec"].get("nodeID", ""))
        found = []
        for pod in self.pods(app):
            node = pod["spec"].get("nodeName")
            for volume in pod["spec"]["volumes"]:
                claim = claims.get(volume.get("persistentVolumeClaim", {}).get("claimName", ""))
                if node and claim is not None and node not in homes.get(claim["spec"].get("volumeName", ""), set()):
                    found.append(_name(pod))
        return sorted(set(found))

    def overfull(self) -> list[str]:
        """The disks whose replicas add up to more than Longhorn allows: two volumes were placed before the status followed."""
        sizes: dict[str, int] = {}
        for replica in self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/replicas"):
            disk = replica["spec"].get("diskID", "")
            sizes[disk] = sizes.get(disk, 0) + int(replica["spec"]["volumeSize"])
        found = []
        for node in self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/nodes"):
            for name, disk in (node.get("status") or {}).get("diskStatus", {}).items():
                limit = disk.get("storageMaximum", 0) - node["spec"]["disks"][name].get("storageReserved", 0)
                if sizes.get(disk.get("diskUUID", ""), 0) > limit:
                    found.append(f"{_name(node)} {name}")
        return sorted(found)

    def remove(self, app: str) -> None:
        """Deletes an app's StatefulSet and pods, its claims and their volumes, and waits until their space is free again."""
        kubectl = self.cluster.kubectl
        kubectl("delete", "statefulset,pod", "-l", f"app={app}", "--wait=true", "--timeout=60s", "--ignore-not-found")
        kubectl("delete", "pvc", "-l", f"app={app}", "--wait=true", "--timeout=60s", "--ignore-not-found")
        for volume in self.items("/api/v1/persistentvolumes"):
            if (
                volume["status"].get("phase") == "Released"
                and volume["spec"].get("persistentVolumeReclaimPolicy") == "Retain"
            ):
                kubectl("delete", "pv", _name(volume), "--wait=false")
                handle = volume["spec"]["csi"]["volumeHandle"]
                kubectl("-n", NAMESPACE, "delete", "volumes.longhorn.io", handle, "--wait=false", "--ignore-not-found")
        self.until(f"the volumes of {app} are gone", lambda: self._volumes_gone() and self._freed())

    def _volumes_gone(self) -> bool:
        return all(
            volume["status"].get("phase") == "Bound" for volume in self.items("/api/v1/persistentvolumes")
        ) and len(self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/volumes")) == len(
            self.items("/api/v1/persistentvolumes")
        )

    def _freed(self) -> bool:
        """Whether Longhorn's status lists only replicas that exist, and lists them all."""
        replicas = {_name(entry) for entry in self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/replicas")}
        listed: set[str] = set()
        for node in self.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/nodes"):
            for disk in (node.get("status") or {}).get("diskStatus", {}).values():
                listed |= set(disk.get("scheduledReplica") or {})
        return listed == replicas

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
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"waited {seconds:g} s in vain: {what}; simulator: {json.dumps(self.status())[:2000]}"
                )
            time.sleep(_POLL)


def statefulset(  # what the test plan varies
    app: str,
    *,
    group: str,
    replicas: int,
    storage_class: str = "longhorn-local",
    claims: int = 1,
    size: str = "100Gi",
    asks: bool = True,
    parallel: bool = True,
) -> Object:
    """A StatefulSet as in the test plan; `asks` requests the extended resource."""
    resources = {RESOURCE: "1"} if asks else {}
    names = [f"data-{index}" for index in range(claims)]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": app, "namespace": "default", "labels": {"app": app}},
        "spec": {
            "replicas": replicas,
            "podManagementPolicy": "Parallel" if parallel else "OrderedReady",
            "serviceName": app,
            "selector": {"matchLabels": {"app": app}},
            "template": {
                "metadata": {"labels": {"app": app}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "nodeSelector": {"group": group},
                    "containers": [
                        {
                            "name": "db",
                            "image": PAUSE,
                            "resources": {"requests": resources, "limits": resources},
                            "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in names],
                        }
                    ],
                },
            },
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": name, "labels": {"app": app}},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "storageClassName": storage_class,
                        "resources": {"requests": {"storage": size}},
                    },
                }
                for name in names
            ],
        },
    }


def _name(raw: Object) -> str:
    return str(raw["metadata"]["name"])


def _http(url: str, body: object | None, seconds: float) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 # our own process
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, str(error)
