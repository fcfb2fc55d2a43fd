"""Steers a replica that no pod needs on its node away from space that was promised to pods. Longhorn places such
replicas on figures that lag: best-effort volumes whose disk was closed, rebuilds, evicted replicas, further copies.

Data flow: the placement → the volumes that were promised space on its node and fit there without it → Longhorn's disk if they still fit →
another disk of the node with which they are proven to → if allowed, a disk of another node that Longhorn may choose too.

Until a watch shows a placement that the guard has allowed, the view has the volume as demand, which any disk of its node may take. The
disk of the placement may leave no packing for one more pod. So a decision about a pod counts the placement on its disk, and finds the
nodes that the pod cannot get because of it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import nlargest
from itertools import chain, groupby
from operator import attrgetter

from scheduler_core.cluster.update import Changes, update
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Decision
from scheduler_core.decide.offered_nodes import exclude
from scheduler_core.evaluation import competing_volumes, fit, single_node, volumes_anywhere
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.placement import find_candidates
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model import longhorn, verdict
from scheduler_core.model.longhorn import Placement
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import Budget
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.outstanding_demand import Demand
from scheduler_core.volumes.resolve import PodVolume, future_volume_name
from scheduler_core.volumes.volume_requirements import requirements


def exclude_taken_nodes(decision: Decision, view: View, allowances: Iterable[Placement], budget: Budget) -> Decision:
    """Returns the decision with nodes marked WAITING where the pod is not proven to fit with placements that were allowed, and that
    the view, of which the decision was made, does not show yet.
    """
    fitting = frozenset(decision.fitting_nodes)
    by_node = attrgetter("node")
    pending = groupby(sorted(pending_allowances(allowances, view), key=by_node), by_node)
    evaluated = ((name, _evaluate(decision, view, list(on_node))) for name, on_node in pending if name in fitting)
    taken = (name for name, evaluation in evaluated if evaluation.reason(budget) is not verdict.Reason.ROOM)
    return exclude(decision, frozenset(taken))


def _evaluate(decision: Decision, view: View, placements: list[Placement]) -> single_node.NodeEvaluation:
    view = with_placements(view, placements)
    name = placements[0].node
    placed = {placement.volume for placement in placements}
    # The competitors are those that the decision counted there.
    competitors = decision.competitors.get(name)
    volumes = competitors.volumes if competitors is not None else ()
    others = tuple(volume for volume in volumes if placed.isdisjoint(longhorn_names(volume, view)))
    return with_coming_copies(view, single_node.evaluate_node(view, decision.resolution_on(name), name, others))


def pending_allowances(allowances: Iterable[Placement], view: View) -> list[Placement]:
    replicas = view.snapshot.replicas
    return [entry for entry in allowances if not ((shown := replicas.get(entry.replica)) and shown.disk_id)]


def with_placements(view: View, placements: Iterable[Placement]) -> View:
    """Returns the view with placements that no watch has shown."""
    # The caller ends their demand: a volume may be demanded by a claim that the view does not show as bound.
    placed: list[longhorn.Replica] = []
    for entry in placements:
        shown = view.snapshot.replicas.get(entry.replica)
        replica = shown or longhorn.Replica(
            entry.replica, entry.volume, entry.size, data_engine=entry.data_engine, image=entry.image
        )
        placed.append(replace(replica, node_id=entry.node, disk_id=entry.disk, disk_path=entry.disk_path))
    changes: Changes = {("replicas", replica.name): replica for replica in placed}
    return update(view, changes, view.cluster.now).view if changes else view


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


def with_coming_copies(view: View, evaluation: single_node.NodeEvaluation) -> single_node.NodeEvaluation:
    """Returns the evaluation with the backing images that Longhorn copies to disks once replicas that need them are there."""
    disks: list[fit.OpenDisk] = []
    for disk in evaluation.disks:
        coming: dict[str, int] = {}
        for replica in view.indexes.replicas_by_disk.get(disk.uuid) or ():
            volume = view.snapshot.volumes.get(replica.volume)
            image = view.snapshot.backing_images.get(volume.backing_image) if volume is not None else None
            if image is not None and disk.uuid not in image.disks:
                coming[image.name] = image.real_size
        copies = tuple(copy for copy in disk.copies if copy[0] not in coming)
        disks.append(replace(disk, free=disk.free - sum(coming.values()), copies=copies) if coming else disk)
    return replace(evaluation, disks=tuple(disks))


def evaluate_volumes(view: View, volumes: Sequence[PodVolume], name: str) -> single_node.NodeEvaluation:
    """Evaluates one node for volumes to come."""
    return with_coming_copies(view, single_node.evaluate_requirements(view, requirements(volumes, volumes), name))


def may_fit(view: View, volumes: Sequence[PodVolume], name: str, budget: Budget) -> bool:
    return not volumes or evaluate_volumes(view, volumes, name).reason(budget) in volumes_anywhere.FITTING


def reason_by_half(evaluation: single_node.NodeEvaluation, budget: Budget) -> verdict.Reason:
    """Returns the reason by a search of half the budget: the other disks need steps, too."""
    portion = budget.portion(budget.left // 2)
    reason = evaluation.reason(portion)
    budget.take_back([portion])
    return reason


Demands = Sequence[Demand]


class VolumesToCome(Struct, frozen=True):
    """The volumes of demand and offers that need space on a node."""

    demands: Demands
    offers: competing_volumes.VolumesByOffer

    @classmethod
    def of(cls, view: View, demands: Demands, ledger: Ledger, node: str) -> "VolumesToCome":
        """Returns all that need space there."""
        offers = ledger.offers_on(node)
        counted = competing_volumes.without_matched_claims(demands, offers, node)
        shown = {demand.volume.volume.name for demand in counted if demand.volume.bound}

        # Each kind has a watch of its own, so a volume may be shown as attached before its claim is shown as bound; it
        # counts then.
        def counts(volume: PodVolume) -> bool:
            return volume.bound or longhorn_names(volume, view).isdisjoint(shown)

        by_offer = competing_volumes.OfferedVolumes().on_node(offers, node, view)
        return cls(
            [demand for demand in counted if counts(demand.volume)],
            [(offer, [volume for volume in volumes if counts(volume)]) for offer, volumes in by_offer],
        )

    def need_of(self, name: str, view: View) -> tuple[PodVolume, str] | None:
        """Returns the volume of this Longhorn name and its pod, ``namespace/name``; None if no pod needs it."""
        for demand in self.demands:
            if name in longhorn_names(demand.volume, view):
                return demand.volume, demand.pod
        # Longhorn places a volume after its pod was bound, so an offer that has it was decided for, though no watch has
        # shown that yet.
        for offer, volumes in self.offers:
            for volume in volumes if offer.priority is None else ():
                if name in longhorn_names(volume, view):
                    return volume, f"{offer.pod.namespace}/{offer.pod.name}"
        return None

    def competing(self, placed: Collection[str], view: View) -> competing_volumes.CompetingVolumes:
        """Returns the volumes by how certain they are; offers with one of the placed volumes are decided already."""
        decided = [
            volumes
            for offer, volumes in self.offers
            if offer.priority is None and any(not longhorn_names(volume, view).isdisjoint(placed) for volume in volumes)
        ]
        competing = competing_volumes.by_certainty(self.demands, self.offers)
        return competing._replace(demanded=[*competing.demanded, *chain.from_iterable(decided)])


def placed_identities(
    competing: competing_volumes.CompetingVolumes, allowed: Collection[str], view: View
) -> frozenset[str]:
    """Returns the identities of competing volumes that are placed, by the allowed Longhorn names or by the view."""
    placed: set[str] = set()
    for key, volume in competing_volumes.all_volumes(competing).volumes.items():
        names = longhorn_names(volume, view)
        # The view may show a replica with a disk before it shows that the claim is bound.
        ahead = not volume.bound and any(replica.disk_id for name in names for replica in view.replicas_of(name))
        if ahead or not names.isdisjoint(allowed):
            placed.add(key)
    return frozenset(placed)


# Each costs a search; API server and Longhorn wait for the answer.
_MAX_NODES = 16
# Among these Longhorn's rules choose; all of a large cluster's nodes would take seconds.
_MAX_CONSIDERED = 100


class Steering:
    """Looks for a place of one replica, by a view with what was allowed and no watch has shown. `competing` returns the volumes that
    were promised space on a node, without this one. `other_nodes`: whether the replica may be moved to another node.
    """

    def __init__(
        self,
        placement: Placement,
        view: View,
        competing: Callable[[str], competing_volumes.CompetingVolumes],
        budget: Budget,
        *,
        other_nodes: bool,
    ) -> None:
        self._placement = placement
        self._view = view
        self._competing = competing
        self._budget = budget
        self._other_nodes = other_nodes
        self._promised: dict[str, competing_volumes.FittingVolumes] = {}
        self.keeps_offers = True  # whether the place keeps what undecided pods were offered, too
        self.breaks_promise = False  # whether what was promised does not fit with Longhorn's own choice

    def place(self) -> Placement | None:
        """Returns the place with which all that was promised there still fits, None without one."""
        chosen = self._placement
        candidates: Sequence[Placement] | None = None
        # If the offers fit nowhere, too, a place that keeps what is decided is better than one that does not.
        for with_offers in (True, False):
            self.keeps_offers = with_offers
            self.breaks_promise = self._reason(chosen, with_offers=with_offers) not in volumes_anywhere.FITTING
            if not self.breaks_promise and not self.overfills:
                return chosen
            if candidates is None:
                candidates = self._candidates()
            for candidate in candidates:
                if self._reason(candidate, with_offers=with_offers) is verdict.Reason.ROOM:
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
        return len(self._promised[self._placement.node].volumes)

    def _reason(self, candidate: Placement, *, with_offers: bool) -> verdict.Reason:
        name = candidate.node
        if name not in self._promised:
            may_fit_there = partial(may_fit, self._view, name=name, budget=self._budget)
            self._promised[name] = competing_volumes.fitting_volumes(self._competing(name), may_fit_there)
        fitting = self._promised[name]
        promised = list((fitting.volumes if with_offers else fitting.demanded).values())
        if not promised:
            return verdict.Reason.ROOM
        return reason_by_half(evaluate_volumes(with_placements(self._view, [candidate]), promised, name), self._budget)

    def _candidates(self) -> Sequence[Placement]:
        view = self._view
        volume = view.snapshot.volumes.get(self._placement.volume)
        if volume is None:
            return ()
        names = [self._placement.node]
        if self._other_nodes:
            replicas = view.replicas_of(volume.name)
            cluster = self._part_of_cluster({replica.node_id for replica in replicas})
            allowed = find_candidates(cluster, ReplicaRequest.for_replica(volume, self._placement), replicas)
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

        names = {node.name for node in nlargest(_MAX_CONSIDERED, cluster.nodes.values(), key=space)}.union(homes)
        return replace(cluster, nodes={name: node for name, node in cluster.nodes.items() if name in names})


def disk_with_schedule(node: str, view: View) -> str:
    # The DiskSchedule has promised the space to a replica on that disk, and on no other one.
    disks = view.snapshot.longhorn_nodes[node].disks
    return next((disk.name for disk in disks if view.schedule_of(disk) is not None), "")


def legal_disks(view: View, placement: Placement, volume: longhorn.Volume) -> frozenset[str]:
    """Returns the UUIDs of the node's disks that Longhorn would consider for this replica, by their true load."""
    node = view.snapshot.longhorn_nodes[placement.node]
    node = replace(node, disks=tuple(_with_true_load(view, node.name, disk) for disk in node.disks))
    request = ReplicaRequest.for_replica(volume, placement)
    candidates = find_candidates(replace(view.cluster, nodes={node.name: node}), request, view.replicas_of(volume.name))
    return frozenset(candidate.disk_uuid for candidate in candidates.disks)


def _with_true_load(view: View, node: str, disk: longhorn.Disk) -> longhorn.Disk:
    """Returns a disk as its status will be once it counts everything."""
    listed = {replica.name: replica.size for replica in view.unlisted_replicas_on(disk)}
    return replace(
        disk,
        storage_scheduled=disk.storage_scheduled + view.uncounted_bytes(node, disk),
        scheduled_replicas={**disk.scheduled_replicas, **listed},
    )
