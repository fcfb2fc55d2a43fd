"""A policy beside a cluster: what its rules read is watched while they read it, and a policy waits until all of it is known."""

from __future__ import annotations

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
from app.policy.file import PolicyFile
from app.policy.in_force import PolicyInForce
from app.settings import LiveOptions, Settings
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.extender_policy import NODES, PODS, SERVICES
from tests.app.api.test_policy import whole_node, whole_pod
from tests.app.kube.test_cluster_cache import PATHS as LONGHORN_PATHS
from tests.worlds.fake_api import FakeApi, Object, connected, event, failing, sending, served, until
from tests.worlds.service import asking

pytestmark = pytest.mark.anyio
PATHS = {"Node": "/api/v1/nodes", "Pod": "/api/v1/pods", "Service": "/api/v1/services"}


def service(name: str, **selector: str) -> Object:
    """A service in the default namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": selector},
    }


def objects() -> list[Object]:
    """A web pod of 1 CPU on `a`, and one that has no node."""
    return [
        whole_node("a"),
        whole_node("b"),
        whole_pod(name="web-0", uid="0", node="a", labels={"app": "web"}),
        whole_pod(name="web-1", uid="1", labels={"app": "web"}),
        service("web", app="web"),
    ]


@asynccontextmanager
async def rigged(folder: Path, stale_after: float = 60) -> AsyncIterator[tuple[FakeApi, GenericCache]]:
    """A fake API server, and a running cache that watches nothing yet."""
    api = FakeApi()
    for raw in objects():
        api.add(PATHS[raw["kind"]], raw)
    async with connected(api, folder) as client:
        cache = GenericCache(client, Timing(time.monotonic, max), stale_after)
        task = asyncio.create_task(cache.run())
        try:
            yield api, cache
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def known(api: FakeApi, cache: GenericCache, kinds: frozenset[str]) -> State:
    """Waits until these are watched."""
    await until("the state", lambda: not cache.problem(kinds))
    await until("watches", lambda: api.open_watches == len(kinds))
    return cache.state()


def facts(state: State) -> Any:
    """What is known, in a form that can be compared."""
    return (
        {name: (state.nodes[name].node, sorted(pod.name for pod in state.nodes[name].pods), state.nodes[name].cpu) for name in state.names},
        sorted(pod.name for pods in state.strays.values() for pod in pods),
        {
            (one.service.name, tuple(sorted(pod.name for pod in one.members.values())))
            for found in state.services.values()
            for one in found
        },
    )  # fmt: skip


async def test_nothing_is_watched_that_no_rule_reads(tmp_path: Path) -> None:
    """Kinds are watched from when they are wanted until they are not; what is watched no more is forgotten."""
    async with rigged(tmp_path) as (api, cache):
        await asyncio.sleep(0.05)
        assert api.requests == []
        assert cache.problem(frozenset()) == ""
        cache.want(NODES)
        state = await known(api, cache, NODES)
        assert (state.names, list(state.turns)) == (("a", "b"), [])
        assert {path for _, path, _ in api.requests} == {PATHS["Node"]}
        cache.want(SERVICES)
        assert [pod.name for pod in (await known(api, cache, SERVICES)).nodes["a"].pods] == ["web-0"]
        cache.want(NODES)
        await until("the watches to end", lambda: api.open_watches == 1)
        assert cache.state().nodes["a"].pods == ()
        assert cache.problem(SERVICES) == "policy: pods not listed yet"


async def test_a_pod_without_a_node_that_cannot_be_read_keeps_nobody_from_anything(tmp_path: Path) -> None:
    """Anybody may create one. On a node it is another matter: what it takes there is not known."""
    unheard_of = whole_pod(name="greedy", uid="g", cpu="much")
    async with rigged(tmp_path) as (api, cache):
        api.add(PATHS["Pod"], whole_pod(name="listed", uid="l", cpu="much"))
        cache.want(SERVICES)
        await known(api, cache, SERVICES)
        await api.put(PATHS["Pod"], unheard_of)
        await api.put(PATHS["Pod"], whole_pod(name="later", uid="x", node="b"))
        await until("the next pod", lambda: cache.state().nodes["b"].count == 1)
        assert (cache.problem(SERVICES), cache.pod(("default", "greedy"))) == ("", None)
        await api.put(PATHS["Pod"], whole_pod(name="greedy", uid="g", cpu="much", node="b"))
        await until("the problem", lambda: "Pod default/greedy: " in cache.problem(SERVICES))
        await api.put(PATHS["Pod"], whole_pod(name="greedy", uid="g", cpu="10P", node="b"))
        await until("its end", lambda: cache.state().nodes["b"].count == 2)
        assert cache.problem(SERVICES) == ""


async def test_the_state_follows_the_cluster(tmp_path: Path) -> None:
    """After every kind of change it is what a whole reading would give."""
    async with rigged(tmp_path) as (api, cache):
        cache.want(SERVICES)
        await known(api, cache, SERVICES)
        changes: list[tuple[Object, Callable[[State], bool]]] = [
            (whole_pod(name="web-1", uid="1", node="b", labels={"app": "web"}), lambda s: s.nodes["b"].count == 1),
            (whole_pod(name="web-1", uid="1", node="b", phase="Failed"), lambda s: s.nodes["b"].count == 0),
            (whole_node("c", cpu="2", zone="z"), lambda s: "c" in s.names),
            (whole_node("b", cpu="16"), lambda s: s.nodes["b"].node.cpu == 16_000),
            (service("all", app="web"), lambda s: len(s.services["default"]) == 2),
            (whole_pod(name="x", uid="x", node="gone"), lambda s: "gone" in s.strays),
        ]
        for raw, seen in changes:
            await api.put(PATHS[raw["kind"]], raw)
            await until(raw["metadata"]["name"], lambda seen=seen: seen(cache.state()))  # type: ignore[misc]
        await api.remove(PATHS["Pod"], "web-0", "default")
        await api.remove(PATHS["Node"], "a")
        await api.remove(PATHS["Service"], "web", "default")
        await until("the end", lambda: len(cache.state().services["default"]) == 1 and "a" not in cache.state().names)
        await until("the pod's end", lambda: len(cache.state().turns) == 2)
        seen_so = facts(cache.state())
        async with connected(api, tmp_path) as client:
            anew = GenericCache(client, Timing(time.monotonic, max), 60)
            anew.want(SERVICES)
            task = asyncio.create_task(anew.run())
            await until("the state", lambda: not anew.problem(SERVICES))
            assert facts(anew.state()) == seen_so
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_list_anew_replaces_everything(tmp_path: Path) -> None:
    """Of what happened in between no watch has told."""
    async with rigged(tmp_path) as (api, cache):
        cache.want(SERVICES)
        await known(api, cache, SERVICES)
        api.plans["watch"] += [sending(event("ERROR", {"code": 410, "message": "expired"}))] * 3
        for kind, name in (("Pod", "web-0"), ("Node", "a"), ("Service", "web")):
            collection = api.collections[PATHS[kind]]
            key = next(key for key in collection.objects if key.endswith(f"/{name}"))
            collection.objects[key] = {**collection.objects.pop(key)}
            collection.objects[key]["metadata"] = {**collection.objects[key]["metadata"], "name": f"{name}-new"}
            await api.bookmark(PATHS[kind])
        lists = api.count("list")
        for task in asyncio.all_tasks():
            if task.get_name().startswith("watch "):
                task.cancel()
        await until("new lists", lambda: api.count("list") >= lists + 3)
        await until("the state", lambda: cache.state().names == ("a-new", "b"))
        await until("all of it", lambda: [key[1] for key in cache.state().turns] == ["web-0-new"])
        await until("services", lambda: [one.service.name for one in cache.state().services["default"]] == ["web-new"])


async def test_what_is_cut_off_is_a_problem(tmp_path: Path) -> None:
    """As soon as it may be too old."""
    async with rigged(tmp_path, stale_after=0.1) as (api, cache):
        cache.want(NODES)
        await known(api, cache, NODES)
        api.always["watch"] = failing(503, "overloaded")
        api.always["list"] = failing(503, "overloaded")
        for task in asyncio.all_tasks():
            if task.get_name().startswith("watch "):
                task.cancel()
        await until("a problem", lambda: cache.problem(NODES).startswith("policy: nodes not heard of for"))


async def test_a_kind_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    """The ClusterRole lacks services, say."""
    async with rigged(tmp_path) as (api, cache):
        api.missing.add(PATHS["Service"])
        del api.collections[PATHS["Service"]]
        cache.want(SERVICES)
        await until("nodes and pods", lambda: not cache.problem(PODS))
        await until("the reason", lambda: "404" in cache.problem(SERVICES) or "not found" in cache.problem(SERVICES))


async def test_a_pod_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """What it takes of its node is not known."""
    async with rigged(tmp_path) as (api, cache):
        api.add(PATHS["Pod"], whole_pod(name="odd", uid="odd", node="a", cpu="much"))
        cache.want(PODS)
        await until("the problem", lambda: "Pod default/odd" in cache.problem(PODS))
        assert cache.problem(NODES) == ""


class Source:
    """Knows what it is told to know."""

    def __init__(self) -> None:
        self.wanted: frozenset[str] = frozenset()
        self.known: frozenset[str] = frozenset()

    def want(self, kinds: frozenset[str]) -> None:
        """As the cache's."""
        self.wanted = kinds

    def problem(self, kinds: frozenset[str]) -> str:
        """As the cache's."""
        return ", ".join(sorted(kinds - self.known))

    def state(self) -> State:
        """Nothing."""
        return State()


def policy_file(folder: Path, *rules: str) -> PolicyFile:
    """A policy of these priorities."""
    (folder / "policy.json").write_text(json.dumps({"priorities": [{"name": rule, "weight": 1} for rule in rules]}))
    return PolicyFile(str(folder / "policy.json"))


def rule_of(in_force: PolicyInForce) -> str:
    """Its first priority."""
    return in_force.policy.priorities[0].name


async def test_a_policy_comes_into_force_once_what_it_reads_is_known(tmp_path: Path) -> None:
    """Until then the one before it stays, and what only that one read is watched on."""
    file, source = policy_file(tmp_path, "LeastRequestedPriority"), Source()
    in_force = PolicyInForce(file, source)
    assert (source.wanted, in_force.problem) == (PODS, "nodes, pods")
    source.known = PODS
    assert in_force.problem == ""
    policy_file(tmp_path, "ServiceSpreadingPriority")
    await file.look()
    assert (rule_of(in_force), in_force.problem, source.wanted) == ("LeastRequestedPriority", "", SERVICES)
    answer = in_force.answer()
    assert answer is not None
    assert (answer.pending, answer.priorities) == (True, {"LeastRequestedPriority": 1})
    assert in_force.waiting_for == "services"
    source.known = SERVICES
    assert (rule_of(in_force), in_force.waiting_for) == ("ServiceSpreadingPriority", "")
    policy_file(tmp_path, "EqualPriority")
    await file.look()
    assert (rule_of(in_force), source.wanted) == ("EqualPriority", frozenset())


async def test_the_default_policy_reads_nothing(tmp_path: Path) -> None:
    """So it is there at once, and is no reason not to be ready."""
    del tmp_path
    source = Source()
    in_force = PolicyInForce(None, source)
    assert (source.wanted, in_force.problem, in_force.answer()) == (frozenset(), "", None)


async def test_the_service_is_ready_once_the_policy_can_be_asked(tmp_path: Path) -> None:
    """The whole service beside a fake API server: everything is listed but services, which the policy reads."""
    api = FakeApi()
    for path in (*LONGHORN_PATHS.values(), PATHS["Pod"], PATHS["Node"], CONFIG_MAPS.path(LONGHORN_NAMESPACE)):
        api.add(path)
    api.missing.add(PATHS["Service"])
    policy_file(tmp_path, "ServiceSpreadingPriority")
    settings = Settings(policy=str(tmp_path / "policy.json"))
    async with served(api.handle, tmp_path) as kubeconfig:
        options = LiveOptions(identity="me", kubeconfig=str(kubeconfig))
        app, live, client = await live_application(options, settings, 1)
        running = asyncio.create_task(live.run())
        await until("all else", lambda: live.readiness_problem.startswith("policy: services not listed yet: "))
        async with asking(app) as caller:
            assert (await caller.get("/readyz")).status_code == 503
            api.missing.clear()
            api.add(PATHS["Service"])
            await until("services", lambda: not live.readiness_problem)
            assert (await caller.get("/readyz")).status_code == 200
            assert (await caller.get("/state")).json()["policy"]["priorities"] == {"ServiceSpreadingPriority": 1}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()
