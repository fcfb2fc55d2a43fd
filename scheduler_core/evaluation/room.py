"""Whether volumes fit on a node together, and on which nodes volumes that may go to any of them fit, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scheduler_core.evaluation.competitors import Volumes, volumes_key
from scheduler_core.evaluation.profile_cache import ProfileCache
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.order_safe import counting_proves_safe
from scheduler_core.volumes.requirements import Requirements, requirements
from scheduler_core.volumes.resolve import PodVolume

# A search that gave up counts, or the space might be promised twice.
FITTING: Final = frozenset({Reason.ROOM, Reason.UNDECIDED})
_Part = tuple[list[str], frozenset[object]]


def volumes_fit(profiles: ProfileCache, budget: Budget, name: str, volumes: Sequence[PodVolume]) -> bool:
    if not volumes:
        return True
    return fits_on_node(profiles, budget, name, requirements(volumes, volumes))


def fits_on_node(profiles: ProfileCache, budget: Budget, name: str, required: Requirements) -> bool:
    """Returns whether a node meets requirements."""
    table = profiles.table(required.classes)
    [profile] = table.of([name])
    if required.uniform and profile.reason is None:
        items = required.items
        if counting_proves_safe(profile.free, items.total, items.largest):
            return True
    results = profiles.evaluate(required, [profile], budget, examine_safety=False)
    return results[profile] in FITTING


def volumes_with_open_disk(profiles: ProfileCache, name: str, volumes: Sequence[PodVolume]) -> Volumes:
    """Returns the volumes for which some disk of a node is open. The disk counts whether it has room or not."""
    placeable: list[PodVolume] = []
    for volume in volumes:
        table = profiles.table(requirements([volume], ()).classes)
        [profile] = table.of([name])
        if profile.reason is None:
            placeable.append(volume)
    return tuple(placeable)


def split_by_room(
    profiles: ProfileCache, budget: Budget, names: list[str], base: Volumes, volumes: Volumes
) -> dict[Volumes, list[str]]:
    """Splits nodes by the volumes, tried in their order, that fit in addition to `base`."""
    all_fitting, remaining = _nodes_with_room(profiles, budget, names, base + volumes)
    # With the nodes, the keys of volumes that did not fit: an equal one does not fit either, once there are more volumes.
    parts: dict[Volumes, _Part] = {(): (remaining, frozenset())} if remaining else {}
    for volume in volumes:
        key = _key(volume)
        split: dict[Volumes, _Part] = {}
        for fitting, (part, unfit) in parts.items():
            if key in unfit:
                split[fitting] = part, unfit
                continue
            tried = (*base, *fitting, volume)
            with_room, without_room = _nodes_with_room(profiles, budget, part, tried)
            if with_room:
                split[*fitting, volume] = with_room, unfit
            if without_room:
                split[fitting] = without_room, unfit | {key}
        parts = split
    return {fitting: part for fitting, (part, _) in parts.items()} | {volumes: all_fitting}


def _key(volume: PodVolume) -> object:
    return volumes_key((volume,))


def _nodes_with_room(
    profiles: ProfileCache, budget: Budget, names: list[str], volumes: Volumes
) -> tuple[list[str], list[str]]:
    required = requirements(volumes, ())
    table = profiles.table(required.classes)
    node_profiles = table.of(names)
    results = profiles.evaluate(required, node_profiles, budget, examine_safety=False)
    with_room: list[str] = []
    without_room: list[str] = []
    for name, profile in zip(names, node_profiles, strict=True):
        (with_room if results[profile] in FITTING else without_room).append(name)
    return with_room, without_room
