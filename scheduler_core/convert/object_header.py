"""What every object says of itself, whatever else of it cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from scheduler_core.convert.meta import Wire
from scheduler_core.errors import ObjectError


class _Metadata(Wire):
    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    finalizers: list[str] | None = None


class _Status(Wire):
    phase: str | None = None


class _Object(Wire):
    metadata: _Metadata


class _Phased(_Object):
    status: _Status | None = None


_Shape = TypeVar("_Shape", _Object, _Phased)


@dataclass(frozen=True, slots=True)
class Header:
    """An object's name, its version, whether it is being deleted, and what holds that up."""

    name: str
    version: str
    deleting: bool
    finalizers: tuple[str, ...]


def header(raw: bytes | msgspec.Raw) -> Header:
    """The header of an object.

    Raises:
        ObjectError: it has none
    """
    found = _decoded(raw, _Object).metadata
    finalizers = tuple(found.finalizers or ())
    return Header(found.name, found.resource_version, found.deletion_timestamp is not None, finalizers)


def pod_phase(raw: bytes | msgspec.Raw) -> tuple[str, str]:
    """The name and phase of a pod of which nothing else matters.

    Raises:
        ObjectError: it has no name or its phase is no text
    """
    found = _decoded(raw, _Phased)
    return found.metadata.name, (found.status.phase if found.status else None) or ""


def _decoded(raw: bytes | msgspec.Raw, shape: type[_Shape]) -> _Shape:
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.DecodeError as error:
        raise ObjectError("an object", "metadata", str(error)) from error
