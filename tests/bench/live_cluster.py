"""The objects of a large cluster, about as large as real ones. The benchmark of the live caches uses them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from app.kube.resources import LONGHORN_NAMESPACE
from tests.bench import cluster

Object = dict[str, Any]
GI = cluster.GI
STORAGE: dict[str, dict[str, str]] = {
    "any disk": {},
    "tagged disks": {"diskSelector": "ssd"},
    "other tagged disks": {"diskSelector": "hdd"},
    "tagged nodes": {"nodeSelector": "storage"},
    "both": {"diskSelector": "ssd", "nodeSelector": "storage"},
    "both, others": {"diskSelector": "hdd", "nodeSelector": "storage"},
}
NOISE = [
    {"manager": name, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
     "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}}}, "f:spec": {"f:x": {}}}}
    for name in ("kube-controller-manager", "kubelet")
]  # fmt: skip


def uid(index: int) -> str:
    return f"{index:08x}-0000-4000-8000-{index:012x}"


def timestamp(index: int) -> str:
    return f"2026-01-{index // 86400 + 1:02}T{index // 3600 % 24:02}:{index // 60 % 60:02}:{index % 60:02}Z"


def meta(name: str, namespace: str = "", index: int = 0, **more: Any) -> Object:
    """Metadata about as large as real metadata."""
    scope = {"namespace": namespace} if namespace else {}
    labels = {
        "app.kubernetes.io/name": "orders",
        "app.kubernetes.io/instance": f"orders-{index % 500}",
        "tier": "backend",
    }
    return {
        "name": name, **scope, "uid": uid(index), "resourceVersion": str(1000 + index), "labels": labels,
        "creationTimestamp": timestamp(index), "managedFields": NOISE, **more,
    }  # fmt: skip


@dataclass(frozen=True)
class Objects:
    """The objects of a cluster with some number of nodes."""

    nodes: int

    @property
    def volumes(self) -> int:
        """Number of volumes: four per node."""
        return 4 * self.nodes

    def of(self, field: str) -> Iterator[Object]:
        """All objects of a field of the snapshot; of some kinds the cluster has none."""
        counts: dict[str, tuple[int, Callable[[int], Object]]] = {
            "nodes": (self.nodes, self.node),
            "pods": (20 * self.nodes, self.pod),
            "claims": (self.volumes, self.claim),
            "persistent_volumes": (self.volumes, self.persistent_volume),
            "storage_classes": (len(STORAGE), self.storage_class),
            "volume_attachments": (self.volumes, self.volume_attachment),
            "longhorn_nodes": (self.nodes, self.longhorn_node),
            "volumes": (self.volumes, self.volume),
            "replicas": (2 * self.volumes, self.replica),
            "settings": (3, self.setting),
            "engine_images": (1, self.engine_image),
            "instance_managers": (self.nodes, self.instance_manager),
            "backing_images": (5, self.backing_image),
        }
        count, make = counts.get(field, (0, self.node))
        return map(make, range(count))

    def node_name(self, index: int) -> str:
        return cluster.name_of(index % self.nodes)

    def node(self, index: int) -> Object:
        """A Kubernetes node of 10 kB."""
        conditions = [{"type": kind, "status": "False", "reason": f"Kubelet{kind}", "message": f"kubelet has {kind}",
                       "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": timestamp(index)}
                      for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")]  # fmt: skip
        images = [{"names": ["registry.example/app@sha256:" + "a" * 64], "sizeBytes": 123456789}] * 60
        name = cluster.name_of(index)
        labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{index % 3}", "kubernetes.io/os": "linux",
                  "kubernetes.io/arch": "amd64", "node.kubernetes.io/instance-type": "m5.4xlarge"}  # fmt: skip
        return {"metadata": meta(name, index=index, labels=labels), "spec": {"podCIDR": "10.0.0.0/24"},
                "status": {"conditions": conditions, "images": images}}  # fmt: skip

    def pod(self, index: int) -> Object:
        """A pod of 3 kB; every fifth mounts a claim."""
        claim = index // 5
        volumes: list[Object] = [
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
        ]
        if index % 5 == 0:
            volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": f"data-orders-{claim}"}})
        env = [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(12)]
        container = {"name": "main", "image": "registry.example/orders:v1.2.3", "env": env}
        status = {"phase": "Running", "hostIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}] * 4}
        spec = {"nodeName": self.node_name(claim), "volumes": volumes, "containers": [container]}
        return {"metadata": meta(f"orders-{index}", f"team-{index % 50}", index), "spec": spec, "status": status}

    def claim(self, index: int) -> Object:
        """A bound claim."""
        note = {"volume.kubernetes.io/selected-node": self.node_name(index), "pv.kubernetes.io/bind-completed": "yes"}
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}},
                "storageClassName": "longhorn", "volumeName": f"pvc-{uid(index)}"}  # fmt: skip
        metadata = meta(f"data-orders-{index}", f"team-{index * 5 % 50}", index, annotations=note)
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}}

    def persistent_volume(self, index: int) -> Object:
        handle = f"pvc-{uid(index)}"
        reference = {"namespace": f"team-{index * 5 % 50}", "name": f"data-orders-{index}", "uid": uid(index)}
        csi = {"driver": "driver.longhorn.io", "volumeHandle": handle, "volumeAttributes": {"a": "b" * 100}}
        return {"metadata": meta(handle, index=index), "spec": {"csi": csi, "claimRef": reference}}

    def storage_class(self, index: int) -> Object:
        parameters = {"numberOfReplicas": "1", "dataLocality": "best-effort", **list(STORAGE.values())[index]}
        return {"metadata": meta(f"storage-{index}"), "provisioner": "driver.longhorn.io", "parameters": parameters}

    def volume_attachment(self, index: int) -> Object:
        spec = {"attacher": "driver.longhorn.io", "nodeName": self.node_name(index),
                "source": {"persistentVolumeName": f"pvc-{uid(index)}"}}  # fmt: skip
        return {"metadata": meta(f"csi-{'0' * 56}{index:08x}", index=index), "spec": spec, "status": {"attached": True}}

    def longhorn_node(self, index: int, available: int = 200 * GI) -> Object:
        """A node of two disks that list four replicas each."""
        good = [{"type": kind, "status": "True", "reason": "", "message": "", "lastProbeTime": "",
                 "lastTransitionTime": timestamp(index)} for kind in ("Ready", "Schedulable")]  # fmt: skip
        name = cluster.name_of(index)
        disks = {}
        status = {}
        for disk in range(2):
            tags = ["ssd"] if (index + disk) % 2 else ["hdd"]
            disks[f"default-disk-{disk}"] = {"path": f"/var/lib/longhorn-{disk}/", "allowScheduling": True, "diskType": "filesystem",
                                             "storageReserved": 30 * GI, "tags": tags}  # fmt: skip
            listed = {self.replica_name(number): 10 * GI for number in self.replicas_on(index) if number % 2 == disk}
            status[f"default-disk-{disk}"] = {
                "conditions": good, "diskUUID": uid(2 * index + disk), "diskType": "filesystem", "filesystemType": "ext4",
                "storageMaximum": 400 * GI, "storageAvailable": available - index * 4096, "storageScheduled": len(listed) * 10 * GI,
                "scheduledReplica": listed, "diskPath": f"/var/lib/longhorn-{disk}/", "instanceManagerName": "instance-manager-x" * 2,
            }  # fmt: skip
        spec = {"allowScheduling": True, "tags": ["storage"] if index % 4 else [], "disks": disks}
        node_status = {"conditions": good * 3, "diskStatus": status, "zone": f"zone-{index % 3}", "region": "here"}
        return {"metadata": meta(name, LONGHORN_NAMESPACE, index), "spec": spec, "status": node_status}

    def replicas_on(self, node: int) -> range:
        return range(8 * node, 8 * node + 8)

    def replica_name(self, index: int) -> str:
        return f"pvc-{uid(index // 2)}-r-{index:08x}"

    def volume(self, index: int, actual: int = GI) -> Object:
        """A volume of two replicas."""
        spec = {"size": str(10 * GI), "numberOfReplicas": 2, "dataLocality": "best-effort", "dataEngine": "v1", "accessMode": "rwo",
                "image": "longhornio/longhorn-engine:v1.9.0", "nodeID": self.node_name(index), "frontend": "blockdev",
                "diskSelector": [], "nodeSelector": [], "replicaSoftAntiAffinity": "ignored", "replicaZoneSoftAntiAffinity": "ignored",
                "replicaDiskSoftAntiAffinity": "ignored", "replicaAutoBalance": "ignored"}  # fmt: skip
        status = {"actualSize": actual, "currentNodeID": self.node_name(index), "state": "attached", "robustness": "healthy",
                  "conditions": [{"type": "Scheduled", "status": "True"}] * 4}  # fmt: skip
        return {"metadata": meta(f"pvc-{uid(index)}", LONGHORN_NAMESPACE, index), "spec": spec, "status": status}

    def replica(self, index: int, disk: str = "") -> Object:
        """A replica on the node and disk whose status lists it."""
        node = index // 8
        spec = {"volumeName": f"pvc-{uid(index // 2)}", "volumeSize": str(10 * GI), "nodeID": cluster.name_of(node),
                "diskID": disk or uid(2 * node + index % 2), "diskPath": f"/var/lib/longhorn-{index % 2}/", "dataEngine": "v1",
                "image": "longhornio/longhorn-engine:v1.9.0", "active": True, "healthyAt": timestamp(index), "failedAt": "",
                "dataDirectoryName": f"pvc-{uid(index // 2)}-{index:08x}", "desireState": "running"}  # fmt: skip
        status = {"currentState": "running", "instanceManagerName": "instance-manager-" + "x" * 32, "port": 10000}
        return {"metadata": meta(self.replica_name(index), LONGHORN_NAMESPACE, index), "spec": spec, "status": status}

    def setting(self, index: int) -> Object:
        name = ("storage-over-provisioning-percentage", "storage-minimal-available-percentage", "backup-target")[index]
        return {"metadata": meta(name, LONGHORN_NAMESPACE), "value": ("100", "10", "")[index]}

    def engine_image(self, index: int) -> Object:
        deployed = {cluster.name_of(number): True for number in range(self.nodes)}
        return {"metadata": meta(f"ei-{index}", LONGHORN_NAMESPACE), "spec": {"image": "longhornio/longhorn-engine:v1.9.0"},
                "status": {"state": "deployed", "nodeDeploymentMap": deployed}}  # fmt: skip

    def instance_manager(self, index: int) -> Object:
        """The instance manager of a node, with its instances."""
        instances = {
            self.replica_name(number): {"spec": {"name": "x"}, "status": {"state": "running"}}
            for number in self.replicas_on(index)
        }
        spec = {
            "nodeID": cluster.name_of(index),
            "dataEngine": "v1",
            "image": "longhornio/longhorn-instance-manager:v1.9.0",
        }
        status = {"currentState": "running", "instanceReplicas": instances}
        metadata = meta(f"instance-manager-{index:032x}", LONGHORN_NAMESPACE, index)
        return {"metadata": metadata, "spec": spec, "status": status}

    def backing_image(self, index: int) -> Object:
        """A backing image without volumes."""
        return {"metadata": meta(f"image-{index}", LONGHORN_NAMESPACE), "spec": {}, "status": {"realSize": GI}}
