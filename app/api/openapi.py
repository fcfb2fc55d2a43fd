"""OpenAPI descriptions of kube-scheduler's messages, which the routes read and write as bytes."""

from __future__ import annotations

from typing import Any, Final

from app.schemas.explain import ErrorAnswer


def _body(description: str, forms: dict[str, Any], example: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = {"Pod": {"type": "object", "description": "core/v1 Pod"}, **forms}
    content: dict[str, Any] = {
        "schema": {"type": "object", "required": ["Pod"], "description": description, "properties": properties}
    }
    if example is not None:
        content["example"] = example
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


EXTENDER_ARGS: Final = _body(
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
HOST_PRIORITY_LIST: Final[dict[str, Any]] = {
    "responses": {
        "200": {
            "description": "HostPriorityList: every node asked, in order",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["Host", "Score"],
                            "properties": {
                                "Host": {"type": "string"},
                                "Score": {"type": "integer", "minimum": 0, "maximum": 10},
                            },
                        },
                    },
                    "example": [{"Host": "east-1", "Score": 9}, {"Host": "west-1", "Score": 4}],
                }
            },
        }
    }
}
EXTENDER_PREEMPTION_ARGS: Final = _body(
    "ExtenderPreemptionArgs: a pod and the victims on each node, as pods or by UID",
    {
        "NodeNameToVictims": {"type": ["object", "null"]},
        "NodeNameToMetaVictims": {"type": ["object", "null"]},
    },
)


def error_responses(**descriptions: str) -> dict[int | str, dict[str, Any]]:
    """Describes the error answers of a route, by status such as ``_400``."""
    return {
        int(status.strip("_")): {"model": ErrorAnswer, "description": description}
        for status, description in descriptions.items()
    }


UNAVAILABLE: Final = "The question is refused for now: the caller tries again"
BODY_ERRORS: Final = error_responses(
    _400="The body is not what is described here",
    _408="The body comes too slowly",
    _413="The body is too large",
    _503=UNAVAILABLE,
)
