"""Kubernetes objects: the raw object of the API server together with its model from `scheduler_core.convert`. The names of
annotations, finalizers and labels are here, too.
"""

from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Struct

Json = dict[str, Any]
Key = str | tuple[str, str]
Model = TypeVar("Model")

DRIVER = "driver.longhorn.io"
FINALIZER = "longhorn.io"
DATA_FINALIZER = "simulator/data"

DISKS = "simulator/disks"
DOWN = "simulator/down"
WRITE = "simulator/write"
REAL_SIZE = "simulator/real-size"
VIRTUAL_SIZE = "simulator/virtual-size"
VOLUMES_ATTACHED = "simulator/volumes-attached"
CLAIM = "simulator/claim"
EVICTING = "simulator/attached-for-eviction"
STOPPED_MANAGER = "simulator/stopped"

NODE_LABEL = "longhornnode"
DISK_LABEL = "longhorndiskuuid"

AUTO_SALVAGE = "auto-salvage"


class KubeObject(Struct, Generic[Model], frozen=True, eq=False):
    """One object: its raw form, never modified, and its model."""

    raw: Json
    model: Model

    @property
    def metadata(self) -> Json:
        metadata: Json = self.raw["metadata"]
        return metadata

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "")

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid") or "")

    @property
    def version(self) -> int:
        return int(self.metadata.get("resourceVersion") or 0)

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.get("annotations") or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.get("labels") or {}

    @property
    def finalizers(self) -> list[str]:
        return self.metadata.get("finalizers") or []

    @property
    def deleting(self) -> bool:
        return self.metadata.get("deletionTimestamp") is not None

    @property
    def spec(self) -> Json:
        return self.raw.get("spec") or {}

    @property
    def status(self) -> Json:
        return self.raw.get("status") or {}


def timestamp(now: datetime) -> str:
    """A time as Longhorn writes it: RFC 3339 in UTC, whole seconds."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, *, status: bool, reason: str = "", message: str = "", now: str = "") -> Json:
    """A status condition as Longhorn writes it."""
    return {
        "type": kind,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message,
        "lastProbeTime": "",
        "lastTransitionTime": now,
    }
