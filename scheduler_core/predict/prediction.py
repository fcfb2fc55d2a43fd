"""What-if: what changes of the cluster lead to.

The changes make a `Situation`, whose orders are played (`run_order`). What they have in common happens always, usually or never. Of
one order, `OrderHistory` has the points, event by event.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model.generic import PodKey
from scheduler_core.model.quantity import format_count, natural_key
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import healthy_replicas, lacks_local_replica
from scheduler_core.predict.prediction_input import ExpansionOutcome, Origin, PodToPlace, Situation
from scheduler_core.predict.timeline import OrderProgress, OrderResult
from scheduler_core.structs import Struct

# An order may have thousands of steps, and each point counts every disk of the cluster.
_MAX_POINTS = 128


class Certainty(StrEnum):
    """In how many orders something happens."""

    ALWAYS = "always"
    USUALLY = "usually"
    NEVER = "never"

    @classmethod
    def of(cls, count: int, orders: int) -> "Certainty":
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


class Prediction(Struct, frozen=True):
    """The result of all orders."""

    orders: int
    pods: tuple[PodOutcome, ...]
    drains: tuple[DrainOutcome, ...]
    disks: tuple[DiskOutcome, ...]
    volumes: tuple[FewerReplicas, ...]
    expansions: tuple[ExpansionOutcome, ...]
    gone_pods: tuple[str, ...]
    copied_bytes: tuple[int, int]  # the least and the most that rebuilds copy

    @property
    def rebuild_wait(self) -> float:
        """For how many seconds nothing is rebuilt where Longhorn could reuse a failed replica, 0 if it waits for none."""
        return max((volume.rebuild_after_seconds for volume in self.volumes), default=0.0)

    @property
    def succeeds(self) -> bool:
        """Whether every pod, drain and expansion always succeeds, and no volume lacks a replica in the end."""
        outcomes: tuple[PodOutcome | DrainOutcome, ...] = (*self.pods, *self.drains)
        certain = all(each.outcome is Certainty.ALWAYS for each in outcomes)
        complete = all(not volume.incomplete for volume in self.volumes)
        return certain and complete and not self.gone_pods and not any(entry.refusals for entry in self.expansions)


def predict(before: Situation, after: Situation, results: Sequence[OrderResult]) -> Prediction:
    """Summarizes the orders of a situation, of which there is at least one; `before` is the one without changes."""
    copied = [result.copied_bytes for result in results]
    pods = sorted(after.affected_pods, key=lambda entry: [*map(natural_key, entry.key)])
    return Prediction(
        orders=len(results),
        pods=tuple(_pod_outcome(entry, results) for entry in pods),
        drains=tuple(_drain_outcome(node, results) for node in after.drained),
        disks=_disk_outcomes(before, results),
        volumes=_volume_outcomes(after, results),
        expansions=after.expansions,
        gone_pods=tuple(map("/".join, after.gone_pods)),
        copied_bytes=(min(copied), max(copied)),
    )


def _pod_outcome(entry: PodToPlace, results: Sequence[OrderResult]) -> PodOutcome:
    key = entry.key
    placed = [result for result in results if key in result.nodes and key not in result.stuck]
    waiting = [result for result in results if key not in result.nodes or key in result.stuck]
    unlucky = waiting[0].nodes if waiting and placed else {}
    return PodOutcome(
        pod="/".join(key),
        origin=entry.origin,
        left=entry.left,
        outcome=Certainty.of(len(placed), len(results)),
        placed=len(placed),
        not_running=sum(key in result.stuck for result in results),
        nodes=sort_by_count(result.nodes[key] for result in results if key in result.nodes),
        reasons=sort_by_count(result.stuck.get(key) or refusal_text(result.refusals[key]) for result in waiting),
        unlucky_order=tuple(PodOnNode("/".join(key), node) for key, node in unlucky.items()),
    )


def _drain_outcome(node: str, results: Sequence[OrderResult]) -> DrainOutcome:
    finished = sum(node not in result.blockers for result in results)
    blockers = sort_by_count(text for result in results for text in result.blockers.get(node, ()))
    return DrainOutcome(node, Certainty.of(finished, len(results)), finished, blockers)


def _disk_outcomes(before: Situation, results: Sequence[OrderResult]) -> tuple[DiskOutcome, ...]:
    view = before.cluster.state.view
    ends = [result.cluster.state.view.cluster.nodes for result in results]
    # What does not change is shared, and most nodes of a large cluster do not.
    changed = {name for end in ends for name, node in end.items() if view.cluster.nodes.get(name) is not node}
    earlier, *later = (
        {(name, disk.name): disk for name in changed if name in nodes for disk in nodes[name].disks}
        for nodes in (view.cluster.nodes, *ends)
    )
    outcomes: list[DiskOutcome] = []
    for key in sorted({key for disks in (earlier, *later) for key in disks}, key=lambda key: [*map(natural_key, key)]):
        ends_of_disk = [disks[key] for disks in later if key in disks]
        scheduled = [disk.storage_scheduled for disk in ends_of_disk]
        start = earlier[key].storage_scheduled if key in earlier else None
        if any(value != start for value in scheduled):
            limit = scheduling_limit(earlier.get(key, ends_of_disk[0]), view.settings)
            outcomes.append(DiskOutcome(*key, start, min(scheduled), max(scheduled), limit))
    return tuple(outcomes)


def _volume_outcomes(after: Situation, results: Sequence[OrderResult]) -> tuple[FewerReplicas, ...]:
    names = {name for result in results for name in (*result.fewer_replicas, *result.incomplete)}
    users = after.cluster.pods_by_volume() if names else {}
    outcomes: list[FewerReplicas] = []
    for name in sorted(names):
        problems = [result.incomplete[name] for result in results if name in result.incomplete]
        volumes = (result.cluster.snapshot.volumes.get(name) for result in results)
        wanted = next((volume.number_of_replicas for volume in volumes if volume is not None), 0)
        least = min(
            min(result.fewer_replicas.get(name, wanted), healthy_replicas(result.cluster, name)) for result in results
        )
        wait = longest_wait(result.waits[name] for result in results if name in result.waits)
        problem = problems[0] if problems else ""
        outcomes.append(FewerReplicas(name, wanted, least, len(problems), problem, users.get(name, ()), wait))
    return tuple(outcomes)


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
        view = progress.cluster.state.view
        nodes = view.cluster.nodes.values()
        ready = [(node.name, disk) for node in nodes if node.ready for disk in node.disks if disk.ready]
        overbooked = (
            disk.ready and disk.storage_scheduled > scheduling_limit(disk, view.settings)
            for node in nodes
            for disk in node.disks
        )
        return OrderPoint(
            step=self._steps,
            waiting=progress.waiting,
            to_evict=progress.to_evict,
            misplaced=len(self._misplaced),
            overbooked=sum(overbooked),
            free_bytes=sum(max(0, view.indexes.free_space[node][disk.name].free) for node, disk in ready),
            copied_bytes=progress.copied_bytes,
        )

    def _note_volumes(self, cluster: PredictedCluster, names: Iterable[str]) -> None:
        for name in names:
            volume = cluster.snapshot.volumes.get(name)
            self._misplaced.discard(name)
            if volume is not None and lacks_local_replica(volume, cluster.state.view.replicas_of(name)):
                self._misplaced.add(name)
