"""The stable JSON of `remedies`, with the commands of a remedy where kubectl can do it."""

from __future__ import annotations

import shlex

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION, RemedyAnswer, RemedyStepAnswer
from scheduler_core.convert import node_commands
from scheduler_core.convert.replica_move_commands import Command, replica_move_commands
from scheduler_core.longhorn.replica_request import auto_balance_mode
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.remedies import RemedySearch
from scheduler_core.predict.remedy import RemedyKind, Step


class RemediesAnswer(Answer):
    """The cheapest changes that make a pod fit."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "Remedies"
    pod: str = Field(description="namespace/name")
    fits: bool = Field(description="whether the pod fits as it is; then it needs no remedy")
    remedies: list[RemedyAnswer] = Field(description="the cheapest first")
    complete: bool = Field(
        description="whether everything was searched; if not, there may be cheaper remedies", default=True
    )


def remedy_answer(cluster: PredictedCluster, remedy: Step, longhorn_namespace: str) -> RemedyAnswer:
    """Returns a remedy as data, with the commands that it needs."""
    step = RemedyStepAnswer(
        kind=remedy.kind.value,
        text=remedy.text,
        node=remedy.node,
        disk=remedy.disk,
        size=remedy.size,
        tags=list(remedy.tags),
        replica=remedy.move.replica if remedy.move is not None else "",
        commands=[shlex.join(command) for command in step_commands(cluster, remedy, longhorn_namespace)],
    )
    return RemedyAnswer(text=remedy.text, kind=remedy.kind.value, size=remedy.size, steps=[step])


def remedies_answer(
    pod: str, cluster: PredictedCluster, search: RemedySearch | None, longhorn_namespace: str
) -> RemediesAnswer:
    """Returns the result of a search as data; None stands for a pod that fits."""
    if search is None:
        return RemediesAnswer(pod=pod, fits=True, remedies=[])
    answers = [remedy_answer(cluster, remedy, longhorn_namespace) for remedy in search.remedies]
    return RemediesAnswer(pod=pod, fits=False, remedies=answers, complete=search.complete)


def step_commands(cluster: PredictedCluster, step: Step, namespace: str) -> tuple[Command, ...]:
    """Returns the commands of a step, in order; none for a step that kubectl cannot do.

    Args:
        cluster: the cluster before the remedy
        step: a remedy for this cluster
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
