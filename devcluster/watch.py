"""What is done when a process ends while the stack runs: a killed candidate of the extender is started again, as Kubernetes would;
anything else is a crash, and the end of the stack.
"""

from __future__ import annotations

import signal
from typing import Final

from devcluster.errors import DevClusterError
from devcluster.process import Process
from devcluster.stack import LEASE_SECONDS, Report, Stack

# Longer than the Lease, so that one sees the other candidate take over.
AGAIN_SECONDS: Final = LEASE_SECONDS + 4
_ASKED_TO_END: Final = (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL)


def how_it_ended(code: int | None) -> str:
    """A process's end in words, from its exit code, which is negative for a signal."""
    if code is None or code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def somebody_ended_it(code: int | None) -> bool:
    """Whether a candidate was told to end from outside: it has no other reason to end without an error."""
    return code in _ASKED_TO_END


class Watch:
    """Looks after a running stack, whenever it is asked to."""

    def __init__(self, stack: Stack, report: Report) -> None:
        self._stack = stack
        self._report = report
        self._again: dict[str, float] = {}
        self._ended: float | None = None

    def look(self, now: float) -> None:
        """Starts candidates again whose time has come, and says who answers since one ended; `now` in seconds.

        Raises:
            DevClusterError: a process has crashed; with the end of its log
        """
        for process in list(self._stack.cluster.processes.values()):
            if process.crashed:
                self._deal_with(process, now)
        if self._ended is not None and (answering := self._stack.answering()):
            self._report(f"{answering[0]} answers kube-scheduler, {now - self._ended:.1f} s later")
            self._ended = None

    def _deal_with(self, process: Process, now: float) -> None:
        name, code = process.name, process.returncode
        if name not in self._stack.candidates or not somebody_ended_it(code):
            raise DevClusterError(f"{name} {how_it_ended(code)}; {process.log_tail()}")
        if name not in self._again:
            self._again[name] = now + AGAIN_SECONDS
            self._ended = now
            self._report(f"{name} {how_it_ended(code)}; it is started again in {AGAIN_SECONDS:g} s")
        elif now >= self._again[name]:
            del self._again[name]
            process.start(wait=False)
            self._report(f"{name} is started again")
