"""Results that take too long for one request: a task computes them once they are requested, and keeps them for later
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

import structlog

from scheduler_core.caches import LruMap

log = structlog.get_logger("status")

# A page has 50 ms. In a small cluster most results are there by then; a page that lacks rows is loaded again after a second.
_WAIT: Final = 0.02
_Key = TypeVar("_Key", bound=Hashable)
_Result = TypeVar("_Result")


class RequestedResults(Generic[_Key, _Result]):
    """Owner of the results of one kind, worked out one at a time, those for the keys of the latest request first.

    Args:
        name: of the task
        compute: works out a result
        version: returns the version of what results depend on; a result of an earlier one is replaced when it is asked for
        capacity: how many results are kept
    """

    def __init__(
        self, name: str, compute: Callable[[_Key], Awaitable[_Result]], version: Callable[[], int], capacity: int
    ) -> None:
        self._name = name
        self._compute = compute
        self._version = version
        self._results: LruMap[_Key, tuple[int, _Result]] = LruMap(capacity)
        self._requested: Sequence[_Key] = ()
        self._task: asyncio.Task[None] | None = None

    def latest(self, key: _Key) -> _Result | None:
        entry = self._results.get(key)
        return None if entry is None else entry[1]

    async def request(self, keys: Sequence[_Key], wait: float = _WAIT) -> list[_Result | None]:
        """Returns the latest results as soon as all are there, at most after `wait` seconds; None for one that is still
        being worked out.
        """
        if not all(map(self._is_current, keys)):
            self._requested = keys
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._work(), name=self._name)
            await asyncio.wait((self._task,), timeout=wait)
        return [self.latest(key) for key in keys]

    def _is_current(self, key: _Key) -> bool:
        entry = self._results.get(key)
        return entry is not None and entry[0] == self._version()

    async def _work(self) -> None:
        while self._requested:
            keys = self._requested
            self._requested = ()
            for key in keys:
                if self._requested:
                    break
                if self._is_current(key):
                    continue
                version = self._version()
                try:
                    self._results.put(key, (version, await self._compute(key)))
                except Exception:
                    # A page shows that the result is not there.
                    log.exception("a result is missing", task=self._name, key=str(key))
