"""Runs `longhorn-extender` and measures how long its event loop is busy without a break.

    python -m tests.worlds.turn_probe FILE serve ...

A timer of the loop fires every millisecond. The CPU time that the loop's thread used between two firings is the time of its turns in
between. FILE has the longest such time in seconds, as one double: less than 0 until it is measured. Writing 0 starts anew. Even CPU time
grows while the machine is short of processors, so a limit holds for the best of a few attempts.
"""

import asyncio
import mmap
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from app.cli.main import main

_TICK_SECONDS = 0.001
_DOUBLE = struct.Struct("d")


def read_longest_turn(file: Path) -> float:
    """Returns the longest turn so far, in seconds of CPU time."""
    (seconds,) = _DOUBLE.unpack(file.read_bytes())
    return float(seconds)


def reset_longest_turn(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(_DOUBLE.pack(0.0))


def time_turns(loop: asyncio.AbstractEventLoop, report: Callable[[float], None]) -> None:
    """Reports the CPU time of the loop's turns from now on, in seconds; the first report is 0."""
    last = time.thread_time()

    def tick() -> None:
        nonlocal last
        now = time.thread_time()
        report(now - last)
        last = now
        loop.call_later(_TICK_SECONDS, tick)

    report(0.0)
    loop.call_later(_TICK_SECONDS, tick)


def _measure(file: Path) -> None:
    file.write_bytes(_DOUBLE.pack(-1.0))
    with file.open("r+b") as opened:
        shared = mmap.mmap(opened.fileno(), _DOUBLE.size)
    new_event_loop = uvloop.new_event_loop

    def new_measured_loop() -> asyncio.AbstractEventLoop:
        loop = new_event_loop()

        def report(seconds: float) -> None:
            if seconds > _DOUBLE.unpack(shared)[0]:
                shared[:] = _DOUBLE.pack(seconds)

        # Start-up is no turn that a caller can cause.
        loop.call_later(0.5, lambda: time_turns(loop, report))
        return loop

    uvloop.new_event_loop = new_measured_loop  # type: ignore[assignment] # a loop that measures itself


if __name__ == "__main__":
    _measure(Path(sys.argv.pop(1)))
    main()
