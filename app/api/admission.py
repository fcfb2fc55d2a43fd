"""The placement guard's own application: POST /review, which API servers call when Longhorn writes a replica's place.

It takes and gives an AdmissionReview of admission.k8s.io/v1. Every review that can be read is allowed: the guard may change a
placement, and never reject one. An error, a review that takes too long, and a process that does not lead leave it as it is.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol

import msgspec
import structlog
from fastapi import APIRouter, Depends, FastAPI, Request, Response

from app.api.body import read_body
from app.api.errors import RequestError, install_error_handlers
from app.extender.availability import Availability
from app.extender.metrics import Metrics
from app.runtime.memory_budget import Lease, MemoryBudget

log = structlog.get_logger("admission")

PATH: Final = "/review"
MAX_BODY: Final = 1024**2
# Less than the second that API servers wait (timeoutSeconds of the webhook): a later answer would be lost.
REVIEW_SECONDS: Final = 0.8
_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
# What decoded JSON takes at most, as a multiple of its text: small objects and keys.
_DECODED_FACTOR: Final = 32

router = APIRouter()


class PlacementReviewer(Protocol):
    """Decides about the placements that Longhorn writes."""

    async def review(self, request: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Returns the JSON patch (RFC 6902) for the object of a review, or nothing to leave it alone.

        It is called only while this process leads, and what it returns is dropped if the process leads no more by then. It is cancelled
        after `REVIEW_SECONDS`; whatever it raises leaves the object alone.

        Args:
            request: the field ``request`` of the AdmissionReview, decoded; its ``uid`` is a text
        """


class _Review(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GuardState:
    """What the route needs.

    Attributes:
        refusal: returns why this process must not change a placement now, or ""
        budget: the memory that all requests of the process together may hold
    """

    reviewer: PlacementReviewer
    refusal: Availability
    metrics: Metrics
    budget: MemoryBudget


def guard_application(state: GuardState) -> FastAPI:
    """Returns the application, which has one route."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.guard = state
    app.include_router(router)
    install_error_handlers(app)
    return app


def _state(request: Request) -> GuardState:
    state = request.app.state.guard
    if not isinstance(state, GuardState):
        raise TypeError("the application was not made by guard_application")
    return state


async def _lease(request: Request) -> AsyncIterator[Lease]:
    with _state(request).budget.lease(request.client.host if request.client else "") as lease:
        yield lease


@router.post(PATH)
async def review(request: Request, lease: Annotated[Lease, Depends(_lease)]) -> Response:
    """Answers one AdmissionReview."""
    state = _state(request)
    try:
        asked = _decode_review(await read_body(request, MAX_BODY, lease), lease)
    except RequestError:
        state.metrics.count_review("refused")
        raise
    patch = await _reviewed(state, asked)
    return Response(_encode_answer(asked["uid"], patch), media_type="application/json")


def _decode_review(body: bytearray, lease: Lease) -> dict[str, Any]:
    """Returns the request of an AdmissionReview.

    Raises:
        RequestError: it is none, or of another version
        BudgetExceededError: there is not enough memory to decode it
    """
    lease.charge(_DECODED_FACTOR * len(body))
    try:
        decoded = msgspec.json.decode(body, type=_Review)
    except msgspec.ValidationError as error:
        raise RequestError(f"the body is no {_KIND}: {error}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if (decoded.api_version, decoded.kind) != (_API_VERSION, _KIND):
        found = f"{decoded.api_version or 'no apiVersion'}, {decoded.kind or 'no kind'}"
        raise RequestError(f"expected {_API_VERSION}, {_KIND}, got {found[:200]}")
    if decoded.request is None:
        raise RequestError("request is missing or null")
    uid = decoded.request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise RequestError("request.uid is missing or no text")
    return decoded.request


async def _reviewed(state: GuardState, asked: dict[str, Any]) -> bytes:
    """Returns the patch as JSON; none after an error, and while another process may lead."""
    if state.refusal():
        state.metrics.count_review("idle")
        return b""
    try:
        async with asyncio.timeout(REVIEW_SECONDS):
            operations = await state.reviewer.review(asked)
        patch = msgspec.json.encode(operations) if operations else b""
    except TimeoutError:
        log.warning("review took too long, the placement stays", uid=asked["uid"], seconds=REVIEW_SECONDS)
        state.metrics.count_review("failed")
        return b""
    except Exception:
        # Whatever it is, Longhorn goes on.
        log.exception("review failed, the placement stays", uid=asked["uid"])
        state.metrics.count_review("failed")
        return b""
    if state.refusal():
        state.metrics.count_review("idle")
        return b""
    state.metrics.count_review("answered")
    return patch


def _encode_answer(uid: str, patch: bytes) -> bytes:
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": b64encode(patch).decode()}
    return msgspec.json.encode({"apiVersion": _API_VERSION, "kind": _KIND, "response": response})
