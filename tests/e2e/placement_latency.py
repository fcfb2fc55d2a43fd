"""How long Longhorn's writes of a replica's place take at the API server, with and without the placement guard's review."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from prometheus_client.parser import text_string_to_metric_families

_WEBHOOK_ANNOTATION: Final = "mutation.webhook.admission.k8s.io/"
_CALLS: Final = "apiserver_admission_webhook_admission_duration_seconds"
# A boundary of the API server's histogram, and what a review may cost 99 of 100 placements.
_BUDGET: Final = "0.025"


@dataclass(frozen=True, slots=True)
class PlacementLatency:
    """Milliseconds of the updates of replicas, from the request's arrival to its answer."""

    reviewed: tuple[float, ...]  # updates that a mutating webhook was called for: the placements
    others: tuple[float, ...]  # all others
    calls: tuple[int, int] = (0, 0)  # how many calls of mutating webhooks ended within 25 ms, and how many there were
    reviews: tuple[float, ...] = ()  # of the extender alone, without connection and handshake

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]], metrics: str = "", reviews: Iterable[float] = ()) -> Self:
        """Reads the API server's audit events, and its metrics."""
        reviewed: list[float] = []
        others: list[float] = []
        for event in events:
            if event["verb"] != "update" or event.get("objectRef", {}).get("resource") != "replicas":
                continue
            is_reviewed = any(key.startswith(_WEBHOOK_ANNOTATION) for key in event["annotations"])
            (reviewed if is_reviewed else others).append(_milliseconds(event))
        calls = (_count_calls(metrics, _BUDGET), _count_calls(metrics, "+Inf"))
        return cls(tuple(reviewed), tuple(others), calls, tuple(sorted(reviews)))

    def __str__(self) -> str:
        if not self.reviewed:
            return f"none of {len(self.others)} updates of replicas was reviewed"
        others = f"{len(self.others)} other updates of replicas"
        return (
            f"{len(self.reviewed)} reviewed placements took {statistics.median(self.reviewed):.1f} ms at the API server "
            f"(median; 99 % at most {_longest(self.reviewed):.1f}), {others}"
            + (f" {statistics.median(self.others):.1f} ms" if self.others else "")
            + (f"; {self.calls[0]} of {self.calls[1]} webhook calls took at most 25 ms" if self.calls[1] else "")
            + (
                f"; the extender's part {statistics.median(self.reviews):.1f} ms (99 % at most {_longest(self.reviews):.1f})"
                if self.reviews
                else ""
            )
        )


def _longest(milliseconds: Sequence[float]) -> float:
    return sorted(milliseconds)[int(0.99 * len(milliseconds))]


def _count_calls(metrics: str, bound: str) -> int:
    """Returns how many calls of mutating webhooks took at most so many seconds."""
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(metrics)
        if family.name == _CALLS
        for sample in family.samples
        if sample.labels.get("le") == bound and sample.labels["type"] == "admit"
    )


def _milliseconds(event: dict[str, Any]) -> float:
    received, answered = (datetime.fromisoformat(event[key]) for key in ("requestReceivedTimestamp", "stageTimestamp"))
    return (answered - received).total_seconds() * 1000
