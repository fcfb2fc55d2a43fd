"""The kubectl commands of a remedy, where kubectl can do it."""

from __future__ import annotations

from scheduler_core.convert import node_commands
from scheduler_core.convert.replica_move_commands import Command, replica_move_commands
from scheduler_core.extender.planning.remedy import RemedyKind, Step
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster
from scheduler_core.longhorn.replica_request import auto_balance_mode
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED


def step_commands(cluster: PredictedCluster, step: Step, namespace: str) -> tuple[Command, ...]:
    """Returns the commands of a step, in order; none for a step that kubectl cannot do.

    Args:
        cluster: the cluster before the remedy
        step: of a remedy for this cluster
        namespace: Longhorn's
    """
    name = step.node
    if step.setting:
        return (node_commands.set_setting(step.setting, namespace, "true"),)
    if step.kind is RemedyKind.UNCORDON:
        return (node_commands.uncordon(name),)
    if step.move is not None:
        volume = cluster.snapshot.volumes[step.move.volume]
        balanced = auto_balance_mode(volume, cluster.state.view.settings) != AUTO_BALANCE_DISABLED
        return replica_move_commands(volume, step.move.replica, namespace, auto_balanced=balanced)
    node = cluster.snapshot.longhorn_nodes[name]
    if step.kind is RemedyKind.ALLOW_NODE:
        evicted = node.eviction_requested
        return (node_commands.allow_scheduling_on_node(name, namespace, cancel_eviction=evicted),)
    if step.kind is RemedyKind.TAG_NODE:
        return (node_commands.set_node_tags(name, namespace, (*node.tags, *step.tags)),)
    disk = next(disk for disk in node.disks if disk.name == step.disk)
    if step.kind is RemedyKind.ALLOW_DISK:
        evicted = disk.eviction_requested
        return (node_commands.allow_scheduling_on_disk(name, disk.name, namespace, cancel_eviction=evicted),)
    if step.kind is RemedyKind.TAG_DISK:
        return (node_commands.set_disk_tags(name, disk.name, namespace, (*disk.tags, *step.tags)),)
    if step.kind is RemedyKind.LOWER_RESERVE:
        reserved = disk.storage_reserved - step.size
        return (node_commands.set_storage_reserved(name, disk.name, namespace, reserved),)
    return ()
