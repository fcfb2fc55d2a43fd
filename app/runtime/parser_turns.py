"""Shares each turn of the event loop among the connections whose input is to be parsed. uvloop hands over up to 256 KiB
of every connection in one turn. Chunks of one byte make that 40,000 calls of the parser.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Final, Protocol

# Of each turn.
TURN_SECONDS: Final = 0.006
# What follows in the same turn: a reader that wakes up, a request that begins.
_SLICE_SECONDS: Final = 0.0001
REQUEST_SECONDS: Final = 0.0005


class Parser(Protocol):
    """The input of one connection."""

    def parse_slice(self) -> bool:
        """Parses a little of the input that waits; returns whether there is more."""

    def hold(self) -> None:
        """Stops to read from the connection."""

    def release(self) -> None:
        """Reads from the connection again."""


class ParserTurns:
    """The connections whose input waits, in the order in which each parses one slice."""

    def __init__(self) -> None:
        self._waiting: deque[Parser] = deque()
        self._left = TURN_SECONDS
        self._scheduled = False

    def parse(self, parser: Parser) -> None:
        """Parses the input of a connection, now or in later turns."""
        if parser in self._waiting:
            return
        if not self._waiting and self._parse_until_spent(parser):
            return
        parser.hold()
        self._waiting.append(parser)

    def charge(self, seconds: float) -> None:
        """Takes time of this turn for what a parser has begun."""
        self._left -= seconds

    def _parse_until_spent(self, parser: Parser) -> bool:
        """Returns whether nothing is left."""
        more = True
        while more and self._left > 0:
            more = self._parse_slice(parser)
        return not more

    def _parse_slice(self, parser: Parser) -> bool:
        began = perf_counter()
        more = parser.parse_slice()
        self._left -= perf_counter() - began + _SLICE_SECONDS
        self._schedule()
        return more

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._scheduled = False
        self._left = TURN_SECONDS
        while self._waiting and self._left > 0:
            parser = self._waiting.popleft()
            if self._parse_slice(parser):
                self._waiting.append(parser)
            else:
                parser.release()
