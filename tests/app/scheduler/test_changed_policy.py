"""`schedule --watch --policy FILE`: a changed file comes into force without a restart, and decides what is watched."""

import asyncio
from pathlib import Path
from time import monotonic

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from app.scheduler.scheduling_queue import MAX_BACKOFF_AFTER_CHANGE
from scheduler_core.backoff import Backoff
from tests.worlds.cluster_cache import PATHS
from tests.worlds.fake_api import failing, until
from tests.worlds.scheduler import has_metric, running_scheduler_with_policy_file, write_policy
from tests.worlds.scheduling_api import CLAIMS, NODES, PODS, LonghornApi, SchedulingApi, node, pod

AWKWARD = "tests.worlds.awkward_plugin"
RESOURCES = {"name": "PodFitsResources"}
SELECTOR = {"name": "MatchNodeSelector"}
LONGHORN = {"name": "LonghornVolumeFit"}
CLASSIC_WATCHES = 3
ALL_WATCHES = CLASSIC_WATCHES + len(PATHS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens intervals and back-offs."""
    monkeypatch.setattr("app.policy.RELOAD_INTERVAL", 0.02)
    monkeypatch.setattr("app.scheduler.scheduler.POLL_INTERVAL", 0.02)
    monkeypatch.setattr("app.scheduler.scheduler.LOG_INTERVAL", 0.2)
    monkeypatch.setattr("app.kube.reflector._MISSING_RETRY_INTERVAL", 0.1)
    monkeypatch.setattr("app.kube.reflector._BACKOFF", Backoff(0.05, 0.1))


async def test_a_changed_policy_decides_about_pending_and_later_pods(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", RESOURCES, SELECTOR)
    api = SchedulingApi(node("a"), pod("picky", nodeSelector={"gpu": "yes"}))
    with capture_logs() as logs:
        async with running_scheduler_with_policy_file(api, tmp_path, path) as scheduler:
            await until("the refusal", lambda: api.condition("picky"))
            write_policy(path, RESOURCES)
            await until("the pod", lambda: api.bindings == [("picky", "a")])
            assert has_metric(scheduler, 'policy_reloads_total{result="loaded"} 1.0')
            write_policy(path, RESOURCES, SELECTOR)
            await until("the next policy", lambda: has_metric(scheduler, 'policy_reloads_total{result="loaded"} 2.0'))
            await api.put(PODS, pod("late", nodeSelector={"gpu": "yes"}))
            await until("the refusal", lambda: api.condition("late"))
    assert len(api.bindings) == 1
    policy_logs = [(entry["event"], entry.get("predicates")) for entry in logs if "policy" in entry["event"]]
    assert policy_logs[:2] == [("policy loaded", None), ("policy in force", 1)]


async def test_a_changed_policy_ends_a_back_off(tmp_path: Path) -> None:
    """After many failed attempts the back-off alone would last long."""
    path = write_policy(tmp_path / "policy.json", RESOURCES, SELECTOR)
    api = SchedulingApi(node("a"), pod("picky", nodeSelector={"gpu": "yes"}))
    async with running_scheduler_with_policy_file(api, tmp_path, path) as scheduler:
        await until("the refusal", lambda: api.condition("picky"))
        (item,) = scheduler.queue.pods.values()
        item.attempts = 16
        await until("another attempt", lambda: item.attempts == 17)
        item.last_attempt -= MAX_BACKOFF_AFTER_CHANGE
        assert (scheduler.queue.next_due() or 0) > monotonic() + 30
        write_policy(path, RESOURCES)
        await until("the pod", lambda: api.bindings)


async def test_an_invalid_file_leaves_the_previous_policy_in_force(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", RESOURCES, SELECTOR)
    api = SchedulingApi(node("a"), pod("picky", nodeSelector={"gpu": "yes"}))
    with capture_logs() as logs:
        async with running_scheduler_with_policy_file(api, tmp_path, path) as scheduler:
            await until("the refusal", lambda: api.condition("picky"))
            write_policy(path, {"name": "Nonsense"})
            await until("the bad file", lambda: has_metric(scheduler, 'policy_reloads_total{result="refused"} 1.0'))
            await api.put(PODS, pod("plain"))
            await until("the other pod", lambda: api.bindings == [("plain", "a")])
            assert scheduler.problem == ""
            write_policy(path, RESOURCES)
            await until("the pod", lambda: len(api.bindings) == 2)
    (refusal,) = [entry for entry in logs if entry["event"] == "policy refused, the one before stays"]
    assert "no predicate has this name" in refusal["problem"]


async def test_a_plugin_that_raises_ends_neither_reading_nor_scheduling(tmp_path: Path) -> None:
    """The policy before stays while an argument's type raises; a rule that raises is its pods' reason."""
    path = write_policy(tmp_path / "policy.json", RESOURCES)
    api = SchedulingApi(node("a"))
    async with running_scheduler_with_policy_file(api, tmp_path, path, plugins=[AWKWARD]) as scheduler:
        write_policy(path, {"name": "Own", "argument": {"exitingInit": {"names": ["a"]}}})
        await until("the bad file", lambda: has_metric(scheduler, 'policy_reloads_total{result="refused"} 1.0'))
        await api.put(PODS, pod("first"))
        await until("the pod", lambda: api.bindings == [("first", "a")])
        write_policy(path, {"name": "Exits"})
        await until("the raising rule", lambda: has_metric(scheduler, 'policy_reloads_total{result="loaded"} 1.0'))
        await api.put(PODS, pod("second"))
        await until("the refusal", lambda: api.condition("second"))
        assert "plugin rule Exits failed: SystemExit: 3" in api.condition("second")["message"]
        write_policy(path, {"name": "Own", "argument": {"plain": {"names": []}}})
        await until("the pod", lambda: len(api.bindings) == 2)


async def test_longhorns_objects_are_watched_while_the_policy_reads_them(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", RESOURCES)
    api = LonghornApi(node("a", "8"))
    api.add(CLAIMS, {"metadata": {"namespace": "shop", "name": "data"}, "spec": {"volumeName": "nowhere"}})
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    async with running_scheduler_with_policy_file(api, tmp_path, path) as scheduler:
        await api.put(PODS, pod("first", volumes=volumes))
        await until("the pod", lambda: len(api.bindings) == 1)
        assert api.open_watches == CLASSIC_WATCHES
        write_policy(path, RESOURCES, LONGHORN)
        await until("the watches", lambda: api.open_watches == ALL_WATCHES)
        await until("the policy", lambda: scheduler.policy_in_force.policy.reads_longhorn)
        await api.put(PODS, pod("second", volumes=volumes))
        await until("the refusal", lambda: api.condition("second"))
        assert "nowhere" in api.condition("second")["message"]
        write_policy(path, RESOURCES)
        await until("the pod", lambda: len(api.bindings) == 2)
        await until("the watches to end", lambda: api.open_watches == CLASSIC_WATCHES)
        assert scheduler.problem == ""


async def test_a_scheduler_that_loses_the_lease_during_a_decision_reports_nothing(tmp_path: Path) -> None:
    """The new leader's reports must not be overwritten."""
    path = write_policy(tmp_path / "policy.json", RESOURCES, LONGHORN)
    api = LonghornApi(node("a", "8"))
    api.add(CLAIMS, {"metadata": {"namespace": "shop", "name": "data"}, "spec": {"volumeName": "nowhere"}})
    leading = True

    async def lose_lease(request: web.Request) -> web.StreamResponse:
        nonlocal leading
        leading = False
        return await failing(404, "no such volume", "NotFound")(request)

    async with running_scheduler_with_policy_file(api, tmp_path, path, leads=lambda: leading) as scheduler:
        await until("the cluster", lambda: not scheduler.problem)
        api.plans["get"] = [lose_lease]
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        await api.put(PODS, pod("web", volumes=volumes))
        await until("the attempt", lambda: [item.attempts for item in scheduler.queue.pods.values()] == [1])
        await scheduler.reporter.wait_until_written()
        assert (api.event_requests, api.condition("web")) == (0, None)
        assert has_metric(scheduler, 'attempts_total{result="unschedulable"} 0.0')
        leading = True
        await until("the refusal", lambda: api.condition("web"))
        assert "nowhere" in api.condition("web")["message"]


async def test_a_policy_waits_until_everything_it_reads_is_listed(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", RESOURCES)
    api = LonghornApi(node("a", "8"))
    volumes = PATHS["longhorn.io", "Volume"]
    del api.collections[volumes]
    api.always["get"] = failing(403, "volumes.longhorn.io is forbidden", "Forbidden")
    with capture_logs() as logs:
        async with running_scheduler_with_policy_file(api, tmp_path, path) as scheduler:
            await until("the cluster", lambda: not scheduler.problem)
            write_policy(path, RESOURCES, LONGHORN)
            await until("the wait", lambda: has_metric(scheduler, "policy_pending 1.0"))
            await api.put(PODS, pod("web"))
            await until("the pod", lambda: api.bindings == [("web", "a")])
            await scheduler.catch_up()
            assert scheduler.problem == ""

            def logged_problems() -> list[str]:
                event = "policy not in force yet, the one before stays"
                return [entry["problem"] for entry in logs if entry["event"] == event]

            await until("the reason", lambda: any("forbidden" in problem for problem in logged_problems()))
            await asyncio.sleep(0.5)
            assert len(logged_problems()) <= 2
            del api.always["get"]
            api.add(volumes)
            await until("the policy", lambda: scheduler.policy_in_force.policy.reads_longhorn)
            assert has_metric(scheduler, "policy_pending 0.0")


async def test_a_first_policy_with_longhorns_rules_waits_for_longhorns_objects(tmp_path: Path) -> None:
    """There is no previous policy, so no pod is scheduled until then."""
    path = write_policy(tmp_path / "policy.json", RESOURCES, LONGHORN)
    api = LonghornApi(node("a", "8"), pod("web"))
    nodes = PATHS["longhorn.io", "Node"]
    api.missing.add(nodes)
    async with running_scheduler_with_policy_file(api, tmp_path, path) as scheduler:
        await until("the problem", lambda: "is Longhorn installed?" in scheduler.problem)
        await asyncio.sleep(0.1)
        assert (api.binding_requests, api.condition("web")) == (0, None)
        api.missing.clear()
        await until("the pod", lambda: api.bindings == [("web", "a")])


async def test_a_node_that_changes_after_the_policy_is_judged_by_the_new_policy(tmp_path: Path) -> None:
    """The previous policy would bind the pending pod to the changed node."""
    path = write_policy(tmp_path / "policy.json", RESOURCES)
    api = SchedulingApi(node("a", "1"), pod("picky", "2", nodeSelector={"gpu": "yes"}))
    async with running_scheduler_with_policy_file(api, tmp_path, path) as scheduler:
        await until("the refusal", lambda: api.condition("picky"))
        write_policy(path, RESOURCES, SELECTOR)
        await until("the next policy", lambda: has_metric(scheduler, 'policy_reloads_total{result="loaded"} 1.0'))
        await api.put(NODES, node("a", "4"))
        await until("another reason", lambda: "selector" in api.condition("picky")["message"])
    assert api.bindings == []
