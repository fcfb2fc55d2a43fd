"""GET /healthz, /readyz and /state: what an administrator and a kubelet ask."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from app.api.dependencies import state_of
from app.extender.availability import UnavailableError
from app.schemas.state import StateAnswer, state_answer

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    """Whether the process is well."""

    status: str


@router.get("/healthz", summary="Whether the process is alive")
async def healthz() -> Health:
    """Answers as long as the event loop turns; depends on nothing outside the process."""
    return Health(status="ok")


@router.get("/readyz", summary="Whether questions can be answered")
async def readyz(request: Request) -> Health:
    """Answers ok while the cluster's state is known well enough to decide; a snapshot's always is."""
    live = state_of(request).live
    problem = live.readiness_problem if live else ""
    if problem:
        raise UnavailableError(problem)
    return Health(status="ok")


@router.get("/state", response_model=StateAnswer, summary="Nodes, disks, what counts on each, and what is not settled")
async def state(request: Request) -> Response:
    """Everything a decision reads about disks, in bytes, and beside a cluster who answers and what other pods will take."""
    app_state = state_of(request)
    if app_state.live is not None and app_state.live.readiness_problem:
        raise UnavailableError(app_state.live.readiness_problem)
    live = app_state.live.state() if app_state.live else None
    answer = state_answer(app_state.scheduling.view, live, app_state.policy.answer())
    return Response(answer.model_dump_json(by_alias=True), media_type="application/json")
