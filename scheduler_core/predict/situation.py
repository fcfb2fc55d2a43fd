"""The input of every order: what the verbs change, before any pod is decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Protocol

from scheduler_core.model import kube
from scheduler_core.model.generic import PodKey
from scheduler_core.model.snapshot import NamespacedName
from scheduler_core.predict.pod_decision import detach_volumes, waiting_pod
from scheduler_core.predict.pod_eviction import DisruptionBudgets, ignores_budgets
from scheduler_core.predict.predicted_cluster import NODE_BOUND_OWNERS, STATEFUL_SET, PredictedCluster


class Origin(StrEnum):
    """Why a pod needs a node."""

    MOVED = "moved"
    NEW = "new"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class PodToPlace:
    """A pod without a node."""

    key: PodKey
    origin: Origin
    left: str = ""  # the node that it ran on, "" for none
    # The pod that must run before this one is created (a StatefulSet's order), None for none.
    after: PodKey | None = None


@dataclass(frozen=True, slots=True)
class ExpansionOutcome:
    """Whether a volume may grow."""

    claim: str
    size: int  # bytes that are asked for
    # The StorageClass, or every reason that Longhorn may give, with the disk; empty if the volume grows.
    refusals: tuple[str, ...] = ()
    refused_by: str = ""  # which admission refuses the claim's update, so that the claim keeps its size; "" if it grows


@dataclass(frozen=True)
class Situation:
    """The cluster after the changes."""

    cluster: PredictedCluster
    pods: tuple[PodToPlace, ...] = ()  # what is to be placed, without the pods that wait in the snapshot already
    # Pods of drained nodes that run until their PodDisruptionBudget allows their eviction.
    evictions: tuple[PodToPlace, ...] = ()
    drained: tuple[str, ...] = ()  # nodes that are drained, in order
    lost: frozenset[str] = frozenset()  # nodes that are gone
    # Pods that kubectl drain refuses to delete because nothing creates them again, by node.
    unmanaged: tuple[tuple[str, str], ...] = ()
    gone_pods: tuple[tuple[str, str], ...] = ()  # pods that nothing creates again, with their lost node
    evicted: frozenset[str] = frozenset()  # volumes whose replicas are to move
    degraded: frozenset[str] = frozenset()  # volumes that lost a replica
    expansions: tuple[ExpansionOutcome, ...] = ()  # the result of every expansion
    # StatefulSets that create their pods at once (podManagementPolicy).
    parallel: frozenset[NamespacedName] = frozenset()
    # The pods without a node, of which some may have been placed or deleted since; None if they are not known.
    waiting: tuple[PodKey, ...] | None = None

    def all_pods(self) -> tuple[PodToPlace, ...]:
        """Every pod without a node, sorted by name, including those that wait already."""
        return tuple(entry for entry in self.affected_pods if entry.key not in self._pending_evictions)

    @cached_property
    def affected_pods(self) -> tuple[PodToPlace, ...]:
        """The pods that need a node, now or once they are evicted, sorted by name."""
        placed = {entry.key for entry in self.pods}
        pods = self.cluster.snapshot.pods
        candidates = pods.items() if self.waiting is None else ((key, pods.get(key)) for key in self.waiting)
        waiting = [
            PodToPlace(key, Origin.WAITING)
            for key, pod in candidates
            if key not in placed and pod is not None and pod.live and not pod.node_name
        ]
        entries = sorted((*self.pods, *self._pending_evictions.values(), *waiting), key=lambda entry: entry.key)
        before = self._pods_before(entries)
        return tuple(replace(entry, after=before.get(entry.key)) for entry in entries)

    @cached_property
    def _pending_evictions(self) -> dict[PodKey, PodToPlace]:
        pods = self.cluster.snapshot.pods
        entries = ((entry, pods.get(entry.key)) for entry in self.evictions)
        return {
            entry.key: entry for entry, pod in entries if pod is not None and pod.live and pod.node_name == entry.left
        }

    def all_evictions(self) -> tuple[PodToPlace, ...]:
        """The pods that run until their PodDisruptionBudget allows their eviction, sorted by name."""
        return tuple(entry for entry in self.affected_pods if entry.key in self._pending_evictions)

    @cached_property
    def budgets(self) -> DisruptionBudgets:
        return DisruptionBudgets(self.cluster)

    def _pods_before(self, entries: Iterable[PodToPlace]) -> dict[PodKey, PodKey]:
        """Returns the pod that each pod of a StatefulSet waits for: the next lower one that does not run either."""
        pods = self.cluster.snapshot.pods
        sets: dict[NamespacedName, list[tuple[int, PodToPlace]]] = {}
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

    def evict(self, pods: Iterable[kube.Pod], *, lost: bool = False) -> Situation:
        """Takes these pods of nodes away, and their controllers create them again; `lost`: no PodDisruptionBudget keeps
        them.
        """
        cluster = self.cluster
        moved: list[PodToPlace] = []
        evictions: list[PodToPlace] = []
        unmanaged: list[tuple[str, str]] = []
        for pod in pods:
            key = pod.namespaced_name
            if not pod.owner:
                # Without a controller the pod stays, and is reported.
                unmanaged.append((pod.key, pod.node_name))
            elif pod.owner not in NODE_BOUND_OWNERS:
                # All others belong to their node and stay, such as those of DaemonSets.
                entry = PodToPlace(key, Origin.MOVED, pod.node_name)
                if not lost and not ignores_budgets(pod) and self.budgets.of(key):
                    # Every order evicts the pod when its budget allows it.
                    evictions.append(entry)
                    continue
                cluster = take_away(cluster, pod)
                moved.append(entry)
        return replace(
            self,
            cluster=cluster,
            pods=(*self.pods, *moved),
            evictions=(*self.evictions, *evictions),
            unmanaged=(*self.unmanaged, *unmanaged),
        )

    def with_new_pod(self, pod: kube.Pod) -> Situation:
        entry = PodToPlace(pod.namespaced_name, Origin.NEW)
        return replace(self, cluster=self.cluster.with_pod(pod), pods=(*self.pods, entry))


class Change(Protocol):
    """One verb of the command, with its arguments."""

    def apply(self, situation: Situation) -> Situation:
        """Returns the situation after the change.

        Raises:
            WhatIfError: it names something that does not exist
        """


def pods_on_nodes(cluster: PredictedCluster, names: Iterable[str]) -> list[kube.Pod]:
    """Returns the live pods of nodes, by name."""
    return live_pods(cluster, names).on_nodes


@dataclass(frozen=True, slots=True)
class LivePods:
    """The live pods of some nodes, and those without a node."""

    on_nodes: list[kube.Pod]  # by name
    waiting: tuple[PodKey, ...]  # the keys of those without a node


def live_pods(cluster: PredictedCluster, names: Iterable[str]) -> LivePods:
    """Returns the live pods of nodes, and those without a node, in one pass over all pods."""
    nodes = {"", *names}
    pods: list[tuple[PodKey, kube.Pod]] = []
    for key, pod in cluster.snapshot.pods.items():
        if pod.node_name in nodes and pod.live:
            pods.append((key, pod))
    on_nodes = sorted((pod for _, pod in pods if pod.node_name), key=lambda pod: pod.key)
    return LivePods(on_nodes, tuple(key for key, pod in pods if not pod.node_name))


def take_away(cluster: PredictedCluster, pod: kube.Pod) -> PredictedCluster:
    """Returns the cluster with a pod that waits again, and its volumes detached."""
    return detach_volumes(cluster, pod).with_pod(waiting_pod(pod))
