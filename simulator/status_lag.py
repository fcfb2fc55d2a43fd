"""Why a node's status follows its replicas late: Longhorn's node controller is busy, and looks at them now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from scheduler_core.model import longhorn
from simulator.objects import Obj
from simulator.store import Table

_Replica = Obj[longhorn.Replica] | None


class StatusLag:
    """The replicas of each node as its status may tell of them: changed ones not before `seconds` have gone by.

    Each replica has a time of its own, so that a node where replicas come and go all the time is not silent for ever.
    What a node's first look finds counts at once: after a start nobody knows when it changed.
    """

    def __init__(self, replicas: Table[str, longhorn.Replica], seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._changed_at: dict[str, dict[str, float]] = {}
        self._shown: dict[str, dict[str, longhorn.Replica]] = {}
        replicas.listeners.append(self._changed)

    def _changed(self, name: str, old: _Replica, new: _Replica) -> None:
        if _counted(old) == _counted(new):
            return
        for replica in (old, new):
            if replica is not None and replica.model.node_id:
                self._changed_at.setdefault(replica.model.node_id, {})[name] = self._clock()

    def seen(self, node: str, replicas: Iterable[longhorn.Replica]) -> tuple[longhorn.Replica, ...]:
        """The replicas that a status written now lists, given those that really are on the node."""
        present = {replica.name: replica for replica in replicas}
        shown = self._shown.get(node)
        if shown is None:
            self._changed_at.pop(node, None)
            shown = present
        now = self._clock()
        fresh = {name: when for name, when in self._changed_at.pop(node, {}).items() if now < when + self._seconds}
        if fresh:
            self._changed_at[node] = fresh
        sources = {name: shown if name in fresh else present for name in sorted(shown.keys() | present.keys())}
        found = {name: source[name] for name, source in sources.items() if name in source}
        self._shown[node] = found
        return tuple(found.values())

    def wait(self, node: str) -> float | None:
        """In how many seconds the next change on a node may be told, None if all are."""
        times = self._changed_at.get(node)
        return max(0.0, min(times.values()) + self._seconds - self._clock()) if times else None


def _counted(replica: _Replica) -> Any:
    """What a node's status says about a replica."""
    return None if replica is None else (replica.model.node_id, replica.model.disk_id, replica.model.size)
