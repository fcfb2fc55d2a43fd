"""All phases of a volume's life in Longhorn's order. The first that has something to write ends the pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.kube.resources import LONGHORN_REPLICAS, LONGHORN_VOLUMES
from simulator.actions import Action, Delete, Later, is_write, without_finalizer
from simulator.config import Config
from simulator.objects import DATA_FINALIZER, FINALIZER
from simulator.volumes.attach import attach_or_detach
from simulator.volumes.eviction import attach_for_eviction
from simulator.volumes.failure import fail, judge, salvage
from simulator.volumes.observation import Replica, Sight, remove
from simulator.volumes.replica_scheduling import schedule
from simulator.volumes.replica_upkeep import clean_up, create, link, rebuild, replenish_or_move, restart, write_data

Phase = Callable[[Sight], list[Action]]

PHASES: Final[tuple[Phase, ...]] = (
    create,
    fail,
    judge,
    salvage,
    attach_for_eviction,
    schedule,
    attach_or_detach,
    restart,
    rebuild,
    clean_up,
    replenish_or_move,
    write_data,
    link,
)


def decide(sight: Sight) -> list[Action]:
    """What is to be done about a volume now, and what later; nothing when all is as it should be."""
    if sight.volume.deleting:
        return tear_down(sight)
    if sight.abandoned:
        return [Delete(LONGHORN_VOLUMES, sight.volume, "volume of a claim that is gone removed")]
    pending: list[Action] = []
    for phase in PHASES:
        actions = phase(sight)
        pending += [action for action in actions if not is_write(action)]
        writes = [action for action in actions if is_write(action)]
        if writes:
            return [*writes, *pending]
    return pending


def tear_down(sight: Sight) -> list[Action]:
    """A volume that is being deleted: its replicas first; it is gone when the last of them is."""
    if sight.replicas:
        return [remove(replica, "replica of a deleted volume removed") for replica in sight.present]
    return list(without_finalizer(LONGHORN_VOLUMES, sight.volume, "volume deleted", FINALIZER))


def decide_replica(replica: Replica, config: Config) -> list[Action]:
    """A replica that is being deleted: its data, and with it its object, takes some time to go.

    With DiskSchedules Longhorn's finalizer is their controllers', who take it off when the room is given back.
    """
    if not replica.deleting:
        return []
    ours = (DATA_FINALIZER,) if config.disk_schedules else (DATA_FINALIZER, FINALIZER)
    actions = without_finalizer(LONGHORN_REPLICAS, replica, "replica gone", *ours)
    return [Later("delete", config.delete_seconds, actions)] if actions else []
