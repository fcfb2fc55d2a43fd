"""Decides how long to wait before requests are withdrawn whose object does not exist.

An object whose deletion was observed is gone. An object that was never observed may be about to be created, or the request
was written by hand; then the object is waited for.
"""

from __future__ import annotations

from collections.abc import Callable


class OrphanRequests:
    """Remembers by name since when objects are missing, and recent deletions.

    Args:
        after: seconds after which a request for a missing object is withdrawn
        clock: monotonic seconds
    """

    def __init__(self, after: float, clock: Callable[[], float]) -> None:
        self._after = after
        self._clock = clock
        self._missing_since: dict[str, float] = {}
        # In the order of the deletions.
        self._deleted_at: dict[str, float] = {}

    def __len__(self) -> int:
        """Number of names that are remembered."""
        return len(self._missing_since.keys() | self._deleted_at.keys())

    def mark_deleted(self, name: str) -> None:
        """Records that the object's deletion was observed.

        It is remembered, because a controller that was about to write a request for the object may still do so.
        """
        self._deleted_at.pop(name, None)
        self._deleted_at[name] = self._clock()
        self._forget_old_deletions()

    def stop_waiting(self, name: str) -> None:
        """Ends the wait: the object exists, or has no requests."""
        self._missing_since.pop(name, None)

    def remaining_wait(self, name: str) -> float:
        """Returns the seconds to wait for a missing object; 0: it is gone."""
        self._forget_old_deletions()
        now = self._clock()
        if name in self._deleted_at:
            # This holds for longer than the deletion is remembered, because the request may be hard to withdraw.
            self._missing_since[name] = now - self._after
        return max(0.0, self._missing_since.setdefault(name, now) + self._after - now)

    def _forget_old_deletions(self) -> None:
        until = self._clock() - self._after
        while self._deleted_at and self._deleted_at[oldest := next(iter(self._deleted_at))] <= until:
            del self._deleted_at[oldest]
