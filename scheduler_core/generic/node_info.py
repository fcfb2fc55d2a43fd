"""A node with the sums over its pods, updated pod by pod; the nodes of the latest state in a plain dictionary; and what local rules
said about each node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final, TypeVar

from rpds import HashTrieMap

from scheduler_core.caches import ChangeLog, NodeResults
from scheduler_core.model.constraints import Amounts, Cloud, HostPort, PodScheduling
from scheduler_core.model.generic import Node, PodKey
from scheduler_core.model.kube import Pod

DiskKey = tuple[Cloud, str]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node and what its pods request and use."""

    node: Node
    pods: tuple[Pod, ...] = ()  # all pods assigned to the node, of all namespaces, finished ones included
    pod_count: int = 0  # the number of unfinished pods; the sums below are over these
    requested_cpu: int = 0  # sums of `PodScheduling.cpu` and `PodScheduling.memory`
    requested_memory: int = 0  # sums of `PodScheduling.cpu` and `PodScheduling.memory`
    nonzero_requested_cpu: int = 0  # sums of `PodScheduling.nonzero_cpu` and `nonzero_memory`
    nonzero_requested_memory: int = 0  # sums of `PodScheduling.nonzero_cpu` and `nonzero_memory`
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
        counted = [pod.scheduling for pod in unfinished]
        used_ports: set[int] = set()
        disks: dict[DiskKey, bool] = {}
        requested: dict[str, int] = {}
        host_ports: set[HostPort] = set()
        for scheduling in counted:
            used_ports |= scheduling.ports
            _mount_disks(scheduling, disks)
            _add_requests(scheduling.constraints.requests, requested)
            host_ports |= scheduling.constraints.host_ports
        return cls(
            node=node,
            pods=pods,
            pod_count=len(unfinished),
            requested_cpu=sum(scheduling.cpu for scheduling in counted),
            requested_memory=sum(scheduling.memory for scheduling in counted),
            nonzero_requested_cpu=sum(scheduling.nonzero_cpu for scheduling in counted),
            nonzero_requested_memory=sum(scheduling.nonzero_memory for scheduling in counted),
            used_ports=frozenset(used_ports),
            disks=disks,
            requested=requested,
            host_ports=frozenset(host_ports),
            anti_affinity_pods=tuple(pod for pod in unfinished if pod.scheduling.constraints.pod_anti_affinity),
        )

    def add_pod(self, pod: Pod) -> NodeInfo:
        """Returns the node with one more pod. The sums are equal to those over all pods."""
        if pod.finished:
            return replace(self, pods=(*self.pods, pod))
        scheduling = pod.scheduling
        disks = self.disks
        if scheduling.disks:
            _mount_disks(scheduling, disks := {**self.disks})
        constraints = scheduling.constraints
        requested = {**self.requested}
        _add_requests(constraints.requests, requested)
        return NodeInfo(
            node=self.node,
            pods=(*self.pods, pod),
            pod_count=self.pod_count + 1,
            requested_cpu=self.requested_cpu + scheduling.cpu,
            requested_memory=self.requested_memory + scheduling.memory,
            nonzero_requested_cpu=self.nonzero_requested_cpu + scheduling.nonzero_cpu,
            nonzero_requested_memory=self.nonzero_requested_memory + scheduling.nonzero_memory,
            used_ports=self.used_ports | scheduling.ports if scheduling.ports else self.used_ports,
            disks=disks,
            requested=requested,
            host_ports=self.host_ports | constraints.host_ports if constraints.host_ports else self.host_ports,
            anti_affinity_pods=(
                (*self.anti_affinity_pods, pod) if constraints.pod_anti_affinity else self.anti_affinity_pods
            ),
        )

    def remove_pod(self, key: PodKey) -> NodeInfo:
        return NodeInfo.of(self.node, (pod for pod in self.pods if pod.namespaced_name != key))


def _mount_disks(scheduling: PodScheduling, disks: dict[DiskKey, bool]) -> None:
    for disk in scheduling.disks:
        key = (disk.cloud, disk.name)
        disks[key] = disks.get(key, True) and disk.read_only


def _add_requests(requests: Amounts, requested: dict[str, int]) -> None:
    for name, amount in requests:
        requested[name] = requested.get(name, 0) + amount


class NodeIndex:
    """The nodes of the latest state that was read, by name in a plain dictionary."""

    # A persistent map shares what states have in common, but reading it costs ten times as much, and a decision reads every
    # node. So only the nodes that changed since are read from the map.
    def __init__(self) -> None:
        self._as_of: ChangeLog | None = None
        self._node_infos: dict[str, NodeInfo] = {}

    def read(
        self, nodes: HashTrieMap[str, NodeInfo], changes: ChangeLog, names: Sequence[str]
    ) -> list[NodeInfo | None]:
        """Returns the nodes of these names as of a change, None where none exists."""
        changed = None if self._as_of is None else changes.since(self._as_of)
        self._as_of = changes
        if changed is None:
            self._node_infos = dict(nodes.items())
        for name in changed or ():
            node_info = nodes.get(name)
            if node_info is None:
                self._node_infos.pop(name, None)
            else:
                self._node_infos[name] = node_info
        return list(map(self._node_infos.get, names))


_NOT_READ: Final = frozenset({"labels", "ready"})
_name = attrgetter("node.name")
_fields_read = attrgetter(*(entry.name for entry in fields(PodScheduling) if entry.name not in _NOT_READ))

_Result = TypeVar("_Result")


class RuleResults:
    """Results of local rules by rules, pod and node; shared by all states of one cluster. A burst of equal pods then costs
    a look-up per node, and one evaluation of each node that a pod was bound to. Correctness does not depend on the cache.
    """

    def __init__(self) -> None:
        self._results: NodeResults[tuple[NodeInfo, Any]] = NodeResults()

    def get(
        self,
        rules: Hashable,
        pod: Pod,
        node_infos: Sequence[NodeInfo],
        evaluate: Callable[[Sequence[NodeInfo]], Iterable[_Result]],
    ) -> list[_Result]:
        """Returns the result of each node, in order.

        Args:
            rules: identifies the rules and their arguments
            pod: the pod that the rules are evaluated for
            node_infos: the nodes
            evaluate: returns the results of nodes that are not cached, in order
        """
        key = (rules, _key(pod))
        cached = self._results.at(key)
        names = list(map(_name, node_infos))
        entries = map(cached.get, names)
        missing = [
            node_info
            for node_info, entry in zip(node_infos, entries, strict=True)
            if entry is None or entry[0] is not node_info
        ]
        if missing:
            cached |= zip(map(_name, missing), zip(missing, evaluate(missing), strict=True), strict=True)
            self._results.store(key, cached)
        return [cached[name][1] for name in names]


def _key(pod: Pod) -> Hashable:
    return pod.node_name, _fields_read(pod.scheduling)
