"""The cache of the live cluster: one reflector per kind keeps the state current that decisions read. `read_cluster` reads the
same kinds once, as a snapshot: every object that decisions read, with only the fields that they read.

Data flow: reflectors → the store keeps the latest value of each changed object → `state()` makes the next state from
them when a request needs it. So an event costs one dictionary entry, and a burst of events costs one update.

Nothing is decided before every kind has been listed. A kind that may be missing (its CRD is not installed) counts as empty.
The store (`store.py`) names a required kind that is missing, or a watch that has been silent for too long (`stale_after` of the settings).
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import structlog
from rpds import HashTrieMap

from app.kube import resources
from app.kube.client import ApiError, KubeClient, pages
from app.kube.reflector import Decode, Key, Timing
from app.kube.resources import LONGHORN_NODES, LONGHORN_SETTINGS, NAMESPACES, STATEFUL_SETS, Resource
from app.kube.store import Objects, Store, Watch, intern_texts
from scheduler_core import errors
from scheduler_core.cluster.update import build_view
from scheduler_core.convert.redact import (
    keep_selected_labels,
    redact,
    redact_namespace,
    redact_stateful_set,
    selects_namespaces,
)
from scheduler_core.convert.snapshot_kinds import KINDS, PREDICTED_KINDS, SnapshotKind, build_snapshot, group_of
from scheduler_core.decide.extender_settings import NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.longhorn.settings import FIELDS_BY_SETTING
from scheduler_core.model import installation, kube
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import Struct

log = structlog.get_logger("cache")

# Bounds a single GET on the way to an answer: kube-scheduler waits for it.
FETCH_TIMEOUT = 2.0
_REACH_CHECK_INTERVAL = 0.01
# The rules that read the time count seconds.
_CLOCK_STEP = timedelta(seconds=0.1)
ObjectKey = tuple[str, Key]
ChangeObserver = Callable[[object | None, object | None], None]
"""Receives an object as it was, and as a watch delivers it. None: it did not exist, or was deleted."""

# If one replica were left out, its volume would look unplaced. A missing object of any other kind only causes refusals.
_NEVER_UNREADABLE = frozenset({"replicas"})
# Where a missing object is fetched, by what the core's errors call its kind.
_FETCH_RESOURCES: Mapping[str, Resource] = {
    "PersistentVolumeClaim": resources.CLAIMS,
    "PersistentVolume": resources.PERSISTENT_VOLUMES,
    "Longhorn volume": resources.LONGHORN_VOLUMES,
    "StorageClass": resources.STORAGE_CLASSES,
}


class ClusterCache(Store):
    """Owner of the live state; every method must be called on the event loop that runs `run`."""

    def __init__(
        self, client: KubeClient, namespace: str, timing: Timing, now: Callable[[], datetime], stale_after: float
    ) -> None:
        super().__init__(client, timing, stale_after)
        self._namespace = namespace
        self._now = now
        self._state: ClusterState | None = None
        self.listeners: dict[ObjectKey, set[asyncio.Event]] = {}
        self._observers: dict[str, list[ChangeObserver]] = {}
        for entry in WATCHED:
            field = entry.kind.field
            objects = Objects[object]()
            objects.subscribe(partial(self._notify, field))
            watch = Watch(
                entry.resource,
                _decoder(entry.kind, objects),
                objects,
                entry.namespace(namespace),
                required=entry.required,
                hint="is Longhorn installed?",
                unreadable=f"{entry.resource.label}: " if field in _NEVER_UNREADABLE else None,
            )
            self.watch(field, watch)

    @property
    def problem(self) -> str:
        return self.problem_of() or ("" if self._start() else "not every kind is listed yet")

    @property
    def has_synced(self) -> bool:
        return self._start() is not None

    async def wait_for_sync(self) -> None:
        for objects in self.kinds.values():
            await objects.listed.wait()

    def state(self) -> ClusterState:
        """Returns the state after every change delivered so far. Raises a RuntimeError if not every kind has been
        listed; callers check `problem` first.
        """
        state = self._start()
        if state is None:
            raise RuntimeError("the cache has not been filled")
        now = self._now()
        changed = [(field, objects) for field, objects in self.kinds.items() if objects.latest]
        if not changed and timedelta() <= now - state.view.cluster.now < _CLOCK_STEP:
            return state
        changes = {(field, key): value for field, objects in changed for key, value in objects.latest.items()}
        self._state = state.update(changes, now)
        # Only after the update: if it fails, no change may be lost.
        for field, objects in changed:
            objects.rebase(getattr(self._state.view.snapshot, field))
        return self._state

    @property
    def latest_state(self) -> ClusterState | None:
        """The state that was read last, None before the first one. May be read from any thread."""
        return self._state

    @property
    def settings(self) -> Mapping[str, str]:
        """Longhorn's Setting objects; empty until every kind has been listed."""
        state = self._start()
        if state is None:
            return {}
        # They are read often, and change rarely: other changes wait for the next decision.
        return (self.state() if self["settings"].latest else state).view.snapshot.settings

    async def reach(self, versions: Mapping[str, str], seconds: float) -> bool:
        """Waits at most so many seconds until the state has everything that a process with these versions had; returns
        whether it has.

        It takes milliseconds where `catch_up` takes a second, because nothing has to prove that nothing else has
        happened.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not self.reaches(versions):
            if clock() >= until:
                return False
            await asyncio.sleep(_REACH_CHECK_INTERVAL)
        return True

    async def fetch(self, missing: errors.MissingObjectError) -> bool:
        """GETs an object that no watch has delivered; returns whether it exists. Raises a ResolutionError if it exists
        and cannot be read, or the API server does not answer.
        """
        resource = _FETCH_RESOURCES.get(missing.kind)
        namespace, _, name = missing.name.rpartition("/")
        if resource is None or not name:
            return False
        kind = KINDS[resource.group, resource.kind]
        key: Key = (namespace, name) if namespace else name
        status = self.status(kind.field)
        lists = status.lists
        with self.listening((kind.field, key)) as changed:
            raw = await self._get(missing, resource.path(namespace or self._namespace, name))
            if raw is None:
                return False
            # An object that a watch or a list delivered meanwhile may be newer, and a deletion, too.
            if not changed.is_set() and lists == status.lists:
                self[kind.field].change(*_decode(kind, raw))
        log.info("fetched an object that no watch had brought", kind=resource.label, name=missing.name)
        return True

    async def read_pod(self, namespace: str, name: str) -> kube.Pod | None:
        """Reads a pod that no watch has delivered; None if there is none. Raises a ResolutionError if the API server
        did not answer, or the pod cannot be read.
        """
        # Without one of them the path would be that of a collection.
        if not namespace or not name:
            return None
        missing = errors.MissingObjectError("Pod", f"{namespace}/{name}", "a request")
        raw = await self._get(missing, resources.PODS.path(namespace, name))
        _, pod = (None, None) if raw is None else _decode(KINDS[resources.PODS.group, resources.PODS.kind], raw)
        return pod if isinstance(pod, kube.Pod) else None

    async def _get(self, missing: errors.MissingObjectError, path: str) -> bytes | None:
        try:
            return await self._client.find(path, FETCH_TIMEOUT)
        except ApiError as error:
            raise errors.ResolutionError(f"cannot look for {missing.kind} {missing.name}: {error}") from error

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

    def _notify(self, field: str, key: Key, before: object | None, after: object | None) -> None:
        # Nothing was read before, so nothing has changed.
        if self._state is None:
            return
        for observer in self._observers.get(field, ()):
            observer(before, after)
        for event in self.listeners.get((field, key), ()):
            event.set()

    def _start(self) -> ClusterState | None:
        """Returns the state that was read last. Makes the first one as soon as every kind has been listed."""
        if self._state is None and all(objects.listed.is_set() for objects in self.kinds.values()):
            snapshot: dict[str, Any] = {field: HashTrieMap(objects.latest) for field, objects in self.kinds.items()}
            self._state = ClusterState.of(build_view(Snapshot(**snapshot), self._now(), 1))
            for field, objects in self.kinds.items():
                objects.rebase(snapshot[field])
        return self._state


def _decode(kind: SnapshotKind, raw: bytes) -> tuple[Key, object | None]:
    try:
        return kind.decode(raw)
    except errors.ObjectError as error:
        raise errors.ResolutionError(f"{error}, so nothing can be decided") from error


def _decoder(kind: SnapshotKind, objects: Objects[object]) -> Decode[object]:
    def decode(raw: bytes | msgspec.Raw) -> tuple[Key, object | None]:
        key, value = kind.decode(raw)
        # Pods that mount no claim occupy no volume, and most pods of a cluster are such.
        if isinstance(value, kube.Pod) and not value.volumes:
            return key, None
        current = objects.get(key)
        # Equal objects, and equal texts of different objects, are kept once.
        if current == value:
            return key, current
        intern_texts(value)
        return key, value

    return decode


class WatchedKind(Struct, frozen=True):
    """One kind that decisions read."""

    resource: Resource
    required: bool = True  # whether nothing can be decided in a cluster without this kind

    @property
    def kind(self) -> SnapshotKind:
        return KINDS[self.resource.group, self.resource.kind]

    def namespace(self, longhorn: str) -> str:
        return longhorn if self.resource.group == LONGHORN_NODES.group else ""


DISRUPTION_BUDGETS = WatchedKind(resources.DISRUPTION_BUDGETS, required=False)
CSI_NODES = WatchedKind(resources.CSI_NODES, required=False)
"""Predictions read both, and `serve` reads neither: they are part of a snapshot only."""

WATCHED = (
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


# The settings that decisions read; others may hold addresses and names that should stay private.
SETTINGS = frozenset({installation.ENABLED, NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT, *FIELDS_BY_SETTING})
_NO_NAMESPACES = "namespaces cannot be listed, so a namespaceSelector of a pod selects none"
_NO_BUDGETS = "poddisruptionbudgets.policy cannot be listed, so that what-if predicts evictions as if there were none"
_NO_CSI_NODES = (
    "csinodes.storage.k8s.io cannot be listed, so that Longhorn's CSI driver counts as registered on every node"
)
_NO_STATEFUL_SETS = "statefulsets.apps cannot be listed, so that what-if predicts the pods of every StatefulSet as created one after the other"
Report = Callable[[str], None]
Redact = Callable[[bytes | msgspec.Raw], dict[str, Any]]


async def read_cluster(client: KubeClient, namespace: str, progress: Report, warn: Report) -> list[dict[str, Any]]:
    """Lists the objects, ordered by kind and name. `namespace` is Longhorn's. `progress` receives the number of objects
    of each kind, `warn` what is missing or was left out. Raises an ApiError if a list is refused, or a required kind
    does not exist.
    """
    objects: list[dict[str, Any]] = []
    unwatched = ((DISRUPTION_BUDGETS, _NO_BUDGETS), (CSI_NODES, _NO_CSI_NODES))
    for entry, warning in (*((entry, "") for entry in WATCHED), *unwatched):
        path = entry.resource.path(entry.namespace(namespace))
        redact_entry = partial(redact, entry.kind, entry.resource.api_version)
        listed = await _list_objects(client, path, redact_entry, warn, warning, required=entry.required)
        if entry.resource is LONGHORN_SETTINGS:
            listed = [raw for raw in listed if raw["metadata"]["name"] in SETTINGS]
        progress(f"{len(listed)} {entry.resource.label}")
        objects += listed
    stateful_sets = await _list_objects(client, STATEFUL_SETS.path(), redact_stateful_set, warn, _NO_STATEFUL_SETS)
    progress(f"{len(stateful_sets)} {STATEFUL_SETS.label}")
    objects += stateful_sets
    if selects_namespaces(objects):
        objects += await _list_objects(client, NAMESPACES.path(), redact_namespace, warn, _NO_NAMESPACES)
    keep_selected_labels(objects)
    return objects


def as_snapshot(objects: list[dict[str, Any]]) -> Snapshot:
    """Returns the snapshot that a file with these objects would give. Raises an ObjectError if an object cannot be
    read.
    """
    kinds = [(PREDICTED_KINDS.get((group_of(entry["apiVersion"]), entry["kind"])), entry) for entry in objects]
    return build_snapshot((kind, entry) for kind, entry in kinds if kind is not None)


async def _list_objects(  # noqa: PLR0913 # what makes one list differ from another
    client: KubeClient, path: str, redact_object: Redact, warn: Report, warning: str, *, required: bool = True
) -> list[dict[str, Any]]:
    """Lists a kind. One that is not required may be absent. Without permission there are no objects if `warning` says
    what follows.
    """
    objects: list[dict[str, Any]] = []
    try:
        async for page in pages(client, path):
            for raw in page.items:
                try:
                    objects.append(redact_object(raw))
                except errors.ObjectError as error:
                    warn(f"left out: {error}")
    except ApiError as error:
        if error.forbidden and warning:
            warn(warning)
        elif required or not error.not_found:
            raise
        return []
    return sorted(objects, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))
