"""Requests whose object does not exist: how long to wait before they are withdrawn.

An object that was seen to go is gone. One that was never seen may be about to come, or somebody asked by hand; it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable


class Orphans:
    """By name, since when an object is missed."""

    def __init__(self, after: float, clock: Callable[[], float]) -> None:
        self._after = after
        self._clock = clock
        self._missed: dict[str, float] = {}

    def gone(self, name: str) -> None:
        """The object was seen to go."""
        self._missed[name] = self._clock() - self._after

    def there(self, name: str) -> None:
        """The object exists, or nobody asks in its name."""
        self._missed.pop(name, None)

    def wait(self, name: str) -> float:
        """The object does not exist: for how many more seconds to wait for it; 0: it will not come."""
        now = self._clock()
        return max(0.0, self._missed.setdefault(name, now) + self._after - now)
