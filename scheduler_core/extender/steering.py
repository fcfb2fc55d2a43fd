"""Steers a replica that no pod needs on its node away from space that was promised to pods. Longhorn places such
replicas on figures that lag: best-effort volumes whose disk was closed, rebuilds, evicted replicas, further copies.

Data flow: the placement → the volumes that were promised space on its node and fit there without it → Longhorn's disk if they still fit →
another disk of the node with which they are proven to → if allowed, a disk of another node that Longhorn may choose too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from heapq import nlargest
from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.competitors import CompetingVolumes, FittingVolumes, fitting_volumes
from scheduler_core.evaluation.single_node import evaluate_requirements
from scheduler_core.evaluation.volumes_anywhere import FITTING
from scheduler_core.extender.allowed_placements import with_coming_copies, with_placements
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.placement import find_candidates
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import Placement
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.requirements import requirements
from scheduler_core.volumes.resolve import PodVolume

# Each costs a search; API server and Longhorn wait for the answer.
_MAX_NODES: Final = 16
# Among these Longhorn's rules choose; all of a large cluster's nodes would take seconds.
_MAX_CONSIDERED: Final = 100


class Steering:
    """Looks for a place of one replica.

    Args:
        view: with what was allowed and no watch has shown
        competing: returns the volumes that were promised space on a node, without this one
        other_nodes: whether the replica may be moved to another node
    """

    def __init__(
        self,
        placement: Placement,
        view: View,
        competing: Callable[[str], CompetingVolumes],
        budget: Budget,
        *,
        other_nodes: bool,
    ) -> None:
        self._placement = placement
        self._view = view
        self._competing = competing
        self._budget = budget
        self._other_nodes = other_nodes
        self._promised: dict[str, FittingVolumes] = {}
        self.keeps_offers = True  # whether the place keeps what undecided pods were offered, too
        self.breaks_promise = False  # whether what was promised does not fit with Longhorn's own choice

    def place(self) -> Placement | None:
        """Returns the place with which all that was promised there still fits, None without one."""
        chosen = self._placement
        candidates: Sequence[Placement] | None = None
        # If the offers fit nowhere, too, a place that keeps what is decided is better than one that does not.
        for with_offers in (True, False):
            self.keeps_offers = with_offers
            self.breaks_promise = self._reason(chosen, with_offers=with_offers) not in FITTING
            if not self.breaks_promise and not self.overfills:
                return chosen
            if candidates is None:
                candidates = self._candidates()
            for candidate in candidates:
                if self._reason(candidate, with_offers=with_offers) is Reason.ROOM:
                    return candidate
        return None

    @property
    def overfills(self) -> bool:
        """Whether Longhorn's disk would hold more than Longhorn allows, by all that is placed there."""
        placement = self._placement
        node = self._view.snapshot.longhorn_nodes[placement.node]
        disk = _with_true_load(self._view, node.name, next(disk for disk in node.disks if disk.uuid == placement.disk))
        return disk.storage_scheduled + placement.size > scheduling_limit(disk, self._view.cluster.settings)

    @property
    def promised(self) -> int:
        """How many volumes were promised space on the node of Longhorn's choice."""
        return len(self._promised[self._placement.node].volumes)

    def _reason(self, candidate: Placement, *, with_offers: bool) -> Reason:
        """Returns whether all that was promised on the candidate's node fits there with it."""
        name = candidate.node
        if name not in self._promised:
            fitting = fitting_volumes(self._competing(name), lambda volumes: self._fit(name, volumes))
            self._promised[name] = fitting
        fitting = self._promised[name]
        promised = list((fitting.volumes if with_offers else fitting.demanded).values())
        if not promised:
            return Reason.ROOM
        # The other disks need steps, too.
        portion = self._budget.portion(self._budget.left // 2)
        reason = self._evaluate(with_placements(self._view, [candidate]), name, promised, portion)
        self._budget.take_back([portion])
        return reason

    def _fit(self, name: str, volumes: Sequence[PodVolume]) -> bool:
        return not volumes or self._evaluate(self._view, name, volumes, self._budget) in FITTING

    @staticmethod
    def _evaluate(view: View, name: str, volumes: Sequence[PodVolume], budget: Budget) -> Reason:
        evaluation = evaluate_requirements(view, requirements(volumes, volumes), name)
        return with_coming_copies(view, evaluation).reason(budget)

    def _candidates(self) -> Sequence[Placement]:
        """Returns the other places that Longhorn's rules allow, those of the same node first."""
        view = self._view
        volume = view.snapshot.volumes.get(self._placement.volume)
        if volume is None:
            return ()
        names = [self._placement.node]
        if self._other_nodes:
            replicas = view.replicas_of(volume.name)
            cluster = self._part_of_cluster({replica.node_id for replica in replicas})
            allowed = find_candidates(cluster, replica_request(self._placement, volume), replicas)
            names += sorted({candidate.node.name for candidate in allowed.disks} - set(names))[:_MAX_NODES]
        places: list[Placement] = []
        for name in names:
            if not disk_with_schedule(name, view):
                moved = replace(self._placement, node=name)
                legal = legal_disks(view, moved, volume) - {self._placement.disk}
                disks = sorted(view.snapshot.longhorn_nodes[name].disks, key=lambda disk: disk.name)
                places += [replace(moved, disk=disk.uuid, disk_path=disk.path) for disk in disks if disk.uuid in legal]
        return places

    def _part_of_cluster(self, homes: Collection[str]) -> Cluster:
        """Returns the nodes with most space, and those of the volume's replicas."""
        # To examine all nodes would take too long.
        cluster = self._view.cluster

        def space(node: longhorn.Node) -> int:
            return max((disk.storage_maximum - disk.storage_scheduled for disk in node.disks), default=0)

        roomy = nlargest(_MAX_CONSIDERED, cluster.nodes.values(), key=space)
        nodes = {node.name: node for node in roomy} | {
            name: cluster.nodes[name] for name in homes if name in cluster.nodes
        }
        return replace(cluster, nodes=nodes)


def disk_with_schedule(node: str, view: View) -> str:
    """Returns the name of a disk that has a DiskSchedule, or ""."""
    # The DiskSchedule has promised the space to a replica on that disk, and on no other one.
    disks = view.snapshot.longhorn_nodes[node].disks
    return next((disk.name for disk in disks if view.schedule_of(disk) is not None), "")


def legal_disks(view: View, placement: Placement, volume: longhorn.Volume) -> frozenset[str]:
    """Returns the UUIDs of disks of the placement's node that Longhorn's scheduler would consider for this replica, by
    their true load.
    """
    node = view.snapshot.longhorn_nodes[placement.node]
    node = replace(node, disks=tuple(_with_true_load(view, node.name, disk) for disk in node.disks))
    request = replica_request(placement, volume)
    candidates = find_candidates(replace(view.cluster, nodes={node.name: node}), request, view.replicas_of(volume.name))
    return frozenset(candidate.disk_uuid for candidate in candidates.disks)


def replica_request(placement: Placement, volume: longhorn.Volume) -> ReplicaRequest:
    """Returns what Longhorn's scheduler is asked for a replica."""
    return ReplicaRequest(
        volume=volume,
        replica_size=placement.size,
        data_engine=placement.data_engine,
        image=placement.image,
        hard_node_affinity=placement.hard_node_affinity,
        linked_clone_source=placement.linked_clone_source,
    )


def _with_true_load(view: View, node: str, disk: longhorn.Disk) -> longhorn.Disk:
    """Returns a disk as its status will be once it counts everything."""
    listed = {replica.name: replica.size for replica in view.unlisted_replicas_on(disk)}
    return replace(
        disk,
        storage_scheduled=disk.storage_scheduled + view.uncounted_bytes(node, disk),
        scheduled_replicas={**disk.scheduled_replicas, **listed},
    )
