"""HTTP/1.1 with limits, which neither uvicorn nor its parser has.

A request's head is limited in size and time, trailers and chunk extensions in size, pipelined requests and small chunks in number. An
answer that the caller does not read is cut off. How fast a body must arrive is a matter of its reader (`app/memory_budget.py`).

Each turn of the event loop is shared among the connections whose input is to be parsed. uvloop hands over up to 256 KiB
of every connection in one turn. Chunks of one byte make that 40,000 calls of the parser.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from time import perf_counter
from typing import Any

import httptools
import structlog
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.runtime.connections import CallerLog, Connections, owner_of

log = CallerLog(structlog.get_logger("server"))

# Request line and headers, or trailers.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
# Go's HTTP client keeps idle connections for 90 s and does not repeat a POST that meets a closing server.
KEEP_ALIVE_SECONDS = 120
# How long a connection may be in each phase: the head of a request arrives, none does, the rest of a body follows its answer.
_PHASE_SECONDS = {"headers": 10.0, "idle": KEEP_ALIVE_SECONDS, "body": 5.0}
# An answer must be read: this much in each period, or all of it.
ANSWER_SECONDS = 5.0
ANSWER_BYTES = 1024**2
# kube-scheduler sends one request at a time.
MAX_PIPELINED = 4
# Bytes of a chunked body that are not content: sizes, extensions, trailers. A chunk for each byte needs 5 for each.
_FRAMING_PER_BYTE = 8
# Every chunk costs several calls, however small it is; so chunks must have this size on average, after the first bytes of a body.
MIN_CHUNK_BYTES = 64
FREE_CHUNK_BYTES = 64 * 1024
# What is parsed at once, unless it is known to be one piece.
_SLICE_BYTES = 4096
# After a refusal, so much input is discarded for so long: closing at once could destroy the answer on its way.
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1024**2
# How long input is parsed in each turn of the event loop.
TURN_SECONDS = 0.006
# What a slice, and the head of a request, take beyond that in the same turn: a reader that wakes up, a request that begins.
_SLICE_SECONDS = 0.0001
REQUEST_SECONDS = 0.0005


class _RefusedError(Exception):
    """A request that breaks a limit of the protocol."""

    def __init__(self, status: HTTPStatus, problem: str) -> None:
        super().__init__(problem)
        self.status = status


def _head_too_large() -> _RefusedError:
    limits = f"more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} fields"
    problem = f"the request line and headers, or the trailers, have {limits}"
    return _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem)


class _HeldFlow(FlowControl):
    """Does not read while input of the connection waits to be parsed."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits."""

    def __init__(
        self, connections: Connections, turns: "ParserTurns", keeps_idle: Callable[[], bool], **uvicorn: Any
    ) -> None:
        super().__init__(**uvicorn)
        self._connections = connections
        self._turns = turns
        self._keeps_idle = keeps_idle
        self.owner = ""
        self._flow: _HeldFlow
        self._unparsed = memoryview(b"")
        self._refusal: _RefusedError | None = None
        self._discarded_bytes = 0
        # One of `_PHASE_SECONDS`, or "" while a request is served, and when it began.
        self._phase = ""
        self._phase_began = 0.0
        self._reset_counts()
        # Of the data that is being parsed: bytes that are the content of a body.
        self._content_bytes = 0
        self._message_complete = True
        # Whether there is a cycle, of this request or of an earlier one.
        self._serving = False
        # When the caller last read a part of the answer, and how much waited then.
        self._unread_since: float | None = None
        self._unread_bytes = 0

    @property
    def answering(self) -> bool:
        return self._serving and self._message_complete and not self.cycle.response_complete

    def expiry(self, now: float) -> str:
        """Returns why the connection must end now, or ""."""
        if self._phase and now - self._phase_began >= _PHASE_SECONDS[self._phase]:
            return self._phase
        if self._phase == "idle" and not self._keeps_idle():
            return "idle"
        if self._unread_since is not None and now - self._unread_since >= ANSWER_SECONDS:
            waiting = self.transport.get_write_buffer_size()
            if self._unread_bytes - waiting < min(ANSWER_BYTES, self._unread_bytes):
                return "answer"
            self._unread_since = now
            self._unread_bytes = waiting
        return ""

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._phase_began = self.loop.time()

    def abort(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn
        """Begins to count the connection."""
        super().connection_made(transport)
        self.flow = self._flow = _HeldFlow(transport)
        self.owner = owner_of(self.client[0] if self.client else "")
        self._enter("idle")
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses what arrived, within the limits."""
        if self._refusal is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _LINGER_BYTES:
                self.transport.close()
            return
        self._connections.touch(self)
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._turns.parse(self)

    def parse_slice(self) -> bool:
        """Parses a little of the input that waits; returns whether there is more."""
        if self._is_over():
            self._unparsed = memoryview(b"")
            return False
        one_piece = self._phase != "headers" and not self._message_complete and not self._chunked
        size = len(self._unparsed) if one_piece else _SLICE_BYTES
        data, self._unparsed = self._unparsed[:size], self._unparsed[size:]
        self._content_bytes = 0
        self._feed(data)
        if not self._is_over():
            self._check_sizes(len(data))
        return len(self._unparsed) > 0

    def _is_over(self) -> bool:
        return self._refusal is not None or self.transport.is_closing()

    def hold(self) -> None:
        self._flow.held = True
        if not self.transport.is_closing():
            self._flow.pause_reading()

    def release(self) -> None:
        """Reads from the connection again, unless uvicorn has stopped it."""
        self._flow.held = False
        if self.transport.is_closing():
            return
        reads_body = not self._serving or self.cycle.response_complete or len(self.cycle.body) <= HIGH_WATER_LIMIT
        # After a refusal the rest is read and discarded.
        if self._refusal is not None or (reads_body and not self.pipeline):
            self._flow.resume_reading()

    def _feed(self, data: memoryview) -> None:
        # As uvicorn's data_received, without its log lines.
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade:
            return

    def _check_sizes(self, size: int) -> None:
        if self._phase == "headers":
            self._head_bytes += size
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_head_too_large())
        elif not self._message_complete:
            self._framing_bytes += size - self._content_bytes
            problem = self._chunk_problem()
            if problem:
                self._refuse(_RefusedError(HTTPStatus.BAD_REQUEST, problem))

    def _chunk_problem(self) -> str:
        if self._framing_bytes > 2 * MAX_HEAD_BYTES + _FRAMING_PER_BYTE * self._body_bytes:
            return "the chunks of the body have too many extensions or trailers"
        size = self._framing_bytes + self._body_bytes
        if size > FREE_CHUNK_BYTES and self._body_bytes < MIN_CHUNK_BYTES * self._chunks:
            return f"the chunks of the body are too small: less than {MIN_CHUNK_BYTES} bytes on average"
        return ""

    def on_message_begin(self) -> None:
        """Begins a request, unless too many wait."""
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refusal = _RefusedError(HTTPStatus.BAD_REQUEST, f"more than {MAX_PIPELINED} requests wait already")
            raise self._refusal
        super().on_message_begin()
        self._enter("headers")
        self._message_complete = False
        self._reset_counts()

    def _reset_counts(self) -> None:
        # Of the head that is arriving: everything, and what the parser has reported.
        self._head_bytes = 0
        self._field_bytes = 0
        self._fields = 0
        self._framing_bytes = 0
        self._body_bytes = 0
        self._chunked = False
        self._chunks = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes one header, or drops one trailer."""
        self._fields += 1
        self._count_head(len(name) + len(value))
        # Trailers are dropped: no route reads them.
        if self._phase == "headers":
            self._chunked = self._chunked or name.lower() == b"transfer-encoding"
            super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._field_bytes += size
        if self._field_bytes > MAX_HEAD_BYTES or self._fields > MAX_HEADERS:
            self._refusal = _head_too_large()
            raise self._refusal

    def on_headers_complete(self) -> None:
        """Ends the head."""
        super().on_headers_complete()
        self._turns.charge(REQUEST_SECONDS)
        self._serving = True
        self._enter("")
        # From now on these count trailers.
        self._field_bytes = 0
        self._fields = 0

    def on_chunk_complete(self) -> None:
        self._chunks += 1

    def on_body(self, body: bytes) -> None:
        """Takes a part of the body."""
        self._body_bytes += len(body)
        self._content_bytes += len(body)
        if not self.cycle.body:
            # uvicorn would copy it twice, into a bytearray and out of it.
            self.cycle.body = body  # type: ignore[assignment] # bytes can do what uvicorn does with it
            body = b""
        elif isinstance(self.cycle.body, bytes):
            # Each part that is added to bytes would copy them.
            self.cycle.body = bytearray(self.cycle.body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends the request."""
        super().on_message_complete()
        self._message_complete = True
        self._enter("idle" if self.cycle.response_complete else "")

    def on_response_complete(self) -> None:
        """Ends the answer; the connection is idle, or the rest of the body is awaited."""
        super().on_response_complete()
        if not self.pipeline and self._phase != "headers":
            self._enter("idle" if self._message_complete else "body")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since = self.loop.time()
        self._unread_bytes = self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or _RefusedError(HTTPStatus.BAD_REQUEST, msg))

    def _refuse(self, refusal: _RefusedError) -> None:
        """Answers, and closes the connection once the caller can have read the answer."""
        self._refusal = refusal
        self._enter("")
        log.warning("refused connection", client=self.owner, status=refusal.status.value, error=str(refusal))
        self._connections.metrics.ended.count("malformed" if refusal.status is HTTPStatus.BAD_REQUEST else "headers")
        if not self._can_answer():
            self.transport.close()
            return
        body = json.dumps({"error": str(refusal)}).encode()
        status = f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}"
        fields = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
        self.transport.write(f"{status}\r\n{fields}\r\n\r\n".encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _can_answer(self) -> bool:
        """Whether no other answer has begun; the application's is dropped then."""
        if not self._serving or self.cycle.response_complete:
            return True
        if self.pipeline or self.cycle.response_started:
            return False
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        return True


class ParserTurns:
    """The connections whose input waits, in the order in which each parses one slice."""

    def __init__(self) -> None:
        self._waiting: deque[LimitedProtocol] = deque()
        self._left = TURN_SECONDS
        self._scheduled = False

    def parse(self, parser: LimitedProtocol) -> None:
        """Parses the input of a connection, now or in later turns."""
        if parser in self._waiting:
            return
        more = True
        while more and not self._waiting and self._left > 0:
            more = self._parse_slice(parser)
        if not more:
            return
        parser.hold()
        self._waiting.append(parser)

    def charge(self, seconds: float) -> None:
        """Takes time of this turn for what a parser has begun."""
        self._left -= seconds

    def _parse_slice(self, parser: LimitedProtocol) -> bool:
        began = perf_counter()
        more = parser.parse_slice()
        self._left -= perf_counter() - began + _SLICE_SECONDS
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)
        return more

    def _begin_turn(self) -> None:
        self._scheduled = False
        self._left = TURN_SECONDS
        while self._waiting and self._left > 0:
            parser = self._waiting.popleft()
            if self._parse_slice(parser):
                self._waiting.append(parser)
            else:
                parser.release()
