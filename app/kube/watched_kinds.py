"""The kinds a decision reads, and where they are: what is watched, and what a snapshot of a live cluster holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.kube import resources
from app.kube.resources import LONGHORN_NODES, Resource
from scheduler_core.convert.snapshot_kinds import KINDS, Kind


@dataclass(frozen=True, slots=True)
class Watched:
    """One kind that decisions read.

    Attributes:
        required: whether a cluster without this kind is no cluster to decide about
    """

    resource: Resource
    required: bool = True

    @property
    def kind(self) -> Kind:
        """How its objects are read."""
        return KINDS[self.resource.group, self.resource.kind]

    def namespace(self, longhorn: str) -> str:
        """Where its objects are looked for: Longhorn's in its namespace, all others everywhere ("")."""
        return longhorn if self.resource.group == LONGHORN_NODES.group else ""


WATCHED: Final = (
    Watched(resources.NODES),
    Watched(resources.PODS),
    Watched(resources.CLAIMS),
    Watched(resources.PERSISTENT_VOLUMES),
    Watched(resources.STORAGE_CLASSES),
    Watched(resources.VOLUME_ATTACHMENTS),
    Watched(resources.LONGHORN_NODES),
    Watched(resources.LONGHORN_VOLUMES),
    Watched(resources.LONGHORN_REPLICAS),
    Watched(resources.LONGHORN_SETTINGS),
    Watched(resources.LONGHORN_ENGINE_IMAGES),
    Watched(resources.LONGHORN_INSTANCE_MANAGERS),
    Watched(resources.LONGHORN_BACKING_IMAGES, required=False),
    Watched(resources.DISK_SCHEDULES, required=False),
)
