"""Asking: pure changes of a DiskSchedule's spec (SetReplicaRequirement, SetBackingImageRequirement)."""

from __future__ import annotations

from dataclasses import replace

from scheduler_core.model.disk_schedule import Kind, Requests, Spec


def set_requirement(spec: Spec, kind: Kind, name: str, size: int) -> Spec:
    """The spec with `size` bytes asked for; 0 withdraws the request. The same spec if it says so already.

    Raises:
        ValueError: the size is negative, which is a caller's fault and never written
    """
    if size < 0:
        raise ValueError(f"{kind.value} {name}: a requirement of {size} bytes")
    requests = spec.of(kind)
    if requests.get(name, 0) == size and (name in requests) == (size > 0):
        return spec
    changed: Requests = {key: value for key, value in requests.items() if key != name}
    if size:
        changed = {**changed, name: size}
    return replace(spec, replicas=changed) if kind is Kind.REPLICA else replace(spec, backing_images=changed)


def set_replica_requirement(spec: Spec, name: str, size: int) -> Spec:
    """`set_requirement` for a replica."""
    return set_requirement(spec, Kind.REPLICA, name, size)


def set_backing_image_requirement(spec: Spec, name: str, size: int) -> Spec:
    """`set_requirement` for a backing image; its name is the key, because all of its copies are equally large."""
    return set_requirement(spec, Kind.BACKING_IMAGE, name, size)
