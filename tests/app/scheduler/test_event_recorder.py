"""Events over a fake API server: none is lost, warnings come first, and similar ones are combined as client-go does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from app.runtime.leader_loop import DRAIN_TIMEOUT
from app.scheduler.api_dispatcher import MAX_CALLS_IN_FLIGHT
from app.scheduler.event_recorder import COMBINED, QUIET_SECONDS, SPAM_LIMIT, EventRecorder
from scheduler_core.model.kube import Pod
from tests.worlds.fake_api import connect_client, failing, until
from tests.worlds.scheduling_api import SchedulingApi


def web_pod(number: int) -> Pod:
    """A pod."""
    return Pod("shop", f"web-{number}", uid=str(number))


@asynccontextmanager
async def recorder_of(
    api: SchedulingApi, folder: Path, clock: list[float] | None = None
) -> AsyncIterator[EventRecorder]:
    """A recorder that writes; `clock` has its time as the only entry."""
    seconds = clock or [0.0]
    async with connect_client(api, folder) as client:
        recorder = EventRecorder(client, "mine", "test", lambda: seconds[0], lambda: datetime.now(UTC))
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
    """Only calls in flight come before it, and a few that overtake it on the way."""
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
    """A slow answer to one delays no other."""
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


async def test_each_message_has_its_event_and_equal_ones_are_counted(tmp_path: Path) -> None:
    """The count is written by a patch of the first Event."""
    api = SchedulingApi()
    clock = [0.0]
    async with recorder_of(api, tmp_path, clock) as recorder:
        for message in ("too small", "too small", "too full", "too small"):
            recorder.record(web_pod(1), "FailedScheduling", message, normal=False)
            await recorder.wait_until_written()
            clock[0] += QUIET_SECONDS
    assert {event["message"]: event["count"] for event in api.events.values()} == {"too small": 3, "too full": 1}


async def test_many_similar_messages_are_combined(tmp_path: Path) -> None:
    """From the tenth message of a pod and reason on they are one Event with the latest message."""
    api = SchedulingApi()
    async with recorder_of(api, tmp_path) as recorder:
        for number in range(12):
            recorder.record(web_pod(1), "FailedScheduling", f"message {number}", normal=False)
            await recorder.wait_until_written()
    messages = [event["message"] for event in api.events.values()]
    assert messages == [*(f"message {number}" for number in range(9)), f"{COMBINED}message 11"]
    assert [event["count"] for event in api.events.values()] == [1] * 9 + [3]


async def test_too_many_events_about_a_pod_are_only_counted(tmp_path: Path) -> None:
    """The next one that may be written has their number; other pods are not affected."""
    api = SchedulingApi()
    clock = [0.0]
    async with recorder_of(api, tmp_path, clock) as recorder:
        for _ in range(SPAM_LIMIT.burst + 5):
            clock[0] += QUIET_SECONDS
            recorder.record(web_pod(1), "FailedScheduling", "too small", normal=False)
            await recorder.wait_until_written()
        requests = api.event_requests
        recorder.record(web_pod(2), "FailedScheduling", "too small", normal=False)
        await recorder.wait_until_written()
        clock[0] += 1 / SPAM_LIMIT.rate
        recorder.record(web_pod(1), "FailedScheduling", "too small", normal=False)
        await recorder.wait_until_written()
    assert requests == SPAM_LIMIT.burst
    counts = {event["involvedObject"]["name"]: event["count"] for event in api.events.values()}
    assert counts == {"web-1": SPAM_LIMIT.burst + 6, "web-2": 1}
