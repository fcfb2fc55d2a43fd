"""POST /filter, /preempt and /explain: decode, one call, encode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from time import perf_counter
from typing import Final

import structlog
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from app.api.body import read_body
from app.api.dependencies import AppState, state_of
from app.api.extender_codec import (
    FilterQuestion,
    decode_filter,
    decode_preempt,
    error_result,
    filter_result,
    filter_result_around,
    preemption_result,
)
from app.api.openapi import EXTENDER_ARGS, EXTENDER_PREEMPTION_ARGS
from app.api.raw_nodes import Pieces
from app.policy.in_force import Judged
from app.schemas.explain import ExplainAnswer, explain_answer
from scheduler_core.errors import ResolutionError
from scheduler_core.generic.cycle_state import UndecidableError

router = APIRouter(tags=["kube-scheduler"])
log = structlog.get_logger("extender")

_JSON: Final = "application/json"


class _Sent(Response):
    """A filter result whose nodes, if any, are sent as pieces of the request; `started` is when decoding began."""

    def __init__(self, head: bytes, nodes: Pieces | None, tail: bytes, state: AppState, started: float) -> None:
        super().__init__(media_type=_JSON)
        self._parts: tuple[Iterable[bytes | memoryview], ...] = ([head], nodes or (), [tail])
        self._state = state
        self._started = started
        self.headers["content-length"] = str(len(head) + (nodes.size if nodes else 0) + len(tail))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in chain.from_iterable(self._parts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        self._state.metrics.filter_duration.observe(perf_counter() - self._started)


@router.post("/filter", openapi_extra=EXTENDER_ARGS, summary="Which nodes can hold all the pod's Longhorn volumes")
async def filter_verb(request: Request) -> Response:
    """kube-scheduler's filter call: answers in the form asked, with a reason for every node that does not fit."""
    state = state_of(request)
    state.verbs.check()
    body = await read_body(request, state.max_body)
    started = perf_counter()
    question = decode_filter(body, whole=state.policy.from_file)
    try:
        found = await state.policy.filter(question.pod, question.whole, question.candidates, request.is_disconnected)
    except (ResolutionError, UndecidableError) as error:
        state.metrics.undecided()
        log.warning("filter refused", pod=question.pod.key, uid=question.pod.uid, error=str(error))
        if state.observes:
            return _Sent(*_answer(question, {}, {}), state, started)
        return _Sent(filter_result(None, {}, str(error)), None, b"", state, started)
    _report(state, question, found, perf_counter() - started)
    lasting, passing = ({}, {}) if state.observes else found.refused()
    return _Sent(*_answer(question, lasting, passing), state, started)


def _answer(
    question: FilterQuestion, lasting: Mapping[str, str], passing: Mapping[str, str]
) -> tuple[bytes, Pieces | None, bytes]:
    """The answer in the form of the question: what comes before the nodes, the nodes, and what comes after.

    Nodes are refused for `lasting` reasons, or for `passing` ones, which evicting pods may end.
    """
    refused = {**lasting, **passing} if passing else lasting
    if question.runs is None:
        names = [name for name in question.candidates if name not in refused]
        return filter_result(names, lasting, failed=passing), None, b""
    head, tail = filter_result_around(lasting, passing)
    return head, question.runs.keep([name not in refused for name in question.candidates]), tail


def _report(state: AppState, question: FilterQuestion, found: Judged, seconds: float) -> None:
    decision = found.decision
    counted = state.metrics.decided(decision.reasons, decision.gave_up)
    state.metrics.refused_by_policy(len(found.barred))
    reasons = Counter({reason.text: count for reason, count in counted.items()})
    reasons.update(refused.text for refused in found.barred.values())
    fits = sum(count for reason, count in counted.items() if reason.fits)
    if state.observes and not fits:
        state.metrics.would_refuse()
    log.info(
        "observed" if state.observes else "filter",
        pod=question.pod.key,
        uid=question.pod.uid,
        volumes=len(decision.resolution.volumes),
        nodes=len(question.candidates),
        fits=fits,
        reasons=dict(sorted(reasons.items())),
        ms=round(seconds * 1000, 3),
    )


@router.post("/preempt", openapi_extra=EXTENDER_PREEMPTION_ARGS, summary="Where preemption could help the pod")
async def preempt(request: Request) -> Response:
    """kube-scheduler's preempt call: keeps the nodes whose disks have room, and leaves their victims as they are.

    Evicting pods frees no Longhorn space, so a node without room is dropped whatever its victims.
    """
    state = state_of(request)
    state.verbs.check()
    question = decode_preempt(await read_body(request, state.max_body), whole=state.policy.from_file)
    try:
        decision = await state.policy.preempt(question.pod, question.whole, sorted(question.victims))
    except (ResolutionError, UndecidableError) as error:
        log.warning("preempt refused", pod=question.pod.key, uid=question.pod.uid, error=str(error))
        return Response(preemption_result(question.victims if state.observes else {}), media_type=_JSON)
    pairs = zip(decision.candidates, decision.reasons, strict=True)
    fitting = set(question.victims) if state.observes else {name for name, reason in pairs if reason.fits}
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
    state.verbs.check()
    question = decode_filter(await read_body(request, state.max_body))
    try:
        explanation = await state.verbs.explain(question.pod, question.candidates)
    except ResolutionError as error:
        return Response(error_result(str(error)), media_type=_JSON)
    answer = explain_answer(question.pod, explanation)
    return Response(answer.model_dump_json(by_alias=True), media_type=_JSON)
