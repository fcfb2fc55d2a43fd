"""Reconciles a volume: all phases of its life in Longhorn's order. The first phase that writes something ends the pass."""

from collections.abc import Callable

from app.kube.resources import LONGHORN_REPLICAS, LONGHORN_SHARDS, LONGHORN_VOLUMES
from simulator.actions import Action, AfterDelay, DeleteObject, is_write, remove_finalizers
from simulator.config import Config
from simulator.objects import DATA_FINALIZER, FINALIZER
from simulator.volumes.attach import attach_for_eviction, attach_or_detach, copy_clone
from simulator.volumes.failure import fail_replicas, salvage_replicas, update_robustness
from simulator.volumes.observation import Replica, VolumeObservation, delete_replica
from simulator.volumes.replica_scheduling import PLACEMENT, schedule_replicas
from simulator.volumes.replica_upkeep import (
    clean_up,
    create_replicas,
    rebuild_replica,
    replenish_or_move,
    restart_replicas,
    write_data,
    write_kubernetes_status,
)
from simulator.volumes.shard_placement import place_shards

Phase = Callable[[VolumeObservation], list[Action]]

PHASES: tuple[Phase, ...] = (
    create_replicas,
    fail_replicas,
    update_robustness,
    salvage_replicas,
    attach_for_eviction,
    copy_clone,
    schedule_replicas,
    place_shards,
    attach_or_detach,
    restart_replicas,
    rebuild_replica,
    clean_up,
    replenish_or_move,
    write_data,
    write_kubernetes_status,
)

REPLICA_COUNT_PHASES: tuple[Phase, ...] = (clean_up, replenish_or_move)
"""Skipped while a replica is about to be placed: it is neither useless nor missing."""


def decide_volume(observation: VolumeObservation) -> list[Action]:
    """Returns what is to be done about a volume now and later."""
    if observation.volume.deleting:
        return tear_down(observation)
    if observation.abandoned:
        return [DeleteObject(LONGHORN_VOLUMES, observation.volume, "volume of a claim that is gone removed")]
    pending: list[Action] = []
    for phase in PHASES:
        if phase in REPLICA_COUNT_PHASES and any(_is_placement(action) for action in pending):
            continue
        actions = phase(observation)
        pending += [action for action in actions if not is_write(action)]
        writes = [action for action in actions if is_write(action)]
        if writes:
            return [*writes, *pending]
    return pending


def _is_placement(action: Action) -> bool:
    return isinstance(action, AfterDelay) and action.name == PLACEMENT


def tear_down(observation: VolumeObservation) -> list[Action]:
    """Removes a deleted volume after the last of its replicas, or shards."""
    if observation.shards:
        return [
            DeleteObject(LONGHORN_SHARDS, shard, "shard of a deleted volume removed") for shard in observation.shards
        ]
    if observation.replicas:
        return [delete_replica(replica, "replica of a deleted volume removed") for replica in observation.live_replicas]
    return remove_finalizers(LONGHORN_VOLUMES, observation.volume, "volume deleted", FINALIZER)


def decide_replica(replica: Replica, config: Config) -> list[Action]:
    """Removes a deleted replica, after the time that its data takes. With DiskSchedules their controllers remove Longhorn's
    finalizer, when the space is given back.
    """
    if not replica.deleting:
        return []
    removable = (DATA_FINALIZER,) if config.disk_schedules else (DATA_FINALIZER, FINALIZER)
    actions = remove_finalizers(LONGHORN_REPLICAS, replica, "replica gone", *removable)
    return [AfterDelay("delete", config.delete_seconds, tuple(actions))] if actions else []
