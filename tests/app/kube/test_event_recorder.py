"""Events, of which an object has one per reason, and the dispatcher of their calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from app.kube.client import ApiError, KubeClient
from app.kube.event_recorder import MAX_CALLS_IN_FLIGHT, QUIET_SECONDS, REPEAT_SECONDS, ApiDispatcher, EventRecorder
from app.runtime.leader_loop import DRAIN_TIMEOUT
from scheduler_core.convert.kube import MAX_MESSAGE, ObjectReference
from tests.worlds.fake_api import connect_client, failing, until
from tests.worlds.scheduling_api import SchedulingApi
from tests.worlds.virtual_time import run

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
    monkeypatch.setattr("app.kube.event_recorder._MAX_EVENTS", 3)
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

    def written(self) -> list[tuple[float, str, str, int]]:
        return [(second, method, body["message"], body["count"]) for second, method, body in self.calls]


def record_with(
    client: FakeClient,
    scenario: Callable[[EventRecorder], Awaitable[None]],
    may_write: Callable[[], bool] = lambda: True,
) -> FakeClient:
    """Runs a scenario in virtual time, and waits until everything is written."""

    async def run_scenario() -> None:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        loop = asyncio.get_running_loop()
        recorder = EventRecorder(cast("KubeClient", client), COMPONENT, loop.time, lambda: now, may_write)
        task = asyncio.create_task(recorder.run())
        await scenario(recorder)
        await recorder.wait_until_written()
        task.cancel()

    run(run_scenario())
    return client


def report(message: str, *, normal: bool = False) -> Callable[[EventRecorder], Awaitable[None]]:
    """A scenario with one report."""

    async def scenario(recorder: EventRecorder) -> None:
        recorder.record(web_pod(1), "R", message, normal=normal)

    return scenario


def test_an_event_names_its_object_as_kubectl_describe_looks_for_it() -> None:
    [(_, method, body)] = record_with(FakeClient(), report("m")).calls
    assert (method, body["reason"], body["message"], body["type"], body["count"]) == ("POST", "R", "m", "Warning", 1)
    pod = {"apiVersion": "v1", "kind": "Pod", "name": "web-1", "namespace": "shop", "uid": "1"}
    assert body["involvedObject"] == pod
    assert (body["firstTimestamp"], body["lastTimestamp"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")
    assert (body["source"], body["reportingComponent"]) == ({"component": COMPONENT}, COMPONENT)


def test_a_message_that_is_too_long_ends_with_dots() -> None:
    """So a reader sees that something is missing."""
    [(_, _, message, _)] = record_with(FakeClient(), report("m" * 2000)).written()
    assert message == "m" * (MAX_MESSAGE - 4) + " ..."


def test_an_event_of_an_earlier_process_is_updated() -> None:
    client = record_with(FakeClient(exists=True), report("m"))
    assert client.written() == [(0.0, "POST", "m", 1), (0.0, "PATCH", "m", 1)]


def test_an_event_that_the_api_server_has_deleted_is_created_again() -> None:
    client = FakeClient()

    async def scenario(recorder: EventRecorder) -> None:
        recorder.record(web_pod(1), "R", "first", normal=True)
        await asyncio.sleep(3600)
        client.gone = True
        recorder.record(web_pod(1), "R", "second", normal=True)

    record_with(client, scenario)
    assert [(method, count) for _, method, _, count in client.written()] == [("POST", 1), ("PATCH", 2), ("POST", 2)]


def test_a_burst_about_an_object_and_reason_is_one_event_with_the_latest_message() -> None:
    async def scenario(recorder: EventRecorder) -> None:
        for number in range(5):
            recorder.record(web_pod(1), "R", f"m{number}", normal=True)
        recorder.record(web_pod(1), "Other", "m", normal=True)
        recorder.record(web_pod(2), "R", "m", normal=True)

    client = record_with(FakeClient(), scenario)
    assert client.written() == [(0.0, "POST", "m4", 5), (0.0, "POST", "m", 1), (0.0, "POST", "m", 1)]
    assert len({body["metadata"]["name"] for *_, body in client.calls}) == 3


def test_another_message_is_written_once_in_the_quiet_time() -> None:
    async def scenario(recorder: EventRecorder) -> None:
        for second in range(9):
            recorder.record(web_pod(1), "R", f"m{second}", normal=True)
            await asyncio.sleep(1)
        await asyncio.sleep(QUIET_SECONDS)

    client = record_with(FakeClient(), scenario)
    assert client.written() == [(0.0, "POST", "m0", 1), (QUIET_SECONDS, "PATCH", "m8", 9)]


def test_the_end_of_the_process_ends_the_quiet_time() -> None:
    async def scenario(recorder: EventRecorder) -> None:
        recorder.record(web_pod(1), "R", "first", normal=True)
        await asyncio.sleep(1)
        recorder.record(web_pod(1), "R", "second", normal=True)

    assert record_with(FakeClient(), scenario).written() == [(0.0, "POST", "first", 1), (1.0, "PATCH", "second", 2)]


def test_a_repeated_message_is_counted_and_written_every_five_minutes() -> None:
    async def scenario(recorder: EventRecorder) -> None:
        for _ in range(8):
            recorder.record(web_pod(1), "R", "m", normal=False)
            await asyncio.sleep(60)

    client = record_with(FakeClient(), scenario)
    assert client.written() == [(0.0, "POST", "m", 1), (REPEAT_SECONDS, "PATCH", "m", 6)]


def test_a_process_that_may_not_write_drops_events() -> None:
    allowed = False
    client = FakeClient()

    async def scenario(recorder: EventRecorder) -> None:
        nonlocal allowed
        recorder.record(web_pod(1), "R", "m", normal=True)
        await asyncio.sleep(1)
        assert client.calls == []
        allowed = True
        recorder.record(web_pod(1), "R", "m", normal=True)

    record_with(client, scenario, lambda: allowed)
    assert client.written() == [(1.0, "POST", "m", 2)]


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
