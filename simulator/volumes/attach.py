"""Attaching and detaching: reconcileAttachDetachStateMachine. spec.nodeID says where to, status.currentNodeID where."""

from __future__ import annotations

from scheduler_core.model.longhorn import STRICT_LOCAL
from simulator.actions import Action, Later
from simulator.volumes.manifests import made_healthy
from simulator.volumes.observation import (
    ATTACHED,
    ATTACHING,
    DEGRADED,
    DETACHED,
    DETACHING,
    FAULTED,
    HEALTHY,
    RUNNING,
    STOPPED,
    UNKNOWN,
    Replica,
    Sight,
    healthy,
    replica_status,
    volume_status,
)
from simulator.volumes.replica_scheduling import scheduled_condition


def attach_or_detach(sight: Sight) -> list[Action]:
    """One step toward where the volume should be attached."""
    wanted, current = sight.model.node_id, sight.model.current_node_id
    if current and current != wanted:
        return _detach(sight)
    if not wanted:
        return _rest(sight)
    return [] if current else _attach(sight)


def _detach(sight: Sight) -> list[Action]:
    if sight.model.state != DETACHING:
        return [volume_status(sight, {"state": DETACHING}, "volume detaching")]
    stopped = [_stopped(replica) for replica in sight.replicas if replica.model.current_state == RUNNING]
    status = {"state": DETACHED, "currentNodeID": "", "robustness": UNKNOWN}
    done = volume_status(sight, status, "volume detached", "detached")
    return [Later("detach", sight.config.detach_seconds, (*stopped, done))]


def _rest(sight: Sight) -> list[Action]:
    """What an unattached volume is like: nothing runs."""
    actions: list[Action] = [
        _stopped(replica) for replica in sight.present if replica.model.current_state not in ("", STOPPED)
    ]
    if sight.model.state != DETACHED:
        actions.append(volume_status(sight, {"state": DETACHED, "robustness": UNKNOWN}, "volume detached"))
    return actions


def _attach(sight: Sight) -> list[Action]:
    if sight.model.state != ATTACHING and sight.model.robustness != FAULTED:
        return [volume_status(sight, {"state": ATTACHING}, "volume attaching")]
    startable = [replica for replica in sight.present if _startable(sight, replica)]
    if not startable or not _allowed(sight, startable) or not sight.can_run(sight.model.node_id):
        return []
    starting = [replica for replica in startable if replica.model.current_state != RUNNING]
    if starting:
        return [_start(sight, replica) for replica in starting if sight.may_start(replica)]
    return [Later("attach", sight.config.attach_seconds, _attached(sight, startable))]


def _startable(sight: Sight, replica: Replica) -> bool:
    """Whether an engine may start with a replica: one with data, or any placed one of a volume that never had any."""
    model = replica.model
    had_data = any(each.model.healthy_at for each in sight.present)
    usable = model.node_id != "" and model.active and not model.failed_at and sight.can_run(model.node_id)
    return usable and (model.healthy_at != "" or not had_data)


def _allowed(sight: Sight, startable: list[Replica]) -> bool:
    """Strict-local engines start only beside their replica."""
    node = sight.model.node_id
    return sight.model.data_locality != STRICT_LOCAL or all(each.model.node_id == node for each in startable)


def _start(sight: Sight, replica: Replica) -> Later:
    running = replica_status(replica, {"currentState": RUNNING}, "replica running")
    return Later(f"start {replica.name}", sight.config.start_seconds, (running,))


def _attached(sight: Sight, startable: list[Replica]) -> tuple[Action, ...]:
    enough = len(startable) >= sight.model.number_of_replicas
    status = {"state": ATTACHED, "currentNodeID": sight.model.node_id, "robustness": HEALTHY if enough else DEGRADED}
    if not enough:
        status["lastDegradedAt"] = sight.time
    fresh = [made_healthy(sight, each, "replica healthy") for each in startable if not healthy(each)]
    return (*fresh, volume_status(sight, status, "volume attached", "attached"))


def _stopped(replica: Replica) -> Action:
    return replica_status(replica, {"currentState": STOPPED}, "replica stopped")


def refusal(sight_status: dict[str, object]) -> str:
    """Why a volume that is not placed cannot be attached, "" if nothing forbids it (validateVolumeHasScheduledReplica)."""
    entry = scheduled_condition(sight_status)
    if entry.get("status") != "False":
        return ""
    return str(entry.get("message") or entry.get("reason"))
