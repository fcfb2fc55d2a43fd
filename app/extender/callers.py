"""From where /filter is called lately, and in which form, for /state."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from app.schemas.state import CallerAnswer
from scheduler_core.caches import LruMap

# Kubernetes has a handful of kube-schedulers; any client may call.
MAX_CALLERS: Final = 16


class RecentCallers:
    """The latest callers of /filter, bounded in number.

    Args:
        clock: returns seconds that never go back
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls: LruMap[tuple[str, str], tuple[int, float]] = LruMap(MAX_CALLERS)

    def record(self, address: str, *, whole_nodes: bool) -> None:
        key = (address, "nodes" if whole_nodes else "names")
        requests, _ = self._calls.get(key) or (0, 0.0)
        self._calls.put(key, (requests + 1, self._clock()))

    def answers(self) -> list[CallerAnswer]:
        now = self._clock()
        # Reading an entry marks it as used.
        calls = self._calls.copy()
        return [_answer(*key, calls.get(key) or (0, now), now) for key in sorted(calls)]


def _answer(address: str, form: str, calls: tuple[int, float], now: float) -> CallerAnswer:
    requests, last = calls
    return CallerAnswer(address=address, form=form, requests=requests, age_seconds=round(now - last, 3))
