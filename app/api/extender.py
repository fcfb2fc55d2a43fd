"""POST /filter, /prioritize, /preempt and /explain; GET /state and /decisions; whether /readyz is well."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Annotated

import structlog
from fastapi import APIRouter, Query, Request, Response
from starlette.types import Receive, Scope, Send

from app.api import errors, extender_codec as codec
from app.api.app_state import AppState
from app.api.request_body import RequestLease, read_body
from app.extender.verbs import FilterAnswer
from app.runtime.decision_thread import Turns, Urgency
from app.runtime.probes import CacheHealth, UnavailableError
from app.schemas.decision import (
    DecisionListAnswer,
    DecisionParameters,
    ExplainAnswer,
    UnresolvedAnswer,
    decision_list_answer,
    explain_json,
)
from app.schemas.state import StateAnswer, state_answer
from scheduler_core.decide.decision import Decision, DecisionResult
from scheduler_core.errors import ResolutionError
from scheduler_core.generic.cycle_state import UndecidableError

router = APIRouter(tags=["kube-scheduler"])
log = structlog.get_logger("extender")

_JSON = "application/json"
# Memory that an answer takes at most, in addition to that of /filter, measured: for each node.
_SCORE_BYTES = 1024
_EXPLANATION_BYTES = 2560


class _PiecewiseResponse(Response):
    """JSON text of some size that is sent in pieces."""

    def __init__(self, pieces: Iterable[bytes | memoryview], size: int) -> None:
        super().__init__(media_type=_JSON)
        self._pieces = pieces
        self.headers["content-length"] = str(size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        turns = Turns()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await turns.end_if_due()
        await send({"type": "http.response.body", "body": b""})


class _FilterResponse(_PiecewiseResponse):
    """A filter result whose nodes are sent as pieces of the request; `started` is when decoding began."""

    def __init__(self, head: bytes, nodes: codec.Pieces | None, tail: bytes, state: AppState, started: float) -> None:
        size = len(head) + (nodes.size if nodes else 0) + len(tail)
        super().__init__(chain([head], nodes or (), [tail]), size)
        self._state = state
        self._started = started

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        self._state.metrics.filter_duration.observe(perf_counter() - self._started)


@router.post(
    errors.FILTER_PATH,
    openapi_extra=errors.EXTENDER_ARGS,
    responses=errors.BODY_ERRORS,
    summary="Which nodes can hold all the pod's Longhorn volumes",
)
async def filter_verb(request: Request, lease: RequestLease) -> Response:
    """kube-scheduler's filter call: the nodes that fit, and why others do not.

    The answer has the form of the request.
    """
    state: AppState = request.app.state.services
    observes = state.observes()
    if not observes:
        state.verbs.check()
    body = await read_body(request, state.max_body, lease)
    started = perf_counter()
    # Not while the body is received or objects are fetched: a slow caller would stop everything else.
    with state.evaluator.expecting_decision():
        args = await codec.decode_filter(body, lease.charge, scheduling=state.verbs.reads_scheduling)
    try:
        answer = await state.verbs.filter(args.pod, args.candidates, request.is_disconnected)
    except (ResolutionError, UndecidableError, UnavailableError) as error:
        return _undecided_answer(state, args, error, started, observes=observes)
    _record_filter(request, args, answer, perf_counter() - started, observes=observes)
    unresolvable, resolvable = ({}, {}) if observes else answer.refusals()
    return _FilterResponse(*_result(args, unresolvable, resolvable), state, started)


def _undecided_answer(
    state: AppState,
    args: codec.ExtenderArgs | codec.PreemptionArgs,
    error: Exception,
    started: float,
    *,
    observes: bool,
) -> Response:
    """Records that a pod cannot be decided about, and returns the answer; raises the error if another process may
    answer. While refusals are only observed, every node fits, even if this process may not decide.
    """
    unavailable = isinstance(error, UnavailableError)
    if unavailable and not observes:
        raise error
    if isinstance(args, codec.ExtenderArgs):
        verb = "filter"
        count = len(args.candidates)
        state.metrics.count_request("error")
        log.warning("filter refused", pod=args.pod.key, uid=args.pod.uid, error=str(error))
        parts = _result(args, {}, {}) if observes else (codec.filter_result(None, {}, str(error)), None, b"")
        response: Response = _FilterResponse(*parts, state, started)
    else:
        verb = "preempt"
        count = len(args.victims)
        log.warning("preempt refused", pod=args.pod.key, uid=args.pod.uid, error=str(error))
        response = Response(codec.preemption_result(args.victims if observes else {}), media_type=_JSON)
    result = DecisionResult(count, error=str(error), seconds=perf_counter() - started, observed=observes)
    state.decisions.record(verb, args.pod, result)
    if unavailable:
        # The caller's next connection may reach a process that may decide.
        response.headers["Connection"] = "close"
    return response


def _result(
    args: codec.ExtenderArgs, unresolvable: Mapping[str, str], resolvable: Mapping[str, str]
) -> tuple[bytes, codec.Pieces | None, bytes]:
    """Returns the bytes before the nodes, the nodes, and those after, in the form of the request."""
    # Preemption may help on the `resolvable` nodes, and cannot on the `unresolvable` ones.
    refused = {**unresolvable, **resolvable} if resolvable else unresolvable
    if args.runs is None:
        names = [name for name in args.candidates if name not in refused]
        return codec.filter_result(names, unresolvable, failed=resolvable), None, b""
    head, tail = codec.filter_result_around(unresolvable, resolvable)
    return head, args.runs.select([name not in refused for name in args.candidates]), tail


def _record_filter(
    request: Request, args: codec.ExtenderArgs, answer: FilterAnswer, seconds: float, *, observes: bool
) -> None:
    state: AppState = request.app.state.services
    state.callers.record(request.client.host if request.client else "", whole_nodes=args.runs is not None)
    decision = answer.decision
    counted = state.metrics.count_decision(decision.reasons, decision.gave_up)
    state.metrics.count_unsafe_answer(decision.unsafe_reasons)
    state.metrics.policy_refusals.inc(len(answer.policy_refusals))
    refused = Counter({reason.text: count for reason, count in counted.items() if not reason.fits})
    refused.update(refusal.text for refusal in answer.policy_refusals.values())
    fitting = {reason.text: count for reason, count in counted.items() if reason.fits}
    fits = sum(fitting.values())
    if observes and not fits:
        state.metrics.would_refuse.inc()
    log.info(
        "observed" if observes else "filter",
        pod=args.pod.key,
        uid=args.pod.uid,
        volumes=len(decision.resolution.volumes),
        nodes=len(args.candidates),
        fits=fits,
        reasons=dict(sorted({**refused, **fitting}.items())),
        ms=round(seconds * 1000, 3),
    )
    result = DecisionResult(
        len(args.candidates), fits, _fitting_nodes(decision), refused, seconds=seconds, observed=observes
    )
    state.decisions.record("filter", args.pod, result)


def _fitting_nodes(decision: Decision) -> Iterator[str]:
    pairs = zip(decision.candidates, decision.reasons, strict=True)
    return (name for name, reason in pairs if reason.fits)


@router.post(
    "/prioritize",
    openapi_extra={**errors.EXTENDER_ARGS, **errors.HOST_PRIORITY_LIST},
    responses=errors.BODY_ERRORS,
    summary="How good each node is for the pod, from 0 to 10",
)
async def prioritize(request: Request, lease: RequestLease) -> Response:
    """kube-scheduler's prioritize call: a score for every requested node, in order.

    Nothing is offered or recorded. A pod that cannot be decided about has 0 everywhere, and so has every pod while refusals are only
    observed: kube-scheduler then chooses as if no extender had been asked.
    """
    state: AppState = request.app.state.services
    state.verbs.check()
    body = await read_body(request, state.max_body, lease)
    started = perf_counter()
    args = await codec.decode_filter(body, lease.charge, scheduling=state.verbs.reads_scheduling, names_only=True)
    lease.charge(_SCORE_BYTES * len(args.candidates))
    equal = dict.fromkeys(args.candidates, 0)
    try:
        scores = await state.verbs.scores(args.pod, args.candidates)
    except (ResolutionError, UndecidableError) as error:
        log.warning("prioritize refused", pod=args.pod.key, uid=args.pod.uid, error=str(error))
        return Response(codec.priority_list(equal), media_type=_JSON)
    ms = round((perf_counter() - started) * 1000, 3)
    log.info("prioritize", pod=args.pod.key, uid=args.pod.uid, nodes=len(equal), best=max([0, *scores.values()]), ms=ms)
    return Response(codec.priority_list(equal if state.observes() else scores), media_type=_JSON)


@router.post(
    "/preempt",
    openapi_extra=errors.EXTENDER_PREEMPTION_ARGS,
    responses=errors.BODY_ERRORS,
    summary="Where preemption could help the pod",
)
async def preempt(request: Request, lease: RequestLease) -> Response:
    """kube-scheduler's preempt call: keeps the nodes whose disks have room.

    Their victims stay as they are. Evicting pods frees no Longhorn space, so a node without room is dropped whatever its victims.
    """
    state: AppState = request.app.state.services
    observes = state.observes()
    if not observes:
        state.verbs.check()
    body = await read_body(request, state.max_body, lease)
    started = perf_counter()
    args = codec.decode_preempt(body, lease.charge, scheduling=state.verbs.reads_scheduling)
    try:
        decision = await state.verbs.preempt(args.pod, sorted(args.victims))
    except (ResolutionError, UndecidableError, UnavailableError) as error:
        return _undecided_answer(state, args, error, started, observes=observes)
    _record_preemption(state, args, decision, perf_counter() - started, observes=observes)
    fitting = set(args.victims) if observes else set(decision.fitting_nodes)
    victims = {name: entry for name, entry in args.victims.items() if name in fitting}
    return Response(codec.preemption_result(victims), media_type=_JSON)


def _record_preemption(
    state: AppState, args: codec.PreemptionArgs, decision: Decision, seconds: float, *, observes: bool
) -> None:
    refused = Counter(reason.text for reason in decision.reasons if not reason.fits)
    fits = len(decision.reasons) - refused.total()
    log.info("preempt", pod=args.pod.key, nodes=len(args.victims), fits=len(args.victims) if observes else fits)
    result = DecisionResult(
        len(args.victims), fits, _fitting_nodes(decision), refused, seconds=seconds, observed=observes
    )
    state.decisions.record("preempt", args.pod, result)


@router.post(
    "/explain",
    openapi_extra=errors.EXTENDER_ARGS,
    response_model=ExplainAnswer | UnresolvedAnswer,
    responses=errors.BODY_ERRORS,
    summary="Why the pod fits or does not, node by node",
)
async def explain(request: Request, lease: RequestLease) -> Response:
    """The decision of /filter, with plans and missing bytes.

    The answer about a pod that cannot be resolved is an error, with status 200 as from /filter. A node that fits has a plan, any other
    what it lacks.
    """
    state: AppState = request.app.state.services
    state.verbs.check()
    args = await codec.decode_filter(await read_body(request, state.max_body, lease), lease.charge)
    lease.charge(_EXPLANATION_BYTES * len(args.candidates))
    try:
        explanation = await state.verbs.explain(args.pod, args.candidates)
    except ResolutionError as error:
        return Response(codec.error_result(str(error)), media_type=_JSON)
    pieces = await state.evaluator.run(partial(explain_json, args.pod, explanation), Urgency.EXPLANATION)
    # Freeing the verdicts of thousands of nodes takes 15 ms: a turn of its own.
    await asyncio.sleep(0)
    del explanation
    await asyncio.sleep(0)
    return _PiecewiseResponse(pieces, sum(map(len, pieces)))


operation_router = APIRouter(tags=["operation"])


def readiness(app_state: AppState) -> CacheHealth:
    """Returns the answer of /readyz. Raises an UnavailableError if the cluster's state is not known well enough to
    decide.
    """
    lifecycle = app_state.lifecycle
    if lifecycle is None:
        return CacheHealth(status="ok")
    if lifecycle.readiness_problem:
        raise UnavailableError(lifecycle.readiness_problem)
    return CacheHealth(status="ok", unreadable=lifecycle.unreadable, refused_settings=lifecycle.refused_settings)


@operation_router.get(
    "/state",
    response_model=StateAnswer,
    responses=errors.error_responses(_503=errors.UNAVAILABLE),
    summary="Nodes, disks, what counts on each, and what is not settled",
)
async def state(request: Request, lease: RequestLease) -> Response:
    """What decisions read about disks, in bytes.

    In a cluster also which process answers, and what other pods will take.
    """
    app_state: AppState = request.app.state.services
    readiness(app_state)
    service = app_state.lifecycle.state() if app_state.lifecycle else None
    callers = app_state.callers.answers()
    answer = state_answer(app_state.evaluator.view, service, app_state.verbs.policy_answer(), callers)
    text = answer.model_dump_json(by_alias=True)
    lease.charge(len(text))
    return Response(text, media_type="application/json")


@operation_router.get(
    "/decisions",
    response_model=DecisionListAnswer,
    responses=errors.error_responses(_422="A parameter is not what is described here", _503=errors.UNAVAILABLE),
    summary="The latest decisions about pods",
)
async def decisions(
    request: Request, lease: RequestLease, parameters: Annotated[DecisionParameters, Query()]
) -> Response:
    """What /filter and /preempt of this process decided, the latest first.

    A page continues with `before`, whatever was decided meanwhile. Answers are forgotten when the process ends.
    """
    app_state: AppState = request.app.state.services
    page = app_state.decisions.page(parameters.query)
    answer = await app_state.evaluator.run(partial(decision_list_answer, page), Urgency.EXPLANATION)
    text = answer.model_dump_json(by_alias=True)
    lease.charge(len(text))
    return Response(text, media_type="application/json")
