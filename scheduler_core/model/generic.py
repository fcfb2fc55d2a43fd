"""Nodes, pods and services with only the fields that predicates and priorities read.

CPU is in millicores, memory in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

Labels = frozenset[tuple[str, str]]
PodKey = tuple[str, str]


class Cloud(Enum):
    """The kinds of cloud disks that the classic scheduler distinguishes."""

    GCE = "gcePersistentDisk"
    EBS = "awsElasticBlockStore"


@dataclass(frozen=True, slots=True)
class CloudDisk:
    """A cloud disk that a pod mounts.

    Its partition is not read.
    """

    cloud: Cloud
    name: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A Kubernetes node.

    Attributes:
        cpu, memory, pods: the capacity, not what is allocatable, as in the classic scheduler
        ready: whether the condition Ready is True; false without this condition
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
    """A pod with the requests of its containers.

    Attributes:
        cpu, memory: the requests; an unset one counts as 0
        nonzero_cpu, nonzero_memory: the same, but an unset one counts as 100m and 200Mi per container, as in the priorities
        ports: its host ports
        finished: whether its phase is Succeeded or Failed
    """

    namespace: str
    name: str
    labels: Labels = frozenset()
    node_name: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    cpu: int = 0
    memory: int = 0
    nonzero_cpu: int = 0
    nonzero_memory: int = 0
    ports: frozenset[int] = frozenset()
    disks: tuple[CloudDisk, ...] = ()
    finished: bool = False
    uid: str = ""

    @property
    def key(self) -> PodKey:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Service:
    """A service; without a selector it selects nothing."""

    namespace: str
    name: str
    selector: Labels = frozenset()

    def selects(self, labels: Labels) -> bool:
        """Whether it selects pods of its namespace with these labels."""
        return bool(self.selector) and self.selector <= labels
