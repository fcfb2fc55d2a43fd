"""The latest decisions about pods, bounded in number and size, for /decisions, and the latest callers of /filter, for /state.

Data flow: /filter and /preempt decide → the routes write a line of the log and add the decision here → /decisions, the status page and
`longhorn-extender decisions` read it. /prioritize decides nothing, so it is not here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from heapq import nlargest
from itertools import islice
from time import monotonic
from typing import Final

from app.schemas.state import CallerAnswer
from scheduler_core.caches import LruMap
from scheduler_core.decide.decision import (
    MAX_DECISIONS,
    MAX_ERROR_LENGTH,
    MAX_LENGTH,
    MAX_OFFERED,
    MAX_REASONS,
    DecisionPage,
    DecisionQuery,
    DecisionResult,
    LoggedDecision,
)
from scheduler_core.model.kube import Pod

_MICROSECONDS: Final = 1_000_000


def _now() -> datetime:
    return datetime.now(UTC)


class DecisionLog:
    """Owner of the latest `MAX_DECISIONS` decisions of this process.

    Args:
        now: returns the wall-clock time
    """

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._entries: deque[LoggedDecision] = deque(maxlen=MAX_DECISIONS)
        self._recorded = 0

    def record(self, verb: str, pod: Pod, result: DecisionResult) -> None:
        """Adds a decision; the oldest one makes room."""
        time = self._now()
        previous = self._entries[-1].number if self._entries else 0
        entry = LoggedDecision(
            number=max(int(time.timestamp() * _MICROSECONDS), previous + 1),
            time=time,
            verb=verb,
            namespace=pod.namespace[:MAX_LENGTH],
            pod=pod.name[:MAX_LENGTH],
            uid=pod.uid[:MAX_LENGTH],
            nodes=result.nodes,
            offered=tuple(name[:MAX_LENGTH] for name in islice(result.fitting, min(result.fits, MAX_OFFERED))),
            fits=result.fits,
            refused=_most_frequent(result.refused),
            error=result.error[:MAX_ERROR_LENGTH],
            milliseconds=round(result.seconds * 1000, 3),
            observed=result.observed,
        )
        self._entries.append(entry)
        self._recorded += 1

    def page(self, query: DecisionQuery) -> DecisionPage:
        entries = tuple(islice(self._select(query), query.limit + 1))
        shown = entries[: query.limit]
        further = len(entries) > query.limit
        return DecisionPage(shown, shown[-1].number if further and shown else None, self._recorded)

    def _select(self, query: DecisionQuery) -> Iterator[LoggedDecision]:
        return (entry for entry in reversed(self._entries) if query.selects(entry))


def _most_frequent(reasons: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    entries = nlargest(MAX_REASONS, ((count, text) for text, count in reasons.items()))
    return tuple((text[:MAX_LENGTH], count) for count, text in entries)


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
