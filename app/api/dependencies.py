"""What the routes need; `bootstrap` puts it into the application once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import Depends, Request

from app.decisions.evaluator import Evaluator
from app.extender.decision_log import DecisionLog, RecentCallers
from app.extender.metrics import Metrics
from app.extender.node_losses import NodeLosses
from app.extender.status_reporter import StatusSources
from app.extender.verbs import Verbs
from app.runtime.memory_budget import Lease, MemoryBudget

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.extender.lifecycle import ExtenderLifecycle

_State = TypeVar("_State")


@dataclass(frozen=True, slots=True)
class AppState:
    """The services and limits of one application."""

    evaluator: Evaluator
    verbs: Verbs
    metrics: Metrics
    max_body: int  # the largest body of a request, in bytes
    budget: MemoryBudget  # the memory that all requests together may hold
    lifecycle: ExtenderLifecycle | None = None  # of a live cluster; None for a snapshot file
    observes: Callable[[], bool] = lambda: False  # returns whether refusals are only counted and logged now
    callers: RecentCallers = field(default_factory=RecentCallers)  # from where /filter is called
    decisions: DecisionLog = field(default_factory=DecisionLog)  # the latest decisions
    node_losses: NodeLosses | None = None  # which nodes can be lost; None if that is not predicted
    status: StatusSources | None = None  # what the status page reads; None without a status page


def state_of(request: Request, kind: type[_State]) -> _State:
    """Returns what the application of a request was made with.

    Raises:
        TypeError: the application was not made with a state of this kind
    """
    state = request.app.state.services
    if not isinstance(state, kind):
        raise TypeError(f"the application was made without {kind.__name__}")
    return state


async def _lease(request: Request) -> AsyncIterator[Lease]:
    """The request's share of the memory budget, until its answer is sent."""
    budget: MemoryBudget = request.app.state.services.budget
    with budget.lease(request.client.host if request.client else "") as lease:
        yield lease


RequestLease = Annotated[Lease, Depends(_lease)]
