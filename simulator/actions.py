"""The actions that a decision may return. They are plain values, which `action_runner.py` carries out: so a decision is a pure
function that a test can call.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from app.kube.resources import Resource
from simulator.config import Delay
from simulator.objects import Json, KubeObject


class CreateObject(Struct, frozen=True):
    """Creates an object; an existing one is no error.

    Attributes:
        event: the log event
        counter: the name of the counter to increment, "": none
    """

    resource: Resource
    body: Json
    event: str
    counter: str = ""


class PatchObject(Struct, frozen=True):
    """Changes some fields of an object or of its status. It fails with a conflict if the object changed since it was read."""

    resource: Resource
    target: KubeObject[Any]
    body: Json
    event: str
    status: bool = False
    counter: str = ""


class ReplaceStatus(Struct, frozen=True):
    """Replaces an object's whole status. It fails with a conflict if the object changed since it was read."""

    resource: Resource
    target: KubeObject[Any]
    status: Json
    event: str


class Replacement(Struct, frozen=True):
    """An object with changed labels and fields of its spec.

    Attributes:
        event: the log event
        counter: the name of the counter to increment
    """

    target: KubeObject[Any]
    labels: Mapping[str, str]
    spec: Json
    event: str
    counter: str


class ReplaceObjects(Struct, frozen=True):
    """Replaces objects, as Longhorn's volume controller updates its replicas. All of them are written, also after a refusal; then
    the last refusal is raised. An object that changed since it was read is refused. The answers are discarded, so the next
    decision reads what the watch delivers, with the changes of admission webhooks.
    """

    resource: Resource
    replacements: tuple[Replacement, ...]


class DeleteObject(Struct, frozen=True):
    """Deletes an object; a missing one is no error."""

    resource: Resource
    target: KubeObject[Any]
    event: str
    counter: str = ""


class AfterDelay(Struct, frozen=True):
    """Carries out actions after a delay. The delay starts over if a decision in between does not return an action of this `name`."""

    name: str
    delay: Delay
    actions: "tuple[Action, ...]" = field(default=())


class RequeueAfter(Struct, frozen=True):
    """Repeats the decision after some seconds."""

    seconds: float


Action = CreateObject | PatchObject | ReplaceStatus | ReplaceObjects | DeleteObject | AfterDelay | RequeueAfter


def is_write(action: Action) -> bool:
    return not isinstance(action, (AfterDelay, RequeueAfter))


def remove_finalizers(resource: Resource, target: KubeObject[Any], event: str, *finalizers: str) -> list[Action]:
    """Removes finalizers; returns no action if the object has none of them."""
    remaining = [entry for entry in target.finalizers if entry not in finalizers]
    if remaining == target.finalizers:
        return []
    return [PatchObject(resource, target, {"metadata": {"finalizers": remaining or None}}, event)]
