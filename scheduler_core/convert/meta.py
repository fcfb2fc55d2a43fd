"""Parts that all wire types share: metadata, conditions, and decoding. Errors name the object and the
field. The metadata of an object of any kind is read even if the rest of the object cannot be.
"""

from typing import Any, TypeVar

import msgspec

from scheduler_core import errors
from scheduler_core.model.kube import Condition
from scheduler_core.structs import Struct


class Wire(msgspec.Struct, rename="camel", gc=False):
    """Base of wire types. Keys are camelCase, unknown keys are ignored, and a null field counts as absent."""


class OwnerReference(Wire):
    """metadata.ownerReferences[]."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Metadata(Wire):
    """metadata of any object."""

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None


class WireCondition(Wire):
    """status.conditions[]."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


def conditions(wire: list[WireCondition] | None) -> tuple[Condition, ...]:
    """The conditions in the order printed; of equal types the first counts."""
    return tuple(
        Condition(entry.type, entry.status, entry.reason or "", entry.message or "", entry.last_transition_time or "")
        for entry in wire or ()
    )


def subject(kind: str, metadata: Metadata) -> str:
    """The object being read, for error messages: ``PersistentVolumeClaim shop/data``."""
    namespace = f"{metadata.namespace}/" if metadata.namespace else ""
    return f"{kind} {namespace}{metadata.name}"


_AnyWire = TypeVar("_AnyWire", bound=Wire)


def decode_object(kind: str, raw: object, wire: type[_AnyWire]) -> _AnyWire:
    """Checks a decoded JSON or YAML object against a wire type.

    Raises:
        ObjectError: a field is missing or wrong; names the object, the field and what was expected
    """
    try:
        return msgspec.convert(raw, wire)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise errors.ObjectError(object_name(kind, raw), path.strip("`.").removeprefix("."), problem) from error
    except RecursionError as error:
        raise errors.ObjectError(object_name(kind, raw), "", "is nested too deeply") from error


def decode_json(kind: str, raw: bytes | msgspec.Raw, wire: type[_AnyWire]) -> _AnyWire:
    """Decodes an object as the API server sends it, without a detour through dictionaries."""
    try:
        try:
            return msgspec.json.decode(raw, type=wire)
        except msgspec.ValidationError:
            return decode_object(kind, msgspec.json.decode(raw), wire)  # its error names the object
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.ObjectError(kind, "", f"is not JSON: {error}") from error


def object_name(kind: str, raw: object) -> str:
    """How messages call a decoded object: ``Pod shop/web-0``."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    if not isinstance(metadata, dict):
        return f"{kind} (no name)"
    namespace = metadata.get("namespace")
    return f"{kind} {f'{namespace}/' if namespace else ''}{metadata.get('name')}"


_HEADER_KEYS = {"version": "resourceVersion", "created": "creationTimestamp", "deleted": "deletionTimestamp"}


class Header(Struct, frozen=True, rename=_HEADER_KEYS):
    """An object's name, version, UID, times of creation and deletion (RFC 3339), and finalizers."""

    name: str = ""
    version: str = ""
    uid: str = ""
    created: str = ""
    deleted: str | None = None
    finalizers: tuple[str, ...] = ()

    @property
    def deleting(self) -> bool:
        return self.deleted is not None


class _Object(Struct):
    metadata: Header


def header(raw: bytes | msgspec.Raw) -> Header:
    """The header of an object."""
    try:
        return msgspec.json.decode(raw, type=_Object).metadata
    except msgspec.DecodeError as error:
        raise errors.ObjectError("an object", "metadata", str(error)) from error


def stored_body(raw: bytes) -> dict[str, Any]:
    """The object to replace, without managedFields, which are large and never written back."""
    body: dict[str, Any] = msgspec.json.decode(raw)
    return {**body, "metadata": {key: value for key, value in body["metadata"].items() if key != "managedFields"}}
