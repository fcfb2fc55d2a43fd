"""Binds one pod to its node, and makes certain what came of it.

A claim whose class waits for its first consumer is told the node before its pod is bound: nobody would provision it otherwise. It is
not waited for; the kubelet does that. While it is provisioned for the node of another pod that mounts it, no pod is bound elsewhere.

A Binding bears the pod's UID and the API server accepts one per pod, so a pod is never bound twice, whoever else tries, and the same
Binding may be repeated. When no answer comes, it is, a few times: that the pod is read without a node proves little, for the API server may
still be at it. Until the answer is definite, or nobody can be at it any more, the pod counts on its node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.paging import pages
from app.kube.resources import CLAIMS, PODS, STORAGE_CLASSES
from scheduler_core.convert.binding import (
    Applicant,
    applicant,
    binding,
    mounting,
    selected_node_patch,
    waits_for_consumer,
)
from scheduler_core.convert.snapshot_kinds import KINDS
from scheduler_core.errors import CoreError
from scheduler_core.model import kube
from scheduler_core.model.generic import Pod, PodKey

log = structlog.get_logger("binding")

_SHORTEST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 5.0
# After this long kube-apiserver gives up any request (--request-timeout).
REQUEST_SECONDS: Final = 60.0
_ATTEMPTS: Final = 4
# With these answers the API server is done with a request: it failed, or there were too many.
_ENDED: Final = frozenset({429, 500})
_WITH_NODE: Final = {"fieldSelector": "spec.nodeName!="}
_GONE: Final = "the pod is gone"


class _Doubt:
    """Whether the API server may still be making a Binding, and whether to try again."""

    def __init__(self, error: ApiError) -> None:
        self._attempts = 0
        self._refused = False
        self._ended_at = -float("inf")
        self.add(error)

    def add(self, error: ApiError) -> None:
        """One more attempt has ended so."""
        self._attempts += 1
        self._refused = not error.unreachable
        if error.unreachable and error.status not in _ENDED:
            self._ended_at = monotonic() + REQUEST_SECONDS

    @property
    def again(self) -> bool:
        """Whether to try once more."""
        return not self._refused and self._attempts < _ATTEMPTS

    @property
    def over(self) -> bool:
        """Whether what the pod says from now on is definite."""
        return self._refused or (not self.again and monotonic() >= self._ended_at)


@dataclass(frozen=True, slots=True, eq=False)
class _Telling:
    """A pod that is being bound, from before its claims are looked at."""

    pod: Pod
    node: str


class Binder:
    """Writes Bindings while `may` says that this process leads; asked right before each write."""

    def __init__(self, client: KubeClient, may: Callable[[], bool]) -> None:
        self._client = client
        self._may = may
        self._telling: dict[tuple[str, str], list[_Telling]] = {}

    async def bind(self, found: Applicant, node: str) -> str:
        """Binds a pod; "" if it is bound to this node now, otherwise why it is not."""
        pod, telling = found.pod, _Telling(found.pod, node)
        keys = {(pod.namespace, volume.claim) for volume in (found.mounts.volumes if found.mounts else ())}
        # Before anything is read, and all at once: whoever comes later finds this, and two never wait for each other.
        elsewhere = {key: self._begin(key, telling) for key in sorted(keys)}
        try:
            for key, other in elsewhere.items():
                await self._tell_claim(key, telling, other)
            return await self._bound(pod, node)
        except CoreError as error:
            return str(error)
        finally:
            for key in keys:
                self._end(key, telling)

    async def _bound(self, pod: Pod, node: str) -> str:
        """As `bind`, once the claims are told.

        Raises:
            CoreError: it is not, too
        """
        if not self._may():
            return "this process does not lead any more"
        error = await self._post(pod, node)
        if error is None or not error.unreachable:
            return str(error or "")
        log.warning("not known yet whether a pod was bound", pod="/".join(pod.key), node=node, problem=str(error))
        return await self._outcome(pod, node, error)

    async def _post(self, pod: Pod, node: str) -> ApiError | None:
        try:
            await self._client.create(PODS.path(pod.namespace, pod.name, "binding"), binding(pod, node))
        except ApiError as error:
            return error
        return None

    async def _outcome(self, pod: Pod, node: str, error: ApiError) -> str:
        """As `bind`, after an attempt of which nobody knows what came of it.

        Raises:
            CoreError: as _bound
        """
        pause, doubt = _SHORTEST_PAUSE, _Doubt(error)
        while True:
            where = await self._where(pod)
            if where:
                return "" if where == node else f"it was bound to {where} meanwhile"
            # Who does not lead any more may not try again, and decides nothing by what it believes.
            if where is not None and (doubt.over or not self._may()):
                return str(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            if where is not None and doubt.again and self._may():
                again = await self._post(pod, node)
                if again is None:
                    return ""
                error = again
                doubt.add(error)

    async def _where(self, pod: Pod) -> str | None:
        """The pod's node, "" if it has none; None if the API server does not answer.

        Raises:
            CoreError: there is no such pod any more, or it cannot be read
        """
        try:
            _, seen = applicant(await self._client.get(PODS.path(pod.namespace, pod.name)))
        except ApiError as error:
            if error.unreachable:
                return None
            raise CoreError(_GONE if error.not_found else str(error)) from error
        if seen.pod.uid != pod.uid:
            raise CoreError(_GONE)
        return seen.pod.node_name

    def _begin(self, key: tuple[str, str], telling: _Telling) -> _Telling | None:
        """A pod that mounts the claim is being bound; returns one that is being bound to another node."""
        others = self._telling.setdefault(key, [])
        others.append(telling)
        return next((one for one in others if one.node != telling.node), None)

    def _end(self, key: tuple[str, str], telling: _Telling) -> None:
        """The pod is bound, or will not be."""
        rest = [one for one in self._telling.pop(key) if one is not telling]
        if rest:
            self._telling[key] = rest

    async def _tell_claim(self, key: tuple[str, str], telling: _Telling, elsewhere: _Telling | None) -> None:
        """Tells a claim the node, if nobody would provision it otherwise.

        Raises:
            CoreError: it cannot be told, or is provisioned for the node of another pod
        """
        path = CLAIMS.path(*key)
        _, claim = KINDS[CLAIMS.group, CLAIMS.kind].decode(await self._client.get(path))
        if not isinstance(claim, kube.Claim) or not await self._waits(claim):
            return
        if elsewhere is not None:
            raise _taken(key, elsewhere.node, elsewhere.pod.key)
        if claim.selected_node == telling.node:
            return
        if claim.selected_node:
            await self._check_unused(key, claim.selected_node, telling.pod)
        if self._may():
            await self._client.patch(path, selected_node_patch(telling.node))

    async def _check_unused(self, key: tuple[str, str], selected: str, pod: Pod) -> None:
        """Of a claim that somebody has told a node already.

        Raises:
            CoreError: a pod mounts it that has a node; or that cannot be told
        """
        namespace, name = key
        async for page in pages(self._client, PODS.path(namespace), _WITH_NODE):
            for raw in page.items:
                other = mounting(raw)
                mounts = any(volume.claim == name for volume in other.volumes)
                if mounts and other.node_name and other.live and other.uid != pod.uid:
                    raise _taken(key, selected, (namespace, other.name))

    async def _waits(self, claim: kube.Claim) -> bool:
        name = claim.spec.storage_class
        if claim.spec.volume_name or not name:
            return False
        return waits_for_consumer(await self._client.get(STORAGE_CLASSES.path(name=name)))


def _taken(claim: tuple[str, str], node: str, pod: PodKey) -> CoreError:
    return CoreError(
        f"PersistentVolumeClaim {'/'.join(claim)} is being provisioned for node {node}, because pod {'/'.join(pod)} mounts it"
    )
