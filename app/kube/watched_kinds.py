"""The kinds that decisions read, which are watched and written into a snapshot of a live cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.kube import resources
from app.kube.resources import LONGHORN_NODES, Resource
from scheduler_core.convert.snapshot_kinds import KINDS, SnapshotKind


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """One kind that decisions read."""

    resource: Resource
    required: bool = True  # whether nothing can be decided in a cluster without this kind

    @property
    def kind(self) -> SnapshotKind:
        return KINDS[self.resource.group, self.resource.kind]

    def namespace(self, longhorn: str) -> str:
        """Returns the namespace to list: Longhorn's for its kinds, else all ("")."""
        return longhorn if self.resource.group == LONGHORN_NODES.group else ""


DISRUPTION_BUDGETS: Final = WatchedKind(resources.DISRUPTION_BUDGETS, required=False)
CSI_NODES: Final = WatchedKind(resources.CSI_NODES, required=False)
"""Predictions read both, and `serve` reads neither: they are part of a snapshot only."""

WATCHED: Final = (
    WatchedKind(resources.NODES),
    WatchedKind(resources.PODS),
    WatchedKind(resources.CLAIMS),
    WatchedKind(resources.PERSISTENT_VOLUMES),
    WatchedKind(resources.STORAGE_CLASSES),
    WatchedKind(resources.VOLUME_ATTACHMENTS),
    WatchedKind(resources.LONGHORN_NODES),
    WatchedKind(resources.LONGHORN_VOLUMES),
    WatchedKind(resources.LONGHORN_REPLICAS),
    WatchedKind(resources.LONGHORN_SETTINGS),
    WatchedKind(resources.LONGHORN_ENGINE_IMAGES),
    WatchedKind(resources.LONGHORN_INSTANCE_MANAGERS),
    WatchedKind(resources.LONGHORN_BACKING_IMAGES, required=False),
    WatchedKind(resources.LONGHORN_BACKUPS, required=False),
    WatchedKind(resources.DISK_SCHEDULES, required=False),
    WatchedKind(resources.VOLUME_SNAPSHOTS, required=False),
    WatchedKind(resources.VOLUME_SNAPSHOT_CONTENTS, required=False),
)
