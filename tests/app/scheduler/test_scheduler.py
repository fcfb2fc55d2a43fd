"""The stand-alone scheduler beside an API server: what it binds, what it does when a Binding fails, and what pods are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web
from prometheus_client import generate_latest

from scheduler_core.generic.policy import parse_policy
from tests.worlds.fake_api import Behaviour, failing, until
from tests.worlds.scheduling_api import (
    CLAIMS,
    CLASSES,
    NODES,
    PODS,
    SERVICES,
    SchedulingApi,
    node,
    plan,
    pod,
    scheduling,
)

POLICIES = Path(__file__).parents[3] / "examples" / "policies"


async def test_pods_are_bound_beside_each_other_and_told(tmp_path: Path) -> None:
    """Four pods of two CPUs on two nodes of four: two each, though no watch has shown the first when the second is decided."""
    api = SchedulingApi(node("a"), node("b"), *(pod(f"web-{number}", "2") for number in range(4)))
    async with scheduling(api, tmp_path):
        await until("the pods", lambda: len(api.bindings) == 4)
        await until("the events", lambda: len(api.happened("Scheduled")) == 4)
    assert sorted(where for _, where in api.bindings) == ["a", "a", "b", "b"]
    told = next(event for event in api.happened("Scheduled") if event["involvedObject"]["name"] == "web-0")
    assert told["message"] == f"Successfully assigned shop/web-0 to {api.nodes_of()['web-0']}"
    assert (told["type"], told["source"]["component"], told["metadata"]["namespace"]) == ("Normal", "mine", "shop")


async def test_other_schedulers_pods_are_left_alone(tmp_path: Path) -> None:
    """Also those that name none, and those a gate holds back."""
    others = [pod("theirs", schedulerName="theirs"), pod("gated", schedulingGates=[{"name": "later"}])]
    api = SchedulingApi(node("a"), *others, pod("mine"))
    async with scheduling(api, tmp_path):
        await until("the pod", lambda: api.bindings)
        await asyncio.sleep(0.2)
    assert api.bindings == [("mine", "a")]


async def test_a_pod_nobody_can_take_is_told_why_once_and_bound_when_a_node_appears(tmp_path: Path) -> None:
    """One Event object, however often it is tried."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with scheduling(api, tmp_path):
        await until("the event", lambda: api.happened("FailedScheduling"))
        await api.put(NODES, node("tiny", "1"))
        await until("the second attempt", lambda: api.happened("FailedScheduling")[0]["count"] >= 2)
        (event,) = api.happened("FailedScheduling")
        assert event["message"].startswith("0/2 nodes are available: 2 ")
        assert event["type"] == "Warning"
        await api.put(NODES, node("large", "4"))
        await until("the pod", lambda: api.bindings == [("big", "large")])


async def test_what_may_help_ends_a_back_off(tmp_path: Path) -> None:
    """Time stands still ten seconds after the second attempt, the tenth as its back-off has it: that would last a minute."""
    now = [0.0]
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with scheduling(api, tmp_path, clock=lambda: now[0]) as scheduler:

        def refused(times: int) -> bool:
            return (
                f'attempts_total{{result="unschedulable"}} {times}.0'
                in generate_latest(scheduler._metrics.registry).decode()
            )

        await until("the first attempt", lambda: refused(1))
        (item,) = scheduler._queue._pods.values()
        item.attempts = 9
        now[0] = 1.0
        await until("the second attempt", lambda: refused(2))
        now[0] = 11.0
        await api.put(NODES, node("large", "4"))
        await until("the pod", lambda: api.bindings == [("big", "large")])


async def test_equal_refusals_are_counted_not_written(tmp_path: Path) -> None:
    """Attempts that say the same within ten seconds cost the API server one write."""
    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with scheduling(api, tmp_path):
        await until("the event", lambda: api.happened("FailedScheduling"))
        await asyncio.sleep(2)  # it is tried again after a second
        assert api.written == 1


async def test_a_refused_binding_is_tried_again(tmp_path: Path) -> None:
    """And the room it was assumed to take is free in the meantime."""
    api = SchedulingApi(node("a", "2"), pod("first", "2", priority=1))
    plan(failing(409, "the pod has changed", "Conflict"), api)
    async with scheduling(api, tmp_path):
        await until("the refusal", lambda: api.posted == 1)
        await until("the pod", lambda: api.bindings == [("first", "a")])
        await until("the event", lambda: api.happened("FailedScheduling"))
    assert api.posted == 2
    (told,) = api.happened("FailedScheduling")
    assert told["message"].startswith("binding to a failed: ")
    assert "the pod has changed" in told["message"]


async def test_a_binding_that_keeps_failing_is_tried_less_and_less(tmp_path: Path) -> None:
    """The room that each gives back may help others, and wakes them; it does not wake the pod itself."""
    now = [0.0]
    api = SchedulingApi(node("a"), pod("refused"))
    plan(failing(403, "not you", "Forbidden"), api, 9)
    async with scheduling(api, tmp_path, clock=lambda: now[0]) as scheduler:

        def refused(times: int) -> bool:
            return (
                f'attempts_total{{result="error"}} {times}.0' in generate_latest(scheduler._metrics.registry).decode()
            )

        await until("the first attempt", lambda: refused(1))
        now[0] = 1.0
        await until("the second attempt", lambda: refused(2))
        (item,) = scheduler._queue._pods.values()
        item.attempts = 9
        now[0] = 3.0
        await until("the third attempt", lambda: refused(3))
        now[0] = 14.0
        await asyncio.sleep(1.3)  # it looks every second
        assert refused(3), "a change would have made it due at 13"


async def test_a_lost_answer_is_made_certain_not_repeated(tmp_path: Path) -> None:
    """The Binding was made: the pod is bound, told so, and counts on its node all the time."""
    api = SchedulingApi(node("a", "2"), pod("first", "2", priority=1), pod("second", "2"))
    plan(api.bind_and_break, api)
    async with scheduling(api, tmp_path):
        await until("the event", lambda: api.happened("Scheduled"))
        await until("the other's refusal", lambda: api.happened("FailedScheduling"))
    assert (api.posted, api.bindings) == (1, [("first", "a")])


async def test_an_answer_that_never_came_is_made_certain_and_repeated(tmp_path: Path) -> None:
    """The Binding was not made: nobody answered."""
    api = SchedulingApi(node("a", "2"), pod("first", "2"))
    plan(failing(500, "etcd is away"), api, 2)
    async with scheduling(api, tmp_path):
        await until("the pod", lambda: api.bindings == [("first", "a")])
    assert api.posted == 3


async def test_a_pod_that_is_deleted_while_it_is_bound_leaves_its_room_to_others(tmp_path: Path) -> None:
    """Nothing of it is remembered."""
    api = SchedulingApi(node("a", "2"), pod("first", "2", priority=1), pod("second", "2"))

    async def delete_it(request: web.Request) -> web.StreamResponse:
        await api.remove(PODS, "first", "shop")
        return await api.bind(request)

    plan(delete_it, api)
    async with scheduling(api, tmp_path):
        await until("the other pod", lambda: api.bindings == [("second", "a")])


async def test_a_pod_made_anew_under_the_same_name_is_a_pod_of_its_own(tmp_path: Path) -> None:
    """The Binding of the first bears its UID, so it never binds the second."""
    api = SchedulingApi(node("a", "2"), pod("web", "2"))
    again = pod("web", "1")

    async def replace_it(request: web.Request) -> web.StreamResponse:
        await api.remove(PODS, "web", "shop")
        await api.put(PODS, again)
        return await api.bind(request)

    plan(replace_it, api)
    async with scheduling(api, tmp_path):
        await until("the second pod", lambda: api.bindings)
        await until("its event", lambda: api.happened("Scheduled"))
    assert api.happened("Scheduled")[0]["involvedObject"]["uid"] == again["metadata"]["uid"]
    assert (api.posted, len(api.bindings)) == (2, 1)


async def test_a_late_refusal_of_a_pod_is_not_its_successors(tmp_path: Path) -> None:
    """The second of the name is being bound when the first is refused: it is neither told so nor tried again."""
    now = [0.0]
    again = pod("web", "1")
    api = SchedulingApi(node("a"), pod("web", "1"))
    answer_first, answer_second = asyncio.Event(), asyncio.Event()

    def when(told: asyncio.Event) -> Behaviour:
        async def answer(request: web.Request) -> web.StreamResponse:
            await told.wait()
            return await api.bind(request)

        return answer

    plan(when(answer_first), api)
    plan(when(answer_second), api)
    async with scheduling(api, tmp_path, clock=lambda: now[0]) as scheduler:
        await until("the first Binding", lambda: api.posted == 1)
        await api.remove(PODS, "web", "shop")
        await api.put(PODS, again)
        await until("the second Binding", lambda: api.posted == 2)
        answer_first.set()
        await until(
            "its refusal", lambda: 'total{result="error"} 1.0' in generate_latest(scheduler._metrics.registry).decode()
        )
        now[0] = 30.0
        await api.put(PODS, pod("other"))
        await until("another pod", lambda: ("other", "a") in api.bindings)
        answer_second.set()
        await until("the event", lambda: len(api.happened("Scheduled")) == 2)
        await scheduler.wait_until_settled()
        assert (api.posted, api.happened("FailedScheduling")) == (3, [])
    assert api.nodes_of() == {"web": "a", "other": "a"}


async def test_who_lost_the_lease_waits_for_something_to_happen(tmp_path: Path) -> None:
    """Its pods stay due for as long as another process leads: that must not keep it busy."""
    now, asked, leading = [0.0], [0], True

    def may() -> bool:
        asked[0] += 1
        return leading

    api = SchedulingApi(node("small", "1"), pod("big", "3"))
    async with scheduling(api, tmp_path, may=may, clock=lambda: now[0]) as scheduler:
        await until("the condition", lambda: api.condition("big"))
        await scheduler._recorder.wait_until_written()

        def echoed() -> bool:
            seen = scheduler._cache.pod(("shop", "big"))
            return bool(seen and seen.kube_pod and seen.kube_pod.unschedulable)

        await until("its echo", echoed)
        leading = False
        now[0] = 30.0
        before = asked[0]
        await until("a turn", lambda: asked[0] > before)
        before = asked[0]
        for _ in range(500):
            await asyncio.sleep(0)
        assert asked[0] - before <= 5
        leading = True
        await until(
            "the next attempt", lambda: 'unschedulable"} 2.0' in generate_latest(scheduler._metrics.registry).decode()
        )


async def test_a_node_that_vanishes_gets_no_pod(tmp_path: Path) -> None:
    """Nor one that is cordoned."""
    api = SchedulingApi(node("a"), node("b"), node("c"))
    async with scheduling(api, tmp_path):
        await api.put(PODS, pod("first"))
        await until("the first pod", lambda: api.bindings)
        await api.remove(NODES, "b")
        await api.put(NODES, {**node("c"), "spec": {"unschedulable": True}})
        await asyncio.sleep(0.2)
        await api.put(PODS, pod("second"))
        await until("the second pod", lambda: len(api.bindings) == 2)
    assert api.bindings[1] == ("second", "a")


async def test_who_does_not_lead_binds_nothing(tmp_path: Path) -> None:
    """The fence is asked before every write."""
    leading = False
    api = SchedulingApi(node("a"), pod("web"))
    async with scheduling(api, tmp_path, may=lambda: leading):
        await until("the watches", lambda: api.open_watches == 3)
        await asyncio.sleep(0.3)
        assert (api.posted, api.written) == (0, 0)
        leading = True
        await until("the pod", lambda: api.bindings)


async def test_a_service_that_changes_may_help(tmp_path: Path) -> None:
    """Affinity ties the pod to a zone without room; without the service it may go anywhere."""
    policy = parse_policy((POLICIES / "region-zone-rack.json").read_bytes())
    labels = {"app": "web"}
    there, wants = pod("there", "1", nodeName="full"), pod("wants", "3")
    for raw in (there, wants):
        raw["metadata"]["labels"] = labels
    nodes = [node("full", "2", region="r1", zone="z1"), node("free", "4", region="r2", zone="z2")]
    api = SchedulingApi(*nodes, there, wants)
    service = {"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": labels}}
    api.add(SERVICES, service)
    async with scheduling(api, tmp_path, policy):
        await until("the refusal", lambda: api.happened("FailedScheduling"))
        await api.remove(SERVICES, "web", "shop")
        await until("the pod", lambda: api.bindings == [("wants", "free")])


async def test_a_claim_that_waits_for_its_first_consumer_is_told_the_node_first(tmp_path: Path) -> None:
    """Others are left alone: bound ones, and those that are provisioned anyway."""
    names = ("waiting", "at-once", "bound")
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    api = SchedulingApi(node("a"), pod("db", volumes=volumes))
    for name, mode in (("later", "WaitForFirstConsumer"), ("now", "Immediate")):
        api.add(CLASSES, {"metadata": {"name": name}, "volumeBindingMode": mode})
    specs = (
        {"storageClassName": "later"},
        {"storageClassName": "now"},
        {"storageClassName": "later", "volumeName": "pv"},
    )
    for name, spec in zip(names, specs, strict=True):
        api.add(CLAIMS, {"metadata": {"namespace": "shop", "name": name}, "spec": spec})
    async with scheduling(api, tmp_path):
        await until("the pod", lambda: api.bindings)
    assert api.told == [("waiting", "a"), ("db", "a")]


async def test_what_is_being_bound_is_bound_before_the_end(tmp_path: Path) -> None:
    """Nothing new is begun, and what pods are told is written."""
    api = SchedulingApi(node("a"), pod("web"))
    go_on = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        await go_on.wait()
        return await api.bind(request)

    plan(slowly, api)
    async with scheduling(api, tmp_path) as scheduler:
        await until("the Binding", lambda: api.posted == 1)
        scheduler.deactivate()
        settling = asyncio.create_task(scheduler.wait_until_settled())
        await api.put(PODS, pod("late"))
        await asyncio.sleep(0.1)
        assert not settling.done()
        go_on.set()
        await settling
        assert [event["involvedObject"]["name"] for event in api.happened("Scheduled")] == ["web"]
    assert api.bindings == [("web", "a")]
