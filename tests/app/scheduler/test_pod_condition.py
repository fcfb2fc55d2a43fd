"""The condition PodScheduled of unschedulable pods: what kube-scheduler would write, only when it differs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from app.runtime.event_recorder import MAX_REFUSALS, ApiDispatcher
from app.runtime.work_queue import Requeue
from scheduler_core.backoff import Backoff
from scheduler_core.convert.generic import not_scheduled_patch
from scheduler_core.convert.kube import MAX_MESSAGE
from tests.worlds.fake_api import failing, until
from tests.worlds.scheduler import has_metric, running_scheduler
from tests.worlds.scheduling_api import NODES, PODS, SchedulingApi, node, pod

NOW = "2026-01-02T03:04:05Z"
LONG_AGO = "2020-01-01T00:00:00Z"
NOT_READY = {"type": "Ready", "status": "False"}


def pod_with_conditions(name: str, *conditions: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    raw = pod(name, "3")
    raw["metadata"] |= metadata
    raw["status"] = {"conditions": list(conditions)}
    return raw


def unschedulable(message: str, since: str = LONG_AGO) -> dict[str, Any]:
    base = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {**base, "message": message, "lastTransitionTime": since}


async def test_the_condition_has_the_message_of_the_event(tmp_path: Path) -> None:
    api = SchedulingApi(node("small", "1"), pod_with_conditions("big", NOT_READY, generation=3))
    async with running_scheduler(api, tmp_path):
        await until("the condition", lambda: api.condition("big"))
        await until("the event", lambda: api.events_with("FailedScheduling"))
    condition = api.condition("big")
    assert condition.pop("lastTransitionTime") > LONG_AGO
    assert condition == {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": api.events_with("FailedScheduling")[0]["message"],
        "observedGeneration": 3,
    }
    assert condition["message"].startswith("0/1 nodes are available: 1 ")
    assert api.condition("big", "Ready") == NOT_READY


async def test_only_a_changed_message_is_written_and_the_transition_time_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.scheduler.scheduling_queue._BACKOFF", Backoff(0.1, 0.3))
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with running_scheduler(api, tmp_path) as scheduler:
        await until("the condition", lambda: api.condition("big"))
        first = api.condition("big")
        reads = api.count("get")
        await until("more attempts", lambda: has_metric(scheduler, 'attempts_total{result="unschedulable"} 3.0'))
        assert (api.status_requests, api.event_requests, api.count("get")) == (1, 1, reads)
        await api.put(NODES, node("tiny", "1"))
        await until("another text", lambda: api.condition("big")["message"].startswith("0/2 "))
    assert api.status_requests == 2
    assert api.condition("big")["lastTransitionTime"] == first["lastTransitionTime"]


@pytest.mark.parametrize(("message", "writes"), [("insufficient CPU", 0), ("too big", 1)], ids=["same", "another"])
async def test_an_equal_condition_of_an_earlier_process_is_not_written_again(
    message: str, writes: int, tmp_path: Path
) -> None:
    before = unschedulable(f"0/1 nodes are available: 1 {message}.")
    api = SchedulingApi(node("small", "1"), pod_with_conditions("big", before))
    async with running_scheduler(api, tmp_path):
        await until("the event", lambda: api.events_with("FailedScheduling"))
        await until("the pod to be read", lambda: api.count("get"))
        await until("the condition", lambda: api.condition("big")["message"].endswith("insufficient CPU."))
        await asyncio.sleep(0.2)
    assert (api.status_requests, api.condition("big")["lastTransitionTime"]) == (writes, LONG_AGO)


async def test_the_watch_event_of_the_condition_causes_no_attempt(tmp_path: Path) -> None:
    now = [0.0]
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with running_scheduler(api, tmp_path, clock=lambda: now[0]) as scheduler:

        def has_failed(times: int) -> bool:
            return has_metric(scheduler, f'attempts_total{{result="unschedulable"}} {times}.0')

        await until("the first attempt", lambda: has_failed(1))
        (item,) = scheduler.queue.pods.values()
        item.attempts = 9
        now[0] = 1.0
        await until("the second attempt", lambda: has_failed(2))
        now[0] = 11.0
        await api.put(PODS, {**api.collections[PODS].objects["shop/big"], "status": {"conditions": [NOT_READY]}})
        await asyncio.sleep(0.3)
        assert has_failed(2)


async def test_a_failed_binding_is_reported_as_a_scheduler_error_and_truncated_as_in_the_event(tmp_path: Path) -> None:
    api = SchedulingApi(node("a", "2"), pod("web", "2"))
    api.plan_bindings(failing(403, "no! " * MAX_MESSAGE, "Forbidden"), 100)
    async with running_scheduler(api, tmp_path):
        await until("the condition", lambda: api.condition("web"))
        await until("the event", lambda: api.events_with("FailedScheduling"))
    condition = api.condition("web")
    message = condition["message"]
    assert (condition["status"], condition["reason"]) == ("False", "SchedulerError")
    assert message == api.events_with("FailedScheduling")[0]["message"]
    assert (message.startswith("binding to a failed: "), len(message), message[-4:]) == (True, MAX_MESSAGE, " ...")


async def test_the_condition_of_a_pod_that_is_bound_meanwhile_stays_true(tmp_path: Path) -> None:
    """A different scheduler may have bound the pod."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    scheduled = {"type": "PodScheduled", "status": "True"}

    async def bind_pod(request: web.Request) -> web.StreamResponse:
        raw = api.collections[PODS].objects["shop/big"]
        spec = {**raw["spec"], "nodeName": "elsewhere"}
        status = {"conditions": [scheduled]}
        await api.put(PODS, {**raw, "metadata": dict(raw["metadata"]), "spec": spec, "status": status})
        return await api.patch_status(request)

    api.plans["status"] = [bind_pod]
    with capture_logs() as logs:
        async with running_scheduler(api, tmp_path) as scheduler:
            await until("the condition", lambda: api.condition("big"))
            await scheduler.reporter.wait_until_written()
    assert (api.condition("big"), api.status_requests) == (scheduled, 1)
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []


async def test_a_pod_that_is_deleted_meanwhile_is_no_failure(tmp_path: Path) -> None:
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    api.always["status"] = failing(404, "no such pod", "NotFound")
    with capture_logs() as logs:
        async with running_scheduler(api, tmp_path) as scheduler:
            await until("the attempts", lambda: api.status_requests >= 2)
            await scheduler.reporter.wait_until_written()
            assert has_metric(scheduler, 'write_failures_total{what="condition"} 0.0')
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []


@pytest.mark.parametrize("conflicts", [2, 3], ids=["read again", "written after the next attempt"])
async def test_a_pod_that_changes_meanwhile_gets_its_condition(conflicts: int, tmp_path: Path) -> None:
    api = SchedulingApi(node("small", "1"), pod("restless", "3"))
    api.plans["status"] = [failing(409, "the pod has changed", "Conflict")] * conflicts
    with capture_logs() as logs:
        async with running_scheduler(api, tmp_path) as scheduler:
            await until("the condition", lambda: api.condition("restless"))
            assert has_metric(scheduler, f'write_failures_total{{what="condition"}} {conflicts // 3}.0')
    assert api.status_requests == conflicts + 1
    refusals = [entry for entry in logs if entry["event"] == "a write was refused"]
    assert [(each["what"], "the pod has changed" in each["problem"]) for each in refusals] == [("condition", True)] * (
        conflicts // 3
    )


async def test_a_refused_write_is_logged_and_does_not_stop_scheduling(tmp_path: Path) -> None:
    api = SchedulingApi(node("small", "1"), pod("big", "3"), pod("fits"))
    api.always["status"] = failing(403, "pods/status is forbidden", "Forbidden")
    with capture_logs() as logs:
        async with running_scheduler(api, tmp_path) as scheduler:
            await until("the refusal", lambda: [entry for entry in logs if entry["event"] == "a write was refused"])
            await until("the other pod", lambda: api.bindings == [("fits", "small")])
            del api.always["status"]
            await until("the condition", lambda: api.condition("big"))
            assert not has_metric(scheduler, 'write_failures_total{what="condition"} 0.0')
    refusal = next(entry for entry in logs if entry["event"] == "a write was refused")
    assert refusal["what"] == "condition"
    assert "/namespaces/shop/pods/big/status" in refusal["problem"]


async def test_an_unanswered_write_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiDispatcher, "backoffs", {Requeue.FAILED: Backoff(0.1, 0.3)})
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    api.plans["status"] = [failing(503, "etcd is away")] * 2
    with capture_logs() as logs:
        async with running_scheduler(api, tmp_path) as scheduler:
            await until("the condition", lambda: api.condition("big"))
            assert has_metric(scheduler, 'write_failures_total{what="condition"} 2.0')
    assert len([entry for entry in logs if entry["event"] == "cannot be written now, trying again"]) == 1


async def test_a_write_that_always_fails_is_given_up_until_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook may fail forever. The next attempt to schedule writes the condition again."""
    monkeypatch.setattr(ApiDispatcher, "backoffs", {Requeue.FAILED: Backoff(0.01, 0.32)})
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    api.plans["status"] = [failing(500, "failed calling webhook")] * MAX_REFUSALS
    with capture_logs() as logs:
        async with running_scheduler(api, tmp_path) as scheduler:
            await until("the condition", lambda: api.condition("big"))
            assert has_metric(scheduler, f'write_failures_total{{what="condition"}} {MAX_REFUSALS}.0')
    (refusal,) = [entry for entry in logs if entry["event"] == "a write was refused"]
    assert (refusal["what"], refusal["tries"]) == ("condition", MAX_REFUSALS)


async def test_a_new_term_writes_the_condition_again(tmp_path: Path) -> None:
    """A different leader may have written another message in between."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with running_scheduler(api, tmp_path) as scheduler:
        await until("the condition", lambda: api.condition("big"))
        first = api.condition("big")
        scheduler.deactivate()
        raw = api.collections[PODS].objects["shop/big"]
        await api.put(PODS, {**raw, "status": {"conditions": [unschedulable("of another process")]}})
        scheduler.activate()
        await until("the condition", lambda: api.condition("big")["message"] != "of another process")
        assert api.condition("big")["message"] == first["message"]


@pytest.mark.parametrize(
    ("change", "since"),
    [
        pytest.param({}, NOW, id="no status"),
        pytest.param({"status": {"conditions": None}}, NOW, id="no conditions"),
        pytest.param({"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}, NOW, id="was scheduled"),
        pytest.param({"status": {"conditions": [unschedulable("why", "")]}}, NOW, id="no time"),
        pytest.param({"status": {"conditions": [unschedulable("why")]}}, LONG_AGO, id="another text"),
        pytest.param({"status": {"conditions": [unschedulable("because")]}}, None, id="the same"),
        pytest.param({"spec": {"nodeName": "a"}}, None, id="bound"),
        pytest.param({"metadata": {"uid": "2"}}, None, id="another pod"),
    ],
)
def test_only_a_pending_pod_with_a_different_condition_is_patched(change: dict[str, Any], since: str | None) -> None:
    raw = {"metadata": {"name": "web", "uid": "1", "resourceVersion": "7"}, **change}
    condition = None if since is None else {**unschedulable("because"), "lastTransitionTime": since}
    patch = not_scheduled_patch(json.dumps(raw).encode(), "1", "Unschedulable", "because", NOW)
    assert patch == (condition and {"metadata": {"resourceVersion": "7"}, "status": {"conditions": [condition]}})
