"""Reads the metadata of objects of all kinds, even if the rest of the object cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from scheduler_core.convert.meta import Wire
from scheduler_core.errors import ObjectError


class _Metadata(Wire):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: list[str] | None = None


class _Status(Wire):
    phase: str | None = None


class _Object(Wire):
    metadata: _Metadata


class _ObjectWithPhase(_Object):
    status: _Status | None = None


_Shape = TypeVar("_Shape", _Object, _ObjectWithPhase)


@dataclass(frozen=True, slots=True)
class Header:
    """An object's name, version, deletion, finalizers, UID and time of creation (RFC 3339)."""

    name: str
    version: str
    deleting: bool
    finalizers: tuple[str, ...]
    uid: str = ""
    created: str = ""


def header(raw: bytes | msgspec.Raw) -> Header:
    """The header of an object.

    Raises:
        ObjectError: it has none
    """
    metadata = _decode(raw, _Object).metadata
    return Header(
        name=metadata.name,
        version=metadata.resource_version,
        deleting=metadata.deletion_timestamp is not None,
        finalizers=tuple(metadata.finalizers or ()),
        uid=metadata.uid,
        created=metadata.creation_timestamp or "",
    )


def pod_phase(raw: bytes | msgspec.Raw) -> tuple[str, str]:
    """The name and phase of a pod, without reading the rest of it.

    Raises:
        ObjectError: it has no name or its phase is no text
    """
    pod = _decode(raw, _ObjectWithPhase)
    return pod.metadata.name, (pod.status.phase if pod.status else None) or ""


def _decode(raw: bytes | msgspec.Raw, shape: type[_Shape]) -> _Shape:
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.DecodeError as error:
        raise ObjectError("an object", "metadata", str(error)) from error
