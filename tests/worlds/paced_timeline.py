"""The events of `Timeline` when they take time, which is counted in steps: a step is one decision of kube-scheduler. Pods are
decided in the order of arrival. One that no node fits backs off, and is tried again once something has changed since.
A pod with a node is bound some steps later; then its volumes are attached, and Longhorn places their replicas on the
status of that moment, which shows them later still. Pods are not evicted.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count

from msgspec import Struct

from scheduler_core.model import kube
from scheduler_core.model.generic import PodKey
from scheduler_core.predict.pod_decision import PodDecider
from scheduler_core.predict.predicted_cluster import PredictedCluster, StatusChange, show_change
from scheduler_core.predict.predicted_replicas import Choose, ReplicaStep
from scheduler_core.predict.prediction_input import PodToPlace, Situation
from scheduler_core.predict.timeline import NOT_CREATED, Observe, OrderResult, Timeline, ignore_progress

# 200 pods of two claims had their nodes selected after 9.1 s with kube-scheduler's default client limits: 22 in a second.
STEPS_PER_SECOND = 22
# After this many the back-off is the longest one.
_MOST_DOUBLINGS = 8


class Pace(Struct, frozen=True):
    """How long things take, in steps."""

    # From a placement to the status of Longhorn that shows it; placements up to 0.36 s after another one did not see
    # it.
    lag: int = 10
    binding: int = 10  # from a decision to the bound pod, that is provisioning; the simulator's 0.3 to 0.6 s
    scheduling_timeout: int = 5 * STEPS_PER_SECOND  # the proposal's, each 5 s
    reservation_timeout: int = 5 * STEPS_PER_SECOND  # the proposal's, each 5 s
    first_backoff: int = STEPS_PER_SECOND  # kube-scheduler's of a refused pod, 1 s doubling to 10 s
    longest_backoff: int = 10 * STEPS_PER_SECOND  # kube-scheduler's of a refused pod, 1 s doubling to 10 s


class Strategy(PodDecider):
    """One way to choose the nodes that a pod is offered, with what it remembers of one run: this extender's."""

    waits_for_binding: bool = False
    """Whether other pods wait until a pod is bound; they wait only for a pod that takes space."""

    def on_binding(self, pod: kube.Pod, node: str) -> None:
        """Notes that a pod that takes space has its node."""

    def on_timeout(self, key: PodKey) -> None:
        """Notes that the node-reservation time-out of a pod has run out."""

    def admit(self, before: PredictedCluster, after: PredictedCluster, volume: str) -> PredictedCluster:
        """Returns the cluster after Longhorn's placement of a volume, as an admission webhook changes it."""
        del before, volume
        return after


class PacedTimeline(Timeline):
    """The cluster while events happen at a pace."""

    def __init__(
        self, situation: Situation, strategy: Strategy, pace: Pace, choose: Choose, observe: Observe = ignore_progress
    ) -> None:
        super().__init__(situation, strategy, choose, observe)
        self.started: dict[PodKey, int] = {}
        """The step at which each pod began to run."""
        self._strategy = strategy
        self._placing = ""
        self._pace = pace
        self._lags = pace.lag > 0
        self._successors = {entry.after: entry for entry in self._waiting if entry.after is not None}
        self._waiting = [entry for entry in self._waiting if entry.after is None]
        self._attempts: Counter[PodKey] = Counter()
        self._users: dict[str, list[PodKey]] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_numbers = count()
        self._step = 0
        self._version = 0
        self._locked_by: PodKey | None = None
        self._locked_until = 0

    def shuffle_arrivals(self, choose: Choose) -> None:
        """Lets kube-scheduler get the pods in another order than that of their names."""
        pods = list(self._situation.all_pods())
        shuffled = [pods.pop(choose(len(pods))) for _ in range(len(pods))]
        self._waiting = [entry for entry in shuffled if entry.after is None]

    def _settle(self) -> None:
        """Decides pods and lets events happen until nothing can change any more."""
        while True:
            if self._volumes:
                self._place_volumes()
            elif self._events and self._events[0][0] <= self._step:
                _, _, happen = heappop(self._events)
                happen()
            elif self._waiting and not self._holds_lock():
                self._decide(self._waiting.pop(0))
                self._step += 1
            elif self._events:
                following = self._events[0][0]
                self._step = min(following, self._locked_until) if self._holds_lock() else following
            else:
                return

    def _after(self, delay: int, happen: Callable[[], None]) -> None:
        heappush(self._events, (self._step + delay, next(self._event_numbers), happen))

    def _holds_lock(self) -> bool:
        """Whether the proposal's write lock is held, which is released at the pod-scheduling time-out."""
        if self._step >= self._locked_until:
            self._locked_by = None
        return self._locked_by is not None

    def _note_change(self) -> None:
        self._version += 1
        self._waiting.extend(self._refused)
        self._refused.clear()

    def _decide(self, entry: PodToPlace) -> None:
        super()._decide(entry)
        if entry.key in self._refusals:
            return
        decision = self._bound[entry.key].decision
        if self._strategy.waits_for_binding and decision is not None and decision.takes_space:
            self._locked_by = entry.key
            self._locked_until = self._step + self._pace.scheduling_timeout
        self._after(self._pace.binding, partial(self._attach, entry.key))

    def _refuse(self, entry: PodToPlace, reasons: Counter[str]) -> None:
        self._refusals[entry.key] = reasons
        doublings = min(self._attempts[entry.key], _MOST_DOUBLINGS)
        self._attempts[entry.key] += 1
        backoff = min(self._pace.first_backoff << doublings, self._pace.longest_backoff)
        self._after(backoff, partial(self._end_backoff, entry, self._version))

    def _end_backoff(self, entry: PodToPlace, version: int) -> None:
        (self._waiting if self._version > version else self._refused).append(entry)

    def _attach(self, key: PodKey) -> None:
        if self._locked_by == key:
            # A pod that is bound later than its time-out reserves nothing.
            self._locked_by = None
            self._strategy.on_binding(self.cluster.snapshot.pods[key], self._bound[key].node)
            self._after(self._pace.reservation_timeout, partial(self._end_reservation, key))
        self._to_attach.remove(key)
        super()._attach(key)
        for volume in self.cluster.volumes_of(self.cluster.snapshot.pods[key]):
            self._users.setdefault(volume.name, []).append(key)
        self._note_change()
        self._note_running(key)

    def _end_reservation(self, key: PodKey) -> None:
        self._strategy.on_timeout(key)
        self._note_change()

    def _take_step(self, name: str) -> ReplicaStep:
        self._placing = name
        return super()._take_step(name)

    def _hide(self, later: PredictedCluster) -> PredictedCluster:
        hidden = super()._hide(self._strategy.admit(self.cluster, later, self._placing))
        for change in self._unlisted:
            self._after(self._pace.lag, partial(self._show, change))
        self._unlisted.clear()
        return hidden

    def _show(self, change: StatusChange) -> None:
        self.cluster = show_change(self.cluster, change)
        self._note_change()
        # Longhorn tries volumes again at every change of a node; less space cannot help them.
        if _frees_space(change):
            self._volumes = [name for name in sorted(self._problems) if name not in self._delayed]

    def _place_volumes(self) -> None:
        while self._volumes:
            name = self._volumes.pop(self._choose(len(self._volumes)))
            while self._take_step(name).changed:
                self._report_progress()
            for key in self._users.get(name, ()):
                self._note_running(key)

    def _note_running(self, key: PodKey) -> None:
        """Notes that a pod runs; its StatefulSet then creates the next one."""
        if key in self.started or not self._runs(key):
            return
        self.started[key] = self._step
        successor = self._successors.pop(key, None)
        if successor is not None:
            self._waiting.append(successor)

    def _result(self) -> OrderResult:
        for entry in self._successors.values():
            self._refusals[entry.key] = Counter({NOT_CREATED: 0})
        return super()._result()


def _frees_space(change: StatusChange) -> bool:
    """Whether some disk has fewer bytes promised or written afterwards."""
    earlier = {disk.name: disk for disk in change.before.disks}
    return any(
        disk.storage_scheduled < earlier[disk.name].storage_scheduled
        or disk.storage_available > earlier[disk.name].storage_available
        for disk in change.after.disks
        if disk.name in earlier
    )
