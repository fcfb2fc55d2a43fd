"""Longhorn's custom resources (longhorn.io/v1beta2): what the paths at the fields of `model/longhorn.py` do not say."""

from __future__ import annotations

from typing import Any, Final

from scheduler_core.convert.fields import Fields, map_of
from scheduler_core.convert.meta import Metadata, Wire
from scheduler_core.errors import ObjectError
from scheduler_core.model import longhorn

_DISK: Final = Fields("", longhorn.Disk)


def _join_disks(spec_disks: dict[str, Any] | None, status_disks: dict[str, Any] | None) -> tuple[longhorn.Disk, ...]:
    """The disks of a node, spec and status joined by name."""
    spec_disks = spec_disks or {}
    status_disks = status_disks or {}
    disks = []
    for name in sorted(spec_disks.keys() | status_disks.keys()):
        wire = _DISK.wire(name=name, spec=spec_disks.get(name), status=status_disks.get(name))
        try:
            disks.append(_DISK.construct(wire))
        except ObjectError as error:
            part, _, field = error.field.partition(".")
            disk = f"spec.disks.{name}" if part == "spec" else f"status.diskStatus.{name}"
            raise ObjectError("", f"{disk}.{field}", error.problem) from error
    return tuple(disks)


class _FileSpec(Wire):
    eviction_requested: bool | None = None


def _sort_disks(files: dict[str, _FileSpec | None] | None) -> tuple[str, ...]:
    return tuple(sorted(files or ()))


NODE: Final = Fields(
    "Node.longhorn.io", longhorn.Node, disks=(_join_disks, map_of(_DISK.part("spec")), map_of(_DISK.part("status")))
)
VOLUME: Final = Fields("Volume.longhorn.io", longhorn.Volume)
REPLICA: Final = Fields("Replica.longhorn.io", longhorn.Replica)
BACKING_IMAGE: Final = Fields("BackingImage.longhorn.io", longhorn.BackingImage, disks=_sort_disks)
BACKUP: Final = Fields("Backup.longhorn.io", longhorn.Backup)
ENGINE_IMAGE: Final = Fields("EngineImage.longhorn.io", longhorn.EngineImage)
INSTANCE_MANAGER: Final = Fields("InstanceManager.longhorn.io", longhorn.InstanceManager)


class _Setting(Wire):
    metadata: Metadata
    value: str | None = None


def _setting(wire: _Setting) -> str:
    return wire.value or ""


SETTING: Final = Fields.by_hand("Setting.longhorn.io", _Setting, _setting)
