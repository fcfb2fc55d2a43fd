"""The live cluster: one reflector per kind a decision reads, and the view and memory they keep current.

Data flow: reflectors → `_Field` sinks → `pending`, the latest value of each object that changed → `memory()` makes the next view
of them when somebody asks. So events cost a dictionary entry each, and a burst of them one step.

Nothing is decided before every kind has been listed. A kind that may be missing (its CRD is not installed) counts as empty;
one that must be there and is not, or a watch that has been silent for too long, is named by `problem`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog
from rpds import HashTrieMap

from app.kube import resources
from app.kube.client import ApiError, KubeClient
from app.kube.reflector import Decode, Key, Phase, Reflector, Standing, Timing
from app.kube.resources import Resource
from app.kube.watched import WATCHED
from scheduler_core.advance import advance, rebuilt
from scheduler_core.convert.registry import KINDS, Kind
from scheduler_core.memory import Memory
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.resolve import MissingObjectError

log = structlog.get_logger("cache")

# A single GET on the way to an answer; kube-scheduler waits.
FETCH_SECONDS: Final = 2.0
ObjectKey = tuple[str, Key]


# What a missing object is called in the core's errors, and where it is looked for.
_FETCHED: Final[Mapping[str, Resource]] = {
    "PersistentVolumeClaim": resources.CLAIMS,
    "PersistentVolume": resources.PERSISTENT_VOLUMES,
    "Longhorn volume": resources.LONGHORN_VOLUMES,
    "StorageClass": resources.STORAGE_CLASSES,
}


class _Field:
    """Tells the cache what happens to one field of the snapshot."""

    def __init__(self, cache: ClusterCache, field: str) -> None:
        self._cache = cache
        self._field = field

    def replaced(self, objects: Mapping[Key, object]) -> None:
        self._cache.replaced(self._field, objects)

    def changed(self, key: Key, value: object | None) -> None:
        self._cache.changed(self._field, key, value)


def _without_idle_pods(kind: Kind) -> Decode[object]:
    """Pods that mount no claim occupy no volume; most pods of a cluster are such."""

    def decode(raw: bytes | msgspec.Raw) -> tuple[Key, object | None]:
        key, value = kind.decode(raw)
        return key, value if not isinstance(value, Pod) or value.volumes else None

    return decode


class ClusterCache:
    """Owner of the live view; everything it does happens on the event loop that runs `run`."""

    def __init__(
        self, client: KubeClient, namespace: str, timing: Timing, now: Callable[[], datetime], stale_after: float
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = timing.clock
        self._now = now
        self._stale_after = stale_after
        self._initial: dict[str, dict[Key, object]] | None = {}
        self._memory: Memory | None = None
        self._pending: dict[ObjectKey, object | None] = {}
        self._listeners: dict[ObjectKey, set[asyncio.Event]] = {}
        self._synced = asyncio.Event()
        self._reflectors = {
            entry.kind.field: Reflector(
                client,
                entry.resource,
                _without_idle_pods(entry.kind),
                _Field(self, entry.kind.field),
                timing,
                namespace=entry.namespace(namespace),
            )
            for entry in WATCHED
        }
        self._required = {entry.kind.field for entry in WATCHED if entry.required}

    async def run(self) -> None:
        """Watches every kind until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors.values():
                tasks.create_task(reflector.run())

    @property
    def standings(self) -> Mapping[str, Standing]:
        """How each kind's cache stands, by the kind's name."""
        return {reflector.label: reflector.standing for reflector in self._reflectors.values()}

    @property
    def problem(self) -> str:
        """Why nothing can be decided now, in one sentence; "" if it can."""
        now = self._clock()
        for field, reflector in self._reflectors.items():
            standing, label = reflector.standing, reflector.label
            if standing.phase is Phase.MISSING and field in self._required:
                return f"the API server knows no {label}: is Longhorn installed?"
            if standing.phase is Phase.STARTING:
                return f"{label} not listed yet" + (f": {standing.problem}" if standing.problem else "")
            if standing.phase is Phase.SYNCED and standing.behind(now) > self._stale_after:
                return f"{label} not heard of for {standing.behind(now):.0f} s: {standing.problem}"
        return "" if self._memory is not None or self._start() else "not every kind is listed yet"

    async def synced(self) -> None:
        """Returns once every kind has been listed."""
        await self._synced.wait()

    def memory(self) -> Memory:
        """The view of everything heard so far, and what is remembered about it.

        Raises:
            RuntimeError: not every kind has been listed; callers look at `problem` first
        """
        memory = self._memory or self._start()
        if memory is None:
            raise RuntimeError("the cache has not been filled")
        changes, self._pending = self._pending, {}
        advanced = advance(memory.view, changes, self._now())
        self._memory = memory.after(advanced.view, advanced.touched)
        return self._memory

    @property
    def settings(self) -> Mapping[str, str]:
        """Longhorn's Setting objects, as far as known."""
        return self.memory().view.snapshot.settings if self._memory else {}

    async def catch_up(self) -> None:
        """Returns once everything that has happened in the cluster before this call is in the view."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors.values():
                tasks.create_task(reflector.catch_up())

    async def fetch(self, missing: MissingObjectError) -> bool:
        """Asks the API server for one object that no watch has brought yet; whether it exists."""
        resource = _FETCHED.get(missing.kind)
        if resource is None:
            return False
        namespace, _, name = missing.name.rpartition("/")
        path = resource.path(namespace or self._namespace, name)
        try:
            raw = await self._client.get(path, seconds=FETCH_SECONDS)
        except ApiError as error:
            if not error.not_found:
                log.warning("cannot look for a missing object", problem=str(error))
            return False
        kind = KINDS[resource.group, resource.kind]
        key, value = kind.decode(raw)
        self.changed(kind.field, key, value)
        log.info("fetched an object that no watch had brought", kind=resource.label, name=missing.name)
        return True

    @contextmanager
    def listening(self, *keys: ObjectKey) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of some objects (field of the snapshot, key) changes."""
        event = asyncio.Event()
        for key in keys:
            self._listeners.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            for key in keys:
                listeners = self._listeners[key]
                listeners.discard(event)
                if not listeners:
                    del self._listeners[key]

    def replaced(self, field: str, objects: Mapping[Key, object]) -> None:
        """Called by reflectors: the kind as a whole."""
        if self._initial is not None:
            self._initial[field] = dict(objects)
            self._start()
            return
        for key in self._known(field):
            if key not in objects:
                self.changed(field, key, None)
        for key, value in objects.items():
            self.changed(field, key, value)

    def changed(self, field: str, key: Key, value: object | None) -> None:
        """Called by reflectors: one object."""
        if self._initial is not None and field in self._initial:
            held = self._initial[field]
            if value is None:
                held.pop(key, None)
            else:
                held[key] = value
            return
        self._pending[field, key] = value
        for event in self._listeners.get((field, key), ()):
            event.set()

    def _known(self, field: str) -> set[Key]:
        held: Mapping[Key, Any] = getattr(self._memory.view.snapshot, field) if self._memory else {}
        return set(held) | {key for name, key in self._pending if name == field}

    def _start(self) -> Memory | None:
        """The first view, as soon as every kind has been listed."""
        if self._initial is None or self._initial.keys() != self._reflectors.keys():
            return self._memory
        snapshot: dict[str, Any] = {field: HashTrieMap(objects) for field, objects in self._initial.items()}
        self._initial = None
        self._memory = Memory(rebuilt(Snapshot(**snapshot), self._now(), 1))
        self._synced.set()
        return self._memory
