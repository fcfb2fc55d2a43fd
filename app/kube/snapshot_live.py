"""Reads the live cluster as a snapshot.

The snapshot has every object that decisions read, with only the fields that they read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

from app.kube.client import ApiError, KubeClient
from app.kube.paging import pages
from app.kube.resources import LONGHORN_SETTINGS, NAMESPACES
from app.kube.watched_kinds import DISRUPTION_BUDGETS, WATCHED, WatchedKind
from scheduler_core.convert.redact import keep_selected_labels, redact, redact_namespace
from scheduler_core.convert.snapshot_kinds import KINDS, build_snapshot, group_of
from scheduler_core.errors import ObjectError
from scheduler_core.extender.settings import ENABLED, NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.snapshot import Snapshot

# The settings that decisions read; others may hold addresses and names that should stay private.
SETTINGS: Final = frozenset(
    {ENABLED, NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT}
    | {entry.metadata["name"] for entry in fields(Settings) if "name" in entry.metadata}
)
Report = Callable[[str], None]


async def read_cluster(client: KubeClient, namespace: str, progress: Report, warn: Report) -> list[dict[str, Any]]:
    """Lists the objects, ordered by kind and name.

    `namespace` is Longhorn's. `progress` receives the number of objects of each kind, `warn` what is missing or was left out.

    Raises:
        ApiError: a list is refused, or a required kind does not exist
    """
    objects: list[dict[str, Any]] = []
    for entry in WATCHED:
        objects_of_kind = await _list_objects(client, entry, namespace, warn)
        progress(f"{len(objects_of_kind)} {entry.resource.label}")
        objects += objects_of_kind
    budgets = await _list_disruption_budgets(client, namespace, warn)
    progress(f"{len(budgets)} {DISRUPTION_BUDGETS.resource.label}")
    objects += budgets
    if any("namespaceSelector" in json.dumps(entry.get("spec", {}).get("affinity", {})) for entry in objects):
        objects += await _list_namespaces(client, warn)
    keep_selected_labels(objects)
    return objects


def as_snapshot(objects: list[dict[str, Any]]) -> Snapshot:
    """Returns the snapshot that a file with these objects would give.

    Raises:
        ObjectError: an object cannot be read
    """
    kinds = [(KINDS.get((group_of(entry["apiVersion"]), entry["kind"])), entry) for entry in objects]
    return build_snapshot((kind, entry) for kind, entry in kinds if kind is not None)


async def _list_namespaces(client: KubeClient, warn: Report) -> list[dict[str, Any]]:
    """Lists namespaces; without permission there are none.

    Affinity between pods selects their labels.
    """
    namespaces: list[dict[str, Any]] = []
    try:
        async for page in pages(client, NAMESPACES.path()):
            namespaces += [redact_namespace(raw) for raw in page.items]
    except ApiError as error:
        if not error.forbidden:
            raise
        warn("namespaces cannot be listed, so a namespaceSelector of a pod selects none")
    return sorted(namespaces, key=lambda item: str(item["metadata"]["name"]))


async def _list_disruption_budgets(client: KubeClient, namespace: str, warn: Report) -> list[dict[str, Any]]:
    """Lists PodDisruptionBudgets; without permission there are none.

    Only predictions read them.
    """
    try:
        return await _list_objects(client, DISRUPTION_BUDGETS, namespace, warn)
    except ApiError as error:
        if not error.forbidden:
            raise
        warn("poddisruptionbudgets.policy cannot be listed, so that what-if predicts evictions as if there were none")
        return []


async def _list_objects(client: KubeClient, entry: WatchedKind, namespace: str, warn: Report) -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = []
    try:
        async for page in pages(client, entry.resource.path(entry.namespace(namespace))):
            for raw in page.items:
                try:
                    redacted = redact(entry.kind, entry.resource.api_version, raw)
                except ObjectError as error:
                    warn(f"left out: {error}")
                    continue
                if entry.resource is not LONGHORN_SETTINGS or redacted["metadata"]["name"] in SETTINGS:
                    objects.append(redacted)
    except ApiError as error:
        # An optional kind that is absent counts as empty everywhere.
        if not error.not_found or entry.required:
            raise
    return sorted(objects, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))
