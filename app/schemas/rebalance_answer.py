"""The stable JSON of `rebalance`."""

from __future__ import annotations

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION
from scheduler_core.convert.replica_move_commands import replica_move_commands
from scheduler_core.predict.move_search import Rebalance
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.prediction import pods_by_volume
from scheduler_core.predict.replica_moves import DiskPlace, ReplicaMove, is_auto_balanced


class DiskAnswer(Answer):
    """A disk of a node."""

    node: str
    disk: str


class ReplicaMoveAnswer(Answer):
    """One replica that is moved."""

    volume: str
    replica: str
    pods: list[str] = Field(description="the pods that use the volume, as namespace/name")
    origin: DiskAnswer = Field(serialization_alias="from", description="the disk that it leaves")
    targets: list[DiskAnswer] = Field(description="Longhorn puts it on one of these; the plan holds for each")
    size: int = Field(description="bytes that the replica takes by Longhorn's scheduling rule")
    copied_bytes: int = Field(serialization_alias="copiedBytes", description="data that Longhorn copies")
    commands: list[list[str]] = Field(description="in order; each must succeed before the next one")


class GoalAnswer(Answer):
    """What was to rise, before and after the moves."""

    name: str = Field(description="largest-volume or waiting-pods")
    storage_class: str | None = Field(serialization_alias="storageClass", description="null for waiting-pods")
    unit: str = Field(description="bytes or pods")
    before: int
    target: int
    after: int = Field(description="at least, whatever Longhorn chooses; as before without moves")
    reached: bool = Field(description="whether the target is reached")


class RebalanceAnswer(Answer):
    """The fewest moves of replicas after which more fits."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "Rebalance"
    succeeds: bool = Field(description="whether the goal is reached already, or a plan was found")
    goal: GoalAnswer
    moves: list[ReplicaMoveAnswer] = Field(description="in order; empty if there is no plan, or none is needed")
    copied_bytes: int = Field(serialization_alias="copiedBytes", description="of all moves")
    max_moves: int = Field(serialization_alias="maxMoves")
    exhausted_moves: int = Field(
        serialization_alias="exhaustedMoves", description="every plan of up to this number of moves was tried"
    )
    notes: list[str] = Field(description="what was not taken into account")


def rebalance_answer(result: Rebalance, goal: GoalAnswer, cluster: PredictedCluster, namespace: str) -> RebalanceAnswer:
    """Returns a plan as plain data, without notes; `namespace` is Longhorn's."""
    moves = result.plan.moves if result.plan is not None else ()
    users = pods_by_volume(cluster)
    return RebalanceAnswer(
        succeeds=result.plan is not None or result.reached,
        goal=goal,
        moves=[
            ReplicaMoveAnswer(
                volume=move.volume,
                replica=move.replica,
                pods=list(users.get(move.volume, ())),
                origin=_disk(move.origin),
                targets=[_disk(target) for target in move.targets],
                size=move.size,
                copied_bytes=move.copied_bytes,
                commands=_commands(cluster, move, namespace),
            )
            for move in moves
        ],
        copied_bytes=sum(move.copied_bytes for move in moves),
        max_moves=result.max_moves,
        exhausted_moves=result.exhausted_moves,
        notes=[],
    )


def _commands(cluster: PredictedCluster, move: ReplicaMove, namespace: str) -> list[list[str]]:
    volume = cluster.snapshot.volumes[move.volume]
    auto_balanced = is_auto_balanced(cluster, volume)
    commands = replica_move_commands(volume, move.replica, namespace, auto_balanced=auto_balanced)
    return [list(command) for command in commands]


def _disk(place: DiskPlace) -> DiskAnswer:
    return DiskAnswer(node=place.node, disk=place.disk)
