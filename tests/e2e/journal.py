"""The candidates' logs: their answers to /filter, and the ends of their offers."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scheduler_core.model.verdict import Reason

_FILTER = "filter"
_OFFERED = "offered"
_OFFER = "offer"
_NARROWED = "narrowed"


@dataclass(frozen=True, slots=True, order=True)
class FilterCall:
    """One answer to /filter: the number of fitting nodes, and the reasons' texts."""

    at: float
    uid: str
    pod: str
    nodes: int
    fits: int
    reasons: Mapping[str, int]
    milliseconds: float

    @property
    def waits(self) -> bool:
        """Whether the pod was refused because of offers to other pods."""
        return not self.fits and Reason.WAITING.text in self.reasons


@dataclass(frozen=True, slots=True, order=True)
class Offer:
    """The beginning and end of an offer. The end is `math.inf` if the log has none, because the leader died."""

    start: float
    end: float
    uid: str


class Journal:
    """All log lines of a rig's candidates so far, ordered by time."""

    def __init__(self, logs: Path, candidates: Iterable[str]) -> None:
        lines = [entry for name in candidates for entry in _lines(logs / f"{name}.log")]
        self.calls = sorted(
            (_filter_call(entry) for entry in lines if entry["event"] == _FILTER and entry.get("uid")),
            key=lambda call: call.at,
        )
        self.offers = sorted(_offers(lines))

    def longest_wait(self) -> float:
        """The longest time for which other offers kept a pod refused, in seconds."""
        since: dict[str, float] = {}
        longest = 0.0
        for call in self.calls:
            if not call.waits:
                since.pop(call.uid, None)
                continue
            longest = max(longest, call.at - since.setdefault(call.uid, call.at))
        return longest

    def first_calls(self) -> dict[str, FilterCall]:
        first: dict[str, FilterCall] = {}
        for call in self.calls:
            first.setdefault(call.uid, call)
        return first


def events(logs: Path, candidates: Iterable[str], name: str) -> list[dict[str, Any]]:
    return [entry for candidate in candidates for entry in _lines(logs / f"{candidate}.log") if entry["event"] == name]


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a log, without an incomplete last one. A killed process may leave one."""
    with log.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if text.startswith("{") and text.endswith("}\n"):
                yield json.loads(text)


def _filter_call(entry: Mapping[str, Any]) -> FilterCall:
    return FilterCall(
        at=_seconds(entry),
        uid=entry["uid"],
        pod=entry["pod"],
        nodes=entry["nodes"],
        fits=entry["fits"],
        reasons=entry["reasons"],
        milliseconds=entry["ms"],
    )


def _offers(lines: Iterable[Mapping[str, Any]]) -> Iterator[Offer]:
    """The offers in log lines; each pod has one at a time."""
    starts = defaultdict[str, list[float]](list)
    ends = defaultdict[str, list[float]](list)
    for entry in lines:
        if entry["event"] == _OFFERED:
            starts[entry["uid"]].append(_seconds(entry))
        elif entry["event"] == _OFFER and entry["became"] != _NARROWED:
            ends[entry["uid"]].append(_seconds(entry))
    for uid, times in starts.items():
        for at in times:
            yield Offer(at, min((end for end in ends[uid] if end >= at), default=math.inf), uid)


def _seconds(entry: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(entry["timestamp"]).timestamp()


def quantiles(times: Sequence[float]) -> str:
    """The median, the 99th percentile and the most of sorted milliseconds."""
    return f"{times[len(times) // 2]:.1f} / {times[len(times) * 99 // 100]:.1f} / {times[-1]:.1f}" if times else "none"
