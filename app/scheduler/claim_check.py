"""Checks a pod's claims before a node is selected.

A pod whose claim does not exist can run nowhere. kube-scheduler checks claims first, too (VolumeBinding, PreFilter).
Without the check each attempt would fail while the pod is bound, for a different node each time.
"""

from __future__ import annotations

import asyncio
from typing import Final

from app.kube.client import ApiError, KubeClient
from app.kube.resources import CLAIMS
from scheduler_core.convert.snapshot_kinds import KINDS
from scheduler_core.errors import MissingObjectError, ObjectError, ResolutionError
from scheduler_core.model import kube

# The scheduler decides about one pod at a time. If the API server is slower, binding finds out.
TIMEOUT: Final = 2.0
# A pod with more claims is checked while it is bound.
MAX_CLAIMS: Final = 16


class ClaimCheck:
    """Reads the claims of one pod after the other."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def check(self, pod: kube.Pod) -> None:
        """Returns if no claim of the pod is known to be unusable.

        Raises:
            ResolutionError: a claim does not exist, or is being deleted; the text is the same in every attempt
        """
        names = sorted({volume.claim for volume in pod.volumes})[:MAX_CLAIMS]
        if not names:
            return
        try:
            async with asyncio.timeout(TIMEOUT):
                problems = await asyncio.gather(*(self._problem(pod, name) for name in names))
        except TimeoutError:
            return
        for problem in problems:
            if problem is not None:
                raise problem

    async def _problem(self, pod: kube.Pod, name: str) -> ResolutionError | None:
        try:
            _, claim = KINDS[CLAIMS.group, CLAIMS.kind].decode(await self._client.get(CLAIMS.path(pod.namespace, name)))
        except ApiError as error:
            if not error.not_found:
                return None
            return MissingObjectError(CLAIMS.kind, f"{pod.namespace}/{name}", f"pod {pod.key}")
        except ObjectError:
            return None
        if isinstance(claim, kube.Claim) and claim.deleting:
            return ResolutionError(f"{CLAIMS.kind} {pod.namespace}/{name} is being deleted (named by pod {pod.key})")
        return None
