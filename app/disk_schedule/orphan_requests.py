"""Requests whose object does not exist: how long to wait before they are withdrawn.

An object that was seen to go is gone. One that was never seen may be about to come, or somebody asked by hand; it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable


class Orphans:
    """By name, since when an object is missed, and which ones went lately."""

    def __init__(self, after: float, clock: Callable[[], float]) -> None:
        self._after = after
        self._clock = clock
        self._missed: dict[str, float] = {}
        # In the order in which they went.
        self._gone: dict[str, float] = {}

    def __len__(self) -> int:
        """Names of which something is remembered."""
        return len(self._missed.keys() | self._gone.keys())

    def gone(self, name: str) -> None:
        """The object was seen to go. It is remembered, because who was about to ask in its name may do so later."""
        self._gone.pop(name, None)
        self._gone[name] = self._clock()
        self._forget()

    def there(self, name: str) -> None:
        """The object exists, or nobody asks in its name."""
        self._missed.pop(name, None)

    def wait(self, name: str) -> float:
        """The object does not exist: for how many more seconds to wait for it; 0: it will not come."""
        self._forget()
        now = self._clock()
        if name in self._gone:
            # For longer than it is remembered: the request may be hard to withdraw.
            self._missed[name] = now - self._after
        return max(0.0, self._missed.setdefault(name, now) + self._after - now)

    def _forget(self) -> None:
        until = self._clock() - self._after
        while self._gone and self._gone[oldest := next(iter(self._gone))] <= until:
            del self._gone[oldest]
