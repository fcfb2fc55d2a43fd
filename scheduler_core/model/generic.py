"""Nodes, services and controllers with only the fields that predicates and priorities read. CPU is in millicores, memory
in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from scheduler_core.model.constraints import Labels, LabelSelector, NodeSelectorTerm, Taint, read_labels
from scheduler_core.model.kube import namespace_or_default

PodKey = tuple[str, str]
ControllerKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """A Kubernetes node."""

    name: Annotated[str, "metadata.name"]
    labels: Annotated[Mapping[str, str], "metadata.labels"] = field(default_factory=dict[str, str])
    cpu: Annotated[int, "status.capacity"] = 0  # the capacity, not what is allocatable, as in the classic scheduler
    memory: Annotated[int, "status.capacity"] = 0  # the capacity, not what is allocatable, as in the classic scheduler
    pods: Annotated[int, "status.capacity"] = 0  # the capacity, not what is allocatable, as in the classic scheduler
    # Whether the condition Ready is True; false without this condition.
    ready: Annotated[bool, "status.conditions"] = True
    unschedulable: Annotated[bool, "spec.unschedulable"] = False
    taints: Annotated[tuple[Taint, ...], "spec.taints"] = ()
    # What pods may request of each resource; the capacity if the node does not say.
    allocatable: Annotated[Mapping[str, int], "status.capacity", "status.allocatable"] = field(
        default_factory=dict[str, int]
    )


@dataclass(frozen=True, slots=True)
class Service:
    """A service; without a selector it selects nothing."""

    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    selector: Annotated[Labels, "spec.selector", read_labels] = frozenset()

    def selects(self, labels: Labels) -> bool:
        return bool(self.selector) and self.selector <= labels


@dataclass(frozen=True, slots=True)
class Controller:
    """A ReplicationController, ReplicaSet or StatefulSet with the pods that it selects."""

    kind: str  # the kind's name
    namespace: str
    name: str
    selector: LabelSelector | None = None  # None, or without any part: it selects nothing

    @property
    def key(self) -> ControllerKey:
        return self.kind, self.namespace, self.name

    def selects(self, labels: Labels) -> bool:
        return self.selector is not None and not self.selector.matches_everything and self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with its labels."""

    name: Annotated[str, "metadata.name"]
    labels: Annotated[Labels, "metadata.labels", read_labels] = frozenset()


@dataclass(frozen=True, slots=True)
class VolumeNodeAffinity:
    """The nodes that a PersistentVolume can be used on."""

    volume: Annotated[str, "metadata.name"]
    # One of them must match; None for every node.
    terms: Annotated[tuple[NodeSelectorTerm, ...] | None, "spec.nodeAffinity.required"] = None
