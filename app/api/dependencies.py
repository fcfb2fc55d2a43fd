"""What the routes need: parts that `bootstrap` puts into the application once, and a request's body, which is read once,
into one buffer, and never beyond the limit.

A body of full nodes is tens of megabytes, and copying it takes longer than deciding. So everything later is a view of this
buffer. The buffer grows with the bytes that arrive, an eighth ahead of them: a caller that announces much and sends nothing
costs no memory. A body that stops arriving is cut off (`app/runtime/memory_budget.py`).
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from app.api.errors import BodyTooLargeError, RequestError
from app.decisions.evaluator import Evaluator
from app.extender.decision_log import DecisionLog, RecentCallers
from app.extender.metrics import Metrics
from app.extender.node_losses import NodeLosses
from app.extender.status_reporter import StatusSources
from app.extender.verbs import Verbs
from app.runtime.memory_budget import Lease, MemoryBudget

if TYPE_CHECKING:
    from app.extender.lifecycle import ExtenderLifecycle


_State = TypeVar("_State")


@dataclass(frozen=True, slots=True)
class AppState:
    """The services and limits of one application."""

    evaluator: Evaluator
    verbs: Verbs
    metrics: Metrics
    max_body: int  # the largest body of a request, in bytes
    budget: MemoryBudget  # the memory that all requests together may hold
    lifecycle: ExtenderLifecycle | None = None  # of a live cluster; None for a snapshot file
    observes: Callable[[], bool] = lambda: False  # returns whether refusals are only counted and logged now
    callers: RecentCallers = field(default_factory=RecentCallers)  # from where /filter is called
    decisions: DecisionLog = field(default_factory=DecisionLog)  # the latest decisions
    node_losses: NodeLosses | None = None  # which nodes can be lost; None if that is not predicted
    status: StatusSources | None = None  # what the status page reads; None without a status page


def state_of(request: Request, kind: type[_State]) -> _State:
    """Returns what the application of a request was made with.

    Raises:
        TypeError: the application was not made with a state of this kind
    """
    state = request.app.state.services
    if not isinstance(state, kind):
        raise TypeError(f"the application was made without {kind.__name__}")
    return state


async def _lease(request: Request) -> AsyncIterator[Lease]:
    """The request's share of the memory budget, until its answer is sent."""
    budget: MemoryBudget = request.app.state.services.budget
    with budget.lease(request.client.host if request.client else "") as lease:
        yield lease


RequestLease = Annotated[Lease, Depends(_lease)]


_SLICE: Final = 1 << 20


async def read_body(request: Request, limit: int, lease: Lease) -> bytearray:
    """Returns the whole body, which is UTF-8; `lease` is charged for it.

    Raises:
        BodyTooLargeError: it has or announces more than `limit` bytes
        BudgetExceededError: all requests together need too much memory
        RequestError: it is empty, incomplete, or not UTF-8
        SlowBodyError: it comes too slowly
    """
    # The server refuses a Content-Length that is no number.
    if int(request.headers.get("content-length", 0)) > limit:
        raise _too_large(limit)
    body = bytearray()
    complete = False
    try:
        async with lease.receiving():
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit:
                    raise _too_large(limit)
                # bytearray allocates an eighth more than it holds.
                await lease.charge_arrived(len(chunk) + len(chunk) // 8)
                body += chunk
                lease.progress(len(chunk))
        complete = True
    except ClientDisconnect as error:
        raise RequestError(f"the caller hung up after {len(body)} bytes") from error
    finally:
        # The traceback of an error would keep the body until it is answered.
        if not complete:
            body.clear()
    if not body:
        raise RequestError("the body is empty, expected JSON")
    if not body.isascii():
        _check_utf8(body)
    return body


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {limit} bytes; see serve --max-body")


def _check_utf8(body: bytearray) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    for start in range(0, len(body), _SLICE):
        try:
            decoder.decode(bytes(view[start : start + _SLICE]), final=start + _SLICE >= len(body))
        except UnicodeDecodeError as error:
            raise RequestError(f"the body is not UTF-8: {error.reason} near byte {start + error.start}") from error
