"""A policy in a live cluster: the kinds that its rules read are watched, and it comes into force once they are listed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.bootstrap.live import live_application
from app.kube.generic_cache import GenericCache
from app.kube.reflector import Timing
from app.kube.resources import CONFIG_MAPS, LONGHORN_NAMESPACE
from app.policy import PolicyFile, PolicyInForce
from app.settings import LiveOptions, Settings
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.rule_registry import NODES, PODS, SERVICES
from scheduler_core.leadership.election import ElectionTiming
from tests.worlds.cluster_cache import PATHS as LONGHORN_PATHS
from tests.worlds.fake_api import FakeApi, Object, connect_client, event, failing, sending, serve, until
from tests.worlds.generic_objects import ready_node, requesting_pod, service
from tests.worlds.service import http_client

PATHS = {"Node": "/api/v1/nodes", "Pod": "/api/v1/pods", "Service": "/api/v1/services"}


def objects() -> list[Object]:
    """A cluster with one web pod of 1 CPU on `a`, and one without a node."""
    return [
        ready_node("a"),
        ready_node("b"),
        requesting_pod(name="web-0", uid="0", node="a", labels={"app": "web"}),
        requesting_pod(name="web-1", uid="1", labels={"app": "web"}),
        service("web", app="web"),
    ]


@asynccontextmanager
async def generic_cache(folder: Path, stale_after: float = 60) -> AsyncIterator[tuple[FakeApi, GenericCache]]:
    """Runs a cache, which watches nothing yet, over a fake API server with the objects."""
    api = FakeApi()
    for raw in objects():
        api.add(PATHS[raw["kind"]], raw)
    async with connect_client(api, folder) as client:
        cache = GenericCache(client, Timing(time.monotonic, max), stale_after)
        task = asyncio.create_task(cache.run())
        try:
            yield api, cache
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def wait_for_sync(api: FakeApi, cache: GenericCache, kinds: frozenset[str]) -> GenericClusterState:
    await until("the state", lambda: not cache.problem_of(kinds))
    await until("watches", lambda: api.open_watches == len(kinds))
    return cache.state()


def contents(state: GenericClusterState) -> Any:
    """Everything in a state, comparable."""
    nodes = {}
    for name in state.node_names:
        info = state.nodes[name]
        nodes[name] = (info.node, sorted(pod.name for pod in info.pods), info.requested_cpu)
    orphans = sorted(pod.name for pods in state.orphaned_pods.values() for pod in pods)
    services = {
        (entry.service.name, tuple(sorted(pod.name for pod in entry.pods.values())))
        for entries in state.services.values()
        for entry in entries
    }
    return nodes, orphans, services


async def test_only_wanted_kinds_are_watched(tmp_path: Path) -> None:
    async with generic_cache(tmp_path) as (api, cache):
        await asyncio.sleep(0.05)
        assert api.requests == []
        assert cache.problem_of(frozenset()) == ""
        cache.want(NODES)
        state = await wait_for_sync(api, cache, NODES)
        assert (state.node_names, list(state.assigned_pods)) == (("a", "b"), [])
        assert {path for _, path, _ in api.requests} == {PATHS["Node"]}
        cache.want(SERVICES)
        assert [pod.name for pod in (await wait_for_sync(api, cache, SERVICES)).nodes["a"].pods] == ["web-0"]
        cache.want(NODES)
        await until("the watches to end", lambda: api.open_watches == 1)
        assert cache.state().nodes["a"].pods == ()
        assert cache.problem_of(SERVICES) == "policy: pods not listed yet"


async def test_an_unreadable_pod_without_a_node_is_no_problem(tmp_path: Path) -> None:
    """Any user may create one. On a node it is a problem, because its requests are unknown."""
    greedy = requesting_pod(name="greedy", uid="g", cpu="much")
    async with generic_cache(tmp_path) as (api, cache):
        api.add(PATHS["Pod"], requesting_pod(name="listed", uid="l", cpu="much"))
        cache.want(SERVICES)
        await wait_for_sync(api, cache, SERVICES)
        await api.put(PATHS["Pod"], greedy)
        await api.put(PATHS["Pod"], requesting_pod(name="later", uid="x", node="b"))
        await until("the next pod", lambda: cache.state().nodes["b"].pod_count == 1)
        assert (cache.problem_of(SERVICES), cache.pod(("default", "greedy"))) == ("", None)
        await api.put(PATHS["Pod"], requesting_pod(name="greedy", uid="g", cpu="much", node="b"))
        await until("the problem", lambda: "Pod default/greedy: " in cache.problem_of(SERVICES))
        assert cache.problem_of(NODES) == ""
        await api.put(PATHS["Pod"], requesting_pod(name="greedy", uid="g", cpu="10P", node="b"))
        await until("its end", lambda: cache.state().nodes["b"].pod_count == 2)
        assert cache.problem_of(SERVICES) == ""


async def test_the_state_follows_the_cluster(tmp_path: Path) -> None:
    async with generic_cache(tmp_path) as (api, cache):
        cache.want(SERVICES)
        await wait_for_sync(api, cache, SERVICES)
        changes: list[tuple[Object, Callable[[GenericClusterState], bool]]] = [
            (
                requesting_pod(name="web-1", uid="1", node="b", labels={"app": "web"}),
                lambda s: s.nodes["b"].pod_count == 1,
            ),
            (requesting_pod(name="web-1", uid="1", node="b", phase="Failed"), lambda s: s.nodes["b"].pod_count == 0),
            (ready_node("c", cpu="2", zone="z"), lambda s: "c" in s.node_names),
            (ready_node("b", cpu="16"), lambda s: s.nodes["b"].node.cpu == 16_000),
            (service("all", app="web"), lambda s: len(s.services["default"]) == 2),
            (requesting_pod(name="x", uid="x", node="gone"), lambda s: "gone" in s.orphaned_pods),
        ]
        for raw, shows in changes:
            await api.put(PATHS[raw["kind"]], raw)
            await until(raw["metadata"]["name"], lambda shows=shows: shows(cache.state()))  # type: ignore[misc]
        await api.remove(PATHS["Pod"], "web-0", "default")
        await api.remove(PATHS["Node"], "a")
        await api.remove(PATHS["Service"], "web", "default")
        await until(
            "the end", lambda: len(cache.state().services["default"]) == 1 and "a" not in cache.state().node_names
        )
        await until("the pod's end", lambda: len(cache.state().assigned_pods) == 2)
        followed = contents(cache.state())
        async with connect_client(api, tmp_path) as client:
            fresh = GenericCache(client, Timing(time.monotonic, max), 60)
            fresh.want(SERVICES)
            task = asyncio.create_task(fresh.run())
            await until("the state", lambda: not fresh.problem_of(SERVICES))
            assert contents(fresh.state()) == followed
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_new_list_replaces_everything(tmp_path: Path) -> None:
    async with generic_cache(tmp_path) as (api, cache):
        cache.want(SERVICES)
        await wait_for_sync(api, cache, SERVICES)
        api.plans["watch"] += [sending(event("ERROR", {"code": 410, "message": "expired"}))] * 3
        for kind, name in (("Pod", "web-0"), ("Node", "a"), ("Service", "web")):
            collection = api.collections[PATHS[kind]]
            key = next(key for key in collection.objects if key.endswith(f"/{name}"))
            collection.objects[key] = {**collection.objects.pop(key)}
            collection.objects[key]["metadata"] = {**collection.objects[key]["metadata"], "name": f"{name}-new"}
            await api.bookmark(PATHS[kind])
        lists = api.count("list")
        api.abort_watches()
        await until("new lists", lambda: api.count("list") >= lists + 3)
        await until("the state", lambda: cache.state().node_names == ("a-new", "b"))
        await until("pods", lambda: [key[1] for key in cache.state().assigned_pods] == ["web-0-new"])
        await until(
            "services", lambda: [entry.service.name for entry in cache.state().services["default"]] == ["web-new"]
        )
        assert cache.problem_of(SERVICES) == ""


async def test_a_watch_that_fails_is_a_problem(tmp_path: Path) -> None:
    """The state may be too old."""
    async with generic_cache(tmp_path, stale_after=0.1) as (api, cache):
        cache.want(NODES)
        await wait_for_sync(api, cache, NODES)
        api.always["watch"] = failing(503, "overloaded")
        api.always["list"] = failing(503, "overloaded")
        api.abort_watches()
        await until("a problem", lambda: cache.problem_of(NODES).startswith("policy: nodes not heard of for"))
        assert cache.state().node_names == ("a", "b"), "the last state stays"


async def test_a_kind_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    async with generic_cache(tmp_path) as (api, cache):
        api.missing.add(PATHS["Service"])
        del api.collections[PATHS["Service"]]
        cache.want(SERVICES)
        await until("nodes and pods", lambda: not cache.problem_of(PODS))
        await until(
            "the reason", lambda: "404" in cache.problem_of(SERVICES) or "not found" in cache.problem_of(SERVICES)
        )
        assert "services" in cache.problem_of(SERVICES)


class FakeSource:
    """A source of the kinds in `listed`."""

    def __init__(self) -> None:
        self.wanted: frozenset[str] = frozenset()  # the kinds that the policy wants
        self.listed: frozenset[str] = frozenset()

    def want(self, kinds: frozenset[str]) -> None:
        self.wanted = kinds

    def problem_of(self, kinds: frozenset[str]) -> str:
        return ", ".join(sorted(kinds - self.listed))

    def state(self) -> GenericClusterState:
        return GenericClusterState()


def policy_file(folder: Path, *rules: str) -> PolicyFile:
    (folder / "policy.json").write_text(json.dumps({"priorities": [{"name": rule, "weight": 1} for rule in rules]}))
    return PolicyFile(str(folder / "policy.json"))


def first_priority(in_force: PolicyInForce) -> str:
    return in_force.policy.priorities[0].name


async def test_a_policy_comes_into_force_once_what_it_reads_is_listed(tmp_path: Path) -> None:
    """Until then the previous policy stays, and its kinds are still watched."""
    file = policy_file(tmp_path, "LeastRequestedPriority")
    source = FakeSource()
    in_force = PolicyInForce(file, source)
    assert (source.wanted, in_force.problem) == (PODS, "nodes, pods")
    source.listed = PODS
    assert in_force.problem == ""
    policy_file(tmp_path, "ServiceSpreadingPriority")
    await file.reload()
    assert (first_priority(in_force), in_force.problem, source.wanted) == ("LeastRequestedPriority", "", SERVICES)
    answer = in_force.answer()
    assert answer is not None
    assert (answer.pending, answer.priorities) == (True, {"LeastRequestedPriority": 1})
    assert in_force.waiting_for == "services"
    source.listed = SERVICES
    assert (first_priority(in_force), in_force.waiting_for) == ("ServiceSpreadingPriority", "")
    policy_file(tmp_path, "EqualPriority")
    await file.reload()
    assert (first_priority(in_force), source.wanted) == ("EqualPriority", frozenset())


def test_the_default_policy_reads_nothing() -> None:
    source = FakeSource()
    in_force = PolicyInForce(None, source)
    assert (source.wanted, in_force.problem, in_force.answer()) == (frozenset(), "", None)


async def test_the_service_is_ready_once_everything_the_policy_reads_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kube.reflector._MISSING_RETRY_INTERVAL", 0.1)
    api = FakeApi()
    for path in (*LONGHORN_PATHS.values(), PATHS["Pod"], PATHS["Node"], CONFIG_MAPS.path(LONGHORN_NAMESPACE)):
        api.add(path)
    api.missing.add(PATHS["Service"])
    policy_file(tmp_path, "ServiceSpreadingPriority")
    settings = Settings(policy=str(tmp_path / "policy.json"))
    async with serve(api.handle, tmp_path) as kubeconfig:
        options = LiveOptions("me", ElectionTiming(), kubeconfig=str(kubeconfig))
        extender = await live_application(options, settings, 1)
        lifecycle = extender.lifecycle
        running = asyncio.create_task(lifecycle.run())
        await until("all else", lambda: lifecycle.readiness_problem.startswith("policy: services not listed yet: "))
        async with http_client(extender.app) as http:
            assert (await http.get("/readyz")).status_code == 503
            api.missing.clear()
            api.add(PATHS["Service"])
            await until("services", lambda: not lifecycle.readiness_problem)
            assert (await http.get("/readyz")).status_code == 200
            assert (await http.get("/state")).json()["policy"]["priorities"] == {"ServiceSpreadingPriority": 1}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await extender.client.close()
