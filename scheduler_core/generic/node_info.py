"""A node with the sums over its pods, updated pod by pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler_core.model.constraints import Amounts, HostPort
from scheduler_core.model.generic import Cloud, Node, Pod, PodKey

DiskKey = tuple[Cloud, str]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node and what its pods request and use."""

    node: Node
    pods: tuple[Pod, ...] = ()  # all pods assigned to the node, of all namespaces, finished ones included
    pod_count: int = 0  # the number of unfinished pods; the sums below are over these
    requested_cpu: int = 0  # sums of `Pod.cpu` and `Pod.memory`
    requested_memory: int = 0  # sums of `Pod.cpu` and `Pod.memory`
    nonzero_requested_cpu: int = 0  # sums of `Pod.nonzero_cpu` and `Pod.nonzero_memory`
    nonzero_requested_memory: int = 0  # sums of `Pod.nonzero_cpu` and `Pod.nonzero_memory`
    used_ports: frozenset[int] = frozenset()  # their host ports
    # The cloud disks they mount, and whether all of them mount it read-only.
    disks: Mapping[DiskKey, bool] = field(default_factory=dict[DiskKey, bool])
    # Sums of `PodConstraints.requests` by resource.
    requested: Mapping[str, int] = field(default_factory=dict[str, int])
    host_ports: frozenset[HostPort] = frozenset()  # their host ports with protocol and address
    anti_affinity_pods: tuple[Pod, ...] = ()  # those with a required anti-affinity

    @property
    def is_constrained(self) -> bool:
        """Whether the node has taints, or pods with a required anti-affinity."""
        return bool(self.node.taints or self.anti_affinity_pods)

    @classmethod
    def of(cls, node: Node, pods: Iterable[Pod]) -> NodeInfo:
        """Sums up all pods."""
        pods = tuple(pods)
        unfinished = [pod for pod in pods if not pod.finished]
        used_ports: set[int] = set()
        disks: dict[DiskKey, bool] = {}
        requested: dict[str, int] = {}
        host_ports: set[HostPort] = set()
        for pod in unfinished:
            used_ports |= pod.ports
            _mount_disks(pod, disks)
            _add_requests(pod.constraints.requests, requested)
            host_ports |= pod.constraints.host_ports
        return cls(
            node=node,
            pods=pods,
            pod_count=len(unfinished),
            requested_cpu=sum(pod.cpu for pod in unfinished),
            requested_memory=sum(pod.memory for pod in unfinished),
            nonzero_requested_cpu=sum(pod.nonzero_cpu for pod in unfinished),
            nonzero_requested_memory=sum(pod.nonzero_memory for pod in unfinished),
            used_ports=frozenset(used_ports),
            disks=disks,
            requested=requested,
            host_ports=frozenset(host_ports),
            anti_affinity_pods=tuple(pod for pod in unfinished if pod.constraints.pod_anti_affinity),
        )

    def add_pod(self, pod: Pod) -> NodeInfo:
        """Returns the node with one more pod. The sums are equal to those over all pods."""
        if pod.finished:
            return replace(self, pods=(*self.pods, pod))
        disks = self.disks
        if pod.disks:
            _mount_disks(pod, disks := {**self.disks})
        constraints = pod.constraints
        requested = {**self.requested}
        _add_requests(constraints.requests, requested)
        return NodeInfo(
            node=self.node,
            pods=(*self.pods, pod),
            pod_count=self.pod_count + 1,
            requested_cpu=self.requested_cpu + pod.cpu,
            requested_memory=self.requested_memory + pod.memory,
            nonzero_requested_cpu=self.nonzero_requested_cpu + pod.nonzero_cpu,
            nonzero_requested_memory=self.nonzero_requested_memory + pod.nonzero_memory,
            used_ports=self.used_ports | pod.ports if pod.ports else self.used_ports,
            disks=disks,
            requested=requested,
            host_ports=self.host_ports | constraints.host_ports if constraints.host_ports else self.host_ports,
            anti_affinity_pods=(
                (*self.anti_affinity_pods, pod) if constraints.pod_anti_affinity else self.anti_affinity_pods
            ),
        )

    def remove_pod(self, key: PodKey) -> NodeInfo:
        return NodeInfo.of(self.node, (pod for pod in self.pods if pod.key != key))


def _mount_disks(pod: Pod, disks: dict[DiskKey, bool]) -> None:
    for disk in pod.disks:
        key = (disk.cloud, disk.name)
        disks[key] = disks.get(key, True) and disk.read_only


def _add_requests(requests: Amounts, requested: dict[str, int]) -> None:
    for name, amount in requests:
        requested[name] = requested.get(name, 0) + amount
