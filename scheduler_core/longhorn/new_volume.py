"""A new volume: everything that may become of all its replicas in the volume controller's first sync."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_choice import Choice
from scheduler_core.longhorn.placement import Reasons, Schedule, find_candidates, schedule_replica
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.model.longhorn import BEST_EFFORT, STRICT_LOCAL, Replica, Volume

Place = tuple[str, str]

SCHEDULING_FAILURE: Final = "ReplicaSchedulingFailure"
LOCAL_SCHEDULING_FAILURE: Final = "LocalReplicaSchedulingFailure"
PRECHECK_FAILED: Final = "precheck new replica failed: "
DEGRADED_ALLOWED: Final = "Reset schedulable due to allow volume creation with degraded availability"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The volume's Scheduled condition: True unless it has a reason."""

    reason: str = ""
    message: str = ""

    @property
    def status(self) -> bool:
        """Whether the condition is True."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class VolumeOutcome:
    """A possible outcome: (node, disk) names in order, how many replica objects there are, how many without a place."""

    placements: tuple[Place, ...]
    replicas: int
    unscheduled: int
    scheduled: Scheduled


@dataclass(frozen=True, slots=True)
class _Progress:
    """Replicas placed so far, whether chance played a part, and the reasons of those that could not be placed."""

    placed: tuple[Replica, ...] = ()
    places: tuple[Place, ...] = ()
    chance: bool = False
    reasons: Reasons | None = None


def create_volume(cluster: Cluster, volume: Volume) -> dict[VolumeOutcome, bool]:
    """Every possible outcome for a volume without replicas, and whether it depends on chance.

    Mirrors controller/volume_controller.go: replenishReplicas (which prechecks each replica while none has a place yet,
    so that anti-affinity does not bite) and reconcileVolumeCondition (which then places them one after the other).
    """
    check = find_candidates(cluster, Ask.fresh(volume), ())
    if not check.disks:
        message = PRECHECK_FAILED + (joined(check.reasons) or "disks are unavailable")
        return {VolumeOutcome((), 0, 0, Scheduled(SCHEDULING_FAILURE, message)): False}
    if waits_for_attachment(volume):
        return {VolumeOutcome((), volume.number_of_replicas, volume.number_of_replicas, Scheduled()): False}
    outcomes: dict[VolumeOutcome, bool] = {}
    for end in _runs(cluster, volume, _Progress()):
        outcome = _outcome(cluster, volume, end)
        outcomes[outcome] = outcomes.get(outcome, False) or end.chance
    return outcomes


def waits_for_attachment(volume: Volume) -> bool:
    """Whether replicas stay unscheduled until the volume is attached: local data, and no node yet."""
    return volume.data_locality in (BEST_EFFORT, STRICT_LOCAL) and not volume.node_id


def _runs(cluster: Cluster, volume: Volume, start: _Progress) -> Iterator[_Progress]:
    """All ends that can be reached. The replicas are alike, so their order does not matter, only the choices do."""
    level = {start.places: start}
    for _ in range(volume.number_of_replicas):
        following: dict[tuple[Place, ...], _Progress] = {}
        for state in level.values():
            schedule = _schedule_next(cluster, volume, state.placed)
            if not schedule.choices:
                # Nothing changes for the replicas that are left, so they fail alike.
                yield replace(state, reasons=schedule.reasons)
            for choice in schedule.choices:
                reached = _placed(volume, state, choice)
                known = following.get(reached.places)
                following[reached.places] = replace(
                    reached, chance=reached.chance or (known is not None and known.chance)
                )
        level = following
    yield from level.values()


def _schedule_next(cluster: Cluster, volume: Volume, placed: tuple[Replica, ...]) -> Schedule:
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


def _placed(volume: Volume, state: _Progress, choice: Choice) -> _Progress:
    node, disk = choice.candidate.node, choice.candidate.disk
    replica = Replica(
        name=f"{volume.name}-{len(state.placed)}",
        volume=volume.name,
        size=volume.size,
        node_id=node.name,
        disk_id=disk.uuid,
        data_engine=volume.data_engine,
    )
    places = tuple(sorted((*state.places, (node.name, disk.name))))
    return _Progress((*state.placed, replica), places, state.chance or choice.why.chance)


def _outcome(cluster: Cluster, volume: Volume, end: _Progress) -> VolumeOutcome:
    total = volume.number_of_replicas
    return VolumeOutcome(end.places, total, total - len(end.places), _condition(cluster, volume, end))


def _condition(cluster: Cluster, volume: Volume, end: _Progress) -> Scheduled:
    """The Scheduled condition at the end of reconcileVolumeCondition."""
    if end.reasons is None:
        return Scheduled()
    degraded_allowed = cluster.settings.allow_volume_creation_with_degraded_availability
    if degraded_allowed and end.places and not volume.current_node_id:
        return Scheduled(message=DEGRADED_ALLOWED)
    reason = LOCAL_SCHEDULING_FAILURE if volume.data_locality == STRICT_LOCAL else SCHEDULING_FAILURE
    return Scheduled(reason, joined(end.reasons) or "replica scheduling failed")


def joined(reasons: Reasons) -> str:
    """Reasons as Longhorn joins them: sorted, with semicolons."""
    return "; ".join(sorted(reasons))
