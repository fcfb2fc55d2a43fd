"""The binder: the result of every Binding becomes definite, and a claim is provisioned for one node only."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from app.scheduler.api_calls import Binder
from scheduler_core.backoff import Backoff
from scheduler_core.convert.generic import PendingPod, pending_pod
from scheduler_core.model.kube import SELECTED_NODE_ANNOTATION
from tests.worlds.fake_api import Behaviour, Object, connect_client, failing, until
from tests.worlds.scheduling_api import CLAIMS, CLASSES, PODS, SchedulingApi, pod


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.scheduler.api_calls._BACKOFF", Backoff(0.01, 0.01))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [0.0]
    monkeypatch.setattr("app.scheduler.api_calls.monotonic", lambda: seconds[0])
    return seconds


@asynccontextmanager
async def binder_for(
    api: SchedulingApi, folder: Path, leads: Callable[[], bool] = lambda: True
) -> AsyncIterator[Binder]:
    async with connect_client(api, folder) as client:
        yield Binder(client, leads)


def decode(raw: Object) -> PendingPod:
    return pending_pod(json.dumps(raw).encode())


async def abort_connection(request: web.Request) -> web.StreamResponse:
    """Accepts the request, and aborts the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


WEB = pod("web")


async def bind(api: SchedulingApi, folder: Path, leads: Callable[[], bool] = lambda: True) -> str:
    """Binds the pod `web` to node a."""
    async with binder_for(api, folder, leads) as binder:
        return await binder.bind(decode(WEB), "a")


def api_answering(*answers: Behaviour) -> SchedulingApi:
    """An API server with the pod `web` that answers Bindings like this."""
    api = SchedulingApi(WEB)
    for answer in answers:
        api.plan_bindings(answer)
    return api


@pytest.mark.parametrize(
    ("answers", "problem", "requests"),
    [
        pytest.param([abort_connection], "", 2, id="a lost Binding is repeated"),
        pytest.param([failing(500, "failed calling webhook")] * 9, "failed calling webhook", 4, id="given up"),
        pytest.param(
            [abort_connection, failing(403, "not you", "Forbidden")], "not you", 2, id="a refusal is definite"
        ),
    ],
)
async def test_a_binding_is_repeated_until_its_result_is_known(
    answers: list[Behaviour], problem: str, requests: int, tmp_path: Path
) -> None:
    api = api_answering(*answers)
    result = await bind(api, tmp_path)
    assert problem in result if problem else not result
    assert (api.binding_requests, api.bindings) == (requests, [] if problem else [("web", "a")])


async def test_repeating_a_binding_reveals_that_it_was_made_late(tmp_path: Path) -> None:
    api = api_answering(abort_connection)

    async def bind_twice(request: web.Request) -> web.StreamResponse:
        await api.bind(request)
        return await api.bind(request)

    api.plan_bindings(bind_twice)
    assert await bind(api, tmp_path) == ""
    assert (api.binding_requests, api.bindings) == (2, [("web", "a")])


@pytest.mark.parametrize(
    ("current", "problem"),
    [
        pytest.param({**WEB, "spec": {**WEB["spec"], "nodeName": "b"}}, "it was bound to b meanwhile", id="elsewhere"),
        pytest.param(pod("web", nodeName="a"), "the pod is gone", id="a later pod of its name"),
    ],
)
async def test_a_pod_that_is_read_after_a_lost_binding_may_not_be_the_bound_one(
    current: Object, problem: str, tmp_path: Path
) -> None:
    api = api_answering()

    async def replace_pod(request: web.Request) -> web.StreamResponse:
        await api.put(PODS, current)
        return await abort_connection(request)

    api.plan_bindings(replace_pod)
    assert await bind(api, tmp_path) == problem
    assert api.binding_requests == 1


async def test_an_unanswered_binding_stays_uncertain_until_no_request_can_be_in_work(
    tmp_path: Path, now: list[float]
) -> None:
    unanswered = failing(504, "the server was unable to return a response in time")
    api = api_answering(unanswered, *[failing(500, "etcd is away")] * 99)
    task = asyncio.create_task(bind(api, tmp_path))
    await until("the last attempt", lambda: api.binding_requests == 4)
    reads = api.count("get")
    await until("more reads", lambda: api.count("get") > reads + 3)
    assert (task.done(), api.binding_requests) == (False, 4)
    now[0] = 60
    assert "etcd is away" in await task


async def test_a_former_leader_does_not_repeat_a_binding(tmp_path: Path) -> None:
    leading = True

    async def lose_lease(request: web.Request) -> web.StreamResponse:
        nonlocal leading
        leading = False
        return await abort_connection(request)

    api = api_answering(lose_lease)
    assert await bind(api, tmp_path, lambda: leading) != ""
    assert api.binding_requests == 1


def pod_with_claim(name: str, **spec: Any) -> Object:
    """A pod that mounts the claim `data`."""
    return pod(name, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}], **spec)


def api_with_claim(selected_node: str = "", mode: str = "WaitForFirstConsumer", **spec: Any) -> SchedulingApi:
    """An API server with the claim `data`, whose node may be selected."""
    api = SchedulingApi()
    api.add(CLASSES, {"metadata": {"name": "shared"}, "volumeBindingMode": mode})
    annotations = {SELECTED_NODE_ANNOTATION: selected_node} if selected_node else {}
    metadata = {"namespace": "shop", "name": "data", "annotations": annotations}
    api.add(CLAIMS, {"metadata": metadata, "spec": {"storageClassName": "shared", **spec}})
    return api


CONFLICT = "PersistentVolumeClaim shop/data is being provisioned for node a, because pod shop/first mounts it"


async def test_a_pod_is_not_bound_while_its_claim_is_provisioned_for_the_node_of_another_pod(tmp_path: Path) -> None:
    """On a different node the pod would wait for its volume forever."""
    api = api_with_claim("a")
    second = pod_with_claim("second")
    api.add(PODS, pod_with_claim("first", nodeName="a"), second)
    async with binder_for(api, tmp_path) as binder:
        assert await binder.bind(decode(second), "b") == CONFLICT
        assert (api.assignments, api.binding_requests) == ([], 0)
        assert await binder.bind(decode(second), "a") == ""
    assert api.assignments == [("second", "a")]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(pod_with_claim("first"), id="no node"),
        pytest.param(pod_with_claim("first", nodeName="a") | {"status": {"phase": "Failed"}}, id="finished"),
        pytest.param(pod("first", nodeName="a"), id="mounts nothing"),
    ],
)
async def test_a_claim_without_a_bound_consumer_gets_a_new_node(first: Object, tmp_path: Path) -> None:
    api = api_with_claim("a")
    second = pod_with_claim("second")
    api.add(PODS, first, second)
    async with binder_for(api, tmp_path) as binder:
        assert await binder.bind(decode(second), "b") == ""
    assert api.assignments == [("data", "b"), ("second", "b")]


@pytest.mark.parametrize(("mode", "spec"), [("Immediate", {}), ("WaitForFirstConsumer", {"volumeName": "pv"})])
async def test_a_claim_that_waits_for_no_consumer_restricts_no_pod(mode: str, spec: Object, tmp_path: Path) -> None:
    api = api_with_claim("a", mode, **spec)
    second = pod_with_claim("second")
    api.add(PODS, pod_with_claim("first", nodeName="a"), second)
    async with binder_for(api, tmp_path) as binder:
        assert await binder.bind(decode(second), "b") == ""
    assert api.assignments == [("second", "b")]


@pytest.mark.parametrize("binds", [True, False])
async def test_the_first_of_two_concurrent_bindings_decides_the_node_of_a_claim(binds: bool, tmp_path: Path) -> None:
    api = api_with_claim()
    first = pod_with_claim("first")
    second = pod_with_claim("second")
    api.add(PODS, first, second)
    go_on = asyncio.Event()
    answer: Behaviour = api.bind if binds else failing(403)

    async def answer_later(request: web.Request) -> web.StreamResponse:
        await go_on.wait()
        return await answer(request)

    api.plan_bindings(answer_later)
    async with binder_for(api, tmp_path) as binder:
        first_binding = asyncio.create_task(binder.bind(decode(first), "a"))
        second_binding = asyncio.create_task(binder.bind(decode(second), "b"))
        assert await second_binding == CONFLICT
        await until("the Binding", lambda: api.binding_requests == 1)
        go_on.set()
        assert (await first_binding == "") is binds
        assert await binder.bind(decode(second), "b") == (CONFLICT if binds else "")
        assert binder._attempts == {}  # noqa: SLF001 # nothing else shows that it keeps nothing
    assert [node for name, node in api.assignments if name == "data"] == (["a"] if binds else ["a", "b"])


async def test_a_pod_whose_claim_cannot_be_read_is_not_bound(tmp_path: Path) -> None:
    """The claim would never be provisioned. No Binding was requested, so none is uncertain."""
    api = api_with_claim()
    first = pod_with_claim("first")
    api.add(PODS, first)
    api.plans["get"].append(failing(500, "etcd is away"))
    async with binder_for(api, tmp_path) as binder:
        assert "etcd is away" in await binder.bind(decode(first), "a")
    assert (api.binding_requests, api.assignments) == (0, [])
