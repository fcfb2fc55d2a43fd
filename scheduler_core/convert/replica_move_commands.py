"""The kubectl commands that move one replica to another disk, in the order of their execution."""

from __future__ import annotations

import json
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
