"""Reads the live cluster as a snapshot: every object that decisions read, with only the fields that they read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields
from functools import partial
from typing import Any, Final

import msgspec

from app.kube.client import ApiError, KubeClient
from app.kube.cluster_cache import CSI_NODES, DISRUPTION_BUDGETS, WATCHED, WatchedKind
from app.kube.paging import pages
from app.kube.resources import LONGHORN_SETTINGS, NAMESPACES, STATEFUL_SETS
from scheduler_core.convert.redact import (
    keep_selected_labels,
    redact,
    redact_namespace,
    redact_stateful_set,
    selects_namespaces,
)
from scheduler_core.convert.snapshot_kinds import PREDICTED_KINDS, build_snapshot, group_of
from scheduler_core.decide.settings import NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT
from scheduler_core.errors import ObjectError
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.installation import ENABLED
from scheduler_core.model.snapshot import Snapshot

# The settings that decisions read; others may hold addresses and names that should stay private.
SETTINGS: Final = frozenset(
    {ENABLED, NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT}
    | {entry.metadata["name"] for entry in fields(Settings) if "name" in entry.metadata}
)
_NO_NAMESPACES: Final = "namespaces cannot be listed, so a namespaceSelector of a pod selects none"
_NO_BUDGETS: Final = (
    "poddisruptionbudgets.policy cannot be listed, so that what-if predicts evictions as if there were none"
)
_NO_CSI_NODES: Final = (
    "csinodes.storage.k8s.io cannot be listed, so that Longhorn's CSI driver counts as registered on every node"
)
_NO_STATEFUL_SETS: Final = "statefulsets.apps cannot be listed, so that what-if predicts the pods of every StatefulSet as created one after the other"
Report = Callable[[str], None]
Redact = Callable[[bytes | msgspec.Raw], dict[str, Any]]


async def read_cluster(client: KubeClient, namespace: str, progress: Report, warn: Report) -> list[dict[str, Any]]:
    """Lists the objects, ordered by kind and name. `namespace` is Longhorn's. `progress` receives the number of objects
    of each kind, `warn` what is missing or was left out.

    Raises:
        ApiError: a list is refused, or a required kind does not exist
    """
    objects: list[dict[str, Any]] = []
    for entry in WATCHED:
        objects_of_kind = await _list_kind(client, entry, namespace, warn)
        progress(f"{len(objects_of_kind)} {entry.resource.label}")
        objects += objects_of_kind
    for entry, warning in ((DISRUPTION_BUDGETS, _NO_BUDGETS), (CSI_NODES, _NO_CSI_NODES)):
        objects_of_kind = await _unless_forbidden(_list_kind(client, entry, namespace, warn), warn, warning)
        progress(f"{len(objects_of_kind)} {entry.resource.label}")
        objects += objects_of_kind
    stateful_sets = await _unless_forbidden(
        _list_objects(client, STATEFUL_SETS.path(), redact_stateful_set, warn), warn, _NO_STATEFUL_SETS
    )
    progress(f"{len(stateful_sets)} {STATEFUL_SETS.label}")
    objects += stateful_sets
    if selects_namespaces(objects):
        namespaces = _list_objects(client, NAMESPACES.path(), redact_namespace, warn)
        objects += await _unless_forbidden(namespaces, warn, _NO_NAMESPACES)
    keep_selected_labels(objects)
    return objects


def as_snapshot(objects: list[dict[str, Any]]) -> Snapshot:
    """Returns the snapshot that a file with these objects would give.

    Raises:
        ObjectError: an object cannot be read
    """
    kinds = [(PREDICTED_KINDS.get((group_of(entry["apiVersion"]), entry["kind"])), entry) for entry in objects]
    return build_snapshot((kind, entry) for kind, entry in kinds if kind is not None)


async def _unless_forbidden(
    listing: Awaitable[list[dict[str, Any]]], warn: Report, warning: str
) -> list[dict[str, Any]]:
    """Returns the objects of a list; without permission there are none, and `warning` says what follows."""
    try:
        return await listing
    except ApiError as error:
        if not error.forbidden:
            raise
        warn(warning)
        return []


async def _list_kind(client: KubeClient, entry: WatchedKind, namespace: str, warn: Report) -> list[dict[str, Any]]:
    """Lists a kind that decisions read; an optional one that is absent counts as empty everywhere."""
    path = entry.resource.path(entry.namespace(namespace))
    try:
        objects = await _list_objects(client, path, partial(redact, entry.kind, entry.resource.api_version), warn)
    except ApiError as error:
        if not error.not_found or entry.required:
            raise
        return []
    if entry.resource is LONGHORN_SETTINGS:
        return [raw for raw in objects if raw["metadata"]["name"] in SETTINGS]
    return objects


async def _list_objects(client: KubeClient, path: str, redact_object: Redact, warn: Report) -> list[dict[str, Any]]:
    """Lists the objects of a collection by name, without those that cannot be read."""
    objects: list[dict[str, Any]] = []
    async for page in pages(client, path):
        for raw in page.items:
            try:
                objects.append(redact_object(raw))
            except ObjectError as error:
                warn(f"left out: {error}")
    return sorted(objects, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))
