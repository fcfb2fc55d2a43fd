"""A decision about a pod as the decision log keeps it, and what selects decisions of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

# An ordinary entry takes 1.4 kB of memory, and recording it 13 µs. One whose texts all have their greatest length takes 8 kB, or 26 kB if
# each character takes four bytes.
MAX_DECISIONS: Final = 1000
MAX_OFFERED: Final = 10
# A policy's rules may have a text of their own for each node.
MAX_REASONS: Final = 8
# A caller may send names of any length. The longest that Kubernetes accepts has 253 characters.
MAX_LENGTH: Final = 253
# As long as the note of a Kubernetes Event.
MAX_ERROR_LENGTH: Final = 1024


class DecisionOutcome(StrEnum):
    """How a decision ended.

    FITS: the pod fits some node. REFUSED: it fits none. ERROR: it cannot be decided about.
    """

    FITS = "fits"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """What a decision about a pod says. The log stores the parts that it has room for."""

    nodes: int  # number of nodes in the request
    fits: int = 0  # number of nodes that fit
    fitting: Iterable[str] = ()  # their names in the order of the request, read up to `MAX_OFFERED`
    # Numbers of other nodes by the text of their reason.
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
    error: str = ""  # why there is no decision; "" if there is one
    seconds: float = 0.0  # from the decoded request to the decision
    observed: bool = False  # whether refusals are only counted and logged, so that the answer names every node


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """A decision in the log."""

    # Microseconds since 1970; greater than that of every earlier decision, also across restarts unless the clock is set
    # back.
    number: int
    time: datetime
    verb: str  # filter or preempt
    namespace: str
    pod: str
    uid: str
    nodes: int  # number of nodes in the request
    offered: tuple[str, ...]  # names of the first `MAX_OFFERED` nodes that fit
    fits: int  # number of nodes that fit
    # The `MAX_REASONS` most frequent texts of refusals, each with its number of nodes.
    refused: tuple[tuple[str, int], ...]
    error: str  # as in `DecisionResult`
    milliseconds: float
    observed: bool  # as in `DecisionResult`

    @property
    def outcome(self) -> DecisionOutcome:
        """How the decision ended, whether or not it is only observed."""
        if self.error:
            return DecisionOutcome.ERROR
        return DecisionOutcome.FITS if self.fits else DecisionOutcome.REFUSED


@dataclass(frozen=True, slots=True)
class DecisionQuery:
    """Which decisions are listed; None selects all."""

    limit: int = MAX_DECISIONS  # the most entries of one page
    before: int | None = None  # only decisions with a smaller number
    namespace: str | None = None
    pod: str | None = None  # name without namespace
    outcome: DecisionOutcome | None = None

    def selects(self, entry: LoggedDecision) -> bool:
        """Whether a decision is listed."""
        return (
            (self.before is None or entry.number < self.before)
            and self.namespace in (None, entry.namespace)
            and self.pod in (None, entry.pod)
            and self.outcome in (None, entry.outcome)
        )


@dataclass(frozen=True, slots=True)
class DecisionPage:
    """Some decisions, the latest first."""

    entries: tuple[LoggedDecision, ...]
    next_before: int | None  # `DecisionQuery.before` of the next page; None if this is the last one
    recorded: int  # number of all decisions since this process began, those that are forgotten included
