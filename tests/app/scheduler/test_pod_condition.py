"""The condition PodScheduled of pods that the stand-alone scheduler finds no node for: as kube-scheduler writes it, and no more often."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from app.kube.client import ApiError, KubeClient
from app.scheduler.api_dispatcher import MAX_REFUSALS, ApiDispatcher
from app.scheduler.event_recorder import EventRecorder
from scheduler_core.backoff import Backoff
from scheduler_core.convert.binding import MAX_MESSAGE
from scheduler_core.convert.pod_patch import not_scheduled_patch
from scheduler_core.model.generic import Pod
from tests.worlds.fake_api import failing, until
from tests.worlds.scheduling_api import NODES, PODS, SchedulingApi, node, plan, pod, scheduling
from tests.worlds.virtual_time import run

NOW = "2026-01-02T03:04:05Z"
LONG_AGO = "2020-01-01T00:00:00Z"
OTHER = {"type": "Ready", "status": "False"}


def told(name: str, *conditions: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A pod of three CPUs with conditions."""
    raw = pod(name, "3")
    raw["metadata"] |= metadata
    raw["status"] = {"conditions": list(conditions)}
    return raw


def refused(message: str, since: str = LONG_AGO) -> dict[str, Any]:
    """As an earlier attempt left it."""
    base = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {**base, "message": message, "lastTransitionTime": since}


async def test_a_pod_nobody_can_take_says_so_as_its_event_does(tmp_path: Path) -> None:
    """What others wrote beside it stays."""
    api = SchedulingApi(node("small", "1"), told("big", OTHER, generation=3))
    async with scheduling(api, tmp_path):
        await until("the condition", lambda: api.condition("big"))
        await until("the event", lambda: api.happened("FailedScheduling"))
    found = api.condition("big")
    assert found.pop("lastTransitionTime") > LONG_AGO
    assert found == {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": api.happened("FailedScheduling")[0]["message"],
        "observedGeneration": 3,
    }
    assert found["message"].startswith("0/1 nodes are available: 1 ")
    assert api.condition("big", "Ready") == OTHER


async def test_it_is_written_when_it_is_another_one_and_keeps_its_time(tmp_path: Path) -> None:
    """Attempts that say the same cost nothing; another text is another condition, but no transition."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with scheduling(api, tmp_path) as scheduler:
        await until("the condition", lambda: api.condition("big"))
        first = api.condition("big")
        asked = api.count("get")
        await until(
            "more attempts",
            lambda: 'result="unschedulable"} 3.0' in generate_latest(scheduler._metrics.registry).decode(),
        )
        assert (api.statuses, api.count("get")) == (1, asked)
        await api.put(NODES, node("tiny", "1"))
        await until("another text", lambda: api.condition("big")["message"].startswith("0/2 "))
    assert api.statuses == 2
    assert api.condition("big")["lastTransitionTime"] == first["lastTransitionTime"]


@pytest.mark.parametrize(("message", "writes"), [("insufficient CPU", 0), ("too big", 1)], ids=["same", "another"])
async def test_what_an_earlier_process_wrote_counts(message: str, writes: int, tmp_path: Path) -> None:
    """A new one learns it from the pod."""
    before = refused(f"0/1 nodes are available: 1 {message}.")
    api = SchedulingApi(node("small", "1"), told("big", before))
    async with scheduling(api, tmp_path):
        await until("the event", lambda: api.happened("FailedScheduling"))
        await until("the pod to be read", lambda: api.count("get"))
        await until("the condition", lambda: api.condition("big")["message"].endswith("insufficient CPU."))
        await asyncio.sleep(0.2)
    assert (api.statuses, api.condition("big")["lastTransitionTime"]) == (writes, LONG_AGO)


async def test_the_echo_of_the_condition_is_no_reason_to_try_again(tmp_path: Path) -> None:
    """Time stands still ten seconds after the attempt: whatever shortened the back-off would show."""
    now = [0.0]
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with scheduling(api, tmp_path, clock=lambda: now[0]) as scheduler:

        def attempts() -> str:
            text = generate_latest(scheduler._metrics.registry).decode()
            return text.partition('attempts_total{result="unschedulable"} ')[2].partition("\n")[0]

        await until("the first attempt", lambda: attempts() == "1.0")
        (item,) = scheduler._queue._pods.values()
        item.attempts = 9
        now[0] = 1.0
        await until("the second attempt", lambda: attempts() == "2.0")
        now[0] = 11.0
        await api.put(PODS, {**api.collections[PODS].objects["shop/big"], "status": {"conditions": [OTHER]}})
        await asyncio.sleep(0.3)
        assert attempts() == "2.0"


async def test_a_binding_that_fails_is_an_error_of_the_scheduler(tmp_path: Path) -> None:
    """With what its Event says."""
    api = SchedulingApi(node("a", "2"), pod("web", "2"))
    plan(failing(403, "no", "Forbidden"), api, 100)
    async with scheduling(api, tmp_path):
        await until("the condition", lambda: api.condition("web"))
        await until("the event", lambda: api.happened("FailedScheduling"))
    found = api.condition("web")
    assert (found["status"], found["reason"]) == ("False", "SchedulerError")
    assert found["message"] == api.happened("FailedScheduling")[0]["message"]
    assert found["message"].startswith("binding to a failed: ")


async def test_a_pod_that_is_bound_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """By whomever; what binding made True stays so."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    bound = {"type": "PodScheduled", "status": "True"}

    async def bind_it(request: web.Request) -> web.StreamResponse:
        raw = api.collections[PODS].objects["shop/big"]
        spec = {**raw["spec"], "nodeName": "elsewhere"}
        await api.put(PODS, {**raw, "metadata": dict(raw["metadata"]), "spec": spec, "status": {"conditions": [bound]}})
        return await api.patch_status(request)

    api.plans["status"] = [bind_it]
    with capture_logs() as logs:
        async with scheduling(api, tmp_path) as scheduler:
            await until("the condition", lambda: api.condition("big"))
            await scheduler._recorder.wait_until_written()
    assert (api.condition("big"), api.statuses) == (bound, 1)
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []


async def test_a_pod_that_changes_meanwhile_is_read_again(tmp_path: Path) -> None:
    """A conflict is nobody's fault."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    api.plans["status"] = [failing(409, "the pod has changed", "Conflict")] * 2
    async with scheduling(api, tmp_path):
        await until("the condition", lambda: api.condition("big"))
    assert api.statuses == 3


async def test_a_pod_that_goes_meanwhile_is_nothing_to_worry_about(tmp_path: Path) -> None:
    """Nobody is left to be told."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    api.always["status"] = failing(404, "no such pod", "NotFound")
    with capture_logs() as logs:
        async with scheduling(api, tmp_path) as scheduler:
            await until("the attempts", lambda: api.statuses >= 2)
            await scheduler._recorder.wait_until_written()
            assert 'write_failures_total{what="condition"} 0.0' in generate_latest(scheduler._metrics.registry).decode()
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []


async def test_a_pod_that_always_changes_is_told_with_its_next_attempt(tmp_path: Path) -> None:
    """It is read three times; then that counts as a refusal, and is in the log."""
    api = SchedulingApi(node("small", "1"), pod("restless", "3"))
    api.plans["status"] = [failing(409, "the pod has changed", "Conflict")] * 3
    with capture_logs() as logs:
        async with scheduling(api, tmp_path) as scheduler:
            await until("the condition", lambda: api.condition("restless"))
            assert 'write_failures_total{what="condition"} 1.0' in generate_latest(scheduler._metrics.registry).decode()
    assert api.statuses == 4
    (told,) = [entry for entry in logs if entry["event"] == "a write was refused"]
    assert (told["what"], "the pod has changed" in told["problem"]) == ("condition", True)


async def test_a_refused_write_is_told_and_stops_nothing(tmp_path: Path) -> None:
    """An image that came before its Role; the condition is written once it may be."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"), pod("fits"))
    api.always["status"] = failing(403, "pods/status is forbidden", "Forbidden")
    with capture_logs() as logs:
        async with scheduling(api, tmp_path) as scheduler:
            await until("the refusal", lambda: [entry for entry in logs if entry["event"] == "a write was refused"])
            await until("the other pod", lambda: api.bindings == [("fits", "small")])
            del api.always["status"]
            await until("the condition", lambda: api.condition("big"))
            assert (
                'write_failures_total{what="condition"} 0.0'
                not in generate_latest(scheduler._metrics.registry).decode()
            )
    told = next(entry for entry in logs if entry["event"] == "a write was refused")
    assert told["what"] == "condition"
    assert "/namespaces/shop/pods/big/status" in told["problem"]


async def test_what_gets_no_answer_is_written_later(tmp_path: Path) -> None:
    """And counted, and told once."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    api.plans["status"] = [failing(503, "etcd is away")] * 2
    with capture_logs() as logs:
        async with scheduling(api, tmp_path) as scheduler:
            await until("the condition", lambda: api.condition("big"))
            assert 'write_failures_total{what="condition"} 2.0' in generate_latest(scheduler._metrics.registry).decode()
    assert len([entry for entry in logs if entry["event"] == "cannot be written now, trying again"]) == 1


async def test_what_the_api_server_never_takes_is_given_up_and_told_with_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook that fails is answered with 500 for ever; what is said by then was not said, and is told again."""
    monkeypatch.setattr("app.scheduler.api_dispatcher._BACKOFF", Backoff(0.01, 0.32))
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    api.plans["status"] = [failing(500, "failed calling webhook")] * MAX_REFUSALS
    with capture_logs() as logs:
        async with scheduling(api, tmp_path) as scheduler:
            await until("the condition", lambda: api.condition("big"))
            failures = f'write_failures_total{{what="condition"}} {MAX_REFUSALS}.0'
            assert failures in generate_latest(scheduler._metrics.registry).decode()
    (told,) = [entry for entry in logs if entry["event"] == "a write was refused"]
    assert (told["what"], told["tries"]) == ("condition", MAX_REFUSALS)


class Writes:
    """A dispatcher, and when what was written; `answers` are the statuses of what is not, 0 for none."""

    def __init__(self, answers: dict[str, int]) -> None:
        self.answers = answers
        self.tried: dict[str, list[float]] = {}
        self.done: dict[str, float] = {}
        self.given_up: list[str] = []
        self.dispatcher: ApiDispatcher[str, int] = ApiDispatcher("event", self._write, lambda _: None, self._give_up)

    async def _write(self, key: str, word: int) -> None:
        now = asyncio.get_running_loop().time()
        self.tried.setdefault(key, []).append(now)
        status = self.answers.get(key[0], 200)
        if status != 200:
            raise ApiError("POST /events", status, "", "no")
        self.done[f"{key}={word}"] = now

    def _give_up(self, key: str, word: int) -> None:
        self.given_up.append(f"{key}={word}")

    def pauses(self, key: str) -> list[int]:
        """Seconds between the tries of a key."""
        return [round(later - earlier) for earlier, later in pairwise(self.tried[key])]


def test_words_that_are_never_taken_hold_up_no_other() -> None:
    """Five answers are enough; without an answer it is tried for ever, ever less."""

    async def hour() -> Writes:
        writes = Writes({"x": 500, "y": 0})
        running = asyncio.create_task(writes.dispatcher.run())
        for key in ("x1", "x2", "y1", "y2", "a", "b"):
            writes.dispatcher.put(key, 1)
        await asyncio.sleep(1)
        assert writes.done.keys() == {"a=1", "b=1"}
        assert max(writes.done.values()) < 0.5
        await asyncio.sleep(3600)
        writes.answers.clear()
        await writes.dispatcher.wait_until_idle()
        running.cancel()
        return writes

    writes = run(hour())
    assert writes.given_up == ["x1=1", "x2=1"]
    assert writes.pauses("x1") == [1, 2, 4, 8]
    assert writes.pauses("y1")[:7] == [1, 2, 4, 8, 16, 32, 32]
    assert writes.done.keys() == {"a=1", "b=1", "y1=1", "y2=1"}


def test_what_waits_to_be_written_again_is_the_latest_word_until_it_is_discarded() -> None:
    """A newer word waits as the one before it would have; one that is discarded keeps nobody waiting."""

    async def minute() -> Writes:
        writes = Writes({"y": 0})
        running = asyncio.create_task(writes.dispatcher.run())
        for key in ("y1", "y2"):
            writes.dispatcher.put(key, 1)
        await asyncio.sleep(0.5)
        writes.dispatcher.put("y1", 2)
        writes.dispatcher.discard("y2")
        writes.answers.clear()
        await writes.dispatcher.wait_until_idle()
        assert len(writes.dispatcher) == 0
        writes.answers["y"] = 0
        writes.dispatcher.put("y1", 3)
        await asyncio.sleep(0.5)
        writes.dispatcher.clear()
        await writes.dispatcher.wait_until_idle()
        running.cancel()
        return writes

    assert run(minute()).done.keys() == {"y1=2"}


async def test_events_of_pods_that_are_forgotten_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for an API server that is away is bounded."""
    monkeypatch.setattr("app.scheduler.event_recorder._MAX_EVENTS", 3)
    recorder = EventRecorder(KubeClient(None), "mine", "test", lambda: 0.0, lambda: datetime.now(UTC))  # type: ignore[arg-type]
    for number in range(5):
        recorder.record(Pod("shop", f"web-{number}", uid=str(number)), "Scheduled", "somewhere", normal=True)
    assert len(recorder._dispatcher) == 3


async def test_who_schedules_again_does_not_trust_what_it_wrote(tmp_path: Path) -> None:
    """Another process has led in between, and told the pod something else."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with scheduling(api, tmp_path) as scheduler:
        await until("the condition", lambda: api.condition("big"))
        mine = api.condition("big")
        scheduler.deactivate()
        raw = api.collections[PODS].objects["shop/big"]
        await api.put(PODS, {**raw, "status": {"conditions": [refused("of another process")]}})
        scheduler.activate()
        await until("the condition", lambda: api.condition("big")["message"] == mine["message"])


async def test_the_text_is_as_long_as_an_event_takes(tmp_path: Path) -> None:
    """So that both say the same."""
    api = SchedulingApi(node("a", "2"), pod("web", "2"))
    plan(failing(403, "no! " * MAX_MESSAGE, "Forbidden"), api, 100)
    async with scheduling(api, tmp_path):
        await until("the condition", lambda: api.condition("web"))
        await until("the event", lambda: api.happened("FailedScheduling"))
    message = api.condition("web")["message"]
    assert (len(message), message[-4:]) == (MAX_MESSAGE, " ...")
    assert message == api.happened("FailedScheduling")[0]["message"]


@pytest.mark.parametrize(
    ("change", "since"),
    [
        pytest.param({}, NOW, id="no status"),
        pytest.param({"status": {"conditions": None}}, NOW, id="no conditions"),
        pytest.param({"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}, NOW, id="was scheduled"),
        pytest.param({"status": {"conditions": [refused("why", "")]}}, NOW, id="no time"),
        pytest.param({"status": {"conditions": [refused("why")]}}, LONG_AGO, id="another text"),
        pytest.param({"status": {"conditions": [refused("because")]}}, None, id="the same"),
        pytest.param({"spec": {"nodeName": "a"}}, None, id="bound"),
        pytest.param({"metadata": {"uid": "2"}}, None, id="another pod"),
    ],
)
def test_what_is_patched(change: dict[str, Any], since: str | None) -> None:
    """None: nothing."""
    raw = {"metadata": {"name": "web", "uid": "1", "resourceVersion": "7"}, **change}
    wanted = None if since is None else {**refused("because"), "lastTransitionTime": since}
    found = not_scheduled_patch(json.dumps(raw).encode(), "1", "Unschedulable", "because", NOW)
    assert found == (wanted and {"metadata": {"resourceVersion": "7"}, "status": {"conditions": [wanted]}})
