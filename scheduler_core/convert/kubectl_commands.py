"""The kubectl commands that carry out a remedy: change settings of Longhorn, nodes and disks, or move one replica to
another disk, in the order of their execution.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, Volume

Command = tuple[str, ...]
"""The words of a command line."""

_VOLUMES: Final = "volumes.longhorn.io"
_REPLICAS: Final = "replicas.longhorn.io"
# A rebuild begins within seconds; how long it takes depends on the data.
_UNTIL_REBUILD: Final = "2m"
_UNTIL_HEALTHY: Final = "24h"


def replica_move_commands(volume: Volume, replica: str, namespace: str, *, auto_balanced: bool) -> tuple[Command, ...]:
    """Returns the commands that move a replica of a volume: they make one more replica, and then delete the old one.

    Args:
        volume: the volume as it is now; its fields are set back to these values
        replica: the name of the replica to delete
        namespace: Longhorn's
        auto_balanced: whether replica-auto-balance is in force for the volume
    """
    meanwhile: dict[str, Any] = {}
    afterwards: dict[str, Any] = {}
    if volume.data_locality == BEST_EFFORT:
        meanwhile["dataLocality"] = DISABLED
        afterwards["dataLocality"] = volume.data_locality
    if auto_balanced:
        meanwhile["replicaAutoBalance"] = DISABLED
        afterwards["replicaAutoBalance"] = volume.replica_auto_balance or "ignored"
    kubectl = ("kubectl", "-n", namespace)
    number = volume.number_of_replicas
    # Each must succeed before the next one: the replica is deleted only when the volume has one more healthy replica
    # than it needs.
    commands = (
        _patch(kubectl, volume, {"numberOfReplicas": number + 1, **meanwhile}),
        _wait(kubectl, volume, "degraded", _UNTIL_REBUILD),
        _wait(kubectl, volume, "healthy", _UNTIL_HEALTHY),
        _patch(kubectl, volume, {"numberOfReplicas": number}),
        (*kubectl, "delete", _REPLICAS, replica),
    )
    return (*commands, _patch(kubectl, volume, afterwards)) if afterwards else commands


def _patch(kubectl: Command, volume: Volume, spec: dict[str, Any]) -> Command:
    body = json.dumps({"spec": spec}, separators=(",", ":"))
    return (*kubectl, "patch", _VOLUMES, volume.name, "--type=merge", "-p", body)


def _wait(kubectl: Command, volume: Volume, robustness: str, timeout: str) -> Command:
    condition = f"--for=jsonpath={{.status.robustness}}={robustness}"
    return (*kubectl, "wait", f"{_VOLUMES}/{volume.name}", condition, f"--timeout={timeout}")


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
