"""What is remembered between requests about one view: node profiles per kinds of volumes, and their verdicts.

A verdict belongs to a profile and a set of sizes, never to a node or a pod, so equal pods of a StatefulSet and equal
nodes cost a look-up. Nothing here is needed for a right answer: an empty memory gives the same one, slower.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from scheduler_core.needs import Kinds, Needs
from scheduler_core.profiles import Profile, Table
from scheduler_core.steps import Steps
from scheduler_core.verdict import Reason
from scheduler_core.view import View

# A table of 5,000 nodes holds about 1 MB; a cluster has a handful of StorageClasses and so of kinds.
MOST_TABLES: Final = 64
MOST_DEMANDS: Final = 512

_Value = TypeVar("_Value")


@dataclass(slots=True)
class Known:
    """What is known for one set of needs.

    Attributes:
        reasons: by profile; never UNDECIDED, because another request may have more to spend
        room: the profiles whose reason is ROOM
        safe: those of them where every placement order succeeds
        unsafe: those of them where some order fails
    """

    reasons: dict[Profile, Reason] = field(default_factory=dict[Profile, Reason])
    room: set[Profile] = field(default_factory=set[Profile])
    safe: set[Profile] = field(default_factory=set[Profile])
    unsafe: set[Profile] = field(default_factory=set[Profile])

    def add(self, found: Mapping[Profile, Reason]) -> None:
        """Remembers the reasons that were found, but for giving up."""
        decided = {profile: reason for profile, reason in found.items() if reason is not Reason.UNDECIDED}
        self.reasons.update(decided)
        self.room.update([profile for profile, reason in decided.items() if reason is Reason.ROOM])


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
        self._tables: _Recent[Table] = _Recent(MOST_TABLES)
        self._known: _Recent[Known] = _Recent(MOST_DEMANDS)

    def table(self, kinds: Kinds) -> Steps[Table]:
        """The profiles of all nodes for some kinds, looked at now if nobody asked before."""
        table = self._tables.get(kinds)
        if table is None:
            table = Table(kinds)
            yield from table.fill(self.view)
            self._tables.put(kinds, table)
        return table

    def known(self, needs: Needs) -> Known:
        """What is known about each profile for these needs; the caller adds what it finds out."""
        known = self._known.get(needs.key)
        if known is None:
            known = Known()
            self._known.put(needs.key, known)
        return known
