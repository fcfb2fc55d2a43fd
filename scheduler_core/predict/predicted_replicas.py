"""Longhorn's steps with a volume's replicas, and the moves of replicas that an administrator can make, by Longhorn's own rules.

A step places the replicas of a new volume, rebuilds a missing one, follows data locality, or moves an evicted one. It is decided by the
status of the given cluster, which may lag behind (`hide_changes`). Auto-balance and the reuse of failed replicas are not predicted.

Longhorn has no command that moves a replica to a disk. A move makes one more replica, on any disk that Longhorn may choose, and then
deletes the old one:

1. `numberOfReplicas` is raised by one. Data locality and auto-balance of this volume are off meanwhile.
2. Longhorn places the additional replica by its own rules, and copies the data.
3. When the volume is healthy, the number is set back. Longhorn deletes an extra healthy replica only by data locality or
   auto-balance (controller/volume_controller.go:cleanupExtraHealthyReplicas), so that all of them stay.
4. The old replica is deleted. Then data locality and auto-balance are set back.

The volume never has fewer healthy replicas than before. The old replica still counts while Longhorn chooses, so the new one goes to another
node, unless anti-affinity is soft. The text of the commands is in `convert/kubectl.py`.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from scheduler_core.longhorn import (
    new_volume_placement,
    node_controller,
    placement,
    replenish,
    settings,
    volume_validation,
)
from scheduler_core.longhorn.cluster import DEGRADED
from scheduler_core.longhorn.replica_request import LINKED_CLONE, ReplicaRequest, auto_balance_mode
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, FILESYSTEM, STRICT_LOCAL, V1
from scheduler_core.predict.predicted_cluster import ChangesByObject, PredictedCluster, WhatIfError, list_replica
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.existing_replicas import is_healthy

RUNNING = "running"
NO_DATA = "no replica with its data is left"
_NO_WAIT = timedelta(0)

Choose = Callable[[int], int]
"""Returns a random number from 0 to below its argument, such as `random.Random(seed).randrange`."""


def choose_first(_: int) -> int:
    """Chooses as chance might; for questions whose answer does not depend on it."""
    return 0


class ReplicaStep(Struct, frozen=True):
    """The cluster after one step for a volume."""

    cluster: PredictedCluster
    changed: bool = False  # whether a replica was placed or removed
    copied_bytes: int = 0  # data that a rebuild copies
    problem: str = ""  # why a replica is missing that Longhorn should place, "" if none is
    wait: timedelta = _NO_WAIT  # how long Longhorn waits before the next step
    only_local: bool = False  # whether the missing replica is one that only data locality wants


def next_step(cluster: PredictedCluster, name: str, choose: Choose) -> ReplicaStep:
    """Takes Longhorn's next step for a volume that is attached, or of which a replica is evicted. Without a change and
    without a problem the volume is complete.
    """
    volume = cluster.snapshot.volumes.get(name)
    # What happens to the shards of a sharded volume that exists is not predicted.
    if volume is None or volume.deleting or volume.has_shards:
        return ReplicaStep(cluster)
    # A replica object without a place is created again when there is one.
    unplaced = [each for each in cluster.state.view.replicas_of(name) if not each.node_id and not each.deleting]
    cluster = cluster.update({("replicas", replica.name): None for replica in unplaced})
    replicas = cluster.state.view.replicas_of(name)
    if not any(replica.node_id for replica in replicas):
        return _place_new_volume(cluster, volume, choose)
    if not healthy_replicas(cluster, name):
        return ReplicaStep(cluster, problem=NO_DATA)
    follows = volume.data_locality == BEST_EFFORT and volume.robustness == replenish.HEALTHY
    affinity = volume.current_node_id if follows and lacks_local_replica(volume, replicas) else ""
    missing = volume.number_of_replicas - sum(1 for replica in replicas if replenish.is_usable(volume, replica))
    if missing <= 0 and not affinity:
        return _remove_extra_replica(cluster, volume, replicas, choose)
    if not cluster.state.view.settings.concurrent_replica_rebuild_per_node_limit:
        return ReplicaStep(cluster, problem="concurrent-replica-rebuild-per-node-limit is 0")
    hard_affinity = affinity if missing <= 0 else ""
    if volume.data_locality == STRICT_LOCAL:
        hard_affinity = next(replica.node_id for replica in replicas if holds_data(cluster, replica))
    wait = replenish.wait_before_new_replica(cluster.state.view.cluster, volume, replicas, hard_affinity)
    if wait > _NO_WAIT:
        return ReplicaStep(cluster, problem="Longhorn waits for the failed replica", wait=wait)
    step = _add_replica(cluster, volume, hard_affinity, choose)
    if step.changed or not hard_affinity:
        return step
    # A healthy volume without a local replica goes on without one.
    return replace(step, problem=f"no local replica on {hard_affinity}: {step.problem}", only_local=missing <= 0)


def holds_data(cluster: PredictedCluster, replica: longhorn.Replica) -> bool:
    """Whether a replica is healthy, on a ready disk; of a volume that was never attached, every replica is as good as
    that.
    """
    place = cluster.disk_of(replica)
    if (
        replica.failed_at
        or place is None
        or not place[1].ready
        or node_controller.is_down(cluster.state.view.cluster, replica.node_id)
    ):
        return False
    return replica.healthy_at != "" or not any(
        each.healthy_at for each in cluster.state.view.replicas_of(replica.volume)
    )


def healthy_replicas(cluster: PredictedCluster, volume: str) -> int:
    """Returns how many replicas of a volume hold its data."""
    return sum(1 for replica in cluster.state.view.replicas_of(volume) if holds_data(cluster, replica))


def lacks_local_replica(volume: longhorn.Volume, replicas: Iterable[longhorn.Replica]) -> bool:
    """Whether data locality wants a replica on the node that an attached volume is used on, and there is none."""
    node = volume.current_node_id
    if not node or volume.data_locality not in (BEST_EFFORT, STRICT_LOCAL):
        return False
    return not any(replica.node_id == node and replenish.is_usable(volume, replica) for replica in replicas)


def _place_new_volume(cluster: PredictedCluster, volume: longhorn.Volume, choose: Choose) -> ReplicaStep:
    affinity = volume.node_id if volume.data_locality == STRICT_LOCAL else ""
    step = ReplicaStep(cluster)
    for _ in range(volume.number_of_replicas):
        following = _add_replica(step.cluster, volume, affinity, choose)
        if not following.changed:
            return replace(step, problem=following.problem)
        step = replace(following, copied_bytes=0)
    robust: Any = replace(volume, robustness=replenish.HEALTHY) if volume.current_node_id else volume
    return replace(step, cluster=step.cluster.update({("volumes", volume.name): robust}))


def _add_replica(cluster: PredictedCluster, volume: longhorn.Volume, affinity: str, choose: Choose) -> ReplicaStep:
    result = new_replica_placement(cluster, volume, affinity)
    if not result.choices:
        return ReplicaStep(
            cluster, problem=new_volume_placement.join_reasons(result.reasons) or "no disk can take a replica"
        )
    candidate = result.choices[choose(len(result.choices))].candidate
    return rebuild_replica(cluster, volume, candidate, affinity)


def new_replica_placement(
    cluster: PredictedCluster, volume: longhorn.Volume, affinity: str = ""
) -> placement.PlacementResult:
    """Returns every disk that Longhorn may choose for another replica, or why there is none."""
    # `affinity` is the only node that the replica may be on, "" for any.
    view = cluster.state.view
    replicas = view.replicas_of(volume.name)
    return placement.schedule_replica(view.cluster, volume, _new_replica(volume, replicas, affinity), replicas)


def rebuild_replica(
    cluster: PredictedCluster, volume: longhorn.Volume, place: placement.DiskCandidate, affinity: str = ""
) -> ReplicaStep:
    """Creates another replica of a volume on a disk, with data."""
    view = cluster.state.view
    disk = place.disk
    placed = replace(
        _new_replica(volume, view.replicas_of(volume.name), affinity),
        node_id=place.node.name,
        disk_id=disk.uuid,
        disk_path=disk.path,
        healthy_at=view.cluster.now.isoformat(),
        current_state=RUNNING,
    )
    written = with_written_bytes(disk, volume.actual_size)
    node = list_replica(cluster, place.node, written, placed.name, placed.size)
    changes: ChangesByObject = {("replicas", placed.name): placed, ("longhorn_nodes", node.name): node}
    return ReplicaStep(cluster.update(changes), changed=True, copied_bytes=volume.actual_size)


def _new_replica(volume: longhorn.Volume, replicas: Iterable[longhorn.Replica], affinity: str) -> longhorn.Replica:
    names = {replica.name for replica in replicas}
    unused = (name for number in range(len(names) + 1) if (name := f"{volume.name}-what-if-{number}") not in names)
    return longhorn.Replica(
        name=next(unused),
        volume=volume.name,
        size=volume.size,
        data_engine=volume.data_engine,
        image=volume.image,
        hard_node_affinity=affinity,
    )


def with_written_bytes(disk: longhorn.Disk, count: int) -> longhorn.Disk:
    """Returns the disk with `count` fewer available bytes, more for a negative count, rounded as in Longhorn's status."""
    available = min(disk.storage_maximum, max(0, disk.storage_available - count)) if count else disk.storage_available
    rounding = available % node_controller.ROUNDING if count and disk.spec_type == FILESYSTEM else 0
    return replace(disk, storage_available=available - rounding)


def _remove_extra_replica(
    cluster: PredictedCluster, volume: longhorn.Volume, replicas: tuple[longhorn.Replica, ...], choose: Choose
) -> ReplicaStep:
    """Removes one replica beyond the volume's number, in Longhorn's order (cleanupExtraHealthyReplicas)."""
    # Failed ones stay until they are stale (shouldCleanUpFailedReplica), which is not predicted.
    healthy = [replica for replica in replicas if is_healthy(replica)]
    evicted = [replica for replica in replicas if replica.eviction_requested and not replica.failed_at]
    # Evicted ones go first, then those that data locality does not want.
    candidates = evicted
    if not candidates and len(healthy) > volume.number_of_replicas:
        elsewhere = [replica for replica in healthy if replica.node_id != volume.current_node_id]
        candidates = elsewhere if volume.data_locality == BEST_EFFORT and elsewhere else healthy
    if not candidates:
        return ReplicaStep(_with_robustness(cluster, volume, replenish.HEALTHY))
    extra = candidates[choose(len(candidates))]
    return ReplicaStep(_with_robustness(remove_replica(cluster, extra), volume, replenish.HEALTHY), changed=True)


def _with_robustness(cluster: PredictedCluster, volume: longhorn.Volume, robustness: str) -> PredictedCluster:
    if not volume.current_node_id or volume.robustness == robustness:
        return cluster
    return cluster.update({("volumes", volume.name): replace(volume, robustness=robustness, last_degraded_at="")})


def remove_replica(cluster: PredictedCluster, replica: longhorn.Replica) -> PredictedCluster:
    """Deletes a replica with its data; the status of a node without its longhorn-manager stays as it was."""
    changes: ChangesByObject = {("replicas", replica.name): None}
    place = cluster.disk_of(replica)
    if place is not None and place[0].ready:
        node, disk = place
        volume = cluster.snapshot.volumes.get(replica.volume)
        had_data = volume is not None and (replica.healthy_at or replica.failed_at) and disk.ready
        freed = with_written_bytes(disk, -volume.actual_size) if volume is not None and had_data else disk
        changes["longhorn_nodes", node.name] = list_replica(cluster, node, freed, replica.name, 0)
    return cluster.update(changes)


def fail_replicas(cluster: PredictedCluster, replicas: Iterable[longhorn.Replica]) -> PredictedCluster:
    """Marks replicas as failed; their volumes become degraded since now, or faulted without a healthy replica."""
    now = cluster.state.view.cluster.now.isoformat()
    failing = [replica for replica in replicas if replica.node_id and not replica.failed_at]
    changes: ChangesByObject = {
        ("replicas", replica.name): replace(replica, failed_at=now, current_state="stopped") for replica in failing
    }
    cluster = cluster.update(changes)
    changes = {}
    for name in {replica.volume for replica in failing}:
        volume = cluster.snapshot.volumes.get(name)
        if volume is None:
            continue
        if not any(is_healthy(replica) for replica in cluster.state.view.replicas_of(name)):
            changes["volumes", name] = replace(volume, robustness=volume_validation.FAULTED)
        elif volume.robustness != DEGRADED:
            changes["volumes", name] = replace(volume, robustness=DEGRADED, last_degraded_at=now)
    return cluster.update(changes)


def replicas_on_node(cluster: PredictedCluster, name: str) -> list[longhorn.Replica]:
    node = cluster.state.view.cluster.nodes.get(name)
    by_disk = cluster.state.view.indexes.replicas_by_disk
    uuids = [disk.uuid for disk in node.disks if disk.uuid] if node is not None else []
    return sorted((replica for uuid in uuids for replica in by_disk.get(uuid) or ()), key=lambda each: each.name)


# webhook/resources/volume/validator.go: validateReplicaCount.
_MAX_REPLICAS = 20


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


def _can_take_extra_replica(cluster: PredictedCluster, volume: longhorn.Volume) -> bool:
    """Whether Longhorn would build one more replica of a volume and leave every other replica as it is."""
    view = cluster.state.view
    replicas = view.replicas_of(volume.name)
    steady = (
        volume.state == "attached"
        and volume.robustness == replenish.HEALTHY
        and volume.node_id == volume.current_node_id != ""
        and volume.name not in view.indexes.requested_sizes
        and volume_validation.readiness_refusal(volume, replicas, view.cluster) is None
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
    clones = (each for each in cluster.snapshot.volumes.values() if each.clone_mode == LINKED_CLONE)
    # The replicas of a linked clone's source hold data of the clone, too.
    if not replicas or any(ReplicaRequest.for_volume(each).linked_clone_source_volume == name for each in clones):
        return ()
    volume = cluster.snapshot.volumes[name]
    choices = new_replica_placement(cluster, _volume_while_moving(volume)).choices
    candidates = tuple(choice.candidate for choice in choices)
    image = cluster.state.view.cluster.backing_image(volume.backing_image) if volume.backing_image else None
    # Longhorn would copy the image otherwise, and the copy takes space, too.
    copied = image is not None and all(candidate.disk_uuid in image.disks for candidate in candidates)
    if not candidates or (volume.backing_image and not copied):
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

    def is_steady(after: PredictedCluster) -> bool:
        view = after.state.view
        return replenish.replenishments(view.cluster, volume, view.replicas_of(volume.name)) == {
            replenish.NO_REPLENISHMENT
        }

    return (move for move in moves if all(is_steady(apply_move(cluster, move, target)) for target in checked))


def is_auto_balanced(cluster: PredictedCluster, volume: longhorn.Volume) -> bool:
    return auto_balance_mode(volume, cluster.state.view.settings) != settings.AUTO_BALANCE_DISABLED


def _volume_while_moving(volume: longhorn.Volume) -> longhorn.Volume:
    return replace(
        volume,
        number_of_replicas=volume.number_of_replicas + 1,
        data_locality=DISABLED,
        replica_auto_balance=settings.AUTO_BALANCE_DISABLED,
    )


def apply_move(cluster: PredictedCluster, move: ReplicaMove, target: DiskPlace) -> PredictedCluster:
    """Returns the cluster after a move to one of its targets; the new replica has a predicted name, which the real one
    will not have. Raises a WhatIfError if the cluster does not have the volume, the replica or the disk.
    """
    volume = cluster.snapshot.volumes.get(move.volume)
    replica = cluster.snapshot.replicas.get(move.replica)
    node = cluster.state.view.cluster.nodes.get(target.node)
    disk = next((each for each in node.disks if each.name == target.disk), None) if node is not None else None
    if volume is None or replica is None or node is None or disk is None:
        raise WhatIfError(f"replica {move.replica} of volume {move.volume} cannot be moved to {'/'.join(target)}")
    step = rebuild_replica(cluster, _volume_while_moving(volume), placement.DiskCandidate(node, disk))
    return remove_replica(step.cluster, replica)
