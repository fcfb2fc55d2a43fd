"""Reads a request's body: once, into one buffer, and never beyond the limit.

A body of full nodes is tens of megabytes, and copying it takes longer than deciding. So everything later is a view of this
buffer. The buffer grows with the bytes that arrive, an eighth ahead of them: a caller that announces much and sends nothing
costs no memory. A body that stops arriving is cut off (`app/memory_budget.py`).
"""

import codecs
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from app.api.errors import BodyTooLargeError, RequestError
from app.memory_budget import Lease, MemoryBudget


async def _lease(request: Request) -> AsyncIterator[Lease]:
    """The request's share of the memory budget, until its answer is sent."""
    budget: MemoryBudget = request.app.state.services.budget
    with budget.lease(request.client.host if request.client else "") as lease:
        yield lease


RequestLease = Annotated[Lease, Depends(_lease)]


_SLICE = 1 << 20


async def read_body(request: Request, limit: int, lease: Lease) -> bytearray:
    """Returns the whole body, which is UTF-8; `lease` is charged for it.

    Raises:
        BodyTooLargeError: it has or announces more than `limit` bytes
        BudgetExceededError: all requests together need too much memory
        RequestError: it is empty, incomplete, or not UTF-8
        SlowBodyError: it comes too slowly
    """
    too_large = BodyTooLargeError(f"the body is larger than {limit} bytes; see serve --max-body")
    # The server refuses a Content-Length that is no number.
    if int(request.headers.get("content-length", 0)) > limit:
        raise too_large
    body = bytearray()
    complete = False
    try:
        async with lease.receiving():
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit:
                    raise too_large
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
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, 0 if body.isascii() else len(body), _SLICE):
        try:
            decoder.decode(bytes(memoryview(body)[start : start + _SLICE]), final=start + _SLICE >= len(body))
        except UnicodeDecodeError as error:
            raise RequestError(f"the body is not UTF-8: {error.reason} near byte {start + error.start}") from error
    return body
