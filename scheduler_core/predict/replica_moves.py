"""The fewest moves of replicas after which more fits: a larger new volume, or more of the pods that wait.

Data flow: a `Goal` → sequences of one move, of two, and so on (`MoveSequence`) → of those that raise the goal's value whatever Longhorn
chooses, and make nothing worse (`Baseline`), the one with the highest value and the fewest bytes to copy.

While there are few sequences, all of them are tried; then it is proven that fewer moves do not suffice. Otherwise only those are
continued whose moves leave most space on one disk.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress, islice

from scheduler_core import errors
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.longhorn.csi_driver import SIZE_STEP
from scheduler_core.model import generic, longhorn
from scheduler_core.monitor.capacity_report import LargestVolumes
from scheduler_core.predict import pod_decision, predicted_replicas, timeline
from scheduler_core.predict.predicted_cluster import PredictedCluster, WhatIfError
from scheduler_core.predict.predicted_replicas import Choose, ReplicaMove, choose_first
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.resolve import resolve

DEFAULT_MAX_MOVES = 3
# Up to this number of sequences of one length, all are tried, else those of the most promising moves are continued.
_MAX_EXHAUSTIVE = 2_000
_BEAM_WIDTH = 12
# A sequence whose moves may lead to more clusters is not continued.
_CONTINUED_CLUSTERS = 16
# How many clusters are made at most, which takes some seconds. For a goal of pods orders are played in each, so that the cost of one
# grows with the nodes.
_MAX_CLUSTERS = 20_000
_CLUSTERS_OF_ONE_NODE = 25_000
_LEAST_CLUSTERS = 50

LARGEST_VOLUME = "largest-volume"
WAITING_PODS = "waiting-pods"


class Baseline:
    """The cluster before all moves, by what they must not make worse."""

    def __init__(self, situation: Situation, options: FilterOptions) -> None:
        self.situation = situation
        self.options = options
        self.cluster = cluster = situation.cluster
        view = cluster.state.view
        volumes = cluster.snapshot.volumes
        self.largest = LargestVolumes(view)
        self.sizes = self.largest.after(view)  # bytes of the largest volume, by StorageClass
        self.pods = tuple(entry.key for entry in situation.all_pods())
        # Each fits on some node, for itself.
        self._fitting_pods = tuple(compress(self.pods, pod_decision.each_fits(self.pods, cluster, options)))
        evicted = {each.volume for each in cluster.snapshot.replicas.values() if each.eviction_requested}
        remote = {
            name
            for name, each in volumes.items()
            if predicted_replicas.lacks_local_replica(each, view.replicas_of(name))
        }
        unsettled = cluster.incomplete_volumes | remote | (evicted & set(volumes))
        # By volume that Longhorn has not all replicas of, whether it can place one now.
        self.unsettled = {name: _finds_place(cluster, name) for name in sorted(unsettled)}
        # Nodes where volumes of bound pods have no replica yet.
        self.busy_nodes = frozenset(name for name, demand in cluster.state.demand.by_node.items() if demand)

    def allows(self, cluster: PredictedCluster, changed_nodes: Collection[str]) -> bool:
        """Whether nothing is worse in a cluster that differs in some nodes: every largest volume is at least as large,
        every pod that fitted fits, and Longhorn can place exactly the replicas that it could place.
        """
        sizes = self.largest.after(cluster.state.view, changed_nodes)
        return (
            all(sizes[name] >= size for name, size in self.sizes.items())
            # Further replicas would take the space that a move frees.
            and all(_finds_place(cluster, name) == before for name, before in self.unsettled.items())
            and all(pod_decision.each_fits(self._fitting_pods, cluster, self.options))
        )


def _finds_place(cluster: PredictedCluster, name: str) -> bool:
    return predicted_replicas.next_step(cluster, name, choose_first).changed


class Goal(Struct, frozen=True):
    """What is to rise, and how far."""

    before: int  # the value without moves
    target: int  # the value at which no more is wanted
    least_free: int  # bytes that a disk must have free after the last move of a useful sequence
    max_clusters: int
    # The value of a cluster that differs from the first one in some nodes; if it is less than the last argument, it need not be exact.
    value: Callable[[PredictedCluster, Collection[str], int], int]


def largest_volume_goal(baseline: Baseline, storage_class: str, size: int | None) -> Goal:
    """The largest new volume of a StorageClass rises, to `size` bytes or by anything. Raises a WhatIfError if there is
    no such class of Longhorn.
    """
    if storage_class not in baseline.sizes:
        raise WhatIfError(f"there is no StorageClass {storage_class} of Longhorn")
    before = baseline.sizes[storage_class]
    target = before + SIZE_STEP if size is None else size

    def value(cluster: PredictedCluster, changed_nodes: Collection[str], _: int) -> int:
        largest = baseline.largest.after(cluster.state.view, changed_nodes)[storage_class]
        if size is None:
            return largest
        # Less than the size is worth nothing, and more than it nothing more.
        return size if largest >= size else 0

    return Goal(before, target, target, _MAX_CLUSTERS, value)


def waiting_pods_goal(baseline: Baseline, make_choices: Callable[[], Iterable[Choose]]) -> Goal:
    """More of the pods that wait are placed, by the least number in any of the orders that are played. `make_choices`
    returns the choices of each order, the same ones at every call.
    """
    pods = baseline.pods

    def placed_pods(cluster: PredictedCluster, needed: int) -> tuple[int, frozenset[generic.PodKey]]:
        # The least number of placed pods, and those always placed; ends with an order in which fewer than `needed` are placed.
        always = frozenset(pods)
        least = len(pods)
        for choose in make_choices():
            result = timeline.run_order(replace(baseline.situation, cluster=cluster), baseline.options, choose)
            placed = {key for key in result.nodes if key not in result.stuck}
            always &= placed
            least = min(least, len(placed))
            if least < needed:
                break
        return least, always

    before, always_before = placed_pods(baseline.cluster, 0)

    def value(cluster: PredictedCluster, _: Collection[str], needed: int) -> int:
        hopeless = not before and not any(pod_decision.each_fits(pods, cluster, baseline.options))
        if needed > len(pods) or hopeless:
            return 0
        count, always = placed_pods(cluster, needed)
        # A pod that was always placed must stay so.
        return count if always >= always_before else 0

    sizes = (_least_volume(baseline.cluster, key) for key in pods if key not in always_before)
    clusters = max(_LEAST_CLUSTERS, _CLUSTERS_OF_ONE_NODE // max(1, len(baseline.cluster.state.view.cluster.nodes)))
    return Goal(before, len(pods), min(sizes, default=0), clusters, value)


def _least_volume(cluster: PredictedCluster, key: generic.PodKey) -> int:
    try:
        volumes = resolve(cluster.snapshot.pods[key], cluster.state.view).volumes
    except errors.ResolutionError:
        return 0
    return min((volume.volume.size for volume in volumes), default=0)


class MoveSequence(Struct, frozen=True):
    """Moves in their order."""

    moves: tuple[ReplicaMove, ...]  # each with all of its targets, in whichever cluster the moves before led to
    clusters: tuple[PredictedCluster, ...]  # every cluster that they may lead to, at least one

    @property
    def copied_bytes(self) -> int:
        return sum(move.copied_bytes for move in self.moves)


class Rebalance(Struct, frozen=True):
    """The result of the search."""

    before: int  # the goal's value without moves
    value: int  # its least value after the plan, whatever Longhorn chooses; `before` without a plan
    target: int
    plan: MoveSequence | None  # the moves; None if there is no plan, or none is needed
    max_moves: int  # how many moves were tried at most
    # Up to this number of moves, every sequence was tried; no plan of so many moves or fewer is better.
    exhausted_moves: int

    @property
    def reached(self) -> bool:
        return self.value >= self.target


def find_moves(goal: Goal, baseline: Baseline, max_moves: int = DEFAULT_MAX_MOVES) -> Rebalance:
    """Returns the fewest moves that raise the goal's value to its target, or else those that raise it furthest."""
    search = _Search(goal, baseline)
    level = [MoveSequence((), (baseline.cluster,))]
    # No number of moves helps where no disk can get the space.
    exhausted = 0 if goal.before >= goal.target or search.may_reach(max_moves) else max_moves
    for count in range(exhausted + 1, max_moves + 1):
        if search.value >= goal.target:
            break
        if count > 1:
            level = search.longer_sequences(level)
        search.try_last_moves(level)
        if search.complete:
            exhausted = count
    return Rebalance(goal.before, search.value, goal.target, search.plan, max_moves, exhausted)


class _Search:
    def __init__(self, goal: Goal, baseline: Baseline) -> None:
        self.complete = True  # whether every sequence was tried so far
        self.value = goal.before
        self.plan: MoveSequence | None = None
        self._goal = goal
        self._baseline = baseline
        self._clusters_left = goal.max_clusters
        start = baseline.cluster
        # A replica that a move makes has no name yet by which a command could delete it.
        movable = (predicted_replicas.movable_replicas(start, name) for name in start.snapshot.volumes)
        self._movable = frozenset(replica.name for replicas in movable for replica in replicas)

    def may_reach(self, moves: int) -> bool:
        """Whether some disk has the space once its largest replicas are moved."""
        view = self._baseline.cluster.state.view
        for node in view.cluster.nodes.values():
            for disk in node.disks:
                on_disk = view.indexes.replicas_by_disk.get(disk.uuid) or ()
                sizes = sorted((each.size for each in on_disk if each.name in self._movable), reverse=True)[:moves]
                if sizes and view.free_space(node.name)[disk.name].free + sum(sizes) >= self._goal.least_free:
                    return True
        return False

    def try_last_moves(self, level: Sequence[MoveSequence]) -> None:
        """Appends each last move and keeps the best sequence."""
        for sequence in level:
            for free, replica in self._candidates(sequence):
                # A number of pods is less than any size.
                if free < max(self._goal.least_free, self.value):
                    break
                longer = self._extend(sequence, replica, _MAX_CLUSTERS)
                if longer is not None:
                    self._compare(longer)

    def longer_sequences(self, level: Sequence[MoveSequence]) -> list[MoveSequence]:
        """Returns sequences that are one move longer: all of them, or those that leave most space on a disk."""
        self.complete &= len(level) * len(self._movable) <= _MAX_EXHAUSTIVE
        candidates = [(free, sequence, replica) for sequence in level for free, replica in self._candidates(sequence)]
        candidates.sort(key=lambda entry: (-entry[0], entry[1].copied_bytes))
        limit = None if self.complete else _BEAM_WIDTH
        longer = (self._extend(sequence, replica, _CONTINUED_CLUSTERS) for _, sequence, replica in candidates)
        return list(islice(filter(None, longer), limit))

    def _compare(self, sequence: MoveSequence) -> None:
        nodes = {place.node for move in sequence.moves for place in (move.origin, *move.targets)}
        plan = self.plan
        cheaper = (
            plan is not None and len(plan.moves) == len(sequence.moves) and sequence.copied_bytes < plan.copied_bytes
        )
        needed = self.value + (not cheaper)
        values: list[int] = []
        for cluster in sequence.clusters:
            values.append(self._goal.value(cluster, nodes, needed))
            if values[-1] < needed:
                return
        if all(self._baseline.allows(cluster, nodes) for cluster in sequence.clusters):
            self.value = min(values)
            self.plan = sequence

    def _extend(self, sequence: MoveSequence, replica: longhorn.Replica, most: int) -> MoveSequence | None:
        """Returns the sequence with one more move, None if the replica cannot be moved in some cluster or may go to a
        busy node, or if the moves may lead to more than `most` clusters.
        """
        moves: list[ReplicaMove] = []
        count = 0
        for cluster in sequence.clusters:
            of_volume = predicted_replicas.replica_moves(cluster, replica.volume)
            move = next((each for each in of_volume if each.replica == replica.name), None)
            if move is None or any(target.node in self._baseline.busy_nodes for target in move.targets):
                return None
            moves.append(move)
            # Each choice that Longhorn makes by chance multiplies the clusters.
            count += len(move.targets)
            if count > min(most, self._clusters_left):
                self.complete = False
                return None
        self._clusters_left -= count
        clusters = tuple(
            predicted_replicas.apply_move(cluster, move, target)
            for cluster, move in zip(sequence.clusters, moves, strict=True)
            for target in move.targets
        )
        targets = tuple(sorted({target for move in moves for target in move.targets}))
        return MoveSequence((*sequence.moves, replace(moves[0], targets=targets)), clusters)

    def _candidates(self, sequence: MoveSequence) -> list[tuple[int, longhorn.Replica]]:
        """Returns the replicas that may be moved, each with the bytes that are free on its disk after its move; most
        bytes first.
        """
        view = sequence.clusters[0].state.view
        by_disk = view.indexes.replicas_by_disk
        candidates = (
            (view.free_space(node.name)[disk.name].free + replica.size, replica)
            for node in view.cluster.nodes.values()
            for disk in node.disks
            for replica in by_disk.get(disk.uuid) or ()
            if replica.name in self._movable
        )
        return sorted(candidates, key=lambda entry: (-entry[0], entry[1].name))
