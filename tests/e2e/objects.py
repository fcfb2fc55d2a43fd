"""The Kubernetes objects that tests create: pods with claims, loose or of StatefulSets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Object = dict[str, Any]

PAUSE: Final = "registry.k8s.io/pause:3.10"  # named only: nothing is pulled here
RESOURCE: Final = "longhorn.io/scheduler-extender"
HOSTNAME: Final = "kubernetes.io/hostname"
LOCAL: Final = "longhorn-local"


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
        resources = {RESOURCE: "1"} if self.asks else {}
        mounts = [{"name": name, "mountPath": f"/{name}"} for name in self._claims()]
        spec: Object = {
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"group": self.group, **({HOSTNAME: self.only} if self.only else {})},
            "containers": [
                {
                    "name": "db",
                    "image": PAUSE,
                    "resources": {"requests": resources, "limits": resources},
                    "volumeMounts": mounts,
                }
            ],
        }
        return {**spec, "nodeName": self.node} if self.node else spec

    def _claims(self) -> list[str]:
        return [f"data-{index}" for index in range(len(self.volumes))]

    def claim(self, name: str, volume: Volume) -> Object:
        """A claim for a volume."""
        return {
            "metadata": {"name": name, "labels": self._labels},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": volume.storage_class,
                "resources": {"requests": {"storage": volume.size}},
            },
        }

    def loose(self, number: int = 0) -> list[Object]:
        """The claims of a pod without a controller, and the pod."""
        pod = f"{self.app}-{number}"
        names = {name: f"{name}-{pod}" for name in self._claims()}
        volumes = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in names.items()]
        return [
            *(
                {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **self.claim(names[name], volume)}
                for name, volume in zip(names, self.volumes, strict=True)
            ),
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
                    self.claim(name, volume) for name, volume in zip(self._claims(), self.volumes, strict=True)
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
    parallel: bool = True,
) -> Object:
    """A StatefulSet of the test plan; `asks` requests the extended resource."""
    workload = Workload(app=app, group=group, volumes=[Volume(size, storage_class)] * claims, asks=asks)
    return workload.statefulset(replicas, parallel=parallel)
