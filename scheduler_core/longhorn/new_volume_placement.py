"""A new volume: every possible placement of all its replicas in the volume controller's first sync."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.placement import Choice, PlacementResult, Reasons, find_candidates, schedule_replica
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.model.longhorn import BEST_EFFORT, STRICT_LOCAL, Replica, Volume

Place = tuple[str, str]

SCHEDULING_FAILURE: Final = "ReplicaSchedulingFailure"
LOCAL_SCHEDULING_FAILURE: Final = "LocalReplicaSchedulingFailure"
PRECHECK_FAILED: Final = "precheck new replica failed: "
DEGRADED_ALLOWED: Final = "Reset schedulable due to allow volume creation with degraded availability"


@dataclass(frozen=True, slots=True)
class ScheduledCondition:
    """The volume's Scheduled condition, True without a reason."""

    reason: str = ""
    message: str = ""

    @property
    def status(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class VolumeOutcome:
    """A possible outcome of creating a volume."""

    placements: tuple[Place, ...]  # (node, disk) names, sorted
    replicas: int  # how many replica objects there are
    unscheduled: int  # how many of them have no place
    scheduled: ScheduledCondition


@dataclass(frozen=True, slots=True)
class _Progress:
    """The progress of placing a volume's replicas."""

    placed: tuple[Replica, ...] = ()
    places: tuple[Place, ...] = ()
    chance: bool = False  # whether a choice so far depended on chance
    reasons: Reasons | None = None  # why the remaining replicas could not be placed, None if none has failed


def create_volume(cluster: Cluster, volume: Volume) -> dict[VolumeOutcome, bool]:
    """Every possible outcome of creating a volume, and whether it depends on chance. Mirrors
    controller/volume_controller.go: replenishReplicas (which prechecks each replica while none has a place yet, so that
    anti-affinity has no effect) and reconcileVolumeCondition (which then places them one after the other).
    """
    precheck = find_candidates(cluster, ReplicaRequest.for_volume(volume), ())
    if not precheck.disks:
        message = PRECHECK_FAILED + (join_reasons(precheck.reasons) or "disks are unavailable")
        return {VolumeOutcome((), 0, 0, ScheduledCondition(SCHEDULING_FAILURE, message)): False}
    if waits_for_attachment(volume):
        return {VolumeOutcome((), volume.number_of_replicas, volume.number_of_replicas, ScheduledCondition()): False}
    outcomes: dict[VolumeOutcome, bool] = {}
    for end in _reachable_ends(cluster, volume):
        outcome = _outcome(cluster, volume, end)
        outcomes[outcome] = outcomes.get(outcome, False) or end.chance
    return outcomes


def waits_for_attachment(volume: Volume) -> bool:
    """Whether replicas stay unscheduled until the volume is attached, because it needs local data and has no node yet."""
    return volume.data_locality in (BEST_EFFORT, STRICT_LOCAL) and not volume.node_id


def _reachable_ends(cluster: Cluster, volume: Volume) -> list[_Progress]:
    """Every end that some sequence of choices reaches."""
    ends: list[_Progress] = []
    level: dict[tuple[Place, ...], _Progress] = {(): _Progress()}
    for _ in range(volume.number_of_replicas):
        next_level: dict[tuple[Place, ...], _Progress] = {}
        for state in level.values():
            schedule = _schedule_next(cluster, volume, state.placed)
            if not schedule.choices:
                # Nothing changes for the remaining replicas, so they fail alike.
                ends.append(replace(state, reasons=schedule.reasons))
            for choice in schedule.choices:
                reached = _place_replica(volume, state, choice)
                same = next_level.get(reached.places)
                # The replicas are alike, so only the choices matter, not their order.
                next_level[reached.places] = replace(
                    reached, chance=reached.chance or (same is not None and same.chance)
                )
        level = next_level
    return [*ends, *level.values()]


def _schedule_next(cluster: Cluster, volume: Volume, placed: tuple[Replica, ...]) -> PlacementResult:
    affinity = volume.node_id if volume.data_locality == STRICT_LOCAL else ""
    pending = Replica(
        name="",
        volume=volume.name,
        size=volume.size,
        data_engine=volume.data_engine,
        image=volume.image,
        hard_node_affinity=affinity,
    )
    return schedule_replica(cluster, volume, pending, placed)


def _place_replica(volume: Volume, state: _Progress, choice: Choice) -> _Progress:
    node = choice.candidate.node
    disk = choice.candidate.disk
    replica = Replica(
        name=f"{volume.name}-{len(state.placed)}",
        volume=volume.name,
        size=volume.size,
        node_id=node.name,
        disk_id=disk.uuid,
        data_engine=volume.data_engine,
    )
    places = tuple(sorted((*state.places, (node.name, disk.name))))
    return _Progress((*state.placed, replica), places, state.chance or choice.reason.chance)


def _outcome(cluster: Cluster, volume: Volume, end: _Progress) -> VolumeOutcome:
    total = volume.number_of_replicas
    return VolumeOutcome(end.places, total, total - len(end.places), _condition(cluster, volume, end))


def _condition(cluster: Cluster, volume: Volume, end: _Progress) -> ScheduledCondition:
    """The Scheduled condition at the end of reconcileVolumeCondition."""
    if end.reasons is None:
        return ScheduledCondition()
    degraded_allowed = cluster.settings.allow_volume_creation_with_degraded_availability
    if degraded_allowed and end.places and not volume.current_node_id:
        return ScheduledCondition(message=DEGRADED_ALLOWED)
    reason = LOCAL_SCHEDULING_FAILURE if volume.data_locality == STRICT_LOCAL else SCHEDULING_FAILURE
    return ScheduledCondition(reason, join_reasons(end.reasons) or "replica scheduling failed")


def join_reasons(reasons: Reasons) -> str:
    """Reasons as Longhorn joins them: sorted, with semicolons."""
    return "; ".join(sorted(reasons))
