"""The state that decisions read: one view with its disk profiles and demand, updated together."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from scheduler_core.cluster.update import Changes, update
from scheduler_core.cluster.view import View
from scheduler_core.demand.index import DemandIndex
from scheduler_core.evaluation.profile_cache import ProfileCache
from scheduler_core.lru import LruMap
from scheduler_core.packing.budget import PackingAnswer

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
        """Returns the state of a view without derived values."""
        return cls(view, ProfileCache(view), None)

    @property
    def demand(self) -> DemandIndex:
        """The view's demand, derived when first read, and from then on kept current by `update`."""
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
