"""What candidates have logged: the questions they answered, and what became of their offers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from scheduler_core.model.verdict import Reason

_FILTER: Final = "filter"
_OFFERED: Final = "offered"
_OFFER: Final = "offer"
_NARROWED: Final = "narrowed"


@dataclass(frozen=True, slots=True, order=True)
class Question:
    """One answer to /filter about a pod: when, how many nodes fitted, and the reasons by their texts."""

    at: float
    uid: str
    pod: str
    nodes: int
    fits: int
    reasons: Mapping[str, int]
    milliseconds: float

    @property
    def waits(self) -> bool:
        """Whether it was refused because of what is offered to others."""
        return not self.fits and Reason.WAITING.text in self.reasons


@dataclass(frozen=True, slots=True, order=True)
class Offer:
    """When an offer was made, and when it ended; `math.inf` if nobody said so: its leader died."""

    made: float
    ended: float
    uid: str


class Journal:
    """Everything the candidates of a rig have logged so far, in order of time."""

    def __init__(self, logs: Path, candidates: Iterable[str]) -> None:
        lines = [entry for name in candidates for entry in _lines(logs / f"{name}.log")]
        self.questions = sorted(
            (_question(entry) for entry in lines if entry["event"] == _FILTER and entry.get("uid")),
            key=lambda question: question.at,
        )
        self.offers = sorted(_offers(lines))

    def longest_wait(self) -> float:
        """For how many seconds, at most, a pod was refused again and again because of what was offered to others."""
        since: dict[str, float] = {}
        longest = 0.0
        for question in self.questions:
            if not question.waits:
                since.pop(question.uid, None)
                continue
            longest = max(longest, question.at - since.setdefault(question.uid, question.at))
        return longest

    def first(self) -> dict[str, Question]:
        """The first question about each pod, by UID."""
        found: dict[str, Question] = {}
        for question in self.questions:
            found.setdefault(question.uid, question)
        return found


def events(logs: Path, candidates: Iterable[str], name: str) -> list[dict[str, Any]]:
    """All lines of one event."""
    return [entry for candidate in candidates for entry in _lines(logs / f"{candidate}.log") if entry["event"] == name]


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a log; the last one may be half written by a process that was killed."""
    with log.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if text.startswith("{") and text.endswith("}\n"):
                yield json.loads(text)


def _question(entry: Mapping[str, Any]) -> Question:
    return Question(
        at=_seconds(entry),
        uid=entry["uid"],
        pod=entry["pod"],
        nodes=entry["nodes"],
        fits=entry["fits"],
        reasons=entry["reasons"],
        milliseconds=entry["ms"],
    )


def _offers(lines: Iterable[Mapping[str, Any]]) -> Iterator[Offer]:
    """Each pod has one offer at a time."""
    made, ends = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for entry in lines:
        if entry["event"] == _OFFERED:
            made[entry["uid"]].append(_seconds(entry))
        elif entry["event"] == _OFFER and entry["became"] != _NARROWED:
            ends[entry["uid"]].append(_seconds(entry))
    for uid, times in made.items():
        for at in times:
            yield Offer(at, min((end for end in ends[uid] if end >= at), default=math.inf), uid)


def _seconds(entry: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(entry["timestamp"]).timestamp()
