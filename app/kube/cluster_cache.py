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
from app.kube.interning import share_texts
from app.kube.reflector import Decode, Key, Phase, Reflector, Standing, Timing
from app.kube.resources import Resource
from app.kube.watched_kinds import WATCHED
from scheduler_core.cluster.update import advance, rebuilt
from scheduler_core.convert.snapshot_kinds import KINDS, Kind
from scheduler_core.demand.index import Demands
from scheduler_core.errors import ObjectError, ResolutionError
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.volumes.resolve import MissingObjectError

log = structlog.get_logger("cache")

# A single GET on the way to an answer; kube-scheduler waits.
FETCH_SECONDS: Final = 2.0
ObjectKey = tuple[str, Key]


_NOTHING: Final[Mapping[Key, object]] = {}

# Without one of these a volume would look as if it were nowhere; of all other kinds an object that is missing is a refusal.
_NEVER_UNREADABLE: Final = frozenset({"replicas"})
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
        self._demands: Demands | None = None
        self._pending: dict[ObjectKey, object | None] = {}
        self._listeners: dict[ObjectKey, set[asyncio.Event]] = {}
        self._synced = asyncio.Event()
        self._reflectors = {
            entry.kind.field: Reflector(
                client,
                entry.resource,
                self._decoder(entry.kind),
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
            if field in _NEVER_UNREADABLE and standing.unreadable:
                return f"{label}: {next(iter(standing.unreadable.values()))}"
            if standing.phase is Phase.SYNCED and standing.behind(now) > self._stale_after:
                return f"{label} not heard of for {standing.behind(now):.0f} s: {standing.problem}"
        return "" if self._memory is not None or self._start() else "not every kind is listed yet"

    @property
    def filled(self) -> bool:
        """Whether every kind has been listed once."""
        return self._synced.is_set()

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
        changes = self._pending
        advanced = advance(memory.view, changes, self._now())
        self._pending = {}  # not before: what could not be taken in must not be lost
        if self._demands is not None:
            self._demands = self._demands.after(memory.view, changes, advanced.view)
        self._memory = memory.after(advanced.view, advanced.touched)
        return self._memory

    def demands(self) -> Demands:
        """What volumes demand in the current view; kept from the first time somebody asks.

        Raises:
            RuntimeError: as memory
        """
        view = self.memory().view
        if self._demands is None:
            self._demands = Demands.of(view)
        return self._demands

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
        """Asks the API server for one object that no watch has brought yet; whether it exists.

        Raises:
            ResolutionError: it exists and cannot be read, or the API server does not say
        """
        resource = _FETCHED.get(missing.kind)
        namespace, _, name = missing.name.rpartition("/")
        if resource is None or not name:
            return False
        field, key = KINDS[resource.group, resource.kind].field, (namespace, name) if namespace else name
        lists = self._reflectors[field].standing.lists
        with self.listening((field, key)) as heard:
            raw = await self._get(missing, resource.path(namespace or self._namespace, name))
            if raw is None:
                return False
            # What a watch has brought meanwhile may be newer: a deletion, even.
            if not heard.is_set() and lists == self._reflectors[field].standing.lists:
                self._take(KINDS[resource.group, resource.kind], raw)
        log.info("fetched an object that no watch had brought", kind=resource.label, name=missing.name)
        return True

    async def _get(self, missing: MissingObjectError, path: str) -> bytes | None:
        try:
            return await self._client.get(path, seconds=FETCH_SECONDS)
        except ApiError as error:
            if error.not_found:
                return None
            raise ResolutionError(f"cannot look for {missing.kind} {missing.name}: {error}") from error

    def _take(self, kind: Kind, raw: bytes) -> None:
        try:
            key, value = kind.decode(raw)
        except ObjectError as error:
            raise ResolutionError(f"{error}, so nothing can be decided") from error
        self.changed(kind.field, key, value)

    @contextmanager
    def listening(self, *keys: ObjectKey) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of some objects (field of the snapshot, key) changes."""
        event, different = asyncio.Event(), frozenset(keys)
        for key in different:
            self._listeners.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            for key in different:
                listeners = self._listeners[key]
                listeners.discard(event)
                if not listeners:
                    del self._listeners[key]

    def _decoder(self, kind: Kind) -> Decode[object]:
        """Reads a kind's objects for keeps: an object that is held already stays the one it is, a new one shares its texts.

        Pods that mount no claim occupy no volume; most pods of a cluster are such, and none is kept.
        """

        def decode(raw: bytes | msgspec.Raw) -> tuple[Key, object | None]:
            key, value = kind.decode(raw)
            if isinstance(value, Pod) and not value.volumes:
                return key, None
            held = self._held(kind.field).get(key)
            if held == value:
                return key, held
            share_texts(value)
            return key, value

        return decode

    def _held(self, field: str) -> Mapping[Key, object]:
        """What the view has of a kind, changes still pending apart."""
        held: Mapping[Key, object] = getattr(self._memory.view.snapshot, field) if self._memory else _NOTHING
        return held

    def replaced(self, field: str, objects: Mapping[Key, object]) -> None:
        """Called by reflectors: the kind as a whole."""
        if self._initial is not None:
            self._initial[field] = dict(objects)
            self._start()
            return
        held = self._held(field)
        gone = {key for key in held if key not in objects}
        for name, key in list(self._pending):
            if name == field:
                self.changed(field, key, objects.get(key))
        for key in gone:
            self.changed(field, key, None)
        for key, value in objects.items():
            if held.get(key) is not value:
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

    def _start(self) -> Memory | None:
        """The first view, as soon as every kind has been listed."""
        if self._initial is None or self._initial.keys() != self._reflectors.keys():
            return self._memory
        snapshot: dict[str, Any] = {field: HashTrieMap(objects) for field, objects in self._initial.items()}
        self._initial = None
        self._memory = Memory(rebuilt(Snapshot(**snapshot), self._now(), 1))
        self._synced.set()
        return self._memory
