"""The cache of the live cluster: one reflector per kind keeps the state current that decisions read.

Data flow: reflectors → `_FieldHandler` → `pending`, the latest value of each changed object → `state()` makes the next state from
them when a request needs it. So an event costs one dictionary entry, and a burst of events costs one update.

Nothing is decided before every kind has been listed. A kind that may be missing (its CRD is not installed) counts as empty.
`problem` names a required kind that is missing, or a watch that has been silent for too long. A snapshot of a live cluster has the same
kinds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog
from rpds import HashTrieMap

from app.kube import resources
from app.kube.client import ApiError, KubeClient
from app.kube.interning import intern_texts
from app.kube.reflector import CacheStatus, Decode, Key, Reflector, Timing
from app.kube.reflector_group import Member, ReflectorGroup
from app.kube.resources import LONGHORN_NODES, Resource
from scheduler_core.cluster.update import build_view
from scheduler_core.convert.snapshot_kinds import KINDS, SnapshotKind
from scheduler_core.errors import MissingObjectError, ObjectError, ResolutionError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot

log = structlog.get_logger("cache")

# Bounds a single GET on the way to an answer: kube-scheduler waits for it.
FETCH_TIMEOUT: Final = 2.0
_REACH_CHECK_INTERVAL: Final = 0.01
# The rules that read the time count seconds.
_CLOCK_STEP: Final = timedelta(seconds=0.1)
ObjectKey = tuple[str, Key]
ChangeObserver = Callable[[object | None, object | None], None]
"""Receives an object as it was, and as a watch delivers it. None: it did not exist, or was deleted."""

_NO_OBJECTS: Final[Mapping[Key, object]] = {}
# If one replica were left out, its volume would look unplaced. A missing object of any other kind only causes refusals.
_NEVER_UNREADABLE: Final = frozenset({"replicas"})
# Where a missing object is fetched, by what the core's errors call its kind.
_FETCH_RESOURCES: Final[Mapping[str, Resource]] = {
    "PersistentVolumeClaim": resources.CLAIMS,
    "PersistentVolume": resources.PERSISTENT_VOLUMES,
    "Longhorn volume": resources.LONGHORN_VOLUMES,
    "StorageClass": resources.STORAGE_CLASSES,
}


class _FieldHandler:
    """Passes the objects of one field of the snapshot to the cache."""

    def __init__(self, cache: ClusterCache, field: str) -> None:
        self._cache = cache
        self._field = field

    def replace(self, objects: Mapping[Key, object]) -> None:
        self._cache.replace(self._field, objects)

    def change(self, key: Key, value: object | None) -> None:
        self._cache.change(self._field, key, value)


class ClusterCache:
    """Owner of the live state; every method must be called on the event loop that runs `run`."""

    def __init__(
        self, client: KubeClient, namespace: str, timing: Timing, now: Callable[[], datetime], stale_after: float
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._now = now
        self._initial: dict[str, dict[Key, object]] | None = {}
        self._state: ClusterState | None = None
        self._pending: dict[ObjectKey, object | None] = {}
        self.listeners: dict[ObjectKey, set[asyncio.Event]] = {}
        self._observers: dict[str, list[ChangeObserver]] = {}
        self._synced = asyncio.Event()
        self._reflectors = ReflectorGroup(timing.clock, stale_after)
        for entry in WATCHED:
            field = entry.kind.field
            reflector = Reflector(
                client,
                entry.resource,
                self._decoder(entry.kind),
                _FieldHandler(self, field),
                timing,
                namespace=entry.namespace(namespace),
            )
            member = Member(
                reflector,
                reflector.label,
                required=entry.required,
                hint="is Longhorn installed?",
                unreadable=f"{reflector.label}: " if field in _NEVER_UNREADABLE else None,
            )
            self._reflectors.add(field, member)

    async def run(self) -> None:
        await self._reflectors.run()

    @property
    def statuses(self) -> Mapping[str, CacheStatus]:
        return self._reflectors.statuses

    @property
    def unreadable(self) -> list[str]:
        """The objects that are left out because they cannot be read, and why; the first ones."""
        return self._reflectors.unreadable

    @property
    def problem(self) -> str:
        problem = self._reflectors.problem()
        if problem:
            return problem
        return "" if self._state is not None or self._start() else "not every kind is listed yet"

    @property
    def has_synced(self) -> bool:
        return self._synced.is_set()

    async def wait_for_sync(self) -> None:
        await self._synced.wait()

    def state(self) -> ClusterState:
        """Returns the state after every change delivered so far.

        Raises:
            RuntimeError: not every kind has been listed; callers check `problem` first
        """
        state = self._state or self._start()
        if state is None:
            raise RuntimeError("the cache has not been filled")
        now = self._now()
        if not self._pending and timedelta() <= now - state.view.cluster.now < _CLOCK_STEP:
            return state
        self._state = state.update(self._pending, now)
        # Only after the update: if it fails, no change may be lost.
        self._pending = {}
        return self._state

    @property
    def latest_state(self) -> ClusterState | None:
        """The state that was read last, None before the first one. May be read from any thread."""
        return self._state

    @property
    def settings(self) -> Mapping[str, str]:
        """Longhorn's Setting objects; empty until every kind has been listed."""
        if self._state is None:
            return {}
        # They are read often, and change rarely: other changes wait for the next decision.
        state = self.state() if any(field == "settings" for field, _ in self._pending) else self._state
        return state.view.snapshot.settings

    async def catch_up(self) -> None:
        """Returns once the state has everything that happened before this call."""
        await self._reflectors.catch_up()

    @property
    def versions(self) -> Mapping[str, str]:
        return self._reflectors.versions

    async def reach(self, versions: Mapping[str, str], seconds: float) -> bool:
        """Waits at most so many seconds until the state has everything that a process with these versions had; returns
        whether it has.

        It takes milliseconds where `catch_up` takes a second, because nothing has to prove that nothing else has
        happened.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not self._reflectors.reaches(versions):
            if clock() >= until:
                return False
            await asyncio.sleep(_REACH_CHECK_INTERVAL)
        return True

    async def fetch(self, missing: MissingObjectError) -> bool:
        """GETs an object that no watch has delivered; returns whether it exists.

        Raises:
            ResolutionError: it exists and cannot be read, or the API server does not answer
        """
        resource = _FETCH_RESOURCES.get(missing.kind)
        namespace, _, name = missing.name.rpartition("/")
        if resource is None or not name:
            return False
        kind = KINDS[resource.group, resource.kind]
        key: Key = (namespace, name) if namespace else name
        reflector = self._reflectors[kind.field]
        lists = reflector.status.lists
        with self.listening((kind.field, key)) as changed:
            raw = await self._get(missing, resource.path(namespace or self._namespace, name))
            if raw is None:
                return False
            # An object that a watch or a list delivered meanwhile may be newer, and a deletion, too.
            if not changed.is_set() and lists == reflector.status.lists:
                self._apply_object(kind, raw)
        log.info("fetched an object that no watch had brought", kind=resource.label, name=missing.name)
        return True

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Reads a pod that no watch has delivered; None if there is none.

        Raises:
            ResolutionError: the API server did not answer, or the pod cannot be read
        """
        # Without one of them the path would be that of a collection.
        if not namespace or not name:
            return None
        missing = MissingObjectError("Pod", f"{namespace}/{name}", "a request")
        raw = await self._get(missing, resources.PODS.path(namespace, name))
        if raw is None:
            return None
        try:
            _, pod = KINDS[resources.PODS.group, resources.PODS.kind].decode(raw)
        except ObjectError as error:
            raise ResolutionError(f"{error}, so nothing can be decided") from error
        return pod if isinstance(pod, Pod) else None

    async def _get(self, missing: MissingObjectError, path: str) -> bytes | None:
        try:
            return await self._client.get(path, seconds=FETCH_TIMEOUT)
        except ApiError as error:
            if error.not_found:
                return None
            raise ResolutionError(f"cannot look for {missing.kind} {missing.name}: {error}") from error

    def _apply_object(self, kind: SnapshotKind, raw: bytes) -> None:
        try:
            key, value = kind.decode(raw)
        except ObjectError as error:
            raise ResolutionError(f"{error}, so nothing can be decided") from error
        self.change(kind.field, key, value)

    @contextmanager
    def listening(self, *keys: ObjectKey) -> Iterator[asyncio.Event]:
        """Provides an event that is set when one of these objects (field of the snapshot, key in it) changes."""
        event = asyncio.Event()
        distinct = frozenset(keys)
        for key in distinct:
            self.listeners.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            for key in distinct:
                listeners = self.listeners[key]
                listeners.discard(event)
                if not listeners:
                    del self.listeners[key]

    def subscribe(self, field: str, observer: ChangeObserver) -> None:
        """Passes every later change of a field's objects to an observer, at the moment of the delivery."""
        self._observers.setdefault(field, []).append(observer)

    def _decoder(self, kind: SnapshotKind) -> Decode[object]:
        def decode(raw: bytes | msgspec.Raw) -> tuple[Key, object | None]:
            key, value = kind.decode(raw)
            # Pods that mount no claim occupy no volume, and most pods of a cluster are such.
            if isinstance(value, Pod) and not value.volumes:
                return key, None
            current = self._objects(kind.field).get(key)
            # Equal objects, and equal texts of different objects, are kept once.
            if current == value:
                return key, current
            intern_texts(value)
            return key, value

        return decode

    def _objects(self, field: str) -> Mapping[Key, object]:
        """Returns the state's objects of a field, without pending changes."""
        if self._state is None:
            return _NO_OBJECTS
        objects: Mapping[Key, object] = getattr(self._state.view.snapshot, field)
        return objects

    def replace(self, field: str, objects: Mapping[Key, object]) -> None:
        """Replaces all objects of a kind; called by reflectors."""
        if self._initial is not None:
            self._initial[field] = dict(objects)
            self._start()
            return
        current = self._objects(field)
        deleted = {key for key in current if key not in objects}
        for pending_field, key in list(self._pending):
            if pending_field == field:
                self.change(field, key, objects.get(key))
        for key in deleted:
            self.change(field, key, None)
        for key, value in objects.items():
            if current.get(key) is not value:
                self.change(field, key, value)

    def change(self, field: str, key: Key, value: object | None) -> None:
        """Adds, changes or deletes (None) one object; called by reflectors."""
        if self._initial is not None and field in self._initial:
            objects = self._initial[field]
            if value is None:
                objects.pop(key, None)
            else:
                objects[key] = value
            return
        if value is not None and value is self._objects(field).get(key) and (field, key) not in self._pending:
            # Most changes of a status change nothing that is read.
            return
        observers = self._observers.get(field)
        if observers:
            before = self._pending[field, key] if (field, key) in self._pending else self._objects(field).get(key)
            for observer in observers:
                observer(before, value)
        self._pending[field, key] = value
        for event in self.listeners.get((field, key), ()):
            event.set()

    def _start(self) -> ClusterState | None:
        """Makes the first state as soon as every kind has been listed."""
        if self._initial is None or self._initial.keys() != set(self._reflectors.keys()):
            return self._state
        snapshot: dict[str, Any] = {field: HashTrieMap(objects) for field, objects in self._initial.items()}
        self._initial = None
        self._state = ClusterState.of(build_view(Snapshot(**snapshot), self._now(), 1))
        self._synced.set()
        return self._state


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """One kind that decisions read."""

    resource: Resource
    required: bool = True  # whether nothing can be decided in a cluster without this kind

    @property
    def kind(self) -> SnapshotKind:
        return KINDS[self.resource.group, self.resource.kind]

    def namespace(self, longhorn: str) -> str:
        """Returns the namespace to list: Longhorn's for its kinds, else all ("")."""
        return longhorn if self.resource.group == LONGHORN_NODES.group else ""


DISRUPTION_BUDGETS: Final = WatchedKind(resources.DISRUPTION_BUDGETS, required=False)
CSI_NODES: Final = WatchedKind(resources.CSI_NODES, required=False)
"""Predictions read both, and `serve` reads neither: they are part of a snapshot only."""

WATCHED: Final = (
    WatchedKind(resources.NODES),
    WatchedKind(resources.PODS),
    WatchedKind(resources.CLAIMS),
    WatchedKind(resources.PERSISTENT_VOLUMES),
    WatchedKind(resources.STORAGE_CLASSES),
    WatchedKind(resources.VOLUME_ATTACHMENTS),
    WatchedKind(resources.LONGHORN_NODES),
    WatchedKind(resources.LONGHORN_VOLUMES),
    WatchedKind(resources.LONGHORN_REPLICAS),
    WatchedKind(resources.LONGHORN_SETTINGS),
    WatchedKind(resources.LONGHORN_ENGINE_IMAGES),
    WatchedKind(resources.LONGHORN_INSTANCE_MANAGERS),
    WatchedKind(resources.LONGHORN_BACKING_IMAGES, required=False),
    WatchedKind(resources.LONGHORN_BACKUPS, required=False),
    WatchedKind(resources.DISK_SCHEDULES, required=False),
    WatchedKind(resources.VOLUME_SNAPSHOTS, required=False),
    WatchedKind(resources.VOLUME_SNAPSHOT_CONTENTS, required=False),
)
