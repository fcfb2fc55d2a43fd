"""A process that only is a candidate: `python -m tests.worlds.elector_process KUBECONFIG NAMESPACE NAME`.

It reads `leading()` every millisecond and prints a line when it or the term changes: the word seen, boot clock,
leading, term. A line after a gap, because the process was stopped, has one more field: the gap's seconds.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

from app.kube.client import KubeClient
from app.runtime.elector import Elector, boot_clock
from scheduler_core.leadership.election import ElectionTiming

IN_PROCESS = ElectionTiming(lease_duration=3.0, renew_deadline=2.0, retry_period=0.5)
ON_A_CLUSTER = ElectionTiming(lease_duration=4.0, renew_deadline=3.0, retry_period=0.5)
OF_A_CHART = ElectionTiming(lease_duration=2.0, renew_deadline=1.5, retry_period=0.3)
# No change of the leader by chance.


def election_flags(timing: ElectionTiming) -> tuple[str, ...]:
    """The flags of `serve` for a timing."""
    periods = {
        "--lease-duration": timing.lease_duration,
        "--renew-deadline": timing.renew_deadline,
        "--retry-period": timing.retry_period,
    }
    return tuple(word for flag, seconds in periods.items() for word in (flag, f"{seconds:g}"))


TIMING = IN_PROCESS


def connect_with(kubeconfig: str) -> Callable[[], Awaitable[KubeClient]]:
    return partial(KubeClient.connect, kubeconfig)


def until(condition: Callable[[], object], seconds: float = 20.0) -> float:
    """Returns once a condition is true; returns the seconds that took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        time.sleep(0.002)
    return time.monotonic() - started


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
