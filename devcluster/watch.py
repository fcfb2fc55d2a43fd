"""Watches the processes of a running stack. A killed candidate of the extender is started again, as Kubernetes does. The end of
any other process is a crash, which ends the stack.
"""

import signal

from devcluster.errors import DevClusterError
from devcluster.process import Process
from devcluster.stack import LEASE_SECONDS, Report, Stack

# Longer than the Lease, so that the other candidate takes over before.
RESTART_DELAY = LEASE_SECONDS + 4
_EXTERNAL_ENDS = (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL)


def describe_end(code: int | None) -> str:
    """Describes an exit code, which is negative for a signal."""
    if code is None or code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def is_external_end(code: int | None) -> bool:
    """Whether a candidate was ended from outside. It has no other reason to end without an error."""
    return code in _EXTERNAL_ENDS


class StackWatch:
    """Checks the processes of a running stack at each call."""

    def __init__(self, stack: Stack, report: Report) -> None:
        self._stack = stack
        self._report = report
        self._restart_at: dict[str, float] = {}
        self._ended_at: float | None = None

    def check(self, now: float) -> None:
        """Restarts due candidates, and reports which one answers now.

        Raises:
            DevClusterError: a process has crashed; the text has the end of its log
        """
        for process in list(self._stack.cluster.processes.values()):
            if process.crashed:
                self._handle_end(process, now)
        if self._ended_at is not None and (answering := self._stack.answering()):
            self._report(f"{answering[0]} answers kube-scheduler, {now - self._ended_at:.1f} s later")
            self._ended_at = None

    def _handle_end(self, process: Process, now: float) -> None:
        name = process.name
        code = process.returncode
        if name not in self._stack.candidates or not is_external_end(code):
            raise DevClusterError(f"{name} {describe_end(code)}; {process.log_tail()}")
        if name not in self._restart_at:
            self._restart_at[name] = now + RESTART_DELAY
            self._ended_at = now
            self._report(f"{name} {describe_end(code)}; it is started again in {RESTART_DELAY:g} s")
        elif now >= self._restart_at[name]:
            del self._restart_at[name]
            process.start(wait=False)
            self._report(f"{name} is started again")
