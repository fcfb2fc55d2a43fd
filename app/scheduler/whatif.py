"""What if the pending pods of a snapshot were scheduled, one after the other?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.scheduler.decide import decide
from app.scheduler.longhorn_cache import SnapshotLonghorn
from app.scheduler.wording import message
from scheduler_core.convert.binding import Applicant
from scheduler_core.cooperative import finish
from scheduler_core.errors import ResolutionError
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.policy import Policy
from scheduler_core.generic.scheduler import Choose, Decision


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod that has found a node.

    Attributes:
        score: the node's total
        scores: what each priority says of the node, unweighted, by its name in the policy
        best: how many nodes are equally good, this one included
        refused: how many nodes are out for what; one with several reasons counts for each
    """

    pod: str
    node: str
    score: int
    scores: Mapping[str, int]
    best: int
    refused: Mapping[str, int]

    def data(self) -> dict[str, Any]:
        """As it is printed."""
        return {
            "pod": self.pod,
            "node": self.node,
            "score": self.score,
            "scores": dict(self.scores),
            "equallyGood": self.best,
            "refused": dict(self.refused),
        }


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
            "bindings": [entry.data() for entry in self.placed],
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
        placed.append(_placed(name, decision))
        state = state.bound(found.pod, decision.node)
        if longhorn is not None:
            longhorn.bound(found, decision.node)
    return Report(tuple(placed), tuple(unplaced))


def _placed(pod: str, decision: Decision) -> Placed:
    node, ranking = decision.node, decision.ranking
    return Placed(
        pod=pod,
        node=node,
        score=ranking.totals[node],
        scores={name: scores[node] for name, scores in ranking.scores.items()},
        best=len(decision.best),
        refused=decision.counts(),
    )
