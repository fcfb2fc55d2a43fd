"""The one loop that waits for a condition of a cluster."""

import time
from collections.abc import Callable
from typing import TypeVar

from app.kube.client import ApiError
from devcluster.errors import DevClusterError

POLL_INTERVAL = 0.1
_Value = TypeVar("_Value")


def wait_until(
    what: str,
    done: Callable[[], _Value],
    seconds: float = 60,
    *,
    explain: Callable[[], object] = str,
    poll: float = POLL_INTERVAL,
) -> _Value:
    """Waits until `done` returns something true; returns that.

    An API server that cannot answer yet is asked again: right after new definitions it answers 429.

    Args:
        what: the condition, for the error
        done: is called repeatedly
        seconds: how long it may take
        explain: what the error says beyond that
        poll: the seconds between two calls, at least as long as the last one took
    """
    deadline = time.monotonic() + seconds
    problem = ""
    while True:
        started = time.monotonic()
        try:
            value = done()
        except ApiError as error:
            if not error.unreachable:
                raise
            problem = f"; {error}"
        else:
            problem = ""
            if value:
                return value
        if time.monotonic() > deadline:
            raise DevClusterError(f"waited {seconds:g} s in vain for {what}{problem}; {explain()}".rstrip("; "))
        # A list of thousands of nodes takes the API server as long as it takes this process.
        time.sleep(max(poll, time.monotonic() - started))
