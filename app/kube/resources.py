"""The REST path of each kind on the API server."""

from typing import Final
from urllib.parse import quote

from msgspec import Struct

LONGHORN_NAMESPACE: Final = "longhorn-system"


class Resource(Struct, frozen=True):
    """One kind: its API group ("" for core), version and names."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def label(self) -> str:
        """The kind as RBAC and kubectl name it, such as ``volumes.longhorn.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Returns the path of the collection, an object or its subresource. Without `namespace` it is the collection of
        all namespaces.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


NODES: Final = Resource("", "v1", "nodes", "Node")
PODS: Final = Resource("", "v1", "pods", "Pod", namespaced=True)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace")
REPLICATION_CONTROLLERS: Final = Resource("", "v1", "replicationcontrollers", "ReplicationController", namespaced=True)
REPLICA_SETS: Final = Resource("apps", "v1", "replicasets", "ReplicaSet", namespaced=True)
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", namespaced=True)
PERSISTENT_VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume")
EVENTS: Final = Resource("", "v1", "events", "Event", namespaced=True)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
SERVICES: Final = Resource("", "v1", "services", "Service", namespaced=True)
SECRETS: Final = Resource("", "v1", "secrets", "Secret", namespaced=True)
DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True)
STORAGE_CLASSES: Final = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass")
VOLUME_ATTACHMENTS: Final = Resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment")
CAPACITIES: Final = Resource("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", namespaced=True)
CSI_NODES: Final = Resource("storage.k8s.io", "v1", "csinodes", "CSINode")
CSI_DRIVERS: Final = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
VOLUME_SNAPSHOTS: Final = Resource(
    "snapshot.storage.k8s.io", "v1", "volumesnapshots", "VolumeSnapshot", namespaced=True
)
VOLUME_SNAPSHOT_CONTENTS: Final = Resource(
    "snapshot.storage.k8s.io", "v1", "volumesnapshotcontents", "VolumeSnapshotContent"
)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", namespaced=True)
MUTATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"
)
CRDS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")


def _longhorn(plural: str, kind: str) -> Resource:
    return Resource("longhorn.io", "v1beta2", plural, kind, namespaced=True)


LONGHORN_NODES: Final = _longhorn("nodes", "Node")
LONGHORN_VOLUMES: Final = _longhorn("volumes", "Volume")
LONGHORN_REPLICAS: Final = _longhorn("replicas", "Replica")
LONGHORN_SHARDS: Final = _longhorn("shards", "Shard")
LONGHORN_SETTINGS: Final = _longhorn("settings", "Setting")
LONGHORN_BACKING_IMAGES: Final = _longhorn("backingimages", "BackingImage")
LONGHORN_BACKUPS: Final = _longhorn("backups", "Backup")
LONGHORN_ENGINE_IMAGES: Final = _longhorn("engineimages", "EngineImage")
LONGHORN_INSTANCE_MANAGERS: Final = _longhorn("instancemanagers", "InstanceManager")
DISK_SCHEDULES: Final = _longhorn("diskschedules", "DiskSchedule")
