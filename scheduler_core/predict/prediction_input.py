"""The input of every order: what the verbs change, before any pod is decided."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from scheduler_core.model import kube, snapshot
from scheduler_core.model.generic import PodKey
from scheduler_core.predict.disruption_budgets import DisruptionBudgets, ignores_budgets
from scheduler_core.predict.pod_decision import take_away
from scheduler_core.predict.predicted_cluster import NODE_BOUND_OWNERS, STATEFUL_SET, PredictedCluster
from scheduler_core.structs import Struct, replace


class Origin(StrEnum):
    """Why a pod needs a node."""

    MOVED = "moved"
    NEW = "new"
    WAITING = "waiting"


class PodToPlace(Struct, frozen=True):
    """A pod without a node."""

    key: PodKey
    origin: Origin
    left: str = ""  # the node that it ran on, "" for none
    # The pod that must run before this one is created (a StatefulSet's order), None for none.
    after: PodKey | None = None


class ExpansionOutcome(Struct, frozen=True):
    """Whether a volume may grow; the fields are keys of the JSON."""

    claim: str
    size: int  # bytes that are asked for
    fits: bool
    # The StorageClass, or every reason that Longhorn may give, with the disk; empty if the volume grows.
    refusals: tuple[str, ...]
    refused_by: str  # which admission refuses the claim's update, so that the claim keeps its size; "" if it grows


class Situation(Struct, frozen=True, dict=True):
    """The cluster after the changes."""

    cluster: PredictedCluster
    # What is to be placed, without the pods that wait in the snapshot already. A pod that is still on the node that it leaves runs there
    # until its PodDisruptionBudget allows its eviction.
    pods: Mapping[PodKey, PodToPlace] = {}
    drained: tuple[str, ...] = ()  # nodes that are drained, in order
    lost: frozenset[str] = frozenset()  # nodes that are gone
    # Pods that kubectl drain refuses to delete because nothing creates them again, by node.
    unmanaged: tuple[tuple[str, str], ...] = ()
    gone_pods: tuple[PodKey, ...] = ()  # pods that nothing creates again after their node was lost
    evicted: frozenset[str] = frozenset()  # volumes whose replicas are to move
    degraded: frozenset[str] = frozenset()  # volumes that lost a replica
    expansions: tuple[ExpansionOutcome, ...] = ()  # the result of every expansion
    # StatefulSets that create their pods at once (podManagementPolicy).
    parallel: frozenset[snapshot.NamespacedName] = frozenset()
    # The pods without a node, of which some may have been placed or deleted since; None if they are not known.
    waiting: tuple[PodKey, ...] | None = None

    def all_pods(self) -> tuple[PodToPlace, ...]:
        """Every pod without a node, sorted by name, including those that wait already."""
        return tuple(entry for entry in self.affected_pods if not self.cluster.snapshot.pods[entry.key].node_name)

    @cached_property
    def affected_pods(self) -> tuple[PodToPlace, ...]:
        """The pods that need a node, now or once they are evicted, sorted by name."""
        pods = self.cluster.snapshot.pods
        own = [
            entry
            for key, entry in self.pods.items()
            if (pod := pods.get(key)) is not None and (not pod.node_name or (pod.live and pod.node_name == entry.left))
        ]
        keys: Iterable[PodKey] = pods if self.waiting is None else self.waiting
        waiting = [
            PodToPlace(key, Origin.WAITING)
            for key in keys
            if key not in self.pods and (pod := pods.get(key)) is not None and pod.live and not pod.node_name
        ]
        entries = sorted((*own, *waiting), key=lambda entry: entry.key)
        before = self._pods_before(entries)
        return tuple(replace(entry, after=before.get(entry.key)) for entry in entries)

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """The nodes that pods may run on; no event of an order changes them."""
        return self.cluster.node_names

    @cached_property
    def budgets(self) -> DisruptionBudgets:
        return DisruptionBudgets(self.cluster)

    def _pods_before(self, entries: Iterable[PodToPlace]) -> dict[PodKey, PodKey]:
        """Returns the pod that each pod of a StatefulSet waits for: the next lower one that does not run either."""
        pods = self.cluster.snapshot.pods
        sets: dict[snapshot.NamespacedName, list[tuple[int, PodToPlace]]] = {}
        for entry in entries:
            namespace, name = entry.key
            set_name, _, ordinal = name.rpartition("-")
            pod = pods.get(entry.key)
            owned = pod is not None and pod.owner == STATEFUL_SET and ordinal.isdecimal()
            if owned and (namespace, set_name) not in self.parallel:
                sets.setdefault((namespace, set_name), []).append((int(ordinal), entry))
        return {
            entry.key: before.key
            for members in sets.values()
            for (_, before), (_, entry) in pairwise(sorted(members, key=lambda member: member[0]))
            # A pod that waits in the snapshot exists already.
            if entry.origin is not Origin.WAITING
        }

    def evict(self, pods: Iterable[kube.Pod], *, lost: bool = False) -> "Situation":
        """Takes these pods of nodes away, and their controllers create them again; `lost`: no PodDisruptionBudget keeps
        them.
        """
        cluster = self.cluster
        entries = dict(self.pods)
        for pod in pods:
            # Without a controller the pod stays, and is reported. Those that belong to their node stay, such as those of DaemonSets.
            if not pod.owner or pod.owner in NODE_BOUND_OWNERS:
                continue
            key = pod.namespaced_name
            entries[key] = PodToPlace(key, Origin.MOVED, pod.node_name)
            # Every order evicts the other pods when their budget allows it.
            if lost or ignores_budgets(pod) or not self.budgets.of(key):
                cluster = take_away(cluster, pod)
        return replace(self, cluster=cluster, pods=entries)

    def with_new_pod(self, pod: kube.Pod) -> "Situation":
        key = pod.namespaced_name
        return replace(self, cluster=self.cluster.with_pod(pod), pods={**self.pods, key: PodToPlace(key, Origin.NEW)})


Change = Callable[[Situation], Situation]
"""One verb of the command, with its arguments; raises a WhatIfError if it names something that does not exist."""


def live_pods(cluster: PredictedCluster, names: Iterable[str]) -> tuple[list[kube.Pod], tuple[PodKey, ...]]:
    """Returns the live pods of nodes by name, and the keys of those without a node, in one pass over all pods."""
    nodes = {"", *names}
    pods = [pod for pod in cluster.snapshot.pods.values() if pod.node_name in nodes and pod.live]
    on_nodes = sorted((pod for pod in pods if pod.node_name), key=lambda pod: pod.key)
    return on_nodes, tuple(pod.namespaced_name for pod in pods if not pod.node_name)
