"""One possible course of events, in an order that a seed determines. Pods that no node fits, and evictions that a
budget refuses, are tried again whenever something was placed since. When nothing is left to do, drains finish or not;
the replicas of drained nodes then fail, Longhorn's wait runs out, and they are rebuilt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from scheduler_core.extender.decision import FilterOptions
from scheduler_core.generic.node_index import NodeIndex
from scheduler_core.generic.rule_results import RuleResults
from scheduler_core.giving_way import give_way
from scheduler_core.longhorn.replenish import is_usable
from scheduler_core.longhorn.volume_readiness import FAULTED
from scheduler_core.model import longhorn
from scheduler_core.model.generic import PodKey
from scheduler_core.predict.drain_policy import drain_blockers
from scheduler_core.predict.lagging_status import StatusChange, hide_changes, show_change
from scheduler_core.predict.order_history import Observe, OrderProgress, ignore_progress
from scheduler_core.predict.pod_decision import PodDecider, PodDecision, attach_volumes, bind_pod
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import (
    NO_DATA,
    Choose,
    fail_replicas,
    holds_data,
    next_step,
    replicas_on_node,
)
from scheduler_core.predict.situation import PodToPlace, Situation, take_away

# Longhorn adds this to what remains of the wait (RequireNewReplica).
_CLOCK_SKEW = timedelta(seconds=2)
_NOT_CREATED = "the pod before it does not run"
_DETACHED = "it is detached: Longhorn rebuilds it once it is attached"


@dataclass(frozen=True, slots=True)
class OrderResult:
    """The end of one order."""

    cluster: PredictedCluster
    # The node of each placed pod, in the order of the decisions.
    nodes: Mapping[PodKey, str] = field(default_factory=dict[PodKey, str])
    # For each pod that waits, the number of nodes per reason.
    refusals: Mapping[PodKey, Counter[str]] = field(default_factory=dict[PodKey, Counter[str]])
    # For each pod that has a node, why its volumes are not ready.
    stuck: Mapping[PodKey, str] = field(default_factory=dict[PodKey, str])
    copied_bytes: int = 0  # data that rebuilds copy
    # For each drained node, why its drain cannot finish; no entry if it can.
    blockers: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    # By volume, the least number of its healthy replicas meanwhile.
    fewer_replicas: Mapping[str, int] = field(default_factory=dict[str, int])
    # By volume, why it still lacks a replica in the end.
    incomplete: Mapping[str, str] = field(default_factory=dict[str, str])
    # By volume, how long Longhorn waited for a failed replica that it could reuse; no entry if it did not.
    waits: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])

    @property
    def unplaced_pods(self) -> frozenset[PodKey]:
        """The decided pods that no node fits, and that wait for one."""
        pods = self.cluster.snapshot.pods
        waiting = (key for key in self.refusals if key in pods and not pods[key].node_name)
        return frozenset(key for key in waiting if _NOT_CREATED not in self.refusals[key])


def run_order(
    situation: Situation, options: FilterOptions, choose: Choose, observe: Observe = ignore_progress
) -> OrderResult:
    """Plays one order to its end. `choose` makes every choice that depends on chance in the cluster; `observe` is
    called before the first step and after each.
    """
    run = _Run(situation, options, choose, observe)
    run.find_incomplete_volumes()
    run.settle()
    while run.finish_drains() or run.wait_for_failed_replicas():
        run.settle()
    return run.result()


def incomplete_volumes(cluster: PredictedCluster) -> frozenset[str]:
    """Names of attached volumes that have fewer placed replicas than they should."""
    names: set[str] = set()
    for volume in cluster.snapshot.volumes.values():
        if volume.node_id and _is_incomplete(cluster, volume):
            names.add(volume.name)
    return frozenset(names)


def _is_incomplete(cluster: PredictedCluster, volume: longhorn.Volume) -> bool:
    replicas = cluster.state.view.replicas_of(volume.name)
    return sum(1 for each in replicas if each.node_id and is_usable(volume, each)) < volume.number_of_replicas


class _Run:
    """One order while it is played."""

    def __init__(self, situation: Situation, options: FilterOptions, choose: Choose, observe: Observe) -> None:
        self._choose = choose
        self._observe = observe
        # Indexes of nodes are shared by the states that were made from one, and this one is the first of many orders.
        scheduling = replace(situation.cluster.scheduling, index=NodeIndex(), results=RuleResults())
        self._cluster = replace(situation.cluster, scheduling=scheduling)
        self._situation = situation
        self._decider = PodDecider(options)
        self._waiting: list[PodToPlace] = list(situation.all_pods())
        self._moved: set[PodKey] = {entry.key for entry in self._waiting}
        self._refused: list[PodToPlace] = []
        self._evictions: list[PodToPlace] = list(situation.all_evictions())
        self._refused_evictions: list[PodToPlace] = []
        self._before: dict[PodKey, PodKey | None] = {entry.key: entry.after for entry in self._evictions}
        self._open_drains: list[str] = list(situation.drained)
        self._bound: dict[PodKey, PodDecision] = {}
        self._to_attach: list[PodKey] = []
        self._attached: set[str] = set()
        self._volumes: list[str] = []
        # Placements that Longhorn's status does not show yet, oldest first.
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

    def _report_progress(self) -> None:
        waiting = len(self._waiting) + len(self._refused) + len(self._to_attach)
        to_evict = len(self._evictions) + len(self._refused_evictions)
        self._observe(OrderProgress(self._cluster, waiting, to_evict, self._copied, tuple(self._changed)))
        self._changed = []

    def find_incomplete_volumes(self) -> None:
        """Lets Longhorn go on with volumes that lack or move a replica."""
        incomplete = incomplete_volumes(self._cluster)
        self._volumes = sorted(self._situation.evicted | incomplete)

    def settle(self) -> None:
        """Decides pods and takes steps of volumes until nothing changes any more."""
        while True:
            self._placed_since = False
            while self._waiting or self._to_attach or self._volumes or self._evictions:
                while self._unlisted and self._choose(2):
                    self._cluster = show_change(self._cluster, self._unlisted.pop(0))
                give_way()
                self._advance()
                self._report_progress()
            self._show_status()
            if not self._placed_since:
                return
            self._waiting = self._refused
            self._refused = []
            self._evictions = self._refused_evictions
            self._refused_evictions = []
            self._volumes = [name for name in sorted(self._problems) if name not in self._delayed]

    def _show_status(self) -> None:
        if not self._unlisted:
            return
        for change in self._unlisted:
            self._cluster = show_change(self._cluster, change)
        self._unlisted = []
        self._report_progress()

    def _advance(self) -> None:
        """Advances one pod or volume, or evicts a pod, at random."""
        volumes = len(self._volumes)
        number = self._choose(len(self._waiting) + len(self._to_attach) + volumes + len(self._evictions))
        if number < len(self._waiting):
            self._decide(self._waiting.pop(number))
            return
        number -= len(self._waiting)
        if number < len(self._to_attach):
            self._attach(self._to_attach.pop(number))
            return
        number -= len(self._to_attach)
        if number < volumes:
            self._take_step(number)
        else:
            self._evict(self._evictions.pop(number - volumes))

    def _evict(self, entry: PodToPlace) -> None:
        """Evicts a pod of a drained node if its PodDisruptionBudget allows it."""
        pod = self._cluster.snapshot.pods[entry.key]
        refusal = self._situation.budgets.refusal(pod, self._is_healthy)
        if refusal:
            self._refusals[entry.key] = Counter({f"stays on {entry.left}: {refusal}": 0})
            self._refused_evictions.append(entry)
            return
        self._refusals.pop(entry.key, None)
        names = {volume.name for volume in self._cluster.volumes_of(pod)}
        self._changed += names
        self._cluster = take_away(self._cluster, pod)
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
        pod = self._cluster.snapshot.pods.get(key)
        if pod is None or not pod.scheduling.ready:
            return False
        # Otherwise it runs where it ran before, and no replica of any volume was lost.
        return self._runs(key) if key in self._moved or self._fewer else bool(pod.node_name)

    def _retry_evictions(self, key: PodKey) -> None:
        budgets = self._situation.budgets
        concerned = [entry for entry in self._refused_evictions if {*budgets.of(entry.key)} & {*budgets.of(key)}]
        if concerned:
            self._refused_evictions = [entry for entry in self._refused_evictions if entry not in concerned]
            self._evictions += concerned

    def _decide(self, entry: PodToPlace) -> None:
        pod = self._cluster.snapshot.pods[entry.key]
        if not self._predecessors_run(entry):
            self._refuse(entry, Counter({_NOT_CREATED: 0}))
            return
        decision = self._decider.decide(pod, self._cluster, self._choose)
        if not decision.node:
            self._refuse(entry, decision.reasons)
            return
        self._refusals.pop(entry.key, None)
        self._bound[entry.key] = decision
        self._cluster = bind_pod(self._cluster, pod, decision.node)
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
        pod = self._cluster.snapshot.pods.get(key)
        attached = key not in self._to_attach
        return pod is not None and bool(pod.node_name) and attached and not self._stuck_reason(key)

    def _attach(self, key: PodKey) -> None:
        decision = self._bound[key].decision
        pod = self._cluster.snapshot.pods[key]
        if decision is not None:
            self._cluster = attach_volumes(self._cluster, pod, decision)
        names = [volume.name for volume in self._cluster.volumes_of(pod)]
        self._attached.update(names)
        self._changed += names
        self._volumes += [name for name in names if name not in self._volumes]
        if self._refused_evictions:
            self._retry_evictions(key)

    def _take_step(self, position: int) -> None:
        name = self._volumes[position]
        step = next_step(self._cluster, name, self._choose)
        self._cluster, unlisted = hide_changes(self._cluster, step.cluster) if step.changed else (step.cluster, ())
        self._unlisted += unlisted
        self._changed.append(name)
        self._copied += step.copied_bytes
        self._placed_since = self._placed_since or step.changed
        self._problems.pop(name, None)
        self._delayed.pop(name, None)
        if step.changed and not step.problem:
            return
        self._volumes.pop(position)
        # A volume that no pod of the prediction uses may have been without a local replica before.
        if step.problem and (name in self._attached or not step.only_local):
            self._problems[name] = step.problem
        if step.wait:
            self._delayed[name] = step.wait
            self._waits[name] = max(step.wait, self._waits.get(name, step.wait))

    def finish_drains(self) -> bool:
        """Fails the replicas of the nodes whose drain can finish, and notes why others cannot; returns whether one
        finishes.
        """
        finished = len(self._gone)
        held_up: list[str] = []
        for name in self._open_drains:
            self._blockers.pop(name, None)
            refused = self._refused_evictions_of(name)
            unmanaged = [f"pod {pod} has no controller" for pod, node in self._situation.unmanaged if node == name]
            # The volumes of pods that are still to be evicted say nothing more.
            blockers = (*unmanaged, *(refused or drain_blockers(self._cluster, name, self._gone)))
            if blockers:
                self._blockers[name] = blockers
                # A drain that a PodDisruptionBudget holds up goes on later.
                held_up += [name] if refused else []
                continue
            self._gone.add(name)
            failed = replicas_on_node(self._cluster, name)
            self._cluster = fail_replicas(self._cluster, failed)
            for volume in sorted({replica.volume for replica in failed}):
                self._note_replicas(volume)
                self._changed.append(volume)
                if self._has_attachment(volume) and volume not in self._volumes:
                    self._volumes.append(volume)
        if self._open_drains:
            self._report_progress()
        self._open_drains = held_up
        return len(self._gone) > finished

    def _refused_evictions_of(self, node: str) -> list[str]:
        entries = sorted((entry for entry in self._refused_evictions if entry.left == node), key=lambda each: each.key)
        return [f"pod {'/'.join(entry.key)} {text}" for entry in entries for text in self._refusals[entry.key]]

    def wait_for_failed_replicas(self) -> bool:
        """Lets Longhorn's wait for failed replicas run out, once, after the last finished drain; returns whether there
        is such a wait.
        """
        if not self._delayed or self._waited_after == len(self._gone):
            return False
        self._waited_after = len(self._gone)
        longest = max(self._delayed.values()) + _CLOCK_SKEW
        self._cluster = self._cluster.update({}, longest)
        self._volumes = sorted(self._delayed)
        self._delayed = {}
        return True

    def _has_attachment(self, name: str) -> bool:
        volume = self._cluster.snapshot.volumes.get(name)
        return volume is not None and bool(volume.node_id)

    def _healthy_replicas(self, name: str) -> int:
        return sum(1 for replica in self._cluster.state.view.replicas_of(name) if holds_data(self._cluster, replica))

    def _lacks_replicas(self, name: str) -> bool:
        volume = self._cluster.snapshot.volumes.get(name)
        return volume is not None and self._healthy_replicas(name) < volume.number_of_replicas

    def _note_replicas(self, name: str) -> None:
        if self._lacks_replicas(name):
            healthy = self._healthy_replicas(name)
            self._fewer[name] = min(healthy, self._fewer.get(name, healthy))

    def _stuck_reason(self, key: PodKey) -> str:
        """Why a bound pod waits for its volumes, "" if not."""
        for volume in self._cluster.volumes_of(self._cluster.snapshot.pods[key]):
            replicas = self._cluster.state.view.replicas_of(volume.name)
            if not volume.has_shards and not any(holds_data(self._cluster, replica) for replica in replicas):
                faulted = " is faulted" if volume.robustness == FAULTED else ""
                return f"volume {volume.name}{faulted}: {self._problems.get(volume.name, 'not placed yet')}"
        return self._cluster.missing_driver(key) if key in self._bound else ""

    def result(self) -> OrderResult:
        for name in self._fewer:
            if not self._healthy_replicas(name):
                self._problems[name] = NO_DATA
        for name in self._situation.degraded:
            if not self._has_attachment(name) and self._lacks_replicas(name):
                self._problems.setdefault(name, _DETACHED)
        stuck = {key: reason for key in self._bound if (reason := self._stuck_reason(key))}
        return OrderResult(
            cluster=self._cluster,
            nodes={key: decision.node for key, decision in self._bound.items()},
            refusals=self._refusals,
            stuck=stuck,
            copied_bytes=self._copied,
            blockers=self._blockers,
            fewer_replicas=self._fewer,
            incomplete=dict(self._problems),
            waits=self._waits,
        )
