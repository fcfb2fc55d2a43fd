"""A reflector lists and watches one kind of object, and passes the objects and their changes to a handler.

Data flow: paged list → `WatchHandler.replace` with everything at once → watch from there → `WatchHandler.change` per event, in order. After
a clean end, silence or a broken connection the reflector watches again from the last resource version. After 410, an error event or an
event that cannot be understood it lists again. A kind that does not exist (its CRD is missing) counts as empty and is retried. An object
that cannot be decoded is left out, counted and named; the others are read.

Facts: bookmarks come about every minute, so 90 s of silence mean a dead connection. The API server ends a watch at its
`timeoutSeconds` and not before. `catch_up` reads the kind's newest version from etcd (a list of one object, for which the
API server first brings its own cache up to date) and then watches briefly. Everything that happened before has been delivered once the
watch reaches that version, or ends at its time-out.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from enum import Enum, StrEnum
from typing import Generic, Protocol, TypeVar

import aiohttp
import msgspec
import structlog
from aiohttp.http_exceptions import LineTooLong

from app.kube.client import ApiError, KubeClient, newest_version, one_line, pages
from app.kube.resources import Resource
from scheduler_core import errors
from scheduler_core.backoff import Backoff
from scheduler_core.model.quantity import format_bytes
from scheduler_core.structs import Struct

log = structlog.get_logger("watch")

SILENCE_TIMEOUT = 90.0
# More than the minute between bookmarks: a watch that is only idle must not count as behind.
QUIET_SECONDS = 70.0
# At random between them, so that the watches of all kinds do not end at one moment.
WATCH_SECONDS = (240, 290)
# For a kind in which nothing happens: everything has been delivered when a watch ends at its time-out.
CATCH_UP_SECONDS = 1
# If a watch lasted for this share of its `timeoutSeconds`, the API server ended it at its time-out.
_FULL_WATCH_SHARE = 0.9
# The API server ends a watch at its `timeoutSeconds`. Only one that has not done so by then is cut off from here.
_GRACE_SECONDS = 15.0
_BACKOFF = Backoff(0.2, 5.0)
# A definition may be installed at any time; that it is missing is no failure, for which pauses would grow.
_MISSING_RETRY_INTERVAL = 5.0
# A watch that ends sooner, without an event, does not prove that the connection works.
_MIN_SOUND_SECONDS = 1.0
_EVENTS_PER_TURN = 64
_NO_SELECTORS: Mapping[str, str] = {}

Key = str | tuple[str, str]
_Value = TypeVar("_Value")
_Value_co = TypeVar("_Value_co", covariant=True)
_Value_contra = TypeVar("_Value_contra", contravariant=True)


class WatchHandler(Protocol[_Value_contra]):
    """Receives the results of list and watch."""

    def replace(self, objects: Mapping[Key, _Value_contra]) -> None:
        """Takes all objects of the kind. Every object that is not in `objects` was deleted."""

    def change(self, key: Key, value: _Value_contra | None) -> None:
        """Takes one object that was added, changed or deleted (None)."""


class Decode(Protocol[_Value_co]):
    """Decodes one object. A value of None means that the object does not matter, as if it were deleted. Raises an
    ObjectError if it cannot be read.
    """

    def __call__(self, raw: bytes | msgspec.Raw) -> tuple[Key, _Value_co | None]:
        """Returns the key and the value of one object."""


class Phase(StrEnum):
    """The progress of a cache."""

    STARTING = "starting"
    SYNCED = "synced"
    MISSING = "missing"  # the API server does not know the kind


class _WatchEnd(Enum):
    CLEANLY = "the API server ended it at its time-out"
    REACHED_TARGET = "it reached the version that was asked for"
    INTERRUPTED = "a caller waits to catch up"
    DROPPED = "anything else"


class CacheStatus(Struct):
    """The freshness of one cache, for readiness and metrics. Only its reflector writes it."""

    phase: Phase = Phase.STARTING
    # Since when, on the reflector's clock, the cache may be behind; None while a watch is connected.
    disconnected_at: float | None = None
    last_line_at: float = 0.0  # when the last line of a watch came, or the watch began
    problem: str = ""  # the last problem, "" if there is none
    resource_version: str = ""  # what the cache has reached, by its list, by events and by bookmarks
    # The version of the list or of the newest event, which the watch of any process delivers, too.
    changed_version: str = ""
    lists: int = 0
    events: int = 0
    # The objects that were left out because they cannot be decoded, and why.
    unreadable: dict[Key | None, str] = {}

    def behind(self, now: float) -> float:
        """Returns for how many seconds the cache may have been behind, because it is disconnected, or silent for longer
        than bookmarks take.
        """
        quiet = max(0.0, now - self.last_line_at - QUIET_SECONDS) if self.phase is Phase.SYNCED else 0.0
        return quiet if self.disconnected_at is None else max(quiet, now - self.disconnected_at)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


class _RelistError(Exception):
    """The watch cannot continue from its version."""


class Timing(Struct, frozen=True):
    """The clock and the randomness of a reflector."""

    clock: Callable[[], float]  # monotonic seconds
    between: Callable[[float, float], float]  # returns a random number of seconds between two bounds
    silence: float = SILENCE_TIMEOUT  # after this many seconds without a line a watch counts as dead


class Reflector(Generic[_Value]):
    """Keeps a handler up to date with one kind until cancelled.

    Args:
        selectors: query parameters that restrict the objects, such as ``labelSelector``
    """

    def __init__(  # noqa: PLR0913 # what makes one reflector differ from another
        self,
        client: KubeClient,
        resource: Resource,
        decode: Decode[_Value],
        handler: WatchHandler[_Value],
        timing: Timing,
        *,
        namespace: str = "",
        selectors: Mapping[str, str] = _NO_SELECTORS,
    ) -> None:
        self.label = resource.label
        self.status = CacheStatus(disconnected_at=timing.clock())
        self._client = client
        self._decode = decode
        self._handler = handler
        self._timing = timing
        self._path = resource.path(namespace)
        self._query = dict(selectors)
        self._attempts = 0
        # The type of this kind's keys; None until an object could be read.
        self._key_type: type | None = None
        self._watch_task: asyncio.Task[_WatchEnd] | None = None
        # Calls of `catch_up` are numbered; all up to `_caught_up` are done.
        self._requested = 0
        self._caught_up = 0
        self._listing_for = 0
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        while True:
            try:
                await self._list()
                await self._watch_repeatedly()
            except _RelistError as error:
                self._note_problem(str(error))
            except ApiError as error:
                self._handle_refusal(error)
                if error.not_found:
                    await self._sleep(_MISSING_RETRY_INTERVAL)
                    continue
            except (TimeoutError, aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
                self._note_problem(f"{self.label}: {one_line(error)}")
            await self._back_off()

    async def catch_up(self) -> None:
        """Returns once the handler has everything that happened before this call."""
        self._requested += 1
        request = self._requested
        self._wake.set()
        if self._watch_task is not None:
            self._watch_task.cancel()
        while self._caught_up < request:
            self._progress.clear()
            await self._progress.wait()

    def reaches(self, version: str) -> bool:
        return _reaches(self.status.resource_version, version)

    def _mark_caught_up(self, request: int) -> None:
        self._caught_up = max(self._caught_up, request)
        self._progress.set()

    async def _list(self) -> None:
        objects: dict[Key, _Value] = {}
        unreadable: dict[Key | None, str] = {}
        request = self._requested
        self._listing_for = request
        version = ""
        async for page in pages(self._client, self._path, self._query):
            for raw in page.items:
                self._decode_into(objects, unreadable, raw)
            version = page.resource_version
            await asyncio.sleep(0)
        self.status.unreadable = unreadable
        self.status.resource_version = version
        self.status.changed_version = version
        self.status.lists += 1
        self._handler.replace(objects)
        self._note_connection()
        self._mark_caught_up(request)

    def _decode_into(self, objects: dict[Key, _Value], unreadable: dict[Key | None, str], raw: msgspec.Raw) -> None:
        try:
            key, value = self._decode(raw)
        except errors.ObjectError as error:
            name: Key | None = None
            with suppress(msgspec.DecodeError):
                meta = msgspec.json.decode(raw, type=_Object).metadata
                name = (meta.namespace, meta.name)
            unreadable[name] = str(error)
            log.warning("left out an object that cannot be read", problem=str(error))
            return
        self._key_type = type(key)
        if value is not None:
            objects[key] = value

    async def _watch_repeatedly(self) -> None:
        while True:
            request = self._requested
            short = self._caught_up < request
            end = await self._run_watch(self._watch(short=short))
            if short and end in (_WatchEnd.CLEANLY, _WatchEnd.REACHED_TARGET):
                self._mark_caught_up(request)
            if end is _WatchEnd.DROPPED:
                await self._back_off()

    async def _run_watch(self, watch: Coroutine[None, None, _WatchEnd]) -> _WatchEnd:
        """Runs one watch until it ends or `catch_up` interrupts it."""
        task = asyncio.create_task(watch, name=f"watch {self.label}")
        self._watch_task = task
        try:
            await asyncio.wait({task})
        finally:
            self._watch_task = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return _WatchEnd.INTERRUPTED if task.cancelled() else task.result()

    async def _watch(self, *, short: bool) -> _WatchEnd:
        """Runs one watch; a short one ends once it reaches the version that is the newest now."""
        seconds = CATCH_UP_SECONDS if short else int(self._timing.between(*WATCH_SECONDS))
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.status.resource_version,
            "timeoutSeconds": str(seconds),
        }
        status = self.status
        clock = self._timing.clock
        disconnected_at = status.disconnected_at
        events = status.events
        began = clock()
        try:
            target = await newest_version(self._client, self._path, self._query) if short else ""
            # The time-out of the watch begins with it, after the call before.
            began = clock()
            watch = self._client.watch(self._path, query, seconds + _GRACE_SECONDS)
            async with watch as stream, asyncio.timeout(self._timing.silence) as silence:
                self._note_connection()
                while not _reaches(status.resource_version, target):
                    # One time-out that moves costs less than one for each line.
                    silence.reschedule(asyncio.get_running_loop().time() + self._timing.silence)
                    line = await stream.readline(max_line_length=self._client.memory.event)
                    if not line and clock() - began >= _FULL_WATCH_SHARE * seconds:
                        return _WatchEnd.CLEANLY
                    if not line:
                        self._note_problem(f"{self.label}: the API server ended the watch early")
                        break
                    status.last_line_at = clock()
                    self._handle_line(line)
                    if status.events % _EVENTS_PER_TURN == 0:
                        # Buffered lines are read without yielding to other tasks.
                        await asyncio.sleep(0)
                else:
                    return _WatchEnd.REACHED_TARGET
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._note_problem(f"{self.label}: watch broke off: {one_line(error)}")
        except LineTooLong as error:
            text = f"the watch sent an event without end, of more than {format_bytes(self._client.memory.event)}"
            raise _RelistError(f"{self.label}: {text}") from error
        except ApiError as error:
            if not error.unreachable:
                raise
            self._note_problem(str(error))
        finally:
            if clock() - began >= _BACKOFF.longest:
                self._attempts = 0
        if status.events == events and clock() - began < _MIN_SOUND_SECONDS and disconnected_at is not None:
            status.disconnected_at = disconnected_at
        return _WatchEnd.DROPPED

    def _handle_line(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line, type=_Event)
        except msgspec.DecodeError as error:
            raise _RelistError(f"{self.label}: the watch sent something else than events: {error}") from error
        self.status.events += 1
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            raise _RelistError(f"{self.label}: the watch ended: {status.message} (HTTP {status.code})")
        meta = msgspec.json.decode(event.object, type=_Object).metadata
        if event.type != "BOOKMARK":
            self._handle_event(event, (meta.namespace, meta.name))
            self.status.changed_version = meta.resource_version
        self.status.resource_version = meta.resource_version

    def _handle_event(self, event: _Event, name: tuple[str, str]) -> None:
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise _RelistError(f"{self.label}: the watch sent an unknown event {event.type}")
        deleted = event.type == "DELETED"
        self.status.unreadable.pop(name, None)
        try:
            key, value = self._decode(event.object)
        except errors.ObjectError as error:
            if not deleted:
                self.status.unreadable[name] = str(error)
                log.warning("left out an object that cannot be read", problem=str(error))
            # The next process would start without the object, so this one must not keep its last readable state.
            if self._key_type is not None:
                self._handler.change(name if self._key_type is tuple else name[1], None)
            return
        self._key_type = type(key)
        self._handler.change(key, None if deleted else value)

    def _note_connection(self) -> None:
        self.status.phase = Phase.SYNCED
        self.status.disconnected_at = None
        self.status.last_line_at = self._timing.clock()
        self.status.problem = ""

    def _note_problem(self, problem: str) -> None:
        status = self.status
        if status.disconnected_at is None:
            status.disconnected_at = self._timing.clock()
        if status.problem != problem:
            log.warning("watch interrupted", kind=self.label, problem=problem)
        status.problem = problem

    def _handle_refusal(self, error: ApiError) -> None:
        self._note_problem(str(error))
        if not error.not_found:
            return
        self.status.disconnected_at = None
        if self.status.phase is not Phase.MISSING:
            self.status.phase = Phase.MISSING
            self.status.unreadable = {}
            self._handler.replace({})
        self._mark_caught_up(self._listing_for)

    async def _back_off(self) -> None:
        delay = _BACKOFF.delay(self._attempts)
        await self._sleep(self._timing.between(delay / 2, delay))
        self._attempts += 1

    async def _sleep(self, seconds: float) -> None:
        """Sleeps unless a caller waits to catch up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self._caught_up < self._requested else seconds):
                await self._wake.wait()
        self._wake.clear()


def _reaches(version: str, target: str) -> bool:
    return version.isdigit() and target.isdigit() and int(version) >= int(target)
