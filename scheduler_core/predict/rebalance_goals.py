"""What replicas are moved for: what is to rise, how far, and how the clusters that moves lead to are rated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from scheduler_core.decide.decision import FilterOptions
from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.csi_driver import SIZE_STEP
from scheduler_core.model.generic import PodKey
from scheduler_core.model.quantity import MAX_BYTES
from scheduler_core.monitor.capacity_report import LargestVolumes
from scheduler_core.predict.pod_decision import PodDecider, each_fits
from scheduler_core.predict.predicted_cluster import PredictedCluster, WhatIfError
from scheduler_core.predict.predicted_replicas import Choose, choose_first
from scheduler_core.predict.situation import Situation
from scheduler_core.predict.timeline import run_order
from scheduler_core.values import replace
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
        sizes = self._largest.after(cluster.state.view)
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
            if not self.before and not any(each_fits(self.pods, cluster, self._options)):
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
