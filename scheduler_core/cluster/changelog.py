"""Change log shared by successive immutable versions: which nodes changed since a version.

Every version of a value (views, demand, offers) holds a change log. A reader keeps the change log of the version it last read, and
asks the newer version's log which nodes changed since. No versions are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# A reader that is further behind evaluates every node again.
MAX_STEPS: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class ChangeLog:
    """The latest change, linked to the changes before it."""

    names: frozenset[str] = frozenset()
    before: ChangeLog | None = None
    steps: int = 0

    def append(self, names: frozenset[str] | None) -> ChangeLog:
        """Returns the log after these nodes changed; None for any node."""
        if names is None or self.steps >= MAX_STEPS:
            return ChangeLog()
        return ChangeLog(names, self, self.steps + 1) if names else self

    def since(self, mark: ChangeLog) -> frozenset[str] | None:
        """Names of the nodes that changed since `mark`. None if that is not recorded."""
        step: ChangeLog | None = self
        changes: list[frozenset[str]] = []
        while step is not None and step is not mark:
            changes.append(step.names)
            step = step.before
        return None if step is None else frozenset().union(*changes)


def nodes_changed_since(marks: Sequence[ChangeLog], logs: Sequence[ChangeLog]) -> frozenset[str] | None:
    """Names of the nodes that changed in some log since its mark. None if that is not recorded."""
    changed: frozenset[str] = frozenset()
    for log, mark in zip(logs, marks, strict=True):
        names = log.since(mark)
        if names is None:
            return None
        changed |= names
    return changed
