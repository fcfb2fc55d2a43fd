"""What if the pending pods of a snapshot were scheduled, one after the other?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.scheduler.deciding import decide
from app.scheduler.longhorn import SnapshotLonghorn
from app.scheduler.wording import message
from scheduler_core.convert.binding import Applicant
from scheduler_core.errors import ResolutionError
from scheduler_core.generic.policy import Policy
from scheduler_core.generic.scheduler import Choose
from scheduler_core.generic.state import State
from scheduler_core.steps import finish


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod that has found a node: its total there, and the names of those equally good."""

    pod: str
    node: str
    score: int
    best: int


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A pod that no node takes: why, as one line, and how many nodes say what."""

    pod: str
    message: str
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What becomes of each pod, in the order they were scheduled."""

    placed: tuple[Placed, ...]
    unplaced: tuple[Unplaced, ...]

    def data(self) -> dict[str, Any]:
        """As it is printed; documented in docs/schedule.md, and stable."""
        return {
            "bindings": [{"pod": entry.pod, "node": entry.node, "score": entry.score} for entry in self.placed],
            "unschedulable": [
                {"pod": entry.pod, "message": entry.message, "reasons": dict(entry.reasons)} for entry in self.unplaced
            ],
        }


def what_if(
    waiting: Iterable[Applicant], state: State, policy: Policy, choose: Choose, longhorn: SnapshotLonghorn | None
) -> Report:
    """Schedules the pods by priority, age and name, each bound before the next one is asked about."""
    placed: list[Placed] = []
    unplaced: list[Unplaced] = []
    for found in sorted(waiting, key=lambda entry: entry.turn):
        name = "/".join(found.pod.key)
        facts = None if longhorn is None else longhorn.facts(found)
        try:
            decision = finish(decide(found.pod, state, policy, choose, facts))
        except ResolutionError as error:
            unplaced.append(Unplaced(name, str(error), {str(error): len(state.names)}))
            continue
        if not decision.node:
            unplaced.append(Unplaced(name, message(decision), decision.counts()))
            continue
        placed.append(Placed(name, decision.node, decision.ranking.totals[decision.node], len(decision.best)))
        state = state.bound(found.pod, decision.node)
        if longhorn is not None:
            longhorn.bound(found, decision.node)
    return Report(tuple(placed), tuple(unplaced))
