"""Moves of replicas that an administrator can make, each with every disk that Longhorn may choose for it.

Longhorn has no command that moves a replica to a disk. A move makes one more replica and then deletes the old one:

1. `numberOfReplicas` is raised by one. Data locality and auto-balance of this volume are off meanwhile.
2. Longhorn places the additional replica by its own rules, and copies the data.
3. When the volume is healthy, the number is set back. Longhorn deletes an extra healthy replica only by data locality or
   auto-balance (controller/volume_controller.go:cleanupExtraHealthyReplicas), so that all of them stay.
4. The old replica is deleted. Then data locality and auto-balance are set back.

The volume never has fewer healthy replicas than before. The text of the commands is in
`convert/kubectl.py`.

The old replica still counts while Longhorn chooses, so the new one goes to another node, unless anti-affinity is soft.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import Struct

from scheduler_core.longhorn.placement import DiskCandidate
from scheduler_core.longhorn.replenish import HEALTHY, NO_REPLENISHMENT, replenishments
from scheduler_core.longhorn.replica_request import LINKED_CLONE, ReplicaRequest, auto_balance_mode
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.longhorn.volume_validation import readiness_refusal
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, STRICT_LOCAL, V1
from scheduler_core.predict.predicted_cluster import PredictedCluster, WhatIfError
from scheduler_core.predict.predicted_replicas import (
    holds_data,
    new_replica_placement,
    rebuild_replica,
    remove_replica,
)
from scheduler_core.values import replace
from scheduler_core.volumes.existing_replicas import is_healthy

_ATTACHED: Final = "attached"
# webhook/resources/volume/validator.go: validateReplicaCount.
_MAX_REPLICAS: Final = 20


class DiskPlace(NamedTuple):
    """A disk by the names of its node and itself."""

    node: str
    disk: str


class ReplicaMove(Struct, frozen=True):
    """One replica that can be moved off its disk."""

    volume: str
    replica: str
    origin: DiskPlace  # the disk that it leaves
    # Every disk that Longhorn may choose for it, at least one, in order of nodes and disks.
    targets: tuple[DiskPlace, ...]
    size: int  # bytes that it takes by Longhorn's scheduling rule (spec.volumeSize)
    copied_bytes: int  # the data that Longhorn copies (status.actualSize of the volume)


def movable_replicas(cluster: PredictedCluster, name: str) -> tuple[longhorn.Replica, ...]:
    """Returns the replicas of a volume for which Longhorn finds another disk, by name. Only attached, healthy volumes
    of the data engine v1 can be moved: the webhook lets v2 volumes keep their number of replicas only, and Longhorn
    rebuilds no detached volume. A local replica that data locality wants is not moved.
    """
    volume = cluster.snapshot.volumes.get(name)
    rebuilds = cluster.state.view.settings.concurrent_replica_rebuild_per_node_limit
    if volume is None or not rebuilds or not _can_take_extra_replica(cluster, volume):
        return ()
    replicas = sorted(cluster.state.view.replicas_of(name), key=lambda each: each.name)
    local = volume.data_locality == BEST_EFFORT
    return tuple(replica for replica in replicas if not (local and _is_local(volume, replica)))


def _linked_clone_sources(cluster: PredictedCluster) -> frozenset[str]:
    """Returns the volumes whose replicas hold data of linked clones, which are not moved."""
    volumes = cluster.snapshot.volumes.values()
    requests = (ReplicaRequest.for_volume(volume) for volume in volumes if volume.clone_mode == LINKED_CLONE)
    return frozenset(request.linked_clone_source_volume for request in requests)


def _can_take_extra_replica(cluster: PredictedCluster, volume: longhorn.Volume) -> bool:
    """Whether Longhorn would build one more replica of a volume and leave every other replica as it is."""
    view = cluster.state.view
    replicas = view.replicas_of(volume.name)
    steady = (
        volume.state == _ATTACHED
        and volume.robustness == HEALTHY
        and volume.node_id == volume.current_node_id != ""
        and volume.name not in view.indexes.requested_sizes
        and readiness_refusal(volume, replicas, view.cluster) is None
    )
    movable = volume.data_engine == V1 and volume.data_locality != STRICT_LOCAL and volume.clone_mode != LINKED_CLONE
    return (
        steady
        and movable
        and len(replicas) == volume.number_of_replicas < _MAX_REPLICAS
        and all(is_healthy(replica) and holds_data(cluster, replica) for replica in replicas)
        and (volume.data_locality != BEST_EFFORT or any(_is_local(volume, replica) for replica in replicas))
    )


def _is_local(volume: longhorn.Volume, replica: longhorn.Replica) -> bool:
    return replica.node_id == volume.current_node_id


def replica_moves(cluster: PredictedCluster, name: str) -> Iterable[ReplicaMove]:
    """Returns every move of a volume's replicas that is possible now, each once the caller takes it."""
    replicas = movable_replicas(cluster, name)
    if not replicas or name in _linked_clone_sources(cluster):
        return ()
    volume = cluster.snapshot.volumes[name]
    choices = new_replica_placement(cluster, _volume_while_moving(volume)).choices
    candidates = tuple(choice.candidate for choice in choices)
    if not candidates or not _has_backing_image(cluster, volume, candidates):
        return ()
    targets = tuple(DiskPlace(candidate.node.name, candidate.disk.name) for candidate in candidates)
    # Auto-balance might add a replica after the move.
    checked = targets if is_auto_balanced(cluster, volume) else ()
    places = ((replica, cluster.disk_of(replica)) for replica in replicas)
    origins = ((replica, DiskPlace(place[0].name, place[1].name)) for replica, place in places if place is not None)
    moves = (
        ReplicaMove(name, replica.name, origin, targets, replica.size, volume.actual_size)
        for replica, origin in origins
    )
    return (move for move in moves if all(_is_steady(apply_move(cluster, move, target), volume) for target in checked))


def is_auto_balanced(cluster: PredictedCluster, volume: longhorn.Volume) -> bool:
    return auto_balance_mode(volume, cluster.state.view.settings) != AUTO_BALANCE_DISABLED


def _is_steady(cluster: PredictedCluster, volume: longhorn.Volume) -> bool:
    view = cluster.state.view
    return replenishments(view.cluster, volume, view.replicas_of(volume.name)) == {NO_REPLENISHMENT}


def _has_backing_image(cluster: PredictedCluster, volume: longhorn.Volume, candidates: Iterable[DiskCandidate]) -> bool:
    if not volume.backing_image:
        return True
    image = cluster.state.view.cluster.backing_image(volume.backing_image)
    # Longhorn would copy the image otherwise, and the copy takes space, too.
    return image is not None and all(candidate.disk_uuid in image.disks for candidate in candidates)


def _volume_while_moving(volume: longhorn.Volume) -> longhorn.Volume:
    return replace(
        volume,
        number_of_replicas=volume.number_of_replicas + 1,
        data_locality=DISABLED,
        replica_auto_balance=AUTO_BALANCE_DISABLED,
    )


def apply_move(cluster: PredictedCluster, move: ReplicaMove, target: DiskPlace) -> PredictedCluster:
    """Returns the cluster after a move to one of its targets; the new replica has a predicted name, which the real one
    will not have.

    Raises:
        WhatIfError: the cluster does not have the volume, the replica or the disk
    """
    volume = cluster.snapshot.volumes.get(move.volume)
    replica = cluster.snapshot.replicas.get(move.replica)
    node = cluster.state.view.cluster.nodes.get(target.node)
    disk = next((each for each in node.disks if each.name == target.disk), None) if node is not None else None
    if volume is None or replica is None or node is None or disk is None:
        raise WhatIfError(f"replica {move.replica} of volume {move.volume} cannot be moved to {'/'.join(target)}")
    step = rebuild_replica(cluster, _volume_while_moving(volume), DiskCandidate(node, disk))
    return remove_replica(step.cluster, replica)
