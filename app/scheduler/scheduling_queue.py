"""Which pod is tried next, and the decision about it by a policy.

Pods that need a node wait in the queue, by priority. Pods that no node fits are tried again after a back-off. Among pods of equal priority,
new pods, by age, and retried pods, the least recently tried first, take turns. So neither many unschedulable pods nor many new ones keep a
pod from being tried.

Time is passed in, in seconds of any clock that never goes back. A back-off doubles from `MIN_BACKOFF` to `MAX_BACKOFF`. After a
change that may help (`shorten_backoffs`) it doubles to `MAX_BACKOFF_AFTER_CHANGE`. It does not end at once: something always
changes in a busy cluster, and an unschedulable pod must not be tried all the time because of that. A change during an attempt counts
as one after it, because the attempt may have begun before the change.

A policy may have Longhorn's rules. They are checked last, on the nodes that pass all other rules, as kube-scheduler calls its extenders
last. They judge the nodes together (a node that holds the pod's data excludes all others, safer nodes exclude those that are less safe),
so a node that is excluded anyway must not be among them. The what-if schedules the pending pods of a snapshot one after the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from scheduler_core.backoff import Backoff
from scheduler_core.convert.generic import PendingPod
from scheduler_core.errors import ResolutionError
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import LonghornFacts
from scheduler_core.generic.policy import (
    Policy,
    PolicyPredicate,
    UnsupportedConstraint,
    UnsupportedMode,
    ignored_constraints,
    node_refusal,
    unsupported_constraints,
    unsupported_message,
    unsupported_nodes,
)
from scheduler_core.generic.scheduler import NO_NODES, ScheduleResult, SelectHost, find_nodes_that_fit, schedule
from scheduler_core.model.generic import PodKey
from scheduler_core.model.kube import Pod

if TYPE_CHECKING:
    from app.scheduler.cache import LonghornSnapshot


MIN_BACKOFF: Final = 1.0
MAX_BACKOFF_AFTER_CHANGE: Final = 10.0
MAX_BACKOFF: Final = 60.0
_BACKOFF: Final = Backoff(MIN_BACKOFF, MAX_BACKOFF)
_BACKOFF_AFTER_CHANGE: Final = Backoff(MIN_BACKOFF, MAX_BACKOFF_AFTER_CHANGE)
_NEVER: Final = -float("inf")
_MAX_OUTDATED_ENTRIES: Final = 100

_SortKey = tuple[int, float, str, PodKey]
_ActiveQueue = list[tuple[_SortKey, int]]


@dataclass(slots=True)
class _QueuedPod:
    """A pod that needs a node."""

    pending: PendingPod
    stamp: int  # identifies the valid entry of the heaps among all entries of the pod
    due: float | None  # when it is to be tried; None during an attempt
    attempts: int = 0  # how many attempts have failed
    last_attempt: float = _NEVER  # when the latest of them failed
    changed: bool = False  # whether something that may help has changed during the attempt

    @property
    def sort_key(self) -> _SortKey:
        priority, age, key = self.pending.queue_key
        return priority, self.last_attempt, age, key

    def delay(self, backoff: Backoff) -> float:
        return backoff.delay(max(0, self.attempts - 1))


class SchedulingQueue:
    """The pods that need a node."""

    def __init__(self) -> None:
        self.pods: dict[PodKey, _QueuedPod] = {}
        self._active_new: _ActiveQueue = []
        self._active_retried: _ActiveQueue = []
        self._retried_next = False
        self._backoff_queue: list[tuple[float, int, PodKey]] = []
        self._stamp = 0

    def __len__(self) -> int:
        """The number of pods that need a node, those being tried included."""
        return len(self.pods)

    def put(self, pending: PendingPod, now: float) -> None:
        """Adds or updates a pod. A new pod is tried at once, even if there was one of its name."""
        key = pending.pod.namespaced_name
        queued = self.pods.get(key)
        if queued is None or queued.pending.pod.uid != pending.pod.uid:
            queued = _QueuedPod(pending, 0, now)
            self._enqueue(queued, now)
            self.pods[key] = queued
            return
        changed = not _schedules_alike(queued.pending, pending)
        queued.pending = pending
        if changed:
            self._shorten_backoff(queued, now)

    def discard(self, key: PodKey) -> None:
        self.pods.pop(key, None)

    def pop(self, now: float) -> PendingPod | None:
        """Returns the next pod to try, None if no pod is due. `back_off` or `discard` ends the attempt."""
        while self._backoff_queue and self._backoff_queue[0][0] <= now:
            _, stamp, key = heapq.heappop(self._backoff_queue)
            if (queued := self._valid(key, stamp)) is not None:
                self._activate(queued)
        new = self._first(self._active_new)
        retried = self._first(self._active_retried)
        queued = new or retried
        if new is not None and retried is not None:
            lead = retried.pending.pod.priority - new.pending.pod.priority
            queued = retried if lead > 0 or (lead == 0 and self._retried_next) else new
        if queued is None:
            return None
        self._retried_next = queued is new
        queued.stamp = 0
        queued.due = None
        return queued.pending

    def is_unchanged(self, pending: PendingPod) -> bool:
        """Whether a popped pod still needs a node and has not changed in what an attempt depends on."""
        queued = self.pods.get(pending.pod.namespaced_name)
        return queued is not None and _schedules_alike(queued.pending, pending)

    def back_off(self, key: PodKey, now: float) -> None:
        """Ends a failed attempt; the pod is tried again after a back-off."""
        queued = self.pods.get(key)
        if queued is None or queued.due is not None:
            return
        queued.attempts += 1
        queued.last_attempt = now
        queued.due = now + queued.delay(_BACKOFF_AFTER_CHANGE if queued.changed else _BACKOFF)
        queued.changed = False
        self._enqueue(queued, now)

    def shorten_backoffs(self, now: float, except_for: PodKey | None = None) -> None:
        """Shortens all back-offs but one after a change that may help."""
        for key, queued in self.pods.items():
            if key != except_for:
                self._shorten_backoff(queued, now)

    def next_due(self) -> float | None:
        """Returns when the next back-off ends, None if there is none."""
        while self._backoff_queue:
            due, stamp, key = self._backoff_queue[0]
            if self._valid(key, stamp) is not None:
                return due
            heapq.heappop(self._backoff_queue)
        return None

    def _shorten_backoff(self, queued: _QueuedPod, now: float) -> None:
        if queued.due is None:
            queued.changed = True
            return
        due = max(now, queued.last_attempt + queued.delay(_BACKOFF_AFTER_CHANGE))
        if due < queued.due:
            queued.due = due
            self._enqueue(queued, now)

    def _enqueue(self, queued: _QueuedPod, now: float) -> None:
        """Adds an entry for a pod."""
        # Its earlier entries become outdated.
        self._stamp += 1
        queued.stamp = self._stamp
        if queued.due is not None and queued.due > now:
            heapq.heappush(self._backoff_queue, (queued.due, queued.stamp, queued.pending.pod.namespaced_name))
        else:
            self._activate(queued)

    def _activate(self, queued: _QueuedPod) -> None:
        active = self._active_retried if queued.attempts else self._active_new
        # A process that does not lead pops nothing, while pods come and go.
        if len(active) > 2 * len(self.pods) + _MAX_OUTDATED_ENTRIES:
            active[:] = [entry for entry in active if self._valid(entry[0][-1], entry[1]) is not None]
            heapq.heapify(active)
        heapq.heappush(active, (queued.sort_key, queued.stamp))

    def _first(self, active: _ActiveQueue) -> _QueuedPod | None:
        while active:
            (*_, key), stamp = active[0]
            if (queued := self._valid(key, stamp)) is not None:
                return queued
            heapq.heappop(active)
        return None

    def _valid(self, key: PodKey, stamp: int) -> _QueuedPod | None:
        queued = self.pods.get(key)
        return queued if queued is not None and queued.stamp == stamp else None


def _schedules_alike(first: PendingPod, second: PendingPod) -> bool:
    """Whether nothing differs that an attempt depends on."""
    # The condition that an attempt leaves on its pod must not cause the next attempt.
    return first == second or _without_condition(first) == _without_condition(second)


def _without_condition(pending: PendingPod) -> PendingPod:
    return replace(pending, pod=replace(pending.pod, version=0, unschedulable=""))


_NONE: Final[Mapping[str, str]] = MappingProxyType({})

FactsFor = Callable[[Sequence[str]], LonghornFacts]
"""Computes the facts about a pod's Longhorn volumes on nodes of these names."""


def decide(  # noqa: PLR0913, PLR0917 # the inputs of a decision
    pod: Pod,
    state: GenericClusterState,
    policy: Policy,
    select_host: SelectHost,
    facts_for: FactsFor | None,
    closed: Mapping[str, str] = _NONE,
) -> ScheduleResult:
    """Selects a node for the pod. A policy with Longhorn's rules needs `facts_for`. Nodes that are `closed`, each with
    its reason, are left out. Raises a ResolutionError if `facts_for` fails, because the pod names an object that does
    not exist or contradicts it.
    """
    open_nodes = [name for name in state.node_names if name not in closed] if closed else None
    if facts_for is None:
        result = schedule(pod, open_nodes, state, policy, select_host)
        return replace(result, unavailable={**result.unavailable, **closed}) if closed else result
    classic = replace(policy, predicates=tuple(entry for entry in policy.predicates if not _is_longhorns(entry)))
    filtered = find_nodes_that_fit(pod, open_nodes, state, classic)
    unavailable = {**filtered.unavailable, **closed}
    if not filtered.feasible:
        result = schedule(pod, open_nodes, state, classic, select_host)
        return replace(result, unavailable=unavailable)
    names = [node_info.node.name for node_info in filtered.feasible]
    longhorn = replace(policy, predicates=tuple(entry for entry in policy.predicates if _is_longhorns(entry)))
    facts = facts_for(names)
    result = schedule(pod, names, state, longhorn, select_host, facts)
    failures = {**filtered.failures, **result.failures}
    return replace(result, unavailable=unavailable, failures=failures)


def _is_longhorns(entry: PolicyPredicate) -> bool:
    return entry.rule.startswith("Longhorn")


def message(result: ScheduleResult) -> str:
    """Returns why no node fits the pod, in kube-scheduler's form. Equal reasons are counted together. Where nothing can
    be decided at all, the message is that problem alone.
    """
    if result.error not in ("", NO_NODES):
        return result.error
    nodes = len(result.feasible) + len(result.unavailable) + len(result.failures)
    if not nodes:
        return NO_NODES
    counts = ", ".join(f"{count} {text}" for text, count in result.count_by_reason().items())
    return f"0/{nodes} nodes are available: {counts}."


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod with its node."""

    pod: str
    node: str
    score: int  # the node's total
    scores: Mapping[str, int]  # what each priority gives the node, unweighted, by its name in the policy
    best: int  # how many nodes have the same total, this one included
    refused: Mapping[str, int]  # number of nodes per reason; a node with several reasons counts for each
    unsupported: tuple[UnsupportedConstraint, ...] = ()  # constraints that the policy did not read

    def data(self) -> dict[str, Any]:
        """Returns what is printed."""
        return {
            "pod": self.pod,
            "node": self.node,
            "score": self.score,
            "scores": dict(self.scores),
            "equallyGood": self.best,
            "refused": dict(self.refused),
            "unsupported": [constraint.field for constraint in self.unsupported],
        }


@dataclass(frozen=True, slots=True)
class UnplacedPod:
    """A pod that no node fits."""

    pod: str
    message: str  # why, as one line
    reasons: Mapping[str, int]  # number of nodes per reason

    def data(self) -> dict[str, Any]:
        return {"pod": self.pod, "message": self.message, "reasons": dict(self.reasons)}


@dataclass(frozen=True, slots=True)
class WhatIfReport:
    """The result for each pod, in the order they were scheduled."""

    placed: tuple[PlacedPod, ...]
    unplaced: tuple[UnplacedPod, ...]

    def data(self) -> dict[str, Any]:
        """Returns what is printed; stable, and documented in docs/generic-scheduler.md."""
        return {
            "bindings": [pod.data() for pod in self.placed],
            "unschedulable": [pod.data() for pod in self.unplaced],
        }


def what_if(  # noqa: PLR0913, PLR0917 # the inputs of all decisions
    pods: Iterable[PendingPod],
    state: GenericClusterState,
    policy: Policy,
    select_host: SelectHost,
    longhorn: LonghornSnapshot | None,
    unsupported: UnsupportedMode = UnsupportedMode.WARN,
) -> WhatIfReport:
    """Schedules the pods in their order, and binds each before the next decision."""
    refuse = unsupported is UnsupportedMode.REFUSE
    placed: list[PlacedPod] = []
    unplaced: list[UnplacedPod] = []
    for pending in pods:
        name = pending.pod.key
        constraints = unsupported_constraints(pending.pod, policy) if refuse else ()
        if constraints:
            why = unsupported_message(constraints)
            unplaced.append(UnplacedPod(name, why, {why: len(state.node_names)}))
            continue
        closed = unsupported_nodes(pending.pod, state, policy) if refuse else {}
        reasons = {node: node_refusal(constraint) for node, constraint in closed.items()}
        facts_for = None if longhorn is None else longhorn.facts_for(pending)
        try:
            result = decide(pending.pod, state, policy, select_host, facts_for, reasons)
        except ResolutionError as error:
            unplaced.append(UnplacedPod(name, str(error), {str(error): len(state.node_names)}))
            continue
        if not result.node:
            unplaced.append(UnplacedPod(name, message(result), result.count_by_reason()))
            continue
        placed_pod = _placed_pod(name, result)
        if unsupported is UnsupportedMode.WARN:
            ignored = ignored_constraints(pending.pod, result.node, state, policy)
            placed_pod = replace(placed_pod, unsupported=ignored)
        placed.append(placed_pod)
        state = state.with_binding(pending.pod, result.node)
        if longhorn is not None:
            longhorn.bind(pending, result.node)
    return WhatIfReport(tuple(placed), tuple(unplaced))


def _placed_pod(name: str, result: ScheduleResult) -> PlacedPod:
    ranking = result.ranking
    return PlacedPod(
        pod=name,
        node=result.node,
        score=ranking.totals[result.node],
        scores={priority: scores[result.node] for priority, scores in ranking.scores.items()},
        best=len(result.best),
        refused=result.count_by_reason(),
    )
