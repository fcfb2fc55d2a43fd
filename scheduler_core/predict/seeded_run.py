"""One run of a strategy.

The same pods are decided one after the other, on a status of Longhorn that lags. Time is counted in steps. A step is
one decision of kube-scheduler. Pods are decided in the order of arrival. A pod that no node fits backs off, and is
tried again once something has changed since. A pod with a node is bound some steps later; then its volumes are
attached, and Longhorn places their replicas on the status of that moment. The run ends when nothing can change any
more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import Final

from scheduler_core.generic.node_index import NodeIndex
from scheduler_core.generic.rule_results import RuleResults
from scheduler_core.model.generic import PodKey
from scheduler_core.predict.lagging_status import StatusChange, hide_changes, show_change
from scheduler_core.predict.pod_decision import PodDecision, attach_volumes, bind_pod, decide_pod
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import Choose, holds_data, next_step
from scheduler_core.predict.seeded_order import incomplete_volumes
from scheduler_core.predict.situation import PodToPlace, Situation
from scheduler_core.predict.strategy import Strategy
from scheduler_core.predict.tally import Sample, Tally, placed_replicas

# 200 pods of two claims had their nodes selected after 9.1 s with kube-scheduler's default client limits: 22 in a second.
STEPS_PER_SECOND: Final = 22
# After this many the back-off is the longest one.
_MOST_DOUBLINGS: Final = 8
_NOT_CREATED: Final = "the pod before it does not run"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in steps."""

    # From a placement to the status of Longhorn that shows it; placements up to 0.36 s after another one did not see
    # it.
    lag: int = 10
    binding: int = 10  # from a decision to the bound pod, that is provisioning; the simulator's 0.3 to 0.6 s
    scheduling_timeout: int = 5 * STEPS_PER_SECOND  # the proposal's, each 5 s
    reservation_timeout: int = 5 * STEPS_PER_SECOND  # the proposal's, each 5 s
    first_backoff: int = STEPS_PER_SECOND  # kube-scheduler's of a refused pod, 1 s doubling to 10 s
    longest_backoff: int = 10 * STEPS_PER_SECOND  # kube-scheduler's of a refused pod, 1 s doubling to 10 s


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of one run."""

    cluster: PredictedCluster
    samples: tuple[Sample, ...]  # the counts whenever they changed, in order
    nodes: Mapping[PodKey, str]  # the node of each pod that has one, in the order of the decisions
    stuck: frozenset[PodKey]  # pods that have a node and wait for their volumes
    reasons: Mapping[str, int]  # why pods without a node wait, with the number of pods
    misplaced: frozenset[str]  # names of the volumes
    # The most bytes over Longhorn's scheduling limit, by node and name of the disk.
    overbooked: Mapping[tuple[str, str], int]

    @property
    def last_placement(self) -> int:
        """The step at which the last pod was placed, 0 without any."""
        most = self.samples[-1].placed
        return next(sample.step for sample in self.samples if sample.placed == most) if most else 0


@dataclass(frozen=True, slots=True)
class _Binding:
    """A pod is bound, and its volumes are attached."""

    key: PodKey


@dataclass(frozen=True, slots=True)
class _StatusSync:
    """Longhorn's status shows a placement."""

    changes: tuple[StatusChange, ...]


@dataclass(frozen=True, slots=True)
class _ReservationTimeout:
    """The node-reservation time-out of a pod has run out."""

    key: PodKey


@dataclass(frozen=True, slots=True)
class _BackoffEnd:
    """A refused pod may be tried again."""

    entry: PodToPlace
    version: int  # how many changes there were when it was refused


_Event = _Binding | _StatusSync | _ReservationTimeout | _BackoffEnd


def arrival_order(situation: Situation, choose: Choose) -> list[PodToPlace]:
    """Returns the pods without a node in random order, the same for every strategy."""
    pods = list(situation.all_pods())
    return [pods.pop(choose(len(pods))) for _ in range(len(pods))]


def run_strategy(
    situation: Situation, arrival: Sequence[PodToPlace], strategy: Strategy, pace: Pace, choose: Choose
) -> RunResult:
    """Runs a strategy to its end.

    Args:
        situation: the cluster, with the pods to place
        arrival: these pods, in the order in which kube-scheduler gets them
        strategy: a new one, which remembers nothing
        pace: how long things take
        choose: makes every choice that depends on chance in the cluster
    """
    run = _Run(situation, arrival, strategy, pace, choose)
    run.play()
    return run.result()


class _Run:
    """One run while it is played."""

    def __init__(
        self, situation: Situation, arrival: Sequence[PodToPlace], strategy: Strategy, pace: Pace, choose: Choose
    ) -> None:
        # Indexes of nodes are shared by the states that were made from one, and this one is the first of many runs.
        scheduling = replace(situation.cluster.scheduling, index=NodeIndex(), results=RuleResults())
        self._cluster = replace(situation.cluster, scheduling=scheduling)
        self._strategy = strategy
        self._pace = pace
        self._choose = choose
        self._queue = deque(entry for entry in arrival if entry.after is None)
        self._successors = {entry.after: entry for entry in arrival if entry.after is not None}
        self._unchanged: list[PodToPlace] = []
        self._refusals: dict[PodKey, Counter[str]] = {}
        self._attempts: Counter[PodKey] = Counter()
        self._decisions: dict[PodKey, PodDecision] = {}
        self._bound: set[PodKey] = set()
        self._unfinished: set[str] = set(incomplete_volumes(self._cluster))
        self._users: dict[str, list[PodKey]] = {}
        self._events: list[tuple[int, int, _Event]] = []
        self._event_numbers = count()
        self._step = 0
        self._version = 0
        self._locked_by: PodKey | None = None
        self._locked_until = 0
        self._tally = Tally(len(arrival), self._cluster)

    def play(self) -> None:
        """Decides pods and lets events happen until nothing can change any more."""
        self._tally.note_step(self._step)
        self._place_volumes(sorted(self._unfinished))
        while True:
            self._handle_due_events()
            if self._queue and not self._holds_lock():
                self._decide(self._queue.popleft())
                self._step += 1
            elif self._events:
                following = self._events[0][0]
                self._step = min(following, self._locked_until) if self._holds_lock() else following
            else:
                return

    def _holds_lock(self) -> bool:
        """Whether the proposal's write lock is held, which is released at the pod-scheduling time-out."""
        if self._step >= self._locked_until:
            self._locked_by = None
        return self._locked_by is not None

    def _schedule(self, delay: int, event: _Event) -> None:
        heappush(self._events, (self._step + delay, next(self._event_numbers), event))

    def _handle_due_events(self) -> None:
        while self._events and self._events[0][0] <= self._step:
            _, _, event = heappop(self._events)
            match event:
                case _Binding():
                    self._bind(event.key)
                case _StatusSync():
                    self._show(event)
                case _ReservationTimeout():
                    self._strategy.on_timeout(event.key)
                    self._note_change()
                case _BackoffEnd():
                    tried_again = self._queue if self._version > event.version else self._unchanged
                    tried_again.append(event.entry)
            self._tally.note_step(self._step)

    def _note_change(self) -> None:
        self._version += 1
        self._queue.extend(self._unchanged)
        self._unchanged.clear()

    def _decide(self, entry: PodToPlace) -> None:
        pod = self._cluster.snapshot.pods[entry.key]
        decision = decide_pod(pod, self._cluster, self._strategy, self._choose)
        if not decision.node:
            self._refuse(entry, decision.reasons)
            return
        self._refusals.pop(entry.key, None)
        self._decisions[entry.key] = decision
        self._cluster = bind_pod(self._cluster, pod, decision.node)
        if self._strategy.waits_for_binding and decision.decision is not None and decision.decision.takes_space:
            self._locked_by = entry.key
            self._locked_until = self._step + self._pace.scheduling_timeout
        self._schedule(self._pace.binding, _Binding(entry.key))

    def _refuse(self, entry: PodToPlace, reasons: Counter[str]) -> None:
        self._refusals[entry.key] = reasons
        doublings = min(self._attempts[entry.key], _MOST_DOUBLINGS)
        self._attempts[entry.key] += 1
        backoff = min(self._pace.first_backoff << doublings, self._pace.longest_backoff)
        self._schedule(backoff, _BackoffEnd(entry, self._version))

    def _bind(self, key: PodKey) -> None:
        pod = self._cluster.snapshot.pods[key]
        decision = self._decisions[key]
        if self._locked_by == key:
            # A pod that is bound later than its time-out reserves nothing.
            self._locked_by = None
            self._strategy.on_binding(pod, decision.node)
            self._schedule(self._pace.reservation_timeout, _ReservationTimeout(key))
        if decision.decision is not None:
            self._cluster = attach_volumes(self._cluster, pod, decision.decision)
        self._bound.add(key)
        names = [volume.name for volume in self._cluster.volumes_of(pod)]
        for name in names:
            self._users.setdefault(name, []).append(key)
        self._note_change()
        self._place_volumes(names)
        self._note_running(key)

    def _show(self, event: _StatusSync) -> None:
        for change in event.changes:
            self._cluster = show_change(self._cluster, change)
        self._note_change()
        # Longhorn tries volumes again at every change of a node; less space cannot help them.
        if any(change.frees_space for change in event.changes):
            self._place_volumes(sorted(self._unfinished))

    def _place_volumes(self, names: list[str]) -> None:
        remaining = list(names)
        while remaining:
            self._place_volume(remaining.pop(self._choose(len(remaining))))

    def _place_volume(self, name: str) -> None:
        while True:
            is_new = not placed_replicas(self._cluster, name)
            step = next_step(self._cluster, name, self._choose)
            self._apply(self._strategy.admit(self._cluster, step.cluster, name))
            if not step.changed:
                break
            self._tally.note_placement(self._cluster, name, is_new=is_new)
        if step.problem:
            self._unfinished.add(name)
        else:
            self._unfinished.discard(name)
        for key in self._users.get(name, ()):
            self._note_running(key)

    def _apply(self, cluster: PredictedCluster) -> None:
        """Takes over Longhorn's placement; its status shows that later."""
        if self._pace.lag == 0:
            self._cluster = cluster
            return
        self._cluster, changes = hide_changes(self._cluster, cluster)
        if changes:
            self._schedule(self._pace.lag, _StatusSync(changes))

    def _note_running(self, key: PodKey) -> None:
        """Notes that a pod runs, if all of its volumes have data; its StatefulSet then creates the next one."""
        if key in self._tally.running or key not in self._bound:
            return
        cluster = self._cluster
        volumes = cluster.volumes_of(cluster.snapshot.pods[key])
        replicas = (cluster.state.view.replicas_of(volume.name) for volume in volumes)
        if all(any(holds_data(cluster, each) for each in of_volume) for of_volume in replicas):
            self._tally.running.add(key)
            successor = self._successors.pop(key, None)
            if successor is not None:
                self._queue.append(successor)

    def result(self) -> RunResult:
        self._tally.note_step(self._step)
        reasons = Counter(_summary(reasons) for reasons in self._refusals.values())
        reasons.update(_NOT_CREATED for _ in self._successors)
        return RunResult(
            cluster=self._cluster,
            samples=self._tally.samples,
            nodes={key: decision.node for key, decision in self._decisions.items()},
            stuck=frozenset(self._bound - self._tally.running),
            reasons=dict(sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))),
            misplaced=frozenset(self._tally.misplaced),
            overbooked=dict(self._tally.overbooked),
        )


def _summary(reasons: Counter[str]) -> str:
    return min(reasons, key=lambda text: (-reasons[text], text))
