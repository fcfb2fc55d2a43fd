"""What the routes need, put into the application once by `bootstrap.create_app`."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from app.metrics import Metrics
from app.services.scheduling import Scheduling


@dataclass(frozen=True, slots=True)
class AppState:
    """The services and limits of one application.

    Attributes:
        max_body: bytes a request's body may have
    """

    scheduling: Scheduling
    metrics: Metrics
    max_body: int


def state_of(request: Request) -> AppState:
    """The application's state."""
    state = request.app.state.extender
    if not isinstance(state, AppState):
        raise TypeError("the application was not made by bootstrap.create_app")
    return state
