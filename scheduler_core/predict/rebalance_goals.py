"""What replicas are moved for, and what must not get worse."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import Final

from msgspec import Struct

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.csi_driver import SIZE_STEP
from scheduler_core.model import longhorn
from scheduler_core.model.generic import PodKey
from scheduler_core.model.longhorn import BEST_EFFORT
from scheduler_core.model.quantity import MAX_BYTES
from scheduler_core.monitor.capacity_report import largest_volume_on_node, storage_class_needs
from scheduler_core.predict.pod_decision import PodDecider
from scheduler_core.predict.predicted_cluster import PredictedCluster, WhatIfError
from scheduler_core.predict.predicted_replicas import Choose, choose_first, next_step
from scheduler_core.predict.situation import Situation
from scheduler_core.predict.timeline import run_order
from scheduler_core.values import replace
from scheduler_core.volumes.requirements import VolumeClasses
from scheduler_core.volumes.resolve import resolve

Clusters = Sequence[PredictedCluster]
MakeChoices = Callable[[], Iterable[Choose]]
"""Returns the choices of each order that is played, the same ones at every call."""
_NOT_ACCEPTABLE: Final = -1
# The cost of an evaluation grows with the nodes.
_EVALUATIONS_OF_ONE_NODE: Final = 100_000
_LEAST_EVALUATIONS: Final = 50


LARGEST_VOLUME: Final = "largest-volume"
WAITING_PODS: Final = "waiting-pods"


class LargestVolumes:
    """The largest new volume of each StorageClass, in clusters that differ from a first one in few nodes."""

    def __init__(self, view: View) -> None:
        self._needs = storage_class_needs(view)
        self._nodes = view.cluster.nodes
        self._by_size: dict[VolumeClasses, list[tuple[int, str]]] = {}
        for classes, _ in self._needs.values():
            if classes is not None and classes not in self._by_size:
                sizes = (
                    (largest_volume_on_node(view, classes, node), node.name) for node in view.cluster.nodes.values()
                )
                self._by_size[classes] = sorted(sizes, reverse=True)

    def after(self, view: View, changed_nodes: Collection[str]) -> dict[str, int]:
        """Returns the bytes by StorageClass in a changed cluster, which may differ from the first one in some nodes."""
        nodes = (view.cluster.nodes[name] for name in changed_nodes)
        # A move replaces the nodes of both disks, so that the others are the same objects.
        changed = [node for node in nodes if node is not self._nodes[node.name]]
        names = {node.name for node in changed}
        largest: dict[VolumeClasses, int] = {}
        for classes, sizes in self._by_size.items():
            unchanged = next((size for size, name in sizes if name not in names), 0)
            largest[classes] = max(unchanged, *(largest_volume_on_node(view, classes, node) for node in changed), 0)
        return {
            name: largest[classes] if classes is not None and largest[classes] >= smallest else 0
            for name, (classes, smallest) in self._needs.items()
        }


class LargestVolumeGoal:
    """The largest new volume of a StorageClass rises, to `size` bytes or by anything.

    Raises:
        WhatIfError: there is no such class of Longhorn
    """

    reached_by_less = False  # whether a rise below the target is worth something, too
    slow = False  # whether evaluations are slow
    max_clusters = 1024  # how many clusters a sequence of moves may lead to

    def __init__(self, cluster: PredictedCluster, storage_class: str, size: int | None) -> None:
        self._largest = LargestVolumes(cluster.state.view)
        self._class = storage_class
        sizes = self._largest.after(cluster.state.view, ())
        if storage_class not in sizes:
            raise WhatIfError(f"there is no StorageClass {storage_class} of Longhorn")
        self.before = sizes[storage_class]  # without moves
        # How many bytes a disk must have free after the last move of a useful sequence.
        self.least_free = self.before + SIZE_STEP if size is None else size
        self.target = self.least_free  # the value at which no more is wanted
        # How many clusters may be evaluated beyond those of one move, or in all if evaluations are slow.
        self.evaluations = _evaluations(cluster)
        self._limit = size

    def upper_bound(self, free: int) -> int:
        """Returns the highest value that one last move can reach if it leaves a disk with so many free bytes."""
        return free if self._limit is None else min(free, self._limit)

    def value(self, clusters: Clusters, changed_nodes: Collection[str], needed: int) -> int:  # noqa: ARG002
        """Returns the least value of the clusters, which differ from the first one in some nodes; if it is less than
        `needed`, it need not be exact.
        """
        sizes = (self._largest.after(cluster.state.view, changed_nodes) for cluster in clusters)
        return self.upper_bound(min(by_class[self._class] for by_class in sizes))


class WaitingPodsGoal:
    """More of the pods that wait are placed, by the least number in any of the orders that are played."""

    reached_by_less = True
    slow = True
    max_clusters = 128

    def __init__(self, situation: Situation, options: FilterOptions, make_choices: MakeChoices) -> None:
        self._situation = situation
        self._options = options
        self._make_choices = make_choices
        self.pods = tuple(entry.key for entry in situation.all_pods())
        self.target = len(self.pods)
        # Orders are played for each cluster, which takes several times as long as a look at its disks.
        self.evaluations = _evaluations(situation.cluster) // 4
        self.least_free = MAX_BYTES
        cluster = situation.cluster
        self.before, self._always_before = self.placed_pods(cluster, 0)
        decider = PodDecider(options)
        for key in self.pods:
            if key not in self._always_before:
                decision = decider.decide(cluster.snapshot.pods[key], cluster, choose_first)
                # Moves help no pod that kube-scheduler's own filters refuse on every node.
                if decision.decision is not None:
                    self.least_free = min(self.least_free, _least_volume(cluster, key))

    def upper_bound(self, free: int) -> int:  # noqa: ARG002 # free bytes do not bound a number of pods
        return self.target

    def value(self, clusters: Clusters, changed_nodes: Collection[str], needed: int) -> int:  # noqa: ARG002
        """Returns the number of pods that are placed, as in the other goal."""
        least = self.target
        for cluster in clusters:
            if not self.before and not any(_fits(self.pods, cluster, self._options)):
                return 0
            count, always = self.placed_pods(cluster, needed)
            least = min(least, count)
            if least < needed:
                return least
            # A pod that was always placed must stay so.
            if not always >= self._always_before:
                return _NOT_ACCEPTABLE
        return least

    def placed_pods(self, cluster: PredictedCluster, needed: int) -> tuple[int, frozenset[PodKey]]:
        """Returns the least number of placed pods, and those always placed; stops after an order in which fewer than
        `needed` are placed.
        """
        always = frozenset(self.pods)
        least = len(always)
        for choose in self._make_choices():
            result = run_order(replace(self._situation, cluster=cluster), self._options, choose)
            placed = {key for key in result.nodes if key not in result.stuck}
            always &= placed
            least = min(least, len(placed))
            if least < needed:
                break
        return least, always


Goal = LargestVolumeGoal | WaitingPodsGoal
"""What is to rise."""


def _evaluations(cluster: PredictedCluster) -> int:
    """Returns how many sequences are evaluated within some seconds."""
    return max(_LEAST_EVALUATIONS, _EVALUATIONS_OF_ONE_NODE // max(1, len(cluster.state.view.cluster.nodes)))


def _least_volume(cluster: PredictedCluster, key: PodKey) -> int:
    try:
        volumes = resolve(cluster.snapshot.pods[key], cluster.state.view).volumes
    except ResolutionError:
        return 0
    return min((volume.volume.size for volume in volumes), default=0)


def _fits(keys: Iterable[PodKey], cluster: PredictedCluster, options: FilterOptions) -> Iterator[bool]:
    decider = PodDecider(options)
    return (bool(decider.decide(cluster.snapshot.pods[key], cluster, choose_first).node) for key in keys)


class Baseline(Struct, frozen=True):
    """The cluster before all moves, by what they must not make worse."""

    cluster: PredictedCluster
    options: FilterOptions
    largest: LargestVolumes
    sizes: dict[str, int]  # bytes of the largest volume, by StorageClass
    fitting_pods: tuple[PodKey, ...]  # the waiting pods that fit on some node, each for itself
    unsettled: dict[str, bool]  # by volume that Longhorn has not all replicas of, whether it can place one now
    busy_nodes: frozenset[str]  # nodes where volumes of bound pods have no replica yet

    @classmethod
    def of(cls, situation: Situation, options: FilterOptions) -> Baseline:
        """Returns the baseline of a situation."""
        cluster = situation.cluster
        keys = [entry.key for entry in situation.all_pods()]
        largest = LargestVolumes(cluster.state.view)
        return cls(
            cluster,
            options,
            largest,
            largest.after(cluster.state.view, ()),
            tuple(compress(keys, _fits(keys, cluster, options))),
            {name: _finds_place(cluster, name) for name in sorted(_unsettled_volumes(cluster))},
            frozenset(name for name, demand in cluster.state.demand.by_node.items() if demand),
        )

    def allows(self, clusters: Clusters, changed_nodes: Collection[str]) -> bool:
        """Whether nothing is worse in clusters that differ in some nodes: every largest volume is at least as large,
        every pod that fitted fits, and Longhorn can place exactly the replicas that it could place.
        """
        for cluster in clusters:
            sizes = self.largest.after(cluster.state.view, changed_nodes)
            if any(sizes[name] < size for name, size in self.sizes.items()):
                return False
            # Further replicas would take the space that a move frees.
            if any(_finds_place(cluster, name) != before for name, before in self.unsettled.items()):
                return False
            if not all(_fits(self.fitting_pods, cluster, self.options)):
                return False
        return True


def _unsettled_volumes(cluster: PredictedCluster) -> frozenset[str]:
    """Returns the volumes that lack a replica which Longhorn would place."""
    snapshot = cluster.snapshot
    evicted = {replica.volume for replica in snapshot.replicas.values() if replica.eviction_requested}
    remote = {volume.name for volume in snapshot.volumes.values() if _lacks_local_replica(cluster, volume)}
    return cluster.incomplete_volumes | remote | (evicted & set(snapshot.volumes))


def _lacks_local_replica(cluster: PredictedCluster, volume: longhorn.Volume) -> bool:
    if volume.data_locality != BEST_EFFORT or not volume.current_node_id:
        return False
    replicas = cluster.state.view.replicas_of(volume.name)
    return not any(replica.node_id == volume.current_node_id and not replica.failed_at for replica in replicas)


def _finds_place(cluster: PredictedCluster, name: str) -> bool:
    return next_step(cluster, name, choose_first).changed
