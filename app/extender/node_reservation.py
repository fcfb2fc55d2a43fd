"""The scheduler-extender proposal's step 5, to the letter: one pod at a time, and a node is reserved until its replicas are listed.

    question → wait for the write lock → evaluate, reserved nodes rejected → answer
             → the lock stays held until the pod has spec.nodeName, or the pod-scheduling time-out
             → if it has: the node is reserved until Longhorn lists all its replicas, or the node-reservation time-out

Pods without Longhorn volumes, pods that return to their replicas, and pods refused everywhere take nothing, so nobody waits for
them. A pod-scheduling time-out of 0 switches everything off, because what is not waited for is not seen to be placed; a node-reservation
time-out of 0 only the second half. Where the proposal is silent: a pod that is asked about again, or deleted, is no longer waited for (kube-scheduler has given up that attempt), and a caller that has hung up leaves nothing behind.

A new leader finds in the cluster what its predecessor held in memory (`adopt`). For a minute after that (ADOPTED_SECONDS) more is kept
than the proposal says: nodes stay reserved for that long, and so does the node chosen for a pod that was not bound in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import structlog

from app.decisions.evaluator import Scheduling
from app.decisions.state_source import LiveView
from app.extender.availability import CallerGoneError, HungUp
from app.extender.metrics import Metrics
from scheduler_core.errors import ResolutionError
from scheduler_core.extender.filter import Decision, Others
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.model.kube import Pod
from scheduler_core.volumes.pending_replicas import arriving_pods, awaited_volumes, chosen_node, chosen_pods

log = structlog.get_logger("reservation")

# What a predecessor decided is remembered for this long at least; and for this long after a take-over so is what is decided then,
# because binding, provisioning and attaching come back later than the API server does.
ADOPTED_SECONDS: Final = 60.0
# How late a replica may be noticed that the node listed before this process heard of it.
_LOOK_AGAIN_SECONDS: Final = 0.25
_Result = TypeVar("_Result")


class NodeReservations:
    """Owner of the write lock and of the reserved nodes.

    The lock is held by a question that is being decided, and after it by the wait for its pod: it is released when that is
    over, however it ends. A task's end is noticed by a callback, because a task that is cancelled before its
    first step runs nothing of its own.
    """

    def __init__(
        self,
        cache: LiveView,
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
        self._waits: dict[asyncio.Task[str], Pod] = {}
        self._arrivals: dict[asyncio.Task[bool], tuple[Pod, str]] = {}
        self._recovers_until = 0.0
        self._forgotten: set[asyncio.Task[str] | asyncio.Task[bool]] = set()

    def reserved(self) -> frozenset[str]:
        """The nodes that take no new volumes now."""
        return frozenset(node for _, node in self._arrivals.values())

    def others(self) -> Others:
        """What counts beside a pod that is asked about now."""
        return Others(self.reserved())

    async def filter(self, pod: Pod, candidates: Sequence[str], hung_up: HungUp) -> Decision:
        """Decides about a pod when its turn has come, and begins to wait for what becomes of it.

        Args:
            pod: as kube-scheduler sent it
            candidates: the names of the nodes asked about
            hung_up: asked when the turn has come and again before anything is promised; may raise to refuse the question

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
            CallerGoneError: the caller did not wait
        """
        if not pod.volumes:
            return await self._scheduling.filter(pod, candidates)
        self._give_up(pod)
        await self._lock.acquire()
        try:
            await _still_there(hung_up)
            decision = await self._scheduling.filter(pod, candidates, self.others)
            waits = self._settings().pod_scheduling_timeout > 0 and decision.takes_space
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

    async def adopt(self, undisturbed: float) -> None:
        """Reserves what a predecessor had reserved, and the nodes chosen for the pods it was waiting for, as far as the cluster tells.

        Longer than usual: after whatever ended the predecessor, provisioning and attaching may take their time too.
        """
        del undisturbed  # the proposal's lock lets one pod at a time be undecided
        view = self._cache.memory().view
        required = self._scheduling.options.require_best_effort
        self._recovers_until = self._clock() + ADOPTED_SECONDS
        for pod, node in (*arriving_pods(view, require_best_effort=required), *chosen_pods(view)):
            self._reserve(pod, node)
        log.info("adopted", reserved=sorted(self.reserved()))

    async def settled(self) -> None:
        """Returns once no pod is waited for."""
        async with self._lock:
            return

    def clear(self) -> None:
        """Forgets everything: somebody else leads. What was waited for is not counted, because nobody saw how it ended."""
        forgotten: list[asyncio.Task[str] | asyncio.Task[bool]] = [*self._waits, *self._arrivals]
        self._forgotten.update(forgotten)
        for task in forgotten:
            task.cancel()

    def _give_up(self, pod: Pod) -> None:
        """The pod is asked about again: kube-scheduler has given up the attempt that is waited for, or was adopted."""
        for task, waiting in self._waits.items():
            if _identity(waiting) == _identity(pod):
                task.cancel()
        for arriving, (whose, _) in list(self._arrivals.items()):
            if _identity(whose) == _identity(pod):
                del self._arrivals[arriving]
                arriving.cancel()

    def _hold_for(self, pod: Pod) -> None:
        """Keeps the lock, held by the caller, until the pod is decided."""
        started = self._clock()
        task = asyncio.create_task(self._await_decision(pod), name=f"decision about {pod.key}")
        self._waits[task] = pod
        task.add_done_callback(lambda done: self._decided(done, started))

    def _decided(self, task: asyncio.Task[str], started: float) -> None:
        """The wait for a pod is over; the lock is free."""
        pod = self._waits.pop(task)
        node = _result(task) or ""
        if task in self._forgotten:
            self._forgotten.discard(task)
        else:
            self._metrics.pod_scheduling_wait(self._clock() - started, scheduled=bool(node))
            if not node and self._recovers:
                node = self._chosen(pod)
            if node:
                self._reserve(pod, node)
        self._lock.release()

    async def _await_decision(self, pod: Pod) -> str:
        """The node the pod is bound to; "" if it was deleted, or not bound in time."""
        try:
            async with asyncio.timeout(self._settings().pod_scheduling_timeout):
                return await self._node_of(pod)
        except TimeoutError:
            log.warning("pod not scheduled in time", pod=pod.key, uid=pod.uid)
            return ""

    async def _node_of(self, pod: Pod) -> str:
        """The node the pod is bound to, as soon as it is; "" if it was deleted.

        Another pod of its name is its predecessor, as long as the pod itself was not seen: the cache may be behind kube-scheduler.
        """
        key = (pod.namespace, pod.name)
        seen = False
        with self._cache.listening(("pods", key)) as changed:
            while True:
                current = self._cache.memory().view.snapshot.pods.get(key)
                same = current is not None and (not pod.uid or current.uid == pod.uid)
                if current is not None and same and current.node_name:
                    return current.node_name
                if seen and not same:
                    return ""
                seen = same
                await changed.wait()
                changed.clear()

    @property
    def _recovers(self) -> bool:
        """Whether the cluster may still be slow after whatever made this process take over."""
        return self._clock() < self._recovers_until

    def _chosen(self, pod: Pod) -> str:
        """The node kube-scheduler has chosen for a pod it could not bind in time; "" if it has not, or the pod is another."""
        view = self._cache.memory().view
        current = view.snapshot.pods.get((pod.namespace, pod.name))
        return chosen_node(current, view) if current is not None and _identity(current) == _identity(pod) else ""

    def _reserve(self, pod: Pod, node: str) -> None:
        seconds: float = self._settings().node_reservation_timeout
        if seconds <= 0:
            return
        if self._recovers:
            seconds = max(seconds, ADOPTED_SECONDS)
        started = self._clock()
        task = asyncio.create_task(self._await_replicas(pod, node, seconds), name=f"replicas of {pod.key}")
        self._arrivals[task] = pod, node
        task.add_done_callback(lambda done: self._arrived(done, started))

    def _arrived(self, task: asyncio.Task[bool], started: float) -> None:
        """A wait for replicas is over; the node is free again."""
        self._arrivals.pop(task, None)
        listed = bool(_result(task))
        if task in self._forgotten:
            self._forgotten.discard(task)
        else:
            self._metrics.node_reservation(self._clock() - started, listed=listed)

    async def _await_replicas(self, pod: Pod, node: str, seconds: float) -> bool:
        """Whether Longhorn listed all of the pod's local volumes on the node in time."""
        try:
            async with asyncio.timeout(seconds):
                return await self._listed(pod, node)
        except TimeoutError:
            log.warning("replicas not listed in time, node no longer reserved", pod=pod.key, uid=pod.uid, node=node)
            return False

    async def _listed(self, pod: Pod, node: str) -> bool:
        """True once nothing is awaited; False if the pod went elsewhere, as one may whose node was only chosen.

        Looks again now and then: claims, volumes and replicas matter too, in any order.
        """
        required = self._scheduling.options.require_best_effort
        with self._cache.listening(("longhorn_nodes", node)) as changed:
            while True:
                view = self._cache.memory().view
                current = view.snapshot.pods.get((pod.namespace, pod.name))
                if current is not None and chosen_node(current, view) not in ("", node):
                    return False
                try:
                    if not awaited_volumes(pod, node, view, require_best_effort=required):
                        return True
                except ResolutionError as error:
                    log.debug("cannot tell yet what is awaited", pod=pod.key, problem=str(error))
                try:
                    async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    continue
                changed.clear()


def _result(task: asyncio.Task[_Result]) -> _Result | None:
    """What a task that has ended returned; None if it was cancelled, or failed, which must not happen."""
    if task.cancelled():
        return None
    error = task.exception()
    if error is not None:
        log.error("a wait failed", task=task.get_name(), exc_info=error)
        return None
    return task.result()


async def _still_there(hung_up: HungUp) -> None:
    if await hung_up():
        raise CallerGoneError


def _identity(pod: Pod) -> str:
    return pod.uid or pod.key
