"""Replica objects, written as Longhorn's newReplicaCR writes them, and changes of their spec."""

from app.kube.resources import LONGHORN_NAMESPACE, LONGHORN_REPLICAS
from scheduler_core.longhorn.placement import DiskCandidate
from scheduler_core.model.longhorn import FAILED_REPLICA_MAX_RETRY_COUNT, VOLUME_LABEL
from simulator.actions import CreateObject, PatchObject
from simulator.objects import DATA_FINALIZER, FINALIZER, Json
from simulator.volumes.observation import STOPPED, Replica, VolumeObservation, patch_replica_spec, place_labels


def new_replica(
    observation: VolumeObservation, event: str, *, hard_node_affinity: str = "", rebuild: bool
) -> CreateObject:
    """Creates one more replica. A replica that is created for a rebuild is never used again if it fails before it was healthy."""
    model = observation.model
    name = f"{model.name}-r-{observation.rng.getrandbits(32):08x}"
    spec: Json = {
        "volumeName": model.name,
        "volumeSize": str(model.size),
        "nodeID": "",
        "diskID": "",
        "diskPath": "",
        "dataDirectoryName": "",
        "dataEngine": model.data_engine,
        "engineName": f"{model.name}-e-0",
        "image": model.image,
        "active": True,
        "desireState": STOPPED,
        "healthyAt": "",
        "lastHealthyAt": "",
        "failedAt": "",
        "lastFailedAt": "",
        "evictionRequested": False,
        "hardNodeAffinity": hard_node_affinity,
        "rebuildRetryCount": FAILED_REPLICA_MAX_RETRY_COUNT if rebuild else 0,
    }
    metadata: Json = {
        "name": name,
        "namespace": LONGHORN_NAMESPACE,
        "labels": {VOLUME_LABEL: model.name, **place_labels(spec)},
        "finalizers": [FINALIZER, DATA_FINALIZER] if observation.config.disk_schedules else [FINALIZER],
        "ownerReferences": [
            {
                "apiVersion": LONGHORN_REPLICAS.api_version,
                "kind": "Volume",
                "name": model.name,
                "uid": observation.volume.uid,
                "blockOwnerDeletion": True,
            }
        ],
    }
    return CreateObject(LONGHORN_REPLICAS, {"metadata": metadata, "spec": spec}, event, counter="replicas_created")


def place(observation: VolumeObservation, candidate: DiskCandidate) -> Json:
    """The fields of a replica's spec that place it on a disk (scheduleReplicaToDisk)."""
    return {
        "nodeID": candidate.node.name,
        "diskID": candidate.disk.uuid,
        "diskPath": candidate.disk.path,
        "dataDirectoryName": f"{observation.model.name}-{observation.rng.getrandbits(32):08x}",
    }


def mark_healthy(observation: VolumeObservation, replica: Replica, event: str, counter: str = "") -> PatchObject:
    spec = {"healthyAt": observation.time, "lastHealthyAt": observation.time, "rebuildRetryCount": 0}
    return patch_replica_spec(replica, spec, event, counter)
