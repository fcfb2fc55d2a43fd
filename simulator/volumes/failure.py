"""What follows when a node goes down or comes back: failed replicas, the volume's robustness, salvage."""

from simulator.actions import Action
from simulator.objects import Json
from simulator.volumes.observation import (
    ATTACHED,
    DEGRADED,
    DETACHED,
    FAULTED,
    HEALTHY,
    RUNNING,
    STOPPED,
    UNKNOWN,
    Replica,
    VolumeObservation,
    is_working,
    patch_replica_spec,
    patch_replica_status,
    patch_volume_status,
)


def fail_replicas(observation: VolumeObservation) -> list[Action]:
    """Marks an attached volume's replicas on lost nodes as failed."""
    if not observation.model.current_node_id:
        return []
    actions: list[Action] = []
    for replica in observation.live_replicas:
        model = replica.model
        if model.node_id and not model.failed_at and not observation.is_node_up(model.node_id):
            spec: Json = {"failedAt": observation.time, "lastFailedAt": observation.time}
            if not model.healthy_at:
                spec["rebuildRetryCount"] = model.rebuild_retry_count + 1
            actions.append(patch_replica_spec(replica, spec, "replica failed with its node", "replicas_failed"))
            if model.current_state == RUNNING:
                actions.append(patch_replica_status(replica, {"currentState": STOPPED}, "replica stopped"))
    return actions


def update_robustness(observation: VolumeObservation) -> list[Action]:
    """Writes the robustness of an attached volume. Without a working replica it is faulted and detached."""
    model = observation.model
    if not model.current_node_id or model.current_node_id != model.node_id:
        return []
    working = sum(1 for replica in observation.live_replicas if is_working(replica))
    if working == 0 and not model.has_shards:
        if any(not replica.model.failed_at and replica.model.healthy_at for replica in observation.live_replicas):
            return []
        status = {"state": DETACHED, "currentNodeID": "", "robustness": FAULTED}
        return [patch_volume_status(observation, status, "volume faulted: no replica left", "faulted")]
    if not observation.is_node_up(model.current_node_id):
        if model.robustness == UNKNOWN:
            return []
        status = {"state": UNKNOWN, "robustness": UNKNOWN}
        return [patch_volume_status(observation, status, "volume's node is down")]
    robustness = HEALTHY if working >= model.number_of_replicas else DEGRADED
    if (model.robustness, model.state) == (robustness, ATTACHED):
        return []
    status = {"state": ATTACHED, "robustness": robustness}
    if robustness == HEALTHY:
        status["lastDegradedAt"] = ""
    elif model.robustness != DEGRADED:
        status["lastDegradedAt"] = observation.time
    return [patch_volume_status(observation, status, f"volume {robustness}")]


def salvage_replicas(observation: VolumeObservation) -> list[Action]:
    """Salvages a faulted volume's replicas with data, on ready disks (auto-salvage)."""
    if observation.model.robustness != FAULTED or not observation.auto_salvage:
        return []
    if any(replica.model.node_id and not replica.model.failed_at for replica in observation.live_replicas):
        return []
    return [
        patch_replica_spec(replica, {"failedAt": ""}, "replica salvaged", "replicas_salvaged")
        for replica in observation.live_replicas
        if _is_salvageable(observation, replica)
    ]


def _is_salvageable(observation: VolumeObservation, replica: Replica) -> bool:
    model = replica.model
    return (
        bool(model.failed_at and model.healthy_at)
        and observation.is_node_up(model.node_id)
        and observation.is_disk_ready(replica)
    )
