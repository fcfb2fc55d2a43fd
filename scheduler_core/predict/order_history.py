"""How one order goes on, event by event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from scheduler_core.longhorn.replenish import is_usable
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model.longhorn import BEST_EFFORT, STRICT_LOCAL, Volume
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.timeline import OrderProgress

_MAX_POINTS: Final = 128


class OrderPoint(Struct, frozen=True):
    """The cluster after one of an order's steps."""

    step: int  # its number; 0 is before the first one
    waiting: int
    to_evict: int
    misplaced: int  # attached volumes that data locality wants a replica for on their node, and that have none there
    overbooked: int  # disks whose replicas take more than Longhorn's scheduling limit
    free_bytes: int  # what Longhorn's rules let the ready disks take in sum
    copied_bytes: int


class OrderHistory:
    """The points of one order, at most `limit` of them; of longer orders every second, fourth or later step is kept."""

    def __init__(self, start: PredictedCluster, limit: int = _MAX_POINTS) -> None:
        self._limit = limit
        self._misplaced: set[str] = set()
        self._note_volumes(start, start.snapshot.volumes)
        self._stride = 1
        self._steps = -1
        self._last: OrderProgress | None = None
        self._points: list[OrderPoint] = []

    def observe(self, progress: OrderProgress) -> None:
        """Takes a step into account."""
        self._note_volumes(progress.cluster, progress.volumes)
        self._steps += 1
        self._last = progress
        if self._steps % self._stride:
            return
        self._points.append(self._point(progress))
        if len(self._points) >= self._limit:
            del self._points[1::2]
            self._stride *= 2

    def points(self) -> tuple[OrderPoint, ...]:
        """Returns the points, in order; the last step is always among them."""
        if self._last is None or self._points[-1].step == self._steps:
            return tuple(self._points)
        return (*self._points, self._point(self._last))

    def _point(self, progress: OrderProgress) -> OrderPoint:
        return OrderPoint(
            step=self._steps,
            waiting=progress.waiting,
            to_evict=progress.to_evict,
            misplaced=len(self._misplaced),
            overbooked=_overbooked_disks(progress.cluster),
            free_bytes=_free_bytes(progress.cluster),
            copied_bytes=progress.copied_bytes,
        )

    def _note_volumes(self, cluster: PredictedCluster, names: Iterable[str]) -> None:
        for name in names:
            volume = cluster.snapshot.volumes.get(name)
            if volume is not None and _lacks_local_replica(cluster, volume):
                self._misplaced.add(name)
            else:
                self._misplaced.discard(name)


def _lacks_local_replica(cluster: PredictedCluster, volume: Volume) -> bool:
    node = volume.current_node_id
    if not node or volume.data_locality not in (BEST_EFFORT, STRICT_LOCAL):
        return False
    replicas = cluster.state.view.replicas_of(volume.name)
    return not any(replica.node_id == node and is_usable(volume, replica) for replica in replicas)


def _free_bytes(cluster: PredictedCluster) -> int:
    view = cluster.state.view
    free_space = view.indexes.free_space
    return sum(
        max(0, free_space[node.name][disk.name].free)
        for node in view.cluster.nodes.values()
        if node.ready
        for disk in node.disks
        if disk.ready
    )


def _overbooked_disks(cluster: PredictedCluster) -> int:
    view = cluster.state.view
    return sum(
        disk.ready and disk.storage_scheduled > scheduling_limit(disk, view.settings)
        for node in view.cluster.nodes.values()
        for disk in node.disks
    )
