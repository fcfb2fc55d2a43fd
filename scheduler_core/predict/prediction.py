"""What-if: what changes of the cluster lead to.

The changes make a `Situation`, whose orders are played (`run_order`). What they have in common happens always, usually or never.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model import longhorn
from scheduler_core.model.generic import PodKey
from scheduler_core.model.quantity import natural_key
from scheduler_core.predict.order_outcomes import (
    Certainty,
    DiskOutcome,
    DrainOutcome,
    FewerReplicas,
    PodOnNode,
    PodOutcome,
    longest_wait,
    refusal_text,
    sort_by_count,
)
from scheduler_core.predict.predicted_replicas import healthy_replicas
from scheduler_core.predict.situation import ExpansionOutcome, PodToPlace, Situation
from scheduler_core.predict.timeline import OrderResult

Disks = Mapping[tuple[str, str], longhorn.Disk]


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
    pods = sorted(after.affected_pods, key=lambda entry: _natural_keys(entry.key))
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


def _natural_keys(names: Iterable[str]) -> tuple[object, ...]:
    return tuple(map(natural_key, names))


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
        reasons=sort_by_count(_reason(key, result) for result in waiting),
        unlucky_order=tuple(PodOnNode("/".join(key), node) for key, node in unlucky.items()),
    )


def _reason(key: PodKey, result: OrderResult) -> str:
    if key in result.stuck:
        return result.stuck[key]
    return refusal_text(result.refusals[key])


def _drain_outcome(node: str, results: Sequence[OrderResult]) -> DrainOutcome:
    blocked = [result.blockers[node] for result in results if node in result.blockers]
    blockers = sort_by_count(text for texts in blocked for text in texts)
    finished = len(results) - len(blocked)
    return DrainOutcome(node, Certainty.of(finished, len(results)), finished, blockers)


def _disks(nodes: Mapping[str, longhorn.Node], names: Iterable[str]) -> Disks:
    return {(name, disk.name): disk for name in names if name in nodes for disk in nodes[name].disks}


def _disk_outcomes(before: Situation, results: Sequence[OrderResult]) -> tuple[DiskOutcome, ...]:
    nodes = before.cluster.state.view.cluster.nodes
    ends = [result.cluster.state.view.cluster.nodes for result in results]
    # What does not change is shared, and most nodes of a large cluster do not.
    changed = {name for end in ends for name, node in end.items() if nodes.get(name) is not node}
    earlier = _disks(nodes, changed)
    later = [_disks(end, changed) for end in ends]
    outcomes: list[DiskOutcome] = []
    for node, name in sorted({key for disks in (earlier, *later) for key in disks}, key=_natural_keys):
        scheduled = [disks[node, name].storage_scheduled for disks in later if (node, name) in disks]
        disk = earlier.get((node, name))
        start = disk.storage_scheduled if disk is not None else None
        if any(value != start for value in scheduled):
            shown = disk or next(disks[node, name] for disks in later if (node, name) in disks)
            limit = scheduling_limit(shown, before.cluster.state.view.settings)
            outcomes.append(DiskOutcome(node, name, start, min(scheduled), max(scheduled), limit))
    return tuple(outcomes)


def _volume_outcomes(after: Situation, results: Sequence[OrderResult]) -> tuple[FewerReplicas, ...]:
    names = {name for result in results for name in (*result.fewer_replicas, *result.incomplete)}
    users = after.cluster.pods_by_volume() if names else {}
    return tuple(_volume_outcome(name, results, users.get(name, ())) for name in sorted(names))


def _volume_outcome(name: str, results: Sequence[OrderResult], pods: tuple[str, ...]) -> FewerReplicas:
    problems = [result.incomplete[name] for result in results if name in result.incomplete]
    volume = next((each for result in results if (each := result.cluster.snapshot.volumes.get(name)) is not None), None)
    wanted = volume.number_of_replicas if volume is not None else 0
    least = min(
        min(result.fewer_replicas.get(name, wanted), healthy_replicas(result.cluster, name)) for result in results
    )
    rebuild_after = longest_wait(result.waits[name] for result in results if name in result.waits)
    return FewerReplicas(name, wanted, least, len(problems), problems[0] if problems else "", pods, rebuild_after)
