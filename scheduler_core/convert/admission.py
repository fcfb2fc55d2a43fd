"""Admission of a replica's placement, as Longhorn writes it: reads the request, checks its shape, and makes a JSON
patch of a change.

Longhorn writes a placement as one update that sets spec.nodeID, spec.diskID, spec.diskPath and two labels of a replica that had none of them
(scheduler/replica_scheduler.go: scheduleReplicaToDisk, datastore: UpdateReplica). The labels matter as much as the fields: Longhorn counts
a disk's replicas by label, and writes nodeID and diskPath again for any replica that its label leads to. An update of any other shape is
left alone. A dry run that creates `convert/installed_objects.py: probe_replica` asks only whether the guard answers.
"""

from base64 import b64encode
from typing import Any

import msgspec

from scheduler_core import errors
from scheduler_core.convert import installed_objects, snapshot_kinds, wire_types
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import DISK_LABEL, NODE_LABEL, REVIEWED, Placement
from scheduler_core.structs import Struct

JsonPatch = list[dict[str, Any]]


_REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_MIGRATION_ENGINE = wire_types.value_at("Replica.longhorn.io", "spec.migrationEngineName", "")
_ANNOTATIONS = wire_types.value_at("Replica.longhorn.io", "metadata.annotations", dict[str, str]())
# What a diagnosis reads in the object that it would have created.
TRIAL_PATCH = [
    {"op": "add", "path": f"/metadata/annotations/{installed_objects.ANSWERED.replace('/', '~1')}", "value": "true"}
]


class _Kind(wire_types.Wire):
    group: str = ""
    kind: str = ""


class _Request(wire_types.Wire):
    uid: str
    kind: _Kind | None = None
    operation: str = ""
    dry_run: bool | None = None
    new: Any = msgspec.field(default=None, name="object")
    old: Any = msgspec.field(default=None, name="oldObject")


class _Review(wire_types.Wire):
    request: _Request
    api_version: str = ""
    kind: str = ""


class AdmissionRequest(Struct, frozen=True):
    """What the API server asks about."""

    uid: str  # identifies the request in the answer
    dry_run: bool  # whether nothing will be written
    placement: Placement | str  # the placement, or a sentence why the update does not have the shape of one
    is_trial: bool = False  # whether a diagnosis only asks for an answer, which is `TRIAL_PATCH`
    has_annotations: bool = False  # whether the object has a map to which a patch can add an annotation


def admission_request(review: object) -> AdmissionRequest:
    """Reads a decoded AdmissionReview of admission.k8s.io/v1."""
    wire = wire_types.decode_object(_REVIEW["kind"], review, _Review)
    for (field, expected), value in zip(_REVIEW.items(), (wire.api_version, wire.kind), strict=True):
        if value != expected:
            raise errors.ObjectError(_REVIEW["kind"], field, f"is {value[:64]!r}, not {expected!r}")
    request = wire.request
    if not request.uid:
        raise errors.ObjectError(_REVIEW["kind"], "request.uid", "is empty")
    is_trial = (
        bool(request.dry_run) and request.operation == "CREATE" and installed_objects.is_probe_replica(request.new)
    )
    placement, has_annotations = _placement_of(request)
    return AdmissionRequest(request.uid, bool(request.dry_run), placement, is_trial, has_annotations)


def admission_response(uid: str, patch: JsonPatch) -> dict[str, Any]:
    """The AdmissionReview that answers a request. It always allows the update; an empty patch leaves it as it is."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": b64encode(msgspec.json.encode(patch)).decode()}
    return {**_REVIEW, "response": response}


def placement_patch(before: Placement, after: Placement, *, has_annotations: bool) -> JsonPatch:
    """The JSON patch that writes the place of a reviewed placement, and that it was reviewed."""
    old = _fields(before)
    changes = [
        {"op": "replace", "path": path, "value": value} for path, value in _fields(after).items() if value != old[path]
    ]
    # By these the API server refuses the patch as a whole for an object of another shape.
    tests = [{"op": "test", "path": path, "value": value} for path, value in old.items()] if changes else []
    reviewed: dict[str, Any] = {"op": "add", "path": "/metadata/annotations", "value": {REVIEWED: after.place}}
    if has_annotations:
        reviewed |= {"path": f"/metadata/annotations/{REVIEWED.replace('/', '~1')}", "value": after.place}
    return [*tests, *changes, reviewed]


def _fields(placement: Placement) -> dict[str, str]:
    """Returns the values that a placement sets, by JSON pointer."""
    return {
        "/spec/nodeID": placement.node,
        "/spec/diskID": placement.disk,
        "/spec/diskPath": placement.disk_path,
        f"/metadata/labels/{NODE_LABEL}": placement.node,
        f"/metadata/labels/{DISK_LABEL}": placement.disk,
    }


def _placement_of(request: _Request) -> tuple[Placement | str, bool]:
    """Returns the placement or what is wrong with it, and whether the object has annotations."""
    kind = request.kind or _Kind()
    if (kind.group, kind.kind) != (snapshot_kinds.LONGHORN_GROUP, "Replica"):
        return f"the object is no replica but a {kind.kind!r} of group {kind.group!r}", False
    if request.operation != "UPDATE":
        # A replica that is created with a disk is a restore.
        return f"the operation is {request.operation!r}, not 'UPDATE'", False
    try:
        old = snapshot_kinds.REPLICA.read(request.old)
        new = snapshot_kinds.REPLICA.read(request.new)
        migration = _MIGRATION_ENGINE.read(request.new)
        annotations = _ANNOTATIONS.read(request.new)
    except errors.ObjectError as error:
        return str(error), False
    if migration:
        return "the replica belongs to a migration", False
    return _shape_problem(old, new) or Placement.of(new), bool(annotations)


def _shape_problem(old: longhorn.Replica, new: longhorn.Replica) -> str:
    if old.disk_id or old.node_id:
        return f"the replica had a place already: node {old.node_id!r}, disk {old.disk_id!r}"
    if new.deleting:
        return "the replica is being deleted"
    if not new.active:
        return "the replica is not active"
    paths = ("metadata.name", "spec.volumeName", "spec.nodeID", "spec.diskID", "spec.diskPath")
    values = (new.name, new.volume, new.node_id, new.disk_id, new.disk_path)
    empty = next((path for path, value in zip(paths, values, strict=True) if not value), "")
    if empty:
        return f"{empty} is empty"
    if new.node_label != new.node_id:
        return f"label {NODE_LABEL} is {new.node_label!r}, not {new.node_id!r}"
    if new.disk_label != new.disk_id:
        return f"label {DISK_LABEL} is {new.disk_label!r}, not {new.disk_id!r}"
    return ""
