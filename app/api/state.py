"""GET /state, and whether /readyz is well: what an administrator and a kubelet read."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.dependencies import AppState, RequestLease, state_of
from app.api.openapi import UNAVAILABLE, error_responses
from app.runtime.probes import CacheHealth, UnavailableError
from app.schemas.state import StateAnswer, state_answer

router = APIRouter(tags=["operation"])


def readiness(app_state: AppState) -> CacheHealth:
    """Returns the answer of /readyz.

    Raises:
        UnavailableError: the cluster's state is not known well enough to decide
    """
    problem = app_state.lifecycle.readiness_problem if app_state.lifecycle else ""
    if problem:
        raise UnavailableError(problem)
    return CacheHealth(status="ok", unreadable=app_state.lifecycle.unreadable if app_state.lifecycle else [])


@router.get(
    "/state",
    response_model=StateAnswer,
    responses=error_responses(_503=UNAVAILABLE),
    summary="Nodes, disks, what counts on each, and what is not settled",
)
async def state(request: Request, lease: RequestLease) -> Response:
    """What decisions read about disks, in bytes.

    In a cluster also which process answers, and what other pods will take.
    """
    app_state = state_of(request, AppState)
    readiness(app_state)
    service = app_state.lifecycle.state() if app_state.lifecycle else None
    callers = app_state.callers.answers()
    answer = state_answer(app_state.evaluator.view, service, app_state.verbs.policy_answer(), callers)
    text = answer.model_dump_json(by_alias=True)
    lease.charge(len(text))
    return Response(text, media_type="application/json")
