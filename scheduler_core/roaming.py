"""Volumes that need no local room and have no place yet: until Longhorn places them they may take room on any node.

Data flow: what may roam now, by volume or claim (`roaming_volume`, `roaming_claim`) → who began and ended to since the last view →
`Roamers.young`, those who did so within `ROAMING_LIFE`. A volume that finds no place would roam for ever, and stop others.
Since when a volume roams is not in the cluster: a new leader counts from when it first sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from rpds import HashTrieSet

from scheduler_core.demand import roaming_claim, roaming_volume
from scheduler_core.resolve import PodVolume
from scheduler_core.view import View

ROAMING_LIFE: Final = timedelta(seconds=30)
Subject = str | tuple[str, str]
"""A Longhorn volume by its name, or an unbound claim by namespace and name."""


@dataclass(frozen=True, slots=True)
class Roaming:
    """A volume that roams, and when it was first seen to."""

    volume: PodVolume
    since: datetime
    subject: Subject


@dataclass(frozen=True, slots=True)
class Roamers:
    """What roams in one view.

    Attributes:
        young: what counts, those first seen earliest first; it depends on when the views before were taken
        unplaced: all that roam, however long
    """

    young: tuple[Roaming, ...] = field(default=(), compare=False)
    unplaced: HashTrieSet[Subject] = field(default_factory=HashTrieSet)

    def after(self, subjects: Iterable[Subject], view: View) -> Roamers:
        """What roams in a later view, in which only these may have begun or ended to."""
        subjects = list(subjects)
        if not subjects and not self.young:
            return self
        now, unplaced = view.cluster.now, self.unplaced
        young = {entry.subject: entry for entry in self.young if now - entry.since < ROAMING_LIFE}
        for subject in subjects:
            volume = _roaming(subject, view)
            if volume is None:
                young.pop(subject, None)
                unplaced = unplaced.discard(subject)
            elif subject in young:
                young[subject] = replace(young[subject], volume=volume)
            elif subject not in unplaced:
                young[subject] = Roaming(volume, now, subject)
                unplaced = unplaced.insert(subject)
        return Roamers(tuple(sorted(young.values(), key=lambda entry: (entry.since, str(entry.subject)))), unplaced)


def _roaming(subject: Subject, view: View) -> PodVolume | None:
    if isinstance(subject, str):
        volume = view.snapshot.volumes.get(subject)
        return None if volume is None else roaming_volume(volume, view)
    claim = view.snapshot.claims.get(subject)
    return None if claim is None else roaming_claim(claim, view)
