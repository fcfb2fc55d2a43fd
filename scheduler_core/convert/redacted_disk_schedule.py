"""A DiskSchedule cut down to its requests and answers, and to what says whose controller answers. Decisions about pods
read it like that, and a bug report shows it. The controllers read the same object through `convert/disk_schedule.py`,
which keeps every field, because they write it back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from scheduler_core.convert import disk_schedule
from scheduler_core.convert.meta import Wire
from scheduler_core.model import disk_schedule as model


class _Spec(Wire):
    name: Any = None
    node_id: Any = msgspec.field(default=None, name="nodeID")
    replicas: Any = None
    backing_images: Any = None


class _Status(Wire):
    replicas: Any = None
    backing_images: Any = None
    conditions: Any = None

    def __post_init__(self) -> None:
        """Keeps only the types of the conditions, which say whose controller answers."""
        entries = self.conditions if isinstance(self.conditions, list) else ()
        types = (entry.get("type") for entry in entries if isinstance(entry, dict))
        self.conditions = [{"type": kind} for kind in types if isinstance(kind, str)] or None


class RedactedDiskSchedule(disk_schedule.DiskSchedule):
    """longhorn.io DiskSchedule, cut down to requests and answers."""

    spec: _Spec | None = None
    status: _Status | None = None


def redacted_disk_schedule(wire: RedactedDiskSchedule) -> model.DiskSchedule:
    """Converts a DiskSchedule; unusable fields become faults, never an exception."""
    spec, status = msgspec.to_builtins((wire.spec, wire.status))
    schedule = disk_schedule.disk_schedule(disk_schedule.DiskSchedule(metadata=wire.metadata, spec=spec, status=status))
    # A condition that comes or goes is no change for a decision.
    return replace(schedule, status=replace(schedule.status, conditions=()))
