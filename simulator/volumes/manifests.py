"""Replica objects as Longhorn's newReplicaCR writes them."""

from __future__ import annotations

from app.kube.resources import LONGHORN_NAMESPACE, LONGHORN_REPLICAS
from scheduler_core.longhorn.disk_choice import Candidate
from scheduler_core.model.longhorn import FAILED_REPLICA_MAX_RETRY_COUNT
from simulator.actions import Create, Patch
from simulator.objects import DATA_FINALIZER, FINALIZER, Json
from simulator.volumes.observation import STOPPED, Replica, Sight, replica_spec

VOLUME_LABEL = "longhornvolume"
NODE_LABEL = "longhornnode"
DISK_LABEL = "longhorndiskuuid"


def new_replica(sight: Sight, why: str, *, hard_node_affinity: str = "", rebuild: bool) -> Create:
    """One more replica. One made for a rebuild is never used again if it fails before it was healthy."""
    model = sight.model
    name = f"{model.name}-r-{sight.rng.getrandbits(32):08x}"
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
        "labels": {VOLUME_LABEL: model.name, NODE_LABEL: "", DISK_LABEL: ""},
        "finalizers": [FINALIZER, DATA_FINALIZER] if sight.config.disk_schedules else [FINALIZER],
        "ownerReferences": [
            {
                "apiVersion": LONGHORN_REPLICAS.api_version,
                "kind": "Volume",
                "name": model.name,
                "uid": sight.volume.uid,
                "blockOwnerDeletion": True,
            }
        ],
    }
    return Create(LONGHORN_REPLICAS, {"metadata": metadata, "spec": spec}, why, counts="replicas_created")


def placed(sight: Sight, candidate: Candidate, spec: Json) -> Json:
    """The patch that gives a replica its place (scheduleReplicaToDisk)."""
    node, disk = candidate.node, candidate.disk
    directory = f"{sight.model.name}-{sight.rng.getrandbits(32):08x}"
    return {
        "metadata": {"labels": {NODE_LABEL: node.name, DISK_LABEL: disk.uuid}},
        "spec": {
            **spec,
            "nodeID": node.name,
            "diskID": disk.uuid,
            "diskPath": disk.path,
            "dataDirectoryName": directory,
        },
    }


def made_healthy(sight: Sight, replica: Replica, why: str, counts: str = "") -> Patch:
    """The patch by which a replica becomes read-write."""
    spec = {"healthyAt": sight.time, "lastHealthyAt": sight.time, "rebuildRetryCount": 0}
    return replica_spec(replica, spec, why, counts)
