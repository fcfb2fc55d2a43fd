"""A process that only is a candidate: `python -m tests.worlds.elector_process KUBECONFIG NAMESPACE NAME`.

It reads `leading()` every millisecond and prints a line when it or the term changes: the word seen, boot clock,
leading, term. A line after a gap, because the process was stopped, has one more field: the gap's seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial

from app.kube.client import KubeClient
from app.runtime.elector import Elector, boot_clock
from tests.worlds.election_timing import IN_PROCESS

TIMING = IN_PROCESS


def connect_with(kubeconfig: str) -> Callable[[], Awaitable[KubeClient]]:
    return partial(KubeClient.connect, kubeconfig)


async def print_changes(elector: Elector) -> None:
    """Prints every change, until killed."""
    last: tuple[bool, int] | None = None
    read_at = boot_clock()
    while True:
        now = boot_clock()
        current = (elector.leading(), elector.term)
        gap = f" {now - read_at:.3f}" if now - read_at > 1 else ""
        if current != last or gap:
            # In one write of its own: the elector's thread logs to the same output.
            os.write(sys.stdout.fileno(), f"\nseen {now:.6f} {int(current[0])} {current[1]}{gap}\n".encode())
        last = current
        read_at = now
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    candidate = Elector(connect_with(sys.argv[1]), sys.argv[3], sys.argv[2], TIMING)
    candidate.start()
    asyncio.run(print_changes(candidate))
