"""A remedy with its commands, where kubectl can do it; the fields are the keys of its JSON."""

import shlex
from typing import Any

from scheduler_core.convert.kubectl import Command, patch, replica_move_commands
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import ReplicaMove, is_auto_balanced
from scheduler_core.predict.remedy import RemedyKind, Step
from scheduler_core.structs import Struct


class RemedyAnswer(Struct, frozen=True):
    """A step after which a pod fits that fits nowhere now."""

    text: str
    kind: str
    size: int  # bytes to free, to add or to copy
    steps: tuple[dict[str, Any]]  # clients read a list

    @property
    def commands(self) -> list[str]:
        """For a shell, in order; none where kubectl cannot make the change."""
        commands: list[str] = self.steps[0]["commands"]
        return commands


def remedy_answer(cluster: PredictedCluster, remedy: Step, longhorn_namespace: str) -> RemedyAnswer:
    """Returns a remedy as data, with the commands that it needs."""
    step = {
        "kind": remedy.kind,
        "text": remedy.text,
        "node": remedy.node,
        "disk": remedy.disk,
        "size": remedy.size,
        "tags": remedy.tags,
        "replica": remedy.move.replica if remedy.move is not None else "",
        "commands": [shlex.join(command) for command in step_commands(cluster, remedy, longhorn_namespace)],
    }
    return RemedyAnswer(remedy.text, remedy.kind, remedy.size, (step,))


def step_commands(cluster: PredictedCluster, step: Step, namespace: str) -> tuple[Command, ...]:
    """Returns the commands of a step, in order; none for a step that kubectl cannot do.

    Args:
        cluster: the cluster before the remedy
        step: a remedy for this cluster
        namespace: Longhorn's
    """
    if step.setting:
        return (patch(namespace, "settings.longhorn.io", step.setting, {"value": "true"}),)
    if step.kind is RemedyKind.UNCORDON:
        return (("kubectl", "uncordon", step.node),)
    if step.move is not None:
        return move_commands(cluster, step.move, namespace)
    node = cluster.snapshot.longhorn_nodes[step.node]
    disk = next((disk for disk in node.disks if disk.name == step.disk), None)
    stored = disk or node
    fields: dict[str, Any] = {}
    if step.kind in (RemedyKind.ALLOW_NODE, RemedyKind.ALLOW_DISK):
        # Longhorn's admission webhook refuses what is evicted and allows scheduling.
        fields = {"allowScheduling": True} | ({"evictionRequested": False} if stored.eviction_requested else {})
    elif step.tags:
        fields = {"tags": [*stored.tags, *step.tags]}
    elif step.kind is RemedyKind.LOWER_RESERVE and disk is not None:
        fields = {"storageReserved": disk.storage_reserved - step.size}
    else:
        return ()
    spec = {"disks": {step.disk: fields}} if step.disk else fields
    return (patch(namespace, "nodes.longhorn.io", step.node, {"spec": spec}),)


def move_commands(cluster: PredictedCluster, move: ReplicaMove, namespace: str) -> tuple[Command, ...]:
    """Returns the commands of a replica's move, in order; each must succeed before the next one."""
    volume = cluster.snapshot.volumes[move.volume]
    return replica_move_commands(volume, move.replica, namespace, auto_balanced=is_auto_balanced(cluster, volume))
