"""Wire types of what new volumes are restored from, and their conversion: VolumeSnapshots with their contents."""

from __future__ import annotations

from scheduler_core.convert.meta import Metadata, Wire
from scheduler_core.model import kube


class _SnapshotStatus(Wire):
    bound_volume_snapshot_content_name: str | None = None


class VolumeSnapshot(Wire):
    """snapshot.storage.k8s.io VolumeSnapshot."""

    metadata: Metadata
    status: _SnapshotStatus | None = None


def volume_snapshot(wire: VolumeSnapshot) -> str:
    """The VolumeSnapshotContent that a VolumeSnapshot is bound to, "" for none."""
    return (wire.status.bound_volume_snapshot_content_name if wire.status else None) or ""


class _ContentSpec(Wire):
    driver: str | None = None


class _ContentStatus(Wire):
    snapshot_handle: str | None = None


class VolumeSnapshotContent(Wire):
    """snapshot.storage.k8s.io VolumeSnapshotContent."""

    metadata: Metadata
    spec: _ContentSpec | None = None
    status: _ContentStatus | None = None


def volume_snapshot_content(wire: VolumeSnapshotContent) -> kube.VolumeSnapshotContent:
    spec = wire.spec or _ContentSpec()
    status = wire.status or _ContentStatus()
    return kube.VolumeSnapshotContent(wire.metadata.name, spec.driver or "", status.snapshot_handle or "")
