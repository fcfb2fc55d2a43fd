"""Decides about one pod on changed clusters, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler_core.cooperative import Cooperative
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.extender.planning.remedy import Step
from scheduler_core.extender.planning.remedy_step import step_changes
from scheduler_core.extender.planning.replica_moves import DiskPlace, ReplicaMove, apply_move
from scheduler_core.extender.what_if.pod_decision import PodDecider, PodDecision
from scheduler_core.extender.what_if.predicted_cluster import ChangesByObject, PredictedCluster
from scheduler_core.model.kube import Pod


class Trials:
    """The decisions about a pod after steps, limited in number.

    Each trial takes back the steps of the one before it and makes its own in one update. So the caches of the production
    decision see a few changed nodes each time.
    """

    def __init__(self, pod: Pod, cluster: PredictedCluster, options: FilterOptions, decisions: int) -> None:
        self.cluster = cluster
        self.decisions_left = decisions
        self._pod = pod
        self._decider = PodDecider(options)
        self._latest = cluster
        self._changed: ChangesByObject = {}

    @property
    def exhausted(self) -> bool:
        """Whether no more trials are made."""
        return self.decisions_left <= 0

    def fits(self, steps: Sequence[Step]) -> Cooperative[bool]:
        """Returns whether the pod fits after the steps.

        It is False once the trials are exhausted.
        """
        return bool((yield from self.decide(steps)).node)

    def decide(self, steps: Sequence[Step]) -> Cooperative[PodDecision]:
        """Returns the decision about the pod after the steps.

        It is empty once the trials are exhausted.
        """
        if self.exhausted:
            return PodDecision()
        changes = step_changes(self.cluster, steps)
        self._latest = self._latest.update({**self._reverse_changes(), **changes.objects})
        self._changed = changes.objects
        scheduling = self.cluster.scheduling
        for node in changes.nodes:
            scheduling = scheduling.with_node(node)
        return (yield from self._decide(replace(self._latest, scheduling=scheduling)))

    def decide_move(self, move: ReplicaMove, target: DiskPlace) -> Cooperative[PodDecision]:
        """Returns the decision after a move to one of its targets.

        It is empty once the trials are exhausted.
        """
        if self.exhausted:
            return PodDecision()
        before = self._latest.update(self._reverse_changes())
        self._latest = apply_move(before, move, target)
        replicas = {*before.state.view.replicas_of(move.volume), *self._latest.state.view.replicas_of(move.volume)}
        self._changed = {("replicas", replica.name): None for replica in replicas}
        self._changed |= {("longhorn_nodes", name): None for name in (move.origin.node, target.node)}
        return (yield from self._decide(self._latest))

    def _decide(self, cluster: PredictedCluster) -> Cooperative[PodDecision]:
        self.decisions_left -= 1
        decision = yield from self._decider.decide(self._pod, cluster, _first)
        yield
        return decision

    def _reverse_changes(self) -> ChangesByObject:
        """Returns the changes that take back the latest trial."""
        return {key: getattr(self.cluster.snapshot, key[0]).get(key[1]) for key in self._changed}


def _first(_count: int) -> int:
    return 0
