"""Events as a recorder writes them: what `kubectl describe` shows of an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

# The API server refuses longer notes of events.k8s.io; kube-scheduler cuts there, too.
MAX_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """The content of an Event in its object's namespace: something has happened to the object, `count` times."""

    name: str
    about: ObjectReference
    reason: str
    message: str
    normal: bool
    component: str  # the component that reports it
    first: str  # when it happened first and last, in the API's form
    last: str  # when it happened first and last, in the API's form
    count: int = 1


def new_event(event: ObjectEvent) -> dict[str, Any]:
    """The body that creates an Event."""
    about = event.about
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": about.namespace},
        "involvedObject": {
            "kind": about.kind,
            "apiVersion": about.api_version,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "reason": event.reason,
        "type": "Normal" if event.normal else "Warning",
        "source": {"component": event.component},
        "reportingComponent": event.component,
        "firstTimestamp": event.first,
        **event_patch(event),
    }


def event_patch(event: ObjectEvent) -> dict[str, Any]:
    """The patch of an Event that happened again."""
    return {"message": truncate_message(event.message), "count": event.count, "lastTimestamp": event.last}


def truncate_message(message: str) -> str:
    """The text as an Event can hold it, truncated as other reports truncate the same message, so that all of them are
    equal.
    """
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 4]} ..."
