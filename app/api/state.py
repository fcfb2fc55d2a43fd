"""GET /state and /decisions, and whether /readyz is well."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.api.dependencies import AppState, RequestLease, state_of
from app.api.errors import UNAVAILABLE, error_responses
from app.runtime.decision_thread import Urgency
from app.runtime.probes import CacheHealth, UnavailableError
from app.schemas.decision_answer import DecisionListAnswer, DecisionParameters, decision_list_answer
from app.schemas.state import StateAnswer, state_answer

router = APIRouter(tags=["operation"])


def readiness(app_state: AppState) -> CacheHealth:
    """Returns the answer of /readyz.

    Raises:
        UnavailableError: the cluster's state is not known well enough to decide
    """
    lifecycle = app_state.lifecycle
    if lifecycle is None:
        return CacheHealth(status="ok")
    if lifecycle.readiness_problem:
        raise UnavailableError(lifecycle.readiness_problem)
    return CacheHealth(status="ok", unreadable=lifecycle.unreadable, refused_settings=lifecycle.refused_settings)


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


@router.get(
    "/decisions",
    response_model=DecisionListAnswer,
    responses=error_responses(_422="A parameter is not what is described here", _503=UNAVAILABLE),
    summary="The latest decisions about pods",
)
async def decisions(
    request: Request, lease: RequestLease, parameters: Annotated[DecisionParameters, Query()]
) -> Response:
    """What /filter and /preempt of this process decided, the latest first.

    A page continues with `before`, whatever was decided meanwhile. Answers are forgotten when the process ends.
    """
    app_state = state_of(request, AppState)
    page = app_state.decisions.page(parameters.query)
    answer = await app_state.evaluator.run(partial(decision_list_answer, page), Urgency.EXPLANATION)
    text = answer.model_dump_json(by_alias=True)
    lease.charge(len(text))
    return Response(text, media_type="application/json")
