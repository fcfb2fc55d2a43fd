"""The nudge itself: one annotation on a pod. Any change of a waiting pod makes kube-scheduler ask about it again at once."""

from __future__ import annotations

from typing import Final

from app.kube.client import ApiError, KubeClient
from app.kube.resources import PODS
from scheduler_core.convert.nudged import nudge_patch
from scheduler_core.convert.snapshot_kinds import KINDS
from scheduler_core.model.kube import Pod

CALL_SECONDS: Final = 5.0
# Another pod of its name has another UID, which a patch cannot change: Invalid, or Conflict.
_ABOUT_THE_OBJECT: Final = (409, 422)


class PodNudge:
    """Writes the annotation."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def __call__(self, pod: Pod, at: str) -> bool:
        """Writes when the pod was nudged; whether there still is this very pod, not another one of its name.

        Raises:
            ApiError: the API server refused or did not answer
        """
        try:
            await self._client.patch(PODS.path(pod.namespace, pod.name), nudge_patch(pod.uid, at), seconds=CALL_SECONDS)
        except ApiError as error:
            if error.not_found or (error.status in _ABOUT_THE_OBJECT and not await self._is_there(pod)):
                return False
            raise
        return True

    async def _is_there(self, pod: Pod) -> bool:
        """The refusal may be about something else than the UID: a conflict when others keep changing the pod, say."""
        try:
            raw = await self._client.get(PODS.path(pod.namespace, pod.name), seconds=CALL_SECONDS)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        _, found = KINDS[PODS.group, PODS.kind].decode(raw)
        return isinstance(found, Pod) and found.uid == pod.uid
