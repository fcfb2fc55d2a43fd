"""The Kubernetes objects tests create: pods with claims, alone or by StatefulSets."""

from __future__ import annotations

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
    """One claim of a pod."""

    size: str = "100Gi"
    storage_class: str = LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What pods of one app are like.

    Attributes:
        app: their label ``app``, their claims' too, and what their names begin with
        group: they only run on nodes with this label ``group``
        volumes: a claim for each
        asks: whether they request the extended resource, and so are asked about where the configuration manages it
        labels: more labels of pods and claims
        only: the one node kube-scheduler may choose; "" for any of the group
        node: their node, chosen without kube-scheduler; "" leaves it to kube-scheduler
    """

    app: str
    group: str
    volumes: Sequence[Volume] = (Volume(),)
    asks: bool = True
    labels: Mapping[str, str] | None = None
    only: str = ""
    node: str = ""

    @property
    def _labels(self) -> Object:
        return {"app": self.app, **(self.labels or {})}

    def pod_spec(self) -> Object:
        """A pod's spec, without its volumes."""
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
        """A claim."""
        return {
            "metadata": {"name": name, "labels": self._labels},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": volume.storage_class,
                "resources": {"requests": {"storage": volume.size}},
            },
        }

    def loose(self, number: int = 0) -> list[Object]:
        """One pod that nobody brings back, after its claims."""
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
        """So many pods of a StatefulSet."""
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
    """A StatefulSet as in the test plan; `asks` requests the extended resource."""
    workload = Workload(app=app, group=group, volumes=[Volume(size, storage_class)] * claims, asks=asks)
    return workload.statefulset(replicas, parallel=parallel)
