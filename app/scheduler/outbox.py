"""What is written to the API server beside scheduling: one after the other, at most `MOST_A_SECOND`, of each key the latest word.

Nothing waits for it, and whatever goes wrong with one write stops no other. Where no answer comes it is written again until there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import structlog

from app.kube.client import ApiError
from scheduler_core.errors import CoreError

log = structlog.get_logger("outbox")

MOST_A_SECOND: Final = 20
_AGAIN_SECONDS: Final = 1.0

_Key = TypeVar("_Key", bound=Hashable)
_Word = TypeVar("_Word")


class Outbox(Generic[_Key, _Word]):
    """Owner of what is not written yet; `failed` hears `what` after every write that was refused or not answered."""

    def __init__(
        self, what: str, write: Callable[[_Key, _Word], Awaitable[None]], failed: Callable[[str], None]
    ) -> None:
        self._what = what
        self._write = write
        self._failed = failed
        self._pending: dict[_Key, _Word] = {}
        self._silent = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, key: _Key, word: _Word) -> None:
        """Is to be written, instead of what was to be written under this key."""
        self._pending[key] = word
        self._idle.clear()
        self._wake.set()

    def discard(self, key: _Key) -> None:
        """Nothing is to be written under this key."""
        self._pending.pop(key, None)

    def clear(self) -> None:
        """Nothing is to be written any more."""
        self._pending.clear()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._wake.wait()
            while self._pending:
                key = next(iter(self._pending))
                await self._written(key, self._pending.pop(key))
            self._wake.clear()
            self._idle.set()

    async def written(self) -> None:
        """Returns once everything has been written, or given up."""
        await self._idle.wait()

    async def _written(self, key: _Key, word: _Word) -> None:
        try:
            await self._write(key, word)
        except CoreError as error:
            self._failed(self._what)
            if isinstance(error, ApiError) and error.unreachable:
                if not self._silent:
                    log.warning("cannot be written now, trying again", what=self._what, problem=str(error))
                self._silent = True
                self._pending.setdefault(key, word)
                await asyncio.sleep(_AGAIN_SECONDS)
                return
            log.warning("a write was refused", what=self._what, problem=str(error))
        self._silent = False
        await asyncio.sleep(1 / MOST_A_SECOND)
