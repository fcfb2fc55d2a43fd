"""A real control plane with the simulator in it, and the objects tests put there."""

import json
import sys
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from app.kube.resources import CAPACITIES, CLAIMS, LONGHORN_NODES, LONGHORN_REPLICAS, LONGHORN_VOLUMES, PODS, Resource
from devcluster.dev_cluster import DevCluster
from devcluster.polling import wait_until
from devcluster.process import log_has

Json = dict[str, Any]
_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)

SECONDS = 60.0
CONFIG: Mapping[str, Any] = {
    "provision_seconds": [0.1, 0.3],
    "publish_seconds": [0.0, 0.1],
    "publish_poll": 0.1,
    "publish_timeout": 2,
    "placement_seconds": [0.005, 0.1],
    "attach_seconds": [0.05, 0.1],
    "detach_seconds": [0.05, 0.1],
    "start_seconds": [0.05, 0.1],
    "rebuild_seconds": [0.2, 0.4],
    "delete_seconds": [0.1, 0.2],
    "status_period": 0.5,
    "status_lag": [0.1, 0.2],
    "freed_lag": [0.1, 0.2],
    "capacity_period": 0.5,
    "schedule_retry": 1,
    "strict_local_retry": 1,
    "attach_retry": 0.3,
    "attach_retry_limit": 1,
    "stuck_after": 1,
}


class Rig:
    """The cluster and its simulator."""

    def __init__(self, cluster: DevCluster, folder: Path, **changes: object) -> None:
        self.cluster = cluster
        self.port = cluster.free_port()
        config = folder / "simulator.yaml"
        config.write_text(yaml.safe_dump({**CONFIG, **changes}))
        arguments = [sys.executable, "-m", "simulator", "--kubeconfig", str(cluster.kubeconfig)]
        arguments += ["--config", str(config), "--status-port", str(self.port)]
        self.simulator = cluster.spawn("simulator", arguments, ready=log_has('"event": "ready"'))

    def status(self) -> Json:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=5) as answer:
            status: Json = json.load(answer)
        return status

    def list(self, kind: Resource, namespace: str = "") -> list[Json]:
        items: list[Json] = self.cluster.api.get(kind.path(namespace))["items"]
        return items

    def find(self, kind: Resource, name: str, namespace: str = "") -> Json | None:
        """One object of a kind, None if there is none."""
        return next((each for each in self.list(kind, namespace) if each["metadata"]["name"] == name), None)

    def apply(self, *objects: Json) -> None:
        self.cluster.kubectl(
            "apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )


def until(what: str, done: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Waits until `done` returns a true value; returns that value."""
    return wait_until(what, done, seconds)


class Scene:
    """A namespace and nodes of one test; pods of the scene run only on these nodes."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = name
        self.nodes: list[str] = []
        rig.cluster.kubectl("create", "namespace", name)
        until("default service account", lambda: rig.list(_ACCOUNTS, name))

    def add_nodes(self, *sizes: str) -> list[str]:
        """Adds nodes with one disk each, and waits for Longhorn's nodes and the storage capacities."""
        names = [self._create_node(size) for size in sizes]
        until("nodes ready", lambda: all(self._ready(name) for name in names))
        return names

    def add_node(self, *sizes: str) -> str:
        name = self._create_node(*sizes)
        until("node ready", lambda: self._ready(name))
        return name

    def _create_node(self, *sizes: str) -> str:
        name = f"{self.name}-{len(self.nodes) + 1}"
        self.nodes.append(name)
        disks = [{"name": f"disk-{number}", "size": size} for number, size in enumerate(sizes, start=1)]
        self.rig.cluster.create_node(name, {"scene": self.name}, {"simulator/disks": json.dumps(disks)})
        return name

    def _ready(self, name: str) -> bool:
        node = self.rig.find(LONGHORN_NODES, name)
        reported = any(
            each["nodeTopology"]["matchLabels"] == {"kubernetes.io/hostname": name} and each["capacity"] != "0"
            for each in self.rig.list(CAPACITIES)
        )
        return node is not None and reported and _condition(node, "Ready") == "True"

    def add_provisioned(self, name: str, size: str, storage_class: str, node: str) -> None:
        """Adds a claim whose volume is provisioned before any pod exists; no filter is called for it."""
        self.add_claim(name, size, storage_class, **{"volume.kubernetes.io/selected-node": node})
        until(f"claim {name} bound", lambda: self.volume(name))

    def force_pod(self, name: str, node: str, *claims: str) -> None:
        """Adds a pod with its node set, so that no scheduler checks the free space."""
        raw = pod(self.name, name, claims, node)
        self.rig.apply({**raw, "spec": {**raw["spec"], "nodeName": node}})

    def add_claim(self, name: str, size: str, storage_class: str = "longhorn-local", **annotations: str) -> None:
        self.rig.apply(claim(self.name, name, size, storage_class, annotations))

    def add_pod(self, name: str, *claims: str, node: str = "") -> None:
        self.rig.apply(pod(self.name, name, claims, node))

    def start(self, size: str, node: str, storage_class: str = "longhorn-local", pod_name: str = "app") -> None:
        """Adds a claim `data` and a pod with it, and waits until the pod runs."""
        self.add_claim("data", size, storage_class)
        self.add_pod(pod_name, "data", node=node)
        until("pod runs", lambda: self.running(pod_name))

    def running(self, *pods: str) -> bool:
        phases = {each["metadata"]["name"]: each["status"].get("phase") for each in self.rig.list(PODS, self.name)}
        return all(phases.get(name) == "Running" for name in pods)

    def volume(self, claim_name: str) -> Json | None:
        claim = self.rig.find(CLAIMS, claim_name, self.name)
        return self.rig.find(LONGHORN_VOLUMES, claim["spec"].get("volumeName", "")) if claim is not None else None

    def replicas(self, claim_name: str) -> list[Json]:
        volume = self.volume(claim_name)
        name = volume["metadata"]["name"] if volume else None
        return [each for each in self.rig.list(LONGHORN_REPLICAS) if each["spec"]["volumeName"] == name]

    def replica_nodes(self, claim_name: str) -> list[str]:
        return sorted(each["spec"]["nodeID"] for each in self.replicas(claim_name) if each["spec"]["nodeID"])

    def clean(self) -> None:
        """Deletes all objects of the scene."""
        kubectl = self.rig.cluster.kubectl
        kubectl("delete", "pod,pvc", "--all", "-n", self.name, "--wait=false")
        until("pods gone", lambda: not self.rig.list(PODS, self.name) + self.rig.list(CLAIMS, self.name))
        kubectl("delete", "namespace", self.name, "--wait=false")
        if self.nodes:
            kubectl("delete", "node", *self.nodes, "--wait=false")
            kubectl("delete", "lhn", *self.nodes, "-n", "longhorn-system", "--wait=false", check=False)


def claim(namespace: str, name: str, size: str, storage_class: str, annotations: Mapping[str, str]) -> Json:
    """A claim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "annotations": dict(annotations)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
        },
    }


def pod(namespace: str, name: str, claims: tuple[str, ...], node: str) -> Json:
    """A pod with claims."""
    selector = {"scene": namespace, **({"kubernetes.io/hostname": node} if node else {})}
    volumes = [{"name": f"v{index}", "persistentVolumeClaim": {"claimName": each}} for index, each in enumerate(claims)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeSelector": selector,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none"}],
            "volumes": volumes,
        },
    }


def _condition(obj: Json, kind: str) -> str:
    conditions = obj.get("status", {}).get("conditions") or []
    return next((each["status"] for each in conditions if each["type"] == kind), "Unknown")
