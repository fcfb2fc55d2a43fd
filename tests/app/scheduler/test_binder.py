"""Binding one pod: what came of it is made certain, and a claim is provisioned for one node only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from app.scheduler.binder import Binder
from scheduler_core.backoff import Backoff
from scheduler_core.convert.binding import PendingPod, pending_pod
from scheduler_core.convert.kube import SELECTED_NODE_ANNOTATION
from tests.worlds.fake_api import Behaviour, Object, connected, failing, until
from tests.worlds.scheduling_api import CLAIMS, CLASSES, PODS, SchedulingApi, plan, pod

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses."""
    monkeypatch.setattr("app.scheduler.binder._BACKOFF", Backoff(0.01, 0.01))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still."""
    seconds = [0.0]
    monkeypatch.setattr("app.scheduler.binder.monotonic", lambda: seconds[0])
    return seconds


@asynccontextmanager
async def binding(api: SchedulingApi, folder: Path, may: Callable[[], bool] = lambda: True) -> AsyncIterator[Binder]:
    """A binder that leads."""
    async with connected(api, folder) as client:
        yield Binder(client, may)


def read(raw: Object) -> PendingPod:
    """A pod as the scheduler has it."""
    return pending_pod(json.dumps(raw).encode())[1]


async def break_off(request: web.Request) -> web.StreamResponse:
    """The request was taken, and the connection ends without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_a_binding_that_is_made_late_is_found_by_repeating_it(tmp_path: Path) -> None:
    """The pod was read without a node in between: the API server was still at it."""
    raw = pod("web")
    api = SchedulingApi(raw)

    async def late(request: web.Request) -> web.StreamResponse:
        await api.bind(request)
        return await api.bind(request)

    plan(break_off, api)
    plan(late, api)
    async with binding(api, tmp_path) as binder:
        assert await binder.bind(read(raw), "a") == ""
    assert (api.posted, api.bindings) == (2, [("web", "a")])


async def test_a_binding_that_was_lost_is_made(tmp_path: Path) -> None:
    """Nobody had heard the first."""
    raw = pod("web")
    api = SchedulingApi(raw)
    plan(break_off, api)
    async with binding(api, tmp_path) as binder:
        assert await binder.bind(read(raw), "a") == ""
    assert (api.posted, api.bindings) == (2, [("web", "a")])


async def test_who_was_bound_elsewhere_meanwhile_is_not_bound_here(tmp_path: Path) -> None:
    """And the message says where it is."""
    raw = pod("web")
    api = SchedulingApi(raw)

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        await api.put(PODS, {**raw, "spec": {**raw["spec"], "nodeName": "b"}})
        return await break_off(request)

    plan(elsewhere, api)
    async with binding(api, tmp_path) as binder:
        assert await binder.bind(read(raw), "a") == "it was bound to b meanwhile"
    assert api.posted == 1


async def test_another_pod_of_its_name_is_not_the_pod(tmp_path: Path) -> None:
    """Wherever it is."""
    raw = pod("web")
    api = SchedulingApi(raw)

    async def replaced(request: web.Request) -> web.StreamResponse:
        await api.put(PODS, pod("web", nodeName="a"))
        return await break_off(request)

    plan(replaced, api)
    async with binding(api, tmp_path) as binder:
        assert await binder.bind(read(raw), "a") == "the pod is gone"


async def test_what_fails_again_and_again_was_not_made(tmp_path: Path) -> None:
    """The API server was done with each attempt, so the number is bounded."""
    raw = pod("web")
    api = SchedulingApi(raw)
    plan(failing(500, "failed calling webhook"), api, 99)
    async with binding(api, tmp_path) as binder:
        assert "failed calling webhook" in await binder.bind(read(raw), "a")
    assert api.posted == 4


async def test_a_refusal_is_definite(tmp_path: Path) -> None:
    """Whatever was in doubt before it."""
    raw = pod("web")
    api = SchedulingApi(raw)
    plan(break_off, api)
    plan(failing(403, "not you", "Forbidden"), api)
    async with binding(api, tmp_path) as binder:
        assert "not you" in await binder.bind(read(raw), "a")
    assert api.posted == 2


async def test_an_attempt_without_an_answer_is_waited_for(tmp_path: Path, now: list[float]) -> None:
    """It is repeated a few times, and read for as long as the API server may be at it."""
    raw = pod("web")
    api = SchedulingApi(raw)
    plan(failing(504, "the server was unable to return a response in time"), api)
    plan(failing(500, "etcd is away"), api, 9999)
    async with binding(api, tmp_path) as binder:
        task = asyncio.create_task(binder.bind(read(raw), "a"))
        await until("the last attempt", lambda: api.posted == 4)
        reads = api.count("get")
        await until("more reads", lambda: api.count("get") > reads + 3)
        assert (task.done(), api.posted) == (False, 4)
        now[0] = 60
        assert "etcd is away" in await task


async def test_who_does_not_lead_any_more_does_not_repeat_it(tmp_path: Path) -> None:
    """It has no say in where the pod goes."""
    raw, leading = pod("web"), [True]
    api = SchedulingApi(raw)

    async def lost(request: web.Request) -> web.StreamResponse:
        leading.clear()
        return await break_off(request)

    plan(lost, api)
    async with binding(api, tmp_path, lambda: bool(leading)) as binder:
        assert await binder.bind(read(raw), "a") != ""
    assert api.posted == 1


def sharing(name: str, **spec: Any) -> Object:
    """A pod that mounts the claim `data`."""
    return pod(name, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}], **spec)


def shared(selected: str = "", mode: str = "WaitForFirstConsumer", **spec: Any) -> SchedulingApi:
    """A claim that many may mount, perhaps on its way to a node."""
    api = SchedulingApi()
    api.add(CLASSES, {"metadata": {"name": "shared"}, "volumeBindingMode": mode})
    annotations = {SELECTED_NODE_ANNOTATION: selected} if selected else {}
    metadata = {"namespace": "shop", "name": "data", "annotations": annotations}
    api.add(CLAIMS, {"metadata": metadata, "spec": {"storageClassName": "shared", **spec}})
    return api


TAKEN = "PersistentVolumeClaim shop/data is being provisioned for node a, because pod shop/first mounts it"


async def test_a_claim_on_its_way_to_the_node_of_another_pod_is_left_alone(tmp_path: Path) -> None:
    """A pod that is bound elsewhere would wait there for a volume that never comes."""
    api, second = shared("a"), sharing("second")
    api.add(PODS, sharing("first", nodeName="a"), second)
    async with binding(api, tmp_path) as binder:
        assert await binder.bind(read(second), "b") == TAKEN
        assert (api.told, api.posted) == ([], 0)
        assert await binder.bind(read(second), "a") == ""
    assert api.told == [("second", "a")]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(sharing("first"), id="no node"),
        pytest.param(sharing("first", nodeName="a") | {"status": {"phase": "Failed"}}, id="finished"),
        pytest.param(pod("first", nodeName="a"), id="mounts nothing"),
    ],
)
async def test_a_claim_whose_pod_has_gone_may_go_elsewhere(first: Object, tmp_path: Path) -> None:
    """Whoever told it the node before did not come to use it."""
    api, second = shared("a"), sharing("second")
    api.add(PODS, first, second)
    async with binding(api, tmp_path) as binder:
        assert await binder.bind(read(second), "b") == ""
    assert api.told == [("data", "b"), ("second", "b")]


@pytest.mark.parametrize(("mode", "spec"), [("Immediate", {}), ("WaitForFirstConsumer", {"volumeName": "there"})])
async def test_a_claim_that_waits_for_nobody_goes_with_every_pod(mode: str, spec: Object, tmp_path: Path) -> None:
    """It is there already, or comes wherever its pods are."""
    api, second = shared("a", mode, **spec), sharing("second")
    api.add(PODS, sharing("first", nodeName="a"), second)
    async with binding(api, tmp_path) as binder:
        assert await binder.bind(read(second), "b") == ""
    assert api.told == [("second", "b")]


@pytest.mark.parametrize("made", [True, False])
async def test_of_two_pods_that_are_bound_at_once_the_first_says_where_the_claim_goes(
    made: bool, tmp_path: Path
) -> None:
    """Before anything of it can be read off the cluster; and no longer than it is being bound."""
    api, first, second = shared(), sharing("first"), sharing("second")
    api.add(PODS, first, second)
    go_on = asyncio.Event()
    then: Behaviour = api.bind if made else failing(403)

    async def slowly(request: web.Request) -> web.StreamResponse:
        await go_on.wait()
        return await then(request)

    plan(slowly, api)
    async with binding(api, tmp_path) as binder:
        binds = asyncio.create_task(binder.bind(read(first), "a"))
        refused = asyncio.create_task(binder.bind(read(second), "b"))
        assert await refused == TAKEN
        await until("the Binding", lambda: api.posted == 1)
        go_on.set()
        assert (await binds == "") is made
        assert await binder.bind(read(second), "b") == (TAKEN if made else "")
        assert binder._attempts == {}
    assert [node for name, node in api.told if name == "data"] == (["a"] if made else ["a", "b"])


async def test_a_claim_that_cannot_be_read_leaves_its_pod_unbound(tmp_path: Path) -> None:
    """Nobody would provision it; and no Binding is in doubt."""
    api, first = shared(), sharing("first")
    api.add(PODS, first)
    api.plans["get"].append(failing(500, "etcd is away"))
    async with binding(api, tmp_path) as binder:
        assert "etcd is away" in await binder.bind(read(first), "a")
    assert (api.posted, api.told) == (0, [])
