"""One course of events in a predicted cluster.

Data flow: a `Situation` → pods that wait, pods to evict, and volumes that lack a replica → one event after the other: a pod is decided
(`PodDecider.decide`) and bound, its volumes are attached, a pod is evicted, Longhorn takes its next step with a volume (`next_step`), and its
status shows an earlier step → when nothing is left to do, drains finish or not; the replicas of drained nodes then fail, Longhorn's wait
runs out, and they are rebuilt → the `OrderResult`.

Here chance determines which event comes next. Pods that no node fits, and evictions that a budget refuses, are tried again whenever
something was placed since.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta

from scheduler_core.decide.decision import FilterOptions
from scheduler_core.generic.cluster_state import NodeIndex, RuleResults
from scheduler_core.longhorn.volume_validation import FAULTED
from scheduler_core.model import kube
from scheduler_core.model.generic import PodKey
from scheduler_core.packing.budget import give_way
from scheduler_core.predict import cluster_changes, predicted_replicas
from scheduler_core.predict.pod_decision import PodDecider, PodDecision, attach_volumes, bind_pod, take_away
from scheduler_core.predict.predicted_cluster import PredictedCluster, StatusChange, hide_changes, show_change
from scheduler_core.predict.prediction_input import Origin, PodToPlace, Situation
from scheduler_core.structs import Struct, replace

# Longhorn adds this to what remains of the wait (RequireNewReplica).
_CLOCK_SKEW = timedelta(seconds=2)
NOT_CREATED = "the pod before it does not run"
_DETACHED = "it is detached: Longhorn rebuilds it once it is attached"


class OrderResult(Struct, frozen=True):
    """The end of one course of events."""

    cluster: PredictedCluster
    # The node of each placed pod, in the order of the decisions.
    nodes: Mapping[PodKey, str] = {}
    # For each pod that waits, the number of nodes per reason.
    refusals: Mapping[PodKey, Counter[str]] = {}
    # For each pod that has a node, why its volumes are not ready.
    stuck: Mapping[PodKey, str] = {}
    copied_bytes: int = 0  # data that rebuilds copy
    # For each drained node, why its drain cannot finish; no entry if it can.
    blockers: Mapping[str, tuple[str, ...]] = {}
    # By volume, the least number of its healthy replicas meanwhile.
    fewer_replicas: Mapping[str, int] = {}
    # By volume, why it still lacks a replica in the end.
    incomplete: Mapping[str, str] = {}
    # By volume, how long Longhorn waited for a failed replica that it could reuse; no entry if it did not.
    waits: Mapping[str, timedelta] = {}

    @property
    def fails(self) -> bool:
        """Whether something does not get its place."""
        return bool(self.refusals or self.stuck or self.blockers or self.incomplete)

    @property
    def unplaced_pods(self) -> frozenset[PodKey]:
        """The decided pods that no node fits, and that wait for one."""
        pods = self.cluster.snapshot.pods
        waiting = (key for key in self.refusals if key in pods and not pods[key].node_name)
        return frozenset(key for key in waiting if NOT_CREATED not in self.refusals[key])


class OrderProgress(Struct, frozen=True):
    """The cluster after one event."""

    cluster: PredictedCluster
    waiting: int  # pods without a node, or whose volumes are not attached yet
    to_evict: int  # pods of drained nodes that a PodDisruptionBudget keeps for now
    copied_bytes: int  # data that rebuilds have copied so far
    volumes: tuple[str, ...] = ()  # names of the volumes that the event concerns


Observe = Callable[[OrderProgress], None]


def ignore_progress(_: OrderProgress) -> None:
    pass


def run_order(
    situation: Situation, options: FilterOptions, choose: predicted_replicas.Choose, observe: Observe = ignore_progress
) -> OrderResult:
    """Plays one order of events to its end. `choose` makes every choice that depends on chance in the cluster;
    `observe` is called before the first event and after each.
    """
    return Timeline(situation, PodDecider(options), choose, observe).play()


class Timeline:
    """The cluster while events happen in random order."""

    def __init__(
        self,
        situation: Situation,
        decider: PodDecider,
        choose: predicted_replicas.Choose,
        observe: Observe = ignore_progress,
    ) -> None:
        # Indexes of nodes are shared by the states that were made from one, and this one is the first of many orders.
        scheduling = replace(situation.cluster.scheduling, index=NodeIndex(), results=RuleResults())
        self.cluster = situation.cluster.with_scheduling(scheduling)
        self._situation = situation
        self._decider = decider
        self._choose = choose
        self._observe = observe
        self._waiting: list[PodToPlace] = list(situation.all_pods())
        self._moved: set[PodKey] = {entry.key for entry in self._waiting}
        self._refused: list[PodToPlace] = []
        self._evictions = [each for each in situation.affected_pods if self.cluster.snapshot.pods[each.key].node_name]
        self._refused_evictions: list[PodToPlace] = []
        self._before: dict[PodKey, PodKey | None] = {entry.key: entry.after for entry in self._evictions}
        self._open_drains: list[str] = list(situation.drained)
        self._bound: dict[PodKey, PodDecision] = {}
        self._to_attach: list[PodKey] = []
        self._attached: set[str] = set()
        self._volumes: list[str] = sorted(situation.evicted | self.cluster.incomplete_volumes)
        # Whether Longhorn's status shows a placement later than it happens; what it does not show yet, oldest first.
        self._lags = True
        self._unlisted: list[StatusChange] = []
        self._refusals: dict[PodKey, Counter[str]] = {}
        self._problems: dict[str, str] = {}
        self._delayed: dict[str, timedelta] = {}
        self._waits: dict[str, timedelta] = {}
        self._gone: set[str] = set(situation.lost)
        self._waited_after: int | None = None
        self._blockers: dict[str, tuple[str, ...]] = {}
        self._fewer: dict[str, int] = {}
        self._copied = 0
        self._placed_since = False
        self._changed: list[str] = []
        for name in sorted(situation.degraded):
            self._note_replicas(name)
        self._report_progress()

    def play(self) -> OrderResult:
        """Lets events happen until nothing changes any more."""
        self._settle()
        while self._finish_drains() or self._end_waits():
            self._settle()
        return self._result()

    def add_pod(self, pod: kube.Pod) -> Counter[str]:
        """Adds a pod after the end, and plays what follows; returns why it does not run, empty if it does. Longhorn's
        status shows every step at once.
        """
        self._lags = False
        key = pod.namespaced_name
        self.cluster = self.cluster.with_pod(pod)
        self._decide(PodToPlace(key, Origin.NEW))
        if key in self._refusals:
            return self._refusals[key]
        self._attach(self._to_attach.pop())
        while self._volumes:
            step = self._take_step(self._volumes[0])
            if step.problem:
                return Counter({f"volume {self._volumes[0]}: {step.problem}": 0})
            if not step.changed:
                self._volumes.pop(0)
        return Counter()

    def _report_progress(self) -> None:
        waiting = len(self._waiting) + len(self._refused) + len(self._to_attach)
        to_evict = len(self._evictions) + len(self._refused_evictions)
        self._observe(OrderProgress(self.cluster, waiting, to_evict, self._copied, tuple(self._changed)))
        self._changed = []

    def _settle(self) -> None:
        """Lets pods and volumes go on until nothing changes any more."""
        while True:
            self._placed_since = False
            while self._waiting or self._to_attach or self._volumes or self._evictions:
                # Longhorn's status lags: whether it shows a placement before the next event is chance.
                while self._unlisted and self._choose(2):
                    self.cluster = show_change(self.cluster, self._unlisted.pop(0))
                give_way()
                self._advance()
                self._report_progress()
            if self._unlisted:
                while self._unlisted:
                    self.cluster = show_change(self.cluster, self._unlisted.pop(0))
                self._report_progress()
            if not self._placed_since:
                return
            self._waiting, self._refused = self._refused, []
            self._evictions, self._refused_evictions = self._refused_evictions, []
            self._volumes = [name for name in sorted(self._problems) if name not in self._delayed]

    def _advance(self) -> None:
        pods = len(self._waiting)
        attached = pods + len(self._to_attach)
        volumes = attached + len(self._volumes)
        number = self._choose(volumes + len(self._evictions))
        if number < pods:
            self._decide(self._waiting.pop(number))
        elif number < attached:
            self._attach(self._to_attach.pop(number - pods))
        elif number >= volumes:
            self._evict(self._evictions.pop(number - volumes))
        else:
            step = self._take_step(self._volumes[number - attached])
            if step.problem or not step.changed:
                self._volumes.pop(number - attached)

    def _decide(self, entry: PodToPlace) -> None:
        pod = self.cluster.snapshot.pods[entry.key]
        if not self._predecessors_run(entry):
            self._refuse(entry, Counter({NOT_CREATED: 0}))
            return
        decision = self._decider.decide(pod, self.cluster, self._choose, self._situation.node_names)
        if not decision.node:
            self._refuse(entry, decision.reasons)
            return
        self._refusals.pop(entry.key, None)
        self._bound[entry.key] = decision
        self.cluster = bind_pod(self.cluster, pod, decision.node)
        self._to_attach.append(entry.key)
        self._placed_since = True

    def _predecessors_run(self, entry: PodToPlace) -> bool:
        before = entry.after
        while before is not None:
            if not self._runs(before):
                return False
            # A pod that was not evicted yet runs, and says nothing about those before it.
            before = self._before.get(before)
        return True

    def _refuse(self, entry: PodToPlace, reasons: Counter[str]) -> None:
        self._refusals[entry.key] = reasons
        self._refused.append(entry)

    def _runs(self, key: PodKey) -> bool:
        pod = self.cluster.snapshot.pods.get(key)
        attached = key not in self._to_attach
        return pod is not None and bool(pod.node_name) and attached and not self._stuck_reason(key)

    def _attach(self, key: PodKey) -> None:
        decision = self._bound[key].decision
        pod = self.cluster.snapshot.pods[key]
        if decision is not None:
            self.cluster = attach_volumes(self.cluster, pod, decision)
        names = [volume.name for volume in self.cluster.volumes_of(pod)]
        self._attached.update(names)
        self._changed += names
        self._volumes += [name for name in names if name not in self._volumes]
        budgets = self._situation.budgets
        concerned = [each for each in self._refused_evictions if {*budgets.of(each.key)} & {*budgets.of(key)}]
        self._refused_evictions = [entry for entry in self._refused_evictions if entry not in concerned]
        self._evictions += concerned

    def _take_step(self, name: str) -> predicted_replicas.ReplicaStep:
        """Lets Longhorn take its next step with a volume; the status of nodes shows it later."""
        step = predicted_replicas.next_step(self.cluster, name, self._choose)
        self.cluster = self._hide(step.cluster) if step.changed else step.cluster
        self._changed.append(name)
        self._copied += step.copied_bytes
        self._placed_since = self._placed_since or step.changed
        self._problems.pop(name, None)
        self._delayed.pop(name, None)
        if step.changed and not step.problem:
            return step
        # A volume that no pod of the prediction uses may have been without a local replica before.
        if step.problem and (name in self._attached or not step.only_local):
            self._problems[name] = step.problem
        if step.wait:
            self._delayed[name] = step.wait
            self._waits[name] = max(step.wait, self._waits.get(name, step.wait))
        return step

    def _hide(self, later: PredictedCluster) -> PredictedCluster:
        """Returns the later cluster, in which nodes have the status that they have now if the status lags."""
        if not self._lags:
            return later
        hidden, changes = hide_changes(self.cluster, later)
        self._unlisted += changes
        return hidden

    def _evict(self, entry: PodToPlace) -> None:
        pod = self.cluster.snapshot.pods[entry.key]
        refusal = self._situation.budgets.refusal(pod, self._is_healthy)
        if refusal:
            self._refusals[entry.key] = Counter({f"stays on {entry.left}: {refusal}": 0})
            self._refused_evictions.append(entry)
            return
        self._refusals.pop(entry.key, None)
        names = {volume.name for volume in self.cluster.volumes_of(pod)}
        self._changed += names
        self.cluster = take_away(self.cluster, pod)
        # Longhorn does not rebuild a volume that was detached, unless its replicas are to leave the node.
        detached = {name for name in names - self._situation.evicted if not self._has_attachment(name)}
        self._volumes = [name for name in self._volumes if name not in detached]
        for name in detached:
            self._problems.pop(name, None)
            self._delayed.pop(name, None)
        self._waiting.append(entry)
        self._moved.add(entry.key)
        self._placed_since = True

    def _is_healthy(self, key: PodKey) -> bool:
        pod = self.cluster.snapshot.pods.get(key)
        if pod is None or not pod.scheduling.ready:
            return False
        # Otherwise it runs where it ran before, and no replica of any volume was lost.
        return self._runs(key) if key in self._moved or self._fewer else bool(pod.node_name)

    def _finish_drains(self) -> bool:
        # Returns whether some drain finishes; the replicas of its node then fail.
        finished = len(self._gone)
        held_up: list[str] = []
        for name in self._open_drains:
            self._blockers.pop(name, None)
            keys = sorted(each.key for each in self._refused_evictions if each.left == name)
            refused = [f"pod {'/'.join(key)} {text}" for key in keys for text in self._refusals[key]]
            unmanaged = [f"pod {pod} has no controller" for pod, node in self._situation.unmanaged if node == name]
            # The volumes of pods that are still to be evicted say nothing more.
            blockers = (*unmanaged, *(refused or cluster_changes.drain_blockers(self.cluster, name, self._gone)))
            if blockers:
                self._blockers[name] = blockers
                # A drain that a PodDisruptionBudget holds up goes on later.
                held_up += [name] if refused else []
                continue
            self._gone.add(name)
            failed = predicted_replicas.replicas_on_node(self.cluster, name)
            self.cluster = predicted_replicas.fail_replicas(self.cluster, failed)
            for volume in sorted({replica.volume for replica in failed}):
                self._note_replicas(volume)
                self._changed.append(volume)
                if self._has_attachment(volume) and volume not in self._volumes:
                    self._volumes.append(volume)
        if self._open_drains:
            self._report_progress()
        self._open_drains = held_up
        return len(self._gone) > finished

    def _end_waits(self) -> bool:
        # Once, after the last finished drain; returns whether there is such a wait.
        if not self._delayed or self._waited_after == len(self._gone):
            return False
        self._waited_after = len(self._gone)
        longest = max(self._delayed.values()) + _CLOCK_SKEW
        self.cluster = self.cluster.later(longest)
        self._volumes = sorted(self._delayed)
        self._delayed = {}
        return True

    def _has_attachment(self, name: str) -> bool:
        volume = self.cluster.snapshot.volumes.get(name)
        return volume is not None and bool(volume.node_id)

    def _lacks_replicas(self, name: str) -> bool:
        volume = self.cluster.snapshot.volumes.get(name)
        healthy = predicted_replicas.healthy_replicas(self.cluster, name)
        return volume is not None and healthy < volume.number_of_replicas

    def _note_replicas(self, name: str) -> None:
        if self._lacks_replicas(name):
            healthy = predicted_replicas.healthy_replicas(self.cluster, name)
            self._fewer[name] = min(healthy, self._fewer.get(name, healthy))

    def _stuck_reason(self, key: PodKey) -> str:
        """Why a bound pod waits for its volumes, "" if not."""
        for volume in self.cluster.volumes_of(self.cluster.snapshot.pods[key]):
            if not volume.has_shards and not predicted_replicas.healthy_replicas(self.cluster, volume.name):
                faulted = " is faulted" if volume.robustness == FAULTED else ""
                return f"volume {volume.name}{faulted}: {self._problems.get(volume.name, 'not placed yet')}"
        return self.cluster.missing_driver(key) if key in self._bound else ""

    def _result(self) -> OrderResult:
        for name in self._fewer:
            if not predicted_replicas.healthy_replicas(self.cluster, name):
                self._problems[name] = predicted_replicas.NO_DATA
        for name in self._situation.degraded:
            if not self._has_attachment(name) and self._lacks_replicas(name):
                self._problems.setdefault(name, _DETACHED)
        return OrderResult(
            self.cluster,
            {key: decision.node for key, decision in self._bound.items()},
            self._refusals,
            {key: reason for key in self._bound if (reason := self._stuck_reason(key))},
            self._copied,
            self._blockers,
            self._fewer,
            dict(self._problems),
            self._waits,
        )
