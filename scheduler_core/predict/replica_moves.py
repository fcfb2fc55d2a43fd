"""The fewest moves of replicas after which more fits: a larger new volume, or more of the pods that wait.

Data flow: a `Goal` → sequences of one move, of two, and so on (`MoveSequence`) → of those that raise the goal's value whatever Longhorn
chooses, and make nothing worse (`Baseline`), the one with the highest value and the fewest bytes to copy.

While there are few sequences, all of them are tried; then it is proven that fewer moves do not suffice. Otherwise only those are
continued that free most space on one disk.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress

from scheduler_core import errors
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.longhorn.csi_driver import SIZE_STEP
from scheduler_core.model import generic, longhorn, quantity
from scheduler_core.monitor.capacity_report import LargestVolumes
from scheduler_core.predict import pod_decision, predicted_replicas, timeline
from scheduler_core.predict.predicted_cluster import PredictedCluster, WhatIfError
from scheduler_core.predict.predicted_replicas import Choose, ReplicaMove, choose_first
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.resolve import resolve

DEFAULT_MAX_MOVES = 3
# Sequences that are continued with every move, and those with the most promising moves.
_MAX_EXHAUSTIVE = 2_000
_BEAM_WIDTH = 12
_MOVES_PER_SEQUENCE = 24
# A sequence whose moves may lead to more clusters is not continued.
_CONTINUED_CLUSTERS = 16
# How many clusters are evaluated at most, which takes some seconds. For a goal of pods orders are played in each, so that the cost of
# one grows with the nodes.
_MAX_EVALUATIONS = 20_000
_EVALUATIONS_OF_ONE_NODE = 25_000
_LEAST_EVALUATIONS = 50
_NOT_ACCEPTABLE = -1

Clusters = Sequence[PredictedCluster]
LARGEST_VOLUME = "largest-volume"
WAITING_PODS = "waiting-pods"


class Goal(Struct, frozen=True):
    """What is to rise, and how far."""

    before: int  # the value without moves
    target: int  # the value at which no more is wanted
    most: int  # a higher value is worth no more
    least_free: int  # bytes that a disk must have free after the last move of a useful sequence
    accepts_less: bool  # whether a rise below the target is worth something, too
    max_clusters: int  # a sequence whose moves may lead to more clusters is left out
    max_evaluations: int
    # The least value of clusters that differ from the first one in some nodes; if it is less than the last argument, it need not be exact.
    value: Callable[[Clusters, Collection[str], int], int]


def largest_volume_goal(cluster: PredictedCluster, storage_class: str, size: int | None) -> Goal:
    """The largest new volume of a StorageClass rises, to `size` bytes or by anything. Raises a WhatIfError if there is
    no such class of Longhorn.
    """
    largest = LargestVolumes(cluster.state.view)
    sizes = largest.after(cluster.state.view)
    if storage_class not in sizes:
        raise WhatIfError(f"there is no StorageClass {storage_class} of Longhorn")
    target = sizes[storage_class] + SIZE_STEP if size is None else size
    most = quantity.MAX_BYTES if size is None else size

    def value(clusters: Clusters, changed_nodes: Collection[str], _: int) -> int:
        return min(most, *(largest.after(each.state.view, changed_nodes)[storage_class] for each in clusters))

    return Goal(
        sizes[storage_class],
        target,
        most,
        target,
        accepts_less=False,
        max_clusters=1024,
        max_evaluations=_MAX_EVALUATIONS,
        value=value,
    )


def waiting_pods_goal(
    situation: Situation, options: FilterOptions, make_choices: Callable[[], Iterable[Choose]]
) -> Goal:
    """More of the pods that wait are placed, by the least number in any of the orders that are played. `make_choices`
    returns the choices of each order, the same ones at every call.
    """
    cluster = situation.cluster
    pods = tuple(entry.key for entry in situation.all_pods())
    total = len(pods)

    def placed_pods(cluster: PredictedCluster, needed: int) -> tuple[int, frozenset[generic.PodKey]]:
        # The least number of placed pods, and those always placed; ends with an order in which fewer than `needed` are placed.
        always = frozenset(pods)
        least = total
        for choose in make_choices():
            result = timeline.run_order(replace(situation, cluster=cluster), options, choose)
            placed = {key for key in result.nodes if key not in result.stuck}
            always &= placed
            least = min(least, len(placed))
            if least < needed:
                break
        return least, always

    before, always_before = placed_pods(cluster, 0)

    def value(clusters: Clusters, _: Collection[str], needed: int) -> int:
        least = total
        for each in clusters:
            if not before and not any(pod_decision.each_fits(pods, each, options)):
                return 0
            count, always = placed_pods(each, needed)
            least = min(least, count)
            if least < needed:
                return least
            # A pod that was always placed must stay so.
            if not always >= always_before:
                return _NOT_ACCEPTABLE
        return least

    decider = pod_decision.PodDecider(options)
    # Moves help no pod that kube-scheduler's own filters refuse on every node.
    helped = (
        key
        for key in pods
        if key not in always_before
        and decider.decide(cluster.snapshot.pods[key], cluster, choose_first).decision is not None
    )
    least_free = min((_least_volume(cluster, key) for key in helped), default=quantity.MAX_BYTES)
    evaluations = max(_LEAST_EVALUATIONS, _EVALUATIONS_OF_ONE_NODE // max(1, len(cluster.state.view.cluster.nodes)))
    return Goal(
        before, total, total, least_free, accepts_less=True, max_clusters=128, max_evaluations=evaluations, value=value
    )


def _least_volume(cluster: PredictedCluster, key: generic.PodKey) -> int:
    try:
        volumes = resolve(cluster.snapshot.pods[key], cluster.state.view).volumes
    except errors.ResolutionError:
        return 0
    return min((volume.volume.size for volume in volumes), default=0)


class Baseline(Struct, frozen=True):
    """The cluster before all moves, by what they must not make worse."""

    cluster: PredictedCluster
    options: FilterOptions
    largest: LargestVolumes
    sizes: dict[str, int]  # bytes of the largest volume, by StorageClass
    fitting_pods: tuple[generic.PodKey, ...]  # the waiting pods that fit on some node, each for itself
    unsettled: dict[str, bool]  # by volume that Longhorn has not all replicas of, whether it can place one now
    busy_nodes: frozenset[str]  # nodes where volumes of bound pods have no replica yet

    @classmethod
    def of(cls, situation: Situation, options: FilterOptions) -> "Baseline":
        """Returns the baseline of a situation."""
        cluster = situation.cluster
        view = cluster.state.view
        volumes = cluster.snapshot.volumes
        keys = [entry.key for entry in situation.all_pods()]
        largest = LargestVolumes(view)
        evicted = {each.volume for each in cluster.snapshot.replicas.values() if each.eviction_requested}
        remote = {
            name
            for name, each in volumes.items()
            if predicted_replicas.lacks_local_replica(each, view.replicas_of(name))
        }
        unsettled = cluster.incomplete_volumes | remote | (evicted & set(volumes))
        return cls(
            cluster,
            options,
            largest,
            largest.after(view),
            tuple(compress(keys, pod_decision.each_fits(keys, cluster, options))),
            {name: _finds_place(cluster, name) for name in sorted(unsettled)},
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
            if not all(pod_decision.each_fits(self.fitting_pods, cluster, self.options)):
                return False
        return True


def _finds_place(cluster: PredictedCluster, name: str) -> bool:
    return predicted_replicas.next_step(cluster, name, choose_first).changed


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
    return _Search(goal, baseline, max_moves).run()


class _Search:
    def __init__(self, goal: Goal, baseline: Baseline, max_moves: int) -> None:
        self._goal = goal
        self._baseline = baseline
        self._max_moves = max_moves
        start = baseline.cluster
        # A replica that a move makes has no name yet by which a command could delete it.
        movable = (predicted_replicas.movable_replicas(start, name) for name in start.snapshot.volumes)
        self._movable = frozenset(replica.name for replicas in movable for replica in replicas)
        self._complete = True  # whether every sequence was tried so far
        self._value = goal.before
        self._best: MoveSequence | None = None
        self._evaluations_left = goal.max_evaluations

    def run(self) -> Rebalance:
        goal = self._goal
        start = MoveSequence((), (self._baseline.cluster,))
        level = [start]
        exhausted = 0
        for count in range(1, self._max_moves + 1):
            if self._value >= goal.target:
                break
            if count > 1:
                self._complete &= len(level) * len(self._baseline.cluster.snapshot.replicas) <= _MAX_EXHAUSTIVE
                level = self._continuations(level, self._max_moves - count + 2)
            possible = any(free >= goal.least_free for free, _ in self._candidates(start, count))
            if possible:
                self._finish(level)
            if exhausted == count - 1 and (self._complete or not possible):
                exhausted = count
        return Rebalance(goal.before, self._value, goal.target, self._best, self._max_moves, exhausted)

    def _finish(self, level: list[MoveSequence]) -> None:
        """Appends each last move and keeps the best sequence."""
        for sequence in level:
            for free, replica in self._candidates(sequence, 1):
                if free < max(self._goal.least_free, min(self._value, self._goal.most)):
                    break
                if self._evaluations_left <= 0:
                    self._complete = False
                    return
                longer = self._extend(sequence, replica, self._goal.max_clusters)
                if longer is not None:
                    self._evaluations_left -= len(longer.clusters)
                    self._compare(longer)

    def _compare(self, sequence: MoveSequence) -> None:
        origins = {move.origin.node for move in sequence.moves}
        nodes = origins | {target.node for move in sequence.moves for target in move.targets}
        best = self._best
        if best is not None and len(best.moves) == len(sequence.moves):
            needed = self._value + (sequence.copied_bytes >= best.copied_bytes)
        else:
            needed = self._value + 1 if self._goal.accepts_less else self._goal.target
        if needed > self._goal.most:
            return
        value = self._goal.value(sequence.clusters, nodes, needed)
        if value >= needed and self._baseline.allows(sequence.clusters, nodes):
            self._value = value
            self._best = sequence

    def _continuations(self, level: list[MoveSequence], moves_left: int) -> list[MoveSequence]:
        """Returns sequences that are one move longer: all of them, or those that free most space on a disk."""
        longer: list[tuple[int, MoveSequence]] = []
        for sequence in level:
            candidates = self._candidates(sequence, moves_left)
            if not self._complete:
                candidates = [each for each in candidates[:_MOVES_PER_SEQUENCE] if each[0] >= self._goal.least_free]
            for free, replica in candidates:
                extended = self._extend(sequence, replica, _CONTINUED_CLUSTERS)
                if extended is not None:
                    longer.append((free, extended))
        longer.sort(key=lambda entry: (-entry[0], entry[1].copied_bytes))
        return [sequence for _, sequence in (longer if self._complete else longer[:_BEAM_WIDTH])]

    def _extend(self, sequence: MoveSequence, replica: longhorn.Replica, max_clusters: int) -> MoveSequence | None:
        """Returns the sequence with one more move, None if the replica cannot be moved in some cluster or may go to a
        busy node, or if the moves may lead to too many clusters.
        """
        moves: list[ReplicaMove] = []
        for cluster in sequence.clusters:
            of_volume = predicted_replicas.replica_moves(cluster, replica.volume)
            move = next((each for each in of_volume if each.replica == replica.name), None)
            if move is None or any(target.node in self._baseline.busy_nodes for target in move.targets):
                return None
            moves.append(move)
            # Each choice that Longhorn makes by chance multiplies the clusters.
            if sum(len(each.targets) for each in moves) > max_clusters:
                self._complete = False
                return None
        clusters = tuple(
            predicted_replicas.apply_move(cluster, move, target)
            for cluster, move in zip(sequence.clusters, moves, strict=True)
            for target in move.targets
        )
        targets = tuple(sorted({target for move in moves for target in move.targets}))
        return MoveSequence((*sequence.moves, replace(moves[0], targets=targets)), clusters)

    def _candidates(self, sequence: MoveSequence, moves: int) -> list[tuple[int, longhorn.Replica]]:
        """Returns the replicas that may be moved, each with the bytes that are free on its disk after its move and up to
        `moves - 1` others; most bytes first.
        """
        view = sequence.clusters[0].state.view
        candidates: list[tuple[int, longhorn.Replica]] = []
        for node in view.cluster.nodes.values():
            free_space = view.free_space(node.name)
            for disk in node.disks:
                on_disk = view.indexes.replicas_by_disk.get(disk.uuid) or ()
                replicas = sorted(
                    (replica for replica in on_disk if replica.name in self._movable),
                    key=lambda replica: (-replica.size, replica.name),
                )
                for replica in replicas:
                    others = [other.size for other in replicas[:moves] if other is not replica][: moves - 1]
                    candidates.append((free_space[disk.name].free + replica.size + sum(others), replica))
        return sorted(candidates, key=lambda entry: -entry[0])
