"""Nodes, pods and services, cut down to what predicates and priorities read. CPU is in millicores, memory in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

Labels = frozenset[tuple[str, str]]
PodKey = tuple[str, str]


class Cloud(Enum):
    """The two kinds of cloud disks that the classic scheduler tells apart."""

    GCE = "gcePersistentDisk"
    EBS = "awsElasticBlockStore"


@dataclass(frozen=True, slots=True)
class CloudDisk:
    """A cloud disk that a pod mounts; its partition plays no part."""

    cloud: Cloud
    name: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A Kubernetes node with its capacity (not what is allocatable: that is what the classic scheduler read).

    `ready` is whether the condition Ready is True; a node without this condition is not.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    cpu: int = 0
    memory: int = 0
    pods: int = 0
    ready: bool = True
    unschedulable: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod: `cpu` and `memory` are what its containers request, unset ones counting as nothing.

    `assumed_cpu` and `assumed_memory` count an unset one as 100m and 200Mi per container, as the priorities do. `finished` is
    whether its phase is Succeeded or Failed; `ports` are its host ports.
    """

    namespace: str
    name: str
    labels: Labels = frozenset()
    node_name: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    cpu: int = 0
    memory: int = 0
    assumed_cpu: int = 0
    assumed_memory: int = 0
    ports: frozenset[int] = frozenset()
    disks: tuple[CloudDisk, ...] = ()
    finished: bool = False
    uid: str = ""

    @property
    def key(self) -> PodKey:
        """Who it is."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Service:
    """A service; one without selector selects nothing."""

    namespace: str
    name: str
    selector: Labels = frozenset()

    def selects(self, labels: Labels) -> bool:
        """Whether pods with these labels, in its namespace, belong to it."""
        return bool(self.selector) and self.selector <= labels
