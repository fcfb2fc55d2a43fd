"""Finds the nodes that a pod cannot get because of placements that the guard has allowed and no watch has shown.

Until a watch shows a placement, the view has the volume as demand, which any disk of its node may take. The disk of
the placement may leave no packing for one more pod. So a decision about a pod counts the placement on its disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from scheduler_core.cluster.update import Changes, update
from scheduler_core.cluster.view import View
from scheduler_core.evaluation.profile import OpenDisk
from scheduler_core.evaluation.single_node import NodeEvaluation, evaluate_node
from scheduler_core.extender.decision import Decision
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import Placement
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.resolve import PodVolume, future_volume_name


def await_allowed(decision: Decision, view: View, allowances: Iterable[Placement], budget: Budget) -> Decision:
    """Returns the decision with nodes marked WAITING where the pod is not proven to fit with placements that no watch
    has shown yet.

    Args:
        decision: about a pod, made from the view
        view: the cluster as the watches have shown it
        allowances: placements as they were allowed; those that the view shows do not count
        budget: limits the searches
    """
    fitting = frozenset(decision.fitting_nodes)
    awaited: set[str] = set()
    by_node = attrgetter("node")
    for name, on_node in groupby(sorted(allowances, key=by_node), by_node):
        pending = pending_allowances(on_node, view)
        if not pending or name not in fitting:
            continue
        # The competitors are those that the decision counted there.
        if _evaluate(decision, with_placements(view, pending), pending).reason(budget) is not Reason.ROOM:
            awaited.add(name)
    if not awaited:
        return decision
    pairs = zip(decision.candidates, decision.reasons, strict=True)
    return replace(decision, reasons=[Reason.WAITING if name in awaited else reason for name, reason in pairs])


def _evaluate(decision: Decision, view: View, placements: list[Placement]) -> NodeEvaluation:
    name = placements[0].node
    placed = {placement.volume for placement in placements}
    competitors = decision.competitors.get(name)
    others = tuple(
        volume
        for volume in (competitors.volumes if competitors is not None else ())
        if placed.isdisjoint(longhorn_names(volume, view))
    )
    return with_coming_copies(view, evaluate_node(view, decision.resolution_on(name), name, others))


def pending_allowances(allowances: Iterable[Placement], view: View) -> list[Placement]:
    replicas = view.snapshot.replicas
    return [entry for entry in allowances if not ((shown := replicas.get(entry.replica)) and shown.disk_id)]


def with_placements(view: View, placements: Iterable[Placement]) -> View:
    """Returns the view as it will be once the watches have shown these placements."""
    # The caller ends their demand: a volume may be demanded by a claim that the view does not show as bound.
    changes: Changes = {("replicas", entry.replica): _placed_replica(entry, view) for entry in placements}
    return update(view, changes, view.cluster.now).view if changes else view


def _placed_replica(placement: Placement, view: View) -> longhorn.Replica:
    replica = view.snapshot.replicas.get(placement.replica) or longhorn.Replica(
        placement.replica, placement.volume, placement.size, data_engine=placement.data_engine, image=placement.image
    )
    return replace(replica, node_id=placement.node, disk_id=placement.disk, disk_path=placement.disk_path)


def longhorn_names(volume: PodVolume, view: View) -> set[str]:
    """Returns the names that a volume has, or may have, in Longhorn."""
    if volume.bound:
        return {volume.volume.name}
    namespace, _, name = volume.claim.partition("/")
    claim = view.snapshot.claims.get((namespace, name))
    if claim is None:
        return set()
    # Each kind has a watch of its own, so an unbound claim's volume may exist before the view shows it.
    persistent_volume = view.snapshot.persistent_volumes.get(claim.spec.volume_name or view.pre_bound_volume(claim))
    return {future_volume_name(claim)} | ({persistent_volume.handle} if persistent_volume is not None else set())


def with_coming_copies(view: View, evaluation: NodeEvaluation) -> NodeEvaluation:
    """Returns the evaluation of a node with the backing images counted as present that its replicas wait for."""
    return replace(evaluation, disks=tuple(_with_coming_copies(view, disk) for disk in evaluation.disks))


def _with_coming_copies(view: View, disk: OpenDisk) -> OpenDisk:
    """Returns a disk with the backing images that replicas there still wait for."""
    coming: dict[str, int] = {}
    for replica in view.indexes.replicas_by_disk.get(disk.uuid) or ():
        volume = view.snapshot.volumes.get(replica.volume)
        image = view.snapshot.backing_images.get(volume.backing_image) if volume is not None else None
        if image is not None and disk.uuid not in image.disks:
            coming[image.name] = image.real_size
    if not coming:
        # Longhorn copies an image to a disk after it has placed the first replica that needs it.
        return disk
    copies = tuple(copy for copy in disk.copies if copy[0] not in coming)
    return replace(disk, free=disk.free - sum(coming.values()), copies=copies)
