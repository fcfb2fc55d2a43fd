"""The Kubernetes objects that tests create, and what they read of objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.images import ENGINE_IMAGE
from tests import builders

Object = builders.Object

PAUSE = "registry.k8s.io/pause:3.10"  # named only: nothing is pulled here
RESOURCE = "longhorn.io/scheduler-extender"
HOSTNAME = "kubernetes.io/hostname"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
LOCAL = "longhorn-local"
RUNNING = "Running"


def name_of(raw: Object) -> str:
    return str(raw["metadata"]["name"])


def node_of(pod: Object) -> str:
    return str(pod["spec"].get("nodeName") or "")


def runs(pod: Object) -> bool:
    return bool(pod["status"].get("phase") == RUNNING)


def condition_of(raw: Object, kind: str) -> Object:
    """An object's condition of a kind, {} without one."""
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return next((dict(entry) for entry in conditions if entry["type"] == kind), {})


def scheduling_message(pod: Object) -> str:
    """Why kube-scheduler has found no node for a pod, "" if it has not said so."""
    return str(condition_of(pod, "PodScheduled").get("message", ""))


def selected_node(claim: Object) -> str:
    """The node that kube-scheduler has chosen for a claim, "" for none."""
    return str((claim["metadata"].get("annotations") or {}).get(SELECTED_NODE, ""))


def claim_of(name: str, size: str, storage_class: str, labels: Mapping[str, str] | None = None, **spec: Any) -> Object:
    """A claim; further spec fields by their API names."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "labels": dict(labels or {})},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
            **spec,
        },
    }


def asking_pod(name: str, claims: Sequence[str], selector: Mapping[str, str]) -> Object:
    """A pod that requests the extender and mounts claims."""
    spec = {
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": dict(selector),
        "containers": [{"name": "db", "image": PAUSE, "resources": _resources(asks=True)}],
        "volumes": [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _resources(*, asks: bool) -> Object:
    amounts = {RESOURCE: "1"} if asks else {}
    return {"requests": dict(amounts), "limits": dict(amounts)}


def longhorn_volume(name: str, size: float = 100, **spec: Any) -> Object:
    """A detached Longhorn volume of some Gi that was never attached."""
    fields = {"image": ENGINE_IMAGE, "frontend": "blockdev", "nodeID": "", "nodeSelector": [], "diskSelector": []}
    return builders.volume(name, size, **{**fields, **spec})


def retained_volume(name: str, size: str, storage_class: str, **spec: Any) -> Object:
    """A PersistentVolume of the Longhorn volume of its name."""
    csi = {"driver": "driver.longhorn.io", "volumeHandle": name}
    fields = {"persistentVolumeReclaimPolicy": "Retain", "csi": csi, **spec}
    return builders.available_volume(name, size, storage_class=storage_class, **fields)


@dataclass(frozen=True, slots=True)
class Volume:
    """A claim of a pod."""

    size: str = "100Gi"
    storage_class: str = LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The common properties of an app's pods."""

    app: str  # the label ``app`` of pods and claims, and the prefix of their names
    group: str  # the label ``group`` of the nodes that they may run on
    volumes: Sequence[Volume] = (Volume(),)  # a claim for each
    # Whether they request the extended resource, and so the extender where the configuration manages it.
    asks: bool = True
    labels: Mapping[str, str] | None = None  # additional labels of pods and claims
    only: str = ""  # the only node that kube-scheduler may choose; "": any node of the group
    node: str = ""  # the node, chosen without kube-scheduler; "": kube-scheduler chooses

    @property
    def _labels(self) -> Object:
        return {"app": self.app, **(self.labels or {})}

    def pod_spec(self) -> Object:
        """A pod's spec without its volumes."""
        mounts = [{"name": name, "mountPath": f"/{name}"} for name in self._claims()]
        spec: Object = {
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"group": self.group, **({HOSTNAME: self.only} if self.only else {})},
            "containers": [
                {"name": "db", "image": PAUSE, "resources": _resources(asks=self.asks), "volumeMounts": mounts}
            ],
        }
        return {**spec, "nodeName": self.node} if self.node else spec

    def _claims(self) -> list[str]:
        return [f"data-{index}" for index in range(len(self.volumes))]

    def _claim(self, name: str, volume: Volume) -> Object:
        return claim_of(name, volume.size, volume.storage_class, self._labels)

    def loose(self, number: int = 0) -> list[Object]:
        """The claims of a pod without a controller, and the pod."""
        pod = f"{self.app}-{number}"
        names = {name: f"{name}-{pod}" for name in self._claims()}
        volumes = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in names.items()]
        return [
            *(self._claim(names[name], volume) for name, volume in zip(names, self.volumes, strict=True)),
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": pod, "namespace": "default", "labels": self._labels},
                "spec": {**self.pod_spec(), "volumes": volumes},
            },
        ]

    def statefulset(self, replicas: int, *, parallel: bool = True) -> Object:
        """A StatefulSet with some replicas."""
        return {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": self.app, "namespace": "default", "labels": self._labels},
            "spec": {
                "replicas": replicas,
                "podManagementPolicy": "Parallel" if parallel else "OrderedReady",
                "serviceName": self.app,
                "selector": {"matchLabels": {"app": self.app}},
                "template": {"metadata": {"labels": self._labels}, "spec": self.pod_spec()},
                "volumeClaimTemplates": [
                    self._claim(name, volume) for name, volume in zip(self._claims(), self.volumes, strict=True)
                ],
            },
        }


def statefulset(  # what the test plan varies
    app: str,
    *,
    group: str,
    replicas: int,
    storage_class: str = LOCAL,
    claims: int = 1,
    size: str = "100Gi",
    asks: bool = True,
) -> Object:
    """A StatefulSet of the test plan; `asks` requests the extended resource."""
    volumes = [Volume(size, storage_class)] * claims
    return Workload(app=app, group=group, volumes=volumes, asks=asks).statefulset(replicas)
