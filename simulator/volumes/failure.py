"""Nodes that go down, and come back: failed replicas, the volume's robustness, salvage."""

from __future__ import annotations

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
    Sight,
    replica_spec,
    replica_status,
    volume_status,
    working,
)


def fail(sight: Sight) -> list[Action]:
    """Marks the replicas of an attached volume that were lost with their node."""
    if not sight.model.current_node_id:
        return []
    actions: list[Action] = []
    for replica in sight.present:
        model = replica.model
        if model.node_id and not model.failed_at and not sight.node_up(model.node_id):
            spec: Json = {"failedAt": sight.time, "lastFailedAt": sight.time}
            if not model.healthy_at:
                spec["rebuildRetryCount"] = model.rebuild_retry_count + 1
            actions.append(replica_spec(replica, spec, "replica failed with its node", "replicas_failed"))
            if model.current_state == RUNNING:
                actions.append(replica_status(replica, {"currentState": STOPPED}, "replica stopped"))
    return actions


def judge(sight: Sight) -> list[Action]:
    """Writes how robust an attached volume is; without a single replica that works it is faulted and detached."""
    model = sight.model
    if not model.current_node_id or model.current_node_id != model.node_id:
        return []
    works = sum(1 for replica in sight.present if working(replica))
    if works == 0:
        if any(not replica.model.failed_at and replica.model.healthy_at for replica in sight.present):
            return []
        status = {"state": DETACHED, "currentNodeID": "", "robustness": FAULTED}
        return [volume_status(sight, status, "volume faulted: no replica left", "faulted")]
    if not sight.node_up(model.current_node_id):
        if model.robustness == UNKNOWN:
            return []
        status = {"state": UNKNOWN, "robustness": UNKNOWN}
        return [volume_status(sight, status, "volume's node is down")]
    robustness = HEALTHY if works >= model.number_of_replicas else DEGRADED
    if (model.robustness, model.state) == (robustness, ATTACHED):
        return []
    status = {"state": ATTACHED, "robustness": robustness}
    if robustness == HEALTHY:
        status["lastDegradedAt"] = ""
    elif model.robustness != DEGRADED:
        status["lastDegradedAt"] = sight.time
    return [volume_status(sight, status, f"volume {robustness}")]


def salvage(sight: Sight) -> list[Action]:
    """Takes up the replicas of a faulted volume that have data and whose node and disk are back (auto-salvage)."""
    if sight.model.robustness != FAULTED or not sight.auto_salvage:
        return []
    if any(replica.model.node_id and not replica.model.failed_at for replica in sight.present):
        return []
    return [
        replica_spec(replica, {"failedAt": ""}, "replica salvaged", "replicas_salvaged")
        for replica in sight.present
        if _salvageable(sight, replica)
    ]


def _salvageable(sight: Sight, replica: Replica) -> bool:
    model = replica.model
    return bool(model.failed_at and model.healthy_at) and sight.node_up(model.node_id) and sight.disk_ready(replica)
