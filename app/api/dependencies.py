"""What the routes need; `bootstrap` puts it into the application once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from app.decisions.evaluator import Evaluator
from app.extender.metrics import Metrics
from app.extender.verbs import Verbs
from app.runtime.memory_budget import Lease, MemoryBudget

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.extender.lifecycle import ExtenderLifecycle


@dataclass(frozen=True, slots=True)
class AppState:
    """The services and limits of one application.

    Attributes:
        max_body: the largest body of a request, in bytes
        budget: the memory that all requests together may hold
        lifecycle: of a live cluster; None for a snapshot file
        observes: whether refusals are only counted and logged
    """

    evaluator: Evaluator
    verbs: Verbs
    metrics: Metrics
    max_body: int
    budget: MemoryBudget
    lifecycle: ExtenderLifecycle | None = None
    observes: bool = False


def state_of(request: Request) -> AppState:
    """Returns the application's state."""
    state = request.app.state.extender
    if not isinstance(state, AppState):
        raise TypeError("the application was not made by app.bootstrap")
    return state


async def _lease(request: Request) -> AsyncIterator[Lease]:
    """The request's share of the memory budget, until its answer is sent."""
    with state_of(request).budget.lease(request.client.host if request.client else "") as lease:
        yield lease


RequestLease = Annotated[Lease, Depends(_lease)]
