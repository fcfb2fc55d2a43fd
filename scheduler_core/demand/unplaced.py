"""Volumes without a placed replica that need no local space, so that Longhorn may place them on any node.

Data flow: what is unplaced now, by volume or claim (`unplaced_volume`, `unplaced_claim`) → volumes that are newly placed or newly unplaced
since the last view → `UnplacedVolumes`. A volume counts for `UNPLACED_LIFETIME`, because one that finds no place would otherwise block
others without end. No object records since when a volume is unplaced, so a new leader counts from when it first sees the volume. A claim
and the volume that is provisioned for it are one; the volume continues from when the claim began.

Cost: O(changes) plus one copy of the list; no change costs nothing.
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
from scheduler_core.demand.derive import unplaced_claim, unplaced_volume
from scheduler_core.volumes.resolve import PodVolume, future_volume_name

UNPLACED_LIFETIME: Final = timedelta(seconds=30)
Subject = str | tuple[str, str]
"""A Longhorn volume by its name, or an unbound claim by namespace and name."""


@dataclass(frozen=True, slots=True)
class UnplacedVolume:
    """An unplaced volume and when it was first seen."""

    volume: PodVolume
    since: datetime
    key: str  # identifies the volume, as `evaluation.competitors.identity` does
    becomes: str = ""  # for a claim, the Longhorn volume that will be provisioned for it

    @property
    def age(self) -> tuple[datetime, str]:
        return self.since, self.key

    @property
    def largest_first(self) -> tuple[int, str]:
        return -self.volume.volume.size, self.key


_AGE: Final = attrgetter("age")
_LARGEST_FIRST: Final = attrgetter("largest_first")


@dataclass(frozen=True, slots=True)
class UnplacedVolumes:
    """The unplaced volumes of one view."""

    # The volumes that count, first seen first; depends on when earlier views were taken.
    counted: tuple[UnplacedVolume, ...] = field(default=(), compare=False)
    by_size: tuple[UnplacedVolume, ...] = field(default=(), compare=False)  # the same volumes, largest first
    # The same volumes by key.
    by_key: HashTrieMap[str, UnplacedVolume] = field(default_factory=HashTrieMap, compare=False)
    replicas: int = field(default=0, compare=False)  # number of replicas that they have in sum
    # Every unplaced volume, however long it has been unplaced.
    all: HashTrieSet[Subject] = field(default_factory=HashTrieSet)
    _claims_by_future_volume: HashTrieMap[str, str] = field(default_factory=HashTrieMap, compare=False)

    def update(self, subjects: Iterable[Subject], view: View) -> UnplacedVolumes:
        """Returns the unplaced volumes of a later view. Only `subjects` may have changed."""
        now = view.cluster.now
        unplaced = self.all
        expired = takewhile(lambda entry: now - entry.since >= UNPLACED_LIFETIME, self.counted)
        changes: dict[str, UnplacedVolume | None] = {entry.key: None for entry in expired}
        # Volumes come first: a volume continues its claim, which may end in the same view.
        for subject in sorted(subjects, key=lambda subject: not isinstance(subject, str)):
            key = _key(subject)
            volume = _unplaced_volume(subject, view)
            entry = changes[key] if key in changes else self.by_key.get(key)
            if volume is None:
                if entry is not None:
                    changes[key] = None
                if subject in unplaced:
                    unplaced = unplaced.discard(subject)
            elif entry is not None:
                if entry.volume != volume:
                    changes[key] = replace(entry, volume=volume)
            elif subject not in unplaced:
                becomes = _future_volume_name(subject, view)
                if becomes not in unplaced:
                    claim = self._counted_claim_of(key, changes)
                    if claim is not None:
                        changes[claim.key] = None
                    changes[key] = UnplacedVolume(volume, claim.since if claim is not None else now, key, becomes)
                unplaced = unplaced.insert(subject)
        return self if not changes and unplaced is self.all else self._with_changes(changes, unplaced)

    def _counted_claim_of(self, volume: str, changes: Mapping[str, UnplacedVolume | None]) -> UnplacedVolume | None:
        claim = self.by_key.get(self._claims_by_future_volume.get(volume) or "")
        return claim if claim is not None and claim.key not in changes else None

    def _with_changes(
        self, changes: Mapping[str, UnplacedVolume | None], unplaced: HashTrieSet[Subject]
    ) -> UnplacedVolumes:
        """Returns these volumes with new entries by key, None for a volume that no longer counts."""
        counted = list(self.counted)
        by_size = list(self.by_size)
        by_key = self.by_key
        replicas = self.replicas
        claims = self._claims_by_future_volume
        for key, entry in changes.items():
            old = by_key.get(key)
            if old is not None:
                del counted[bisect_left(counted, _AGE(old), key=_AGE)]
                del by_size[bisect_left(by_size, _LARGEST_FIRST(old), key=_LARGEST_FIRST)]
                replicas -= replica_count(old.volume)
                by_key = by_key.remove(key)
                claims = claims.discard(old.becomes)
            if entry is not None:
                insort(counted, entry, key=_AGE)
                insort(by_size, entry, key=_LARGEST_FIRST)
                replicas += replica_count(entry.volume)
                by_key = by_key.insert(key, entry)
                claims = claims.insert(entry.becomes, key) if entry.becomes else claims
        return UnplacedVolumes(tuple(counted), tuple(by_size), by_key, replicas, unplaced, claims)


def replica_count(volume: PodVolume) -> int:
    return 0 if volume.volume.has_shards else max(1, volume.volume.number_of_replicas)


def claim_identity(claim: str) -> str:
    """Returns the identity of a claim without a volume. The claim is given as ``namespace/name``."""
    return f"{claim} (claim)"


def _key(subject: Subject) -> str:
    return subject if isinstance(subject, str) else claim_identity("/".join(subject))


def _future_volume_name(subject: Subject, view: View) -> str:
    claim = None if isinstance(subject, str) else view.snapshot.claims.get(subject)
    return "" if claim is None else future_volume_name(claim)


def _unplaced_volume(subject: Subject, view: View) -> PodVolume | None:
    if isinstance(subject, str):
        volume = view.volume(subject)
        return None if volume is None else unplaced_volume(volume, view)
    claim = view.snapshot.claims.get(subject)
    return None if claim is None else unplaced_claim(claim, view)
