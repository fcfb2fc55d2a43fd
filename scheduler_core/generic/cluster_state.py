"""What a decision reads: nodes with what their pods take, and services with the pods they select. Immutable.

A change makes a new state at the cost of what changed; the maps share the rest, so decisions that are still being made go on
reading the state they began with.

"First" (of several services, of several pods of a service) is the one that was listed or added first: the real scheduler takes
them as its cache happens to list them. A replaced pod or service keeps its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rpds import HashTrieMap

from scheduler_core.generic.node_info import NodeState
from scheduler_core.model.generic import Node, Pod, PodKey, Service

Turn = int
_Members: TypeAlias = "HashTrieMap[Turn, Pod]"


@dataclass(frozen=True, slots=True)
class Selection:
    """A service and the assigned pods it selects, finished ones included, by turn."""

    service: Service
    members: _Members = field(default_factory=HashTrieMap)


@dataclass(frozen=True, slots=True)
class State:
    """The cluster as the generic scheduler reads it; make one by `of`, the next one by the methods.

    Attributes:
        nodes: those that exist, by name
        names: their names in order
        strays: pods assigned to nodes that do not exist, by that node's name
        turns: for every assigned pod, its place in the order of first ones, and the pod
        services: by namespace, in order, with what they select
    """

    nodes: HashTrieMap[str, NodeState] = field(default_factory=HashTrieMap)
    names: tuple[str, ...] = ()
    strays: HashTrieMap[str, tuple[Pod, ...]] = field(default_factory=HashTrieMap)
    turns: HashTrieMap[PodKey, tuple[Turn, Pod]] = field(default_factory=HashTrieMap)
    services: HashTrieMap[str, tuple[Selection, ...]] = field(default_factory=HashTrieMap)
    next_turn: Turn = 0

    @classmethod
    def of(cls, nodes: Iterable[Node], pods: Iterable[Pod], services: Iterable[Service]) -> State:
        """The state of a whole cluster; pods without a node are left out."""
        assigned = {pod.key: pod for pod in pods if pod.node_name}
        on_node: dict[str, list[Pod]] = {}
        for pod in assigned.values():
            on_node.setdefault(pod.node_name, []).append(pod)
        known = {node.name: NodeState.of(node, on_node.pop(node.name, ())) for node in nodes}
        turns = {key: (turn, pod) for turn, (key, pod) in enumerate(assigned.items())}
        return cls(
            nodes=HashTrieMap(known),
            names=tuple(sorted(known)),
            strays=HashTrieMap({name: tuple(stray) for name, stray in on_node.items()}),
            turns=HashTrieMap(turns),
            services=HashTrieMap(_selections({(one.namespace, one.name): one for one in services}, turns)),
            next_turn=len(turns),
        )

    def with_node(self, node: Node) -> State:
        """A node was added or has changed."""
        known = self.nodes.get(node.name)
        if known is not None:
            return replace(self, nodes=self.nodes.insert(node.name, replace(known, node=node)))
        return replace(
            self,
            nodes=self.nodes.insert(node.name, NodeState.of(node, self.strays.get(node.name, ()))),
            names=tuple(sorted((*self.names, node.name))),
            strays=self.strays.discard(node.name),
        )

    def without_node(self, name: str) -> State:
        """A node is gone; its pods count on as those of a node that does not exist."""
        known = self.nodes.get(name)
        if known is None:
            return self
        return replace(
            self,
            nodes=self.nodes.remove(name),
            names=tuple(other for other in self.names if other != name),
            strays=self.strays.insert(name, known.pods) if known.pods else self.strays,
        )

    def with_pod(self, pod: Pod) -> State:
        """A pod was added or has changed; without a node it plays no part."""
        turn, before = self.turns.get(pod.key, (self.next_turn, None))
        if before == pod:
            return self
        state = self if before is None else self.without_pod(pod.key)
        if not pod.node_name:
            return state
        state = replace(
            _on_node(state, pod),
            turns=state.turns.insert(pod.key, (turn, pod)),
            next_turn=max(state.next_turn, turn + 1),
        )
        return _selected(state, pod, lambda members: members.insert(turn, pod))

    def without_pod(self, key: PodKey) -> State:
        """A pod is gone."""
        if key not in self.turns:
            return self
        turn, pod = self.turns[key]
        state = replace(_off_node(self, pod), turns=self.turns.remove(key))
        return _selected(state, pod, lambda members: members.remove(turn))

    def bound(self, pod: Pod, node: str) -> State:
        """The pod is bound to the node."""
        return self.with_pod(replace(pod, node_name=node))

    def with_service(self, service: Service) -> State:
        """A service was added or has changed; looks at every pod."""
        members = {
            turn: pod
            for turn, pod in self.turns.values()
            if pod.namespace == service.namespace and service.selects(pod.labels)
        }
        found = {other.service.name: other for other in self.services.get(service.namespace, ())}
        found[service.name] = Selection(service, HashTrieMap(members))
        return replace(self, services=self.services.insert(service.namespace, tuple(found.values())))

    def without_service(self, namespace: str, name: str) -> State:
        """A service is gone."""
        left = tuple(other for other in self.services.get(namespace, ()) if other.service.name != name)
        services = self.services.insert(namespace, left) if left else self.services.discard(namespace)
        return replace(self, services=services)


def _on_node(state: State, pod: Pod) -> State:
    name = pod.node_name
    known = state.nodes.get(name)
    if known is not None:
        return replace(state, nodes=state.nodes.insert(name, known.added(pod)))
    return replace(state, strays=state.strays.insert(name, (*state.strays.get(name, ()), pod)))


def _off_node(state: State, pod: Pod) -> State:
    name = pod.node_name
    known = state.nodes.get(name)
    if known is not None:
        return replace(state, nodes=state.nodes.insert(name, known.removed(pod.key)))
    left = tuple(other for other in state.strays[name] if other.key != pod.key)
    return replace(state, strays=state.strays.insert(name, left) if left else state.strays.remove(name))


def _selected(state: State, pod: Pod, change: Callable[[_Members], _Members]) -> State:
    """Changes the members of every service that selects the pod."""
    found = state.services.get(pod.namespace)
    if not found or not any(one.service.selects(pod.labels) for one in found):
        return state
    changed = tuple(
        replace(one, members=change(one.members)) if one.service.selects(pod.labels) else one for one in found
    )
    return replace(state, services=state.services.insert(pod.namespace, changed))


def _selections(
    services: Mapping[tuple[str, str], Service], turns: Mapping[PodKey, tuple[Turn, Pod]]
) -> dict[str, tuple[Selection, ...]]:
    """What all services select: each pod is compared with those services only that share a certain label with it."""
    members: dict[tuple[str, str], dict[Turn, Pod]] = {key: {} for key in services}
    by_label: dict[tuple[str, tuple[str, str]], list[Service]] = {}
    for service in services.values():
        if service.selector:
            by_label.setdefault((service.namespace, min(service.selector)), []).append(service)
    for turn, pod in turns.values():
        for label in pod.labels:
            for service in by_label.get((pod.namespace, label), ()):
                if service.selects(pod.labels):
                    members[service.namespace, service.name][turn] = pod
    found: dict[str, list[Selection]] = {}
    for key, service in services.items():
        found.setdefault(service.namespace, []).append(Selection(service, HashTrieMap(members[key])))
    return {namespace: tuple(selections) for namespace, selections in found.items()}
