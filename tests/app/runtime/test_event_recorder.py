"""Events, of which an object has one per reason, and the dispatcher of their calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from app.kube.client import ApiError, KubeClient
from app.runtime.event_recorder import MAX_CALLS_IN_FLIGHT, REPEAT_SECONDS, ApiDispatcher, EventRecorder
from app.runtime.leader_loop import DRAIN_TIMEOUT
from scheduler_core.convert.kube import MAX_MESSAGE, ObjectReference
from tests.worlds.fake_api import connect_client, failing, until
from tests.worlds.scheduling_api import SchedulingApi
from tests.worlds.timeline import play, rows
from tests.worlds.virtual_time import run, virtual_loop, virtually

COMPONENT = "mine"


def web_pod(number: int) -> ObjectReference:
    return ObjectReference("v1", "Pod", "shop", f"web-{number}", str(number))


@asynccontextmanager
async def recorder_of(api: SchedulingApi, folder: Path) -> AsyncIterator[EventRecorder]:
    """A recorder that writes."""
    async with connect_client(api, folder) as client:
        loop = asyncio.get_running_loop()
        recorder = EventRecorder(client, COMPONENT, loop.time, lambda: datetime.now(UTC))
        running = asyncio.create_task(recorder.run())
        yield recorder
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_burst_is_written_within_the_time_for_a_shutdown(tmp_path: Path) -> None:
    """None of 500 Events is lost."""
    api = SchedulingApi()
    async with recorder_of(api, tmp_path) as recorder:
        for number in range(500):
            recorder.record(web_pod(number), "Scheduled", "somewhere", normal=True)
        async with asyncio.timeout(DRAIN_TIMEOUT):
            await recorder.wait_until_written()
    assert len(api.events_with("Scheduled")) == 500


async def test_a_warning_goes_before_hundreds_of_normal_events(tmp_path: Path) -> None:
    api = SchedulingApi()
    async with recorder_of(api, tmp_path) as recorder:
        for number in range(300):
            recorder.record(web_pod(number), "Scheduled", "somewhere", normal=True)
        await until("the first events", lambda: api.events)
        recorder.record(web_pod(300), "FailedScheduling", "0/1 nodes are available", normal=False)
        before = len(api.events)
        await recorder.wait_until_written()
    written = [event["involvedObject"]["name"] for event in api.events.values()]
    assert len(written) == 301
    assert written.index("web-300") <= before + 3 * MAX_CALLS_IN_FLIGHT


async def test_several_events_are_in_flight(tmp_path: Path) -> None:
    api = SchedulingApi()
    answer = asyncio.Event()
    in_flight = 0

    async def hang(request: web.Request) -> web.StreamResponse:
        nonlocal in_flight
        in_flight += 1
        await answer.wait()
        return await failing(500)(request)

    api.plans["event"] = [hang] * (MAX_CALLS_IN_FLIGHT - 1)
    async with recorder_of(api, tmp_path) as recorder:
        for number in range(MAX_CALLS_IN_FLIGHT + 1):
            recorder.record(web_pod(number), "Scheduled", "somewhere", normal=True)
        await until("the others", lambda: len(api.events) == 2)
        assert in_flight == MAX_CALLS_IN_FLIGHT - 1
        answer.set()


async def test_unwritten_events_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.runtime.event_recorder._MAX_EVENTS", 3)
    api = SchedulingApi()
    async with recorder_of(api, tmp_path) as recorder:
        for number in range(5):
            recorder.record(web_pod(number), "Scheduled", "somewhere", normal=True)
        await recorder.wait_until_written()
    assert [event["involvedObject"]["name"] for event in api.events.values()] == ["web-2", "web-3", "web-4"]


class FakeClient:
    """A client that records the calls, as second, method and body."""

    def __init__(self, *, exists: bool = False) -> None:
        self.calls: list[tuple[float, str, Any]] = []
        self.exists = exists  # whether another process has written the Events
        self.gone = False  # whether the API server has deleted them since

    def _note(self, method: str, body: Any) -> None:
        self.calls.append((asyncio.get_running_loop().time(), method, body))

    async def create(self, path: str, body: Any) -> None:
        self._note("POST", body)
        if self.exists:
            raise ApiError(path, 409, "AlreadyExists", "it exists")

    async def patch(self, path: str, body: Any) -> None:
        self._note("PATCH", body)
        if self.gone:
            raise ApiError(path, 404, "NotFound", "it is gone")


class World:
    """A recorder whose client records."""

    def __init__(self, *, exists: str = "") -> None:
        self.client = FakeClient(exists=bool(exists))
        self.allowed = True
        loop = virtual_loop()
        now = datetime(2026, 1, 1, tzinfo=UTC)
        self.recorder = EventRecorder(
            cast("KubeClient", self.client), COMPONENT, loop.time, lambda: now, lambda: self.allowed
        )
        self._task = asyncio.create_task(self.recorder.run())

    def record(self, *messages: str, pod: int = 1, reason: str = "R", normal: bool = True) -> None:
        for message in messages:
            self.recorder.record(web_pod(pod), reason, message, normal=normal)

    def warn(self, message: str) -> None:
        self.record(message, normal=False)

    async def written(self) -> list[tuple[float, str, str, int]]:
        """Second, method, message and count of each call, once everything is written."""
        await self.recorder.wait_until_written()
        return [(second, method, body["message"], body["count"]) for second, method, body in self.client.calls]

    def names(self) -> int:
        """How many Events were written."""
        return len({body["metadata"]["name"] for *_, body in self.client.calls})

    async def end(self) -> None:
        self._task.cancel()


TIMELINES = {
    "an Event of an earlier process is updated": """
        0 world exists=yes; warn m; written -> 0 POST m 1 0 PATCH m 1
    """,
    "an Event that the API server has deleted is created again": """
        0 record first
        3600 set client.gone=yes; record second; written -> 0 POST first 1 3600 PATCH second 2 3600 POST second 2
    """,
    "a burst about an object and reason is one Event with the latest message": """
        0 record m0 m1 m2 m3 m4; record m reason=Other; record m pod=2; written -> 0 POST m4 5 0 POST m 1 0 POST m 1; names -> 3
    """,
    "another message is written once in the quiet time": """
        0 record m0
        1 record m1
        4 record m4
        8 record m8
        19 written -> 0 POST m0 1 10 PATCH m8 4
    """,
    "the end of the process ends the quiet time": """
        0 record first
        1 record second; written -> 0 POST first 1 1 PATCH second 2
    """,
    "a process that may not write drops Events": """
        0 set allowed=no; record m
        1 client.calls -> none; set allowed=yes; record m; written -> 1 POST m 2
    """,
}


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_an_object_has_one_event_for_each_reason(timeline: str) -> None:
    play(World, timeline)


@virtually
async def test_a_repeated_message_is_counted_and_written_every_five_minutes() -> None:
    world = World()
    for _ in range(8):
        world.warn("m")
        await asyncio.sleep(60)
    assert await world.written() == [(0.0, "POST", "m", 1), (REPEAT_SECONDS, "PATCH", "m", 6)]


@virtually
async def test_an_event_names_its_object_as_kubectl_describe_looks_for_it() -> None:
    world = World()
    world.warn("m")
    await world.written()
    [(_, method, body)] = world.client.calls
    assert (method, body["reason"], body["message"], body["type"], body["count"]) == ("POST", "R", "m", "Warning", 1)
    pod = {"apiVersion": "v1", "kind": "Pod", "name": "web-1", "namespace": "shop", "uid": "1"}
    assert body["involvedObject"] == pod
    assert (body["firstTimestamp"], body["lastTimestamp"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")
    assert (body["source"], body["reportingComponent"]) == ({"component": COMPONENT}, COMPONENT)


@virtually
async def test_a_message_that_is_too_long_ends_with_dots() -> None:
    """So a reader sees that something is missing."""
    world = World()
    world.warn("m" * 2000)
    [(_, _, message, _)] = await world.written()
    assert message == "m" * (MAX_MESSAGE - 4) + " ..."


class RecordingDispatcher:
    """A dispatcher whose calls are recorded with their times."""

    def __init__(self, statuses: dict[str, int]) -> None:
        # By the first letter of a key, the HTTP status that its calls fail with; 0 is no answer.
        self.statuses = statuses
        self.attempts: dict[str, list[float]] = {}  # the times of all calls by key
        self.written: dict[str, float] = {}  # the times of the successful calls
        self.given_up: list[str] = []  # the calls that will not be repeated
        self.dispatcher: ApiDispatcher[str, int] = ApiDispatcher("event", self._write, lambda _: None, self._give_up)

    async def _write(self, key: str, value: int) -> None:
        now = asyncio.get_running_loop().time()
        self.attempts.setdefault(key, []).append(now)
        status = self.statuses.get(key[0], 200)
        if status != 200:
            raise ApiError("POST /events", status, "", "no")
        self.written[f"{key}={value}"] = now

    def _give_up(self, key: str, value: int) -> None:
        self.given_up.append(f"{key}={value}")

    def pauses(self, key: str) -> list[int]:
        """Returns the seconds between the attempts of a key."""
        return [round(later - earlier) for earlier, later in pairwise(self.attempts[key])]


def test_failing_writes_do_not_delay_other_writes() -> None:
    """A write is given up after five refusals; without an answer it is repeated forever, with a back-off."""

    async def run_for_an_hour() -> RecordingDispatcher:
        recording = RecordingDispatcher({"x": 500, "y": 0})
        running = asyncio.create_task(recording.dispatcher.run())
        for key in ("x1", "x2", "y1", "y2", "a", "b"):
            recording.dispatcher.put(key, 1)
        await asyncio.sleep(1)
        assert recording.written.keys() == {"a=1", "b=1"}
        assert max(recording.written.values()) < 0.5
        await asyncio.sleep(3600)
        recording.statuses.clear()
        await recording.dispatcher.wait_until_idle()
        running.cancel()
        return recording

    recording = run(run_for_an_hour())
    assert sorted(recording.given_up) == ["x1=1", "x2=1"]
    assert recording.pauses("x1") == [1, 2, 4, 8]
    assert recording.pauses("y1")[:7] == [1, 2, 4, 8, 16, 32, 32]
    assert recording.written.keys() == {"a=1", "b=1", "y1=1", "y2=1"}


def test_a_repeated_write_has_the_latest_value_and_may_be_discarded() -> None:
    async def run_for_a_minute() -> RecordingDispatcher:
        recording = RecordingDispatcher({"y": 0})
        running = asyncio.create_task(recording.dispatcher.run())
        for key in ("y1", "y2"):
            recording.dispatcher.put(key, 1)
        await asyncio.sleep(0.5)
        recording.dispatcher.put("y1", 2)
        recording.dispatcher.discard("y2")
        recording.statuses.clear()
        await recording.dispatcher.wait_until_idle()
        assert len(recording.dispatcher) == 0
        recording.statuses["y"] = 0
        recording.dispatcher.put("y1", 3)
        await asyncio.sleep(0.5)
        recording.dispatcher.clear()
        await recording.dispatcher.wait_until_idle()
        running.cancel()
        return recording

    assert run(run_for_a_minute()).written.keys() == {"y1=2"}
