"""What orders show: the points of one, event by event, and the outcomes that all of them have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model.generic import PodKey
from scheduler_core.model.quantity import format_count
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import lacks_local_replica
from scheduler_core.predict.situation import Origin
from scheduler_core.predict.timeline import OrderProgress, OrderResult

# An order may have thousands of steps, and each point counts every disk of the cluster.
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
            if volume is not None and lacks_local_replica(volume, cluster.state.view.replicas_of(name)):
                self._misplaced.add(name)
            else:
                self._misplaced.discard(name)


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


class Certainty(StrEnum):
    """In how many orders something happens."""

    ALWAYS = "always"
    USUALLY = "usually"
    NEVER = "never"

    @classmethod
    def of(cls, count: int, orders: int) -> Certainty:
        if count == orders:
            return cls.ALWAYS
        return cls.USUALLY if count else cls.NEVER


class PodOnNode(NamedTuple):
    """A pod and its node; the fields of outcomes are keys of the JSON."""

    pod: str
    node: str


class PodOutcome(Struct, frozen=True):
    """What becomes of one pod."""

    pod: str
    origin: Origin
    left: str  # the node that it ran on, "" for none
    outcome: Certainty  # whether it is placed
    placed: int  # in how many orders it gets a node and its volumes
    not_running: int  # in how many orders it is bound to a node and does not run, because its volumes are not ready
    nodes: Mapping[str, int]  # in how many orders it gets each node
    reasons: Mapping[str, int]  # why it waits, with the number of orders, most frequent first
    # The pods with their nodes in the first order in which it waits, as decided; empty if there is none.
    unlucky_order: tuple[PodOnNode, ...]


class DrainOutcome(Struct, frozen=True):
    """Whether a node's drain can finish."""

    node: str
    outcome: Certainty
    finished: int  # in how many orders it does
    blockers: Mapping[str, int]  # what holds it up, with the number of orders


class DiskOutcome(Struct, frozen=True):
    """A disk whose scheduled bytes change."""

    node: str
    disk: str
    before: int | None  # None for a disk that is new
    least: int  # scheduled bytes in the end, over all orders
    most: int  # scheduled bytes in the end, over all orders
    limit: int = 0  # up to how many bytes Longhorn schedules there, before the changes, or in the end for a new disk


class FewerReplicas(Struct, frozen=True):
    """A volume that has fewer replicas than it should."""

    name: str
    replicas: int  # how many it should have
    least_healthy: int  # the least number of healthy replicas meanwhile, over all orders
    incomplete: int  # in how many orders it still lacks one in the end
    problem: str  # why, in one of these orders
    pods: tuple[str, ...] = ()  # the pods that use the volume, by name
    # For how many seconds Longhorn waits for a failed replica before it rebuilds one elsewhere, the most of all orders.
    rebuild_after_seconds: float = 0.0


def pod_problem(key: PodKey, result: OrderResult) -> str:
    """Returns why a moved pod does not run in the end, "" if it runs."""
    name = "/".join(key)
    if key in result.refusals:
        return f"pod {name} finds no node: {refusal_text(result.refusals[key])}"
    if key in result.stuck:
        return f"pod {name} waits for its volumes: {result.stuck[key]}"
    return ""


def refusal_text(reasons: Mapping[str, int]) -> str:
    """Returns the reasons of a refused pod as one text, each with its number of nodes unless this is 0."""
    by_count = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{text} ({format_count(count, 'node')})" if count else text for text, count in by_count)


def sort_by_count(values: Iterable[str]) -> dict[str, int]:
    """Returns how often each value occurs, most frequent first."""
    return dict(sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0])))


def longest_wait(waits: Iterable[timedelta]) -> float:
    """Returns the longest of Longhorn's waits in seconds, 0 without one."""
    return max((wait.total_seconds() for wait in waits), default=0.0)
