"""What is remembered between requests: node profiles per kinds of volumes, and their verdicts.

A verdict belongs to a profile and a set of sizes, never to a node or a pod, so equal pods of a StatefulSet and equal
nodes cost a look-up; and a verdict outlives the view it was found in. Only the nodes a change touched are looked at again. Nothing here is needed for a right answer: an empty memory gives the same one, slower (and leaves
less of the budget to what is still undecided).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from scheduler_core.cluster.changelog import Trail
from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Steps
from scheduler_core.evaluation.disk_profile import Profile, Table
from scheduler_core.model.verdict import Reason
from scheduler_core.volumes.requirements import Kinds, Needs

# A table of 5,000 different nodes with two disks holds 2 MB; a cluster has a handful of StorageClasses and so of kinds.
MOST_TABLES: Final = 64
# Beside other pods nearly every node has needs of its own, with one verdict each.
MOST_DEMANDS: Final = 16_384
# 30 bytes each, measured with 5,000 nodes.
MOST_VERDICTS: Final = 250_000
_RECOUNT: Final = 32

# A table whose nodes have changed this often is made anew, or it would keep every profile it ever met.
_DEAD_PROFILES: Final = 4

Known = dict[Profile, Reason]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Recent(Generic[_Key, _Value]):
    """A mapping that forgets what was not asked for longest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self.puts = 0

    def get(self, key: _Key) -> _Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def shrink(self, most: int, size: Callable[[_Value], int]) -> None:
        """Forgets until what is left is of at most this size in all."""
        left = sum(map(size, self._values.values()))
        while left > most:
            left -= size(self._values.popitem(last=False)[1])

    def items(self) -> Iterable[tuple[_Key, _Value]]:
        return self._values.items()

    def put(self, key: _Key, value: _Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        self.puts += 1
        while len(self._values) > self._most:
            self._values.popitem(last=False)


class Memory:
    """The tables of one view, and the verdicts found so far; its trail tells of profiles that may be others."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.trail = Trail()
        self._stale: dict[Kinds, set[str]] = {}
        self._tables: _Recent[Kinds, Table] = _Recent(MOST_TABLES)
        self._known: _Recent[tuple[bool, object], Known] = _Recent(MOST_DEMANDS)

    def table(self, kinds: Kinds) -> Steps[Table]:
        """The profiles of all nodes for some kinds, looked at now if nobody asked before."""
        table = self._tables.get(kinds)
        stale = self._stale.get(kinds)
        if table is None or table.met > self._most_profiles:
            table = Table(kinds)
            yield from table.fill(self.view)
            self._tables.put(kinds, table)
        elif stale:
            # A later memory may add to the set while this one pauses.
            table = yield from table.after(self.view, tuple(stale))
            self._tables.put(kinds, table)
        self._stale.pop(kinds, None)
        return table

    @property
    def _most_profiles(self) -> int:
        return _DEAD_PROFILES * len(self.view.cluster.nodes) + MOST_TABLES

    def after(self, view: View, touched: frozenset[str] | None) -> Memory:
        """The memory of a later view in which only the `touched` nodes may have other profiles; None: any may."""
        later = Memory(view)
        if touched is None:
            return later
        later.trail = self.trail.after(touched)
        later._known = self._known  # its own kind
        for kinds, table in self._tables.items():
            later._tables.put(kinds, table)
            # Shared with this memory, whose requests then look at some nodes once more: copying would cost the cluster's size.
            later._stale[kinds] = self._stale.get(kinds) or set()
            later._stale[kinds].update(touched)
        return later

    def known(self, needs: Needs, examined: bool) -> Known:  # noqa: FBT001 # part of the key, like the needs
        """The reason found for each profile so far; the caller adds what it finds out.

        `examined` tells ROOM that was proven order-safe from ROOM nobody examined.
        """
        key = (examined, needs.key)
        known = self._known.get(key)
        if known is None or len(known) > self._most_profiles:
            known = {}
            self._known.put(key, known)
            if self._known.puts % _RECOUNT == 0:
                self._known.shrink(MOST_VERDICTS, len)
        return known
