"""What a step of a remedy changes in the cluster: what Longhorn's controllers and kube-controller-manager then show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from scheduler_core.giving_way import give_way
from scheduler_core.longhorn.node_status import ROUNDING
from scheduler_core.model import generic, longhorn
from scheduler_core.model.kube import Condition, condition
from scheduler_core.model.longhorn import CORDONED, FILESYSTEM
from scheduler_core.predict.predicted_cluster import (
    ChangesByObject,
    PredictedCluster,
    with_disk,
    with_schedulable_condition,
)
from scheduler_core.predict.remedy import RemedyKind, Step

_UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
_SCHEDULABLE: Final = "Schedulable"


@dataclass(frozen=True, slots=True)
class StepChanges:
    """The objects that steps change."""

    # As `ClusterState.update` takes them.
    objects: ChangesByObject = field(default_factory=dict[tuple[str, str | tuple[str, str]], object | None])
    nodes: tuple[generic.Node, ...] = ()  # Kubernetes nodes as kube-scheduler's filters read them


def step_changes(cluster: PredictedCluster, steps: Sequence[Step]) -> StepChanges:
    """Returns what steps change in a cluster, in their order."""
    objects: ChangesByObject = {}
    nodes: list[generic.Node] = []
    longhorn_nodes: dict[str, longhorn.Node] = {}
    for step in steps:
        give_way()
        if step.setting:
            objects["settings", step.setting] = "true"
            continue
        name = step.node
        if step.kind is RemedyKind.UNCORDON:
            kube_node = cluster.snapshot.nodes.get(name)
            if kube_node is not None:
                objects["nodes", name] = replace(kube_node, unschedulable=False)
            if name in cluster.scheduling.nodes:
                nodes.append(_uncordon(cluster.scheduling.nodes[name].node))
        node = longhorn_nodes.get(name) or cluster.snapshot.longhorn_nodes.get(name)
        if node is not None:
            longhorn_nodes[name] = _change_node(cluster, node, step)
    objects |= {("longhorn_nodes", name): node for name, node in longhorn_nodes.items()}
    return StepChanges(objects, tuple(nodes))


def _uncordon(node: generic.Node) -> generic.Node:
    """Returns the node without the taint that the node lifecycle controller adds to cordoned nodes."""
    taints = tuple(taint for taint in node.taints if taint.key != _UNSCHEDULABLE_TAINT)
    return replace(node, unschedulable=False, taints=taints)


def _change_node(cluster: PredictedCluster, node: longhorn.Node, step: Step) -> longhorn.Node:
    if step.kind is RemedyKind.UNCORDON:
        if condition(node.conditions, _SCHEDULABLE).reason != CORDONED:
            return node
        others = tuple(entry for entry in node.conditions if entry.type != _SCHEDULABLE)
        return replace(node, conditions=(*others, Condition(_SCHEDULABLE, "True")))
    if step.kind is RemedyKind.ALLOW_NODE:
        return replace(node, allow_scheduling=True, eviction_requested=False)
    if step.kind is RemedyKind.TAG_NODE:
        return replace(node, tags=(*node.tags, *step.tags))
    disk = next(disk for disk in node.disks if disk.name == step.disk)
    if step.kind is RemedyKind.ALLOW_DISK:
        return with_disk(node, replace(disk, allow_scheduling=True, eviction_requested=False))
    if step.kind is RemedyKind.TAG_DISK:
        return with_disk(node, replace(disk, tags=(*disk.tags, *step.tags)))
    return with_disk(node, with_schedulable_condition(cluster, with_more_space(disk, step.kind, step.size)))


def with_more_space(disk: longhorn.Disk, kind: RemedyKind, size: int) -> longhorn.Disk:
    """Returns the disk after `size` bytes are freed or added, with its condition as it was."""
    if kind is RemedyKind.LOWER_RESERVE:
        return replace(disk, storage_reserved=disk.storage_reserved - size)
    if kind is RemedyKind.FREE_SCHEDULED:
        return replace(disk, storage_scheduled=disk.storage_scheduled - size)
    available = disk.storage_available + size
    if disk.spec_type == FILESYSTEM:
        # As Longhorn's disk monitor rounds it, which a status that was written by hand may not be.
        available = max(disk.storage_available, available - available % ROUNDING)
    if kind is RemedyKind.FREE_AVAILABLE:
        return replace(disk, storage_available=available)
    return replace(disk, storage_maximum=disk.storage_maximum + size, storage_available=available)
