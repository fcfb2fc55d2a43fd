"""Which of the volumes that compete for a node fit there together: demand before offers, older before younger.

Demand that does not fit together with older demand is *hopeless*: it is left out, or it would block every pod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler_core.evaluation.competitors import identity
from scheduler_core.evaluation.offered_volumes import CompetingVolumes, offer_parts
from scheduler_core.volumes.resolve import PodVolume

VolumesFit = Callable[[Sequence[PodVolume]], bool]
"""Whether volumes fit on the node together."""


class FittingVolumes(NamedTuple):
    """Competing volumes that fit together, by identity."""

    demanded: dict[str, PodVolume]  # the volumes that will be placed there, those of holds included
    volumes: dict[str, PodVolume]  # in addition those that may be placed there
    left_out: Sequence[PodVolume] = ()  # all others, the hopeless ones included


def all_volumes(competing: CompetingVolumes) -> FittingVolumes:
    demanded = _by_identity(competing.demanded)
    held = _by_identity(*competing.held)
    return FittingVolumes(demanded | held, demanded | _by_identity(*competing.offered) | held)


def fitting_volumes(competing: CompetingVolumes, volumes_fit: VolumesFit) -> FittingVolumes:
    """Returns the competing volumes that fit on a node together. If not all of them fit, demand comes before offers,
    older before younger, and holds come last: a pod of higher priority was offered what is held for another one.
    """
    candidates = all_volumes(competing)
    if volumes_fit(list(candidates.volumes.values())):
        return candidates
    demanded = _by_identity(competing.demanded)
    fitting: dict[str, PodVolume] = {}
    if volumes_fit(list(demanded.values())):
        fitting = demanded
    else:
        for key, volume in demanded.items():
            if volumes_fit([*fitting.values(), volume]):
                fitting[key] = volume
    volumes = dict(fitting)
    for part in offer_parts((*competing.offered, *competing.held)):
        trial = volumes | _by_identity(part)
        if volumes_fit(list(trial.values())):
            volumes = trial
    left_out = [volume for key, volume in candidates.volumes.items() if key not in volumes]
    held = _by_identity(*competing.held)
    fitting = fitting | {key: volume for key, volume in volumes.items() if key in held}
    return FittingVolumes(fitting, volumes, left_out)


def _by_identity(*parts: Sequence[PodVolume]) -> dict[str, PodVolume]:
    return {identity(volume): volume for part in parts for volume in part}
