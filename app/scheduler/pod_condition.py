"""The condition PodScheduled of unschedulable pods, which `kubectl describe` shows and a cluster autoscaler reads.

It is written only when it differs. The pod is read first, so that the condition of a pod that was bound meanwhile, by whichever scheduler,
is never touched. Binding makes the condition True, which the API server does itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from app.kube.client import STRATEGIC_MERGE_PATCH, ApiError, KubeClient
from app.kube.resources import PODS
from app.scheduler.api_dispatcher import ApiDispatcher
from scheduler_core.caches import LruMap
from scheduler_core.convert.pod_patch import not_scheduled_patch
from scheduler_core.model.kube import Pod

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


class Conditions:
    """Owner of the condition that each pod should have.

    Args:
        on_failure: called with CONDITION after every write that was refused or not answered
    """

    def __init__(self, client: KubeClient, now: Callable[[], datetime], on_failure: Callable[[str], None]) -> None:
        self._client = client
        self._now = now
        self._dispatcher = ApiDispatcher(CONDITION, self._write, on_failure, self._forget)
        self._latest: LruMap[str, _Condition] = LruMap(_MAX_PODS, on_evict=self._dispatcher.discard)

    def put(self, pod: Pod, reason: str, message: str) -> None:
        """Sets the condition of a pod that was not scheduled."""
        latest = self._latest.get(pod.uid)
        if latest is not None and (latest.reason, latest.message) == (reason, message):
            return
        condition = _Condition(pod, reason, message)
        self._latest.put(pod.uid, condition)
        self._dispatcher.put(pod.uid, condition)

    def clear(self) -> None:
        # A different process schedules, and writes its own conditions.
        self._latest.clear()
        self._dispatcher.clear()

    async def run(self) -> None:
        await self._dispatcher.run()

    async def wait_until_written(self) -> None:
        """Returns once every condition has been written or given up."""
        await self._dispatcher.wait_until_idle()

    async def _write(self, uid: str, condition: _Condition) -> None:
        # An earlier attempt had no answer, and meanwhile the condition has changed.
        if self._latest.get(uid) is not condition:
            return
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
