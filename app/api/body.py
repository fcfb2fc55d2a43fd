"""Reads a request's body once, into one buffer, and never more than the limit.

A body of full nodes is tens of megabytes, and copying it takes longer than deciding. So everything later is a view of this
buffer. The buffer grows to Content-Length only as the body arrives, so that a caller that announces much and sends
nothing costs no memory.
"""

from __future__ import annotations

import codecs
from typing import Final

from fastapi import Request
from starlette.requests import ClientDisconnect

from app.api.errors import BodyTooLargeError, RequestError

_SLICE: Final = 1 << 20
# Bytes of memory for each byte received.
_CREDIT: Final = 64


async def read_body(request: Request, limit: int) -> bytearray:
    """Returns the whole body, which is UTF-8.

    Raises:
        BodyTooLargeError: it has or announces more than `limit` bytes
        RequestError: it is empty, incomplete, or not UTF-8
    """
    # The server refuses a Content-Length that is no number.
    announced = int(request.headers.get("content-length", limit))
    if announced > limit:
        raise _too_large(limit)
    body = bytearray(min(_SLICE, announced))
    filled = 0
    try:
        async for chunk in request.stream():
            end = filled + len(chunk)
            if end > limit:
                raise _too_large(limit)
            if end > len(body):
                body = _enlarge(body, filled, min(_CREDIT * end, announced))
            body[filled:end] = chunk
            filled = end
    except ClientDisconnect as error:
        raise RequestError(f"the caller hung up after {filled} bytes") from error
    del body[filled:]
    if not body:
        raise RequestError("the body is empty, expected JSON")
    if not body.isascii():
        _check_utf8(body)
    return body


def _enlarge(body: bytearray, filled: int, size: int) -> bytearray:
    larger = bytearray(size)
    larger[:filled] = memoryview(body)[:filled]
    return larger


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
