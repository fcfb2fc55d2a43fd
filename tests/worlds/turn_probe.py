"""Runs `longhorn-extender` and measures how long its event loop is busy without a break.

    python -m tests.worlds.turn_probe FILE serve ...

A timer of the loop fires every millisecond. The CPU time that the loop's thread used between two firings is the time of its turns in
between, on a busy machine, too. FILE has the longest such time in seconds, as one double.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from pathlib import Path

import uvloop

from app.cli.main import main

_TICK_SECONDS = 0.001
_DOUBLE = struct.Struct("d")


def read_longest_turn(file: Path) -> float:
    """Returns the longest turn so far, in seconds of CPU time."""
    (seconds,) = _DOUBLE.unpack(file.read_bytes())
    return float(seconds)


def _measure(file: Path) -> None:
    file.write_bytes(_DOUBLE.pack(0.0))
    with file.open("r+b") as opened:
        shared = mmap.mmap(opened.fileno(), _DOUBLE.size)
    new_event_loop = uvloop.new_event_loop

    def new_measured_loop() -> asyncio.AbstractEventLoop:
        loop = new_event_loop()
        longest = 0.0
        last = 0.0

        def tick(*, first: bool = False) -> None:
            nonlocal longest, last
            now = time.thread_time()
            if not first and now - last > longest:
                longest = now - last
                shared[:] = _DOUBLE.pack(longest)
            last = now
            loop.call_later(_TICK_SECONDS, tick)

        # Start-up is no turn that a caller can cause.
        loop.call_later(0.5, lambda: tick(first=True))
        return loop

    uvloop.new_event_loop = new_measured_loop  # type: ignore[assignment] # a loop that measures itself


if __name__ == "__main__":
    _measure(Path(sys.argv.pop(1)))
    main()
