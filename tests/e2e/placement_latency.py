"""How long Longhorn's writes of a replica's place take at the API server, with and without the placement guard's review."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

_WEBHOOK_ANNOTATION = "mutation.webhook.admission.k8s.io/"


@dataclass(frozen=True, slots=True)
class PlacementLatency:
    """Milliseconds of the updates of replicas, from the request's arrival to its answer.

    Attributes:
        reviewed: updates that a mutating webhook was called for: the placements
        others: all others
    """

    reviewed: tuple[float, ...]
    others: tuple[float, ...]

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]]) -> Self:
        """Reads the API server's audit events."""
        reviewed: list[float] = []
        others: list[float] = []
        for event in events:
            if event["verb"] != "update" or event.get("objectRef", {}).get("resource") != "replicas":
                continue
            is_reviewed = any(key.startswith(_WEBHOOK_ANNOTATION) for key in event["annotations"])
            (reviewed if is_reviewed else others).append(_milliseconds(event))
        return cls(tuple(reviewed), tuple(others))

    def __str__(self) -> str:
        if not self.reviewed:
            return f"none of {len(self.others)} updates of replicas was reviewed"
        longest = sorted(self.reviewed)[int(0.99 * len(self.reviewed))]
        others = f"{len(self.others)} other updates of replicas"
        return (
            f"{len(self.reviewed)} reviewed placements took {statistics.median(self.reviewed):.1f} ms at the API server "
            f"(median; 99 % at most {longest:.1f}), {others}"
            + (f" {statistics.median(self.others):.1f} ms" if self.others else "")
        )


def _milliseconds(event: dict[str, Any]) -> float:
    """Returns how long one call took."""
    received, answered = (datetime.fromisoformat(event[key]) for key in ("requestReceivedTimestamp", "stageTimestamp"))
    return (answered - received).total_seconds() * 1000
