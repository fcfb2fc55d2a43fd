"""A DiskSchedule as decisions about pods read it, and as it is shown to strangers: requests and answers, nothing else.

Its controllers read the same object through `disk_schedule.DiskSchedule`, which keeps every field, because they write it back.
"""

from __future__ import annotations

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


class DiskSchedule(disk_schedule.DiskSchedule):
    """longhorn.io DiskSchedule, cut down to what counts."""

    spec: _Spec | None = None
    status: _Status | None = None


def shown_disk_schedule(wire: DiskSchedule) -> model.DiskSchedule:
    """What counts of a DiskSchedule; a request or an answer that cannot be used is a fault of it, never an exception."""
    spec, status = msgspec.to_builtins((wire.spec, wire.status))
    return disk_schedule.disk_schedule(disk_schedule.DiskSchedule(metadata=wire.metadata, spec=spec, status=status))
