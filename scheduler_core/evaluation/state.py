"""The state that decisions read: one view with its disk profiles, their results and its demand, updated together.

A result belongs to a profile and a set of sizes, never to a node or a pod. So equal pods of a StatefulSet and equal nodes cost one
look-up, and a result outlives the view it was computed in. Only the nodes that changed are profiled again. Correctness does not depend
on the results: without any the answers are the same, slower, and less of the budget is left for undecided profiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from scheduler_core.caches import ChangeLog, LruMap
from scheduler_core.cluster.update import Changes, update
from scheduler_core.cluster.view import View
from scheduler_core.evaluation.fit import UnfinishedSearches, fit_many, mark_unsafe
from scheduler_core.evaluation.profile import Profile, ProfileTable
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget, PackingAnswer, give_way
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.requirements import Requirements, VolumeClasses

_MAX_PLACEMENTS: Final = 1024


class ClusterState:
    """One version of the cluster with what is derived from it. Only `update` makes the next version."""

    __slots__ = ("_demand", "placements", "profiles", "view")

    def __init__(self, view: View, profiles: ProfileCache, demand: DemandIndex | None) -> None:
        self.view = view  # the cluster itself
        self.profiles = profiles  # the view's disk profiles, and the results computed for them
        # Whether pods have a placement in this view, by the pods' needs and the case (`whole_pod.py`).
        self.placements: LruMap[object, PackingAnswer] = LruMap(_MAX_PLACEMENTS)
        self._demand = demand

    @classmethod
    def of(cls, view: View) -> ClusterState:
        return cls(view, ProfileCache(view), None)

    @property
    def demand(self) -> DemandIndex:
        if self._demand is None:
            self._demand = DemandIndex.of(self.view)
        return self._demand

    def update(self, changes: Changes, now: datetime) -> ClusterState:
        """Returns the state at `now` after the changes; None means that the object was deleted."""
        result = update(self.view, changes, now)
        demand = self._demand
        if demand is not None:
            demand = demand.update(self.view, changes, result.view)
        return ClusterState(result.view, self.profiles.update(result.view, result.changed_nodes), demand)


# A table of 5,000 different nodes with two disks holds 2 MB; a cluster has a handful of StorageClasses and so of classes.
MAX_TABLES: Final = 64
# 30 bytes each, measured with 5,000 nodes.
MAX_RESULTS: Final = 250_000
# Together with competitors nearly every node has requirements of its own, with one result each; their keys take memory too.
MAX_REQUIREMENTS: Final = 16_384
_WEIGHT_OF_REQUIREMENTS: Final = 15
_MAX_WEIGHT: Final = MAX_RESULTS + MAX_REQUIREMENTS * _WEIGHT_OF_REQUIREMENTS
# A table whose nodes changed this often is built again, or it would keep every profile it ever met.
_MAX_STALE_PROFILES: Final = 4

# Undecided profiles over all requirements; a pod with many of them is rare.
MAX_UNFINISHED: Final = 20_000

Results = dict[Profile, Reason]


class _VersionedTable(Struct, frozen=True):
    table: ProfileTable
    changelog: ChangeLog


class ProfileCache:
    """The profile tables of a view and their results."""

    def __init__(self, view: View) -> None:
        self.changelog = ChangeLog()  # which nodes' profiles may have changed
        self._view = view
        self._tables: LruMap[VolumeClasses, ProfileTable] = LruMap(MAX_TABLES)
        self._latest_tables: LruMap[VolumeClasses, _VersionedTable] = LruMap(MAX_TABLES)
        self._results: LruMap[tuple[bool, object], Results] = LruMap(
            _MAX_WEIGHT, lambda results: _WEIGHT_OF_REQUIREMENTS + len(results)
        )
        self._unfinished: LruMap[object, UnfinishedSearches] = LruMap(MAX_UNFINISHED, len)
        # By pod, the steps that searches for places spent in vain, by what is to be placed (`whole_pod.py`).
        self.unfinished_placements: LruMap[object, dict[int, int]] = LruMap(MAX_UNFINISHED, len)

    def table(self, classes: VolumeClasses) -> ProfileTable:
        """Returns the profiles of all nodes for some classes, taken from the latest table that any version has and
        renewed for the nodes that changed since.
        """
        table = self._tables.get(classes)
        if table is not None:
            return table
        latest = self._latest_tables.get(classes)
        changed = None if latest is None else self._changed_between(latest.changelog)
        if latest is None or changed is None or latest.table.profiles_seen > self._max_profiles:
            table = ProfileTable(classes).update(self._view, self._view.cluster.nodes)
        elif changed:
            table = latest.table.update(self._view, changed)
        else:
            table = latest.table
        self._tables.put(classes, table)
        self._latest_tables.put(classes, _VersionedTable(table, self.changelog))
        return table

    def _changed_between(self, other: ChangeLog) -> frozenset[str] | None:
        """Names of the nodes that changed between this version and another one, None if that is not recorded."""
        changed = self.changelog.since(other)
        return other.since(self.changelog) if changed is None else changed

    @property
    def _max_profiles(self) -> int:
        return _MAX_STALE_PROFILES * len(self._view.cluster.nodes) + MAX_TABLES

    def update(self, view: View, changed_nodes: frozenset[str] | None) -> ProfileCache:
        """Returns the cache of a later view; `changed_nodes` None: any profile may have changed."""
        cache = ProfileCache(view)
        if changed_nodes is None:
            return cache
        cache.changelog = self.changelog.append(changed_nodes)
        cache._results = self._results
        cache._unfinished = self._unfinished
        cache.unfinished_placements = self.unfinished_placements
        # Shared: a table that is filled while changes arrive serves the later versions, too.
        cache._latest_tables = self._latest_tables
        return cache

    def evaluate(
        self, required: Requirements, profiles: Sequence[Profile], budget: Budget, *, examine_safety: bool
    ) -> Mapping[Profile, Reason]:
        """Returns the reason for each profile. With `examine_safety` a profile has ROOM only if it is stale-safe.
        Otherwise it is STALE_UNSAFE if every placement order is proven to succeed, and ORDER_UNSAFE if not. Profiles
        that the budget left undecided are not cached: the next request with these requirements goes on with them.
        """
        # Callers evaluate group by group of nodes.
        give_way()
        key = (examine_safety, required.key)
        cached = self._results.get(key)
        if cached is None or len(cached) > self._max_profiles:
            cached = {}
        missing = [profile for profile in profiles if profile not in cached] if cached else profiles
        if not missing:
            return cached
        missing = list(dict.fromkeys(missing))
        earlier = self._unfinished.get(required.key)
        unfinished = UnfinishedSearches() if earlier is None or len(earlier) > self._max_profiles else earlier
        reasons = fit_many(required, missing, budget, unfinished)
        results = dict(zip(missing, reasons, strict=True))
        undecided: set[Profile] = set()
        if Reason.UNDECIDED in reasons:
            undecided = {profile for profile, reason in results.items() if reason is Reason.UNDECIDED}
        if examine_safety and Reason.ROOM in reasons:
            undecided |= mark_unsafe(required, results, budget, unfinished)
        if unfinished:
            self._unfinished.put(required.key, unfinished)
        elif earlier is not None:
            self._unfinished.pop(required.key)
        if undecided:
            cached.update((profile, results[profile]) for profile in missing if profile not in undecided)
        else:
            cached.update(results)
        self._results.put(key, cached)
        return {**cached, **results} if undecided else cached
