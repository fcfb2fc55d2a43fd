"""Takes pods off the queue, decides, assumes, binds.

    seen by the cluster → queue → decide → no node: an Event and a condition say why, back-off → again when something changes that may help
                                         → a node: assumed there, so that the next pod is decided beside it → bound, in a task of its own
                                           → bound: an Event; the watch shows it there → refused: the assumption is forgotten, back-off

One pod is decided at a time, in slices, so that the event loop goes on; a node that has changed meanwhile is decided about again.
Nothing of this needs to outlive the process: what waits and what is bound is read off the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeVar

import structlog

from app.kube.client import KubeClient
from app.kube.reflector import Timing
from app.policy.file import PolicyFile
from app.scheduler.binder import Binder
from app.scheduler.cache import Cluster
from app.scheduler.decide import decide
from app.scheduler.event_recorder import Recorder
from app.scheduler.longhorn_cache import LiveLonghorn, bound_pods
from app.scheduler.metrics import ERROR, SCHEDULED, UNSCHEDULABLE, SchedulerMetrics
from app.scheduler.policy_sources import Rules, Sources
from app.scheduler.scheduling_queue import Queue
from app.scheduler.wording import message
from scheduler_core.cluster.update import Changes
from scheduler_core.convert.binding import Applicant
from scheduler_core.convert.pod_patch import POD_REASON_SCHEDULER_ERROR, POD_REASON_UNSCHEDULABLE
from scheduler_core.cooperative import Steps
from scheduler_core.errors import ResolutionError
from scheduler_core.generic.policy import Policy
from scheduler_core.generic.scheduler import Choose, Decision
from scheduler_core.model.generic import PodKey

log = structlog.get_logger("scheduler")

SLICE_SECONDS: Final = 0.005
_ATTEMPTS: Final = 3
_BINDINGS_AT_ONCE: Final = 20
_LOOK_SECONDS: Final = 1.0
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a scheduler is told.

    Attributes:
        name: pods with this spec.schedulerName are its own
        policy: in force without a file
        choose: picks one of equally good nodes
        stale_after: seconds without a word from the API server, after which nothing is decided
        file: whose policy is in force, and is looked at again
    """

    name: str
    policy: Policy
    choose: Choose
    stale_after: float
    file: PolicyFile | None = None


class GenericScheduler:
    """Owner of queue and cluster; works while it is active, and the fence `may` is open. `longhorn`: see `Sources`."""

    def __init__(  # noqa: PLR0913, PLR0917 # the parts it connects
        self,
        client: KubeClient,
        setup: Setup,
        timing: Timing,
        may: Callable[[], bool],
        recorder: Recorder,
        metrics: SchedulerMetrics,
        longhorn: Callable[[], LiveLonghorn] | None = None,
    ) -> None:
        self._setup = setup
        self._clock = timing.clock
        self._fence = may
        self._recorder = recorder
        self._metrics = metrics
        self._binder = Binder(client, self._may)
        self._queue = Queue()
        self._cluster = Cluster(client, setup.name, self, timing, stale_after=setup.stale_after)
        self._rules = Rules(setup.policy, setup.file, Sources(self._cluster, longhorn))
        self._active = False
        self._news = False
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(_BINDINGS_AT_ONCE)
        self._binding = 0
        self._still = asyncio.Event()
        self._still.set()
        self._deciding = asyncio.Lock()
        recorder.count(metrics.write_failed)
        if setup.file is not None:
            setup.file.tell(metrics.policy_reloaded)
        metrics.gauge(
            "policy_pending",
            "Whether a newer policy waits until what it reads is known",
            lambda: float(self._rules.pending),
        )
        metrics.gauge("waiting_pods", "Pods that want a node", lambda: len(self._queue))
        metrics.gauge(
            "assumed_pods",
            "Pods that were bound and are not seen on their node yet",
            lambda: len(self._cluster.assumed),
        )

    async def run(self) -> None:
        """Schedules until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rules.run(self.helped))
            tasks.create_task(self._recorder.run())
            while True:
                self._pass_on()
                able = self._may() and not self.problem
                found = self._queue.pop(self._clock()) if able else None
                if found is None:
                    await self._pause(self._queue.next_at() if able else None)
                    continue
                async with self._deciding:
                    await self._try(found, tasks)

    @property
    def problem(self) -> str:
        """Why nothing can be decided now; "" if it can."""
        return self._rules.problem

    async def catch_up(self) -> None:
        """Returns once everything that has happened before this call is known."""
        await self._rules.catch_up()

    def activate(self) -> None:
        """This process schedules from now on."""
        self._active = True
        self._wake.set()

    def deactivate(self) -> None:
        """This process schedules no more; what is being bound goes on, as far as the fence lets it."""
        self._active = False
        self._recorder.retire()

    async def settled(self) -> None:
        """After `deactivate`: returns once nothing is being bound any more, and every Event is written."""
        async with self._deciding:
            pass
        await self._still.wait()
        await self._recorder.written()

    def wants(self, applicant: Applicant) -> None:
        """Called by the cluster."""
        self._queue.put(applicant, self._clock())
        self._wake.set()

    def settled_pod(self, key: PodKey) -> None:
        """Called by the cluster."""
        self._queue.discard(key)

    def helped(self) -> None:
        """Called by the cluster, a thousand times a second if need be: the queue is told once per turn."""
        self._news = True
        self._wake.set()

    def _may(self) -> bool:
        return self._active and self._fence()

    def _pass_on(self) -> None:
        if self._news:
            self._news = False
            self._queue.hurry(self._clock())

    def _put_back(self, key: PodKey) -> None:
        self._pass_on()  # what helped during the attempt must not be missed
        self._queue.failed(key, self._clock())

    async def _pause(self, due: float | None) -> None:
        """Returns once a pod is due, or something has happened; at the latest after a while, for the fence opens without a word."""
        seconds = _LOOK_SECONDS if due is None else min(_LOOK_SECONDS, max(0.0, due - self._clock()))
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _try(self, found: Applicant, tasks: asyncio.TaskGroup) -> None:
        key, began = found.pod.key, self._clock()
        for _ in range(_ATTEMPTS):
            before = self._cluster.state
            decision, why = None, ""
            try:
                decision = await self._decide(found)
            except ResolutionError as error:
                why = str(error)
            if not self._queue.wanted(found) or not self._may():
                self._put_back(key)  # it has changed, and comes again, or is gone
                return
            if decision is None or not decision.node:
                self._refuse(found, message(decision) if decision else why)
                return
            if self._cluster.state.nodes.get(decision.node) is before.nodes.get(decision.node):
                self._metrics.decided(self._clock() - began)
                self._bind(found, decision, tasks)
                return
        self._put_back(key)

    async def _decide(self, found: Applicant) -> Decision:
        (policy, longhorn), facts = self._rules.now(), None
        if longhorn is not None:
            await longhorn.look(found)
            facts = longhorn.facts(found, self._assumed())
        return await _in_slices(decide(found.pod, self._cluster.state, policy, self._setup.choose, facts))

    def _assumed(self) -> Changes:
        seen = ((self._cluster.seen(key), node) for key, node in self._cluster.assumed.items())
        return bound_pods((entry.mounts, node) for entry, node in seen if entry is not None)

    def _refuse(self, found: Applicant, why: str) -> None:
        self._metrics.attempt(UNSCHEDULABLE)
        self._put_back(found.pod.key)
        self._recorder.not_scheduled(found.pod, POD_REASON_UNSCHEDULABLE, why)
        log.info("unschedulable", pod="/".join(found.pod.key), why=why)

    def _bind(self, found: Applicant, decision: Decision, tasks: asyncio.TaskGroup) -> None:
        self._cluster.assume(found, decision.node)
        self._binding += 1
        self._still.clear()
        tasks.create_task(self._bound(found, decision.node), name=f"bind {'/'.join(found.pod.key)}")

    async def _bound(self, found: Applicant, node: str) -> None:
        name = "/".join(found.pod.key)
        try:
            async with self._slots:
                problem = await self._binder.bind(found, node)
            if problem:
                self._metrics.attempt(ERROR)
                log.warning("not bound", pod=name, node=node, problem=problem)
                self._unbound(found, node, problem)
                return
            self._metrics.attempt(SCHEDULED)
            if self._queue.wanted(found):
                self._queue.discard(found.pod.key)
            self._recorder.tell(found.pod, "Scheduled", f"Successfully assigned {name} to {node}", normal=True)
            log.info("bound", pod=name, node=node)
        finally:
            self._binding -= 1
            if not self._binding:
                self._still.set()

    def _unbound(self, found: Applicant, node: str, problem: str) -> None:
        """What the watch told of the pod meanwhile was not passed on, because it counted as bound."""
        key = found.pod.key
        self._pass_on()
        self._cluster.forget(found)
        self._news = (
            False  # its room is free again, which helps others; the pod itself was not refused for want of room
        )
        seen = self._cluster.seen(key)
        if seen is None or seen.pod.uid != found.pod.uid:  # of a successor's attempts this one knows nothing
            self._queue.hurry(self._clock())
            return
        self._queue.hurry(self._clock(), besides=key)
        self._queue.failed(key, self._clock())
        if self._cluster.wants_node(seen):
            self._queue.put(seen, self._clock())
            if self._may():
                why = f"binding to {node} failed: {problem}"
                self._recorder.not_scheduled(seen.pod, POD_REASON_SCHEDULER_ERROR, why)
        else:
            self._queue.discard(key)


async def _in_slices(steps: Steps[_Result], clock: Callable[[], float] = monotonic) -> _Result:
    """Runs a decision of the core to its end, giving the event loop a turn now and then."""
    pause_at = clock() + SLICE_SECONDS
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _Result = done.value
            return result
        if clock() >= pause_at:
            await asyncio.sleep(0)
            pause_at = clock() + SLICE_SECONDS
