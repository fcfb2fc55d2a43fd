"""Giving replicas a place: volume_controller.go's reconcileVolumeCondition around Longhorn's own scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.kube.resources import LONGHORN_REPLICAS
from scheduler_core.longhorn.new_volume import (
    DEGRADED_ALLOWED,
    LOCAL_SCHEDULING_FAILURE,
    SCHEDULING_FAILURE,
    joined,
    waits_for_attachment,
)
from scheduler_core.longhorn.placement import Reasons, schedule_replica
from scheduler_core.longhorn.replenish import replenishments
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import STRICT_LOCAL
from simulator.actions import Action, Patch, Wake
from simulator.objects import Json, condition
from simulator.volumes.manifests import placed
from simulator.volumes.observation import Replica, Sight, replica_spec, volume_status, waiting

SCHEDULED = "Scheduled"
FAILED_WITHOUT_REASON = "replica scheduling failed"


@dataclass(frozen=True, slots=True)
class _Failure:
    """A replica that found no place."""

    local: bool
    reasons: Reasons


def schedule(sight: Sight) -> list[Action]:
    """Places the replicas that have no place, in random order, and says in the volume's condition how that went."""
    unplaced = [replica for replica in sight.replicas if waiting(replica)]
    if waits_for_attachment(sight.model):
        return _condition(sight, sight.models, [])
    if not sight.config.places:
        return [] if unplaced else _condition(sight, sight.models, [])
    sight.rng.shuffle(unplaced)
    known = {replica.name: replica.model for replica in sight.replicas}
    actions: list[Action] = []
    failures: list[_Failure] = []
    for replica in unplaced:
        wanted = _with_affinity(sight, replica)
        found = schedule_replica(sight.cluster, sight.model, wanted, list(known.values()))
        if not found.choices:
            failures.append(_Failure(wanted.hard_node_affinity != "", found.reasons))
            actions += _pinned(replica, wanted)
            continue
        choice = sight.rng.choice(found.choices).candidate
        known[replica.name] = replace(wanted, node_id=choice.node.name, disk_id=choice.disk.uuid)
        spec = {"hardNodeAffinity": wanted.hard_node_affinity}
        counts = "misplacements" if _misplaces(sight, choice.node.name) else "replicas_placed"
        why = "replica placed on another node than its volume's" if counts == "misplacements" else "replica placed"
        actions.append(Patch(LONGHORN_REPLICAS, replica, placed(sight, choice, spec), why, counts=counts))
    actions += _condition(sight, tuple(known.values()), failures)
    if failures:
        local = any(failure.local for failure in failures)
        actions.append(Wake(sight.config.strict_local_retry if local else sight.config.schedule_retry))
    return actions


def _with_affinity(sight: Sight, replica: Replica) -> longhorn.Replica:
    """The replica as it is right before scheduling: strict-local pins it to the volume's node."""
    if sight.model.data_locality != STRICT_LOCAL:
        return replica.model
    return replace(replica.model, hard_node_affinity=sight.model.node_id)


def _pinned(replica: Replica, wanted: longhorn.Replica) -> list[Action]:
    if wanted.hard_node_affinity == replica.model.hard_node_affinity:
        return []
    return [replica_spec(replica, {"hardNodeAffinity": wanted.hard_node_affinity}, "replica pinned to a node")]


def _misplaces(sight: Sight, node: str) -> bool:
    """Whether a volume whose data should be local gets its only replica elsewhere."""
    model = sight.model
    local = any(each.node_id == model.node_id and not each.failed_at for each in sight.models)
    return not sight.locality_disabled and model.node_id not in ("", node) and not local


def _condition(sight: Sight, replicas: Sequence[longhorn.Replica], failures: Sequence[_Failure]) -> list[Action]:
    """The Scheduled condition: True, False with the reasons, or True again because degraded volumes are allowed."""
    model = sight.model
    missing = any(answer.count for answer in replenishments(sight.cluster, model, replicas))
    if not failures and not missing:
        return write_scheduled(sight)
    degraded_allowed = sight.cluster.settings.allow_volume_creation_with_degraded_availability
    available = any(replica.node_id and not replica.failed_at for replica in replicas)
    if not model.current_node_id and degraded_allowed and available:
        return write_scheduled(sight, message=DEGRADED_ALLOWED)
    if not failures:
        return []
    reason = LOCAL_SCHEDULING_FAILURE if failures[-1].local else SCHEDULING_FAILURE
    reasons = frozenset[str]().union(*(failure.reasons for failure in failures))
    return write_scheduled(sight, reason, joined(reasons) or FAILED_WITHOUT_REASON)  # type: ignore[arg-type] # all are Longhorn's


def write_scheduled(sight: Sight, reason: str = "", message: str = "") -> list[Action]:
    """Sets the volume's Scheduled condition, if it is another: True unless it has a reason."""
    status = "False" if reason else "True"
    known = scheduled_condition(sight.volume.status)
    if (known.get("status"), known.get("reason"), known.get("message")) == (status, reason, message):
        return []
    changed = known.get("status") != status
    since = sight.time if changed else known.get("lastTransitionTime") or sight.time
    entry = condition(SCHEDULED, status=not reason, reason=reason, message=message, now=since)
    others = [each for each in sight.volume.status.get("conditions") or [] if each.get("type") != SCHEDULED]
    why = f"volume cannot be scheduled: {message}" if reason else "volume scheduled"
    return [volume_status(sight, {"conditions": [entry, *others]}, why, "scheduling_failures" if reason else "")]


def scheduled_condition(status: Json) -> Json:
    """The Scheduled condition in a volume's status, {} if there is none."""
    return next((each for each in status.get("conditions") or [] if each.get("type") == SCHEDULED), {})
