"""The calls that the extender makes, as permissions of its ServiceAccount. The manifests grant exactly these."""

from __future__ import annotations

from typing import Final

from app.extender.offer_store import CONFIG_MAP
from app.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    LEASES,
    LONGHORN_NODES,
    LONGHORN_VOLUMES,
    MUTATING_WEBHOOKS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    STORAGE_CLASSES,
    Resource,
)
from app.kube.watched_kinds import WATCHED
from scheduler_core.leadership.election import LEASE_NAME
from scheduler_core.leadership.endpoint_slice import EXTENDER, PLACEMENT_GUARD, PLACEMENT_GUARD_STANDBY
from scheduler_core.model.installation import Permission

# Objects that a request names before a cache has them.
_FETCHED: Final = (CLAIMS, PERSISTENT_VOLUMES, PODS, STORAGE_CLASSES, LONGHORN_VOLUMES)


def _permissions(resource: Resource, *verbs: str, name: str = "", everywhere: bool = False) -> list[Permission]:
    return [Permission(verb, resource.group, resource.plural, name, everywhere) for verb in verbs]


def _cache_permissions(resource: Resource) -> list[Permission]:
    verbs = ("get", "list", "watch") if resource in _FETCHED else ("list", "watch")
    return _permissions(resource, *verbs, everywhere=resource.group != LONGHORN_NODES.group)


PERMISSIONS: Final = (
    *(permission for entry in WATCHED for permission in _cache_permissions(entry.resource)),
    # Nudges.
    *_permissions(PODS, "patch", everywhere=True),
    # The extender's own settings, and the open offers.
    *_permissions(CONFIG_MAPS, "list", "watch", name=EXTENDER.name),
    *_permissions(CONFIG_MAPS, "get", "patch", name=CONFIG_MAP),
    # Leader election. `create` cannot be granted by name.
    *_permissions(LEASES, "create"),
    *_permissions(LEASES, "get", "update", name=LEASE_NAME),
    *_permissions(ENDPOINT_SLICES, "create"),
    *(
        permission
        for service in (EXTENDER, PLACEMENT_GUARD, PLACEMENT_GUARD_STANDBY)
        for permission in _permissions(ENDPOINT_SLICES, "delete", "get", "update", name=service.name)
    ),
    # The placement guard's certificate.
    *_permissions(SECRETS, "get", "patch", name=PLACEMENT_GUARD.name),
    *_permissions(MUTATING_WEBHOOKS, "get", "patch", name=PLACEMENT_GUARD.name, everywhere=True),
)
