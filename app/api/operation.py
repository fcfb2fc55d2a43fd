"""GET /healthz, /readyz and /state: what an administrator and a kubelet ask."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from app.api.state import state_of
from app.services.presentation import StateAnswer, state_answer

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
    """Answers ok once there is a view of the cluster to decide from; a snapshot is there from the start."""
    state_of(request)
    return Health(status="ok")


@router.get("/state", response_model=StateAnswer, summary="Nodes, disks, and what counts on each")
async def state(request: Request) -> Response:
    """Everything a decision reads about disks, in bytes."""
    answer = state_answer(state_of(request).scheduling.view)
    return Response(answer.model_dump_json(by_alias=True), media_type="application/json")
