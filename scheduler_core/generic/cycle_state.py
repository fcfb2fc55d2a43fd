"""State of one scheduling cycle: the pod, the cluster, and values that several rules share, each computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Final

from scheduler_core.errors import CoreError
from scheduler_core.generic.cluster_state import GenericClusterState, SequenceNumber, ServicePods
from scheduler_core.generic.longhorn_facts import NO_FACTS, LonghornFacts, ScoreInputs
from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.model.generic import Controller, Service
from scheduler_core.model.kube import Pod


class UndecidableError(CoreError):
    """A predicate cannot be decided for any node, so the pod is not scheduled in this cycle."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument of a configurable rule."""

    labels: tuple[str, ...] = ()  # node labels; a priority has one
    presence: bool = False  # whether the labels are required or unwanted


NO_ARGUMENT: Final = Argument()


@dataclass(frozen=True, slots=True)
class _FactsOfNodes:
    """Facts of some nodes: the distinct ones, and which of them each node has, in order."""

    node_infos: Sequence[NodeInfo]
    distinct: Sequence[ScoreInputs | None]
    indexes: Sequence[int]

    @classmethod
    def of(cls, node_infos: Sequence[NodeInfo], longhorn_facts: LonghornFacts) -> _FactsOfNodes:
        facts = map(longhorn_facts.nodes.get, map(attrgetter("node.name"), node_infos))
        inputs = [None if entry is None else entry.score_inputs for entry in facts]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(inputs))}
        return cls(node_infos, tuple(numbers), list(map(numbers.__getitem__, inputs)))


@dataclass(frozen=True)
class CycleState:
    """A pod, the cluster, and facts about its Longhorn volumes."""

    pod: Pod
    cluster: GenericClusterState
    longhorn_facts: LonghornFacts = field(default=NO_FACTS)
    _latest_facts: _FactsOfNodes | None = field(default=None, init=False, compare=False)

    @cached_property
    def services(self) -> tuple[ServicePods, ...]:
        """The services that select the pod, in order (GetPodServices)."""
        services = self.cluster.services.get(self.pod.namespace, ())
        return tuple(entry for entry in services if entry.service.selects(self.pod.scheduling.labels))

    @cached_property
    def first_service_pods(self) -> Mapping[SequenceNumber, Pod]:
        """The assigned pods of the pod's first service, finished pods included."""
        return self.services[0].pods if self.services else {}

    @cached_property
    def first_service_pods_by_node(self) -> Counter[str]:
        """Number of the first service's pods per node, which may not exist."""
        return Counter(pod.node_name for pod in self.first_service_pods.values())

    @cached_property
    def service_pods_by_node(self) -> Counter[str]:
        """Number of pods per node of all services that select the pod."""
        # A pod of several services counts once; the node may not exist.
        if len(self.services) <= 1:
            return self.first_service_pods_by_node
        pods = {number: pod for entry in self.services for number, pod in entry.pods.items()}
        return Counter(pod.node_name for pod in pods.values())

    @cached_property
    def controllers(self) -> tuple[Controller, ...]:
        controllers = self.cluster.controllers.get(self.pod.namespace)
        return tuple(entry for entry in (controllers or {}).values() if entry.selects(self.pod.scheduling.labels))

    @cached_property
    def owned_pods_by_node(self) -> Counter[str]:
        """Number of pods per node that share a service or controller with the pod. A pod of several of them counts
        once; the node may not exist. Finished pods are included.
        """
        if not self.controllers:
            return self.service_pods_by_node
        owners: list[Service | Controller] = [*(entry.service for entry in self.services), *self.controllers]
        return Counter(
            pod.node_name
            for _, pod in self.cluster.assigned_pods.values()
            if pod.namespace == self.pod.namespace and any(owner.selects(pod.scheduling.labels) for owner in owners)
        )

    def score_facts(self, node_infos: Sequence[NodeInfo], score: Callable[[ScoreInputs], int]) -> list[int]:
        """Scores the facts about the pod's Longhorn volumes on each node, in order. 0 where the volumes do not fit or
        were not evaluated. Equal facts are scored once. They are kept for the next rule that asks about the same nodes.
        """
        facts = self._latest_facts
        if facts is None or facts.node_infos is not node_infos:
            facts = _FactsOfNodes.of(node_infos, self.longhorn_facts)
            object.__setattr__(self, "_latest_facts", facts)
        scores = [0 if inputs is None else score(inputs) for inputs in facts.distinct]
        return list(map(scores.__getitem__, facts.indexes))
