"""Creates, rebuilds, moves and removes the replicas of a volume: replenishment, locality, eviction, clean-up."""

from datetime import timedelta

from scheduler_core.longhorn.cluster import parse_time
from scheduler_core.longhorn.new_volume_placement import PRECHECK_FAILED, SCHEDULING_FAILURE, join_reasons
from scheduler_core.longhorn.placement import find_candidates
from scheduler_core.longhorn.replenish import Replenishment, replenishments, replica_to_reuse, wait_before_new_replica
from scheduler_core.longhorn.replica_request import ReplicaRequest, auto_balance_mode
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.model.longhorn import FAILED_REPLICA_MAX_RETRY_COUNT
from simulator.actions import Action, AfterDelay, RequeueAfter
from simulator.config import Delay, quantiles
from simulator.volumes.manifests import mark_healthy, new_replica
from simulator.volumes.observation import (
    CREATING,
    DEGRADED,
    HEALTHY,
    RUNNING,
    UNKNOWN,
    Replica,
    VolumeObservation,
    delete_replica,
    is_healthy,
    is_working,
    lacks_place,
    needs_rebuild,
    patch_replica_spec,
    patch_replica_status,
    patch_volume_status,
)
from simulator.volumes.replica_scheduling import write_scheduled


def create_replicas(observation: VolumeObservation) -> list[Action]:
    """Creates a new volume's replicas, if any disk can take one. Mirrors Longhorn's reconcileVolumeCreation."""
    actions = [] if observation.replicas else replenish(observation)
    if observation.model.state != "":
        return actions
    return [
        *actions,
        patch_volume_status(observation, {"state": CREATING, "robustness": UNKNOWN}, "volume created", "created"),
    ]


def write_kubernetes_status(observation: VolumeObservation) -> list[Action]:
    """Writes the volume's PersistentVolume and claim into status.kubernetesStatus."""
    current = observation.volume.status.get("kubernetesStatus") or {}
    if all(current.get(key) == value for key, value in observation.kubernetes_status.items()):
        return []
    return [
        patch_volume_status(
            observation, {"kubernetesStatus": dict(observation.kubernetes_status)}, "volume belongs to a claim"
        )
    ]


def rebuild_replica(observation: VolumeObservation) -> list[Action]:
    """Rebuilds one replica at a time, while another one works."""
    if not observation.model.current_node_id or not any(is_working(replica) for replica in observation.live_replicas):
        return []
    candidates = [
        replica
        for replica in observation.live_replicas
        if needs_rebuild(replica) and observation.can_run(replica.model.node_id)
    ]
    candidates = [replica for replica in candidates if observation.may_start(replica)]
    if not candidates:
        return []
    first = next((replica for replica in candidates if replica.model.current_state == RUNNING), candidates[0])
    if first.model.current_state != RUNNING:
        started = patch_replica_status(first, {"currentState": RUNNING}, "replica rebuilding")
        return [AfterDelay(f"start {first.name}", observation.config.start_seconds, (started,))]
    done = mark_healthy(observation, first, "replica rebuilt", "replicas_rebuilt")
    return [AfterDelay(f"rebuild {first.name}", _rebuild_delay(observation), (done,))]


def _rebuild_delay(observation: VolumeObservation) -> Delay:
    speed = observation.config.rebuild_bytes_per_second
    copying = observation.model.actual_size / speed if speed else 0.0
    return tuple((fraction, seconds + copying) for fraction, seconds in quantiles(observation.config.rebuild_seconds))


def restart_replicas(observation: VolumeObservation) -> list[Action]:
    """Starts an attached volume's stopped healthy replicas, as after a salvage."""
    if not observation.model.current_node_id:
        return []
    return [
        AfterDelay(
            f"start {replica.name}",
            observation.config.start_seconds,
            (patch_replica_status(replica, {"currentState": RUNNING}, "replica running"),),
        )
        for replica in observation.live_replicas
        if is_healthy(replica) and not is_working(replica) and observation.can_run(replica.model.node_id)
    ]


def replenish_or_move(observation: VolumeObservation) -> list[Action]:
    """Adds missing replicas, or replicas for others that should move. Degraded volumes get the former, healthy ones the latter.
    Mirrors Longhorn's ReconcileEngineReplicaState.
    """
    if not observation.model.current_node_id or observation.model.current_node_id != observation.model.node_id:
        return []
    if observation.model.robustness == DEGRADED:
        return replenish(observation)
    if observation.model.robustness != HEALTHY:
        return []
    evicted = _evict(observation)
    if evicted:
        return evicted
    if observation.best_effort and not observation.attached_for_eviction and not _has_local_replica(observation):
        return replenish(observation, observation.model.current_node_id)
    if auto_balance_mode(observation.model, observation.cluster.settings) != AUTO_BALANCE_DISABLED:
        return replenish(observation)
    return []


def _evict(observation: VolumeObservation) -> list[Action]:
    """Adds a replica for evicted ones (EvictReplicas). Nothing is added while an earlier addition has no data yet."""
    staying = [each for each in observation.live_replicas if is_working(each) and not each.model.eviction_requested]
    evicting = any(each.model.eviction_requested for each in observation.live_replicas)
    coming = any(not each.model.healthy_at and not each.model.failed_at for each in observation.live_replicas)
    if not evicting or coming or len(staying) >= observation.model.number_of_replicas:
        return []
    return replenish(observation)


def _has_local_replica(observation: VolumeObservation) -> bool:
    """Whether a replica is on the engine's node, or pinned to it. Mirrors Longhorn's hasLocalReplicaOnSameNodeAsEngine."""
    node = observation.model.current_node_id
    return any(node in (each.node_id, each.hard_node_affinity) for each in observation.replica_models)


def replenish(observation: VolumeObservation, hard_node_affinity: str = "") -> list[Action]:
    """Adds missing replicas (replenishReplicas). Only a new volume gets several at a time. A failed replica is used again rather
    than a new one created.
    """
    new = not observation.replicas
    if not new and (
        not observation.cluster.settings.concurrent_replica_rebuild_per_node_limit or _is_any_rebuilding(observation)
    ):
        return []
    wanted = _choose_replenishment(observation, hard_node_affinity)
    if not wanted.count:
        return []
    reusable = replica_to_reuse(
        observation.cluster, observation.model, observation.replica_models, wanted.hard_node_affinity
    )
    if reusable:
        return [_reuse_replica(observation, observation.rng.choice(sorted(reusable)))]
    wait = wait_before_new_replica(
        observation.cluster, observation.model, observation.replica_models, wanted.hard_node_affinity
    )
    if wait > timedelta(0):
        return [
            RequeueAfter(wait.total_seconds())
        ]  # if the failed replica is back before that, its node's change is an event
    if not wanted.hard_node_affinity:
        check = find_candidates(
            observation.cluster, ReplicaRequest.for_volume(observation.model), observation.replica_models
        )
        if not check.disks:
            return _report_precheck_failure(observation, join_reasons(check.reasons) or "disks are unavailable")
    count = wanted.count if new else 1
    return [
        new_replica(observation, "replica created", hard_node_affinity=wanted.hard_node_affinity, rebuild=not new)
        for _ in range(count)
    ]


def _report_precheck_failure(observation: VolumeObservation, reasons: str) -> list[Action]:
    """Reports that no disk could take a replica. An unplaced replica reports its own reason in the same sync, which would replace
    this one: then nothing is written.
    """
    requeue = RequeueAfter(observation.config.schedule_retry)
    if any(lacks_place(replica) for replica in observation.live_replicas):
        return [requeue]
    return [*write_scheduled(observation, SCHEDULING_FAILURE, PRECHECK_FAILED + reasons), requeue]


def _is_any_rebuilding(observation: VolumeObservation) -> bool:
    return any(needs_rebuild(replica) for replica in observation.live_replicas)


def _choose_replenishment(observation: VolumeObservation, hard_node_affinity: str) -> Replenishment:
    if hard_node_affinity:
        return Replenishment(1, hard_node_affinity)
    answers = replenishments(observation.cluster, observation.model, observation.replica_models)
    return observation.rng.choice(sorted(answers, key=lambda answer: (answer.count, answer.hard_node_affinity)))


def _reuse_replica(observation: VolumeObservation, name: str) -> Action:
    replica = next(each for each in observation.replicas if each.name == name)
    return patch_replica_spec(
        replica, {"failedAt": "", "healthyAt": ""}, "failed replica used again", "replicas_reused"
    )


def clean_up(observation: VolumeObservation) -> list[Action]:
    """Removes at most one useless, unplaced or surplus replica."""
    ready = [replica for replica in observation.live_replicas if is_working(replica)]
    removal = _remove_useless_replica(observation, len(ready)) or _remove_unplaced_replica(observation, len(ready))
    if removal is not None:
        return [removal]
    if len(ready) <= observation.model.number_of_replicas or not observation.model.current_node_id:
        return []
    return _remove_extra_replica(observation, ready)


def _remove_useless_replica(observation: VolumeObservation, healthy_count: int) -> Action | None:
    """Removes a replica that failed too often or too long ago. A replica that may be the last one with data stays. Mirrors
    Longhorn's shouldCleanUpFailedReplica.
    """
    stale = timedelta(minutes=int(observation.volume.spec.get("staleReplicaTimeout") or 0))
    for replica in observation.live_replicas:
        since = parse_time(replica.model.failed_at)
        if since is None or (replica.raw["spec"].get("lastHealthyAt") and not healthy_count):
            continue
        if replica.model.rebuild_retry_count >= FAILED_REPLICA_MAX_RETRY_COUNT:
            return delete_replica(replica, "replica that failed before it was healthy removed")
        if stale and observation.now - since >= stale:
            return delete_replica(replica, "replica that failed long ago removed")
    return None


def _remove_unplaced_replica(observation: VolumeObservation, healthy_count: int) -> Action | None:
    """Removes an unplaced replica that is not needed (CleanupFailedToScheduleReplicas)."""
    evicting = any(replica.model.eviction_requested for replica in observation.live_replicas)
    for replica in observation.live_replicas:
        if not lacks_place(replica) or replica.model.healthy_at:
            continue
        pinned = replica.model.hard_node_affinity
        if pinned and observation.locality_disabled:
            return delete_replica(replica, "pinned replica of a volume without locality removed")
        enough = healthy_count >= observation.model.number_of_replicas and not evicting
        if enough and observation.model.current_node_id and pinned != observation.model.current_node_id:
            return delete_replica(replica, "replica without a place removed: there are enough")
    return None


def _remove_extra_replica(observation: VolumeObservation, ready: list[Replica]) -> list[Action]:
    """Removes a surplus replica. An evicted one goes first, then one that is not local, then with auto-balance any; else all of
    them stay. Mirrors Longhorn's cleanupExtraHealthyReplicas.
    """
    evicting = [replica for replica in ready if replica.model.eviction_requested]
    if evicting:
        return [delete_replica(observation.rng.choice(evicting), "evicted replica removed")]
    node = observation.model.current_node_id
    if observation.best_effort and any(replica.model.node_id == node for replica in ready):
        distant = [replica for replica in ready if replica.model.node_id != node]
        if distant:
            return [delete_replica(observation.rng.choice(distant), "replica elsewhere removed: there is a local one")]
    if auto_balance_mode(observation.model, observation.cluster.settings) == AUTO_BALANCE_DISABLED:
        return []
    return [delete_replica(_choose_extra(observation, ready), "one replica too many removed")]


def _choose_extra(observation: VolumeObservation, ready: list[Replica]) -> Replica:
    """The surplus replica to remove, preferably not the local one. Replicas on a shared disk go first, then those on a shared
    node, then those on the fullest disk.
    """
    available = {
        disk.uuid: disk.storage_available for node in observation.cluster.nodes.values() for disk in node.disks
    }

    def rank(replica: Replica) -> tuple[bool, int, int, int, str]:
        model = replica.model
        on_disk = sum(1 for each in ready if each.model.disk_id == model.disk_id)
        on_node = sum(1 for each in ready if each.model.node_id == model.node_id)
        local = model.node_id == observation.model.current_node_id and not observation.locality_disabled
        return (local, -on_disk, -on_node, available.get(model.disk_id, 0), replica.name)

    return min(ready, key=rank)


def write_data(observation: VolumeObservation) -> list[Action]:
    """Writes the data that an annotation requests to an attached volume."""
    model = observation.model
    target = min(observation.write_target, observation.writable_size)
    if not model.current_node_id or target <= model.actual_size:
        return []
    speed = observation.config.write_bytes_per_second
    step = target - model.actual_size if not speed else min(target - model.actual_size, speed)
    written = patch_volume_status(observation, {"actualSize": model.actual_size + step}, "data written")
    return [AfterDelay("write", (1.0, 1.0), (written,)) if speed else written]
