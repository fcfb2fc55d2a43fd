"""Reading a request's body once, into one buffer of its size, and never more than the limit.

A body of full nodes is tens of megabytes; every copy of it costs more than deciding. So it is received into a bytearray
that is made in one go from Content-Length, and everything later is a view of that.
"""

from __future__ import annotations

import codecs
from typing import Final

from fastapi import Request
from starlette.requests import ClientDisconnect

from app.api.errors import BodyTooLargeError, RequestError

_SLICE: Final = 1 << 20


async def read_body(request: Request, limit: int) -> bytearray:
    """The whole body, checked to be UTF-8.

    Raises:
        BodyTooLargeError: it is, or says it is, larger than `limit` bytes
        RequestError: it is empty, cut off, or no UTF-8
    """
    announced = _announced(request, limit)
    body = bytearray(announced or 0)
    filled = 0
    try:
        async for chunk in request.stream():
            end = filled + len(chunk)
            if end > limit:
                raise _too_large(limit)
            body[filled:end] = chunk
            filled = end
    except ClientDisconnect as error:
        raise RequestError(f"the caller hung up after {filled} bytes") from error
    if filled < len(body):
        raise RequestError(f"the body has {filled} bytes, Content-Length announced {len(body)}")
    if not body:
        raise RequestError("the body is empty, expected JSON")
    if not body.isascii():
        _check_utf8(body)
    return body


def _announced(request: Request, limit: int) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return None
    # The server has refused anything that is no number before it comes here.
    length = int(text)
    if length > limit:
        raise _too_large(limit)
    return length


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
