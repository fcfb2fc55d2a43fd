"""Moves of replicas in sequence, with every cluster that may follow, of which Longhorn makes one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from scheduler_core.model import longhorn
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.replica_moves import ReplicaMove, apply_move, movable_replicas, replica_moves


@dataclass(frozen=True, slots=True)
class MoveSequence:
    """Moves in their order."""

    moves: tuple[ReplicaMove, ...]  # each with all of its targets, in whichever cluster the moves before led to
    clusters: tuple[PredictedCluster, ...]  # every cluster that they may lead to, at least one

    @property
    def copied_bytes(self) -> int:
        return sum(move.copied_bytes for move in self.moves)

    @property
    def changed_nodes(self) -> frozenset[str]:
        """The nodes that replicas leave, and those that they may go to."""
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


class SequenceExtender:
    """Appends moves to sequences.

    Args:
        start: the cluster before all moves
        busy_nodes: nodes that no replica is moved to
    """

    def __init__(self, start: PredictedCluster, busy_nodes: Collection[str]) -> None:
        movable = (replica.name for name in start.snapshot.volumes for replica in movable_replicas(start, name))
        self._names = frozenset(movable)
        self._busy_nodes = frozenset(busy_nodes)
        self.left_out = 0
        """How many sequences were left out because Longhorn has too many choices."""

    def replicas_on_disk(self, cluster: PredictedCluster, disk: longhorn.Disk) -> list[longhorn.Replica]:
        """Returns the replicas of a disk that may be moved, largest first."""
        replicas = cluster.state.view.indexes.replicas_by_disk.get(disk.uuid) or ()
        return sorted(
            # A replica that a move makes has no name yet by which a command could delete it.
            (replica for replica in replicas if replica.name in self._names),
            key=lambda replica: (-replica.size, replica.name),
        )

    def extend(self, sequence: MoveSequence, replica: longhorn.Replica, max_clusters: int) -> MoveSequence | None:
        """Returns the sequence with one more move, None if the replica cannot be moved in some cluster or may go to a
        busy node, or if there would be more than `max_clusters`.
        """
        moves: list[ReplicaMove] = []
        for cluster in sequence.clusters:
            of_volume = replica_moves(cluster, [replica.volume])
            move = next((each for each in of_volume if each.replica == replica.name), None)
            if move is None or any(target.node in self._busy_nodes for target in move.targets):
                return None
            moves.append(move)
            # Each choice that Longhorn makes by chance multiplies the clusters.
            if sum(len(each.targets) for each in moves) > max_clusters:
                self.left_out += 1
                return None
        clusters = tuple(
            apply_move(cluster, move, target)
            for cluster, move in zip(sequence.clusters, moves, strict=True)
            for target in move.targets
        )
        targets = tuple(sorted({target for move in moves for target in move.targets}))
        return MoveSequence((*sequence.moves, replace(moves[0], targets=targets)), clusters)
