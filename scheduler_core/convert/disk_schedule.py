"""DiskSchedules and related objects: reads them tolerantly, and makes bodies to write that lose no field. These objects
are edited by hand, and a controller that stops at one bad object serves none of the others. So a field that cannot be
used becomes a `Fault`, in addition to all fields that can; only what is no object at all is one Fault as a whole.

It also says which program answers DiskSchedules: this project's controllers, or longhorn-manager's own (its pull request 4366). Both use
the kind `diskschedules.longhorn.io`, with different contracts (docs/disk-schedule.md). Only the definition of this project has
`status.storageAvailable`; only longhorn-manager's objects have a Longhorn node as owner, and the condition Ready.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import msgspec

from scheduler_core.convert import wire_types
from scheduler_core.errors import ObjectError
from scheduler_core.model import disk_schedule as model, kube, longhorn, quantity
from scheduler_core.model.disk_schedule import Allocation, AllocationState, Fault, RequestKind

VOLUME_OF_REPLICA = wire_types.value_at("Replica.longhorn.io", f"metadata.labels[{longhorn.VOLUME_LABEL}]", "")


def is_owned_by_longhorn(metadata: wire_types.Metadata, conditions: Iterable[kube.Condition]) -> bool:
    """Whether longhorn-manager's own controller answers a DiskSchedule; a new one has no condition yet."""
    owners = metadata.owner_references or ()
    return any(owner.kind == "Node" for owner in owners) or any(each.type == "Ready" for each in conditions)


class _Spec(wire_types.Wire):
    versions: tuple[dict[str, Any], ...] = ()


class _Definition(wire_types.Wire):
    metadata: wire_types.Metadata
    spec: _Spec


def longhorns_definition(raw: bytes | msgspec.Raw) -> tuple[str, bool]:
    """The name of a CustomResourceDefinition of DiskSchedules, and whether it is longhorn-manager's."""
    definition = wire_types.decode_json("CustomResourceDefinition", raw, _Definition)
    path = ("schema", "openAPIV3Schema", "properties", "status", "properties")
    ours = any("storageAvailable" in reduce(_object_field, path, version) for version in definition.spec.versions)
    return definition.metadata.name, not ours


def read_size(value: object) -> int | None:
    """A number of bytes that is not negative, None if it is none."""
    size = read_integer(value)
    return size if size is not None and size >= 0 else None


def read_integer(value: object) -> int | None:
    """A number of bytes as Longhorn reports it, which may be negative."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > quantity.MAX_BYTES:
        return None
    return value


def type_name(value: object) -> str:
    return {list: "a list", str: "a text", bool: "true or false"}.get(type(value), "a number")


def excerpt(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}..."


API_VERSION = "longhorn.io/v1beta2"
# Nothing is allocated through a mirror: it only shows what Longhorn does, so its limit binds no request.
MIRROR_LABEL = "longhorn.io/disk-schedule-mirror"
# Requests in a DiskSchedule with this label stay although no object has their name: for examples and for tests by hand.
KEEP_LABEL = "longhorn.io/disk-schedule-keep-requests"
# JSON: what was on the disk when the object was created (`model.Adoption`). It is created together with the requests.
ADOPTION_ANNOTATION = "longhorn.io/disk-schedule-adopted"
_FIELDS = {RequestKind.REPLICA: "replicas", RequestKind.BACKING_IMAGE: "backingImages"}
_STATES = {each.value: each for each in AllocationState}
# longhorn-manager writes these before it has decided.
_UNDECIDED_STATES = ("", "unknown")
Json = dict[str, Any]


class _Metadata(wire_types.Metadata):
    finalizers: list[str] | None = None


class DiskSchedule(wire_types.Wire):
    """longhorn.io DiskSchedule or BackingImage; spec and status are checked field by field."""

    metadata: _Metadata
    spec: Any = None
    status: Any = None


_CONDITIONS = wire_types.value_at(
    "Volume.longhorn.io", "status.conditions", tuple[kube.Condition, ...](), wire_types.conditions, needs_metadata=False
)


def read_disk_schedule(raw: bytes | msgspec.Raw) -> model.DiskSchedule | Fault:
    try:
        return disk_schedule(wire_types.decode_json("DiskSchedule.longhorn.io", raw, DiskSchedule))
    except ObjectError as error:
        return Fault(error.field, error.problem)


def disk_schedule(wire: DiskSchedule) -> model.DiskSchedule:
    """Converts a DiskSchedule; unusable fields become faults, never an exception."""
    faults: list[Fault] = []
    spec = _object(wire.spec, "spec", faults)
    status = _object(wire.status, "status", faults, in_status=True)
    status_conditions: tuple[kube.Condition, ...] = ()
    try:
        status_conditions = wire_types.conditions(
            msgspec.convert(status.get("conditions"), list[wire_types.WireCondition] | None)
        )
    except msgspec.ValidationError as error:
        faults.append(Fault("status.conditions", str(error), in_status=True))
    owned_by_longhorn = is_owned_by_longhorn(wire.metadata, status_conditions)
    requests = {kind: _requests(spec, kind, faults) for kind in RequestKind}
    allocations = {kind: _allocations(status, kind, faults) for kind in RequestKind}
    written = status.get("storageScheduled")
    storage_scheduled = read_size(written)
    if storage_scheduled is None and written is not None:
        # Without a fault it would pass for 0, and stay as it is on a disk where nothing is held.
        faults.append(Fault("status.storageScheduled", f"is {excerpt(written)}, not a size in bytes", in_status=True))
    return model.DiskSchedule(
        name=wire.metadata.name,
        spec=model.DiskScheduleSpec(
            disk=_text(spec, "name", faults),
            node=_text(spec, "nodeID", faults),
            replicas=requests[RequestKind.REPLICA],
            backing_images=requests[RequestKind.BACKING_IMAGE],
        ),
        status=model.DiskScheduleStatus(
            replicas=allocations[RequestKind.REPLICA],
            backing_images=allocations[RequestKind.BACKING_IMAGE],
            storage_scheduled=storage_scheduled or 0,
            storage_available=read_integer(status.get("storageAvailable")),
            conditions=status_conditions,
        ),
        finalizers=tuple(wire.metadata.finalizers or ()),
        deleting=wire.metadata.deletion_timestamp is not None,
        # A mirror's label stays when longhorn-manager takes the object over.
        mirrored=(wire.metadata.labels or {}).get(MIRROR_LABEL) == "true" and not owned_by_longhorn,
        owned_by_longhorn=owned_by_longhorn,
        keeps_requests=(wire.metadata.labels or {}).get(KEEP_LABEL) == "true",
        adoption=_adoption((wire.metadata.annotations or {}).get(ADOPTION_ANNOTATION), faults),
        faults=tuple(faults),
    )


def _object(value: object, field: str, faults: list[Fault], *, in_status: bool = False) -> Mapping[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    faults.append(Fault(field, f"is {type_name(value)}, not an object", in_status))
    return {}


def _text(spec: Mapping[str, Any], field: str, faults: list[Fault]) -> str:
    value = spec.get(field)
    if value is None or isinstance(value, str):
        return value or ""
    faults.append(Fault(f"spec.{field}", f"is {type_name(value)}, not a text"))
    return ""


def _requests(spec: Mapping[str, Any], kind: RequestKind, faults: list[Fault]) -> dict[str, int | None]:
    field = f"spec.{_FIELDS[kind]}"
    entries = _object(spec.get(_FIELDS[kind]), field, faults)
    sizes = {name: read_size(value) for name, value in entries.items()}
    faults.extend(
        Fault(f"{field}.{name}", f"is {excerpt(entries[name])}, not a size in bytes")
        for name, size in sorted(sizes.items())
        if size is None
    )
    return sizes


def _allocations(status: Mapping[str, Any], kind: RequestKind, faults: list[Fault]) -> dict[str, Allocation]:
    field = f"status.{_FIELDS[kind]}"
    allocations: dict[str, Allocation] = {}
    for name, value in sorted(_object(status.get(_FIELDS[kind]), field, faults, in_status=True).items()):
        entry = value if isinstance(value, dict) else {}
        name_of_state = entry.get("state")
        if name_of_state in _UNDECIDED_STATES:
            continue  # no answer yet: what the spec requests counts
        state = _STATES.get(name_of_state) if isinstance(name_of_state, str) else None
        size = read_size(entry.get("scheduledSize", 0))
        if size is None or state is None:
            faults.append(Fault(f"{field}.{name}", f"is {excerpt(value)}, not an answer", in_status=True))
        else:
            allocations[name] = Allocation(state, size)
    return allocations


def _adoption(annotation: str | None, faults: list[Fault]) -> model.Adoption:
    """What the annotation says was on the disk; an unusable entry is a fault."""
    if annotation is None:
        return model.Adoption()
    field = f"metadata.annotations.{ADOPTION_ANNOTATION}"
    try:
        value = msgspec.json.decode(annotation)
    except msgspec.DecodeError:
        faults.append(Fault(field, "is no JSON"))
        return model.Adoption()
    entries = _object(value, field, faults)
    sizes: dict[RequestKind, dict[str, int]] = {}
    for kind, key in _FIELDS.items():
        readable = {name: read_size(entry) for name, entry in _object(entries.get(key), field, faults).items()}
        faults.extend(
            Fault(field, f"{key}.{name} is no size in bytes") for name, size in readable.items() if size is None
        )
        sizes[kind] = {name: size for name, size in readable.items() if size is not None}
    return model.Adoption(sizes[RequestKind.REPLICA], sizes[RequestKind.BACKING_IMAGE])


def backing_image_copies(raw: bytes | msgspec.Raw) -> model.BackingImageCopies | Fault:
    """Reads a backing image; returns a Fault if it is none."""
    try:
        wire = wire_types.decode_json("BackingImage.longhorn.io", raw, DiskSchedule)
    except ObjectError as error:
        return Fault(error.field, error.problem)
    faults: list[Fault] = []
    spec = _object(wire.spec, "spec", faults)
    status = _object(wire.status, "status", faults)
    files = _object(status.get("diskFileStatusMap"), "status.diskFileStatusMap", faults)
    size = read_size(status.get("realSize", 0))
    min_copies = read_size(spec.get("minNumberOfCopies") or 1)
    if size is None:
        faults.append(Fault("status.realSize", f"is {excerpt(status['realSize'])}, not a size in bytes"))
    if min_copies is None:
        faults.append(
            Fault("spec.minNumberOfCopies", f"is {excerpt(spec['minNumberOfCopies'])}, not a number of copies")
        )
    return model.BackingImageCopies(
        name=wire.metadata.name,
        size=size or 0,
        min_copies=min_copies or 1,
        wanted_disks=frozenset(_object(spec.get("diskFileSpecMap"), "spec.diskFileSpecMap", faults)),
        copy_states={
            uuid: str(file.get("state") or "") if isinstance(file, dict) else "" for uuid, file in files.items()
        },
        finalizers=tuple(wire.metadata.finalizers or ()),
        deleting=wire.metadata.deletion_timestamp is not None,
        faults=tuple(faults),
    )


def volume_condition(raw: bytes | msgspec.Raw, kind: str) -> kube.Condition | None:
    """A condition of a volume, None if it is absent or cannot be read."""
    try:
        entries = _CONDITIONS.decode(raw)
    except ObjectError:
        # A caller then writes the condition as a new one.
        return None
    return next((entry for entry in entries if entry.type == kind), None)


def new_disk_schedule(namespace: str, schedule: model.DiskSchedule) -> Json:
    """The body that creates a DiskSchedule: its requests, what it adopts, and Longhorn's finalizer."""
    metadata: Json = {"name": schedule.name, "namespace": namespace, "finalizers": [model.FINALIZER]}
    adopted = {field: dict(schedule.adoption.sizes(kind)) for kind, field in _FIELDS.items()}
    if any(adopted.values()):
        metadata["annotations"] = {ADOPTION_ANNOTATION: msgspec.json.encode(adopted).decode()}
    requests = {field: dict(sorted(schedule.spec.requests(kind).items())) for kind, field in _FIELDS.items()}
    return {
        "apiVersion": API_VERSION,
        "kind": "DiskSchedule",
        "metadata": metadata,
        "spec": {"name": schedule.spec.disk, "nodeID": schedule.spec.node, **requests},
    }


def set_mirror_label(body: Json, *, mirrored: bool) -> Json:
    """Returns the body with or without the label of a mirror, which shows what Longhorn allocates by itself."""
    metadata = _object_field(body, "metadata")
    labels = {key: value for key, value in _object_field(metadata, "labels").items() if key != MIRROR_LABEL}
    marked = {**labels, MIRROR_LABEL: "true"} if mirrored else labels
    return {**body, "metadata": {**metadata, "labels": marked}}


def with_spec(raw: bytes, spec: model.DiskScheduleSpec) -> Json:
    """The body that replaces the DiskSchedule read as `raw`; foreign fields and sizes that cannot be read stay."""
    body = wire_types.stored_body(raw)
    before = _object_field(body, "spec")
    requests: Json = {}
    for kind, field in _FIELDS.items():
        current = _object_field(before, field)
        sizes = sorted(spec.requests(kind).items())
        requests[field] = {name: current.get(name) if size is None else size for name, size in sizes}
    return {**body, "spec": {**before, "name": spec.disk, "nodeID": spec.node, **requests}}


def with_status(raw: bytes, status: model.DiskScheduleStatus) -> Json:
    """The body for the DiskSchedule's status subresource, at the version read as `raw`."""
    body = wire_types.stored_body(raw)
    before = _object_field(body, "status")
    allocations = {
        field: {
            name: {"state": entry.state.value, "scheduledSize": entry.size}
            for name, entry in sorted(status.allocations(kind).items())
        }
        for kind, field in _FIELDS.items()
    }
    # The sums in Gi, for the columns of kubectl, which cannot calculate.
    summary = {"scheduled": _gibibytes(status.storage_scheduled)}
    computed: Json = {"storageScheduled": status.storage_scheduled, "storageSummary": summary}
    if status.storage_available is not None:
        computed["storageAvailable"] = status.storage_available
        summary["available"] = _gibibytes(status.storage_available)
    conditions = _condition_list(before, status.conditions)
    return {**body, "status": {**before, **allocations, **computed, "conditions": conditions}}


def _gibibytes(size: int) -> str:
    return f"{size / 1024**3:.1f}".removesuffix(".0") + "Gi"


def with_volume_condition(raw: bytes, condition: kube.Condition) -> Json:
    """The body for the volume's status subresource, with one condition set and everything else as read in `raw`."""
    body = wire_types.stored_body(raw)
    status = _object_field(body, "status")
    others = [entry for entry in _condition_entries(status) if entry.get("type") != condition.type]
    return {**body, "status": {**status, "conditions": [*others, *_condition_list(status, (condition,))]}}


def _condition_list(before: Mapping[str, Any], desired: tuple[kube.Condition, ...]) -> list[Json]:
    current = {entry.get("type"): entry for entry in reversed(_condition_entries(before))}
    return [
        {
            "lastProbeTime": "",
            **current.get(entry.type, {}),
            "lastTransitionTime": entry.last_transition_time,
            "message": entry.message,
            "reason": entry.reason,
            "status": entry.status,
            "type": entry.type,
        }
        for entry in desired
    ]


def _condition_entries(status: Mapping[str, Any]) -> list[Json]:
    entries = status.get("conditions")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def set_finalizer(raw: bytes | Json, *, present: bool) -> Json:
    """The body that adds or removes Longhorn's finalizer; others stay, and keep the object."""
    body = raw if isinstance(raw, dict) else wire_types.stored_body(raw)
    others = [entry for entry in body["metadata"].get("finalizers") or () if entry != model.FINALIZER]
    return {**body, "metadata": {**body["metadata"], "finalizers": [*others, *([model.FINALIZER] if present else [])]}}


def with_replica_fields(raw: bytes, *, place: tuple[str, str, str] | None = None, size: int | None = None) -> Json:
    """The body that sets place (node, disk UUID and path) or size of the Replica read as `raw`, at that version."""
    body = wire_types.stored_body(raw)
    metadata = body["metadata"]
    spec = dict(_object_field(body, "spec"))
    if place is not None:
        spec["nodeID"], spec["diskID"], spec["diskPath"] = place
        # Longhorn counts replicas by label.
        place_labels = {longhorn.NODE_LABEL: spec["nodeID"], longhorn.DISK_LABEL: spec["diskID"]}
        metadata = {**metadata, "labels": {**_object_field(metadata, "labels"), **place_labels}}
    if size is not None:
        spec["volumeSize"] = str(size)
    return {**body, "metadata": metadata, "spec": spec}


def with_copies(raw: bytes, added: tuple[str, ...], dropped: tuple[str, ...]) -> Json:
    """The body that changes a BackingImage's disks, at the version read as `raw`."""
    body = wire_types.stored_body(raw)
    spec = _object_field(body, "spec")
    files = {uuid: file for uuid, file in _object_field(spec, "diskFileSpecMap").items() if uuid not in dropped}
    new = {uuid: {"evictionRequested": False} for uuid in added if uuid not in files}
    return {**body, "spec": {**spec, "diskFileSpecMap": {**files, **new}}}


def _object_field(body: Mapping[str, Any], field: str) -> Json:
    """A field that holds an object; empty if it holds anything else."""
    value = body.get(field)
    return value if isinstance(value, dict) else {}
