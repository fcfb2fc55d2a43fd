"""What users see of the stand-alone scheduler: Events about pods, the condition PodScheduled, and metrics.

`kubectl describe` shows the condition of an unschedulable pod, and a cluster autoscaler reads it. It is written only when it differs.
The pod is read first, so that the condition of a pod that was bound meanwhile, by whichever scheduler, is never touched. Binding makes
the condition True, which the API server does itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app.kube.client import STRATEGIC_MERGE_PATCH, ApiError, KubeClient
from app.kube.event_recorder import EVENT, ApiDispatcher, EventRecorder
from app.kube.resources import PODS
from app.runtime.file_content import LOADED, REFUSED
from app.runtime.metrics import BUCKETS
from scheduler_core.caches import LruMap
from scheduler_core.convert.generic import not_scheduled_patch
from scheduler_core.convert.kube import ObjectReference, truncate_message
from scheduler_core.model.kube import Pod

PREFIX: Final = "longhorn_generic_scheduler"
SCHEDULED: Final = "scheduled"
UNSCHEDULABLE: Final = "unschedulable"
ERROR: Final = "error"
CONDITION: Final = "condition"
# Some hundred bytes each; a pod that is evicted here is read once more.
_MAX_PODS: Final = 10_000
# Other programs may keep changing the pod; the next attempt to schedule it writes the condition again.
_MAX_READS: Final = 3


@dataclass(frozen=True, slots=True)
class _Condition:
    pod: Pod
    reason: str
    message: str


class PodReporter:
    """Writes Events about pods, and owns the condition that each unschedulable pod should have.

    Args:
        component: the scheduler's name
        clock: seconds of a clock that never goes back
        now: the time of day
        on_failure: called with EVENT or CONDITION after every write that was refused or not answered
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        on_failure: Callable[[str], None],
    ) -> None:
        self._client = client
        self._now = now
        # With limits of their own, as in kube-scheduler, Events delay no Binding.
        self._events = EventRecorder(client.with_own_limits(), component, clock, now, on_failure=on_failure)
        self._dispatcher = ApiDispatcher(CONDITION, self._write, on_failure, self._forget)
        self._latest: LruMap[str, _Condition] = LruMap(_MAX_PODS, on_evict=self._dispatcher.discard)

    def record(self, pod: Pod, reason: str, message: str, *, normal: bool) -> None:
        """Records an Event about a pod."""
        about = ObjectReference(PODS.api_version, PODS.kind, pod.namespace, pod.name, pod.uid)
        self._events.record(about, reason, message, normal=normal)

    def record_failure(self, pod: Pod, reason: str, message: str) -> None:
        """Records an Event, and sets the condition, of a pod that was not scheduled."""
        text = truncate_message(message)
        self.record(pod, "FailedScheduling", text, normal=False)
        condition = _Condition(pod, reason, text)
        latest = self._latest.get(pod.uid)
        if latest is None or (latest.reason, latest.message) != (reason, text):
            self._latest.put(pod.uid, condition)
            self._dispatcher.put(pod.uid, condition)

    def clear_conditions(self) -> None:
        """Drops conditions that are not written yet."""
        # Attempts of a successor decide what conditions say. Events are still written: an Event reports what has happened.
        self._latest.clear()
        self._dispatcher.clear()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._events.run())
            tasks.create_task(self._dispatcher.run())

    async def wait_until_written(self) -> None:
        """Returns once everything recorded has been written or given up."""
        await self._events.wait_until_written()
        await self._dispatcher.wait_until_idle()

    async def _write(self, uid: str, condition: _Condition) -> None:
        if not await self._patch_pod(condition):
            self._forget(uid, condition)

    def _forget(self, uid: str, condition: _Condition) -> None:
        if self._latest.get(uid) is condition:
            self._latest.pop(uid)

    async def _patch_pod(self, condition: _Condition) -> bool:
        """Writes the condition of a pod without node; returns whether it exists."""
        pod = condition.pod
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        reads = 0
        while True:
            reads += 1
            try:
                raw = await self._client.get(PODS.path(pod.namespace, pod.name))
                patch = not_scheduled_patch(raw, pod.uid, condition.reason, condition.message, now)
                if patch is not None:
                    path = PODS.path(pod.namespace, pod.name, "status")
                    await self._client.patch(path, patch, STRATEGIC_MERGE_PATCH)
            except ApiError as error:
                if error.not_found:
                    return False
                if not error.conflict or reads == _MAX_READS:
                    raise
            else:
                return True


class SchedulerMetrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # has these metrics and no others
        self._attempts = Counter(
            f"{PREFIX}_attempts_total",
            "Attempts to schedule a pod, by what came of them",
            ["result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_decision_seconds", "Time to decide about a pod", buckets=BUCKETS, registry=self.registry
        )
        self._failures = Counter(
            f"{PREFIX}_write_failures_total",
            "Events and conditions of pods that the API server refused, or did not answer",
            ["what"],
            registry=self.registry,
        )
        self._reloads = Counter(
            f"{PREFIX}_policy_reloads_total", "Other contents of the policy file", ["result"], registry=self.registry
        )
        for result in (SCHEDULED, UNSCHEDULABLE, ERROR):
            self._attempts.labels(result)
        for kind in (EVENT, CONDITION):
            self._failures.labels(kind)
        for result in (LOADED, REFUSED):
            self._reloads.labels(result)

    def count_attempt(self, result: str) -> None:
        self._attempts.labels(result).inc()

    def count_write_failure(self, kind: str) -> None:
        self._failures.labels(kind).inc()

    def count_policy_reload(self, result: str) -> None:
        self._reloads.labels(result).inc()

    def observe_decision(self, seconds: float) -> None:
        self._seconds.observe(seconds)

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(f"{PREFIX}_{name}", text, registry=self.registry).set_function(read)
