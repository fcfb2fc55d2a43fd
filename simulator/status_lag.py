"""The delay between a replica's change and its node's status. Longhorn's node controller is busy, and syncs now and then."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from scheduler_core.model import longhorn
from simulator.config import Config, draw_seconds
from simulator.objects import KubeObject
from simulator.tables import Table

_Replica = KubeObject[longhorn.Replica] | None
Place = tuple[str, str]
"""A node and the UUID of one of its disks, "" for none."""


class StatusLag:
    """Delays the visibility of replicas' changes in their node's status. Each replica has a time of its own, so that a status
    also follows where replicas come and go all the time. As `ScheduleReplica` adds only the unplaced replicas of the volume
    itself, placements of several volumes on one status may overbook a disk. At the first look at a node all of its replicas are
    visible at once: after a start the times of their changes are unknown.
    """

    def __init__(
        self,
        replicas: Table[str, longhorn.Replica],
        place_of: Callable[[KubeObject[longhorn.Replica]], Place],
        config: Config,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._place_of = place_of
        self._config = config
        self._clock = clock
        self._rng = rng
        self._visible_at: dict[str, dict[str, float]] = {}
        self._visible: dict[str, dict[str, longhorn.Replica]] = {}
        replicas.listeners.append(self._on_replica_change)

    def _on_replica_change(self, name: str, old: _Replica, new: _Replica) -> None:
        if self._status_entry(old) == self._status_entry(new):
            return
        for replica in (old, new):
            node, _ = self._place_of(replica) if replica is not None else ("", "")
            if node:
                lag = self._config.freed_lag if new is None else self._config.status_lag
                self._visible_at.setdefault(node, {})[name] = self._clock() + draw_seconds(lag, self._rng)

    def _status_entry(self, replica: _Replica) -> Any:
        return None if replica is None else (*self._place_of(replica), replica.model.size)

    def visible_replicas(self, node: str, replicas: Iterable[longhorn.Replica]) -> tuple[longhorn.Replica, ...]:
        """The replicas to list in a node's status now."""
        present = {replica.name: replica for replica in replicas}
        previous = self._visible.get(node)
        if previous is None:
            self._visible_at.pop(node, None)
            previous = present
        now = self._clock()
        pending = {name: when for name, when in self._visible_at.pop(node, {}).items() if now < when}
        if pending:
            self._visible_at[node] = pending
        sources = {name: previous if name in pending else present for name in sorted(previous.keys() | present.keys())}
        visible = {name: source[name] for name, source in sources.items() if name in source}
        self._visible[node] = visible
        return tuple(visible.values())

    def seconds_until_next(self, node: str) -> float | None:
        times = self._visible_at.get(node)
        return max(0.0, min(times.values()) - self._clock()) if times else None
