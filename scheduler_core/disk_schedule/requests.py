"""Changes the requests in a DiskSchedule's spec (SetReplicaRequirement, SetBackingImageRequirement)."""

from __future__ import annotations

from dataclasses import replace

from scheduler_core.model.disk_schedule import DiskScheduleSpec, RequestKind, Requests


def set_requirement(spec: DiskScheduleSpec, kind: RequestKind, name: str, size: int) -> DiskScheduleSpec:
    """Returns the spec with `size` bytes requested; 0 withdraws the request. The same spec object if nothing changes. A
    backing image's name is the key on every disk, because all of its copies are equally large.

    Raises:
        ValueError: the size is negative, which is a caller's fault and never written
    """
    if size < 0:
        raise ValueError(f"{kind.value} {name}: a requirement of {size} bytes")
    requests = spec.requests(kind)
    if requests.get(name, 0) == size and (name in requests) == (size > 0):
        return spec
    changed: Requests = {key: value for key, value in requests.items() if key != name}
    if size:
        changed = {**changed, name: size}
    return replace(spec, replicas=changed) if kind is RequestKind.REPLICA else replace(spec, backing_images=changed)
