"""A watch cache's other half: lists a kind, watches it, and tells a sink what is there and what changed.

Data flow: paged list → `Sink.replaced` with everything at once → watch from there → `Sink.changed` per event, in order →
on a clean end, silence or a broken connection: watch again from the last resource version → on 410, an error event or an
event that cannot be understood: list again. A kind that does not exist (its CRD is missing) is an empty one, looked for again.
One object that cannot be decoded is left out, counted and named; it never stops the others from being read.

Facts behind it: bookmarks come about every minute, so 90 s of silence mean a dead connection; the API server ends a watch
at its `timeoutSeconds` and not before. `catch_up` reads the kind's newest version from etcd (one object's worth of list, for which
the API server first brings its own cache up to date) and then watches shortly: what the watch has delivered when it reaches
that version, or ends when it was meant to, is all there was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, Generic, Protocol, TypeVar

import aiohttp
import msgspec
import structlog
from aiohttp.http_exceptions import LineTooLong

from app.kube.client import ApiError, KubeClient
from app.kube.paging import newest_version, pages
from app.kube.resources import Resource
from scheduler_core.errors import ObjectError

log = structlog.get_logger("watch")

SILENCE_SECONDS: Final = 90.0
QUIET_SECONDS: Final = 70.0
WATCH_SECONDS: Final = (240, 290)
CATCH_UP_SECONDS: Final = 1
_ALMOST: Final = 0.9
_GRACE_SECONDS: Final = 15.0
_SHORTEST_BACKOFF: Final = 0.2
_LONGEST_BACKOFF: Final = 5.0
_MISSING_SECONDS: Final = 5.0
# A watch that breaks off sooner, without a word, has not proven that the API server can be heard.
_SOUND_SECONDS: Final = 1.0
# Far more than etcd can hold of one object.
_LONGEST_LINE: Final = 1 << 26
_TURN_EVENTS: Final = 64

Key = str | tuple[str, str]
_Value = TypeVar("_Value")
_Decoded = TypeVar("_Decoded", covariant=True)  # noqa: PLC0105
_Taken = TypeVar("_Taken", contravariant=True)  # noqa: PLC0105 # a protocol's parameter, named for what it does


class Sink(Protocol[_Taken]):
    """Who is told."""

    def replaced(self, objects: Mapping[Key, _Taken]) -> None:
        """The kind as a whole: what is not in `objects` is gone."""

    def changed(self, key: Key, value: _Taken | None) -> None:
        """One object is new or different; None: it is gone."""


class Decode(Protocol[_Decoded]):
    """Reads one object; a value of None means that the object does not matter, as if it were deleted.

    Raises:
        ObjectError: it cannot be read
    """

    def __call__(self, raw: bytes | msgspec.Raw) -> tuple[Key, _Decoded | None]:
        """Key and value of one object."""


class Phase(StrEnum):
    """How far a cache is."""

    STARTING = "starting"
    SYNCED = "synced"
    MISSING = "missing"  # the API server does not know the kind


class _Ended(Enum):
    CLEANLY = "the API server ended it when it was meant to end"
    THERE = "it has come as far as was asked"
    DISTURBED = "somebody wants to catch up"
    EARLY = "anything else"


@dataclass(slots=True)
class Standing:
    """What is known of one cache's freshness; read by readiness and metrics, written by its reflector only.

    Attributes:
        disconnected_at: monotonic seconds since when the cache may be behind; None while a watch is connected
        heard_at: when the last line of a watch came, or the watch began
        problem: the last trouble, "" when all is well
        unreadable: the objects left out because they cannot be decoded, with why
    """

    phase: Phase = Phase.STARTING
    disconnected_at: float | None = None
    heard_at: float = 0.0
    problem: str = ""
    resource_version: str = ""
    lists: int = 0
    events: int = 0
    unreadable: dict[Key | None, str] = field(default_factory=dict)

    def behind(self, now: float) -> float:
        """For how many seconds the cache may have been behind: cut off, or nothing heard for longer than bookmarks take."""
        quiet = max(0.0, now - self.heard_at - QUIET_SECONDS) if self.phase is Phase.SYNCED else 0.0
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
    """The watch cannot go on from where it is."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Time and chance, passed in. `between(a, b)` picks a number of seconds; `silence`: after how many a watch is dead."""

    clock: Callable[[], float]
    between: Callable[[float, float], float]
    silence: float = SILENCE_SECONDS


class Reflector(Generic[_Value]):
    """Keeps one sink up to date with one kind, until cancelled."""

    def __init__(  # noqa: PLR0913 # what makes one reflector differ from another
        self,
        client: KubeClient,
        resource: Resource,
        decode: Decode[_Value],
        sink: Sink[_Value],
        timing: Timing,
        *,
        namespace: str = "",
        field_selector: str = "",
    ) -> None:
        self.label = resource.label
        self.standing = Standing(disconnected_at=timing.clock())
        self._client = client
        self._decode = decode
        self._sink = sink
        self._timing = timing
        self._path = resource.path(namespace)
        self._query = {"fieldSelector": field_selector} if field_selector else {}
        self._backoff = _SHORTEST_BACKOFF
        self._watching: asyncio.Task[_Ended] | None = None
        self._wanted = 0
        self._caught_up = 0
        self._asking = 0
        self._hurry = asyncio.Event()
        self._progress = asyncio.Event()

    async def run(self) -> None:
        """Lists and watches forever."""
        while True:
            try:
                await self._list()
                await self._watch_on()
            except _RelistError as error:
                self._trouble(str(error))
            except ApiError as error:
                self._refused(error)
                if error.not_found:
                    await self._sleep(_MISSING_SECONDS)
                    continue
            except (TimeoutError, aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
                self._trouble(f"{self.label}: {_text(error)}")
            await self._wait()

    async def catch_up(self) -> None:
        """Returns once everything that had happened when this was called has been told to the sink."""
        self._wanted += 1
        wanted = self._wanted
        self._hurry.set()
        if self._watching is not None:
            self._watching.cancel()
        while self._caught_up < wanted:
            self._progress.clear()
            await self._progress.wait()

    def _reached(self, wanted: int) -> None:
        self._caught_up = max(self._caught_up, wanted)
        self._progress.set()

    async def _list(self) -> None:
        objects: dict[Key, _Value] = {}
        unreadable: dict[Key | None, str] = {}
        self._asking = wanted = self._wanted
        version = ""
        async for page in pages(self._client, self._path, self._query):
            for raw in page.items:
                self._take(raw, objects, unreadable)
            version = page.resource_version
            await asyncio.sleep(0)
        standing = self.standing
        standing.unreadable = unreadable
        standing.resource_version = version
        standing.lists += 1
        self._sink.replaced(objects)
        self._connected()
        self._reached(wanted)

    def _take(self, raw: msgspec.Raw, objects: dict[Key, _Value], unreadable: dict[Key | None, str]) -> None:
        try:
            key, value = self._decode(raw)
        except ObjectError as error:
            unreadable[_key(raw)] = str(error)
            log.warning("left out an object that cannot be read", problem=str(error))
            return
        if value is not None:
            objects[key] = value

    async def _watch_on(self) -> None:
        """Watches again and again, as long as that goes on from where the last watch ended."""
        while True:
            wanted = self._wanted
            short = self._caught_up < wanted
            ended = await self._until_disturbed(self._watch(self._watch_seconds(short=short), short=short))
            if short and ended in (_Ended.CLEANLY, _Ended.THERE):
                self._reached(wanted)
            if ended is _Ended.EARLY:
                await self._wait()

    async def _until_disturbed(self, watch: Coroutine[None, None, _Ended]) -> _Ended:
        """One watch to its end, or until somebody wants to catch up."""
        watching = asyncio.create_task(watch, name=f"watch {self.label}")
        self._watching = watching
        try:
            await asyncio.wait({watching})
        finally:
            self._watching = None
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return _Ended.DISTURBED if watching.cancelled() else watching.result()

    def _watch_seconds(self, *, short: bool) -> int:
        return CATCH_UP_SECONDS if short else int(self._timing.between(*WATCH_SECONDS))

    async def _watch(self, seconds: int, *, short: bool) -> _Ended:
        """One watch to its end; a short one at most to the version that is the newest now."""
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.standing.resource_version,
            "timeoutSeconds": str(seconds),
        }
        standing, clock = self.standing, self._timing.clock
        lost_at, events, began = standing.disconnected_at, standing.events, clock()
        try:
            goal = await newest_version(self._client, self._path, self._query) if short else ""
            began = clock()
            async with self._client.lines(self._path, query, seconds + _GRACE_SECONDS) as stream:
                self._connected()
                while not _reaches(standing.resource_version, goal):
                    async with asyncio.timeout(self._timing.silence):
                        line = await stream.readline(max_line_length=_LONGEST_LINE)
                    if not line and clock() - began >= _ALMOST * seconds:
                        return _Ended.CLEANLY
                    if not line:
                        self._trouble(f"{self.label}: the API server ended the watch early")
                        break
                    standing.heard_at = clock()
                    self._heard(line)
                    if standing.events % _TURN_EVENTS == 0:
                        await asyncio.sleep(0)  # what is received already is read without a pause
                else:
                    return _Ended.THERE
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._trouble(f"{self.label}: watch broke off: {_text(error)}")
        except LineTooLong as error:
            raise _RelistError(f"{self.label}: the watch sent an event without end") from error
        except ApiError as error:
            if not error.unreachable:
                raise
            self._trouble(str(error))
        finally:
            if clock() - began >= _LONGEST_BACKOFF:
                self._backoff = _SHORTEST_BACKOFF
        if standing.events == events and clock() - began < _SOUND_SECONDS and lost_at is not None:
            standing.disconnected_at = lost_at
        return _Ended.EARLY

    def _heard(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line, type=_Event)
        except msgspec.DecodeError as error:
            raise _RelistError(f"{self.label}: the watch sent something else than events: {error}") from error
        self.standing.events += 1
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            raise _RelistError(f"{self.label}: the watch ended: {status.message} (HTTP {status.code})")
        meta = msgspec.json.decode(event.object, type=_Object).metadata
        if event.type != "BOOKMARK":
            self._changed(event, meta)
        self.standing.resource_version = meta.resource_version

    def _changed(self, event: _Event, meta: _Meta) -> None:
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise _RelistError(f"{self.label}: the watch sent an unknown event {event.type}")
        name: Key | None = (meta.namespace, meta.name)
        try:
            key, value = self._decode(event.object)
        except ObjectError as error:
            if event.type != "DELETED":
                self.standing.unreadable[name] = str(error)
                log.warning("an object cannot be read, its last readable state stays", problem=str(error))
                return
            raise _RelistError(f"{self.label}: a deleted object cannot be read") from error
        self.standing.unreadable.pop(name, None)
        self._sink.changed(key, None if event.type == "DELETED" else value)

    def _connected(self) -> None:
        self.standing.phase = Phase.SYNCED
        self.standing.disconnected_at = None
        self.standing.heard_at = self._timing.clock()
        self.standing.problem = ""

    def _trouble(self, problem: str) -> None:
        standing = self.standing
        if standing.disconnected_at is None:
            standing.disconnected_at = self._timing.clock()
        if standing.problem != problem:
            log.warning("watch interrupted", kind=self.label, problem=problem)
        standing.problem = problem

    def _refused(self, error: ApiError) -> None:
        self._trouble(str(error))
        if not error.not_found:
            return
        self.standing.disconnected_at = None
        if self.standing.phase is not Phase.MISSING:
            self.standing.phase = Phase.MISSING
            self.standing.unreadable = {}
            self._sink.replaced({})
        self._reached(self._asking)

    async def _wait(self) -> None:
        await self._sleep(self._timing.between(self._backoff / 2, self._backoff))
        self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF)

    async def _sleep(self, seconds: float) -> None:
        """Sleeps, unless somebody wants to catch up."""
        try:
            async with asyncio.timeout(0 if self._caught_up < self._wanted else seconds):
                await self._hurry.wait()
        except TimeoutError:
            return
        finally:
            self._hurry.clear()


def _key(raw: msgspec.Raw) -> Key | None:
    try:
        meta = msgspec.json.decode(raw, type=_Object).metadata
    except msgspec.DecodeError:
        return None
    return (meta.namespace, meta.name)


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _reaches(version: str, goal: str) -> bool:
    """Whether a resource version is another or a later one; False where they cannot be compared."""
    return version.isdigit() and goal.isdigit() and int(version) >= int(goal)
