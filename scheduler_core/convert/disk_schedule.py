"""DiskSchedules and what their controllers read and write beside them: read tolerantly, written without losing a field.

These objects are edited by hand, and a controller that stops at one bad object serves nobody. So a field that cannot be used
becomes a `Fault` beside everything that can, and only what is no object at all is a Fault as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from scheduler_core.convert.meta import Metadata, Wire, WireCondition, conditions, shape_json
from scheduler_core.errors import ObjectError
from scheduler_core.model import disk_schedule as model
from scheduler_core.model.disk_schedule import Allocation, Fault, Kind, State
from scheduler_core.model.kube import Condition
from scheduler_core.model.quantity import MAX_BYTES

API_VERSION: Final = "longhorn.io/v1beta2"
# Nothing is allocated through such a one: it only shows what Longhorn does, so its limit holds for nobody.
MIRROR_LABEL: Final = "longhorn.io/disk-schedule-mirror"
_FIELDS: Final = {Kind.REPLICA: "replicas", Kind.BACKING_IMAGE: "backingImages"}
Json = dict[str, Any]


class _Metadata(Metadata):
    finalizers: list[str] | None = None


class DiskSchedule(Wire):
    """longhorn.io DiskSchedule; spec and status are looked at field by field."""

    metadata: _Metadata
    spec: Any = None
    status: Any = None


class BackingImage(Wire):
    """longhorn.io BackingImage, as its controller reads it."""

    metadata: _Metadata
    spec: Any = None
    status: Any = None


class _WithConditions(Wire):
    class _Status(Wire):
        conditions: list[WireCondition] | None = None

    status: _Status | None = None


def read(raw: bytes) -> model.DiskSchedule | Fault:
    """A DiskSchedule as the API server sends it; a Fault if it is none."""
    try:
        return disk_schedule(shape_json("DiskSchedule.longhorn.io", raw, DiskSchedule))
    except ObjectError as error:
        return Fault(error.field, error.problem)


def disk_schedule(wire: DiskSchedule) -> model.DiskSchedule:
    """A DiskSchedule with what of it cannot be used as faults: never an exception."""
    faults: list[Fault] = []
    spec, status = _object(wire.spec, "spec", faults), _object(wire.status, "status", faults, in_status=True)
    asked = {kind: _requests(spec, kind, faults) for kind in Kind}
    answers = {kind: _allocations(status, kind, faults) for kind in Kind}
    return model.DiskSchedule(
        name=wire.metadata.name,
        spec=model.Spec(
            disk=_text(spec, "name", faults),
            node=_text(spec, "nodeID", faults),
            replicas=asked[Kind.REPLICA],
            backing_images=asked[Kind.BACKING_IMAGE],
        ),
        status=model.Status(
            replicas=answers[Kind.REPLICA],
            backing_images=answers[Kind.BACKING_IMAGE],
            storage_scheduled=_scheduled(status, faults),
            storage_available=_size(status.get("storageAvailable")),
            conditions=_conditions(status, faults),
        ),
        finalizers=tuple(wire.metadata.finalizers or ()),
        deleting=wire.metadata.deletion_timestamp is not None,
        faults=tuple(faults),
        mirrored=(wire.metadata.labels or {}).get(MIRROR_LABEL) == "true",
    )


def _object(value: object, field: str, faults: list[Fault], *, in_status: bool = False) -> Mapping[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    faults.append(Fault(field, f"is {_kind(value)}, not an object", in_status))
    return {}


def _text(spec: Mapping[str, Any], field: str, faults: list[Fault]) -> str:
    value = spec.get(field)
    if value is None or isinstance(value, str):
        return value or ""
    faults.append(Fault(f"spec.{field}", f"is {_kind(value)}, not a text"))
    return ""


def _requests(spec: Mapping[str, Any], kind: Kind, faults: list[Fault]) -> dict[str, int | None]:
    field = f"spec.{_FIELDS[kind]}"
    entries = _object(spec.get(_FIELDS[kind]), field, faults)
    found = {name: _size(value) for name, value in entries.items()}
    faults.extend(
        Fault(f"{field}.{name}", f"is {_shown(entries[name])}, not a size in bytes")
        for name, size in sorted(found.items())
        if size is None
    )
    return found


def _allocations(status: Mapping[str, Any], kind: Kind, faults: list[Fault]) -> dict[str, Allocation]:
    field = f"status.{_FIELDS[kind]}"
    found: dict[str, Allocation] = {}
    for name, value in sorted(_object(status.get(_FIELDS[kind]), field, faults, in_status=True).items()):
        entry = value if isinstance(value, dict) else {}
        state, size = entry.get("state"), _size(entry.get("scheduledSize", 0))
        if size is None or state not in {each.value for each in State}:
            faults.append(Fault(f"{field}.{name}", f"is {_shown(value)}, not an answer", in_status=True))
        else:
            found[name] = Allocation(State(state), size)
    return found


def _scheduled(status: Mapping[str, Any], faults: list[Fault]) -> int:
    """The sum as it is written. One that is no size is a fault, or it would pass for 0 and stay where nothing is held."""
    value = status.get("storageScheduled")
    size = _size(value)
    if size is None and value is not None:
        faults.append(Fault("status.storageScheduled", f"is {_shown(value)}, not a size in bytes", in_status=True))
    return size or 0


def _conditions(status: Mapping[str, Any], faults: list[Fault]) -> tuple[Condition, ...]:
    try:
        return conditions(msgspec.convert(status.get("conditions"), list[WireCondition] | None))
    except msgspec.ValidationError as error:
        faults.append(Fault("status.conditions", str(error), in_status=True))
        return ()


def _size(value: object) -> int | None:
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_BYTES
    return value if usable and isinstance(value, int) else None


def _kind(value: object) -> str:
    return {list: "a list", str: "a text", bool: "true or false"}.get(type(value), "a number")


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}..."


def image_copies(raw: bytes) -> model.ImageCopies | Fault:
    """A backing image as the API server sends it; a Fault if it is none."""
    try:
        wire = shape_json("BackingImage.longhorn.io", raw, BackingImage)
    except ObjectError as error:
        return Fault(error.field, error.problem)
    faults: list[Fault] = []
    spec, status = _object(wire.spec, "spec", faults), _object(wire.status, "status", faults)
    files = _object(status.get("diskFileStatusMap"), "status.diskFileStatusMap", faults)
    size, copies = _size(status.get("realSize", 0)), _size(spec.get("minNumberOfCopies") or 1)
    if size is None:
        faults.append(Fault("status.realSize", f"is {_shown(status['realSize'])}, not a size in bytes"))
    if copies is None:
        faults.append(
            Fault("spec.minNumberOfCopies", f"is {_shown(spec['minNumberOfCopies'])}, not a number of copies")
        )
    return model.ImageCopies(
        name=wire.metadata.name,
        size=size or 0,
        copies=copies or 1,
        wanted=frozenset(_object(spec.get("diskFileSpecMap"), "spec.diskFileSpecMap", faults)),
        found={uuid: str(file.get("state") or "") if isinstance(file, dict) else "" for uuid, file in files.items()},
        finalizers=tuple(wire.metadata.finalizers or ()),
        deleting=wire.metadata.deletion_timestamp is not None,
        faults=tuple(faults),
    )


def volume_condition(raw: bytes, kind: str) -> Condition | None:
    """A condition of a volume, None if it has none or its conditions cannot be read (then it is written anew)."""
    try:
        wire = msgspec.json.decode(raw, type=_WithConditions)
    except msgspec.DecodeError:
        return None
    found = conditions(wire.status.conditions if wire.status else None)
    return next((entry for entry in found if entry.type == kind), None)


def new_disk_schedule(namespace: str, name: str, disk: str, node: str) -> Json:
    """The body that creates the DiskSchedule `name` (the disk's UUID), without requests and with Longhorn's finalizer."""
    return {
        "apiVersion": API_VERSION,
        "kind": "DiskSchedule",
        "metadata": {"name": name, "namespace": namespace, "finalizers": [model.FINALIZER]},
        "spec": {"name": disk, "nodeID": node, "replicas": {}, "backingImages": {}},
    }


def as_mirror(body: Json, *, mirrored: bool) -> Json:
    """A body to write, marked as (no) mirror of what Longhorn allocates by itself."""
    metadata = _part(body, "metadata")
    labels = {key: value for key, value in _part(metadata, "labels").items() if key != MIRROR_LABEL}
    marked = {**labels, MIRROR_LABEL: "true"} if mirrored else labels
    return {**body, "metadata": {**metadata, "labels": marked}}


def changed_spec(raw: bytes, spec: model.Spec) -> Json:
    """The body that replaces the object read as `raw`, at that version: others' fields, and sizes nobody can read, stay."""
    body = _body(raw)
    before = _part(body, "spec")
    requests = {field: _written(before, field, spec.of(kind)) for kind, field in _FIELDS.items()}
    return {**body, "spec": {**before, "name": spec.disk, "nodeID": spec.node, **requests}}


def _written(before: Mapping[str, Any], field: str, requests: model.Requests) -> Json:
    known = _part(before, field)
    return {name: known.get(name) if size is None else size for name, size in sorted(requests.items())}


def changed_status(raw: bytes, status: model.Status) -> Json:
    """The body for the status subresource of the object read as `raw`, at that version."""
    body = _body(raw)
    before = _part(body, "status")
    answers = {
        field: {
            name: {"state": entry.state.value, "scheduledSize": entry.size}
            for name, entry in sorted(status.of(kind).items())
        }
        for kind, field in _FIELDS.items()
    }
    limit = {} if status.storage_available is None else {"storageAvailable": status.storage_available}
    written = {"storageScheduled": status.storage_scheduled, "conditions": _condition_list(before, status.conditions)}
    return {**body, "status": {**before, **answers, **limit, **written}}


def changed_condition(raw: bytes, condition: Condition) -> Json:
    """The body for the status subresource of the volume read as `raw`: one condition set, all else kept."""
    body = _body(raw)
    status = _part(body, "status")
    others = [entry for entry in _entries(status) if entry.get("type") != condition.type]
    return {**body, "status": {**status, "conditions": [*others, *_condition_list(status, (condition,))]}}


def _condition_list(before: Mapping[str, Any], wanted: tuple[Condition, ...]) -> list[Json]:
    known = {entry.get("type"): entry for entry in reversed(_entries(before))}
    return [
        {
            "lastProbeTime": "",
            **known.get(entry.type, {}),
            "lastTransitionTime": entry.last_transition_time,
            "message": entry.message,
            "reason": entry.reason,
            "status": entry.status,
            "type": entry.type,
        }
        for entry in wanted
    ]


def _entries(status: Mapping[str, Any]) -> list[Json]:
    found = status.get("conditions")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def with_finalizer(raw: bytes | Json) -> Json:
    """The body that puts Longhorn's finalizer on an object; others' stay."""
    return _finalized(raw, add=True)


def without_finalizer(raw: bytes | Json) -> Json:
    """The body that takes Longhorn's finalizer off an object; others' stay, and keep it."""
    return _finalized(raw, add=False)


def _finalized(raw: bytes | Json, *, add: bool) -> Json:
    body = raw if isinstance(raw, dict) else _body(raw)
    others = [entry for entry in body["metadata"].get("finalizers") or () if entry != model.FINALIZER]
    return {**body, "metadata": {**body["metadata"], "finalizers": [*others, *([model.FINALIZER] if add else [])]}}


def changed_replica(raw: bytes, *, place: tuple[str, str, str] | None = None, size: int | None = None) -> Json:
    """The body that replaces the Replica read as `raw`, at that version: its place (node, disk UUID, path), its size."""
    body = _body(raw)
    spec = dict(_part(body, "spec"))
    if place is not None:
        spec["nodeID"], spec["diskID"], spec["diskPath"] = place
    if size is not None:
        spec["volumeSize"] = str(size)
    return {**body, "spec": spec}


def changed_copies(raw: bytes, added: tuple[str, ...], dropped: tuple[str, ...]) -> Json:
    """The body that replaces the BackingImage read as `raw`, at that version, with other disks to be on."""
    body = _body(raw)
    spec = dict(_part(body, "spec"))
    files = {uuid: file for uuid, file in _part(spec, "diskFileSpecMap").items() if uuid not in dropped}
    new = {uuid: {"evictionRequested": False} for uuid in added if uuid not in files}
    return {**body, "spec": {**spec, "diskFileSpecMap": {**files, **new}}}


def _part(body: Mapping[str, Any], field: str) -> Json:
    """A field of an object, as an object whatever it is."""
    value = body.get(field)
    return value if isinstance(value, dict) else {}


def _body(raw: bytes) -> Json:
    body: Json = msgspec.json.decode(raw)
    return {**body, "metadata": {key: value for key, value in body["metadata"].items() if key != "managedFields"}}
