"""A reflector lists and watches a kind, whatever the API server or a proxy in front of it does."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from app.kube.answer_memory import AnswerMemory, resident_memory
from app.kube.client import KubeClient
from app.kube.reflector import QUIET_SECONDS, CacheStatus, Key, Phase, Reflector, Timing
from app.kube.resources import Resource
from scheduler_core.backoff import Backoff
from scheduler_core.convert.snapshot_kinds import KINDS, SnapshotKind
from scheduler_core.errors import ObjectError
from tests.worlds.fake_api import FakeApi, Object, connect_client, event, failing, sending, silent, until
from tests.worlds.stopwatch import Stopwatch

THINGS = Resource("", "v1", "things", "Thing", namespaced=True)
PATH = THINGS.path()
MIB = 1024**2


def thing(name: str, value: object = 0) -> Object:
    """An object whose value `decode` reads; it cannot be read if the value is no number."""
    return {"metadata": {"namespace": "n", "name": name}, "value": value}


def decode(raw: bytes | msgspec.Raw) -> tuple[Key, int | None]:
    """Reads the value; None if it is negative."""
    read = msgspec.json.decode(raw)
    if not isinstance(read.get("value"), int):
        raise ObjectError(f"Thing {read['metadata'].get('name')}", "value", "is no number")
    return ("n", read["metadata"]["name"]), read["value"] if read["value"] >= 0 else None


class RecordingHandler:
    """Receives the results of the reflector: the current objects, and the calls in order."""

    def __init__(self) -> None:
        self.objects: dict[Key, int] = {}
        self.calls: list[str] = []

    def replace(self, objects: Mapping[Key, int]) -> None:
        self.objects = dict(objects)
        self.calls.append("all")

    def change(self, key: Key, value: int | None) -> None:
        """Takes one object."""
        self.calls.append(f"{key[1]}={value}")
        if value is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = value

    @property
    def values(self) -> dict[str, int]:
        return {str(key[1]): value for key, value in sorted(self.objects.items())}


class World:
    """A fake API server, and a reflector that runs."""

    def __init__(self, api: FakeApi, client: KubeClient, silence: float) -> None:
        self.api = api
        self.handler = RecordingHandler()
        timing = Timing(time.monotonic, max, silence)
        self.reflector = Reflector(client, THINGS, decode, self.handler, timing)
        self.status = self.reflector.status
        self.task = asyncio.create_task(self.reflector.run())

    async def wait_for(self, **values: int) -> None:
        await until(f"{values}, has {self.handler.values}", lambda: self.handler.values == values)

    async def wait_for_watch(self) -> None:
        await until("a watch", lambda: self.api.open_watches)


@asynccontextmanager
async def running_reflector(
    folder: Path, *objects: Object, silence: float = 90, api: FakeApi | None = None, memory: AnswerMemory | None = None
) -> AsyncIterator[World]:
    """A reflector of some objects that runs; it must not end by itself and leaves no task behind."""
    api = api or FakeApi()
    api.add(PATH, *objects)
    before = asyncio.all_tasks()
    async with connect_client(api, folder) as client:
        client.memory = memory or client.memory
        world = World(api, client, silence)
        yield world
        assert not world.task.done(), world.task
        world.task.cancel()
        await asyncio.gather(world.task, return_exceptions=True)
        assert world.task.cancelled()
        unfinished = {task for task in asyncio.all_tasks() - before if "watch" in task.get_name()}
        assert unfinished == set()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kube.reflector._BACKOFF", Backoff(0.02, 0.2))
    monkeypatch.setattr("app.kube.reflector._MISSING_RETRY_INTERVAL", 0.2)


async def test_a_list_of_many_pages_is_delivered_as_one(tmp_path: Path) -> None:
    async with running_reflector(tmp_path, *(thing(f"t{index:04}", index) for index in range(1234))) as world:
        await world.wait_for_watch()
        assert len(world.handler.objects) == 1234
        assert world.handler.calls == ["all"]
        assert world.api.count("list") == 3
        assert [query.get("limit") for verb, _, query in world.api.requests if verb == "list"] == ["500"] * 3
        assert (world.status.phase, world.status.problem, world.status.lists) == (Phase.SYNCED, "", 1)


async def test_events_are_delivered_in_order(tmp_path: Path) -> None:
    async with running_reflector(tmp_path, thing("a", 1)) as world:
        await world.wait_for_watch()
        await world.api.put(PATH, thing("a", 2), thing("b", 3), thing("a", 4))
        await world.api.remove(PATH, "b", "n")
        await world.api.put(PATH, thing("b", 5), thing("a", -1))
        await world.wait_for(b=5)
        assert world.handler.calls == ["all", "a=2", "b=3", "a=4", "b=None", "b=5", "a=None"]
        assert world.api.count("watch") == 1


async def test_a_bookmark_moves_where_the_next_watch_begins(tmp_path: Path) -> None:
    async with running_reflector(tmp_path, thing("a")) as world:
        await world.wait_for_watch()
        world.api.version = 5000
        await world.api.bookmark(PATH)
        await until("the bookmark", lambda: world.status.resource_version == "5000")
        assert world.handler.calls == ["all"]


async def test_an_aborted_watch_is_continued(tmp_path: Path) -> None:
    api = FakeApi()
    raw = thing("a", 7)
    raw["metadata"]["resourceVersion"] = "900"
    api.plans["watch"].append(sending(event("ADDED", raw), abort=True))
    async with running_reflector(tmp_path, api=api) as world:
        await world.wait_for_watch()
        assert [query["resourceVersion"] for verb, _, query in api.requests if verb == "watch"] == ["100", "900"]
        assert world.handler.calls == ["all", "a=7"]
        assert api.count("list") == 1


ERROR_410 = event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version", "metadata": {}})


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(failing(410, "too old", "Expired"), id="HTTP 410"),
        pytest.param(sending(ERROR_410), id="ERROR 410"),
        pytest.param(sending(event("ERROR", {"kind": "Status", "code": 500, "message": "x"})), id="another ERROR"),
        pytest.param(sending(b'{"type":"ERROR","object":[]}\n'), id="ERROR without a status"),
        pytest.param(sending(b"garbage\n"), id="garbage"),
        pytest.param(sending(b"\n"), id="an empty line"),
        pytest.param(sending(b'{"type":"ADDED"}\n'), id="no object"),
        pytest.param(sending(b'{"type":"ADDED","object":{}}\n'), id="no metadata"),
        pytest.param(sending(b'{"type":"ADDED","object":{"metadata":{"name":5}}}\n'), id="a number for a name"),
        pytest.param(sending(b'{"type":"ADDED","object":{"metad'), id="half a line"),
        pytest.param(sending(b"\xff\xfe\n"), id="no UTF-8"),
        pytest.param(sending(event("PATCHED", thing("x", 1))), id="an unknown event"),
    ],
)
async def test_a_watch_that_cannot_be_continued_is_followed_by_a_list(plan: Any, tmp_path: Path) -> None:
    api = FakeApi()

    async def answer_after_a_change(request: Any) -> Any:
        api.collections[PATH].objects.clear()
        api.add(PATH, thing("b", 2))
        return await plan(request)

    api.plans["watch"].append(answer_after_a_change)
    async with running_reflector(tmp_path, thing("a", 1), api=api) as world:
        await world.wait_for(b=2)
        await world.wait_for_watch()
        assert world.handler.calls == ["all", "all"]
        assert api.count("list") == 2
        assert world.status.problem == ""


async def test_an_expired_continue_token_restarts_the_list(tmp_path: Path) -> None:
    api = FakeApi()
    api.page = 2
    expire = failing(410, "the continue token is too old", "Expired")

    async def first_page(request: Any) -> Any:
        api.plans["list"].append(expire)
        return api.answer_list(PATH, dict(request.query))

    api.plans["list"].append(first_page)
    async with running_reflector(tmp_path, *(thing(name) for name in "abcde"), api=api) as world:
        await world.wait_for_watch()
        assert list(world.handler.values) == list("abcde")
        assert world.handler.calls == ["all"]
        assert api.count("list") == 5


@pytest.mark.parametrize("last", [b"", event("BOOKMARK", {"metadata": {"resourceVersion": "101"}}), ERROR_410])
async def test_a_server_that_ends_every_watch_at_once_gets_no_flood_of_requests(last: bytes, tmp_path: Path) -> None:
    api = FakeApi()
    api.always["watch"] = sending(*([last] if last else []))
    async with running_reflector(tmp_path, thing("a"), api=api) as world:
        await until("the list", lambda: world.handler.calls)
        began = time.monotonic()
        await asyncio.sleep(1)
        seconds = time.monotonic() - began
        assert api.count("watch") + api.count("list") <= 2 * (4 + seconds / 0.2)
        # After a list that was answered there is none until the watch ends.
        await until("the problem", lambda: world.status.problem)
        if not last:
            assert world.status.behind(time.monotonic()) > 0.7
        del api.always["watch"]
        await world.wait_for_watch()
        await until("the end of the problem", lambda: not world.status.problem)
        assert world.status.disconnected_at is None


async def test_an_unreadable_object_is_counted_and_the_others_are_delivered(tmp_path: Path) -> None:
    """Without a new list: anybody may create objects, and a cache that lists is behind."""
    async with running_reflector(tmp_path, thing("a", 1), thing("b", "?"), thing("c", 3)) as world:
        await world.wait_for(a=1, c=3)
        await world.wait_for_watch()
        assert world.status.unreadable == {("n", "b"): "Thing b: value: is no number"}
        await world.api.put(PATH, thing("c", None), thing("new", "?"), thing("a", 2))
        await world.wait_for(a=2)
        assert set(world.status.unreadable) == {("n", "b"), ("n", "c"), ("n", "new")}
        await world.api.remove(PATH, "new", "n")
        await world.api.put(PATH, thing("b", 5), thing("c", 6))
        await world.wait_for(a=2, b=5, c=6)
        assert world.status.unreadable == {}
        await world.api.put(PATH, thing("c", None))
        await world.api.remove(PATH, "c", "n")
        await world.wait_for(a=2, b=5)
        assert (world.status.unreadable, world.status.lists) == ({}, 1)


async def test_an_event_larger_than_any_buffer_is_read(tmp_path: Path) -> None:
    """Objects may have a megabyte, and longer JSON."""
    async with running_reflector(tmp_path, thing("a", 1)) as world:
        await world.wait_for_watch()
        await world.api.put(PATH, {**thing("a", 2), "text": "x" * 6_000_000}, thing("b", 3))
        await world.wait_for(a=2, b=3)
        assert world.api.count("watch") == 1


async def endless(request: web.Request) -> web.StreamResponse:
    """Sends the beginning of a value, and then spaces until the client has gone."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"items": [')
    while True:
        await response.write(b" " * MIB)


async def test_an_event_without_end_is_followed_by_a_list(tmp_path: Path) -> None:
    api = FakeApi()
    api.plans["watch"].append(endless)
    with capture_logs() as logs:
        async with running_reflector(tmp_path, thing("a", 1), api=api) as world:
            before = resident_memory()
            await world.wait_for_watch()
            assert api.count("list") == 2
            assert resident_memory() - before < 64 * MIB
    assert [entry["problem"].partition("of more than")[0] for entry in logs] == [
        "things: the watch sent an event without end, "
    ]


async def test_a_list_without_end_is_read_again(tmp_path: Path) -> None:
    api = FakeApi()
    api.plans["list"].append(endless)
    with capture_logs() as logs:
        async with running_reflector(tmp_path, thing("a", 1), api=api, memory=AnswerMemory(64 * MIB)) as world:
            before = resident_memory()
            await world.wait_for(a=1)
            assert resident_memory() - before < 64 * MIB
    assert [entry["problem"].partition(": it received")[0] for entry in logs] == [
        f"GET {PATH}: the answer has no end, or too many bytes for this process"
    ]


async def test_pages_without_end_are_read_again(tmp_path: Path) -> None:
    api = FakeApi()
    pages = 0

    async def next_page(request: web.Request) -> web.StreamResponse:
        nonlocal pages
        pages += 1
        items = [{"metadata": {"namespace": "n", "name": f"{pages}-{number}"}, "value": 1} for number in range(500)]
        return web.json_response({"metadata": {"resourceVersion": "1", "continue": str(pages)}, "items": items})

    api.always["list"] = next_page
    async with running_reflector(
        tmp_path, api=api, memory=AnswerMemory(1000 * MIB, lambda: pages * 100 * MIB)
    ) as world:
        await until("the problem", lambda: "the list has no end" in world.status.problem)
        assert world.handler.calls == []
        del api.always["list"]
        # What the pages left is free again.
        pages = 0
        api.add(PATH, thing("a", 1))
        await world.wait_for(a=1)


async def test_a_silent_watch_is_replaced(tmp_path: Path) -> None:
    api = FakeApi()
    api.plans["watch"].append(sending(hang=True))
    async with running_reflector(tmp_path, thing("a", 1), silence=0.3, api=api) as world:
        await until("another watch", lambda: api.count("watch") > 1)
        await world.api.put(PATH, thing("a", 2))
        await world.wait_for(a=2)
        assert api.count("list") == 1


async def test_a_server_that_hangs_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kube.client.CALL_TIMEOUT", 0.3)
    api = FakeApi()
    api.always["watch"] = silent
    async with running_reflector(tmp_path, thing("a", 1), api=api) as world:
        await until("the problem", lambda: "no answer within 0.3 s" in world.status.problem)
        await until("the time it lasts", lambda: world.status.behind(time.monotonic()) > 0.8)
        assert "no answer within 0.3 s" in world.status.problem
        assert world.handler.values == {"a": 1}


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"metadata":{},"items":3}', b""])
async def test_an_answer_that_is_no_list_is_retried(body: bytes, tmp_path: Path) -> None:
    """It may be a proxy's page."""
    api = FakeApi()
    api.plans["list"].append(sending(body))
    async with running_reflector(tmp_path, thing("a", 1), api=api) as world:
        await world.wait_for(a=1)
        assert api.count("list") == 2


@pytest.mark.parametrize("moment", ["list", "watch", "back-off", "missing", "catching up"])
async def test_a_reflector_can_be_cancelled_at_any_moment(moment: str, tmp_path: Path) -> None:
    api = FakeApi()
    if moment == "list":
        api.always["list"] = silent
    if moment == "back-off":
        api.always["list"] = failing(500)
    if moment == "missing":
        api.missing.add(PATH)
    api.add(PATH, thing("a"))
    async with connect_client(api, tmp_path) as client:
        world = World(api, client, 90)
        await until("the first request", lambda: api.requests)
        await asyncio.sleep(0.2)
        catching = asyncio.create_task(world.reflector.catch_up())
        if moment == "catching up":
            await asyncio.sleep(0.3)
        elif moment == "watch":
            await asyncio.sleep(0)  # the watch is being cancelled right now
        world.task.cancel()
        done, _ = await asyncio.wait({world.task}, timeout=2)
        assert done == {world.task}
        assert world.task.cancelled()
        catching.cancel()
        await asyncio.gather(catching, return_exceptions=True)
        assert not [task for task in asyncio.all_tasks() if "watch" in task.get_name()]


async def test_catching_up_delivers_everything_that_happened_before(tmp_path: Path) -> None:
    async with running_reflector(tmp_path, thing("a", 1)) as world:
        await world.wait_for_watch()
        for value in range(2, 5):
            world.api.add(PATH, thing("a", value))  # delivered by the next watch only
            world.api.collections[PATH].history.append(
                (world.api.version, event("MODIFIED", world.api.collections[PATH].objects["n/a"]))
            )
            stopwatch = Stopwatch()
            await world.reflector.catch_up()
            assert world.handler.values == {"a": value}
            assert stopwatch.seconds < 0.5
        await world.wait_for_watch()
        await world.reflector.catch_up()  # it has the newest version now
        world.api.version += 1  # of an object of another kind
        began = time.monotonic()
        stopwatch = Stopwatch()
        await world.reflector.catch_up()  # no event of this kind: only the end of a watch says so
        assert time.monotonic() - began > 0.8
        assert stopwatch.seconds < 2
        await world.wait_for_watch()
        last = world.api.requests[-1]
        assert (last[0], last[2]["timeoutSeconds"]) == ("watch", "290")
        assert world.api.count("list") == 1 + 5
        assert [query["limit"] for verb, _, query in world.api.requests if verb == "list"] == ["500"] + ["1"] * 5


async def test_catching_up_during_a_list_waits_for_later_changes(tmp_path: Path) -> None:
    """The list may be older than the call."""
    api = FakeApi()
    listed = asyncio.Event()

    async def answer_slowly(request: Any) -> Any:
        answer = api.answer_list(PATH, dict(request.query))
        listed.set()
        await asyncio.sleep(0.3)
        return answer

    api.plans["list"].append(answer_slowly)
    async with running_reflector(tmp_path, thing("a", 1), api=api) as world:
        await listed.wait()
        await world.api.put(PATH, thing("a", 2))
        await world.reflector.catch_up()
        assert world.handler.values == {"a": 2}


@pytest.mark.parametrize("pause", ["_BACKOFF", "_MISSING_RETRY_INTERVAL"])
async def test_catching_up_ends_a_pause(pause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it a list may have failed, or the kind may still be missing."""
    api = FakeApi()
    if pause == "_BACKOFF":
        monkeypatch.setattr("app.kube.reflector._BACKOFF", Backoff(30.0, 30.0))
        api.plans["list"].append(failing(500))
    else:
        monkeypatch.setattr("app.kube.reflector._MISSING_RETRY_INTERVAL", 30.0)
        api.missing.add(PATH)
    async with running_reflector(tmp_path, thing("a", 1), api=api) as world, asyncio.timeout(6):
        await until("the failure", lambda: world.status.problem)
        if api.missing:
            assert world.status.phase is Phase.MISSING
            await world.reflector.catch_up()
            assert world.handler.values == {}
            api.missing.clear()
        await world.reflector.catch_up()
        assert world.handler.values == {"a": 1}


async def test_catching_up_can_be_cancelled_and_repeated(tmp_path: Path) -> None:
    api = FakeApi()
    async with running_reflector(tmp_path, thing("a", 1), api=api) as world:
        await world.wait_for_watch()
        api.always = {"watch": failing(500), "list": failing(500)}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await world.reflector.catch_up()
        api.always.clear()
        await world.api.put(PATH, thing("a", 2))
        async with asyncio.timeout(5):
            await asyncio.gather(*(world.reflector.catch_up() for _ in range(3)))
        assert world.handler.values == {"a": 2}


async def test_one_failed_call_during_catching_up_causes_no_new_list(tmp_path: Path) -> None:
    async with running_reflector(tmp_path, thing("a", 1)) as world:
        await world.wait_for_watch()
        world.api.plans["list"].append(failing(500))
        await world.reflector.catch_up()
        assert [query["limit"] for verb, _, query in world.api.requests if verb == "list"] == ["500", "1", "1"]


MALFORMED: list[Any] = [
    None, 3, "x", [], {}, {"metadata": None}, {"metadata": {"name": "x"}, "spec": 3, "status": []},
    {"metadata": {"name": None}}, {"metadata": {"name": 3}}, {"metadata": {"name": ""}}, {"metadata": {"name": []}},
    *({"metadata": {"name": "x"}, "spec": {"volumeSize": size, "size": size}} for size in ("x", "-1", "9E99")),
    {"metadata": {"name": "x"}, "spec": {"volumeSize": [], "size": 2**70}},
    *({"metadata": {"name": "x"}, "spec": {"resources": {"requests": {"storage": text}}}} for text in ("x", "-1")),
    {"metadata": {"name": "x"}, "status": {"diskStatus": {"d": {"storageMaximum": 2**70}}, "realSize": -1}},
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.label)
def test_every_decoder_raises_object_errors_only(kind: SnapshotKind) -> None:
    """Any other error would end the process."""
    refused = 0
    for raw in [*(json.dumps(value).encode() for value in MALFORMED), b"{", b"", b"\xff"]:
        try:
            assert kind.decode(raw)[0]
        except ObjectError:
            refused += 1
    assert refused >= 12


def test_a_cache_may_be_behind_if_its_watch_is_silent_for_longer_than_bookmarks_take() -> None:
    status = CacheStatus(phase=Phase.SYNCED, last_line_at=100.0)
    assert status.behind(100.0 + QUIET_SECONDS) == 0.0
    assert status.behind(100.0 + QUIET_SECONDS + 5) == 5.0
    status.disconnected_at = 100.0 + QUIET_SECONDS
    assert status.behind(100.0 + QUIET_SECONDS + 30) == 30.0
