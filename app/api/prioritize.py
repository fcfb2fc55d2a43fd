"""POST /prioritize: decode, one call, encode."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Final

import structlog
from fastapi import APIRouter, Request, Response

from app.api.body import read_body
from app.api.dependencies import state_of
from app.api.extender_codec import FilterQuestion, decode_prioritize, priority_list
from app.api.openapi import EXTENDER_ARGS, HOST_PRIORITY_LIST
from scheduler_core.errors import ResolutionError

router = APIRouter(tags=["kube-scheduler"])
log = structlog.get_logger("extender")

_JSON: Final = "application/json"


@router.post(
    "/prioritize",
    openapi_extra={**EXTENDER_ARGS, **HOST_PRIORITY_LIST},
    summary="How good each node is for the pod, from 0 to 10",
)
async def prioritize(request: Request) -> Response:
    """kube-scheduler's prioritize call: a score for every node asked, in order; nothing is promised, nothing is recorded.

    A pod that cannot be decided about has 0 everywhere, and so has every pod while refusals are only observed: kube-scheduler then
    chooses as if nobody had been asked.
    """
    state = state_of(request)
    state.verbs.check()
    body = await read_body(request, state.max_body)
    started = perf_counter()
    question = decode_prioritize(body, whole=state.policy.from_file)
    try:
        scores = await state.policy.scores(question.pod, question.whole, question.candidates)
    except ResolutionError as error:
        log.warning("prioritize refused", pod=question.pod.key, uid=question.pod.uid, error=str(error))
        return _equal(question)
    _report(question, scores, perf_counter() - started)
    return _equal(question) if state.observes else Response(priority_list(scores), media_type=_JSON)


def _equal(question: FilterQuestion) -> Response:
    return Response(priority_list(dict.fromkeys(question.candidates, 0)), media_type=_JSON)


def _report(question: FilterQuestion, scores: Mapping[str, int], seconds: float) -> None:
    log.info(
        "prioritize",
        pod=question.pod.key,
        uid=question.pod.uid,
        nodes=len(question.candidates),
        best=max(scores.values(), default=0),
        ms=round(seconds * 1000, 3),
    )
