"""The stand-alone scheduler over a fake API server, and its cache without one."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, cast

from prometheus_client import generate_latest

from app.kube.client import KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE
from app.policy import PolicyFile, load_plugins
from app.scheduler.api_calls import PodReporter, SchedulerMetrics
from app.scheduler.cache import LonghornCache, SchedulerCache
from app.scheduler.scheduler import GenericScheduler, SchedulerConfig, SchedulerParts
from scheduler_core.convert.generic import PendingPod
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy, UnsupportedMode
from scheduler_core.model.generic import PodKey
from tests.worlds.fake_api import Object, connect_client
from tests.worlds.scheduling_api import SCHEDULER_NAME, SchedulingApi

STALE_AFTER = 60


class RecordingQueue:
    """Records what a cache tells the scheduling queue."""

    def __init__(self) -> None:
        self.pending: dict[PodKey, PendingPod] = {}  # the pods that need a node
        self.retries = 0  # how often something may have helped unschedulable pods

    def take_pod(self, key: PodKey, pending: PendingPod | None) -> None:
        if pending is None:
            self.pending.pop(key, None)
        else:
            self.pending[key] = pending

    def retry_unschedulable(self) -> None:
        self.retries += 1


def unwatched_cache(
    queue: RecordingQueue, new_longhorn_cache: Callable[[], LonghornCache] | None = None
) -> SchedulerCache:
    """A cache without an API server; tests pass it the changes that reflectors would."""
    timing = Timing(monotonic, random.uniform)
    return SchedulerCache(
        cast("KubeClient", None),
        SCHEDULER_NAME,
        queue.take_pod,
        queue.retry_unschedulable,
        timing,
        stale_after=STALE_AFTER,
        new_longhorn_cache=new_longhorn_cache,
    )


@asynccontextmanager
async def running_scheduler(
    api: SchedulingApi,
    folder: Path,
    policy: Policy = DEFAULT_POLICY,
    leads: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = monotonic,
    *,
    unsupported: UnsupportedMode = UnsupportedMode.REFUSE,
) -> AsyncIterator[GenericScheduler]:
    """Runs an active scheduler. Of equally good nodes it selects the first by name."""
    async with connect_client(api, folder) as client:
        metrics = SchedulerMetrics()
        parts = SchedulerParts(client, Timing(clock, random.uniform), leads, _reporter(client, metrics), metrics)
        config = SchedulerConfig(SCHEDULER_NAME, policy, min, STALE_AFTER, unsupported=unsupported)
        scheduler = GenericScheduler(config, parts)
        async with _active(scheduler):
            yield scheduler


@asynccontextmanager
async def running_scheduler_with_policy_file(
    api: SchedulingApi, folder: Path, path: Path, leads: Callable[[], bool] = lambda: True, plugins: Sequence[str] = ()
) -> AsyncIterator[GenericScheduler]:
    """Runs an active scheduler with a policy file."""
    async with connect_client(api, folder) as client:
        timing = Timing(monotonic, random.uniform)

        def new_longhorn_cache() -> LonghornCache:
            cache = ClusterCache(client, LONGHORN_NAMESPACE, timing, _now, STALE_AFTER)
            return LonghornCache(cache, FilterOptions(), _now)

        file = PolicyFile(str(path), load_plugins(plugins))
        config = SchedulerConfig(SCHEDULER_NAME, DEFAULT_POLICY, min, STALE_AFTER, file)
        metrics = SchedulerMetrics()
        reporter = _reporter(client, metrics)
        parts = SchedulerParts(client, timing, leads, reporter, metrics, new_longhorn_cache)
        scheduler = GenericScheduler(config, parts)
        async with _active(scheduler):
            yield scheduler


def write_policy(path: Path, *predicates: Object) -> Path:
    """Replaces a policy file in one step; the policy has these predicates."""
    new_file = path.with_suffix(".new")
    policy: dict[str, Any] = {"predicates": predicates, "priorities": [{"name": "EqualPriority", "weight": 1}]}
    new_file.write_text(json.dumps(policy))
    return new_file.replace(path)


def has_metric(scheduler: GenericScheduler, sample: str) -> bool:
    """Whether a metric, named without its prefix, has the value in `sample`."""
    return f"longhorn_generic_scheduler_{sample}\n" in generate_latest(scheduler.metrics.registry).decode()


def _now() -> datetime:
    return datetime.now(UTC)


def _reporter(client: KubeClient, metrics: SchedulerMetrics) -> PodReporter:
    return PodReporter(client, SCHEDULER_NAME, monotonic, _now, metrics.write_failures.count)


@asynccontextmanager
async def _active(scheduler: GenericScheduler) -> AsyncIterator[None]:
    """Runs a scheduler; fails if it ended with an error."""
    scheduler.activate()
    running = asyncio.create_task(scheduler.run())
    try:
        yield
    finally:
        assert not running.done() or running.exception() is None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
