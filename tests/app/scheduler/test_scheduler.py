"""The stand-alone scheduler over a fake API server: Bindings, Events, failures and changes of the lead."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from scheduler_core.generic.policy import parse_policy
from tests.worlds.fake_api import Behaviour, failing, until
from tests.worlds.scheduler import has_metric, running_scheduler
from tests.worlds.scheduling_api import NODES, PODS, SERVICES, SchedulingApi, node, pod

POLICIES = Path(__file__).parents[3] / "examples" / "policies"


async def test_concurrent_bindings_count_each_other_and_each_pod_gets_an_event(tmp_path: Path) -> None:
    api = SchedulingApi(node("a"), node("b"), *(pod(f"web-{number}", "2") for number in range(4)))
    async with running_scheduler(api, tmp_path):
        await until("the pods", lambda: len(api.bindings) == 4)
        await until("the events", lambda: len(api.events_with("Scheduled")) == 4)
    assert sorted(node for _, node in api.bindings) == ["a", "a", "b", "b"]
    event = next(event for event in api.events_with("Scheduled") if event["involvedObject"]["name"] == "web-0")
    assert event["message"] == f"Successfully assigned shop/web-0 to {api.pod_nodes()['web-0']}"
    assert (event["type"], event["source"]["component"], event["metadata"]["namespace"]) == ("Normal", "mine", "shop")


async def test_pods_of_other_schedulers_and_gated_pods_are_not_bound(tmp_path: Path) -> None:
    ignored = [pod("theirs", schedulerName="theirs"), pod("gated", schedulingGates=[{"name": "later"}])]
    api = SchedulingApi(node("a"), *ignored, pod("mine"))
    async with running_scheduler(api, tmp_path):
        await until("the pod", lambda: api.bindings)
        await asyncio.sleep(0.2)
    assert api.bindings == [("mine", "a")]


async def test_an_unschedulable_pod_gets_an_event_and_is_bound_when_a_node_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.runtime.event_recorder.QUIET_SECONDS", 0.1)
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with running_scheduler(api, tmp_path):
        await until("the event", lambda: api.events_with("FailedScheduling"))
        await api.put(NODES, node("tiny", "1"))
        await until("the other message", lambda: api.events_with("FailedScheduling")[0]["message"].startswith("0/2 "))
        (event,) = api.events_with("FailedScheduling")
        assert (event["type"], event["count"] >= 2) == ("Warning", True)
        await api.put(NODES, node("large", "4"))
        await until("the pod", lambda: api.bindings == [("big", "large")])


async def test_a_change_that_may_help_ends_a_back_off(tmp_path: Path) -> None:
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
        await api.put(NODES, node("large", "4"))
        await until("the pod", lambda: api.bindings)
        assert api.bindings == [("big", "large")]


async def test_a_refused_binding_is_tried_again(tmp_path: Path) -> None:
    api = SchedulingApi(node("a", "2"), pod("first", "2", priority=1))
    api.plan_bindings(failing(409, "the pod has changed", "Conflict"))
    async with running_scheduler(api, tmp_path):
        await until("the refusal", lambda: api.binding_requests == 1)
        await until("the pod", lambda: api.bindings == [("first", "a")])
        await until("the event", lambda: api.events_with("FailedScheduling"))
    assert api.binding_requests == 2
    (event,) = api.events_with("FailedScheduling")
    assert event["message"].startswith("binding to a failed: ")
    assert "the pod has changed" in event["message"]


async def test_a_binding_that_fails_repeatedly_backs_off(tmp_path: Path) -> None:
    now = [0.0]
    api = SchedulingApi(node("a"), pod("refused"))
    api.plan_bindings(failing(403, "not you", "Forbidden"), 9)
    async with running_scheduler(api, tmp_path, clock=lambda: now[0]) as scheduler:

        def has_failed(times: int) -> bool:
            return has_metric(scheduler, f'attempts_total{{result="error"}} {times}.0')

        await until("the first attempt", lambda: has_failed(1))
        now[0] = 1.0
        await until("the second attempt", lambda: has_failed(2))
        (item,) = scheduler.queue.pods.values()
        item.attempts = 9
        now[0] = 3.0
        await until("the third attempt", lambda: has_failed(3))
        now[0] = 14.0
        await asyncio.sleep(1.3)  # the scheduler polls its queue every second
        assert has_failed(3), "a change would have made it due at 13"


async def test_a_binding_without_an_answer_is_confirmed_by_reading_the_pod(tmp_path: Path) -> None:
    api = SchedulingApi(node("a", "2"), pod("first", "2", priority=1), pod("second", "2"))
    api.plan_bindings(api.bind_without_answer)
    async with running_scheduler(api, tmp_path):
        await until("the event", lambda: api.events_with("Scheduled"))
        await until("the other's refusal", lambda: api.events_with("FailedScheduling"))
    assert (api.binding_requests, api.bindings) == (1, [("first", "a")])


async def test_a_pod_that_is_deleted_during_its_binding_frees_its_node(tmp_path: Path) -> None:
    api = SchedulingApi(node("a", "2"), pod("first", "2", priority=1), pod("second", "2"))

    async def delete_pod(request: web.Request) -> web.StreamResponse:
        await api.remove(PODS, "first", "shop")
        return await api.bind(request)

    api.plan_bindings(delete_pod)
    async with running_scheduler(api, tmp_path):
        await until("the other pod", lambda: api.bindings)
    assert api.bindings == [("second", "a")]


async def test_a_later_pod_of_the_same_name_is_scheduled_on_its_own(tmp_path: Path) -> None:
    api = SchedulingApi(node("a", "2"), pod("web", "2"))
    later_pod = pod("web", "1")

    async def replace_pod(request: web.Request) -> web.StreamResponse:
        await api.remove(PODS, "web", "shop")
        await api.put(PODS, later_pod)
        return await api.bind(request)

    api.plan_bindings(replace_pod)
    async with running_scheduler(api, tmp_path):
        await until("the second pod", lambda: api.bindings)
        await until("its event", lambda: api.events_with("Scheduled"))
    assert api.events_with("Scheduled")[0]["involvedObject"]["uid"] == later_pod["metadata"]["uid"]
    assert (api.binding_requests, len(api.bindings)) == (2, 1)


async def test_a_late_refusal_of_a_pod_does_not_count_for_a_later_pod_of_its_name(tmp_path: Path) -> None:
    now = [0.0]
    later_pod = pod("web", "1")
    api = SchedulingApi(node("a"), pod("web", "1"))
    answer_first = asyncio.Event()
    answer_second = asyncio.Event()

    def bind_after(event: asyncio.Event) -> Behaviour:
        async def answer(request: web.Request) -> web.StreamResponse:
            await event.wait()
            return await api.bind(request)

        return answer

    api.plan_bindings(bind_after(answer_first))
    api.plan_bindings(bind_after(answer_second))
    async with running_scheduler(api, tmp_path, clock=lambda: now[0]) as scheduler:
        await until("the first Binding", lambda: api.binding_requests == 1)
        await api.remove(PODS, "web", "shop")
        await api.put(PODS, later_pod)
        await until("the second Binding", lambda: api.binding_requests == 2)
        answer_first.set()
        await until("its refusal", lambda: has_metric(scheduler, 'attempts_total{result="error"} 1.0'))
        now[0] = 30.0
        await api.put(PODS, pod("other"))
        await until("another pod", lambda: ("other", "a") in api.bindings)
        answer_second.set()
        await until("the event", lambda: len(api.events_with("Scheduled")) == 2)
        await scheduler.wait_until_settled()
        assert (api.binding_requests, api.events_with("FailedScheduling")) == (3, [])
    assert api.pod_nodes() == {"web": "a", "other": "a"}


async def test_a_former_leader_with_due_pods_does_not_busy_wait(tmp_path: Path) -> None:
    now = [0.0]
    lease_checks = 0
    leading = True

    def leads() -> bool:
        nonlocal lease_checks
        lease_checks += 1
        return leading

    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with running_scheduler(api, tmp_path, leads=leads, clock=lambda: now[0]) as scheduler:
        await until("the condition", lambda: api.condition("big"))
        await scheduler.reporter.wait_until_written()

        def cache_shows_condition() -> bool:
            seen = scheduler.cache.pod(("shop", "big"))
            return bool(seen and seen.pod.unschedulable)

        await until("the condition's watch event", cache_shows_condition)
        leading = False
        now[0] = 30.0
        before = lease_checks
        await until("a turn", lambda: lease_checks > before)
        before = lease_checks
        for _ in range(500):
            await asyncio.sleep(0)
        assert lease_checks - before <= 5
        leading = True
        await until("the next attempt", lambda: has_metric(scheduler, 'attempts_total{result="unschedulable"} 2.0'))


async def test_a_deleted_or_cordoned_node_gets_no_pod(tmp_path: Path) -> None:
    api = SchedulingApi(node("a"), node("b"), node("c"))
    async with running_scheduler(api, tmp_path):
        await api.put(PODS, pod("first"))
        await until("the first pod", lambda: api.bindings)
        await api.remove(NODES, "b")
        await api.put(NODES, {**node("c"), "spec": {"unschedulable": True}})
        await asyncio.sleep(0.2)
        await api.put(PODS, pod("second"))
        await until("the second pod", lambda: len(api.bindings) == 2)
    assert api.bindings[1] == ("second", "a")


async def test_a_follower_binds_no_pod(tmp_path: Path) -> None:
    leading = False
    api = SchedulingApi(node("a"), pod("web"))
    async with running_scheduler(api, tmp_path, leads=lambda: leading):
        await until("the watches", lambda: api.open_watches == 3)
        await asyncio.sleep(0.3)
        assert (api.binding_requests, api.event_requests) == (0, 0)
        leading = True
        await until("the pod", lambda: api.bindings)


async def test_a_deleted_service_causes_a_retry(tmp_path: Path) -> None:
    policy = parse_policy((POLICIES / "region-zone-rack.json").read_bytes())
    labels = {"app": "web"}
    bound_pod = pod("bound", "1", nodeName="full")
    pending_pod = pod("pending", "3")
    for raw in (bound_pod, pending_pod):
        raw["metadata"]["labels"] = labels
    nodes = [node("full", "2", region="r1", zone="z1"), node("free", "4", region="r2", zone="z2")]
    api = SchedulingApi(*nodes, bound_pod, pending_pod)
    service = {"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": labels}}
    api.add(SERVICES, service)
    async with running_scheduler(api, tmp_path, policy):
        await until("the refusal", lambda: api.events_with("FailedScheduling"))
        assert api.bindings == []
        await api.remove(SERVICES, "web", "shop")
        await until("the pod", lambda: api.bindings)
    assert api.bindings == [("pending", "free")]


async def test_a_deactivated_scheduler_finishes_bindings_and_events(tmp_path: Path) -> None:
    api = SchedulingApi(node("a"), pod("web"))
    go_on = asyncio.Event()

    async def bind_later(request: web.Request) -> web.StreamResponse:
        await go_on.wait()
        return await api.bind(request)

    api.plan_bindings(bind_later)
    async with running_scheduler(api, tmp_path) as scheduler:
        await until("the Binding", lambda: api.binding_requests == 1)
        scheduler.deactivate()
        settling = asyncio.create_task(scheduler.wait_until_settled())
        await api.put(PODS, pod("late"))
        await asyncio.sleep(0.1)
        assert not settling.done()
        go_on.set()
        await settling
        assert [event["involvedObject"]["name"] for event in api.events_with("Scheduled")] == ["web"]
    assert api.bindings == [("web", "a")]
