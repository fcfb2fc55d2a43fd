"""The CSI provisioner: a Longhorn volume and a PersistentVolume per claim. It reclaims them by reclaim policy, and publishes
the nodes' capacity. Mirrors
external-provisioner's controller and longhorn-manager's csi/util.go:getVolumeOptions and CreateVolume.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from app.kube.resources import CAPACITIES, CLAIMS, LONGHORN_NAMESPACE, LONGHORN_VOLUMES, PERSISTENT_VOLUMES
from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.csi_driver import (
    ANYWHERE,
    HOSTNAME,
    CapacityError,
    Provisioning,
    file_system,
    get_capacity,
    volume_for_claim,
)
from scheduler_core.longhorn.node_controller import REGION_LABEL, ZONE_LABEL
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.volumes.data_source import check_source, volume_parameters
from simulator.actions import Action, AfterDelay, CreateObject, DeleteObject, PatchObject, remove_finalizers
from simulator.config import Config
from simulator.objects import CLAIM, DRIVER, FINALIZER, Json, KubeObject
from simulator.volumes.observation import NEW_STATES, Volume

PROVISIONER_ANNOTATIONS = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
PROVISIONER_FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
WAIT_FOR_CONSUMER = "WaitForFirstConsumer"
OWNED_LABEL = "simulator/capacity"

Claim = KubeObject[kube.Claim]
StorageClass = KubeObject[kube.StorageClass]
PersistentVolume = KubeObject[kube.PersistentVolume]


def volume_name(claim: Claim) -> str:
    return f"pvc-{claim.uid}"


def claim_reference(volume: Volume) -> tuple[str, str, str] | None:
    """Namespace, name and uid of the claim that a volume was provisioned for. None if the volume was created in another way."""
    namespace, _, name_and_uid = volume.annotations.get(CLAIM, "").partition("/")
    name, _, uid = name_and_uid.partition("/")
    return (namespace, name, uid) if uid else None


class ClaimObservation(Struct, frozen=True):
    """The input of a decision about a claim.

    Attributes:
        snapshot: the objects that the data of its volume, and the place of it, may come from
    """

    config: Config
    claim: Claim
    storage_class: StorageClass | None
    volume: Volume | None
    persistent_volume: PersistentVolume | None
    settings: Settings
    snapshot: Snapshot


def decide_claim(observation: ClaimObservation) -> list[Action]:
    """Creates a claim's Longhorn volume, and then its PersistentVolume.

    Raises:
        ResolutionError: the StorageClass asks for something Longhorn refuses
    """
    claim = observation.claim
    storage_class = observation.storage_class
    is_longhorn_claim = any(claim.annotations.get(key) == DRIVER for key in PROVISIONER_ANNOTATIONS)
    if not is_longhorn_claim or claim.deleting or claim.model.spec.volume_name or storage_class is None:
        return []
    delayed = storage_class.raw.get("volumeBindingMode") == WAIT_FOR_CONSUMER
    if delayed and not claim.model.selected_node:
        return []
    if observation.volume is None:
        body = new_volume(claim, storage_class, observation.settings, observation.snapshot)
        nodes = observation.snapshot.longhorn_nodes.values()
        _refuse_unknown_tags(body["spec"], nodes, f"StorageClass {storage_class.name}")
        created = CreateObject(LONGHORN_VOLUMES, body, "volume provisioned", counter="provisioned")
        return [AfterDelay("provision", observation.config.provision_seconds, (created,))]
    if observation.persistent_volume is not None or observation.volume.model.state in NEW_STATES:
        return []  # CreateVolume returns when the volume is detached
    body = new_persistent_volume(claim, storage_class, observation.volume)
    return [CreateObject(PERSISTENT_VOLUMES, body, "PersistentVolume created")]


def _refuse_unknown_tags(spec: Json, nodes: Collection[longhorn.Node], subject: str) -> None:
    """Refuses selectors with a tag that nothing has. The words are Longhorn's (api/volume.go:VolumeCreate)."""
    node_tags = {tag for node in nodes for tag in node.tags}
    disk_tags = {tag for node in nodes for disk in node.disks for tag in disk.tags}
    for kind, key, existing in (("disk", "diskSelector", disk_tags), ("node", "nodeSelector", node_tags)):
        for tag in spec[key]:
            if tag not in existing:
                raise ResolutionError(f"{subject}: {key}: specified {kind} tag {tag!r} does not exist")


def new_volume(claim: Claim, storage_class: StorageClass, settings: Settings, snapshot: Snapshot) -> Json:
    """The Longhorn volume of a claim, as the CSI driver creates it. Its values come from the StorageClass's parameters, then from
    Longhorn's settings.
    """
    subject = f"{CLAIMS.kind} {claim.namespace}/{claim.name}"
    parameters = volume_parameters(claim.model, storage_class.model.parameters, subject, snapshot)
    node = snapshot.longhorn_nodes.get(claim.model.selected_node)
    domain = ANYWHERE if node is None else longhorn.TopologyTerm(node.zone, node.region)
    known = Provisioning(settings, snapshot.backing_images, domain=domain)
    volume = volume_for_claim(volume_name(claim), claim.model.spec, parameters, known, subject=subject)
    check_source(volume, subject, snapshot)
    spec: Json = {
        "size": str(volume.size),
        "numberOfReplicas": volume.number_of_replicas,
        "dataEngine": volume.data_engine,
        "dataLocality": volume.data_locality,
        "accessMode": volume.access_mode,
        "migratable": volume.migratable,
        "nodeSelector": list(volume.node_selector),
        "diskSelector": list(volume.disk_selector),
        "backingImage": volume.backing_image,
        "image": volume.image,
        "frontend": "blockdev",
        "replicaSoftAntiAffinity": volume.replica_soft_anti_affinity or "ignored",
        "replicaZoneSoftAntiAffinity": volume.replica_zone_soft_anti_affinity or "ignored",
        "replicaDiskSoftAntiAffinity": volume.replica_disk_soft_anti_affinity or "ignored",
        "replicaAutoBalance": volume.replica_auto_balance or "ignored",
        "cloneMode": volume.clone_mode,
        "dataSource": volume.data_source,
        "topologyRequirement": [{"zone": term.zone, "region": term.region} for term in volume.topology_requirement],
        "staleReplicaTimeout": int(parameters.get("staleReplicaTimeout") or 2880),
        "nodeID": "",
    }
    layout = volume.data_layout
    if layout is not None:
        spec["dataLayout"] = {
            "type": longhorn.SHARDED,
            "mode": "erasureCoding",
            "dataChunks": layout.data_chunks,
            "parityChunks": layout.parity_chunks,
            "stripSizeKB": layout.strip_size_kb,
        }
    key = f"{claim.namespace}/{claim.name}/{claim.uid}"
    metadata: Json = {
        "name": volume_name(claim),
        "namespace": LONGHORN_NAMESPACE,
        "annotations": {CLAIM: key},
        "finalizers": [FINALIZER],
    }
    return {"metadata": metadata, "spec": spec}


def new_persistent_volume(claim: Claim, storage_class: StorageClass, volume: Volume) -> Json:
    """A provisioned volume's PersistentVolume: bound to its claim, usable from every node that the volume is not kept from."""
    policy = storage_class.raw.get("reclaimPolicy") or "Delete"
    metadata: Json = {"name": volume.name, "annotations": {PROVISIONED_BY: DRIVER}}
    if policy == "Delete":
        metadata["finalizers"] = [PROVISIONER_FINALIZER]
    reference = {
        "apiVersion": "v1",
        "kind": CLAIMS.kind,
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
    }
    spec: Json = {
        "capacity": {"storage": str(volume.model.size)},
        "accessModes": list(claim.model.spec.access_modes),
        "persistentVolumeReclaimPolicy": policy,
        "storageClassName": storage_class.name,
        "volumeMode": claim.spec.get("volumeMode") or "Filesystem",
        "claimRef": reference,
        "csi": {
            "driver": DRIVER,
            "volumeHandle": volume.name,
            "fsType": file_system(storage_class.model.parameters) or "ext4",
            "volumeAttributes": dict(storage_class.model.parameters),
        },
    }
    terms = [
        [(key, value) for key, value in ((ZONE_LABEL, term.zone), (REGION_LABEL, term.region)) if value]
        for term in volume.model.topology_requirement
    ]
    if terms:
        expressions = [[{"key": key, "operator": "In", "values": [value]} for key, value in term] for term in terms]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": each} for each in expressions]}}
    return {"metadata": metadata, "spec": spec}


def decide_reclaim(persistent_volume: PersistentVolume, volume: Volume | None, *, attached: bool) -> list[Action]:
    """Deletes a released PersistentVolume with policy Delete, after its volume."""
    if persistent_volume.model.driver != DRIVER:
        return []
    policy = persistent_volume.spec.get("persistentVolumeReclaimPolicy")
    if policy != "Delete":
        return remove_finalizers(PERSISTENT_VOLUMES, persistent_volume, "PersistentVolume kept", PROVISIONER_FINALIZER)
    if persistent_volume.status.get("phase") not in ("Released", "Failed") or attached:
        return []
    if volume is not None:
        if volume.deleting:
            return []
        return [
            DeleteObject(LONGHORN_VOLUMES, volume, "volume of a released PersistentVolume deleted", "volumes_deleted")
        ]
    if not persistent_volume.deleting:
        return [DeleteObject(PERSISTENT_VOLUMES, persistent_volume, "PersistentVolume deleted")]
    return remove_finalizers(PERSISTENT_VOLUMES, persistent_volume, "PersistentVolume gone", PROVISIONER_FINALIZER)


def decide_capacities(
    cluster: Cluster, classes: Iterable[StorageClass], existing: Mapping[str, KubeObject[None]]
) -> list[Action]:
    """Keeps one CSIStorageCapacity per node and StorageClass that waits for a consumer: what Longhorn's GetCapacity returns from the
    nodes' lagging status.
    """
    wanted = {
        body["metadata"]["name"]: body
        for storage_class in classes
        if storage_class.model.provisioner == DRIVER and storage_class.raw.get("volumeBindingMode") == WAIT_FOR_CONSUMER
        for node in cluster.nodes
        if (body := _new_capacity(cluster, storage_class, node)) is not None
    }
    actions: list[Action] = []
    for name, body in wanted.items():
        current = existing.get(name)
        if current is None:
            actions.append(CreateObject(CAPACITIES, body, "capacity reported"))
            continue
        sizes = {key: body[key] for key in ("capacity", "maximumVolumeSize")}
        if any(current.raw.get(key) != size for key, size in sizes.items()):
            actions.append(PatchObject(CAPACITIES, current, sizes, "capacity reported"))
    stale = [capacity for name, capacity in existing.items() if OWNED_LABEL in capacity.labels and name not in wanted]
    return [*actions, *(DeleteObject(CAPACITIES, capacity, "capacity of nothing removed") for capacity in stale)]


def _new_capacity(cluster: Cluster, storage_class: StorageClass, node: str) -> Json | None:
    kube_node = cluster.kube_nodes.get(node)
    if kube_node is None:
        return None
    try:
        capacity = get_capacity(cluster, {HOSTNAME: node}, storage_class.model.parameters)
    except CapacityError:
        return None
    name = hashlib.sha256(f"{storage_class.name}/{node}".encode()).hexdigest()[:16]
    return {
        "metadata": {"name": f"longhorn-{name}", "namespace": LONGHORN_NAMESPACE, "labels": {OWNED_LABEL: "true"}},
        "storageClassName": storage_class.name,
        "nodeTopology": {"matchLabels": {HOSTNAME: kube_node.labels.get(HOSTNAME, node)}},
        "capacity": str(capacity.available),
        "maximumVolumeSize": str(capacity.maximum_volume_size),
    }
