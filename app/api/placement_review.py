"""The placement guard's own application: POST /review.

API servers call it when Longhorn writes a replica's place. It takes and gives an AdmissionReview of
admission.k8s.io/v1. Every review that can be read is allowed: the guard may change a placement, and never reject one.
An error, a review that takes too long, and a process that does not lead leave it as it is.
"""

from collections.abc import Callable

import msgspec
import structlog
from fastapi import APIRouter, FastAPI, Request, Response

from app.api import errors, request_body
from app.extender.guard import PlacementGuard
from app.extender.metrics import Metrics
from app.memory_budget import MemoryBudget
from app.runtime.probes import Availability
from scheduler_core.convert import admission
from scheduler_core.errors import ObjectError
from scheduler_core.structs import Struct

log = structlog.get_logger("admission")

PATH = "/review"
MAX_BODY = 1024**2
# What decoded JSON takes at most, as a multiple of its text: small objects and keys.
_DECODED_FACTOR = 32

# API servers keep connections, and new ones go where the Service leads. A leader's connections end when it no longer leads
# (`HttpServer.keeps_idle`). A process that does not lead keeps none, because it may be the next leader: both ports would then lead to it.
_LAST_ANSWER = {"Connection": "close"}

router = APIRouter()


class AdmissionState(Struct, frozen=True):
    """What the route needs."""

    reviewer: PlacementGuard
    refusal: Availability  # returns why this process reviews no placement now, or ""
    keeps_connections: Callable[[], bool]
    metrics: Metrics
    budget: MemoryBudget  # the memory that all requests of the process together may hold


def guard_application(state: AdmissionState) -> FastAPI:
    """Returns the application, which has one route."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = state
    app.include_router(router)
    errors.install_error_handlers(app)
    return app


@router.post(PATH)
async def review(request: Request, lease: request_body.RequestLease) -> Response:
    """Answers one AdmissionReview."""
    state: AdmissionState = request.app.state.services
    try:
        body = await request_body.read_body(request, MAX_BODY, lease)
        lease.charge(_DECODED_FACTOR * len(body))
        asked = _decode_review(body)
    except errors.RequestError:
        state.metrics.guard_reviews.count("refused")
        raise
    answer = admission.admission_response(asked.uid, await _review(state, asked))
    headers = None if state.keeps_connections() else _LAST_ANSWER
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=headers)


def _decode_review(body: bytearray) -> admission.AdmissionRequest:
    """Returns the request of an AdmissionReview, or raises a RequestError if it is none, or of another version."""
    try:
        return admission.admission_request(msgspec.json.decode(body))
    except RecursionError as error:
        raise errors.RequestError("the body is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise errors.RequestError(f"the body is not JSON: {error}") from error
    except ObjectError as error:
        raise errors.RequestError(str(error)) from error


async def _review(state: AdmissionState, asked: admission.AdmissionRequest) -> admission.JsonPatch:
    """Returns the patch; none after an error, and while another process may lead."""
    if state.refusal():
        state.metrics.guard_reviews.count("idle")
        return []
    try:
        patch = admission.TRIAL_PATCH if asked.is_trial else await state.reviewer.review(asked)
    except Exception:
        # Longhorn goes on after every error.
        log.exception("review failed, the placement stays", uid=asked.uid)
        state.metrics.guard_reviews.count("failed")
        return []
    if state.refusal():
        state.metrics.guard_reviews.count("idle")
        return []
    state.metrics.guard_reviews.count("answered")
    return patch
