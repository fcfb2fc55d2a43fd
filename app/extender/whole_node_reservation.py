"""`reservation: node`: step 5 of Longhorn's scheduler-extender proposal, to the letter.

    request → wait for the write lock → evaluate, reserved nodes refused → answer
            → the lock stays held until the pod has spec.nodeName, or the pod-scheduling time-out
            → if it has: the node is reserved until Longhorn lists all its replicas, or the node-reservation time-out

Pods without Longhorn volumes, pods that return to their replicas, and pods refused everywhere take nothing, so no other pod waits for
them. A pod-scheduling time-out of 0 switches everything off, because without waiting no placement is seen. A node-reservation
time-out of 0 switches off the second half only. Where the proposal is silent: a new request for the same pod, or its deletion, ends
the wait, because kube-scheduler has given up that attempt; and a caller that has hung up leaves nothing behind.

A new leader reads from the cluster what the previous leader held in memory (`adopt`). For `ADOPTED_SECONDS` after that it keeps more
than the proposal says: nodes stay reserved for that long, and so does the node chosen for a pod that was not bound in time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from app.evaluator import Evaluator, LiveStateSource
from app.extender.metrics import Metrics
from app.runtime import probes, wait_at_most
from scheduler_core.decide.decision import NO_SCORES, Contenders, Decision
from scheduler_core.decide.extender_settings import ExtenderSettings
from scheduler_core.errors import ResolutionError
from scheduler_core.model.kube import Pod, is_same_pod
from scheduler_core.offers.handover_record import HandoverRecord
from scheduler_core.volumes import decided_pods

log = structlog.get_logger("reservation")

# Binding, provisioning and attaching take longer than the API server needs to come back. So the previous leader's decisions are
# remembered for this long at least, and so is what is decided this long after a take-over.
ADOPTED_SECONDS = 60.0
# How late a replica may be noticed that the node listed before this process was notified.
_RECHECK_INTERVAL = 0.25


class NodeReservations:
    """Owner of the write lock and of the reserved nodes. A request that is being decided holds the lock, and after it
    the wait for its pod, which releases the lock however it ends. A callback notices the end of that task, because a
    task that is cancelled before its first step runs no code of its own.
    """

    def __init__(
        self,
        cache: LiveStateSource,
        evaluator: Evaluator,
        settings: Callable[[], ExtenderSettings],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._lock = asyncio.Lock()
        # For each pod the wait for its binding, then, with a node, that for its replicas there.
        self._waits: dict[asyncio.Task[str], tuple[Pod, str]] = {}
        self._recovers_until = 0.0
        # Counts leaderships: a wait of an earlier one is not counted, because this process did not see its end.
        self._generation = 0

    def reserved_nodes(self) -> frozenset[str]:
        return frozenset(node for _, node in self._waits.values() if node)

    def contenders(self) -> Contenders:
        return self.reserved_nodes()

    async def decide(
        self, pod: Pod, candidates: Sequence[str], hung_up: probes.HungUp, scores: Mapping[str, int] = NO_SCORES
    ) -> Decision:
        """Decides as `Decider.decide`, once the lock is free. If the pod takes space, the lock stays held until the pod is
        bound. `hung_up` is checked once the lock is held, and again before anything is reserved.
        """
        del scores  # every node that fits is returned
        if not pod.volumes:
            return await self._evaluator.decide(pod, candidates)
        if not await self._evaluator.has_pod(pod):
            return await self._evaluator.decide(pod, candidates, self.contenders)
        self._end_waits(pod)
        await self._lock.acquire()
        try:
            await probes.check_caller(hung_up)
            decision = await self._evaluator.decide(pod, candidates, self.contenders)
            waits = self._settings().pod_scheduling_timeout > 0 and decision.takes_space
            if waits:
                await probes.check_caller(hung_up)
        except BaseException:
            self._lock.release()
            raise
        if waits:
            self._start_wait(pod, "", self._settings().pod_scheduling_timeout)
        else:
            self._lock.release()
        return decision

    async def preempt(self, pod: Pod, candidates: Sequence[str]) -> Decision:
        """Decides where preemption could help; nothing is reserved until /filter."""
        return await self._evaluator.decide(pod, candidates, self.contenders)

    async def adopt(self, undisturbed: float, record: HandoverRecord | None = None) -> None:
        """Reserves the nodes that the cluster shows as the previous leader's decisions, longer than usual: after
        whatever ended that leader, provisioning and attaching may take their time too.
        """
        del undisturbed, record  # the proposal's lock lets one pod at a time be undecided
        view = self._cache.state().view
        required = self._evaluator.options.require_best_effort
        self._recovers_until = self._clock() + ADOPTED_SECONDS
        for pod, node in (
            *decided_pods.pods_awaiting_replicas(view, require_best_effort=required),
            *decided_pods.decided_pods(view),
        ):
            self._reserve(pod, node)
        log.info("adopted", reserved=sorted(self.reserved_nodes()))

    async def settle(self) -> bool:
        async with self._lock:
            return True

    def clear(self) -> None:
        """Forgets everything: another process leads."""
        self._generation += 1
        for task in self._waits:
            task.cancel()

    def _end_waits(self, pod: Pod) -> None:
        # kube-scheduler has given up the attempt for a pod that it requests again.
        for task, (owner, _) in list(self._waits.items()):
            if _identity(owner) == _identity(pod):
                del self._waits[task]
                task.cancel()

    def _start_wait(self, pod: Pod, node: str, seconds: float) -> None:
        """Waits for the replicas on a node, or without one for the binding, after which the lock is released."""
        started = self._clock()
        generation = self._generation
        name = f"replicas of {pod.key}" if node else f"decision about {pod.key}"

        def on_end(task: asyncio.Task[str]) -> None:
            self._waits.pop(task, None)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                log.error("a wait failed", task=task.get_name(), exc_info=error)
            # A wait that was cancelled, or failed, which must not happen, has no outcome.
            outcome = "" if task.cancelled() or error is not None else task.result()
            forgotten = generation != self._generation
            waited = self._clock() - started
            if node and not forgotten:
                self._metrics.node_reservation(waited, listed=bool(outcome))
            if not node and not forgotten:
                self._metrics.pod_scheduling_wait(waited, scheduled=bool(outcome))
                self._reserve(pod, outcome or self._decided_node(pod))
            if not node:
                self._lock.release()

        task = asyncio.create_task(self._wait(pod, node, seconds), name=name)
        self._waits[task] = pod, node
        task.add_done_callback(on_end)

    async def _wait(self, pod: Pod, node: str, seconds: float) -> str:
        try:
            async with asyncio.timeout(seconds):
                return await (self._listing_node(pod, node) if node else self._binding_node(pod))
        except TimeoutError:
            if node:
                log.warning("replicas not listed in time, node no longer reserved", pod=pod.key, uid=pod.uid, node=node)
            else:
                log.warning("pod not scheduled in time", pod=pod.key, uid=pod.uid)
            return ""

    async def _binding_node(self, pod: Pod) -> str:
        key = (pod.namespace, pod.name)
        seen = False
        with self._cache.listening(("pods", key)) as changed:
            while True:
                current = self._cache.state().view.snapshot.pods.get(key)
                same = is_same_pod(current, pod)
                if current is not None and same and current.node_name:
                    return current.node_name
                # The cache may be behind kube-scheduler: another pod of its name is its predecessor until the pod
                # itself was seen.
                if seen and not same:
                    return ""
                seen = same
                await changed.wait()
                changed.clear()

    @property
    def _recovers(self) -> bool:
        """Whether the cluster may still be slow after whatever made this process take over."""
        return self._clock() < self._recovers_until

    def _decided_node(self, pod: Pod) -> str:
        """Returns the node chosen for a pod that was not bound in time, "" unless this process took over lately."""
        view = self._cache.state().view
        current = view.snapshot.pods.get((pod.namespace, pod.name))
        if not self._recovers or current is None or _identity(current) != _identity(pod):
            return ""
        return decided_pods.decided_node(current, view)

    def _reserve(self, pod: Pod, node: str) -> None:
        seconds = float(self._settings().node_reservation_timeout)
        if node and seconds > 0:
            self._start_wait(pod, node, max(seconds, ADOPTED_SECONDS) if self._recovers else seconds)

    async def _listing_node(self, pod: Pod, node: str) -> str:
        """Returns the node once no replica is awaited there, "" if the pod is bound elsewhere."""
        required = self._evaluator.options.require_best_effort
        with self._cache.listening(("longhorn_nodes", node)) as changed:
            while True:
                view = self._cache.state().view
                current = view.snapshot.pods.get((pod.namespace, pod.name))
                if current is not None and decided_pods.decided_node(current, view) not in ("", node):
                    # The node may have been chosen only.
                    return ""
                try:
                    if not decided_pods.unlisted_volumes(pod, node, view, require_best_effort=required):
                        return node
                except ResolutionError as error:
                    log.debug("cannot tell yet what is awaited", pod=pod.key, problem=str(error))
                # Claims, volumes and replicas matter too, in any order.
                await wait_at_most(changed, _RECHECK_INTERVAL)
                changed.clear()


def _identity(pod: Pod) -> str:
    return pod.uid or pod.key
