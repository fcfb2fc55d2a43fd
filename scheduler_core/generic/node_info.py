"""A node and what is taken of it, kept current pod by pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler_core.model.generic import Cloud, Node, Pod, PodKey

Disk = tuple[Cloud, str]


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node and what its unfinished pods, of all namespaces, take of it.

    Attributes:
        pods: all that are assigned to it, finished ones included
        count: how many are unfinished; the sums below are over these
        disks: the cloud disks they mount, and whether all mount it read-only
    """

    node: Node
    pods: tuple[Pod, ...] = ()
    count: int = 0
    cpu: int = 0
    memory: int = 0
    assumed_cpu: int = 0
    assumed_memory: int = 0
    ports: frozenset[int] = frozenset()
    disks: Mapping[Disk, bool] = field(default_factory=dict[Disk, bool])

    @classmethod
    def of(cls, node: Node, pods: Iterable[Pod]) -> NodeState:
        """Counts everything anew."""
        pods = tuple(pods)
        running = [pod for pod in pods if not pod.finished]
        ports: set[int] = set()
        disks: dict[Disk, bool] = {}
        for pod in running:
            ports |= pod.ports
            _mount(pod, disks)
        return cls(
            node=node,
            pods=pods,
            count=len(running),
            cpu=sum(pod.cpu for pod in running),
            memory=sum(pod.memory for pod in running),
            assumed_cpu=sum(pod.assumed_cpu for pod in running),
            assumed_memory=sum(pod.assumed_memory for pod in running),
            ports=frozenset(ports),
            disks=disks,
        )

    def added(self, pod: Pod) -> NodeState:
        """With one pod more; equal to counting anew."""
        if pod.finished:
            return replace(self, pods=(*self.pods, pod))
        disks = self.disks
        if pod.disks:
            _mount(pod, disks := {**self.disks})
        return NodeState(
            node=self.node,
            pods=(*self.pods, pod),
            count=self.count + 1,
            cpu=self.cpu + pod.cpu,
            memory=self.memory + pod.memory,
            assumed_cpu=self.assumed_cpu + pod.assumed_cpu,
            assumed_memory=self.assumed_memory + pod.assumed_memory,
            ports=self.ports | pod.ports if pod.ports else self.ports,
            disks=disks,
        )

    def removed(self, key: PodKey) -> NodeState:
        """Without a pod."""
        return NodeState.of(self.node, (pod for pod in self.pods if pod.key != key))


def _mount(pod: Pod, disks: dict[Disk, bool]) -> None:
    for disk in pod.disks:
        key = (disk.cloud, disk.name)
        disks[key] = disks.get(key, True) and disk.read_only
