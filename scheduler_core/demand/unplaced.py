"""Volumes that need no local room and have no place yet: until Longhorn places them they may take room on any node.

Data flow: what may roam now, by volume or claim (`roaming_volume`, `roaming_claim`) → who began and ended to since the last view →
`Roamers`: those who did so within `ROAMING_LIFE`. A volume that finds no place would roam for ever, and stop others.
Since when a volume roams is not in the cluster: a new leader counts from when it first sees it. A claim and the volume that is
provisioned for it are one; it goes on from when the claim began.

Cost: that of what begins and ends, and copying a list of all; nothing where nothing does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile
from operator import attrgetter
from typing import Final

from rpds import HashTrieMap, HashTrieSet

from scheduler_core.cluster.view import View
from scheduler_core.demand.derive import roaming_claim, roaming_volume
from scheduler_core.volumes.resolve import PodVolume

ROAMING_LIFE: Final = timedelta(seconds=30)
Subject = str | tuple[str, str]
"""A Longhorn volume by its name, or an unbound claim by namespace and name."""


@dataclass(frozen=True, slots=True)
class Roaming:
    """A volume that roams, and when it was first seen to.

    Attributes:
        key: what tells it from others, as `joint.identity` does
        becomes: of a claim the Longhorn volume that will be provisioned for it
    """

    volume: PodVolume
    since: datetime
    key: str
    becomes: str = ""

    @property
    def age(self) -> tuple[datetime, str]:
        """Those first seen earliest first, ties by name."""
        return self.since, self.key

    @property
    def largest_first(self) -> tuple[int, str]:
        """The largest first, ties by name."""
        return -self.volume.volume.size, self.key


_AGE: Final = attrgetter("age")
_LARGEST_FIRST: Final = attrgetter("largest_first")


@dataclass(frozen=True, slots=True)
class Roamers:
    """What roams in one view.

    Attributes:
        young: what counts, those first seen earliest first; it depends on when the views before were taken
        by_size: the same, the largest first; `known`: the same by key
        replicas: how many these have in all
        unplaced: all that roam, however long
    """

    young: tuple[Roaming, ...] = field(default=(), compare=False)
    by_size: tuple[Roaming, ...] = field(default=(), compare=False)
    known: HashTrieMap[str, Roaming] = field(default_factory=HashTrieMap, compare=False)
    replicas: int = field(default=0, compare=False)
    unplaced: HashTrieSet[Subject] = field(default_factory=HashTrieSet)
    _coming: HashTrieMap[str, str] = field(default_factory=HashTrieMap, compare=False)

    def after(self, subjects: Iterable[Subject], view: View) -> Roamers:
        """What roams in a later view, in which only these may have begun or ended to."""
        now, unplaced = view.cluster.now, self.unplaced
        due = takewhile(lambda entry: now - entry.since >= ROAMING_LIFE, self.young)
        changed: dict[str, Roaming | None] = {entry.key: None for entry in due}
        # A volume takes over from its claim, which may end to roam in the same view.
        for subject in sorted(subjects, key=lambda subject: not isinstance(subject, str)):
            key, volume = _key(subject), _roaming(subject, view)
            entry = changed[key] if key in changed else self.known.get(key)
            if volume is None:
                changed |= {key: None} if entry is not None else {}
                unplaced = unplaced.discard(subject) if subject in unplaced else unplaced
            elif entry is not None:
                changed |= {key: replace(entry, volume=volume)} if entry.volume != volume else {}
            elif subject not in unplaced:
                becomes = _to_become(subject, view)
                if becomes not in unplaced:
                    claim = self.known.get(self._coming.get(key) or "")
                    claim = claim if claim is not None and claim.key not in changed else None
                    changed |= {claim.key: None} if claim is not None else {}
                    changed[key] = Roaming(volume, claim.since if claim is not None else now, key, becomes)
                unplaced = unplaced.insert(subject)
        return self if not changed and unplaced is self.unplaced else self._with(changed, unplaced)

    def _with(self, changed: Mapping[str, Roaming | None], unplaced: HashTrieSet[Subject]) -> Roamers:
        """With other entries by their keys; None: it no longer counts."""
        young, by_size, replicas = list(self.young), list(self.by_size), self.replicas
        known, coming = self.known, self._coming
        for key, entry in changed.items():
            old = known.get(key)
            if old is not None:
                del young[bisect_left(young, _AGE(old), key=_AGE)]
                del by_size[bisect_left(by_size, _LARGEST_FIRST(old), key=_LARGEST_FIRST)]
                replicas -= copies(old.volume)
                known, coming = known.remove(key), coming.discard(old.becomes)
            if entry is not None:
                insort(young, entry, key=_AGE)
                insort(by_size, entry, key=_LARGEST_FIRST)
                replicas += copies(entry.volume)
                known = known.insert(key, entry)
                coming = coming.insert(entry.becomes, key) if entry.becomes else coming
        return Roamers(tuple(young), tuple(by_size), known, replicas, unplaced, coming)


def copies(volume: PodVolume) -> int:
    """How many replicas a volume will have."""
    return max(1, volume.volume.number_of_replicas)


def claim_identity(claim: str) -> str:
    """What tells a claim that has no Longhorn volume yet from volumes; given as ``namespace/name``."""
    return f"{claim} (claim)"


def _key(subject: Subject) -> str:
    return subject if isinstance(subject, str) else claim_identity("/".join(subject))


def _to_become(subject: Subject, view: View) -> str:
    """The Longhorn volume that will be provisioned for a claim: Kubernetes' provisioner names it after the claim's UID."""
    claim = None if isinstance(subject, str) else view.snapshot.claims.get(subject)
    return f"pvc-{claim.uid}" if claim is not None and claim.uid else ""


def _roaming(subject: Subject, view: View) -> PodVolume | None:
    if isinstance(subject, str):
        volume = view.snapshot.volumes.get(subject)
        return None if volume is None else roaming_volume(volume, view)
    claim = view.snapshot.claims.get(subject)
    return None if claim is None else roaming_claim(claim, view)
