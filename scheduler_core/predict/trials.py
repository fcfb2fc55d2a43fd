"""What is tried on predicted clusters: steps for a pod, and the maintenance of a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from scheduler_core.caches import nodes_changed_since
from scheduler_core.decide.decision import Decision, FilterOptions, Packing
from scheduler_core.evaluation.replicas import replica_needs
from scheduler_core.evaluation.state import refusal_on_every_node, unready_volume
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import NamespacedName
from scheduler_core.packing.budget import give_way
from scheduler_core.predict.cluster_changes import drain, return_node
from scheduler_core.predict.order_outcomes import longest_wait, pod_problem
from scheduler_core.predict.pod_decision import PodDecider, PodDecision
from scheduler_core.predict.predicted_cluster import ChangesByObject, PredictedCluster
from scheduler_core.predict.predicted_replicas import (
    Choose,
    DiskPlace,
    ReplicaMove,
    apply_move,
    choose_first,
    healthy_replicas,
    replicas_on_node,
)
from scheduler_core.predict.remedy import Step, step_changes
from scheduler_core.predict.situation import Situation
from scheduler_core.predict.timeline import OrderResult, run_order

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


class Maintenance(Struct, frozen=True):
    """One node's maintenance in one order."""

    cluster: PredictedCluster  # after the node was uncordoned, and everything has settled
    pods: int = 0  # how many pods the drain moves
    copied_bytes: int = 0  # data that rebuilds copy
    reduced_volumes: int = 0  # how many volumes have fewer healthy replicas meanwhile
    problems: tuple[str, ...] = ()  # why the drain does not fit; empty if it does
    rebuild_wait: float = 0  # for how many seconds nothing is rebuilt where Longhorn could reuse a failed replica


def maintain_node(
    cluster: PredictedCluster,
    node: str,
    parallel: frozenset[NamespacedName],
    options: FilterOptions,
    choose: Choose,
) -> Maintenance:
    """Drains a node, and uncordons it once the drain has finished.

    Volumes may lack a replica meanwhile: the replicas on the node are there again after the maintenance, unless Longhorn has rebuilt
    them elsewhere.

    Raises:
        WhatIfError: there is no such node
    """
    drained = drain(Situation(cluster, parallel=parallel), (node,))
    result = run_order(drained, options, choose)
    problems = _drain_problems(cluster, drained, result, node)
    if problems:
        return Maintenance(result.cluster, problems=problems)
    returned = return_node(cluster, result.cluster, node)
    settled = run_order(Situation(returned, parallel=parallel), options, choose)
    return Maintenance(
        cluster=settled.cluster,
        pods=len(drained.pods),
        copied_bytes=result.copied_bytes + settled.copied_bytes,
        reduced_volumes=len(result.fewer_replicas),
        rebuild_wait=longest_wait(result.waits.values()),
    )


def _drain_problems(before: PredictedCluster, drained: Situation, result: OrderResult, node: str) -> tuple[str, ...]:
    problems = [*result.blockers.get(node, ())]
    cluster = result.cluster
    # Those come first that no PodDisruptionBudget keeps on the node.
    for key in sorted(drained.pods, key=lambda key: drained.cluster.snapshot.pods[key].node_name):
        problem = pod_problem(key, result)
        # The blockers name the pods that may not be evicted.
        if problem and cluster.snapshot.pods[key].node_name != node:
            problems.append(problem)
    for name in sorted({replica.volume for replica in replicas_on_node(before, node)}):
        volume = cluster.snapshot.volumes.get(name)
        if (
            volume is not None
            and volume.node_id
            and not healthy_replicas(cluster, name)
            and healthy_replicas(before, name)
        ):
            problems.append(f"volume {name} has no healthy replica meanwhile")
    return tuple(problems)


class DrainStep(Struct, frozen=True):
    """The maintenance of one node."""

    node: str
    pods: tuple[int, int]  # as in `Maintenance`, the least and the most over all courses
    copied_bytes: tuple[int, int]  # as in `Maintenance`, the least and the most over all courses
    reduced_volumes: tuple[int, int]  # as in `Maintenance`, the least and the most over all courses
    rebuild_wait: float = 0  # as in `Maintenance`, the most over all courses

    @classmethod
    def of(cls, node: str, courses: Sequence[Maintenance]) -> DrainStep:
        """Returns what a node's maintenance is in at least one course of events."""
        return cls(
            node=node,
            pods=_range([result.pods for result in courses]),
            copied_bytes=_range([result.copied_bytes for result in courses]),
            reduced_volumes=_range([result.reduced_volumes for result in courses]),
            rebuild_wait=max(result.rebuild_wait for result in courses),
        )


def _range(numbers: Sequence[int]) -> tuple[int, int]:
    return min(numbers), max(numbers)


def digest_state(clusters: Sequence[PredictedCluster], remaining: Iterable[str]) -> bytes:
    """Returns an equal text for states in which the same drains fit."""
    digest = blake2b(repr(sorted(remaining)).encode(), digest_size=16)
    for cluster in clusters:
        snapshot = cluster.snapshot
        pods = sorted((key, pod.node_name, pod.scheduling.ready) for key, pod in snapshot.pods.items() if pod.live)
        replicas = sorted(
            (each.volume, each.disk_id, bool(each.failed_at), each.eviction_requested)
            for each in snapshot.replicas.values()
        )
        volumes = sorted((volume.name, volume.node_id, volume.robustness) for volume in snapshot.volumes.values())
        disks = sorted(
            (disk.uuid, disk.storage_available, disk.storage_scheduled)
            for node in snapshot.longhorn_nodes.values()
            for disk in node.disks
        )
        digest.update(repr((pods, replicas, volumes, disks)).encode())
    return digest.digest()
