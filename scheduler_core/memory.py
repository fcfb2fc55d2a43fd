"""What is remembered between requests about one view: node profiles per kinds of volumes, and their verdicts.

A verdict belongs to a profile and a set of sizes, never to a node or a pod, so equal pods of a StatefulSet and equal
nodes cost a look-up. Nothing here is needed for a right answer: an empty memory gives the same one, slower (and leaves
less of the budget to what is still undecided).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

from scheduler_core.needs import Kinds, Needs
from scheduler_core.profiles import Profile, Table
from scheduler_core.steps import Steps
from scheduler_core.verdict import Reason
from scheduler_core.view import View

# A table of 5,000 different nodes with two disks holds 2 MB; a cluster has a handful of StorageClasses and so of kinds.
MOST_TABLES: Final = 64
MOST_DEMANDS: Final = 512
FEWEST_DEMANDS: Final = 8
# 30 bytes each, measured with 5,000 nodes.
MOST_VERDICTS: Final = 250_000

Known = dict[Profile, Reason]
_Value = TypeVar("_Value")


class _Recent(Generic[_Value]):
    """A mapping that forgets what was not asked for longest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[object, _Value] = OrderedDict()

    def get(self, key: object) -> _Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: object, value: _Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)


class Memory:
    """The tables and verdicts of one view; a new view starts a new memory."""

    def __init__(self, view: View) -> None:
        self.view = view
        demands = MOST_VERDICTS // max(1, len(view.snapshot.longhorn_nodes))
        self._tables: _Recent[Table] = _Recent(MOST_TABLES)
        self._known: _Recent[Known] = _Recent(max(FEWEST_DEMANDS, min(demands, MOST_DEMANDS)))

    def table(self, kinds: Kinds) -> Steps[Table]:
        """The profiles of all nodes for some kinds, looked at now if nobody asked before."""
        table = self._tables.get(kinds)
        if table is None:
            table = Table(kinds)
            yield from table.fill(self.view)
            self._tables.put(kinds, table)
        return table

    def known(self, needs: Needs, examined: bool) -> Known:  # noqa: FBT001 # part of the key, like the needs
        """The reason found for each profile so far; the caller adds what it finds out.

        `examined` tells ROOM that was proven order-safe from ROOM nobody examined.
        """
        key = (examined, needs.key)
        known = self._known.get(key)
        if known is None:
            known = {}
            self._known.put(key, known)
        return known
