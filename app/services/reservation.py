"""Seed 002's step 5, to the letter: one pod at a time, and a node is reserved until its replicas are listed.

    question → wait for the write lock → evaluate, reserved nodes rejected → answer
             → the lock stays held until the pod has spec.nodeName, or the pod-scheduling time-out
             → if it has: the node is reserved until Longhorn lists all its replicas, or the node-reservation time-out

Pods without Longhorn volumes, pods that return to their replicas, and pods refused everywhere take nothing, so nobody waits for
them. A time-out of 0 switches its half off. Where the proposal is silent: a pod that is asked about again, or deleted, is no
longer waited for (kube-scheduler has given up that attempt), and a caller that has hung up leaves nothing behind.

A new leader finds in the cluster what its predecessor held in memory (`adopt`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from app.kube.caches import ClusterCache, ObjectKey
from app.metrics import Metrics
from app.services.gate import CallerGoneError
from app.services.scheduling import Scheduling
from scheduler_core.awaited import arriving_pods, awaited_volumes, undecided_pods
from scheduler_core.errors import ResolutionError
from scheduler_core.extender_settings import ExtenderSettings
from scheduler_core.model.kube import Pod
from scheduler_core.verbs import Decision
from scheduler_core.verdict import Reason

log = structlog.get_logger("reservation")

_TAKES_NOTHING: Final = frozenset({Reason.NO_VOLUMES, Reason.HOME, Reason.ATTACHABLE})
HungUp = Callable[[], Awaitable[bool]]


class NodeReservations:
    """Owner of the write lock and of the reserved nodes."""

    def __init__(
        self,
        cache: ClusterCache,
        scheduling: Scheduling,
        settings: Callable[[], ExtenderSettings],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._scheduling = scheduling
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._lock = asyncio.Lock()
        self._decision: asyncio.Task[None] | None = None
        self._waiting_for = ""
        self._arrivals: dict[asyncio.Task[None], str] = {}

    def reserved(self) -> frozenset[str]:
        """The nodes that take no new volumes now."""
        return frozenset(self._arrivals.values())

    async def filter(self, pod: Pod, candidates: Sequence[str], hung_up: HungUp) -> Decision:
        """Decides about a pod when its turn has come, and begins to wait for what becomes of it.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
            CallerGoneError: the caller did not wait
        """
        if not pod.volumes:
            return await self._scheduling.filter(pod, candidates)
        if self._decision is not None and self._waiting_for == _identity(pod):
            self._decision.cancel()
        await self._lock.acquire()
        try:
            await _still_there(hung_up)
            decision = await self._scheduling.filter(pod, candidates, self.reserved)
            waits = self._settings().pod_scheduling_timeout > 0 and _takes_space(decision)
            if waits:
                await _still_there(hung_up)
        except BaseException:
            self._lock.release()
            raise
        if waits:
            self._hold_for(pod)
        else:
            self._lock.release()
        return decision

    async def adopt(self) -> None:
        """Reserves what a predecessor had reserved, and waits for the pod it was waiting for, as far as the cluster tells."""
        view = self._cache.memory().view
        for pod, node in arriving_pods(view):
            self._reserve(pod, node)
        undecided = undecided_pods(view)
        if undecided and self._settings().pod_scheduling_timeout > 0:
            await self._lock.acquire()
            self._hold_for(*undecided)
        log.info("adopted", reserved=sorted(self.reserved()), undecided=[pod.key for pod in undecided])

    async def settled(self) -> None:
        """Returns once no pod is waited for."""
        async with self._lock:
            return

    def clear(self) -> None:
        """Forgets everything: somebody else leads."""
        for task in (*self._arrivals, *([self._decision] if self._decision else [])):
            task.cancel()

    def _hold_for(self, *pods: Pod) -> None:
        """Keeps the lock, held by the caller, until each pod is decided."""
        self._waiting_for = _identity(pods[0])
        self._decision = asyncio.create_task(self._await_decisions(pods))

    async def _await_decisions(self, pods: Sequence[Pod]) -> None:
        try:
            await asyncio.gather(*(self._await_decision(pod) for pod in pods))
        finally:
            self._decision, self._waiting_for = None, ""
            self._lock.release()

    async def _await_decision(self, pod: Pod) -> None:
        started = self._clock()
        node = ""
        try:
            async with asyncio.timeout(self._settings().pod_scheduling_timeout):
                node = await self._node_of(pod)
        except TimeoutError:
            log.warning("pod not scheduled in time", pod=pod.key, uid=pod.uid)
        finally:
            self._metrics.pod_scheduling_wait(self._clock() - started, scheduled=bool(node))
        if node:
            self._reserve(pod, node)

    async def _node_of(self, pod: Pod) -> str:
        """The node the pod is bound to, as soon as it is; "" if it was deleted."""
        key: ObjectKey = ("pods", (pod.namespace, pod.name))
        seen = False
        with self._cache.listening(key) as changed:
            while True:
                current = self._cache.memory().view.snapshot.pods.get((pod.namespace, pod.name))
                same = current is not None and current.uid in ("", pod.uid)
                if current is not None and same and current.node_name:
                    return current.node_name
                if (seen and not same) or (current is not None and not same):
                    return ""
                seen = same
                await changed.wait()
                changed.clear()

    def _reserve(self, pod: Pod, node: str) -> None:
        if self._settings().node_reservation_timeout <= 0:
            return
        task = asyncio.create_task(self._await_replicas(pod, node))
        self._arrivals[task] = node
        task.add_done_callback(lambda done: self._arrivals.pop(done, None))

    async def _await_replicas(self, pod: Pod, node: str) -> None:
        started = self._clock()
        listed = False
        try:
            async with asyncio.timeout(self._settings().node_reservation_timeout):
                await self._listed(pod, node)
                listed = True
        except TimeoutError:
            log.warning("replicas not listed in time, node no longer reserved", pod=pod.key, uid=pod.uid, node=node)
        finally:
            self._metrics.node_reservation(self._clock() - started, listed=listed)

    async def _listed(self, pod: Pod, node: str) -> None:
        with self._cache.listening(("longhorn_nodes", node)) as changed:
            while True:
                try:
                    if not awaited_volumes(pod, node, self._cache.memory().view):
                        return
                except ResolutionError as error:
                    log.debug("cannot tell yet what is awaited", pod=pod.key, problem=str(error))
                await changed.wait()
                changed.clear()


async def _still_there(hung_up: HungUp) -> None:
    if await hung_up():
        raise CallerGoneError


def _identity(pod: Pod) -> str:
    return pod.uid or pod.key


def _takes_space(decision: Decision) -> bool:
    fitting = {reason for reason in decision.reasons if reason.fits}
    return bool(fitting - _TAKES_NOTHING)
