"""Which reports become one Event, and which Events are written: the rules of client-go's EventCorrelator.

- Equal reports are one Event, which counts them.
- From the tenth message on, reports about one pod with one reason are one Event, whose message is the latest. Ten minutes without
  a report of the kind end this.
- About one pod 25 Events may be written at once, and later one every five minutes. Reports beyond that are only counted; the next
  Event that is written has their number.

Source: k8s.io/client-go/tools/record/events_cache.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from scheduler_core.backoff import TokenBucket
from scheduler_core.caches import LruMap
from scheduler_core.model.generic import Pod

MAX_SIMILAR_MESSAGES: Final = 10
SIMILAR_INTERVAL: Final = 600.0
SPAM_LIMIT: Final = TokenBucket(1 / 300, 25)
COMBINED: Final = "(combined from similar events): "
# client-go's maxLruCacheEntries.
_MAX_ENTRIES: Final = 4096

EventKey = tuple[str, str, str]
"""A pod's UID, a reason and a message; the message is "" where similar messages are combined."""


@dataclass(slots=True)
class _SimilarReports:
    """The messages of one pod and reason."""

    messages: set[str] = field(default_factory=set)
    last: float = -float("inf")  # seconds of the latest report


class EventCorrelator:
    """Owner of what was reported lately; times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._similar: LruMap[tuple[str, str], _SimilarReports] = LruMap(_MAX_ENTRIES)
        self._buckets: LruMap[str, TokenBucket] = LruMap(_MAX_ENTRIES)

    def aggregate(self, pod: Pod, reason: str, message: str, now: float) -> tuple[EventKey, str]:
        """Returns the Event that a report belongs to, and the Event's message (EventAggregate)."""
        uid = pod_identity(pod)
        similar = self._similar.get((uid, reason))
        if similar is None or now - similar.last > SIMILAR_INTERVAL:
            similar = _SimilarReports()
            self._similar.put((uid, reason), similar)
        similar.messages.add(message)
        similar.last = now
        if len(similar.messages) < MAX_SIMILAR_MESSAGES:
            return (uid, reason, message), message
        similar.messages.pop()
        return (uid, reason, ""), COMBINED + message

    def may_write(self, pod: Pod, now: float) -> bool:
        """Counts an Event about a pod; False if there are too many (EventSourceObjectSpamFilter)."""
        uid = pod_identity(pod)
        bucket = self._buckets.get(uid) or SPAM_LIMIT
        if bucket.ready_at > now:
            return False
        self._buckets.put(uid, bucket.after(now))
        return True


def pod_identity(pod: Pod) -> str:
    """Returns what distinguishes a pod from a later one of its name."""
    return pod.uid or "/".join(pod.key)
