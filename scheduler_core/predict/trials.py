"""Decisions about a pod after steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scheduler_core.caches import nodes_changed_since
from scheduler_core.decide.decision import Decision, FilterOptions, Packing
from scheduler_core.decide.filter_stages import refusal_on_every_node, unready_volume
from scheduler_core.evaluation.replicas import replica_needs
from scheduler_core.model.kube import Pod
from scheduler_core.packing.budget import give_way
from scheduler_core.predict.pod_decision import PodDecider, PodDecision
from scheduler_core.predict.predicted_cluster import ChangesByObject, PredictedCluster
from scheduler_core.predict.predicted_replicas import choose_first
from scheduler_core.predict.remedy import Step, step_changes
from scheduler_core.predict.replica_moves import DiskPlace, ReplicaMove, apply_move

_MANY_NODES: Final = 16
# A decision about few nodes takes at most a fifth of one about 1,000 nodes. There are more of them before a remedy is found.
_SHARE_OF_FEW_NODES: Final = 1 / 7
# With the others a disk that is opened may make its node unsafe.
_MONOTONE_PACKINGS: Final = frozenset({Packing.AUTO, Packing.EXACT})


class Trials:
    """The decisions about a pod after steps, limited in number. Each trial takes back the steps of the one before it
    and makes its own in one update, so that the caches of the production decision see a few changed nodes each time.
    Where the nodes are decided about one by one, only the changed nodes are.
    """

    def __init__(self, pod: Pod, cluster: PredictedCluster, options: FilterOptions, decisions: int) -> None:
        self.cluster = cluster
        self.decisions_left: float = decisions
        self._pod = pod
        self._options = options
        self._decider = PodDecider(options)
        self._latest = cluster
        self._changed: ChangesByObject = {}
        self._one_by_one = False
        # Whether a step never hurts: wherever the pod fits, it fits after more steps and more bytes.
        self.monotone = False
        self._helpful: dict[frozenset[object], bool] = {}

    @property
    def exhausted(self) -> bool:
        return self.decisions_left <= 0

    def fits(self, steps: Sequence[Step]) -> bool:
        """Returns whether the pod fits after the steps, False once the trials are exhausted."""
        return bool(self.decide(steps).node)

    def decide(self, steps: Sequence[Step]) -> PodDecision:
        """Returns the decision about the pod after the steps, empty once the trials are exhausted."""
        if self.exhausted:
            return PodDecision()
        before = self._latest
        objects, nodes = step_changes(self.cluster, steps)
        self._latest = before.update({**self._reverse_changes(), **objects})
        self._changed = objects
        scheduling = self.cluster.scheduling
        for node in nodes:
            scheduling = scheduling.with_node(node)
        names = self._nodes_to_decide(before, steps)
        decision = self._decide(self._latest.with_scheduling(scheduling), names)
        if not steps:
            self._one_by_one = self._decides_one_by_one(decision)
            self.monotone = not self._one_by_one and self._is_monotone(decision.decision)
        return decision

    def may_help(self, steps: Sequence[Step]) -> bool:
        """Returns whether some of the steps may help; False is proven, by one decision after all of them."""
        if not self.monotone or self.exhausted:
            return True
        key = frozenset((step.kind, step.node, step.disk, step.size, step.tags) for step in steps)
        if key not in self._helpful:
            self._helpful[key] = self.fits(steps)
        return self._helpful[key]

    def _decides_one_by_one(self, decision: PodDecision) -> bool:
        """Whether a step on one node changes the decision about no other node."""
        cluster = self.cluster
        # Of kube-scheduler's filters only topology spread reads other nodes' taints. Without Kubernetes nodes, cordoned ones are no candidates.
        if self._pod.scheduling.constraints.spread or not cluster.scheduling.node_names:
            return False
        if decision.decision is None:
            # Each node was refused by kube-scheduler alone, and all others will be.
            return all(decision.reasons.values())
        return _reads_one_node(decision.decision, cluster)

    def _is_monotone(self, decision: Decision | None) -> bool:
        # New volumes, of which some may go to other nodes than the pod, while no volume of another pod waits for its place.
        if decision is None or decision.resolutions or any(entry.replicas for entry in decision.resolution.volumes):
            return False
        demand = self.cluster.state.demand
        constraints = self._pod.scheduling.constraints
        return (
            not demand.by_node
            and not demand.unplaced.replicas
            and not constraints.spread
            and self._options.packing in _MONOTONE_PACKINGS
        )

    def decide_move(self, move: ReplicaMove, target: DiskPlace) -> PodDecision:
        """Returns the decision after a move to one of its targets, empty once the trials are exhausted."""
        if self.exhausted:
            return PodDecision()
        before = self._latest.update(self._reverse_changes())
        self._latest = apply_move(before, move, target)
        replicas = {*before.state.view.replicas_of(move.volume), *self._latest.state.view.replicas_of(move.volume)}
        self._changed = {("replicas", replica.name): None for replica in replicas}
        self._changed |= {("longhorn_nodes", name): None for name in (move.origin.node, target.node)}
        return self._decide(self._latest)

    def _decide(self, cluster: PredictedCluster, names: Sequence[str] | None = None) -> PodDecision:
        give_way()
        self.decisions_left -= 1 if names is None else _SHARE_OF_FEW_NODES
        return self._decider.decide(self._pod, cluster, choose_first, names)

    def _nodes_to_decide(self, before: PredictedCluster, steps: Sequence[Step]) -> list[str] | None:
        """Returns the nodes, None for all, that may be decided otherwise than without any step."""
        # These are the nodes of the steps, and those where a step of the trial before is taken back.
        first, latest = before.state, self._latest.state
        changed = nodes_changed_since(
            (first.profiles.changelog, first.demand.changelog), (latest.profiles.changelog, latest.demand.changelog)
        )
        if not self._one_by_one or changed is None or len(changed) > _MANY_NODES:
            return None
        names = changed.union(step.node for step in steps)
        # Another pod's volume that begins to fit on its node, or ceases to, counts on other nodes.
        if any(state.demand.by_node.get(name) for state in (first, latest) for name in names):
            return None
        return [name for name in sorted(names) if name in self.cluster.scheduling.nodes]

    def _reverse_changes(self) -> ChangesByObject:
        return {key: getattr(self.cluster.snapshot, key[0]).get(key[1]) for key in self._changed}


def _reads_one_node(decision: Decision, cluster: PredictedCluster) -> bool:
    """Whether the decision about each node reads no other node, for a pod that fits nowhere."""
    # Its new volumes all go to the pod's node, and nothing refuses the pod whatever the node.
    view = cluster.state.view
    resolution = decision.resolution
    new = not resolution.unplaced and not any(entry.replicas for entry in resolution.volumes)
    return (
        new
        and not decision.resolutions
        and not view.indexes.available_volumes
        and not replica_needs(resolution, view)
        and unready_volume(view, resolution) is None
        and refusal_on_every_node(view, resolution) is None
    )
