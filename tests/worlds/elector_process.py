"""A process that is a candidate and does nothing else: `python -m tests.worlds.elector_process KUBECONFIG NAMESPACE NAME`.

It asks `leading()` every millisecond and prints a line when the answer or the term changes: the word seen, boot clock,
leading, term. A line that follows a gap in its asking, because it was stopped, bears one more field: the gap's seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial

from app.kube.client import KubeClient
from app.runtime.elector import Elector, boot_clock
from scheduler_core.leadership.election import ElectionTiming

TIMING = ElectionTiming(lease_duration=3.0, renew_deadline=2.0, retry_period=0.5)


def connecting(kubeconfig: str) -> Callable[[], Awaitable[KubeClient]]:
    """How the elector connects."""
    return partial(KubeClient.connect, kubeconfig)


async def watch(elector: Elector) -> None:
    """Prints forever."""
    last, asked = None, boot_clock()
    while True:
        now, standing = boot_clock(), (elector.leading(), elector.term)
        gap = f" {now - asked:.3f}" if now - asked > 1 else ""
        if standing != last or gap:
            # In one write of its own: the elector's thread logs to the same output.
            os.write(sys.stdout.fileno(), f"\nseen {now:.6f} {int(standing[0])} {standing[1]}{gap}\n".encode())
        last, asked = standing, now
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    candidate = Elector(connecting(sys.argv[1]), sys.argv[3], sys.argv[2], TIMING)
    candidate.start()
    asyncio.run(watch(candidate))
