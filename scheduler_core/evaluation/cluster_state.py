"""The state that decisions read: one view with its disk profiles, their results and its demand, updated together.

A `ProfileTable` holds the profile of every node for one `VolumeClasses`; `fit.py` packs each profile once per set of sizes, and
`ProfileCache` keeps the result.

A result belongs to a profile and a set of sizes, never to a node or a pod. So equal pods of a StatefulSet and equal nodes cost one
look-up, and a result outlives the view it was computed in. Only the nodes that changed are profiled again. Correctness does not depend
on the results: without any the answers are the same, slower, and less of the budget is left for undecided profiles.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from scheduler_core.caches import ChangeLog, LruMap
from scheduler_core.cluster.update import Changes, update
from scheduler_core.cluster.view import View
from scheduler_core.evaluation.disk_profiles import Refused, profile_node
from scheduler_core.evaluation.fit import OpenDisk, Profile, UnfinishedSearches, fit_many, mark_unsafe
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget, PackingAnswer, give_way
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.volume_requirements import Requirements, VolumeClasses


class ProfileTable:
    """The profile of every Longhorn node for one `VolumeClasses`; a new table has none."""

    __slots__ = ("_interned", "_not_longhorn", "classes", "profiles")

    def __init__(self, classes: VolumeClasses) -> None:
        self.classes = classes
        self.profiles: dict[str, Profile] = {}
        self._interned: dict[object, Profile] = {}
        self._not_longhorn = Profile(Reason.NOT_A_LONGHORN_NODE)

    def update(self, view: View, changed_nodes: Iterable[str]) -> "ProfileTable":
        """Returns the table of a later view. Only the changed nodes may have another profile. Equal profiles stay one
        object, so their results hold for both tables.
        """
        table = ProfileTable(self.classes)
        table._interned = self._interned
        table._not_longhorn = self._not_longhorn
        table.profiles = dict(self.profiles)
        for name in changed_nodes:
            give_way()
            if name in view.cluster.nodes:
                table.profiles[name] = table._intern(profile_node(view, self.classes, name))
            else:
                table.profiles.pop(name, None)
        return table

    @property
    def profiles_seen(self) -> int:
        """Number of different profiles that were ever in the table, or in one that it was updated from."""
        return len(self._interned)

    def of(self, names: Sequence[str]) -> list[Profile]:
        """Returns the profiles of some nodes. A name without a Longhorn node has one too."""
        get = self.profiles.get
        default = self._not_longhorn
        return [get(name, default) for name in names]

    def _intern(self, disks: Refused | tuple[OpenDisk, ...]) -> Profile:
        if isinstance(disks, Refused):
            return self._interned.setdefault(disks.reason, Profile(disks.reason))
        profile = Profile(None, disks)
        return self._interned.setdefault(profile.key, profile)


# A table of 5,000 different nodes with two disks holds 2 MB; a cluster has a handful of StorageClasses and so of classes.
MAX_TABLES = 64
# 30 bytes each, measured with 5,000 nodes.
MAX_RESULTS = 250_000
# Together with competitors nearly every node has requirements of its own, with one result each; their keys take memory too.
MAX_REQUIREMENTS = 16_384
_WEIGHT_OF_REQUIREMENTS = 15
_MAX_WEIGHT = MAX_RESULTS + MAX_REQUIREMENTS * _WEIGHT_OF_REQUIREMENTS
# A table whose nodes changed this often is built again, or it would keep every profile it ever met.
_MAX_STALE_PROFILES = 4

# Undecided profiles over all requirements; a pod with many of them is rare.
MAX_UNFINISHED = 20_000

Results = dict[Profile, Reason]


class ProfileCache:
    """The profile tables of a view and their results."""

    def __init__(self, view: View) -> None:
        self.changelog = ChangeLog()  # which nodes' profiles may have changed
        self._view = view
        self._tables: LruMap[VolumeClasses, tuple[ProfileTable, ChangeLog]] = LruMap(MAX_TABLES)
        self._results: LruMap[tuple[bool, object], Results] = LruMap(
            _MAX_WEIGHT, lambda results: _WEIGHT_OF_REQUIREMENTS + len(results)
        )
        self._unfinished: LruMap[object, UnfinishedSearches] = LruMap(MAX_UNFINISHED, len)
        # By pod, the steps that searches for places spent in vain, by what is to be placed (`placement_across_nodes.py`).
        self.unfinished_placements: LruMap[object, dict[int, int]] = LruMap(MAX_UNFINISHED, len)

    def table(self, classes: VolumeClasses) -> ProfileTable:
        """Returns the profiles of all nodes for some classes, taken from the latest table that any version has and
        renewed for the nodes that changed since.
        """
        table, changelog = self._tables.get(classes) or (ProfileTable(classes), ChangeLog())
        if changelog is self.changelog:
            return table
        changed = self.changelog.since(changelog)
        if changed is None:
            # The table may be that of a later version.
            changed = changelog.since(self.changelog)
        if changed is None or table.profiles_seen > self._max_profiles:
            table = ProfileTable(classes).update(self._view, self._view.cluster.nodes)
        elif changed:
            table = table.update(self._view, changed)
        self._tables.put(classes, (table, self.changelog))
        return table

    @property
    def _max_profiles(self) -> int:
        return _MAX_STALE_PROFILES * len(self._view.cluster.nodes) + MAX_TABLES

    def update(self, view: View, changed_nodes: frozenset[str] | None) -> "ProfileCache":
        """Returns the cache of a later view; `changed_nodes` None: any profile may have changed."""
        cache = ProfileCache(view)
        if changed_nodes is None:
            return cache
        cache.changelog = self.changelog.append(changed_nodes)
        cache._results = self._results
        cache._unfinished = self._unfinished
        cache.unfinished_placements = self.unfinished_placements
        # Shared: a table that is filled while changes arrive serves the later versions, too.
        cache._tables = self._tables
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


_MAX_PLACEMENTS = 1024


class ClusterState:
    """One version of the cluster with what is derived from it. Only `update` makes the next version."""

    __slots__ = ("_demand", "placements", "profiles", "view")

    def __init__(self, view: View, profiles: ProfileCache, demand: DemandIndex | None) -> None:
        self.view = view  # the cluster itself
        self.profiles = profiles  # the view's disk profiles, and the results computed for them
        # Whether pods have a placement in this view, by the pods' needs and the case (`placement_across_nodes.py`).
        self.placements: LruMap[object, PackingAnswer] = LruMap(_MAX_PLACEMENTS)
        self._demand = demand

    @classmethod
    def of(cls, view: View) -> "ClusterState":
        return cls(view, ProfileCache(view), None)

    @property
    def demand(self) -> DemandIndex:
        if self._demand is None:
            self._demand = DemandIndex.of(self.view)
        return self._demand

    def update(self, changes: Changes, now: datetime) -> "ClusterState":
        """Returns the state at `now` after the changes; None means that the object was deleted."""
        result = update(self.view, changes, now)
        demand = self._demand
        if demand is not None:
            demand = demand.update(self.view, changes, result.view)
        return ClusterState(result.view, self.profiles.update(result.view, result.changed_nodes), demand)
