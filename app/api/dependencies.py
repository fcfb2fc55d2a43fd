"""What the routes need, put into the application once by `bootstrap.create_app`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

from app.decisions.evaluator import Scheduling
from app.extender.metrics import Metrics
from app.extender.verbs import Verbs
from app.policy.in_force import PolicyVerbs

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.extender.lifecycle import Live


@dataclass(frozen=True, slots=True)
class AppState:
    """The services and limits of one application.

    Attributes:
        max_body: bytes a request's body may have
        policy: the verbs that a policy takes part in
        live: what a live cluster adds; None over a snapshot file
        observes: whether refusals are only counted and logged
    """

    scheduling: Scheduling
    verbs: Verbs
    metrics: Metrics
    max_body: int
    policy: PolicyVerbs
    live: Live | None = None
    observes: bool = False


def state_of(request: Request) -> AppState:
    """The application's state."""
    state = request.app.state.extender
    if not isinstance(state, AppState):
        raise TypeError("the application was not made by bootstrap.create_app")
    return state
