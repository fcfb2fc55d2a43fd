"""Binds one pod to its node, and makes certain what came of it.

A claim whose class waits for its first consumer is told the node before its pod is bound: nobody would provision it otherwise. It is
not waited for; the kubelet does that.

A Binding bears the pod's UID and the API server accepts one per pod, so a pod is never bound twice, whoever else tries. When no answer
comes, the pod is read until it is known whether the Binding was made; until then it counts on its node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import CLAIMS, PODS, STORAGE_CLASSES
from scheduler_core.convert.binding import (
    Applicant,
    applicant,
    binding,
    selected_node_patch,
    waits_for_consumer,
)
from scheduler_core.convert.registry import KINDS
from scheduler_core.errors import CoreError
from scheduler_core.model import kube

log = structlog.get_logger("binding")

_SHORTEST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 5.0
_GONE: Final = "the pod is gone"


class Binder:
    """Writes Bindings while `may` says that this process leads; asked right before each write."""

    def __init__(self, client: KubeClient, may: Callable[[], bool]) -> None:
        self._client = client
        self._may = may

    async def bind(self, found: Applicant, node: str) -> str:
        """Binds a pod; "" if it is bound to this node now, otherwise why it is not."""
        pod = found.pod
        try:
            await self._tell_claims(found, node)
            if not self._may():
                return "this process does not lead any more"
            await self._client.create(PODS.path(pod.namespace, pod.name, "binding"), binding(pod, node))
        except ApiError as error:
            return await self._outcome(found, node, str(error)) if error.unreachable else str(error)
        except CoreError as error:
            return str(error)
        return ""

    async def _outcome(self, found: Applicant, node: str, problem: str) -> str:
        """As `bind`, from the pod itself, once the API server answers again."""
        pod, pause = found.pod, _SHORTEST_PAUSE
        log.warning("not known yet whether a pod was bound", pod="/".join(pod.key), node=node, problem=problem)
        while True:
            try:
                _, seen = applicant(await self._client.get(PODS.path(pod.namespace, pod.name)))
            except ApiError as error:
                if error.not_found:
                    return _GONE
                if not error.unreachable:
                    return str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if seen.pod.uid != pod.uid:
                return _GONE
            return "" if seen.pod.node_name == node else problem

    async def _tell_claims(self, found: Applicant, node: str) -> None:
        for volume in found.mounts.volumes if found.mounts else ():
            path = CLAIMS.path(found.pod.namespace, volume.claim)
            _, claim = KINDS[CLAIMS.group, CLAIMS.kind].decode(await self._client.get(path))
            if isinstance(claim, kube.Claim) and await self._waits(claim) and claim.selected_node != node:
                if not self._may():
                    return
                await self._client.patch(path, selected_node_patch(node))

    async def _waits(self, claim: kube.Claim) -> bool:
        name = claim.spec.storage_class
        if claim.spec.volume_name or not name:
            return False
        return waits_for_consumer(await self._client.get(STORAGE_CLASSES.path(name=name)))
