"""A kind is listed and watched through whatever an API server, or what is between, may do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.kube.client import KubeClient
from app.kube.reflector import QUIET_SECONDS, Key, Phase, Reflector, Standing, Timing
from app.kube.resources import LONGHORN_REPLICAS, Resource
from scheduler_core.convert.snapshot_kinds import KINDS, Kind
from scheduler_core.errors import ObjectError
from tests.worlds.fake_api import FakeApi, Object, connected, event, failing, sending, silent, until

THINGS = Resource("", "v1", "things", "Thing", namespaced=True)
PATH = THINGS.path()


def thing(name: str, value: object = 0) -> Object:
    """An object whose value `decode` keeps; it cannot be read if that is no number."""
    return {"metadata": {"namespace": "n", "name": name}, "value": value}


def decode(raw: bytes | msgspec.Raw) -> tuple[Key, int | None]:
    """The value, None for a negative one."""
    read = msgspec.json.decode(raw)
    if not isinstance(read.get("value"), int):
        raise ObjectError(f"Thing {read['metadata'].get('name')}", "value", "is no number")
    return ("n", read["metadata"]["name"]), read["value"] if read["value"] >= 0 else None


class Store:
    """What the sink was told: the present state, and the story."""

    def __init__(self) -> None:
        self.held: dict[Key, int] = {}
        self.story: list[str] = []

    def replaced(self, objects: Mapping[Key, int]) -> None:
        """The kind as a whole."""
        self.held = dict(objects)
        self.story.append("all")

    def changed(self, key: Key, value: int | None) -> None:
        """One object."""
        self.story.append(f"{key[1]}={value}")
        if value is None:
            self.held.pop(key, None)
        else:
            self.held[key] = value

    @property
    def values(self) -> dict[str, int]:
        """By name."""
        return {str(key[1]): value for key, value in sorted(self.held.items())}


class Rig:
    """A fake API server, and a reflector beside it."""

    def __init__(self, api: FakeApi, client: KubeClient, silence: float) -> None:
        self.api = api
        self.store = Store()
        timing = Timing(time.monotonic, max, silence)
        self.reflector = Reflector(client, THINGS, decode, self.store, timing)
        self.standing = self.reflector.standing
        self.task = asyncio.create_task(self.reflector.run())

    async def shows(self, **values: int) -> None:
        """Waits until the sink has exactly these."""
        await until(f"{values}, has {self.store.values}", lambda: self.store.values == values)

    async def synced(self) -> None:
        """Waits until a watch is connected."""
        await until("a watch", lambda: self.api.open_watches)


@asynccontextmanager
async def rigged(folder: Path, *objects: Object, silence: float = 90, api: FakeApi | None = None) -> AsyncIterator[Rig]:
    """A running reflector over some objects; it must be well to the end and leave no task behind."""
    api = api or FakeApi()
    api.add(PATH, *objects)
    before = asyncio.all_tasks()
    async with connected(api, folder) as client:
        rig = Rig(api, client, silence)
        yield rig
        assert not rig.task.done(), rig.task
        rig.task.cancel()
        await asyncio.gather(rig.task, return_exceptions=True)
        assert rig.task.cancelled()
        left = {task for task in asyncio.all_tasks() - before if "watch" in task.get_name()}
        assert left == set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses."""
    monkeypatch.setattr("app.kube.reflector._SHORTEST_BACKOFF", 0.02)
    monkeypatch.setattr("app.kube.reflector._LONGEST_BACKOFF", 0.2)
    monkeypatch.setattr("app.kube.reflector._MISSING_SECONDS", 0.2)


async def test_a_list_of_many_pages_is_taken_over_at_once(tmp_path: Path) -> None:
    """The sink hears of it when it is complete."""
    async with rigged(tmp_path, *(thing(f"t{index:04}", index) for index in range(1234))) as rig:
        await rig.synced()
        assert len(rig.store.held) == 1234
        assert rig.store.story == ["all"]
        assert rig.api.count("list") == 3
        assert [query.get("limit") for verb, _, query in rig.api.requests if verb == "list"] == ["500"] * 3
        assert (rig.standing.phase, rig.standing.problem, rig.standing.lists) == (Phase.SYNCED, "", 1)


async def test_events_come_in_order(tmp_path: Path) -> None:
    """Whatever happens to one object."""
    async with rigged(tmp_path, thing("a", 1)) as rig:
        await rig.synced()
        await rig.api.put(PATH, thing("a", 2), thing("b", 3), thing("a", 4))
        await rig.api.remove(PATH, "b", "n")
        await rig.api.put(PATH, thing("b", 5), thing("a", -1))
        await rig.shows(b=5)
        assert rig.store.story == ["all", "a=2", "b=3", "a=4", "b=None", "b=5", "a=None"]
        assert rig.api.count("watch") == 1


async def test_a_bookmark_moves_where_the_next_watch_begins(tmp_path: Path) -> None:
    """So that it need not list again after a quiet hour."""
    async with rigged(tmp_path, thing("a")) as rig:
        await rig.synced()
        rig.api.version = 5000
        await rig.api.bookmark(PATH)
        await until("the bookmark", lambda: rig.standing.resource_version == "5000")
        assert rig.store.story == ["all"]


async def test_a_watch_that_was_cut_off_goes_on_from_where_it_was(tmp_path: Path) -> None:
    """Without another list, and nothing is heard twice."""
    api = FakeApi()
    raw = thing("a", 7)
    raw["metadata"]["resourceVersion"] = "900"
    api.plans["watch"].append(sending(event("ADDED", raw), abort=True))
    async with rigged(tmp_path, api=api) as rig:
        await rig.synced()
        assert [query["resourceVersion"] for verb, _, query in api.requests if verb == "watch"] == ["100", "900"]
        assert rig.store.story == ["all", "a=7"]
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
        pytest.param(sending(event("DELETED", thing("x", "?"))), id="a deletion that cannot be read"),
    ],
)
async def test_what_cannot_be_gone_on_from_is_listed_again(plan: Any, tmp_path: Path) -> None:
    """And then everything is as it is, what was deleted meanwhile included."""
    api = FakeApi()

    async def after_a_change(request: Any) -> Any:
        api.collections[PATH].objects.clear()
        api.add(PATH, thing("b", 2))
        return await plan(request)

    api.plans["watch"].append(after_a_change)
    async with rigged(tmp_path, thing("a", 1), api=api) as rig:
        await rig.shows(b=2)
        await rig.synced()
        assert rig.store.story == ["all", "all"]
        assert api.count("list") == 2
        assert rig.standing.problem == ""


async def test_an_expired_continue_token_begins_the_list_again(tmp_path: Path) -> None:
    """The sink never sees half a list."""
    api = FakeApi()
    api.page = 2
    expire = failing(410, "the continue token is too old", "Expired")

    async def first_page(request: Any) -> Any:
        api.plans["list"].append(expire)
        return api._list(PATH, dict(request.query))

    api.plans["list"].append(first_page)
    async with rigged(tmp_path, *(thing(name) for name in "abcde"), api=api) as rig:
        await rig.synced()
        assert list(rig.store.values) == list("abcde")
        assert rig.store.story == ["all"]
        assert api.count("list") == 5


@pytest.mark.parametrize("last", [b"", event("BOOKMARK", {"metadata": {"resourceVersion": "101"}}), ERROR_410])
async def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_hot_loop(last: bytes, tmp_path: Path) -> None:
    """Neither for watches nor for lists; and the cache counts as lost since the beginning."""
    api = FakeApi()
    api.always["watch"] = sending(*([last] if last else []))
    async with rigged(tmp_path, thing("a"), api=api) as rig:
        await until("the list", lambda: rig.store.story)
        await asyncio.sleep(1)
        assert api.count("watch") + api.count("list") <= 2 * (4 + 1 / 0.2)
        assert rig.standing.problem
        if not last:
            assert rig.standing.behind(time.monotonic()) > 0.7
        del api.always["watch"]
        await rig.synced()
        await until("an end of the trouble", lambda: not rig.standing.problem)
        assert rig.standing.disconnected_at is None


async def test_an_object_that_cannot_be_read_is_counted_and_the_others_live(tmp_path: Path) -> None:
    """In a list and in an event; the last readable state stays until it can be read again or is gone."""
    async with rigged(tmp_path, thing("a", 1), thing("b", "?"), thing("c", 3)) as rig:
        await rig.shows(a=1, c=3)
        await rig.synced()
        assert rig.standing.unreadable == {("n", "b"): "Thing b: value: is no number"}
        await rig.api.put(PATH, thing("c", None), thing("a", 2))
        await rig.shows(a=2, c=3)
        assert set(rig.standing.unreadable) == {("n", "b"), ("n", "c")}
        await rig.api.put(PATH, thing("b", 5), thing("c", 6))
        await rig.shows(a=2, b=5, c=6)
        assert rig.standing.unreadable == {}
        await rig.api.put(PATH, thing("c", None))
        await rig.api.remove(PATH, "c", "n")
        await rig.shows(a=2, b=5)
        assert rig.standing.unreadable == {}


async def test_an_event_larger_than_any_buffer_is_read(tmp_path: Path) -> None:
    """Etcd takes objects of a megabyte and more; and JSON is longer than what it stores."""
    async with rigged(tmp_path, thing("a", 1)) as rig:
        await rig.synced()
        await rig.api.put(PATH, {**thing("a", 2), "text": "x" * 6_000_000}, thing("b", 3))
        await rig.shows(a=2, b=3)
        assert rig.api.count("watch") == 1


async def test_an_event_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists again."""
    monkeypatch.setattr("app.kube.reflector._LONGEST_LINE", 1 << 16)
    api = FakeApi()
    api.plans["watch"].append(sending(b"x" * (1 << 20), hang=True))
    async with rigged(tmp_path, thing("a", 1), api=api) as rig:
        await rig.synced()
        assert api.count("list") == 2


async def test_silence_means_a_dead_connection(tmp_path: Path) -> None:
    """It watches again, from where it was."""
    api = FakeApi()
    api.plans["watch"].append(sending(hang=True))
    async with rigged(tmp_path, thing("a", 1), silence=0.3, api=api) as rig:
        await until("another watch", lambda: api.count("watch") > 1)
        await rig.api.put(PATH, thing("a", 2))
        await rig.shows(a=2)
        assert api.count("list") == 1


async def test_a_server_that_hangs_is_noticed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch has to begin like any answer."""
    monkeypatch.setattr("app.kube.client.CALL_SECONDS", 0.3)
    api = FakeApi()
    api.always["watch"] = silent
    async with rigged(tmp_path, thing("a", 1), api=api) as rig:
        await until("the trouble", lambda: "no answer within 0.3 s" in rig.standing.problem)
        await until("the time it lasts", lambda: rig.standing.behind(time.monotonic()) > 0.8)


async def test_a_missing_kind_is_empty_until_it_appears(tmp_path: Path) -> None:
    """A CRD that is installed later."""
    api = FakeApi()
    api.missing.add(PATH)
    async with rigged(tmp_path, api=api) as rig:
        await until("the absence", lambda: rig.standing.phase is Phase.MISSING)
        assert (rig.store.story, rig.standing.behind(time.monotonic())) == (["all"], 0)
        api.missing.clear()
        await rig.api.put(PATH, thing("a", 1))
        await rig.shows(a=1)
        assert rig.standing.phase is Phase.SYNCED


async def test_a_kind_that_goes_is_empty(tmp_path: Path) -> None:
    """A CRD that is removed while it is watched, and comes again."""
    async with rigged(tmp_path, thing("a", 1)) as rig:
        await rig.synced()
        rig.api.missing.add(PATH)
        rig.api.plans["watch"].append(sending(ERROR_410))
        catching = asyncio.create_task(rig.reflector.catch_up())
        await until("the absence", lambda: rig.standing.phase is Phase.MISSING)
        await rig.shows()
        await catching
        rig.api.missing.clear()
        await rig.shows(a=1)


async def test_what_is_forbidden_is_named_and_comes_back_when_it_is_allowed(tmp_path: Path) -> None:
    """Before the first list, and at a watch."""
    api = FakeApi()
    forbidden = failing(403, 'things is forbidden: User "it" cannot list resource "things"', "Forbidden")
    api.always = {"list": forbidden, "watch": forbidden}
    async with rigged(tmp_path, thing("a", 1), api=api) as rig:
        await until("the problem", lambda: "cannot list resource" in rig.standing.problem)
        assert (rig.standing.phase, rig.store.story) == (Phase.STARTING, [])
        del api.always["list"]
        await rig.shows(a=1)
        await until("the problem", lambda: "cannot list resource" in rig.standing.problem)
        assert rig.standing.phase is Phase.SYNCED
        api.always.clear()
        await rig.synced()
        await until("the end of it", lambda: not rig.standing.problem)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"metadata":{},"items":3}', b""])
async def test_an_answer_that_is_no_list_is_trouble(body: bytes, tmp_path: Path) -> None:
    """Of a proxy, for instance; the next may be one."""
    api = FakeApi()
    api.plans["list"].append(sending(body))
    async with rigged(tmp_path, thing("a", 1), api=api) as rig:
        await rig.shows(a=1)


@pytest.mark.parametrize("moment", ["list", "watch", "back-off", "missing", "catching up"])
async def test_it_can_be_cancelled_at_any_moment(moment: str, tmp_path: Path) -> None:
    """Without a task or a connection left; also while somebody wants to catch up, which must not swallow it."""
    api = FakeApi()
    if moment == "list":
        api.always["list"] = silent
    if moment == "back-off":
        api.always["list"] = failing(500)
    if moment == "missing":
        api.missing.add(PATH)
    api.add(PATH, thing("a"))
    async with connected(api, tmp_path) as client:
        rig = Rig(api, client, 90)
        await until("the first request", lambda: api.requests)
        await asyncio.sleep(0.2)
        catching = asyncio.create_task(rig.reflector.catch_up())
        if moment == "catching up":
            await asyncio.sleep(0.3)
        elif moment == "watch":
            await asyncio.sleep(0)  # the watch is being disturbed right now
        rig.task.cancel()
        done, _ = await asyncio.wait({rig.task}, timeout=2)
        assert done == {rig.task}
        assert rig.task.cancelled()
        catching.cancel()
        await asyncio.gather(catching, return_exceptions=True)
        assert not [task for task in asyncio.all_tasks() if "watch" in task.get_name()]


async def test_catching_up_brings_everything_that_had_happened(tmp_path: Path) -> None:
    """Within about a second, and the next watch is a long one again."""
    async with rigged(tmp_path, thing("a", 1)) as rig:
        await rig.synced()
        for value in range(2, 5):
            rig.api.add(PATH, thing("a", value))  # nobody is told before the watch is opened anew
            rig.api.collections[PATH].history.append((rig.api.version, event("MODIFIED", thing_at(rig, "a"))))
            began = time.monotonic()
            await rig.reflector.catch_up()
            assert rig.store.values == {"a": value}
            assert time.monotonic() - began < 0.5
        await rig.synced()
        await rig.reflector.catch_up()  # it knows the newest version
        rig.api.version += 1  # another kind's
        began = time.monotonic()
        await rig.reflector.catch_up()
        assert 0.8 < time.monotonic() - began < 2  # nothing of this kind happened: only the end of a watch says so
        await rig.synced()
        last = rig.api.requests[-1]
        assert (last[0], last[2]["timeoutSeconds"]) == ("watch", "290")
        assert rig.api.count("list") == 1 + 5
        assert [query["limit"] for verb, _, query in rig.api.requests if verb == "list"] == ["500"] + ["1"] * 5


def thing_at(rig: Rig, name: str) -> Object:
    """The object as the API server has it."""
    return rig.api.collections[PATH].objects[f"n/{name}"]


async def test_catching_up_during_a_list(tmp_path: Path) -> None:
    """What the list began with is not enough."""
    api = FakeApi()
    listed = asyncio.Event()

    async def slow(request: Any) -> Any:
        answer = api._list(PATH, dict(request.query))
        listed.set()
        await asyncio.sleep(0.3)
        return answer

    api.plans["list"].append(slow)
    async with rigged(tmp_path, thing("a", 1), api=api) as rig:
        await listed.wait()
        await rig.api.put(PATH, thing("a", 2))
        await rig.reflector.catch_up()
        assert rig.store.values == {"a": 2}


async def test_catching_up_ends_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes over need not wait for it."""
    monkeypatch.setattr("app.kube.reflector._SHORTEST_BACKOFF", 30.0)
    monkeypatch.setattr("app.kube.reflector._LONGEST_BACKOFF", 30.0)
    api = FakeApi()
    api.plans["list"].append(failing(500))
    async with rigged(tmp_path, thing("a", 1), api=api) as rig:
        await until("the failure", lambda: rig.standing.problem)
        async with asyncio.timeout(3):
            await rig.reflector.catch_up()
        assert rig.store.values == {"a": 1}


async def test_catching_up_with_a_missing_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks whether it is still missing."""
    monkeypatch.setattr("app.kube.reflector._MISSING_SECONDS", 30.0)
    api = FakeApi()
    api.missing.add(PATH)
    async with rigged(tmp_path, api=api) as rig:
        await until("the absence", lambda: rig.standing.phase is Phase.MISSING)
        async with asyncio.timeout(3):
            await rig.reflector.catch_up()
        assert rig.store.values == {}
        api.missing.clear()
        api.add(PATH, thing("a", 1))
        async with asyncio.timeout(3):
            await rig.reflector.catch_up()
        assert rig.store.values == {"a": 1}


async def test_catching_up_can_be_given_up_and_asked_for_again(tmp_path: Path) -> None:
    """By several at once."""
    api = FakeApi()
    async with rigged(tmp_path, thing("a", 1), api=api) as rig:
        await rig.synced()
        api.always = {"watch": failing(500), "list": failing(500)}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await rig.reflector.catch_up()
        api.always.clear()
        await rig.api.put(PATH, thing("a", 2))
        async with asyncio.timeout(5):
            await asyncio.gather(*(rig.reflector.catch_up() for _ in range(3)))
        assert rig.store.values == {"a": 2}


async def test_one_failed_call_while_catching_up_does_not_list_everything_again(tmp_path: Path) -> None:
    """A hundred thousand pods take ten seconds to list."""
    async with rigged(tmp_path, thing("a", 1)) as rig:
        await rig.synced()
        rig.api.plans["list"].append(failing(500))
        await rig.reflector.catch_up()
        assert [query["limit"] for verb, _, query in rig.api.requests if verb == "list"] == ["500", "1", "1"]


ODD: list[Any] = [
    None, 3, "x", [], {}, {"metadata": None}, {"metadata": {"name": "x"}, "spec": 3, "status": []},
    {"metadata": {"name": None}}, {"metadata": {"name": 3}}, {"metadata": {"name": ""}}, {"metadata": {"name": []}},
    *({"metadata": {"name": "x"}, "spec": {"volumeSize": size, "size": size}} for size in ("x", "-1", "9E99")),
    {"metadata": {"name": "x"}, "spec": {"volumeSize": [], "size": 2**70}},
    *({"metadata": {"name": "x"}, "spec": {"resources": {"requests": {"storage": text}}}} for text in ("x", "-1")),
    {"metadata": {"name": "x"}, "status": {"diskStatus": {"d": {"storageMaximum": 2**70}}, "realSize": -1}},
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.label)
def test_every_kind_refuses_what_it_cannot_read_with_one_kind_of_error(kind: Kind) -> None:
    """Anything else would end the process."""
    refused = 0
    for raw in [*(json.dumps(value).encode() for value in ODD), b"{", b"", b"\xff"]:
        try:
            assert kind.decode(raw)[0]
        except ObjectError:
            refused += 1
    assert refused >= 12


def test_the_labels_are_those_of_rbac() -> None:
    """People look for them there."""
    assert LONGHORN_REPLICAS.label == "replicas.longhorn.io"


def test_a_watch_that_is_silent_for_longer_than_bookmarks_take_may_be_behind() -> None:
    """Connected or not: a connection that was cut without a word looks like a quiet one."""
    standing = Standing(phase=Phase.SYNCED, heard_at=100.0)
    assert standing.behind(100.0 + QUIET_SECONDS) == 0.0
    assert standing.behind(100.0 + QUIET_SECONDS + 5) == 5.0
    standing.disconnected_at = 100.0 + QUIET_SECONDS
    assert standing.behind(100.0 + QUIET_SECONDS + 30) == 30.0
