"""The actions that a decision may return.

They are plain values, which `action_runner.py` carries out: so a decision is a pure function that a test can call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.kube.resources import Resource
from simulator.config import Delay
from simulator.objects import Json, KubeObject


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Creates an object; an existing one is no error.

    Attributes:
        event: the log event
        counter: the name of the counter to increment, "": none
    """

    resource: Resource
    body: Json
    event: str
    counter: str = ""


@dataclass(frozen=True, slots=True)
class PatchObject:
    """Changes some fields of an object or of its status.

    It fails with a conflict if the object changed since it was read.
    """

    resource: Resource
    target: KubeObject[Any]
    body: Json
    event: str
    status: bool = False
    counter: str = ""


@dataclass(frozen=True, slots=True)
class ReplaceStatus:
    """Replaces an object's whole status.

    It fails with a conflict if the object changed since it was read.
    """

    resource: Resource
    target: KubeObject[Any]
    status: Json
    event: str


@dataclass(frozen=True, slots=True)
class Replacement:
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


@dataclass(frozen=True, slots=True)
class ReplaceObjects:
    """Replaces objects, as Longhorn's volume controller updates its replicas.

    All of them are written, also after a refusal; then the last refusal is raised. An object that changed since it was read is refused. The
    answers are discarded, so the next decision reads what the watch delivers, with the changes of admission webhooks.
    """

    resource: Resource
    replacements: tuple[Replacement, ...]


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Deletes an object; a missing one is no error."""

    resource: Resource
    target: KubeObject[Any]
    event: str
    counter: str = ""


@dataclass(frozen=True, slots=True)
class AfterDelay:
    """Carries out actions after a delay.

    The delay starts over if a decision in between does not return an action of this `name`.
    """

    name: str
    delay: Delay
    actions: tuple[Action, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Repeats the decision after some seconds."""

    seconds: float


Action = CreateObject | PatchObject | ReplaceStatus | ReplaceObjects | DeleteObject | AfterDelay | RequeueAfter


def is_write(action: Action) -> bool:
    """Whether an action changes something now."""
    return not isinstance(action, (AfterDelay, RequeueAfter))


def remove_finalizers(resource: Resource, target: KubeObject[Any], event: str, *finalizers: str) -> tuple[Action, ...]:
    """Removes finalizers; returns no action if the object has none of them."""
    remaining = [entry for entry in target.finalizers if entry not in finalizers]
    if remaining == target.finalizers:
        return ()
    return (PatchObject(resource, target, {"metadata": {"finalizers": remaining or None}}, event),)
