"""The latest decisions about pods, bounded in number and size, for /decisions.

Data flow: /filter and /preempt decide → the routes write a line of the log and add the decision here → /decisions, the status page and
`longhorn-extender decisions` read it. /prioritize decides nothing, so it is not here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from heapq import nlargest
from itertools import islice
from typing import Final

from scheduler_core.extender.logged_decision import (
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
