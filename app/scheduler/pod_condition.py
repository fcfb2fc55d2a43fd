"""The condition PodScheduled of pods that were not scheduled: what `kubectl describe` shows and a cluster autoscaler goes by.

Written only when it is another one. The pod is read first, so that the condition of a pod that was bound meanwhile, by whomever, is never
touched. Binding makes it True, which the API server does itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from app.kube.client import STRATEGIC_MERGE_PATCH, ApiError, KubeClient
from app.kube.resources import PODS
from app.scheduler.api_dispatcher import Outbox
from scheduler_core.convert.pod_patch import not_scheduled_patch
from scheduler_core.model.generic import Pod

CONDITION: Final = "condition"
# Some hundred bytes each; a pod that is forgotten is read once more.
_MOST_KNOWN: Final = 10_000
# Others may keep changing the pod; the next attempt to schedule it tells again.
_READINGS: Final = 3


@dataclass(frozen=True, slots=True)
class _Word:
    pod: Pod
    reason: str
    message: str


class Conditions:
    """Owner of what each pod's condition is to say."""

    def __init__(self, client: KubeClient, now: Callable[[], datetime], failed: Callable[[str], None]) -> None:
        self._client = client
        self._now = now
        self._said: OrderedDict[str, _Word] = OrderedDict()
        self._outbox = Outbox(CONDITION, self._write, failed, self._forget)

    def put(self, pod: Pod, reason: str, message: str) -> None:
        """A pod was not scheduled."""
        said = self._said.get(pod.uid)
        if said is not None and (said.reason, said.message) == (reason, message):
            return
        word = self._said[pod.uid] = _Word(pod, reason, message)
        self._said.move_to_end(pod.uid)
        while len(self._said) > _MOST_KNOWN:
            self._outbox.discard(self._said.popitem(last=False)[0])
        self._outbox.put(pod.uid, word)

    def clear(self) -> None:
        """Somebody else schedules: what pods are told is theirs to say, and not known here any more."""
        self._said.clear()
        self._outbox.clear()

    async def run(self) -> None:
        """Writes until cancelled."""
        await self._outbox.run()

    async def written(self) -> None:
        """Returns once everything has been written, or given up."""
        await self._outbox.written()

    async def _write(self, uid: str, word: _Word) -> None:
        if self._said.get(uid) is not word:  # there was no answer, and meanwhile there was something else to say
            return
        if not await self._told(word):
            self._forget(uid, word)

    def _forget(self, uid: str, word: _Word) -> None:
        """The next attempt tells it again."""
        if self._said.get(uid) is word:
            del self._said[uid]

    async def _told(self, word: _Word) -> bool:
        """Whether the pod, if it still is one without a node, says so now; False if it is gone.

        Raises:
            ApiError: the API server refused or did not answer, or the pod changes all the time
            ObjectError: the pod cannot be read
        """
        pod, now = word.pod, self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        left = _READINGS
        while True:
            left -= 1
            try:
                raw = await self._client.get(PODS.path(pod.namespace, pod.name))
                patch = not_scheduled_patch(raw, pod.uid, word.reason, word.message, now)
                if patch is not None:
                    path = PODS.path(pod.namespace, pod.name, "status")
                    await self._client.patch(path, patch, STRATEGIC_MERGE_PATCH)
            except ApiError as error:
                if error.not_found:
                    return False
                if not (error.conflict and left):
                    raise
            else:
                return True
