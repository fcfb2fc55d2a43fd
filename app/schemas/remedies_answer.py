"""A remedy with its commands, where kubectl can do it; the fields are the keys of its JSON."""

from __future__ import annotations

import shlex

from msgspec import Struct

from scheduler_core.convert import kubectl
from scheduler_core.convert.kubectl import Command, replica_move_commands
from scheduler_core.longhorn.replica_request import auto_balance_mode
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.remedy import RemedyKind, Step


class RemedyStepAnswer(Struct, frozen=True):
    """One change of the cluster."""

    kind: str
    text: str
    node: str
    disk: str  # its name; "" for a change of the node
    size: int  # bytes to free, to add or to copy
    tags: tuple[str, ...]  # the tags to add
    replica: str  # the replica to move; "" for other kinds
    commands: list[str]  # for a shell, in order; empty where kubectl cannot make the change


class RemedyAnswer(Struct, frozen=True):
    """A step after which a pod fits that fits nowhere now."""

    text: str
    kind: str
    size: int  # bytes to free, to add or to copy
    steps: tuple[RemedyStepAnswer, ...]  # one; clients read a list

    @property
    def commands(self) -> list[str]:
        return [command for step in self.steps for command in step.commands]


def remedy_answer(cluster: PredictedCluster, remedy: Step, longhorn_namespace: str) -> RemedyAnswer:
    """Returns a remedy as data, with the commands that it needs."""
    step = RemedyStepAnswer(
        kind=remedy.kind.value,
        text=remedy.text,
        node=remedy.node,
        disk=remedy.disk,
        size=remedy.size,
        tags=remedy.tags,
        replica=remedy.move.replica if remedy.move is not None else "",
        commands=[shlex.join(command) for command in step_commands(cluster, remedy, longhorn_namespace)],
    )
    return RemedyAnswer(remedy.text, remedy.kind.value, remedy.size, (step,))


def step_commands(cluster: PredictedCluster, step: Step, namespace: str) -> tuple[Command, ...]:
    """Returns the commands of a step, in order; none for a step that kubectl cannot do.

    Args:
        cluster: the cluster before the remedy
        step: a remedy for this cluster
        namespace: Longhorn's
    """
    name = step.node
    if step.setting:
        return (kubectl.set_setting(step.setting, namespace, "true"),)
    if step.kind is RemedyKind.UNCORDON:
        return (kubectl.uncordon(name),)
    if step.move is not None:
        volume = cluster.snapshot.volumes[step.move.volume]
        balanced = auto_balance_mode(volume, cluster.state.view.settings) != AUTO_BALANCE_DISABLED
        return replica_move_commands(volume, step.move.replica, namespace, auto_balanced=balanced)
    node = cluster.snapshot.longhorn_nodes[name]
    if step.kind is RemedyKind.ALLOW_NODE:
        evicted = node.eviction_requested
        return (kubectl.allow_scheduling_on_node(name, namespace, cancel_eviction=evicted),)
    if step.kind is RemedyKind.TAG_NODE:
        return (kubectl.set_node_tags(name, namespace, (*node.tags, *step.tags)),)
    disk = next(disk for disk in node.disks if disk.name == step.disk)
    if step.kind is RemedyKind.ALLOW_DISK:
        evicted = disk.eviction_requested
        return (kubectl.allow_scheduling_on_disk(name, disk.name, namespace, cancel_eviction=evicted),)
    if step.kind is RemedyKind.TAG_DISK:
        return (kubectl.set_disk_tags(name, disk.name, namespace, (*disk.tags, *step.tags)),)
    if step.kind is RemedyKind.LOWER_RESERVE:
        reserved = disk.storage_reserved - step.size
        return (kubectl.set_storage_reserved(name, disk.name, namespace, reserved),)
    return ()
