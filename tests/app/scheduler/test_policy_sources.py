"""`schedule --watch --policy FILE`: a changed file is in force without a restart, and what its rules read is watched from then on."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from app.kube.cluster_cache import ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE
from app.policy.file import PolicyFile
from app.scheduler.event_recorder import EventRecorder
from app.scheduler.longhorn_cache import LonghornCache
from app.scheduler.metrics import SchedulerMetrics
from app.scheduler.scheduler import GenericScheduler, SchedulerConfig, SchedulerParts
from app.scheduler.scheduling_queue import MAX_BACKOFF_AFTER_CHANGE
from scheduler_core.backoff import Backoff
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.generic.policy import DEFAULT_POLICY
from tests.worlds.cluster_cache import PATHS
from tests.worlds.fake_api import connected, failing, until
from tests.worlds.scheduling_api import CLAIMS, NAME, NODES, PODS, SchedulingApi, node, pod

SIZE, SELECTOR = {"name": "PodFitsResources"}, {"name": "MatchNodeSelector"}
LONGHORN = {"name": "LonghornVolumeFit"}
CLASSIC_WATCHES, ALL_WATCHES = 3, 3 + len(PATHS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses."""
    monkeypatch.setattr("app.policy.file.RELOAD_INTERVAL", 0.02)
    monkeypatch.setattr("app.scheduler.policy_sources.POLL_INTERVAL", 0.02)
    monkeypatch.setattr("app.scheduler.policy_sources.LOG_INTERVAL", 0.2)
    monkeypatch.setattr("app.kube.reflector._MISSING_RETRY_INTERVAL", 0.1)
    monkeypatch.setattr("app.kube.reflector._BACKOFF", Backoff(0.05, 0.1))


def written(path: Path, *predicates: dict[str, Any]) -> Path:
    """A policy of some predicates, moved over what was there."""
    made = path.with_suffix(".new")
    made.write_text(json.dumps({"predicates": predicates, "priorities": [{"name": "EqualPriority", "weight": 1}]}))
    return made.replace(path)


class LonghornApi(SchedulingApi):
    """Knows Longhorn's kinds, too, though there are no objects of them."""

    def __init__(self, *objects: Any) -> None:
        super().__init__(*objects)
        for path in PATHS.values():
            self.add(path)


@asynccontextmanager
async def by_file(
    api: SchedulingApi, folder: Path, path: Path, seconds: float | None = None, may: Callable[[], bool] = lambda: True
) -> AsyncIterator[GenericScheduler]:
    """A scheduler that goes by a file; its clock stands still at `seconds`, if that is given."""
    async with connected(api, folder) as client:
        timing = Timing(monotonic if seconds is None else lambda: seconds, random.uniform)

        def now() -> datetime:
            return datetime.now(UTC)

        def longhorn() -> LonghornCache:
            return LonghornCache(ClusterCache(client, LONGHORN_NAMESPACE, timing, now, 60), FilterOptions(), now)

        recorder = EventRecorder(client, NAME, "test", monotonic, now)
        config = SchedulerConfig(NAME, DEFAULT_POLICY, min, 60, PolicyFile(str(path)))
        parts = SchedulerParts(client, timing, may, recorder, SchedulerMetrics(), longhorn)
        scheduler = GenericScheduler(config, parts)
        scheduler.activate()
        running = asyncio.create_task(scheduler.run())
        try:
            yield scheduler
        finally:
            assert not running.done() or running.exception() is None
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def shows(scheduler: GenericScheduler, text: str) -> bool:
    """Whether a metric has this value."""
    return f"longhorn_generic_scheduler_{text}\n" in generate_latest(scheduler._metrics.registry).decode()


async def test_a_changed_file_is_in_force_and_may_help_who_waits(tmp_path: Path) -> None:
    """Both ways: a pod that no node took is bound, and one that comes later is not."""
    path = written(tmp_path / "policy.json", SIZE, SELECTOR)
    api = SchedulingApi(node("a"), pod("picky", nodeSelector={"gpu": "yes"}))
    with capture_logs() as logs:
        async with by_file(api, tmp_path, path) as scheduler:
            await until("the refusal", lambda: api.condition("picky"))
            written(path, SIZE)
            await until("the pod", lambda: api.bindings == [("picky", "a")])
            assert shows(scheduler, 'policy_reloads_total{result="loaded"} 1.0')
            written(path, SIZE, SELECTOR)
            await until("the next policy", lambda: shows(scheduler, 'policy_reloads_total{result="loaded"} 2.0'))
            await api.put(PODS, pod("late", nodeSelector={"gpu": "yes"}))
            await until("the refusal", lambda: api.condition("late"))
    assert len(api.bindings) == 1
    found = [(entry["event"], entry.get("predicates")) for entry in logs if "policy" in entry["event"]]
    assert found[:2] == [("policy loaded", None), ("policy in force", 1)]


async def test_a_changed_policy_ends_a_back_off(tmp_path: Path) -> None:
    """Many attempts have failed: by its back-off the pod would not be tried for long."""
    path = written(tmp_path / "policy.json", SIZE, SELECTOR)
    api = SchedulingApi(node("a"), pod("picky", nodeSelector={"gpu": "yes"}))
    async with by_file(api, tmp_path, path) as scheduler:
        await until("the refusal", lambda: api.condition("picky"))
        (item,) = scheduler._queue._pods.values()
        item.attempts = 16
        await until("another attempt", lambda: item.attempts == 17)
        item.last_attempt -= MAX_BACKOFF_AFTER_CHANGE
        assert (scheduler._queue.next_due() or 0) > monotonic() + 30
        written(path, SIZE)
        await until("the pod", lambda: api.bindings)


async def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    """It is told once, with the reason; the next good one counts."""
    path = written(tmp_path / "policy.json", SIZE, SELECTOR)
    api = SchedulingApi(node("a"), pod("picky", nodeSelector={"gpu": "yes"}))
    with capture_logs() as logs:
        async with by_file(api, tmp_path, path) as scheduler:
            await until("the refusal", lambda: api.condition("picky"))
            written(path, {"name": "Nonsense"})
            await until("the bad file", lambda: shows(scheduler, 'policy_reloads_total{result="refused"} 1.0'))
            await api.put(PODS, pod("plain"))
            await until("the other pod", lambda: api.bindings == [("plain", "a")])
            assert scheduler.problem == ""
            written(path, SIZE)
            await until("the pod", lambda: len(api.bindings) == 2)
    (refused,) = [entry for entry in logs if entry["event"] == "policy refused, the one before stays"]
    assert "no predicate has this name" in refused["problem"]


async def test_longhorns_objects_are_watched_while_a_policy_reads_them(tmp_path: Path) -> None:
    """From the changed file on, without a restart; and no longer than that."""
    path = written(tmp_path / "policy.json", SIZE)
    api = LonghornApi(node("a", "8"))
    api.add(CLAIMS, {"metadata": {"namespace": "shop", "name": "data"}, "spec": {"volumeName": "nowhere"}})
    claim = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    async with by_file(api, tmp_path, path) as scheduler:
        await api.put(PODS, pod("first", volumes=claim))
        await until("the pod", lambda: len(api.bindings) == 1)
        assert api.open_watches == CLASSIC_WATCHES
        written(path, SIZE, LONGHORN)
        await until("the watches", lambda: api.open_watches == ALL_WATCHES)
        await until("the policy", lambda: scheduler._policy_sources.current()[0].reads_longhorn)
        await api.put(PODS, pod("second", volumes=claim))
        await until("the refusal", lambda: api.condition("second"))
        assert "nowhere" in api.condition("second")["message"]
        written(path, SIZE)
        await until("the pod", lambda: len(api.bindings) == 2)
        await until("the watches to end", lambda: api.open_watches == CLASSIC_WATCHES)
        assert scheduler.problem == ""


async def test_who_loses_the_lease_while_it_looks_says_nothing(tmp_path: Path) -> None:
    """What another process says of the pod from now on is not to be overwritten."""
    path = written(tmp_path / "policy.json", SIZE, LONGHORN)
    api = LonghornApi(node("a", "8"))
    api.add(CLAIMS, {"metadata": {"namespace": "shop", "name": "data"}, "spec": {"volumeName": "nowhere"}})
    leading = True

    async def lose(request: web.Request) -> web.StreamResponse:
        nonlocal leading
        leading = False
        return await failing(404, "no such volume", "NotFound")(request)

    async with by_file(api, tmp_path, path, may=lambda: leading) as scheduler:
        await until("the cluster", lambda: not scheduler.problem)
        api.plans["get"] = [lose]
        claim = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        await api.put(PODS, pod("web", volumes=claim))
        await until("the attempt", lambda: [item.attempts for item in scheduler._queue._pods.values()] == [1])
        await scheduler._recorder.wait_until_written()
        assert (api.written, api.condition("web")) == (0, None)
        assert shows(scheduler, 'attempts_total{result="unschedulable"} 0.0')
        leading = True
        await until("the refusal", lambda: api.condition("web"))
        assert "nowhere" in api.condition("web")["message"]


async def test_a_policy_waits_until_what_it_reads_is_known(tmp_path: Path) -> None:
    """Its Role is not there yet: the policy before it stays, and schedules."""
    path = written(tmp_path / "policy.json", SIZE)
    api = LonghornApi(node("a", "8"))
    volumes = PATHS["longhorn.io", "Volume"]
    del api.collections[volumes]
    api.always["get"] = failing(403, "volumes.longhorn.io is forbidden", "Forbidden")
    with capture_logs() as logs:
        async with by_file(api, tmp_path, path) as scheduler:
            await until("the cluster", lambda: not scheduler.problem)
            written(path, SIZE, LONGHORN)
            await until("the wait", lambda: shows(scheduler, "policy_pending 1.0"))
            await api.put(PODS, pod("web"))
            await until("the pod", lambda: api.bindings == [("web", "a")])
            await scheduler.catch_up()
            assert scheduler.problem == ""

            def told() -> list[str]:
                waits = "policy not in force yet, the one before stays"
                return [entry["problem"] for entry in logs if entry["event"] == waits]

            await until("the reason", lambda: any("forbidden" in problem for problem in told()))
            await asyncio.sleep(0.5)
            assert len(told()) <= 2
            del api.always["get"]
            api.add(volumes)
            await until("the policy", lambda: scheduler._policy_sources.current()[0].reads_longhorn)
            assert shows(scheduler, "policy_pending 0.0")


async def test_a_scheduler_that_begins_with_longhorns_rules_waits_for_them(tmp_path: Path) -> None:
    """There is no policy before it."""
    path = written(tmp_path / "policy.json", SIZE, LONGHORN)
    api = LonghornApi(node("a", "8"), pod("web"))
    nodes = PATHS["longhorn.io", "Node"]
    api.missing.add(nodes)
    async with by_file(api, tmp_path, path) as scheduler:
        await until("the problem", lambda: "is Longhorn installed?" in scheduler.problem)
        await asyncio.sleep(0.1)
        assert (api.posted, api.condition("web")) == (0, None)
        api.missing.clear()
        await until("the pod", lambda: api.bindings == [("web", "a")])


async def test_a_node_that_changes_with_the_policy_is_judged_by_the_new_one(tmp_path: Path) -> None:
    """A waiting pod that the policy before would take now is not bound by it."""
    path = written(tmp_path / "policy.json", SIZE)
    api = SchedulingApi(node("a", "1"), pod("picky", "2", nodeSelector={"gpu": "yes"}))
    async with by_file(api, tmp_path, path) as scheduler:
        await until("the refusal", lambda: api.condition("picky"))
        written(path, SIZE, SELECTOR)
        await until("the next policy", lambda: shows(scheduler, 'policy_reloads_total{result="loaded"} 1.0'))
        await api.put(NODES, node("a", "4"))
        await until("another reason", lambda: "selector" in api.condition("picky")["message"])
    assert api.bindings == []
