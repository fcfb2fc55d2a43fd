"""What the stand-alone scheduler knows of a live cluster: nodes, services and pods, watched, and what it bound itself but has not seen yet.

Data flow: reflectors → `Cluster` → the next `State` (`scheduler_core.generic.state`), at the cost of what changed; and a `Listener` hears which
pods want a node, and that something has changed that may help those that found none.

**Assumptions.** A bound pod counts on its node from the moment it is decided, before the API server has answered, so that the next pod is decided
beside it. The assumption ends when the pod is seen with a node, when it is gone or another one of its name has come, or when
binding it has failed. Being seen without a node ends nothing: such news is older than the binding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Raw

from app.kube import resources
from app.kube.client import KubeClient
from app.kube.reflector import Key, Phase, Reflector, Standing, Timing
from app.kube.resources import Resource
from app.kube.sharing import share_texts
from scheduler_core.convert.binding import Applicant, applicant
from scheduler_core.convert.generic import GenericNode, GenericService, generic_node, generic_service
from scheduler_core.convert.wire import shape_json
from scheduler_core.generic.model import Node, Pod, PodKey, Service
from scheduler_core.generic.state import State

SERVICES: Final = Resource("", "v1", "services", "Service", namespaced=True)
_Value = TypeVar("_Value")


class Listener(Protocol):
    """Who is told; called on the event loop, and must not block."""

    def wants(self, applicant: Applicant) -> None:
        """A pod wants a node, or has changed while it does."""

    def settled_pod(self, key: PodKey) -> None:
        """A pod wants no node any more: it has one, or is gone."""

    def helped(self) -> None:
        """Something has changed that may help pods that found no node."""


@dataclass(frozen=True, slots=True)
class _Assumed:
    pod: Pod
    node: str


class _Kind(Generic[_Value]):
    """The objects of one kind; tells what becomes of each."""

    def __init__(self, told: Callable[[Any, _Value | None, _Value | None], None], relisted: Callable[[], None]) -> None:
        self.objects: dict[Any, _Value] = {}
        self._told = told
        self._relisted = relisted

    def replaced(self, objects: Mapping[Key, _Value]) -> None:
        """Called by the reflector: everything there is."""
        self._relisted()
        for key in [known for known in self.objects if known not in objects]:
            self.changed(key, None)
        for key, value in objects.items():
            self.changed(key, value)

    def changed(self, key: Key, value: _Value | None) -> None:
        """Called by the reflector: one object."""
        before = self.objects.pop(key, None) if value is None else self.objects.get(key)
        if value is not None:
            self.objects[key] = value
        if before != value:
            self._told(key, before, value)


class Cluster:
    """Owner of the state; everything happens on the event loop that runs `run`."""

    def __init__(
        self, client: KubeClient, scheduler: str, listener: Listener, timing: Timing, *, stale_after: float
    ) -> None:
        self._scheduler = scheduler
        self._listener = listener
        self._clock = timing.clock
        self._stale_after = stale_after
        self._state: State | None = None
        self._assumed: dict[PodKey, _Assumed] = {}
        self._nodes: _Kind[Node] = _Kind(self._node, self._relisted)
        self._services: _Kind[Service] = _Kind(self._service, self._relisted)
        self._pods: _Kind[Applicant] = _Kind(self._pod, self._relisted)
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(client, resources.NODES, _decode_node, self._nodes, timing),
            Reflector(client, SERVICES, _decode_service, self._services, timing),
            Reflector(client, resources.PODS, _decode_pod, self._pods, timing),
        )

    async def run(self) -> None:
        """Watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    async def catch_up(self) -> None:
        """Returns once everything that has happened before this call is in the state."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.catch_up())

    @property
    def standings(self) -> Mapping[str, Standing]:
        """How each kind stands, by its name."""
        return {reflector.label: reflector.standing for reflector in self._reflectors}

    @property
    def problem(self) -> str:
        """Why nothing can be decided now, in one sentence; "" if it can."""
        now = self._clock()
        for label, standing in self.standings.items():
            if standing.phase is not Phase.SYNCED:
                return f"{label} not listed yet" + (f": {standing.problem}" if standing.problem else "")
            if label == resources.PODS.label and standing.unreadable:  # what it takes of its node is not known
                return f"{label}: {next(iter(standing.unreadable.values()))}"
            if standing.behind(now) > self._stale_after:
                return f"{label} not heard of for {standing.behind(now):.0f} s: {standing.problem}"
        return ""

    @property
    def state(self) -> State:
        """The cluster now, assumptions included."""
        if self._state is None:
            seen = (entry.pod for entry in self._pods.objects.values() if entry.pod.node_name)
            assumed = (replace(entry.pod, node_name=entry.node) for entry in self._assumed.values())
            self._state = State.of(self._nodes.objects.values(), [*seen, *assumed], self._services.objects.values())
        return self._state

    @property
    def assumed(self) -> Mapping[PodKey, str]:
        """The nodes of pods that were bound and are not seen there yet."""
        return {key: entry.node for key, entry in self._assumed.items()}

    def seen(self, key: PodKey) -> Applicant | None:
        """A pod as it was seen last."""
        return self._pods.objects.get(key)

    def wants_node(self, found: Applicant | None) -> bool:
        """Whether a pod is one of this scheduler's, and waits for a node."""
        return found is not None and found.waits and found.scheduler == self._scheduler

    def assume(self, found: Applicant, node: str) -> None:
        """From now on the pod counts on this node."""
        self._state = self.state.bound(found.pod, node)
        self._assumed[found.pod.key] = _Assumed(found.pod, node)

    def forget(self, found: Applicant) -> None:
        """The pod was not bound after all."""
        key = found.pod.key
        assumed = self._assumed.get(key)
        if assumed is None or assumed.pod.uid != found.pod.uid:
            return
        del self._assumed[key]
        self._state = self.state.without_pod(key)
        self._listener.helped()

    def _relisted(self) -> None:
        """A whole list comes at once: the state is made anew when somebody asks, not object by object."""
        self._state = None

    def _step(self, change: Callable[[State], State]) -> None:
        if self._state is not None:
            self._state = change(self._state)

    def _node(self, name: str, before: Node | None, value: Node | None) -> None:
        del before
        self._step(lambda state: state.without_node(name) if value is None else state.with_node(value))
        if value is not None:
            self._listener.helped()

    def _service(self, key: tuple[str, str], before: Service | None, value: Service | None) -> None:
        del before
        self._step(lambda state: state.without_service(*key) if value is None else state.with_service(value))
        self._listener.helped()

    def _pod(self, key: PodKey, before: Applicant | None, value: Applicant | None) -> None:
        assumed = self._assumed.get(key)
        if assumed is not None and (value is None or value.pod.node_name or value.pod.uid != assumed.pod.uid):
            del self._assumed[key]
            assumed = None
        if value is None:
            self._step(lambda state: state.without_pod(key))
            self._listener.settled_pod(key)
        elif assumed is None:
            self._step(lambda state: state.with_pod(value.pod))
        if before is not None and before.pod.node_name:
            self._listener.helped()  # it was on a node, and is gone or different
        if value is not None and assumed is None:  # whoever assumed it learns soon enough what came of it
            self._tell(key, value)

    def _tell(self, key: PodKey, found: Applicant) -> None:
        if self.wants_node(found):
            self._listener.wants(found)
        else:
            self._listener.settled_pod(key)


def _decode_node(raw: bytes | Raw) -> tuple[Key, Node | None]:
    node = generic_node(shape_json("Node", raw, GenericNode))
    share_texts(node)
    return node.name, node


def _decode_service(raw: bytes | Raw) -> tuple[Key, Service | None]:
    service = generic_service(shape_json("Service", raw, GenericService))
    return (service.namespace, service.name), service


def _decode_pod(raw: bytes | Raw) -> tuple[Key, Applicant | None]:
    key, found = applicant(raw)
    share_texts(found.pod)
    return key, found
