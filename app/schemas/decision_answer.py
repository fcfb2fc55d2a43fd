"""The stable JSON of `/decisions` and of `longhorn-extender decisions`."""

from __future__ import annotations

from datetime import datetime

from pydantic import ConfigDict, Field

from app import API_VERSION
from app.schemas.explain import Answer
from scheduler_core.decide.decision import (
    MAX_DECISIONS,
    MAX_OFFERED,
    MAX_REASONS,
    DecisionOutcome,
    DecisionPage,
    DecisionQuery,
    LoggedDecision,
)


class DecisionParameters(Answer):
    """The query of `/decisions`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: int = Field(default=100, ge=1, le=MAX_DECISIONS, description="the most entries of the answer")
    before: int | None = Field(default=None, ge=0, description="only decisions with a smaller `number`")
    namespace: str | None = Field(default=None, description="only of pods in this namespace")
    pod: str | None = Field(default=None, description="only of pods with this name")
    outcome: DecisionOutcome | None = Field(default=None, description="only with this outcome")

    @property
    def query(self) -> DecisionQuery:
        """What selects the entries of the log."""
        return DecisionQuery(self.limit, self.before, self.namespace, self.pod, self.outcome)


class DecisionAnswer(Answer):
    """One decision about a pod."""

    number: int = Field(description="microseconds since 1970; greater than that of every earlier decision")
    time: datetime
    verb: str = Field(description="filter or preempt")
    pod: str = Field(description="namespace/name")
    uid: str
    outcome: DecisionOutcome = Field(
        description="fits: on some node; refused: on every node; error: the pod cannot be decided about"
    )
    observed: bool = Field(description="whether refusals were only counted and logged: the answer named every node")
    nodes: int = Field(description="number of nodes in the request")
    fits: int = Field(description="number of nodes that fit")
    offered: list[str] = Field(description=f"those nodes, in the order of the request; at most {MAX_OFFERED}")
    refused: dict[str, int] = Field(
        description=f"numbers of nodes by the reason of their refusal, the most frequent first; at most {MAX_REASONS}"
    )
    error: str = Field(description="why the pod cannot be decided about; empty if it can")
    milliseconds: float = Field(description="from the decoded request to the decision")


class DecisionListAnswer(Answer):
    """The latest decisions of one process, the latest first."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "DecisionList"
    recorded: int = Field(
        description=f"number of decisions since the process began; the latest {MAX_DECISIONS} are kept"
    )
    next_before: int | None = Field(
        serialization_alias="nextBefore", description="`before` of the next page; null on the last page"
    )
    items: list[DecisionAnswer]


def decision_list_answer(page: DecisionPage) -> DecisionListAnswer:
    """Returns a page of decisions as data."""
    items = [_decision_answer(entry) for entry in page.entries]
    return DecisionListAnswer(recorded=page.recorded, next_before=page.next_before, items=items)


def _decision_answer(entry: LoggedDecision) -> DecisionAnswer:
    return DecisionAnswer(
        number=entry.number,
        time=entry.time,
        verb=entry.verb,
        pod=f"{entry.namespace}/{entry.pod}",
        uid=entry.uid,
        outcome=entry.outcome,
        observed=entry.observed,
        nodes=entry.nodes,
        fits=entry.fits,
        offered=list(entry.offered),
        refused=dict(entry.refused),
        error=entry.error,
        milliseconds=entry.milliseconds,
    )
