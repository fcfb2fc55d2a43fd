"""Which program answers DiskSchedules: this project's controllers, or longhorn-manager's own (its pull request 4366).

Both use the kind `diskschedules.longhorn.io`, with different contracts (docs/disk-schedule.md). Only the definition of this project
has `status.storageAvailable`; only longhorn-manager's objects have a Longhorn node as owner, and the condition Ready.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from scheduler_core.convert.meta import Metadata, Wire, decode_json
from scheduler_core.model.kube import Condition


def is_owned_by_longhorn(metadata: Metadata, conditions: Iterable[Condition]) -> bool:
    """Whether longhorn-manager's own controller answers a DiskSchedule; a new one has no condition yet."""
    owners = metadata.owner_references or ()
    return any(owner.kind == "Node" for owner in owners) or any(each.type == "Ready" for each in conditions)


class _Properties(Wire):
    properties: dict[str, Any] | None = None


class _Schema(Wire):
    open_api_schema: _Properties | None = msgspec.field(default=None, name="openAPIV3Schema")


class _Version(Wire):
    schema: _Schema | None = None


class _Spec(Wire):
    versions: tuple[_Version, ...] = ()


class _Definition(Wire):
    metadata: Metadata
    spec: _Spec


def longhorns_definition(raw: bytes | msgspec.Raw) -> tuple[str, bool]:
    """The name of a CustomResourceDefinition of DiskSchedules, and whether it is longhorn-manager's.

    Raises:
        ObjectError: it is no CustomResourceDefinition
    """
    definition = decode_json("CustomResourceDefinition", raw, _Definition)
    schemas = (version.schema.open_api_schema for version in definition.spec.versions if version.schema is not None)
    statuses = ((schema.properties or {}).get("status") or {} for schema in schemas if schema is not None)
    ours = any("storageAvailable" in (status.get("properties") or {}) for status in statuses)
    return definition.metadata.name, not ours
