"""Eviction of detached volumes' replicas: Longhorn's VolumeEvictionController attaches them for as long as that takes."""

from __future__ import annotations

from app.kube.resources import LONGHORN_VOLUMES
from scheduler_core.longhorn.placement import find_candidates
from scheduler_core.longhorn.replica_request import ReplicaRequest
from simulator.actions import Action, PatchObject, RequeueAfter
from simulator.objects import EVICTING
from simulator.volumes.observation import DETACHED, VolumeObservation


def attach_for_eviction(observation: VolumeObservation) -> list[Action]:
    """Attaches a detached volume to evict its replicas, and detaches it afterwards. It is attached only if there is a candidate
    disk for every one of its replicas.
    """
    evicting = [replica for replica in observation.live_replicas if replica.model.eviction_requested]
    if observation.attached_for_eviction:
        if evicting or not observation.model.current_node_id:
            return []
        body = {"spec": {"nodeID": ""}, "metadata": {"annotations": {EVICTING: None}}}
        return [PatchObject(LONGHORN_VOLUMES, observation.volume, body, "volume evicted, to be detached")]
    if not evicting or observation.model.node_id or observation.model.state != DETACHED:
        return []
    if not all(_has_candidate(observation, replica.model.name) for replica in observation.live_replicas):
        return [RequeueAfter(observation.config.schedule_retry)]
    up = sorted(name for name, node in observation.cluster.nodes.items() if node.ready)
    if not up:
        return []
    body = {"spec": {"nodeID": observation.rng.choice(up)}, "metadata": {"annotations": {EVICTING: "true"}}}
    return [
        PatchObject(
            LONGHORN_VOLUMES, observation.volume, body, "volume to be attached for eviction", counter="evictions"
        )
    ]


def _has_candidate(observation: VolumeObservation, name: str) -> bool:
    replica = next(each for each in observation.replica_models if each.name == name)
    return bool(
        find_candidates(
            observation.cluster, ReplicaRequest.for_replica(observation.model, replica), observation.replica_models
        ).disks
    )
