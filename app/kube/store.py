"""The objects of the API server that this process watches, and how current they are. Every cache is made of it.

Data flow: `Store.watch` has a reflector list and watch one kind → `Objects.replace` takes the list, `Objects.change` each event →
subscribers, with the object before and after. `Store.problem` says why a kind cannot be used now.

What the caches add:

cluster_cache    One `ClusterState` of all kinds. Each state is the base of the next changes, so that an object is stored
                 once, and a burst of events costs one update.
generic_cache    One `GenericClusterState` of the kinds that a policy reads, made from the keys of changed objects.
ConfigMapCache   The data of one ConfigMap (below).
disk_schedule    An `Informer` per kind: objects with version and bytes. The response to a write counts before the watch
                 delivers it, and later events of older versions do not. Indexes by disk subscribe to the informers.

Equal texts in different objects become one (`intern_texts`), which saves memory. Names, images, labels and times occur in thousands of
objects, and each occurrence was decoded into its own text.
"""

import asyncio
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import structs

from app.kube.client import KubeClient
from app.kube.reflector import CacheStatus, Decode, Key, Phase, Reflector, Timing
from app.kube.resources import CONFIG_MAPS, Resource
from scheduler_core.convert import kube, wire_types
from scheduler_core.structs import Struct, field, is_struct_type

MAX_UNREADABLE_LISTED = 50
_Value = TypeVar("_Value")


class Objects(Generic[_Value]):
    """The objects of one kind, by key."""

    def __init__(self) -> None:
        self.listed = asyncio.Event()
        self.latest: dict[Key, _Value | None] = {}  # what differs from the base; None: deleted
        self._base: Mapping[Key, _Value] = {}
        self._handlers: list[Callable[[Any, Any, Any], None]] = []

    def subscribe(self, handler: Callable[[Any, Any, Any], None]) -> None:
        """Calls a handler with the key, and the object before and after, at every later delivery; None: it does not
        exist.
        """
        self._handlers.append(handler)

    def get(self, key: Key) -> _Value | None:
        return self.latest[key] if key in self.latest else self._base.get(key)

    def keys(self) -> Iterator[Key]:
        yield from (key for key in self._base if key not in self.latest)
        yield from (key for key, value in self.latest.items() if value is not None)

    def values(self) -> Iterator[_Value]:
        return (value for key in self.keys() if (value := self.get(key)) is not None)

    def rebase(self, base: Mapping[Key, _Value]) -> None:
        self._base = base
        self.latest = {}

    def replace(self, objects: Mapping[Key, _Value]) -> None:
        """Replaces all objects; called by the reflector."""
        for key in [key for key in self.keys() if key not in objects]:
            self._set(key, None)
        for key, value in objects.items():
            if self.get(key) is not value:
                self._set(key, value)
        self.listed.set()

    def change(self, key: Key, value: _Value | None) -> None:
        # Most changes of a status change nothing that is read, and the decoder then returns the object that is here.
        if value is None or value is not self.get(key):
            self._set(key, value)

    def _set(self, key: Key, value: _Value | None) -> None:
        before = self.get(key)
        if value is None and key not in self._base:
            self.latest.pop(key, None)
        else:
            self.latest[key] = value
        self._notify(key, before, value)

    def _notify(self, key: Key, before: _Value | None, after: _Value | None) -> None:
        for handler in self._handlers:
            handler(key, before, after)


class Watch(Struct, frozen=True):
    """How the objects of one kind are watched, and when they cannot be used."""

    resource: Resource
    decode: Decode[Any]
    objects: Objects[Any] = field(default_factory=Objects[Any])
    namespace: str = ""  # "" for all
    selectors: Mapping[str, str] = {}  # query parameters that restrict the objects
    label: str = ""  # the kind's name in problems, "" for that of the resource
    required: bool = True  # whether the API server must know the kind; otherwise an unknown kind counts as empty
    # What to do if the API server does not know a required kind, "" for nothing in particular; None if such a kind
    # counts as not listed yet.
    hint: str | None = None
    # The beginning of the problem, if one object that cannot be read makes the whole kind unusable; None if it does
    # not.
    unreadable: str | None = None

    @property
    def name(self) -> str:
        return self.label or self.resource.label


class _Member(Struct, frozen=True):
    watch: Watch
    reflector: Reflector[Any]


class Store:
    """Owner of the objects of some kinds; kinds may come and go while it runs. Every method must be called on the event
    loop that runs `run`.

    Args:
        stale_after: seconds without a message of the API server about a kind, after which the kind cannot be used
    """

    def __init__(self, client: KubeClient, timing: Timing, stale_after: float) -> None:
        self._client = client
        self._timing = timing
        self._stale_after = stale_after
        self._members: dict[str, _Member] = {}
        self._changed = asyncio.Event()

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def __getitem__(self, key: str) -> Objects[Any]:
        return self._members[key].watch.objects

    @property
    def kinds(self) -> dict[str, Objects[Any]]:
        return {key: member.watch.objects for key, member in self._members.items()}

    def watch(self, key: str, watch: Watch) -> None:
        """Watches one more kind from now on."""
        reflector = Reflector(
            self._client,
            watch.resource,
            watch.decode,
            watch.objects,
            self._timing,
            namespace=watch.namespace,
            selectors=watch.selectors,
        )
        self._members[key] = _Member(watch, reflector)
        self._changed.set()

    def remove(self, key: str) -> None:
        del self._members[key]
        self._changed.set()

    async def run(self) -> None:
        """Lists and watches every kind until cancelled."""
        tasks: dict[Reflector[Any], asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                reflectors = {member.reflector for member in self._members.values()}
                for reflector in tasks.keys() - reflectors:
                    tasks.pop(reflector).cancel()
                for reflector in reflectors - tasks.keys():
                    tasks[reflector] = group.create_task(reflector.run(), name=f"watch {reflector.label}")
                await self._changed.wait()

    async def catch_up(self) -> None:
        """Returns once the objects have everything that happened before this call."""
        async with asyncio.TaskGroup() as group:
            for member in self._members.values():
                group.create_task(member.reflector.catch_up())

    @property
    def versions(self) -> Mapping[str, str]:
        statuses = {key: member.reflector.status for key, member in self._members.items()}
        return {key: status.changed_version for key, status in statuses.items() if status.phase is Phase.SYNCED}

    def reaches(self, versions: Mapping[str, str]) -> bool:
        """Whether each kind that is listed has everything up to its version."""
        return all(
            key in versions and member.reflector.reaches(versions[key])
            for key, member in self._members.items()
            if member.reflector.status.phase is not Phase.MISSING
        )

    def status(self, key: str) -> CacheStatus:
        return self._members[key].reflector.status

    @property
    def statuses(self) -> Mapping[str, CacheStatus]:
        return {member.watch.name: member.reflector.status for member in self._members.values()}

    @property
    def unreadable(self) -> list[str]:
        """The objects that are left out because they cannot be read, and why; at most `MAX_UNREADABLE_LISTED`."""
        problems = (
            f"{label}: {problem}" for label, status in self.statuses.items() for problem in status.unreadable.values()
        )
        return list(islice(problems, MAX_UNREADABLE_LISTED))

    @property
    def problem(self) -> str:
        """Why the objects cannot be used now, in one sentence, or ""."""
        return self.problem_of()

    def problem_of(self, keys: Iterable[str] | None = None) -> str:
        """Returns why a kind cannot be used now, or "". With `keys` only these kinds are checked."""
        now = self._timing.clock()
        problems = (self._problem(key, now) for key in (self._members if keys is None else keys))
        return next(filter(None, problems), "")

    def _problem(self, key: str, now: float) -> str:
        member = self._members.get(key)
        if member is None:
            return f"{key} not listed yet"
        watch = member.watch
        status = member.reflector.status
        missing = status.phase is Phase.MISSING and watch.required
        if status.phase is Phase.STARTING or (missing and watch.hint is None):
            return f"{watch.name} not listed yet" + (f": {status.problem}" if status.problem else "")
        if missing:
            return f"the API server knows no {watch.name}" + (f": {watch.hint}" if watch.hint else "")
        if watch.unreadable is not None and status.unreadable:
            return watch.unreadable + next(iter(status.unreadable.values()))
        behind = status.behind(now)
        if status.phase is Phase.SYNCED and behind > self._stale_after:
            return f"{watch.name} not heard of for {behind:.0f} s: {status.problem}"
        return ""


_NO_DATA: Mapping[str, str] = {}


class ConfigMapCache(Store):
    """Keeps the data of one ConfigMap. Once it has been listed, the latest data never counts as stale."""

    def __init__(self, client: KubeClient, namespace: str, name: str, timing: Timing) -> None:
        super().__init__(client, timing, math.inf)
        self._name = name
        selectors = {"fieldSelector": f"metadata.name={name}"}
        watch = Watch(CONFIG_MAPS, _decode, namespace=namespace, selectors=selectors, label="ConfigMap", required=False)
        self.watch(name, watch)

    @property
    def data(self) -> Mapping[str, str]:
        """Another mapping after every change."""
        return next(self[self._name].values(), _NO_DATA)


def _decode(raw: bytes | msgspec.Raw) -> tuple[Key, Mapping[str, str] | None]:
    config_map = wire_types.decode_json("ConfigMap", raw, kube.ConfigMap)
    return config_map.metadata.name, config_map.data or {}


_FIELDS: dict[type, tuple[tuple[str, Any], ...]] = {}


def intern_texts(value: Any) -> None:
    """Replaces the texts inside a frozen value by interned ones. The value stays equal to what it was; it must be new,
    because it is changed in place. Python drops an interned text that is not used any more.
    """
    for name, default in _fields(type(value)):
        current = getattr(value, name)
        if current is not default and (interned := _intern(current)) is not current:
            structs.force_setattr(value, name, interned)


def _intern(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return sys.intern(value)
    if kind is tuple:
        return tuple(map(_intern, value)) if value else value
    if kind is dict:
        return {_intern(key): _intern(entry) for key, entry in value.items()}
    if kind is frozenset:
        return frozenset(map(_intern, value))
    if _fields(kind):
        intern_texts(value)
    return value


def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """The names of a struct's fields with their defaults, which all its values share already."""
    known = _FIELDS.get(kind)
    if known is None:
        known = tuple((entry.name, entry.default) for entry in structs.fields(kind)) if is_struct_type(kind) else ()
        _FIELDS[kind] = known
    return known
