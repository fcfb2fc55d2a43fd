"""Volumes of other pods that may go to any node, on each node that can take them.

Data flow: a node's own competitors (`contention.py`) → with the volumes that fit in addition: roaming ones first (`roaming.py`), then one node's
share of the unplaced ones (`demand/unplaced.py`). Nodes with equal competitors are evaluated together. What was added to a node holds for every
requester until the node's competitors, its disks or these volumes change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_core.cluster.changelog import ChangeLog
from scheduler_core.evaluation.competitors import CompetitorGroups, Competitors, Volumes
from scheduler_core.evaluation.profile_cache import ProfileCache
from scheduler_core.evaluation.roaming import roaming_key
from scheduler_core.evaluation.room import split_by_room
from scheduler_core.giving_way import give_way
from scheduler_core.packing.budget import Budget

_Keys = frozenset[str]


class VolumesAnywhere(NamedTuple):
    """Volumes of other pods that may go to any node."""

    roaming: Volumes  # count on every node where they fit
    unplaced: Volumes  # one node's share of the others


class OwnCompetitors(NamedTuple):
    """The competitors of nodes without the volumes that may go anywhere."""

    names: Iterable[str]  # all nodes
    by_node: Mapping[str, Competitors]
    shared: Collection[str]  # nodes that have the same ones for every requester


@dataclass(frozen=True, slots=True)
class _Cached:
    """The competitors of nodes without and with some volumes that may go anywhere; None for no competitors."""

    anywhere: VolumesAnywhere
    changelog: ChangeLog  # of the profiles that they were computed with
    by_node: dict[str, tuple[Competitors | None, Competitors | None]]


class JointCompetitors:
    """Finds the competitors of nodes with the volumes that may go anywhere, and caches them."""

    def __init__(self, groups: CompetitorGroups) -> None:
        self._groups = groups
        self._none = groups.competitors((), ())
        self._cached: _Cached | None = None

    def competitors(
        self, own: OwnCompetitors, anywhere: VolumesAnywhere, profiles: ProfileCache, budget: Budget
    ) -> Mapping[str, Competitors]:
        """Returns the competitors of nodes with the volumes that fit in addition. Roaming volumes count like demand,
        because no decision of kube-scheduler would end them.
        """
        if not any(anywhere):
            return own.by_node
        joint: dict[str, Competitors | None] = {}
        cached = self._cached_at(anywhere, profiles.changelog)
        missing: list[str] = []
        for name in own.names:
            entry = cached.get(name)
            if entry is not None and entry[0] is own.by_node.get(name):
                joint[name] = entry[1]
            else:
                missing.append(name)
        keys = frozenset(map(roaming_key, anywhere.roaming))
        groups = self._equal_nodes(missing, own.by_node, keys)
        for (_, counted), members in groups.items():
            gave_up = budget.gave_up
            base = own.by_node.get(members[0], self._none).volumes
            uncounted = tuple(volume for volume in anywhere.roaming if roaming_key(volume) not in counted)
            parts = split_by_room(profiles, budget, members, base, uncounted + anywhere.unplaced)
            for fitting, part in parts.items():
                joint |= self._add(fitting, keys, part, own.by_node)
            if budget.gave_up == gave_up:
                shared = (name for name in members if name in own.shared)
                cached.update((name, (own.by_node.get(name), joint[name])) for name in shared)
        return {name: on_node for name, on_node in joint.items() if on_node is not None}

    def _cached_at(
        self, anywhere: VolumesAnywhere, changelog: ChangeLog
    ) -> dict[str, tuple[Competitors | None, Competitors | None]]:
        """Returns what is cached for these volumes and profiles; the caller adds what it lacks."""
        cached = self._cached
        by_node: dict[str, tuple[Competitors | None, Competitors | None]] = {}
        changed = changelog.since(cached.changelog) if cached is not None and cached.anywhere == anywhere else None
        if cached is not None and changed is not None:
            by_node = {name: entry for name, entry in cached.by_node.items() if name not in changed}
        self._cached = _Cached(anywhere, changelog, by_node)
        return by_node

    def _equal_nodes(
        self, names: Iterable[str], competitors: Mapping[str, Competitors], keys: _Keys
    ) -> Mapping[tuple[int, _Keys], list[str]]:
        """Returns nodes by their competitors' group and the roaming volumes among these."""
        # Those count already where they are offered.
        groups: dict[tuple[int, _Keys], list[str]] = {}
        for name in names:
            on_node = competitors.get(name, self._none)
            counted = keys.intersection(map(roaming_key, on_node.volumes)) if keys else keys
            groups.setdefault((on_node.group, counted), []).append(name)
        return groups

    def _add(
        self, fitting: Volumes, keys: _Keys, names: Iterable[str], competitors: Mapping[str, Competitors]
    ) -> Mapping[str, Competitors | None]:
        certain = tuple(volume for volume in fitting if roaming_key(volume) in keys)
        possible = tuple(volume for volume in fitting if roaming_key(volume) not in keys)
        alone = self._groups.competitors(certain, possible) if fitting else None
        joint: dict[str, Competitors | None] = {}
        for name in names:
            give_way()
            own = competitors.get(name)
            if own is None or not fitting:
                joint[name] = own or alone
            else:
                offered = own.offered + possible
                joint[name] = self._groups.competitors(own.demanded + certain, offered, own.left_out)
        return joint
