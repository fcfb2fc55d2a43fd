"""The live cluster as a snapshot: every object a decision reads, cut down to what it reads of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

from app.kube.client import ApiError, KubeClient
from app.kube.paging import pages
from app.kube.resources import LONGHORN_SETTINGS
from app.kube.watched_kinds import WATCHED, Watched
from scheduler_core.convert.redact import published
from scheduler_core.convert.snapshot_kinds import KINDS, build_snapshot, group_of
from scheduler_core.errors import ObjectError
from scheduler_core.extender.settings import ENABLED, NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.snapshot import Snapshot

# The settings that decide something; others may hold addresses and names that are nobody's business.
SETTINGS: Final = frozenset(
    {ENABLED, NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT}
    | {entry.metadata["name"] for entry in fields(Settings) if "name" in entry.metadata}
)
Tell = Callable[[str], None]


async def read_cluster(client: KubeClient, namespace: str, progress: Tell, warn: Tell) -> list[dict[str, Any]]:
    """The objects, ordered by kind and name; Longhorn's are looked for in `namespace`.

    Raises:
        ApiError: a list is refused, or a kind that must be there is not
    """
    found: list[dict[str, Any]] = []
    for entry in WATCHED:
        objects = await _objects(client, entry, namespace, warn)
        progress(f"{len(objects)} {entry.resource.label}")
        found += objects
    return found


def as_snapshot(objects: list[dict[str, Any]]) -> Snapshot:
    """The same as a snapshot file of these objects would give.

    Raises:
        ObjectError: an object cannot be read
    """
    return build_snapshot((KINDS[group_of(entry["apiVersion"]), entry["kind"]], entry) for entry in objects)


async def _objects(client: KubeClient, entry: Watched, namespace: str, warn: Tell) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        async for page in pages(client, entry.resource.path(entry.namespace(namespace))):
            for raw in page.items:
                try:
                    cut = published(entry.kind, entry.resource.api_version, raw)
                except ObjectError as error:
                    warn(f"left out: {error}")
                    continue
                if entry.resource is not LONGHORN_SETTINGS or cut["metadata"]["name"] in SETTINGS:
                    found.append(cut)
    except ApiError as error:
        if not error.not_found or entry.required:
            raise
        warn(f"the cluster knows no {entry.resource.label}")
    return sorted(found, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))
