"""Places replicas: volume_controller.go's reconcileVolumeCondition around Longhorn's own scheduler."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from app.kube.resources import LONGHORN_REPLICAS
from scheduler_core.longhorn.new_volume_placement import (
    DEGRADED_ALLOWED,
    LOCAL_SCHEDULING_FAILURE,
    SCHEDULING_FAILURE,
    join_reasons,
    waits_for_attachment,
)
from scheduler_core.longhorn.placement import Reasons, schedule_replica
from scheduler_core.longhorn.replenish import replenishments
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import STRICT_LOCAL
from scheduler_core.structs import replace
from simulator.actions import Action, AfterDelay, Replacement, ReplaceObjects, RequeueAfter
from simulator.objects import Json, condition
from simulator.volumes.manifests import place
from simulator.volumes.observation import (
    Replica,
    VolumeObservation,
    lacks_place,
    patch_replica_spec,
    patch_volume_status,
    place_labels,
)

SCHEDULED = "Scheduled"
PLACEMENT = "place"
FAILED_WITHOUT_REASON = "replica scheduling failed"


class _SchedulingFailure(Struct, frozen=True):
    """Why a replica could not be placed."""

    local: bool
    reasons: Reasons


def schedule_replicas(observation: VolumeObservation) -> list[Action]:
    """Places replicas in random order, and writes the Scheduled condition. The replicas of a new volume are placed in the sync
    that creates them, all others after a delay. A placement reads the nodes' status as it is then: without the replicas of other
    volumes that were placed a moment before. A refused write of a replica leaves the condition as it was, and the volume is tried
    again (`LonghornQueue`).
    """
    unplaced = [replica for replica in observation.replicas if lacks_place(replica)]
    if waits_for_attachment(observation.model):
        return _update_condition(observation, observation.replica_models, [])
    if not observation.config.places_replicas:
        return [] if unplaced else _update_condition(observation, observation.replica_models, [])
    observation.rng.shuffle(unplaced)
    replicas = {replica.name: replica.model for replica in observation.replicas}
    actions: list[Action] = []
    choices: list[tuple[Replica, Json]] = []
    failures: list[_SchedulingFailure] = []
    retries: list[Action] = []
    for replica in unplaced:
        wanted = _with_affinity(observation, replica)
        result = schedule_replica(observation.cluster, observation.model, wanted, list(replicas.values()))
        if not result.choices:
            failures.append(_SchedulingFailure(wanted.hard_node_affinity != "", result.reasons))
            actions += _write_affinity(replica, wanted)
            continue
        choice = observation.rng.choice(result.choices).candidate
        replicas[replica.name] = replace(wanted, node_id=choice.node.name, disk_id=choice.disk.uuid)
        choices.append((replica, {**place(observation, choice), "hardNodeAffinity": wanted.hard_node_affinity}))
    if choices:
        misplaced = _is_misplaced(observation, replicas.values())
        counter = "misplacements" if misplaced else "replicas_placed"
        event = "replica placed on another node than its volume's" if misplaced else "replica placed"
        placements = (Replacement(replica, place_labels(spec), spec, event, counter) for replica, spec in choices)
        actions.append(ReplaceObjects(LONGHORN_REPLICAS, tuple(placements)))
    actions += _update_condition(observation, tuple(replicas.values()), failures)
    if failures:
        local = any(failure.local for failure in failures)
        retries.append(
            RequeueAfter(observation.config.strict_local_retry if local else observation.config.schedule_retry)
        )
    if len(failures) < len(unplaced) and not observation.is_new:
        delayed = AfterDelay(PLACEMENT, observation.config.placement_seconds, tuple(actions))
        return [delayed, *retries]
    return [*actions, *retries]


def _with_affinity(observation: VolumeObservation, replica: Replica) -> longhorn.Replica:
    if observation.model.data_locality != STRICT_LOCAL:
        return replica.model
    return replace(replica.model, hard_node_affinity=observation.model.node_id)


def _write_affinity(replica: Replica, wanted: longhorn.Replica) -> list[Action]:
    if wanted.hard_node_affinity == replica.model.hard_node_affinity:
        return []
    return [patch_replica_spec(replica, {"hardNodeAffinity": wanted.hard_node_affinity}, "replica pinned to a node")]


def _is_misplaced(observation: VolumeObservation, replicas: Iterable[longhorn.Replica]) -> bool:
    node = observation.model.node_id
    local = any(each.node_id == node and not each.failed_at for each in replicas)
    return not observation.locality_disabled and node != "" and not local


def _update_condition(
    observation: VolumeObservation, replicas: Sequence[longhorn.Replica], failures: Sequence[_SchedulingFailure]
) -> list[Action]:
    """Writes the Scheduled condition: True, or False with the reasons. It is True in spite of a failure if degraded volumes are allowed."""
    model = observation.model
    missing = any(answer.count for answer in replenishments(observation.cluster, model, replicas))
    if not failures and not missing:
        return write_scheduled(observation)
    degraded_allowed = observation.cluster.settings.allow_volume_creation_with_degraded_availability
    available = any(replica.node_id and not replica.failed_at for replica in replicas)
    if not model.current_node_id and degraded_allowed and available:
        return write_scheduled(observation, message=DEGRADED_ALLOWED)
    if not failures:
        return []
    reason = LOCAL_SCHEDULING_FAILURE if failures[-1].local else SCHEDULING_FAILURE
    reasons = frozenset[str]().union(*(failure.reasons for failure in failures))
    return write_scheduled(observation, reason, join_reasons(reasons) or FAILED_WITHOUT_REASON)  # type: ignore[arg-type] # all are Longhorn's


def write_scheduled(observation: VolumeObservation, reason: str = "", message: str = "") -> list[Action]:
    """Writes a changed Scheduled condition: True unless there is a reason."""
    status = "False" if reason else "True"
    current = scheduled_condition(observation.volume.status)
    if (current.get("status"), current.get("reason"), current.get("message")) == (status, reason, message):
        return []
    changed = current.get("status") != status
    since = observation.time if changed else current.get("lastTransitionTime") or observation.time
    entry = condition(SCHEDULED, status=not reason, reason=reason, message=message, now=since)
    others = [each for each in observation.volume.status.get("conditions") or [] if each.get("type") != SCHEDULED]
    event = f"volume cannot be scheduled: {message}" if reason else "volume scheduled"
    return [
        patch_volume_status(
            observation, {"conditions": [entry, *others]}, event, "scheduling_failures" if reason else ""
        )
    ]


def scheduled_condition(status: Json) -> Json:
    return next((each for each in status.get("conditions") or [] if each.get("type") == SCHEDULED), {})
