"""The kubectl commands that change settings of Longhorn, nodes and disks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from scheduler_core.convert.replica_move_commands import Command

_LONGHORN_NODES: Final = "nodes.longhorn.io"


def uncordon(name: str) -> Command:
    return ("kubectl", "uncordon", name)


def set_setting(name: str, namespace: str, value: str) -> Command:
    body = json.dumps({"value": value}, separators=(",", ":"))
    return ("kubectl", "-n", namespace, "patch", "settings.longhorn.io", name, "--type=merge", "-p", body)


def allow_scheduling_on_node(name: str, namespace: str, *, cancel_eviction: bool) -> Command:
    return _patch_node(name, namespace, _scheduling_fields(cancel_eviction=cancel_eviction))


def allow_scheduling_on_disk(node: str, disk: str, namespace: str, *, cancel_eviction: bool) -> Command:
    return _patch_disk(node, disk, namespace, _scheduling_fields(cancel_eviction=cancel_eviction))


def _scheduling_fields(*, cancel_eviction: bool) -> dict[str, Any]:
    # Longhorn's admission webhook refuses what is evicted and allows scheduling.
    eviction = {"evictionRequested": False} if cancel_eviction else {}
    return {"allowScheduling": True, **eviction}


def set_node_tags(name: str, namespace: str, tags: Sequence[str]) -> Command:
    """Returns the command that sets all tags of a Longhorn node."""
    return _patch_node(name, namespace, {"tags": list(tags)})


def set_disk_tags(node: str, disk: str, namespace: str, tags: Sequence[str]) -> Command:
    """Returns the command that sets all tags of a Longhorn disk."""
    return _patch_disk(node, disk, namespace, {"tags": list(tags)})


def set_storage_reserved(node: str, disk: str, namespace: str, size: int) -> Command:
    """Returns the command that reserves `size` bytes of a Longhorn disk."""
    return _patch_disk(node, disk, namespace, {"storageReserved": size})


def _patch_disk(node: str, disk: str, namespace: str, fields: dict[str, Any]) -> Command:
    return _patch_node(node, namespace, {"disks": {disk: fields}})


def _patch_node(name: str, namespace: str, spec: dict[str, Any]) -> Command:
    body = json.dumps({"spec": spec}, separators=(",", ":"))
    return ("kubectl", "-n", namespace, "patch", _LONGHORN_NODES, name, "--type=merge", "-p", body)
