"""Replicas that come and go while a volume is attached: replenishing, rebuilding, locality, eviction, clean-up."""

from __future__ import annotations

from datetime import timedelta

from scheduler_core.longhorn.new_volume import PRECHECK_FAILED, SCHEDULING_FAILURE, joined
from scheduler_core.longhorn.placement import find_candidates
from scheduler_core.longhorn.replenish import Replenishment, replenishments
from scheduler_core.longhorn.replica_request import Ask, auto_balance
from scheduler_core.longhorn.replica_reuse import reused, wait_before_new_replica
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.longhorn.timestamps import parse_time
from scheduler_core.model.longhorn import FAILED_REPLICA_MAX_RETRY_COUNT
from simulator.actions import Action, Later, Wake
from simulator.volumes.manifests import made_healthy, new_replica
from simulator.volumes.observation import (
    CREATING,
    DEGRADED,
    DETACHED,
    HEALTHY,
    RUNNING,
    UNKNOWN,
    Replica,
    Sight,
    healthy,
    rebuilding,
    remove,
    replica_spec,
    replica_status,
    volume_status,
    waiting,
    working,
)
from simulator.volumes.replica_scheduling import write_scheduled


def create(sight: Sight) -> list[Action]:
    """A new volume's replica objects (reconcileVolumeCreation): none if no disk at all could take one."""
    actions = [] if sight.replicas else replenish(sight)
    if sight.model.state not in ("", CREATING):
        return actions
    return [*actions, volume_status(sight, {"state": DETACHED, "robustness": UNKNOWN}, "volume created", "created")]


def link(sight: Sight) -> list[Action]:
    """Notes whose volume it is (status.kubernetesStatus)."""
    known = sight.volume.status.get("kubernetesStatus") or {}
    if all(known.get(key) == value for key, value in sight.kubernetes.items()):
        return []
    return [volume_status(sight, {"kubernetesStatus": dict(sight.kubernetes)}, "volume belongs to a claim")]


def rebuild(sight: Sight) -> list[Action]:
    """Brings a replica without data up: one at a time, as long as another works."""
    if not sight.model.current_node_id or not any(working(replica) for replica in sight.present):
        return []
    behind = [replica for replica in sight.present if rebuilding(replica) and sight.can_run(replica.model.node_id)]
    behind = [replica for replica in behind if sight.may_start(replica)]
    if not behind:
        return []
    first = next((replica for replica in behind if replica.model.current_state == RUNNING), behind[0])
    if first.model.current_state != RUNNING:
        started = replica_status(first, {"currentState": RUNNING}, "replica rebuilding")
        return [Later(f"start {first.name}", sight.config.start_seconds, (started,))]
    done = made_healthy(sight, first, "replica rebuilt", "replicas_rebuilt")
    return [Later(f"rebuild {first.name}", _rebuild_span(sight), (done,))]


def _rebuild_span(sight: Sight) -> tuple[float, float]:
    least, most = sight.config.rebuild_seconds
    speed = sight.config.rebuild_bytes_per_second
    copying = sight.model.actual_size / speed if speed else 0.0
    return least + copying, most + copying


def restart(sight: Sight) -> list[Action]:
    """Starts the healthy replicas of an attached volume that do not run, after a salvage for instance."""
    if not sight.model.current_node_id:
        return []
    return [
        Later(
            f"start {replica.name}",
            sight.config.start_seconds,
            (replica_status(replica, {"currentState": RUNNING}, "replica running"),),
        )
        for replica in sight.present
        if healthy(replica) and not working(replica) and sight.can_run(replica.model.node_id)
    ]


def replenish_or_move(sight: Sight) -> list[Action]:
    """What ReconcileEngineReplicaState adds: to degraded volumes what is missing; to healthy ones what should move."""
    if not sight.model.current_node_id or sight.model.current_node_id != sight.model.node_id:
        return []
    if sight.model.robustness == DEGRADED:
        return replenish(sight)
    if sight.model.robustness != HEALTHY:
        return []
    evicted = _evict(sight)
    if evicted:
        return evicted
    if sight.best_effort and not sight.attached_for_eviction and not _has_local(sight):
        return replenish(sight, sight.model.current_node_id)
    if auto_balance(sight.model, sight.cluster.settings) != AUTO_BALANCE_DISABLED:
        return replenish(sight)
    return []


def _evict(sight: Sight) -> list[Action]:
    """EvictReplicas: one more for those that have to go, unless one is coming already."""
    staying = [each for each in sight.present if working(each) and not each.model.eviction_requested]
    evicting = any(each.model.eviction_requested for each in sight.present)
    coming = any(not each.model.healthy_at and not each.model.failed_at for each in sight.present)
    if not evicting or coming or len(staying) >= sight.model.number_of_replicas:
        return []
    return replenish(sight)


def _has_local(sight: Sight) -> bool:
    """hasLocalReplicaOnSameNodeAsEngine: a replica there, whatever its state, or one that is to be there."""
    node = sight.model.current_node_id
    return any(node in (each.node_id, each.hard_node_affinity) for each in sight.models)


def replenish(sight: Sight, hard_node_affinity: str = "") -> list[Action]:
    """Adds what is missing (replenishReplicas): one at a time except for a new volume, a failed one rather than a new one."""
    new = not sight.replicas
    if not new and (not sight.cluster.settings.concurrent_replica_rebuild_per_node_limit or _any_rebuilding(sight)):
        return []
    wanted = _wanted(sight, hard_node_affinity)
    if not wanted.count:
        return []
    again = reused(sight.cluster, sight.model, sight.models, wanted.hard_node_affinity)
    if again:
        return [_reuse(sight, sight.rng.choice(sorted(again)))]
    wait = wait_before_new_replica(sight.cluster, sight.model, sight.models, wanted.hard_node_affinity)
    if wait > timedelta(0):
        return [Wake(min(wait.total_seconds(), sight.config.schedule_retry))]  # the failed one may be back before
    if not wanted.hard_node_affinity:
        check = find_candidates(sight.cluster, Ask.fresh(sight.model), sight.models)
        if not check.disks:
            return _precheck_failed(sight, joined(check.reasons) or "disks are unavailable")
    count = wanted.count if new else 1
    return [
        new_replica(sight, "replica created", hard_node_affinity=wanted.hard_node_affinity, rebuild=not new)
        for _ in range(count)
    ]


def _precheck_failed(sight: Sight, reasons: str) -> list[Action]:
    """Says so, unless a replica without a place is about to say why it has none: in one sync the last word counts."""
    again = Wake(sight.config.schedule_retry)
    if any(waiting(replica) for replica in sight.present):
        return [again]
    return [*write_scheduled(sight, SCHEDULING_FAILURE, PRECHECK_FAILED + reasons), again]


def _any_rebuilding(sight: Sight) -> bool:
    return any(rebuilding(replica) for replica in sight.present)


def _wanted(sight: Sight, hard_node_affinity: str) -> Replenishment:
    if hard_node_affinity:
        return Replenishment(1, hard_node_affinity)
    answers = replenishments(sight.cluster, sight.model, sight.models)
    return sight.rng.choice(sorted(answers, key=lambda answer: (answer.count, answer.hard_node_affinity)))


def _reuse(sight: Sight, name: str) -> Action:
    replica = next(each for each in sight.replicas if each.name == name)
    return replica_spec(replica, {"failedAt": "", "healthyAt": ""}, "failed replica used again", "replicas_reused")


def clean_up(sight: Sight) -> list[Action]:
    """Removes at most one replica: a useless failed one, one that found no place, or one too many."""
    ready = [replica for replica in sight.present if working(replica)]
    found = _useless(sight, len(ready)) or _placeless(sight, len(ready))
    if found is not None:
        return [found]
    if len(ready) <= sight.model.number_of_replicas or not sight.model.current_node_id:
        return []
    return _extra(sight, ready)


def _useless(sight: Sight, healthy_count: int) -> Action | None:
    """shouldCleanUpFailedReplica: failed too often, or too long ago, and not perhaps the last one with data."""
    stale = timedelta(minutes=int(sight.volume.spec.get("staleReplicaTimeout") or 0))
    for replica in sight.present:
        since = parse_time(replica.model.failed_at)
        if since is None or (replica.raw["spec"].get("lastHealthyAt") and not healthy_count):
            continue
        if replica.model.rebuild_retry_count >= FAILED_REPLICA_MAX_RETRY_COUNT:
            return remove(replica, "replica that failed before it was healthy removed")
        if stale and sight.now - since >= stale:
            return remove(replica, "replica that failed long ago removed")
    return None


def _placeless(sight: Sight, healthy_count: int) -> Action | None:
    """CleanupFailedToScheduleReplicas."""
    evicting = any(replica.model.eviction_requested for replica in sight.present)
    for replica in sight.present:
        if not waiting(replica) or replica.model.healthy_at:
            continue
        pinned = replica.model.hard_node_affinity
        if pinned and sight.locality_disabled:
            return remove(replica, "pinned replica of a volume without locality removed")
        enough = healthy_count >= sight.model.number_of_replicas and not evicting
        if enough and sight.model.current_node_id and pinned != sight.model.current_node_id:
            return remove(replica, "replica without a place removed: there are enough")
    return None


def _extra(sight: Sight, ready: list[Replica]) -> list[Action]:
    """cleanupExtraHealthyReplicas: evicted ones first, then those that are not local, then any."""
    evicting = [replica for replica in ready if replica.model.eviction_requested]
    if evicting:
        return [remove(sight.rng.choice(evicting), "evicted replica removed")]
    node = sight.model.current_node_id
    if sight.best_effort and any(replica.model.node_id == node for replica in ready):
        distant = [replica for replica in ready if replica.model.node_id != node]
        if distant:
            return [remove(sight.rng.choice(distant), "replica elsewhere removed: there is a local one")]
    return [remove(_least_needed(sight, ready), "one replica too many removed")]


def _least_needed(sight: Sight, ready: list[Replica]) -> Replica:
    """The preferred one to go: not the local one; of a shared disk, then of a shared node, then of the fullest disk."""
    available = {disk.uuid: disk.storage_available for node in sight.cluster.nodes.values() for disk in node.disks}

    def rank(replica: Replica) -> tuple[bool, int, int, int, str]:
        model = replica.model
        on_disk = sum(1 for each in ready if each.model.disk_id == model.disk_id)
        on_node = sum(1 for each in ready if each.model.node_id == model.node_id)
        local = model.node_id == sight.model.current_node_id and not sight.locality_disabled
        return (local, -on_disk, -on_node, available.get(model.disk_id, 0), replica.name)

    return min(ready, key=rank)


def write_data(sight: Sight) -> list[Action]:
    """Fills an attached volume up to what its claim's or its own annotation asks for."""
    model = sight.model
    target = min(sight.write_target, sight.size)
    if not model.current_node_id or target <= model.actual_size:
        return []
    speed = sight.config.write_bytes_per_second
    step = target - model.actual_size if not speed else min(target - model.actual_size, speed)
    written = volume_status(sight, {"actualSize": model.actual_size + step}, "data written")
    return [Later("write", (1.0, 1.0), (written,)) if speed else written]
