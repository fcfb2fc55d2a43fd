"""The cache of what a policy's rules read of a live cluster, without Longhorn's objects. A kind is watched only while
it is wanted.

Data flow: reflectors → the store, and the keys of changed objects → `state()` updates the state from them when a request
needs it. The cost is proportional to the changes.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from operator import attrgetter
from typing import Any, Protocol

import msgspec
import structlog

from app.kube import resources
from app.kube.client import KubeClient
from app.kube.reflector import CacheStatus, Decode, Key, Timing
from app.kube.resources import Resource
from app.kube.store import Objects, Store, Watch, intern_texts
from scheduler_core import errors
from scheduler_core.convert import generic, wire_types
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.model.generic import Controller
from scheduler_core.model.kube import Pod
from scheduler_core.structs import Struct

log = structlog.get_logger("policy")

# With more pending changes the state is built from scratch: a follower may not need it for weeks.
_MAX_PENDING = 10_000


class CacheObserver(Protocol):
    """Receives every change, and decides how a pod counts. It may know more of a pod than the cache does, and must not
    block the event loop.
    """

    def on_change(self, kind: str, key: Any, before: Any, value: Any) -> None:
        """Called after an object was added, changed or deleted (None). The next state has the change."""

    def effective_pod(self, pod: generic.PendingPod) -> Pod:
        """Returns the pod as the state counts it. Called after each change and each `GenericCache.recount`."""


def _decode(kind: wire_types.Fields[Any], key: Callable[[Any], Key], raw: bytes | msgspec.Raw) -> tuple[Key, Any]:
    value = kind.decode(raw)
    intern_texts(value)
    return key(value), value


def _decode_pod(raw: bytes | msgspec.Raw) -> tuple[Key, generic.PendingPod | None]:
    try:
        pending = generic.pending_pod(raw)
    except errors.ObjectError as error:
        key_without_node = generic.unbound_pod_key(raw)
        if key_without_node is None:
            raise
        # It occupies no node, so it must not make all other pods unusable.
        log.warning("left out a pod without a node that cannot be read", problem=str(error))
        return key_without_node, None
    intern_texts(pending.pod)
    return pending.pod.namespaced_name, pending


_NAME = attrgetter("name")
_NAMESPACED_NAME = attrgetter("namespace", "name")


class _Kind(Struct, frozen=True):
    """One kind: its resource, its decoder, and how changes update the state."""

    resource: Resource
    decode: Decode[Any]
    put: Callable[[GenericClusterState, Any], GenericClusterState]  # returns the state with a new or changed object
    drop: Callable[[GenericClusterState, Any], GenericClusterState]  # returns the state without the object of a key


def _controller_kind(resource: Resource, kind: wire_types.Fields[Controller]) -> _Kind:
    return _Kind(
        resource,
        partial(_decode, kind, _NAMESPACED_NAME),
        GenericClusterState.with_controller,
        lambda state, key: state.without_controller(kind.kind, *key),
    )


_KINDS: Mapping[str, _Kind] = {
    "nodes": _Kind(
        resources.NODES,
        partial(_decode, generic.NODE, _NAME),
        GenericClusterState.with_node,
        GenericClusterState.without_node,
    ),
    "pods": _Kind(resources.PODS, _decode_pod, GenericClusterState.with_pod, GenericClusterState.without_pod),
    "services": _Kind(
        resources.SERVICES,
        partial(_decode, generic.SERVICE, _NAMESPACED_NAME),
        GenericClusterState.with_service,
        lambda state, key: state.without_service(*key),
    ),
    "namespaces": _Kind(
        resources.NAMESPACES,
        partial(_decode, generic.NAMESPACE, _NAME),
        GenericClusterState.with_namespace,
        GenericClusterState.without_namespace,
    ),
    "replicationcontrollers": _controller_kind(resources.REPLICATION_CONTROLLERS, generic.REPLICATION_CONTROLLER),
    "replicasets": _controller_kind(resources.REPLICA_SETS, generic.REPLICA_SET),
    "statefulsets": _controller_kind(resources.STATEFUL_SETS, generic.STATEFUL_SET),
}


class GenericCache(Store):
    """Owner of the store and of the state. Every method must be called on the event loop that runs `run`.

    Args:
        prefix: the beginning of every problem, which distinguishes the problems of several caches
    """

    def __init__(
        self,
        client: KubeClient,
        timing: Timing,
        stale_after: float,
        observer: CacheObserver | None = None,
        prefix: str = "policy: ",
    ) -> None:
        super().__init__(client, timing, stale_after)
        self._observer = observer
        self._prefix = prefix
        self._state: GenericClusterState | None = None
        self._pending: dict[tuple[str, Key], None] = {}

    def want(self, kinds: frozenset[str]) -> None:
        """Watches these kinds from now on, and forgets all others."""
        watched = self.kinds.keys()
        for kind in watched - kinds:
            self.remove(kind)
            self._state = None
        for kind in kinds - watched:
            entry = _KINDS[kind]
            objects = Objects[Any]()
            objects.subscribe(partial(self._take_change, kind))
            # What an unreadable pod takes of its node is unknown.
            unreadable = "" if kind == "pods" else None
            self.watch(kind, Watch(entry.resource, entry.decode, objects, label=kind, unreadable=unreadable))

    @property
    def statuses(self) -> Mapping[str, CacheStatus]:
        return {f"{kind} (policy)": status for kind, status in super().statuses.items()}

    def problem_of(self, keys: Iterable[str] | None = None) -> str:
        """Returns why rules that read these kinds cannot be evaluated, or ""."""
        problem = super().problem_of(None if keys is None else sorted(keys))
        return f"{self._prefix}{problem}" if problem else ""

    def pod(self, key: Key) -> generic.PendingPod | None:
        return self["pods"].get(key) if "pods" in self else None

    def state(self) -> GenericClusterState:
        """Returns the state after every change delivered so far."""
        pending = self._pending
        self._pending = {}
        if self._state is None:
            kinds = {kind: objects.values() for kind, objects in self.kinds.items()}
            # The first state of a cluster has these; objects of the other kinds are added to it.
            nodes, pods, services = (kinds.pop(kind, ()) for kind in ("nodes", "pods", "services"))
            self._state = GenericClusterState.of(nodes, map(self._effective_pod, pods), services)
            for kind, values in kinds.items():
                self._state = reduce(_KINDS[kind].put, values, self._state)
            return self._state
        for kind, key in pending:
            entry = _KINDS[kind]
            value = self[kind].get(key)
            if value is None:
                self._state = entry.drop(self._state, key)
            else:
                self._state = entry.put(self._state, self._effective_pod(value) if kind == "pods" else value)
        return self._state

    def _effective_pod(self, pod: generic.PendingPod) -> Pod:
        return pod.pod if self._observer is None else self._observer.effective_pod(pod)

    def recount(self, pod: Key) -> None:
        """Makes the next state ask the observer for this pod again."""
        self._note("pods", pod)

    def _take_change(self, kind: str, key: Key, before: Any, value: Any) -> None:
        # The reflector of a kind that is not wanted any more may deliver once more.
        if before != value and kind in self:
            self._note(kind, key)
            if self._observer is not None:
                self._observer.on_change(kind, key, before, value)

    def _note(self, kind: str, key: Key) -> None:
        if self._state is None:
            return
        self._pending[kind, key] = None
        if len(self._pending) > _MAX_PENDING:
            self._state = None
            self._pending.clear()
