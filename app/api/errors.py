"""Errors as JSON answers with a 4xx or 5xx status, and the OpenAPI descriptions of kube-scheduler's messages, which the
routes read and write as bytes.

The body of an error is ``{"error": "..."}``, never a traceback. Only `/filter` says with status 200 why it cannot answer now, in the form
that kube-scheduler shows to users.
"""

from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.memory_budget import BudgetExceededError, SlowBodyError
from app.runtime import connections, probes
from app.schemas.decision import ErrorAnswer, value_problem

log = structlog.get_logger("http")
# Of refusals and hang-ups.
caller_log = connections.CallerLog(log)
FILTER_PATH = "/filter"
_NO_NODES: Mapping[str, object] = {
    "Nodes": None,
    "NodeNames": None,
    "FailedNodes": {},
    "FailedAndUnresolvableNodes": {},
}
_CLOSE = {"Connection": "close"}
_RETRY = {"Retry-After": "1"}


class RequestError(Exception):
    """A request that cannot be read. The text says what is wrong and where."""


class BodyTooLargeError(RequestError):
    """The body is larger than the server accepts."""


def _client(request: Request) -> str:
    return connections.owner_of(request.client.host) if request.client else ""


def install_error_handlers(app: FastAPI) -> None:
    """Gives every error of the application one form. A refusal before the end of a body closes the connection: the unread
    rest must not be read as the next request.
    """

    @app.exception_handler(RequestError)
    @app.exception_handler(RequestValidationError)
    @app.exception_handler(BudgetExceededError)
    @app.exception_handler(SlowBodyError)
    async def refused(request: Request, error: Exception) -> JSONResponse:
        problem = str(error)
        headers = _CLOSE
        match error:
            case RequestValidationError():
                status = 422
                headers = {}
                problem = "; ".join(f"{entry['loc'][-1]}: {value_problem(entry)}" for entry in error.errors())
            case BudgetExceededError(permanent=False):
                status = 503
                headers = {**_CLOSE, **_RETRY}
            case BudgetExceededError() | BodyTooLargeError():
                status = 413
            case SlowBodyError():
                status = 408
            case _:
                status = 400
                headers = {}
        path = request.url.path
        caller_log.warning("refused request", client=_client(request), path=path, status=status, error=problem)
        return JSONResponse({"error": problem}, status, headers=headers)

    @app.exception_handler(probes.UnavailableError)
    async def unavailable(request: Request, error: probes.UnavailableError) -> JSONResponse:
        caller_log.info("refused question", client=_client(request), path=request.url.path, why=str(error))
        # A new connection may reach the process that answers.
        headers = {**_CLOSE, **_RETRY}
        # An extender that is switched off is in no EndpointSlice: kube-scheduler does not reach it.
        if request.url.path == FILTER_PATH and not isinstance(error, probes.SwitchedOffError):
            # kube-scheduler puts this text into the pod's event; of any status but 200 it shows the number alone. For both it fails the
            # attempt, or goes on without the extender if that is ignorable (findNodesThatPassExtenders).
            return JSONResponse({**_NO_NODES, "Error": str(error)}, headers=headers)
        return JSONResponse({"error": str(error)}, 503, headers=headers)

    @app.exception_handler(probes.CallerGoneError)
    async def lost_caller(request: Request, error: probes.CallerGoneError) -> JSONResponse:
        caller_log.info("caller has gone", client=_client(request), path=request.url.path, error=str(error))
        return JSONResponse({"error": "the caller hung up"}, 499)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        text = f"{request.method} {request.url.path}: {error.detail}"
        return JSONResponse({"error": text}, error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed", path=request.url.path, exc_info=error)
        return JSONResponse({"error": "internal error, see the server's log"}, 500)


def _body(description: str, forms: dict[str, Any], example: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = {"Pod": {"type": "object", "description": "core/v1 Pod"}, **forms}
    content: dict[str, Any] = {
        "schema": {"type": "object", "required": ["Pod"], "description": description, "properties": properties}
    }
    if example is not None:
        content["example"] = example
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


EXTENDER_ARGS = _body(
    "ExtenderArgs: a pod and either whole nodes or their names",
    {
        "Nodes": {"type": ["object", "null"], "description": "core/v1 NodeList"},
        "NodeNames": {"type": ["array", "null"], "items": {"type": "string"}},
    },
    example={
        "Pod": {
            "metadata": {"namespace": "shop", "name": "orders-0"},
            "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-orders-0"}}]},
        },
        "NodeNames": ["east-1", "west-1"],
    },
)
_SCORE = {"type": "integer", "minimum": 0, "maximum": 10}
_HOST_PRIORITY = {
    "type": "object",
    "required": ["Host", "Score"],
    "properties": {"Host": {"type": "string"}, "Score": _SCORE},
}
_HOST_PRIORITIES = {
    "schema": {"type": "array", "items": _HOST_PRIORITY},
    "example": [{"Host": "east-1", "Score": 9}, {"Host": "west-1", "Score": 4}],
}
HOST_PRIORITY_LIST: dict[str, Any] = {
    "responses": {
        "200": {
            "description": "HostPriorityList: every node asked, in order",
            "content": {"application/json": _HOST_PRIORITIES},
        }
    }
}
EXTENDER_PREEMPTION_ARGS = _body(
    "ExtenderPreemptionArgs: a pod and the victims on each node, as pods or by UID",
    {"NodeNameToVictims": {"type": ["object", "null"]}, "NodeNameToMetaVictims": {"type": ["object", "null"]}},
)


def error_responses(**descriptions: str) -> dict[int | str, dict[str, Any]]:
    """Describes the error answers of a route, by status such as ``_400``."""
    return {
        int(status.strip("_")): {"model": ErrorAnswer, "description": description}
        for status, description in descriptions.items()
    }


UNAVAILABLE = "The question is refused for now: the caller tries again"
BODY_ERRORS = error_responses(
    _400="The body is not what is described here",
    _408="The body comes too slowly",
    _413="The body is too large",
    _503=UNAVAILABLE,
)
