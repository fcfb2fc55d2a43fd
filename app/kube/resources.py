"""The REST path of each kind on the API server."""

from urllib.parse import quote

from scheduler_core.structs import Struct

LONGHORN_NAMESPACE = "longhorn-system"


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


NODES = Resource("", "v1", "nodes", "Node")
PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
REPLICATION_CONTROLLERS = Resource("", "v1", "replicationcontrollers", "ReplicationController", namespaced=True)
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", namespaced=True)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", namespaced=True)
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume")
EVENTS = Resource("", "v1", "events", "Event", namespaced=True)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
SERVICES = Resource("", "v1", "services", "Service", namespaced=True)
SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass")
VOLUME_ATTACHMENTS = Resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment")
CAPACITIES = Resource("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", namespaced=True)
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode")
CSI_DRIVERS = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
VOLUME_SNAPSHOTS = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshots", "VolumeSnapshot", namespaced=True)
VOLUME_SNAPSHOT_CONTENTS = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshotcontents", "VolumeSnapshotContent")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", namespaced=True)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"
)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")


def _longhorn(plural: str, kind: str) -> Resource:
    return Resource("longhorn.io", "v1beta2", plural, kind, namespaced=True)


LONGHORN_NODES = _longhorn("nodes", "Node")
LONGHORN_VOLUMES = _longhorn("volumes", "Volume")
LONGHORN_REPLICAS = _longhorn("replicas", "Replica")
LONGHORN_SHARDS = _longhorn("shards", "Shard")
LONGHORN_SETTINGS = _longhorn("settings", "Setting")
LONGHORN_BACKING_IMAGES = _longhorn("backingimages", "BackingImage")
LONGHORN_BACKUPS = _longhorn("backups", "Backup")
LONGHORN_ENGINE_IMAGES = _longhorn("engineimages", "EngineImage")
LONGHORN_INSTANCE_MANAGERS = _longhorn("instancemanagers", "InstanceManager")
DISK_SCHEDULES = _longhorn("diskschedules", "DiskSchedule")
