"""Immutable state of the cluster: nodes with their pods, and services with the pods they select.

"First" (of several services, or of several pods of a service) is the one that was listed or added first. The real
scheduler takes them in the order in which its cache happens to list them. A replaced pod or service keeps its place in
the order.

A `NodeInfo` is a node with the sums over its pods; `RuleResults` is what local rules said about each node.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from rpds import HashTrieMap

from scheduler_core.caches import ChangeLog, NodeResults
from scheduler_core.model.constraints import Cloud, HostPort, Labels, PodScheduling
from scheduler_core.model.generic import Controller, ControllerKey, Namespace, Node, PodKey, Service
from scheduler_core.model.kube import Pod
from scheduler_core.structs import Struct, replace

DiskKey = tuple[Cloud, str]


class NodeInfo(Struct, frozen=True):
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
    disks: Mapping[DiskKey, bool] = {}
    # Sums of `PodConstraints.requests` by resource.
    requested: Mapping[str, int] = {}
    host_ports: frozenset[HostPort] = frozenset()  # their host ports with protocol and address
    anti_affinity_pods: tuple[Pod, ...] = ()  # those with a required anti-affinity

    @property
    def is_constrained(self) -> bool:
        return bool(self.node.taints or self.anti_affinity_pods)

    @classmethod
    def of(cls, node: Node, pods: Iterable[Pod]) -> "NodeInfo":
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
            for disk in scheduling.disks:
                key = (disk.cloud, disk.name)
                disks[key] = disks.get(key, True) and disk.read_only
            for name, amount in scheduling.constraints.requests:
                requested[name] = requested.get(name, 0) + amount
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


class NodeIndex:
    """The nodes of the latest state that was read, by name in a plain dictionary."""

    # A persistent map shares what states have in common, but reading it costs ten times as much, and a decision reads every
    # node. So only the nodes that changed since are read from the map.
    def __init__(self) -> None:
        self._as_of: ChangeLog | None = None
        self._node_infos: dict[str, NodeInfo] = {}

    def read(
        self, nodes: "HashTrieMap[str, NodeInfo]", changes: ChangeLog, names: Sequence[str]
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


_NOT_READ = frozenset({"labels", "ready"})
_name = attrgetter("node.name")
_fields_read = attrgetter(*(name for name in PodScheduling.__struct_fields__ if name not in _NOT_READ))

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
        """Returns the result of each node, in order. `rules` identifies the rules and their arguments; `evaluate` returns
        the results of nodes that are not cached, in order.
        """
        key = (rules, pod.node_name, _fields_read(pod.scheduling))
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


SequenceNumber = int
_NumberedPods: TypeAlias = "HashTrieMap[SequenceNumber, Pod]"


class ServicePods(Struct, frozen=True):
    """A service and the assigned pods it selects."""

    service: Service
    pods: _NumberedPods = HashTrieMap()  # by sequence number, finished ones included


@dataclass(frozen=True, slots=True)
class GenericClusterState:
    """The cluster as the generic scheduler reads it. `of` makes the first state; every other method returns a changed
    one.
    """

    nodes: "HashTrieMap[str, NodeInfo]" = field(default_factory=HashTrieMap)  # the nodes that exist, by name
    node_names: tuple[str, ...] = ()  # their names in order
    # Pods assigned to nodes that do not exist, by the node's name.
    orphaned_pods: "HashTrieMap[str, tuple[Pod, ...]]" = field(default_factory=HashTrieMap)
    # Every pod with a node, with its sequence number: the lowest one is the first pod.
    assigned_pods: "HashTrieMap[PodKey, tuple[SequenceNumber, Pod]]" = field(default_factory=HashTrieMap)
    # By namespace, in order, with the pods they select.
    services: "HashTrieMap[str, tuple[ServicePods, ...]]" = field(default_factory=HashTrieMap)
    next_number: SequenceNumber = 0  # the sequence number of the next new pod
    # ReplicationControllers, ReplicaSets and StatefulSets, by namespace; empty unless a rule reads them.
    controllers: "HashTrieMap[str, HashTrieMap[ControllerKey, Controller]]" = field(default_factory=HashTrieMap)
    # The labels of each namespace; empty unless a rule reads them.
    namespaces: "HashTrieMap[str, Labels]" = field(default_factory=HashTrieMap)
    # The nodes with taints, or with pods that have a required anti-affinity; mostly few.
    constrained_nodes: frozenset[str] = frozenset()
    # The names of the nodes that changed.
    changes: ChangeLog = field(default_factory=ChangeLog, compare=False, repr=False)
    # The nodes by name for fast reading; shared by all states that were made from one.
    index: NodeIndex = field(default_factory=NodeIndex, compare=False, repr=False)
    # What local rules said about nodes; shared in the same way.
    results: RuleResults = field(default_factory=RuleResults, compare=False, repr=False)

    @classmethod
    def of(cls, nodes: Iterable[Node], pods: Iterable[Pod], services: Iterable[Service]) -> "GenericClusterState":
        """The state of a whole cluster. Pods without a node are left out."""
        assigned = {pod.namespaced_name: pod for pod in pods if pod.node_name}
        pods_by_node: dict[str, list[Pod]] = {}
        for pod in assigned.values():
            pods_by_node.setdefault(pod.node_name, []).append(pod)
        node_infos = {node.name: NodeInfo.of(node, pods_by_node.pop(node.name, ())) for node in nodes}
        numbered = {key: (number, pod) for number, (key, pod) in enumerate(assigned.items())}
        service_by_key = {(service.namespace, service.name): service for service in services}
        return cls(
            nodes=HashTrieMap(node_infos),
            node_names=tuple(sorted(node_infos)),
            orphaned_pods=HashTrieMap({name: tuple(orphans) for name, orphans in pods_by_node.items()}),
            assigned_pods=HashTrieMap(numbered),
            services=HashTrieMap(_select_pods(service_by_key, numbered)),
            next_number=len(numbered),
            constrained_nodes=frozenset(name for name, node_info in node_infos.items() if node_info.is_constrained),
        )

    def node_infos(self, names: Sequence[str] | None = None) -> list[NodeInfo | None]:
        """Returns the nodes of these names, None where none exists; without `names` all nodes, in order of names."""
        return self.index.read(self.nodes, self.changes, self.node_names if names is None else names)

    def with_node(self, node: Node) -> "GenericClusterState":
        """Adds or replaces a node."""
        node_info = self.nodes.get(node.name)
        if node_info is not None:
            return _with_node_info(self, replace(node_info, node=node))
        state = replace(
            self,
            node_names=tuple(sorted((*self.node_names, node.name))),
            orphaned_pods=self.orphaned_pods.discard(node.name),
        )
        return _with_node_info(state, NodeInfo.of(node, self.orphaned_pods.get(node.name, ())))

    def without_node(self, name: str) -> "GenericClusterState":
        """Removes a node; its pods stay as orphaned pods."""
        node_info = self.nodes.get(name)
        if node_info is None:
            return self
        return replace(
            self,
            nodes=self.nodes.remove(name),
            changes=self.changes.append(frozenset({name})),
            node_names=tuple(node_name for node_name in self.node_names if node_name != name),
            orphaned_pods=(self.orphaned_pods.insert(name, node_info.pods) if node_info.pods else self.orphaned_pods),
            constrained_nodes=self.constrained_nodes - {name},
        )

    def with_pod(self, pod: Pod) -> "GenericClusterState":
        """Adds or replaces a pod. A pod without a node is left out."""
        number, previous = self.assigned_pods.get(pod.namespaced_name, (self.next_number, None))
        if previous == pod:
            return self
        state = self if previous is None else self.without_pod(pod.namespaced_name)
        if not pod.node_name:
            return state
        state = replace(
            _change_pods(state, pod.node_name, lambda pods: (*pods, pod)),
            assigned_pods=state.assigned_pods.insert(pod.namespaced_name, (number, pod)),
            next_number=max(state.next_number, number + 1),
        )
        return _update_services(state, pod, lambda pods: pods.insert(number, pod))

    def without_pod(self, key: PodKey) -> "GenericClusterState":
        """Removes a pod."""
        if key not in self.assigned_pods:
            return self
        number, pod = self.assigned_pods[key]
        state = _change_pods(
            self, pod.node_name, lambda pods: tuple(each for each in pods if each.namespaced_name != key)
        )
        state = replace(state, assigned_pods=self.assigned_pods.remove(key))
        return _update_services(state, pod, lambda pods: pods.remove(number))

    def with_binding(self, pod: Pod, node: str) -> "GenericClusterState":
        return self.with_pod(replace(pod, node_name=node))

    def with_controller(self, controller: Controller) -> "GenericClusterState":
        siblings = self.controllers.get(controller.namespace, HashTrieMap())
        changed = siblings.insert(controller.key, controller)
        return replace(self, controllers=self.controllers.insert(controller.namespace, changed))

    def without_controller(self, kind: str, namespace: str, name: str) -> "GenericClusterState":
        siblings = self.controllers.get(namespace, HashTrieMap()).discard((kind, namespace, name))
        return replace(self, controllers=self.controllers.insert(namespace, siblings))

    def with_namespace(self, namespace: Namespace) -> "GenericClusterState":
        return replace(self, namespaces=self.namespaces.insert(namespace.name, namespace.labels))

    def without_namespace(self, name: str) -> "GenericClusterState":
        return replace(self, namespaces=self.namespaces.discard(name))

    def with_service(self, service: Service) -> "GenericClusterState":
        """Adds or replaces a service, which is compared with every assigned pod."""
        selected = {
            number: pod
            for number, pod in self.assigned_pods.values()
            if pod.namespace == service.namespace and service.selects(pod.scheduling.labels)
        }
        by_name = {entry.service.name: entry for entry in self.services.get(service.namespace, ())}
        # Assignment to a name that is there already keeps its place in the order.
        by_name[service.name] = ServicePods(service, HashTrieMap(selected))
        return replace(self, services=self.services.insert(service.namespace, tuple(by_name.values())))

    def without_service(self, namespace: str, name: str) -> "GenericClusterState":
        remaining = tuple(entry for entry in self.services.get(namespace, ()) if entry.service.name != name)
        services = self.services.insert(namespace, remaining) if remaining else self.services.discard(namespace)
        return replace(self, services=services)


def _with_node_info(state: GenericClusterState, node_info: NodeInfo) -> GenericClusterState:
    name = node_info.node.name
    constrained_nodes = state.constrained_nodes
    if node_info.is_constrained != (name in constrained_nodes):
        constrained_nodes = constrained_nodes ^ {name}
    return replace(
        state,
        nodes=state.nodes.insert(name, node_info),
        changes=state.changes.append(frozenset({name})),
        constrained_nodes=constrained_nodes,
    )


def _change_pods(
    state: GenericClusterState, name: str, change: Callable[[tuple[Pod, ...]], tuple[Pod, ...]]
) -> GenericClusterState:
    node_info = state.nodes.get(name)
    if node_info is not None:
        return _with_node_info(state, NodeInfo.of(node_info.node, change(node_info.pods)))
    orphans = change(state.orphaned_pods.get(name, ()))
    orphaned = state.orphaned_pods.insert(name, orphans) if orphans else state.orphaned_pods.discard(name)
    return replace(state, orphaned_pods=orphaned)


def _update_services(
    state: GenericClusterState, pod: Pod, change: Callable[[_NumberedPods], _NumberedPods]
) -> GenericClusterState:
    services = state.services.get(pod.namespace)
    if not services or not any(entry.service.selects(pod.scheduling.labels) for entry in services):
        return state
    updated = tuple(
        replace(entry, pods=change(entry.pods)) if entry.service.selects(pod.scheduling.labels) else entry
        for entry in services
    )
    return replace(state, services=state.services.insert(pod.namespace, updated))


def _select_pods(
    services: Mapping[tuple[str, str], Service], numbered: Mapping[PodKey, tuple[SequenceNumber, Pod]]
) -> dict[str, tuple[ServicePods, ...]]:
    selected: dict[tuple[str, str], dict[SequenceNumber, Pod]] = {key: {} for key in services}
    by_label: dict[tuple[str, tuple[str, str]], list[Service]] = {}
    for service in services.values():
        if service.selector:
            # One label of the selector is enough: a pod is compared only with services under its own labels.
            by_label.setdefault((service.namespace, min(service.selector)), []).append(service)
    for number, pod in numbered.values():
        for label in pod.scheduling.labels:
            for service in by_label.get((pod.namespace, label), ()):
                if service.selects(pod.scheduling.labels):
                    selected[service.namespace, service.name][number] = pod
    by_namespace: dict[str, list[ServicePods]] = {}
    for key, service in services.items():
        by_namespace.setdefault(service.namespace, []).append(ServicePods(service, HashTrieMap(selected[key])))
    return {namespace: tuple(entries) for namespace, entries in by_namespace.items()}
