"""Which nodes have changed between two immutable values of one descent, without comparing them.

Each value of a descent (views, demands, ledgers) holds a trail; a reader keeps the trail of the value it last saw, and asks that of the
next one what has happened since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# A reader that is further behind looks at everything anew.
MOST_STEPS: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """The last change, and those before it."""

    names: frozenset[str] = frozenset()
    before: Trail | None = None
    steps: int = 0

    def after(self, names: frozenset[str] | None) -> Trail:
        """The trail when these nodes have changed; None: nobody knows which."""
        if names is None or self.steps >= MOST_STEPS:
            return Trail()
        return Trail(names, self, self.steps + 1) if names else self

    def since(self, known: Trail) -> frozenset[str] | None:
        """The nodes that have changed since then; None if that cannot be told."""
        step: Trail | None = self
        found: list[frozenset[str]] = []
        while step is not None and step is not known:
            found.append(step.names)
            step = step.before
        return None if step is None else frozenset().union(*found)
