"""What a decision may ask for: values, carried out by `perform`, so that decisions are functions tests can call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.kube.resources import Resource
from simulator.config import Span
from simulator.objects import Json, Obj


@dataclass(frozen=True, slots=True)
class Create:
    """Creates an object; that it exists already is no error. `counts` names the counter to raise."""

    resource: Resource
    body: Json
    why: str
    counts: str = ""


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes some fields of an object, or of its status, if nobody changed it since it was read."""

    resource: Resource
    target: Obj[Any]
    body: Json
    why: str
    status: bool = False
    counts: str = ""


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces an object's status as a whole, if nobody changed the object since it was read."""

    resource: Resource
    target: Obj[Any]
    status: Json
    why: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes an object; that it is gone already is no error."""

    resource: Resource
    target: Obj[Any]
    why: str
    counts: str = ""


@dataclass(frozen=True, slots=True)
class Later:
    """Does something when it has been wanted, without a break, for a time drawn from `span`; `name` tells what."""

    name: str
    span: Span
    actions: tuple[Action, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Wake:
    """Looks again after some seconds."""

    seconds: float


Action = Create | Patch | Replace | Delete | Later | Wake


def is_write(action: Action) -> bool:
    """Whether an action changes something now."""
    return not isinstance(action, (Later, Wake))


def without_finalizer(resource: Resource, target: Obj[Any], why: str, *finalizers: str) -> tuple[Action, ...]:
    """Takes some finalizers off an object, if it bears one of them."""
    rest = [entry for entry in target.finalizers if entry not in finalizers]
    if rest == target.finalizers:
        return ()
    return (Patch(resource, target, {"metadata": {"finalizers": rest or None}}, why),)
