"""Wire types of what new volumes are restored from, and their conversion: VolumeSnapshots with their contents, and Longhorn's backups."""

from __future__ import annotations

from scheduler_core.convert.meta import Metadata, Subject, Wire
from scheduler_core.model import kube, longhorn


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


class _BackupStatus(Wire):
    volume_size: int | str | None = None
    volume_backing_image_name: str | None = None


class Backup(Wire):
    """longhorn.io Backup."""

    metadata: Metadata
    status: _BackupStatus | None = None


def backup(wire: Backup) -> longhorn.Backup:
    """A backup; its size is 0 until Longhorn has read it from the backup target."""
    status = wire.status or _BackupStatus()
    subject = Subject("Backup.longhorn.io", wire.metadata)
    return longhorn.Backup(
        name=wire.metadata.name,
        volume_size=subject.size(status.volume_size, "status.volumeSize"),
        backing_image=status.volume_backing_image_name or "",
    )
