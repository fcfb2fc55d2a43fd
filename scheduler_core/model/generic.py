"""Nodes, pods and services with only the fields that predicates and priorities read. CPU is in millicores, memory in
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from scheduler_core.model.constraints import (
    NO_CONSTRAINTS,
    Labels,
    LabelSelector,
    NodeSelectorTerm,
    PodConstraints,
    Taint,
)
from scheduler_core.model.kube import namespace_or_default

PodKey = tuple[str, str]
ControllerKey = tuple[str, str, str]


class Cloud(Enum):
    """The kinds of cloud disks that the classic scheduler distinguishes."""

    GCE = "gcePersistentDisk"
    EBS = "awsElasticBlockStore"


@dataclass(frozen=True, slots=True)
class CloudDisk:
    """A cloud disk that a pod mounts, without its partition."""

    cloud: Cloud
    name: str
    read_only: bool = False


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


def read_labels(labels: dict[str, str] | None) -> Labels:
    return frozenset((labels or {}).items())


def _is_finished(phase: str | None) -> bool:
    return phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with the requests of its containers."""

    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    labels: Annotated[Labels, "metadata.labels", read_labels] = frozenset()
    node_name: Annotated[str, "spec.nodeName"] = ""
    node_selector: Annotated[Mapping[str, str], "spec.nodeSelector"] = field(default_factory=dict[str, str])
    cpu: Annotated[int, "spec.containers"] = 0  # the requests; an unset one counts as 0
    memory: Annotated[int, "spec.containers"] = 0  # the requests; an unset one counts as 0
    # `nonzero_cpu` and `nonzero_memory`: the same, but an unset one counts as 100m and 200Mi per container, as in the
    # priorities.
    nonzero_cpu: Annotated[int, "spec.containers"] = 0
    nonzero_memory: Annotated[int, "spec.containers"] = 0
    ports: Annotated[frozenset[int], "spec.containers", "spec.hostNetwork"] = frozenset()
    disks: Annotated[tuple[CloudDisk, ...], "spec.volumes"] = ()
    finished: Annotated[bool, "status.phase", _is_finished] = False  # whether its phase is Succeeded or Failed
    uid: Annotated[str, "metadata.uid"] = ""
    # What only rules that are newer than Kubernetes 1.1 read.
    constraints: Annotated[PodConstraints, ""] = NO_CONSTRAINTS

    @property
    def key(self) -> PodKey:
        return self.namespace, self.name


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
class OwnedPod:
    """A pod with what predictions read of it in addition."""

    pod: Annotated[Pod, ""]
    # The kind of its controller, "" without one.
    owner: Annotated[str, "metadata.ownerReferences"] = ""
    # Whether it is ready, as is a running pod of a file that names no conditions.
    ready: Annotated[bool, "status.phase", "status.conditions"] = True


@dataclass(frozen=True, slots=True)
class VolumeNodeAffinity:
    """The nodes that a PersistentVolume can be used on."""

    volume: Annotated[str, "metadata.name"]
    # One of them must match; None for every node.
    terms: Annotated[tuple[NodeSelectorTerm, ...] | None, "spec.nodeAffinity.required"] = None
