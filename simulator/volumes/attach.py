"""Attaching and detaching: Longhorn's reconcileAttachDetachStateMachine. spec.nodeID is the node to attach to,
status.currentNodeID the node of the attached volume. For a clone's copy and for evictions, Longhorn's VolumeCloneController and
VolumeEvictionController attach a volume without a workload.
"""

from collections.abc import Collection

from app.kube.resources import LONGHORN_VOLUMES
from scheduler_core.longhorn.placement import find_candidates
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.volume_validation import awaits_copy
from scheduler_core.model.longhorn import STRICT_LOCAL
from simulator.actions import Action, AfterDelay, PatchObject, RequeueAfter
from simulator.objects import EVICTING
from simulator.volumes.manifests import mark_healthy
from simulator.volumes.observation import (
    ATTACHED,
    ATTACHING,
    CREATING,
    DEGRADED,
    DETACHED,
    DETACHING,
    FAULTED,
    HEALTHY,
    RUNNING,
    STOPPED,
    UNKNOWN,
    Replica,
    Volume,
    VolumeObservation,
    is_healthy,
    is_working,
    patch_replica_status,
    patch_volume_status,
)
from simulator.volumes.replica_scheduling import scheduled_condition
from simulator.volumes.shard_placement import has_every_shard


def attach_or_detach(observation: VolumeObservation) -> list[Action]:
    """Takes the next step toward the node of spec.nodeID."""
    wanted = observation.model.node_id
    current = observation.model.current_node_id
    if current and current != wanted:
        return _detach(observation)
    if observation.model.state == CREATING:
        return [patch_volume_status(observation, {"state": DETACHING}, "new volume detaching")]
    if not wanted or observation.is_new:
        return _stop_replicas(observation)
    return [] if current else _attach(observation)


def _detach(observation: VolumeObservation) -> list[Action]:
    if observation.model.state != DETACHING:
        return [patch_volume_status(observation, {"state": DETACHING}, "volume detaching")]
    stopped = [_stop_replica(replica) for replica in observation.replicas if replica.model.current_state == RUNNING]
    status = {"state": DETACHED, "currentNodeID": "", "robustness": UNKNOWN}
    done = patch_volume_status(observation, status, "volume detached", "detached")
    return [AfterDelay("detach", observation.config.detach_seconds, (*stopped, done))]


def _stop_replicas(observation: VolumeObservation) -> list[Action]:
    actions: list[Action] = [
        _stop_replica(replica)
        for replica in observation.live_replicas
        if replica.model.current_state not in ("", STOPPED)
    ]
    if observation.model.state != DETACHED:
        actions.append(patch_volume_status(observation, {"state": DETACHED, "robustness": UNKNOWN}, "volume detached"))
    return actions


def _attach(observation: VolumeObservation) -> list[Action]:
    """Takes the next step toward the attached volume. It stays detached while no replica can be started
    (openVolumeDependentResources; measured with v1.12.1's control code).
    """
    startable = [replica for replica in observation.live_replicas if _is_startable(observation, replica)]
    if not startable and not has_every_shard(observation):
        return []
    if observation.model.state != ATTACHING and observation.model.robustness != FAULTED:
        return [patch_volume_status(observation, {"state": ATTACHING}, "volume attaching")]
    if not _locality_allows(observation, startable) or not observation.can_run(observation.model.node_id):
        return []
    starting = [replica for replica in startable if replica.model.current_state != RUNNING]
    if starting:
        return [_start_replica(observation, replica) for replica in starting if observation.may_start(replica)]
    return [AfterDelay("attach", observation.config.attach_seconds, _finish_attachment(observation, startable))]


def _is_startable(observation: VolumeObservation, replica: Replica) -> bool:
    """Whether an engine may start with a replica. It may with a replica that has data, and with any placed replica of a volume
    that never had data.
    """
    model = replica.model
    had_data = any(each.model.healthy_at for each in observation.live_replicas)
    usable = model.node_id != "" and model.active and not model.failed_at and observation.can_run(model.node_id)
    return usable and (model.healthy_at != "" or not had_data)


def _locality_allows(observation: VolumeObservation, startable: list[Replica]) -> bool:
    """Whether the data locality allows the engine on its node. A strict-local engine only starts on the node of its replica."""
    node = observation.model.node_id
    return observation.model.data_locality != STRICT_LOCAL or all(each.model.node_id == node for each in startable)


def _start_replica(observation: VolumeObservation, replica: Replica) -> AfterDelay:
    running = patch_replica_status(replica, {"currentState": RUNNING}, "replica running")
    return AfterDelay(f"start {replica.name}", observation.config.start_seconds, (running,))


def _finish_attachment(observation: VolumeObservation, startable: list[Replica]) -> tuple[Action, ...]:
    enough = len(startable) >= observation.model.number_of_replicas
    status = {
        "state": ATTACHED,
        "currentNodeID": observation.model.node_id,
        "robustness": HEALTHY if enough else DEGRADED,
    }
    if not enough:
        status["lastDegradedAt"] = observation.time
    newly_healthy = [mark_healthy(observation, each, "replica healthy") for each in startable if not is_healthy(each)]
    return (*newly_healthy, patch_volume_status(observation, status, "volume attached", "attached"))


def _stop_replica(replica: Replica) -> Action:
    return patch_replica_status(replica, {"currentState": STOPPED}, "replica stopped")


def copy_clone(observation: VolumeObservation) -> list[Action]:
    """Attaches a new clone, and detaches it once it has its data. Any ready node may be the one: Longhorn takes the owner of the
    volume (GetReadyNodeForVolumeAttach), whichever node the pod is on. A node that a replica is bound to stays the one.
    """
    model = observation.model
    if not awaits_copy(model):
        return []
    if model.state == ATTACHED and any(is_working(replica) for replica in observation.live_replicas):
        status = {"cloneStatus": {"state": "copy-completed-awaiting-healthy", "sourceVolume": model.data_source}}
        # The state is written last: a volume with it is not detached here again.
        return [
            PatchObject(LONGHORN_VOLUMES, observation.volume, {"spec": {"nodeID": ""}}, "clone copied, to be detached"),
            patch_volume_status(observation, status, "clone copied", "cloned"),
        ]
    if model.node_id or model.state != DETACHED:
        return []
    bound = {replica.model.hard_node_affinity for replica in observation.live_replicas} - {""}
    up = sorted(bound) or sorted(name for name in observation.cluster.nodes if observation.can_run(name))
    if not up:
        return []
    body = {"spec": {"nodeID": observation.rng.choice(up)}}
    return [PatchObject(LONGHORN_VOLUMES, observation.volume, body, "clone to be attached")]


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


def readiness_problem(volume: Volume, replicas: Collection[Replica]) -> str:
    """Why a volume is not ready for workloads, "" if it is. Mirrors Longhorn's types.IsVolumeReady, without the rules about
    faulted and restored volumes.
    """
    state = volume.model.state
    if not volume.model.node_id and state != DETACHED:
        return f"waiting for the volume to fully detach. current state: {state}"
    all_placed = (bool(replicas) or volume.model.has_shards) and all(replica.model.node_id for replica in replicas)
    if state == DETACHED and scheduled_condition(volume.status).get("status") != "True" and not all_placed:
        return "volume is currently in detached state with some un-schedulable replicas"
    return "volume has not finished cloning data" if awaits_copy(volume.model) else ""
