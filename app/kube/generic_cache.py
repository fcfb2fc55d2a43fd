"""What rules of policies read of a live cluster beside Longhorn's objects: nodes with capacity and labels, pods, services.

A kind is watched from when it is wanted until it is not. Data flow: reflectors → `_Field` sinks → the objects of each kind, and the keys
of those that have changed → `state()` folds these into the state when somebody asks, at the cost of what changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import structlog

from app.kube import resources
from app.kube.client import KubeClient
from app.kube.interning import share_texts
from app.kube.reflector import Decode, Key, Phase, Reflector, Standing, Timing
from app.kube.resources import Resource
from scheduler_core.convert.binding import Applicant, applicant, homeless
from scheduler_core.convert.generic import GenericNode, GenericService, generic_node, generic_service
from scheduler_core.convert.meta import shape_json
from scheduler_core.errors import ObjectError
from scheduler_core.generic.cluster_state import State
from scheduler_core.model.generic import Node, Pod, Service

log = structlog.get_logger("policy")

# Beyond this many changes the state is made anew when somebody asks; a process that does not lead may not be asked for weeks.
_MOST_PENDING: Final = 10_000


class Reader(Protocol):
    """Who wants to hear what changes, and may know more of a pod than was seen; called on the event loop, and must not block."""

    def changed(self, kind: str, key: Any, before: Any, value: Any) -> None:
        """An object was added, is different or gone (None); it is in the state from the next question on."""

    def counted(self, found: Applicant) -> Pod:
        """A pod as it counts in the state; asked anew after each change, and each `GenericCache.recount`."""


class _Plain:
    """Nobody hears of changes, and pods count as they were seen."""

    def changed(self, kind: str, key: Any, before: Any, value: Any) -> None:
        pass

    def counted(self, found: Applicant) -> Pod:
        return found.pod


def _node(raw: bytes | msgspec.Raw) -> tuple[Key, Node | None]:
    node = generic_node(shape_json("Node", raw, GenericNode))
    share_texts(node)
    return node.name, node


def _pod(raw: bytes | msgspec.Raw) -> tuple[Key, Applicant | None]:
    try:
        key, found = applicant(raw)
    except ObjectError as error:
        free = homeless(raw)
        if free is None:
            raise
        # It takes nothing of any node, so it must not keep others from theirs.
        log.warning("left out a pod without a node that cannot be read", problem=str(error))
        return free, None
    share_texts(found.pod)
    return key, found


def _service(raw: bytes | msgspec.Raw) -> tuple[Key, Service | None]:
    service = generic_service(shape_json("Service", raw, GenericService))
    return (service.namespace, service.name), service


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind: where it is, how an object is read, and how its change and its end change the state."""

    resource: Resource
    decode: Decode[Any]
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
    """Owner of what was seen, and of the state; everything happens on the event loop that runs `run`.

    `whose` begins every problem, for readers who know of several caches.
    """

    def __init__(
        self,
        client: KubeClient,
        timing: Timing,
        stale_after: float,
        reader: Reader | None = None,
        whose: str = "policy: ",
    ) -> None:
        self._client = client
        self._timing = timing
        self._stale_after = stale_after
        self._reader = reader or _Plain()
        self._whose = whose
        self._reflectors: dict[str, Reflector[Any]] = {}
        self._objects: dict[str, dict[Key, Any]] = {}
        self._state: State | None = None
        self._pending: dict[tuple[str, Key], None] = {}
        self._changed = asyncio.Event()

    def want(self, kinds: frozenset[str]) -> None:
        """These kinds are to be watched from now on, and no others; the others are forgotten."""
        if kinds == self._reflectors.keys():
            return
        for kind in self._reflectors.keys() - kinds:
            del self._reflectors[kind]
            self._objects.pop(kind, None)
            self._state = None
        for kind in kinds - self._reflectors.keys():
            entry, sink = _KINDS[kind], _Field(self, kind)
            self._reflectors[kind] = Reflector(self._client, entry.resource, entry.decode, sink, self._timing)
        self._changed.set()

    async def run(self) -> None:
        """Watches what is wanted until cancelled."""
        watching: dict[Reflector[Any], asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                wanted = set(self._reflectors.values())
                for reflector in watching.keys() - wanted:
                    watching.pop(reflector).cancel()
                for reflector in wanted - watching.keys():
                    watching[reflector] = tasks.create_task(reflector.run(), name=f"generic: {reflector.label}")
                await self._changed.wait()

    async def catch_up(self) -> None:
        """Returns once everything that has happened before this call is in the state."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors.values():
                tasks.create_task(reflector.catch_up())

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
        found = next((found for kind in sorted(kinds) if (found := self._problem(kind, now))), "")
        return f"{self._whose}{found}" if found else ""

    def _problem(self, kind: str, now: float) -> str:
        reflector = self._reflectors.get(kind)
        if reflector is None:
            return f"{kind} not listed yet"
        standing = reflector.standing
        if standing.phase is not Phase.SYNCED or kind not in self._objects:
            return f"{kind} not listed yet" + (f": {standing.problem}" if standing.problem else "")
        if kind == "pods" and standing.unreadable:  # what it takes of its node is not known
            return next(iter(standing.unreadable.values()))
        if standing.behind(now) > self._stale_after:
            return f"{kind} not heard of for {standing.behind(now):.0f} s: {standing.problem}"
        return ""

    def pod(self, key: Key) -> Applicant | None:
        """A pod as it was seen last."""
        return self._objects.get("pods", {}).get(key)

    def state(self) -> State:
        """Everything heard so far of the kinds that are watched."""
        pending, self._pending = self._pending, {}
        if self._state is None:
            nodes, pods, services = (self._objects.get(kind, {}).values() for kind in ("nodes", "pods", "services"))
            self._state = State.of(nodes, map(self._reader.counted, pods), services)
            return self._state
        for kind, key in pending:
            entry, value = _KINDS[kind], self._objects[kind].get(key)
            if value is None:
                self._state = entry.drop(self._state, key)
            else:
                self._state = entry.put(self._state, self._reader.counted(value) if kind == "pods" else value)
        return self._state

    def recount(self, pod: Key) -> None:
        """The reader counts this pod differently from now on."""
        self._note("pods", pod)

    def replaced(self, kind: str, objects: Mapping[Key, Any]) -> None:
        """Called by reflectors: the kind as a whole."""
        if kind not in self._reflectors:  # it is watched no more
            return
        if kind not in self._objects:
            self._objects[kind] = {}
            self._state = None
        for key in [key for key in self._objects[kind] if key not in objects]:
            self.changed(kind, key, None)
        for key, value in objects.items():
            self.changed(kind, key, value)

    def changed(self, kind: str, key: Key, value: Any) -> None:
        """Called by reflectors: one object."""
        held = self._objects.get(kind)
        if held is None:
            return
        before = held.get(key)
        if before == value:
            return
        if value is None:
            del held[key]
        else:
            held[key] = value
        self._note(kind, key)
        self._reader.changed(kind, key, before, value)

    def _note(self, kind: str, key: Key) -> None:
        if self._state is None:
            return
        self._pending[kind, key] = None
        if len(self._pending) > _MOST_PENDING:
            self._state = None
            self._pending.clear()
