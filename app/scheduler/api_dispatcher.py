"""What is written to the API server beside scheduling: one after the other, at most `MOST_A_SECOND`, of each key the latest word.

Nothing waits for it, and whatever goes wrong with one write stops no other. Where no answer comes, or one that may be another later, the word
is written again after a pause that doubles, and others go on meanwhile. An answer counts: after `MOST_ANSWERS` that say "not now" the word is
given up, because some never end (a webhook that fails). Without any answer it waits until there is one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from app.kube.client import ApiError
from scheduler_core.errors import CoreError

log = structlog.get_logger("outbox")

MOST_A_SECOND: Final = 20
MOST_ANSWERS: Final = 5
_SHORTEST_PAUSE: Final = 1.0
# To half a minute: a call without an answer takes ten seconds, in which nothing else is written.
_MOST_DOUBLINGS: Final = 5

_Key = TypeVar("_Key", bound=Hashable)
_Word = TypeVar("_Word")


@dataclass(slots=True)
class _Letter(Generic[_Word]):
    """One word; `stamp` tells which of its key's entries in the heap counts."""

    word: _Word
    stamp: int = 0
    tries: int = 0
    answers: int = 0


class Outbox(Generic[_Key, _Word]):
    """Owner of what is not written yet.

    `failed` hears `what` after every write that was refused or not answered, `given_up` what will not be written any more.
    """

    def __init__(
        self,
        what: str,
        write: Callable[[_Key, _Word], Awaitable[None]],
        failed: Callable[[str], None],
        given_up: Callable[[_Key, _Word], None],
    ) -> None:
        self._what = what
        self._write = write
        self._failed = failed
        self._given_up = given_up
        self._letters: dict[_Key, _Letter[_Word]] = {}
        self._order: list[tuple[float, int, _Key]] = []
        self._stamps = 0
        self._silent = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """How many words wait to be written."""
        return len(self._letters)

    def put(self, key: _Key, word: _Word) -> None:
        """Is to be written, instead of what was to be written under this key, and when that was."""
        letter = self._letters.get(key)
        if letter is None:
            self._enter(key, _Letter(word), 0)
        else:
            letter.word = word

    def discard(self, key: _Key) -> None:
        """Nothing is to be written under this key."""
        self._letters.pop(key, None)
        self._wake.set()

    def clear(self) -> None:
        """Nothing is to be written any more."""
        self._letters.clear()
        self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            self._wake.clear()
            due = self._next()
            if due is not None and due <= now():
                _, _, key = heapq.heappop(self._order)
                await self._written(key, self._letters.pop(key))
                continue
            if due is None:
                self._idle.set()
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def written(self) -> None:
        """Returns once everything has been written, or given up."""
        await self._idle.wait()

    def _enter(self, key: _Key, letter: _Letter[_Word], pause: float) -> None:
        self._stamps += 1
        letter.stamp = self._stamps
        self._letters[key] = letter
        heapq.heappush(self._order, (asyncio.get_running_loop().time() + pause, letter.stamp, key))
        self._idle.clear()
        self._wake.set()

    def _next(self) -> float | None:
        """When the next word is due, which then is the first entry of the heap; None if there is none."""
        while self._order:
            due, stamp, key = self._order[0]
            letter = self._letters.get(key)
            if letter is not None and letter.stamp == stamp:
                return due
            heapq.heappop(self._order)
        return None

    async def _written(self, key: _Key, letter: _Letter[_Word]) -> None:
        try:
            await self._write(key, letter.word)
        except CoreError as error:
            self._failed(self._what)
            letter.tries += 1
            if _may_succeed(letter, error):
                self._later(key, letter, str(error))
            else:
                log.warning("a write was refused", what=self._what, problem=str(error), tries=letter.tries)
                self._given_up(key, letter.word)
        else:
            self._silent = False
        await asyncio.sleep(1 / MOST_A_SECOND)

    def _later(self, key: _Key, letter: _Letter[_Word], problem: str) -> None:
        if letter.tries == 1 and not self._silent:
            log.warning("cannot be written now, trying again", what=self._what, problem=problem)
        self._silent = True
        if key not in self._letters:  # else there is something newer to say
            self._enter(key, letter, _SHORTEST_PAUSE * 2.0 ** min(letter.tries - 1, _MOST_DOUBLINGS))


def _may_succeed(letter: _Letter[_Word], error: CoreError) -> bool:
    """Whether a word that was not written shall be written again."""
    if not isinstance(error, ApiError) or not error.unreachable:
        return False
    if error.status:
        letter.answers += 1
    return letter.answers < MOST_ANSWERS
