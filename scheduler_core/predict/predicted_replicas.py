"""Longhorn's steps with a volume's replicas, by its own rules. It places the replicas of new volumes, rebuilds missing
ones, follows data locality, and moves evicted ones. One step at a time, each decided by the status of the given
cluster, which may lag behind (`hide_changes`). Auto-balance and the reuse of failed replicas are not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from scheduler_core.longhorn.cluster import DEGRADED
from scheduler_core.longhorn.new_volume_placement import join_reasons
from scheduler_core.longhorn.node_status import ROUNDING, is_down
from scheduler_core.longhorn.placement import DiskCandidate, PlacementResult, schedule_replica
from scheduler_core.longhorn.replenish import HEALTHY, is_usable, wait_before_new_replica
from scheduler_core.longhorn.volume_validation import FAULTED
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import BEST_EFFORT, FILESYSTEM, STRICT_LOCAL
from scheduler_core.predict.predicted_cluster import ChangesByObject, PredictedCluster, list_replica
from scheduler_core.values import replace
from scheduler_core.volumes.existing_replicas import is_healthy

RUNNING: Final = "running"
NO_DATA: Final = "no replica with its data is left"
NO_REBUILDS: Final = "concurrent-replica-rebuild-per-node-limit is 0"
NO_PLACE: Final = "no disk can take a replica"
_NO_WAIT: Final = timedelta(0)

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
    affinity = _local_node_without_replica(volume, replicas)
    missing = volume.number_of_replicas - sum(1 for replica in replicas if is_usable(volume, replica))
    if missing <= 0 and not affinity:
        return _remove_extra_replica(cluster, volume, replicas, choose)
    if not cluster.state.view.settings.concurrent_replica_rebuild_per_node_limit:
        return ReplicaStep(cluster, problem=NO_REBUILDS)
    hard_affinity = affinity if missing <= 0 else ""
    if volume.data_locality == STRICT_LOCAL:
        hard_affinity = next(replica.node_id for replica in replicas if holds_data(cluster, replica))
    wait = wait_before_new_replica(cluster.state.view.cluster, volume, replicas, hard_affinity)
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
    if replica.failed_at or place is None or not place[1].ready or is_down(cluster.state.view.cluster, replica.node_id):
        return False
    return replica.healthy_at != "" or not any(
        each.healthy_at for each in cluster.state.view.replicas_of(replica.volume)
    )


def healthy_replicas(cluster: PredictedCluster, volume: str) -> int:
    """Returns how many replicas of a volume hold its data."""
    return sum(1 for replica in cluster.state.view.replicas_of(volume) if holds_data(cluster, replica))


def _local_node_without_replica(volume: longhorn.Volume, replicas: Iterable[longhorn.Replica]) -> str:
    """Returns the node that lacks the local replica that data locality wants, "" for none."""
    if volume.data_locality != BEST_EFFORT or not volume.current_node_id or volume.robustness != HEALTHY:
        return ""
    node = volume.current_node_id
    return "" if any(is_usable(volume, replica) and replica.node_id == node for replica in replicas) else node


def _place_new_volume(cluster: PredictedCluster, volume: longhorn.Volume, choose: Choose) -> ReplicaStep:
    affinity = volume.node_id if volume.data_locality == STRICT_LOCAL else ""
    step = ReplicaStep(cluster)
    for _ in range(volume.number_of_replicas):
        following = _add_replica(step.cluster, volume, affinity, choose)
        if not following.changed:
            return replace(step, problem=following.problem)
        step = replace(following, copied_bytes=0)
    robust: Any = replace(volume, robustness=HEALTHY) if volume.current_node_id else volume
    return replace(step, cluster=step.cluster.update({("volumes", volume.name): robust}))


def _add_replica(cluster: PredictedCluster, volume: longhorn.Volume, affinity: str, choose: Choose) -> ReplicaStep:
    result = new_replica_placement(cluster, volume, affinity)
    if not result.choices:
        return ReplicaStep(cluster, problem=join_reasons(result.reasons) or NO_PLACE)
    candidate = result.choices[choose(len(result.choices))].candidate
    return rebuild_replica(cluster, volume, candidate, affinity)


def new_replica_placement(cluster: PredictedCluster, volume: longhorn.Volume, affinity: str = "") -> PlacementResult:
    """Returns every disk that Longhorn may choose for another replica, or why there is none."""
    # `affinity` is the only node that the replica may be on, "" for any.
    view = cluster.state.view
    replicas = view.replicas_of(volume.name)
    return schedule_replica(view.cluster, volume, _new_replica(volume, replicas, affinity), replicas)


def rebuild_replica(
    cluster: PredictedCluster, volume: longhorn.Volume, place: DiskCandidate, affinity: str = ""
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
    return longhorn.Replica(
        name=_unused_name(volume, replicas),
        volume=volume.name,
        size=volume.size,
        data_engine=volume.data_engine,
        image=volume.image,
        hard_node_affinity=affinity,
    )


def _unused_name(volume: longhorn.Volume, replicas: Iterable[longhorn.Replica]) -> str:
    names = {replica.name for replica in replicas}
    return next(name for number in range(len(names) + 1) if (name := f"{volume.name}-what-if-{number}") not in names)


def with_written_bytes(disk: longhorn.Disk, count: int) -> longhorn.Disk:
    """Returns the disk with `count` fewer available bytes, more for a negative count, rounded as in Longhorn's status."""
    available = min(disk.storage_maximum, max(0, disk.storage_available - count)) if count else disk.storage_available
    rounding = available % ROUNDING if count and disk.spec_type == FILESYSTEM else 0
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
        return ReplicaStep(_with_robustness(cluster, volume, HEALTHY))
    extra = candidates[choose(len(candidates))]
    return ReplicaStep(_with_robustness(remove_replica(cluster, extra), volume, HEALTHY), changed=True)


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
            changes["volumes", name] = replace(volume, robustness=FAULTED)
        elif volume.robustness != DEGRADED:
            changes["volumes", name] = replace(volume, robustness=DEGRADED, last_degraded_at=now)
    return cluster.update(changes)


def replicas_on_node(cluster: PredictedCluster, name: str) -> list[longhorn.Replica]:
    node = cluster.state.view.cluster.nodes.get(name)
    by_disk = cluster.state.view.indexes.replicas_by_disk
    uuids = [disk.uuid for disk in node.disks if disk.uuid] if node is not None else []
    return sorted((replica for uuid in uuids for replica in by_disk.get(uuid) or ()), key=lambda each: each.name)
