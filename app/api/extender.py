"""POST /filter, /preempt and /explain: decode, one call, encode."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import structlog
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from app.api.body import read_body
from app.api.documentation import EXTENDER_ARGS, EXTENDER_PREEMPTION_ARGS
from app.api.state import AppState, state_of
from app.api.wire import (
    FilterQuestion,
    decode_filter,
    decode_preempt,
    error_result,
    filter_result,
    filter_result_around,
    preemption_result,
)
from app.services.presentation import ExplainAnswer, explain_answer
from scheduler_core.errors import ResolutionError
from scheduler_core.verbs import Decision

router = APIRouter(tags=["kube-scheduler"])
log = structlog.get_logger("extender")

_JSON: Final = "application/json"


class _Sent(Response):
    """An answer in pieces that are sent as they are; `started` is when decoding began, for the filter histogram."""

    def __init__(self, pieces: list[bytes | memoryview], state: AppState, started: float) -> None:
        super().__init__(media_type=_JSON)
        self._pieces = pieces
        self._state = state
        self._started = started
        self.headers["content-length"] = str(sum(len(piece) for piece in pieces))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        self._state.metrics.filter_duration.observe(perf_counter() - self._started)


@router.post("/filter", openapi_extra=EXTENDER_ARGS, summary="Which nodes can hold all the pod's Longhorn volumes")
async def filter_verb(request: Request) -> Response:
    """kube-scheduler's filter call: answers in the form asked, with a reason for every node that does not fit."""
    state = state_of(request)
    body = await read_body(request, state.max_body)
    started = perf_counter()
    question = decode_filter(body)
    try:
        decision = await state.scheduling.filter(question.pod, question.candidates)
    except ResolutionError as error:
        state.metrics.undecided()
        log.warning("filter refused", pod=question.pod.key, error=str(error))
        return _Sent([filter_result(None, {}, str(error))], state, started)
    _report(state, question, decision, perf_counter() - started)
    return _Sent(_pieces(question, decision), state, started)


def _pieces(question: FilterQuestion, decision: Decision) -> list[bytes | memoryview]:
    pairs = list(zip(decision.candidates, decision.reasons, strict=True))
    refused = {name: reason.text for name, reason in pairs if not reason.fits}
    if question.runs is None:
        return [filter_result([name for name, reason in pairs if reason.fits], refused)]
    head, tail = filter_result_around(refused)
    return [head, *question.runs.pieces([reason.fits for reason in decision.reasons]), tail]


def _report(state: AppState, question: FilterQuestion, decision: Decision, seconds: float) -> None:
    counted = state.metrics.decided(decision.reasons, decision.gave_up)
    log.info(
        "filter",
        pod=question.pod.key,
        uid=question.pod.uid,
        volumes=len(decision.resolution.volumes),
        nodes=len(decision.candidates),
        fits=sum(count for reason, count in counted.items() if reason.fits),
        reasons={reason.text: counted[reason] for reason in sorted(counted, key=lambda reason: reason.text)},
        ms=round(seconds * 1000, 3),
    )


@router.post("/preempt", openapi_extra=EXTENDER_PREEMPTION_ARGS, summary="Where preemption could help the pod")
async def preempt(request: Request) -> Response:
    """kube-scheduler's preempt call: keeps the nodes whose disks have room, and leaves their victims as they are.

    Evicting pods frees no Longhorn space, so a node without room is dropped whatever its victims.
    """
    state = state_of(request)
    question = decode_preempt(await read_body(request, state.max_body))
    try:
        decision = await state.scheduling.filter(question.pod, sorted(question.victims))
    except ResolutionError as error:
        log.warning("preempt refused", pod=question.pod.key, error=str(error))
        return Response(preemption_result({}), media_type=_JSON)
    fitting = {name for name, reason in zip(decision.candidates, decision.reasons, strict=True) if reason.fits}
    log.info("preempt", pod=question.pod.key, nodes=len(question.victims), fits=len(fitting))
    kept = {name: victims for name, victims in question.victims.items() if name in fitting}
    return Response(preemption_result(kept), media_type=_JSON)


@router.post(
    "/explain",
    openapi_extra=EXTENDER_ARGS,
    response_model=ExplainAnswer,
    summary="Why the pod fits or does not, node by node",
)
async def explain(request: Request) -> Response:
    """The decision /filter would give, with a plan for each node that fits and the missing bytes for each that does not."""
    state = state_of(request)
    question = decode_filter(await read_body(request, state.max_body))
    try:
        explanation = await state.scheduling.explain(question.pod, question.candidates)
    except ResolutionError as error:
        return Response(error_result(str(error)), media_type=_JSON)
    answer = explain_answer(question.pod, explanation)
    return Response(answer.model_dump_json(by_alias=True), media_type=_JSON)
