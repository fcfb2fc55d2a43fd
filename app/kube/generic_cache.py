"""What a policy's rules read of a live cluster beside Longhorn's: nodes with capacity and labels, all pods with a node, services.

A kind is watched from when a policy reads it until none does. Data flow: reflectors → `_Field` sinks → the objects of each kind, and what
has changed of them → `state()` folds the changes into the state when somebody asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from app.kube import resources
from app.kube.client import KubeClient
from app.kube.reflector import Key, Phase, Reflector, Standing, Timing
from app.kube.resources import Resource
from app.kube.sharing import share_texts
from scheduler_core.convert.generic import (
    GenericNode,
    GenericPod,
    GenericService,
    generic_node,
    generic_pod,
    generic_service,
)
from scheduler_core.convert.wire import shape_json
from scheduler_core.generic.model import Node, Pod, Service
from scheduler_core.generic.state import State

Objects = dict[Key, Any]


def _node(raw: bytes | msgspec.Raw) -> tuple[Key, Node | None]:
    node = generic_node(shape_json("Node", raw, GenericNode))
    share_texts(node)
    return node.name, node


def _pod(raw: bytes | msgspec.Raw) -> tuple[Key, Pod | None]:
    """Pods without a node play no part, and are not kept."""
    pod = generic_pod(shape_json("Pod", raw, GenericPod))
    share_texts(pod)
    return pod.key, pod if pod.node_name else None


def _service(raw: bytes | msgspec.Raw) -> tuple[Key, Service | None]:
    service = generic_service(shape_json("Service", raw, GenericService))
    return (service.namespace, service.name), service


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind: where it is, how an object is read, and how its change and its end change the state."""

    resource: Resource
    decode: Callable[[bytes | msgspec.Raw], tuple[Key, Any]]
    put: Callable[[State, Any], State]
    drop: Callable[[State, Any], State]


_KINDS: Final[Mapping[str, _Kind]] = {
    "nodes": _Kind(resources.NODES, _node, State.with_node, State.without_node),
    "pods": _Kind(resources.PODS, _pod, State.with_pod, State.without_pod),
    "services": _Kind(
        Resource("", "v1", "services", "Service", namespaced=True),
        _service,
        State.with_service,
        lambda state, key: state.without_service(*key),
    ),
}


class _Field:
    """Tells the cache what happens to one kind."""

    def __init__(self, cache: GenericCache, kind: str) -> None:
        self._cache = cache
        self._kind = kind

    def replaced(self, objects: Mapping[Key, Any]) -> None:
        self._cache.replaced(self._kind, objects)

    def changed(self, key: Key, value: Any) -> None:
        self._cache.changed(self._kind, key, value)


class GenericCache:
    """Owner of the state; everything happens on the event loop that runs `run`."""

    def __init__(self, client: KubeClient, timing: Timing, stale_after: float) -> None:
        self._client = client
        self._timing = timing
        self._stale_after = stale_after
        self._wanted: frozenset[str] = frozenset()
        self._reflectors: dict[str, Reflector[Any]] = {}
        self._objects: dict[str, Objects] = {}
        self._state: State | None = None
        self._pending: dict[tuple[str, Key], Any] = {}
        self._changed = asyncio.Event()

    def want(self, kinds: frozenset[str]) -> None:
        """These kinds are to be watched from now on, and no others."""
        if kinds != self._wanted:
            self._wanted = kinds
            self._changed.set()

    async def run(self) -> None:
        """Watches what is wanted until cancelled."""
        watching: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                for kind in self._wanted - watching.keys():
                    entry = _KINDS[kind]
                    reflector = Reflector(self._client, entry.resource, entry.decode, _Field(self, kind), self._timing)
                    self._reflectors[kind] = reflector
                    watching[kind] = tasks.create_task(reflector.run(), name=f"policy: {kind}")
                for kind in watching.keys() - self._wanted:
                    watching.pop(kind).cancel()
                    self._forget(kind)
                await self._changed.wait()

    def adopt(self) -> None:
        """As a companion of `Live`: who leads plays no part."""

    def clear(self) -> None:
        """As a companion of `Live`."""

    @property
    def standings(self) -> Mapping[str, Standing]:
        """How each kind that is watched stands, by the kind's name."""
        return {f"{kind} (policy)": reflector.standing for kind, reflector in self._reflectors.items()}

    def problem(self, kinds: frozenset[str]) -> str:
        """Why the state is not known well enough to ask rules that read these kinds; "" if it is."""
        now = self._timing.clock()
        for kind in sorted(kinds):
            reflector = self._reflectors.get(kind)
            if reflector is None:
                return f"policy: {kind} not listed yet"
            standing = reflector.standing
            if standing.phase is not Phase.SYNCED or kind not in self._objects:
                return f"policy: {kind} not listed yet" + (f": {standing.problem}" if standing.problem else "")
            if kind == "pods" and standing.unreadable:  # what it takes of its node is not known
                return f"policy: {next(iter(standing.unreadable.values()))}"
            if standing.behind(now) > self._stale_after:
                return f"policy: {kind} not heard of for {standing.behind(now):.0f} s: {standing.problem}"
        return ""

    def state(self) -> State:
        """Everything heard so far of the kinds that are watched."""
        if self._state is None:
            held = [self._objects.get(kind, {}).values() for kind in ("nodes", "pods", "services")]
            self._state, self._pending = State.of(*held), {}
        changes, self._pending = self._pending, {}
        for (kind, key), value in changes.items():
            entry = _KINDS[kind]
            self._state = entry.drop(self._state, key) if value is None else entry.put(self._state, value)
        return self._state

    def replaced(self, kind: str, objects: Mapping[Key, Any]) -> None:
        """Called by reflectors: the kind as a whole."""
        held = self._objects.get(kind)
        if held is None:
            self._objects[kind] = dict(objects)
            self._state = None
            return
        for key in [key for key in held if key not in objects]:
            self.changed(kind, key, None)
        for key, value in objects.items():
            if held.get(key) != value:
                self.changed(kind, key, value)

    def changed(self, kind: str, key: Key, value: Any) -> None:
        """Called by reflectors: one object."""
        held = self._objects.get(kind)
        if held is None:  # it is watched no more
            return
        if value is None:
            held.pop(key, None)
        else:
            held[key] = value
        if self._state is not None:
            self._pending[kind, key] = value

    def _forget(self, kind: str) -> None:
        self._reflectors.pop(kind, None)
        self._objects.pop(kind, None)
        self._state = None
