"""The fewest moves of replicas after which more fits.

Data flow: a goal (`rebalance_goals.py`) → sequences of one move, of two, and so on (`MoveSequence`) → of those that raise the
goal's value whatever Longhorn chooses, and make nothing worse (`Baseline`), the one with the highest value and the fewest bytes to copy.

While there are few sequences, all of them are tried; then it is proven that fewer moves do not suffice. Otherwise only those are
continued that free most space on one disk.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress
from typing import Final, NamedTuple

from msgspec import Struct

from scheduler_core.decide.decision import FilterOptions
from scheduler_core.model import longhorn
from scheduler_core.model.generic import PodKey
from scheduler_core.model.longhorn import BEST_EFFORT
from scheduler_core.monitor.capacity_report import LargestVolumes
from scheduler_core.predict.pod_decision import each_fits
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import (
    ReplicaMove,
    apply_move,
    choose_first,
    movable_replicas,
    next_step,
    replica_moves,
)
from scheduler_core.predict.rebalance_goals import Goal
from scheduler_core.predict.situation import Situation
from scheduler_core.values import replace

DEFAULT_MAX_MOVES: Final = 3
# Sequences that are continued with every move, and those with the most promising moves.
_MAX_EXHAUSTIVE: Final = 2_000
_BEAM_WIDTH: Final = 12
_MOVES_PER_SEQUENCE: Final = 24
# A sequence whose moves may lead to more clusters is not continued.
_CONTINUED_CLUSTERS: Final = 16


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
            largest.after(cluster.state.view),
            tuple(compress(keys, each_fits(keys, cluster, options))),
            {name: _finds_place(cluster, name) for name in sorted(_unsettled_volumes(cluster))},
            frozenset(name for name, demand in cluster.state.demand.by_node.items() if demand),
        )

    def allows(self, clusters: Sequence[PredictedCluster], changed_nodes: Collection[str]) -> bool:
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
            if not all(each_fits(self.fitting_pods, cluster, self.options)):
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


class MoveSequence(Struct, frozen=True):
    """Moves in their order."""

    moves: tuple[ReplicaMove, ...]  # each with all of its targets, in whichever cluster the moves before led to
    clusters: tuple[PredictedCluster, ...]  # every cluster that they may lead to, at least one

    @property
    def copied_bytes(self) -> int:
        return sum(move.copied_bytes for move in self.moves)

    @property
    def changed_nodes(self) -> frozenset[str]:
        origins = {move.origin.node for move in self.moves}
        return frozenset(origins | {target.node for move in self.moves for target in move.targets})

    @property
    def key(self) -> object:
        """Where the moved volumes may be; equal for sequences that lead to the same clusters."""
        volumes = sorted({move.volume for move in self.moves})
        return frozenset(
            tuple(
                (name, frozenset(replica.disk_id for replica in cluster.state.view.replicas_of(name)))
                for name in volumes
            )
            for cluster in self.clusters
        )


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


class _Candidate(NamedTuple):
    """A replica that may be moved next."""

    replica: longhorn.Replica
    free: int  # bytes that are free on its disk after this move
    free_later: int  # the same after as many further moves off this disk as there may be


def find_moves(goal: Goal, baseline: Baseline, max_moves: int = DEFAULT_MAX_MOVES) -> Rebalance:
    """Returns the fewest moves that raise the goal's value to its target, or else those that raise it furthest."""
    if goal.before >= goal.target:
        return Rebalance(goal.before, goal.before, goal.target, None, max_moves, 0)
    return _Search(goal, baseline, max_moves).run()


class _Search:
    def __init__(self, goal: Goal, baseline: Baseline, max_moves: int) -> None:
        self._goal = goal
        self._baseline = baseline
        self._max_moves = max_moves
        start = baseline.cluster
        # A replica that a move makes has no name yet by which a command could delete it.
        movable = (replica.name for name in start.snapshot.volumes for replica in movable_replicas(start, name))
        self._movable = frozenset(movable)
        self._left_out = False  # whether a sequence was left out because Longhorn has too many choices
        self._value = goal.before
        self._best: MoveSequence | None = None
        self._evaluations = 0

    def run(self) -> Rebalance:
        start = MoveSequence((), (self._baseline.cluster,))
        level = [start]
        exhaustive = True
        exhausted = 0
        for count in range(1, self._max_moves + 1):
            possible = any(each.free_later >= self._goal.least_free for each in self._candidates(start, count))
            complete = self._finish(level, count) if possible else True
            exhaustive = exhaustive and complete and not self._left_out
            if exhausted == count - 1 and (exhaustive or not possible):
                exhausted = count
            if self._value >= self._goal.target or count == self._max_moves:
                break
            size = len(level) * len(self._baseline.cluster.snapshot.replicas)
            exhaustive = exhaustive and size <= _MAX_EXHAUSTIVE
            level = self._continuations(level, count, exhaustive=exhaustive)
        goal = self._goal
        return Rebalance(goal.before, self._value, goal.target, self._best, self._max_moves, exhausted)

    def _finish(self, level: list[MoveSequence], count: int) -> bool:
        """Appends each last move and keeps the best sequence; returns whether all of them were evaluated."""
        for sequence in level:
            candidates = [each for each in self._candidates(sequence, 1) if each.free >= self._goal.least_free]
            candidates.sort(key=self._rank)
            for candidate in candidates:
                if not self._may_improve(sequence, candidate, count):
                    continue
                if self._evaluations >= self._goal.evaluations and (self._goal.slow or count > 1):
                    return False
                longer = self._extend(sequence, candidate.replica, self._goal.max_clusters)
                self._evaluations += len(longer.clusters if longer is not None else sequence.clusters)
                if longer is not None:
                    self._compare(longer)
        return True

    def _rank(self, candidate: _Candidate) -> tuple[object, ...]:
        """Sorts candidates: first those that may raise the value most, then those without which the disk is too full."""
        too_full = candidate.free - candidate.replica.size < self._goal.least_free
        return -self._goal.upper_bound(candidate.free), not too_full, self._copied_bytes(candidate.replica)

    def _may_improve(self, sequence: MoveSequence, candidate: _Candidate, count: int) -> bool:
        bound = self._goal.upper_bound(candidate.free)
        if self._best is None or len(self._best.moves) < count:
            return bound > self._value
        copied = sequence.copied_bytes + self._copied_bytes(candidate.replica)
        return (bound, -copied) > (self._value, -self._best.copied_bytes)

    def _compare(self, sequence: MoveSequence) -> None:
        nodes = sequence.changed_nodes
        best = self._best
        if best is not None and len(best.moves) == len(sequence.moves):
            needed = self._value + (sequence.copied_bytes >= best.copied_bytes)
        else:
            needed = self._value + 1 if self._goal.reached_by_less else self._goal.target
        value = self._goal.value(sequence.clusters, nodes, needed)
        better = value >= needed
        if better and self._baseline.allows(sequence.clusters, nodes):
            self._value = value
            self._best = sequence

    def _continuations(self, level: list[MoveSequence], count: int, *, exhaustive: bool) -> list[MoveSequence]:
        """Returns sequences that are one move longer, one for each set of clusters: all of them, or those that may free most
        space on a disk.
        """
        left = self._max_moves - count + 1
        longer: dict[object, tuple[int, MoveSequence]] = {}
        for sequence in level:
            candidates = self._candidates(sequence, left)
            if not exhaustive:
                useful = (each for each in candidates if each.free_later >= self._goal.least_free)
                candidates = sorted(useful, key=lambda each: (-each.free_later, -each.free))[:_MOVES_PER_SEQUENCE]
            for candidate in candidates:
                extended = self._extend(sequence, candidate.replica, _CONTINUED_CLUSTERS)
                if extended is not None:
                    longer.setdefault(extended.key, (candidate.free_later, extended))
        if exhaustive:
            return [sequence for _, sequence in longer.values()]
        ranked = sorted(longer.values(), key=lambda entry: (-entry[0], entry[1].copied_bytes))
        return [sequence for _, sequence in ranked[:_BEAM_WIDTH]]

    def _extend(self, sequence: MoveSequence, replica: longhorn.Replica, max_clusters: int) -> MoveSequence | None:
        """Returns the sequence with one more move, None if the replica cannot be moved in some cluster or may go to a
        busy node, or if there would be more than `max_clusters`.
        """
        moves: list[ReplicaMove] = []
        for cluster in sequence.clusters:
            of_volume = replica_moves(cluster, replica.volume)
            move = next((each for each in of_volume if each.replica == replica.name), None)
            if move is None or any(target.node in self._baseline.busy_nodes for target in move.targets):
                return None
            moves.append(move)
            # Each choice that Longhorn makes by chance multiplies the clusters.
            if sum(len(each.targets) for each in moves) > max_clusters:
                self._left_out = True
                return None
        clusters = tuple(
            apply_move(cluster, move, target)
            for cluster, move in zip(sequence.clusters, moves, strict=True)
            for target in move.targets
        )
        targets = tuple(sorted({target for move in moves for target in move.targets}))
        return MoveSequence((*sequence.moves, replace(moves[0], targets=targets)), clusters)

    def _candidates(self, sequence: MoveSequence, moves: int) -> list[_Candidate]:
        """Returns the replicas of all disks as candidates, each with the space that up to `moves` moves free."""
        cluster = sequence.clusters[0]
        candidates: list[_Candidate] = []
        for node in cluster.state.view.cluster.nodes.values():
            free_space = cluster.state.view.free_space(node.name)
            for disk in node.disks:
                on_disk = cluster.state.view.indexes.replicas_by_disk.get(disk.uuid) or ()
                movable = (replica for replica in on_disk if replica.name in self._movable)
                replicas = sorted(movable, key=lambda replica: (-replica.size, replica.name))
                free = free_space[disk.name].free
                for replica in replicas:
                    others = [other.size for other in replicas[:moves] if other is not replica]
                    freed = free + replica.size
                    candidates.append(_Candidate(replica, freed, freed + sum(others[: moves - 1])))
        return candidates

    def _copied_bytes(self, replica: longhorn.Replica) -> int:
        volume = self._baseline.cluster.snapshot.volumes.get(replica.volume)
        return volume.actual_size if volume is not None else 0
