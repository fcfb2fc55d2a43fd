"""Nodes, services and controllers with only the fields that predicates and priorities read, and PodDisruptionBudgets, which say
how many pods must stay healthy during evictions.
"""

import re
from collections.abc import Mapping
from typing import Annotated

from scheduler_core import errors
from scheduler_core.model.constraints import Labels, LabelSelector, NodeSelectorTerm, Taint, read_labels
from scheduler_core.model.kube import equals, namespace_or_default
from scheduler_core.structs import Struct

PodKey = tuple[str, str]
ControllerKey = tuple[str, str, str]


class Node(Struct, frozen=True):
    """A Kubernetes node."""

    name: Annotated[str, "metadata.name"]
    labels: Annotated[Mapping[str, str], "metadata.labels"] = {}
    cpu: Annotated[int, "status.capacity"] = 0  # the capacity, not what is allocatable, as in the classic scheduler
    memory: Annotated[int, "status.capacity"] = 0  # the capacity, not what is allocatable, as in the classic scheduler
    pods: Annotated[int, "status.capacity"] = 0  # the capacity, not what is allocatable, as in the classic scheduler
    # Whether the condition Ready is True; false without this condition.
    ready: Annotated[bool, "status.conditions"] = True
    unschedulable: Annotated[bool, "spec.unschedulable"] = False
    taints: Annotated[tuple[Taint, ...], "spec.taints"] = ()
    # What pods may request of each resource; the capacity if the node does not say.
    allocatable: Annotated[Mapping[str, int], "status.capacity", "status.allocatable"] = {}


class Service(Struct, frozen=True):
    """A service; without a selector it selects nothing."""

    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    selector: Annotated[Labels, "spec.selector", read_labels] = frozenset()

    def selects(self, labels: Labels) -> bool:
        return bool(self.selector) and self.selector <= labels


class Controller(Struct, frozen=True):
    """A ReplicationController, ReplicaSet or StatefulSet with the pods that it selects."""

    kind: Annotated[str, "metadata"]  # the kind's name, which objects in a list do not have
    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    selector: Annotated[LabelSelector | None, "spec.selector"] = None  # None, or without any part: it selects nothing

    @property
    def key(self) -> ControllerKey:
        return self.kind, self.namespace, self.name

    def selects(self, labels: Labels) -> bool:
        return self.selector is not None and not self.selector.matches_everything and self.selector.matches(labels)


class Namespace(Struct, frozen=True):
    """A namespace with its labels."""

    name: Annotated[str, "metadata.name"]
    labels: Annotated[Labels, "metadata.labels", read_labels] = frozenset()


class VolumeNodeAffinity(Struct, frozen=True):
    """The nodes that a PersistentVolume can be used on."""

    volume: Annotated[str, "metadata.name"]
    # One of them must match; None for every node.
    terms: Annotated[tuple[NodeSelectorTerm, ...] | None, "spec.nodeAffinity.required"] = None


_PERCENTAGE = re.compile(r"([0-9]{1,4})%", re.ASCII)


class PodCount(Struct, frozen=True):
    """A number of pods, or a percentage of those that are expected."""

    value: int
    percent: bool = False

    def of(self, expected: int) -> int:
        """Returns the number of pods, rounded up (intstr.GetScaledValueFromIntOrPercent)."""
        return -(-self.value * expected // 100) if self.percent else self.value


def _read_pod_count(value: int | str | None) -> PodCount | None:
    if value is None:
        return None
    if isinstance(value, int) and value >= 0:
        return PodCount(value)
    percentage = _PERCENTAGE.fullmatch(value) if isinstance(value, str) else None
    if percentage is None:
        raise errors.QuantityError(f"{value!r} is neither a number of pods nor a percentage")
    return PodCount(int(percentage[1]), percent=True)


def is_current(generation: int | None, observed_generation: int | None) -> bool:
    return (observed_generation or 0) >= (generation or 0)


def _if_current(generation: int | None, observed_generation: int | None, expected_pods: int | None) -> int | None:
    return expected_pods if is_current(generation, observed_generation) else None


class DisruptionBudget(Struct, frozen=True):
    """A PodDisruptionBudget."""

    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    # Which pods of its namespace it is about; None for none.
    selector: Annotated[LabelSelector | None, "spec.selector"] = None
    # `min_available` and `max_unavailable`: of these at most one is set.
    min_available: Annotated[PodCount | None, "spec.minAvailable", _read_pod_count] = None
    max_unavailable: Annotated[PodCount | None, "spec.maxUnavailable", _read_pod_count] = None
    # How many pods their controllers should have, as the disruption controller counted; None if it has not counted
    # since the budget changed.
    expected_pods: Annotated[
        int | None, "metadata.generation", "status.observedGeneration", "status.expectedPods", _if_current
    ] = None
    # Why the disruption controller cannot count, "" if it can.
    sync_failure: Annotated[str, "metadata.generation", "status.observedGeneration", "status.conditions"] = ""
    # Whether pods that are not ready may always be evicted (unhealthyPodEvictionPolicy AlwaysAllow).
    evicts_unhealthy: Annotated[bool, "spec.unhealthyPodEvictionPolicy", equals("AlwaysAllow")] = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def counts_controllers(self) -> bool:
        """Whether the expected pods are those that controllers should have, and not the pods that exist."""
        return self.max_unavailable is not None or (self.min_available is not None and self.min_available.percent)

    def desired_healthy(self, expected: int) -> int:
        """Returns how many of the expected pods must stay healthy (getExpectedPodCount)."""
        if self.max_unavailable is not None:
            return max(0, expected - self.max_unavailable.of(expected))
        return self.min_available.of(expected) if self.min_available is not None else 0
