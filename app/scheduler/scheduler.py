"""Takes pods off the scheduling queue, decides, assumes and binds.

    seen by the cache → queue → decide → no node: an Event and a condition say why, back-off → again, sooner after a change that may help
                                       → a node: the pod is assumed there, so that the next decision counts it → bound, in its own task
                                         → bound: an Event; the watch shows it there → not bound: the assumption is forgotten, back-off

One pod is decided at a time, in the decision thread, so that other tasks go on. If the selected node has changed meanwhile, the decision is repeated.
Nothing here needs to outlive the process: pending and bound pods are read from the cluster.
"""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from time import monotonic

import structlog

from app.kube.client import KubeClient
from app.kube.reflector import Timing
from app.policy import PolicyFile, PolicyInForce
from app.runtime import wait_at_most
from app.runtime.decision_thread import DecisionRunner, OnCallersThread
from app.scheduler.api_calls import ERROR, SCHEDULED, UNSCHEDULABLE, Binder, PodReporter, SchedulerMetrics, check_claims
from app.scheduler.cache import LonghornCache, SchedulerCache, binding_changes, kinds_required
from app.scheduler.decision import decide
from app.scheduler.scheduling_queue import SchedulingQueue
from scheduler_core import errors
from scheduler_core.convert.generic import POD_REASON_SCHEDULER_ERROR, POD_REASON_UNSCHEDULABLE, PendingPod
from scheduler_core.generic.policy import (
    Policy,
    UnsupportedMode,
    ignored_constraints,
    unsupported_constraints,
    unsupported_message,
)
from scheduler_core.generic.scheduler import FactsFor, ScheduleResult, SelectHost
from scheduler_core.model.generic import PodKey
from scheduler_core.structs import Struct, field

log = structlog.get_logger("scheduler")
policy_log = structlog.get_logger("rules")

_MAX_DECISIONS = 3
_MAX_BINDINGS_AT_ONCE = 20
POLL_INTERVAL = 1.0
# A problem may contain a number of seconds, and so differ every second.
LOG_INTERVAL = 10.0


class SchedulerConfig(Struct, frozen=True):
    """What an administrator chooses."""

    name: str  # the `spec.schedulerName` of this scheduler's pods
    policy: Policy  # the policy without a file
    select_host: SelectHost  # picks one of equally good nodes
    stale_after: float  # seconds without an answer of the API server, after which nothing is decided
    file: PolicyFile | None = None  # the policy file, which is read again when it changes
    unsupported: UnsupportedMode = UnsupportedMode.REFUSE  # what becomes of constraints that the policy does not read


class SchedulerParts(Struct, frozen=True):
    """What a scheduler works with."""

    client: KubeClient
    timing: Timing  # its clock also times the back-offs
    leads: Callable[[], bool]  # whether this process leads; asked before every write
    reporter: PodReporter
    metrics: SchedulerMetrics
    new_longhorn_cache: Callable[[], LonghornCache] | None = None  # see `SchedulerCache`
    runner: DecisionRunner = field(default_factory=OnCallersThread)  # where decisions run


class GenericScheduler:
    """Owner of queue and cache; schedules while active and leading."""

    def __init__(self, config: SchedulerConfig, parts: SchedulerParts) -> None:
        self._config = config
        self._clock = parts.timing.clock
        self._leads = parts.leads
        self.reporter = parts.reporter
        self.metrics = parts.metrics
        self._binder = Binder(parts.client, self._may_write)
        self._client = parts.client
        self.queue = SchedulingQueue()
        self.cache = SchedulerCache(
            parts.client,
            config.name,
            self._take_pod,
            self._note_change,
            parts.timing,
            stale_after=config.stale_after,
            new_longhorn_cache=parts.new_longhorn_cache,
        )
        self.policy_in_force = PolicyInForce(config.file, self.cache, config.policy, kinds_required)
        self._active = False
        self._changed = False
        self._wake = asyncio.Event()
        self._binding_slots = asyncio.Semaphore(_MAX_BINDINGS_AT_ONCE)
        self._bindings_in_progress = 0
        self._no_bindings = asyncio.Event()
        self._no_bindings.set()
        self._deciding = asyncio.Lock()
        self._runner = parts.runner
        metrics = parts.metrics
        if config.file is not None:
            config.file.subscribe(metrics.policy_reloads.count)
        metrics.add_gauge(
            "policy_pending",
            "Whether a newer policy waits until what it reads is known",
            lambda: bool(self.policy_in_force.waiting_for),
        )
        metrics.add_gauge("waiting_pods", "Pods that want a node", lambda: len(self.queue))
        metrics.add_gauge(
            "assumed_pods",
            "Pods that were bound and are not seen on their node yet",
            lambda: len(self.cache.assumed_nodes),
        )

    async def run(self) -> None:
        """Schedules until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.cache.run())
            if self._config.file is not None:
                tasks.create_task(self._config.file.run())
            tasks.create_task(self._poll_policy())
            tasks.create_task(self.reporter.run())
            while True:
                self._pass_change_on()
                can_decide = self._may_write() and not self.problem
                pending = self.queue.pop(self._clock()) if can_decide else None
                if pending is None:
                    # At the latest after the interval, because nothing wakes this task when the process gains the lead.
                    due = self.queue.next_due() if can_decide else None
                    seconds = POLL_INTERVAL if due is None else min(POLL_INTERVAL, max(0.0, due - self._clock()))
                    await wait_at_most(self._wake, seconds)
                    self._wake.clear()
                    continue
                async with self._deciding:
                    await self._schedule_one(pending, tasks)

    async def _poll_policy(self) -> None:
        """Notes a changed policy, and changes of Longhorn's objects: neither calls back."""
        last_policy = self.policy_in_force.policy
        last_version = 0
        logged = ""
        logged_at = -math.inf
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            policy = self.policy_in_force.policy
            if policy is not last_policy:
                last_policy = policy
                policy_log.info("policy in force", predicates=len(policy.predicates), priorities=len(policy.priorities))
                self._note_change()
            waiting_for = self.policy_in_force.waiting_for
            if not waiting_for:
                logged = ""
                logged_at = -math.inf
            elif waiting_for != logged and monotonic() >= logged_at + LOG_INTERVAL:
                logged_at = monotonic()
                policy_log.warning("policy not in force yet, the one before stays", problem=waiting_for)
                logged = waiting_for
            longhorn = self.cache.longhorn if policy.reads_longhorn else None
            if longhorn is not None and not self.problem and longhorn.version != last_version:
                last_version = longhorn.version
                self._note_change()

    @property
    def problem(self) -> str:
        return self.policy_in_force.problem

    async def catch_up(self) -> None:
        await self.cache.catch_up()

    def activate(self) -> None:
        self._active = True
        self._wake.set()

    def deactivate(self) -> None:
        """Stops scheduling; Bindings in progress go on while this process leads."""
        self._active = False
        self.reporter.clear_conditions()

    async def wait_until_settled(self) -> None:
        """Returns once no pod is being bound and every Event is written. Call `deactivate` first."""
        async with self._deciding:
            pass
        await self._no_bindings.wait()
        await self.reporter.wait_until_written()

    def _take_pod(self, key: PodKey, pending: PendingPod | None) -> None:
        if pending is None:
            self.queue.discard(key)
        else:
            self.queue.put(pending, self._clock())
            self._wake.set()

    def _note_change(self) -> None:
        """Notes a change that may help unschedulable pods."""
        # The queue gets the change once per attempt: there may be a thousand in a second.
        self._changed = True
        self._wake.set()

    def _may_write(self) -> bool:
        return self._active and self._leads()

    def _pass_change_on(self) -> None:
        if self._changed:
            self._changed = False
            self.queue.shorten_backoffs(self._clock())

    def _back_off(self, key: PodKey) -> None:
        # A change during the attempt must not be missed.
        self._pass_change_on()
        self.queue.back_off(key, self._clock())

    async def _schedule_one(self, pending: PendingPod, tasks: asyncio.TaskGroup) -> None:
        began = self._clock()
        for _ in range(_MAX_DECISIONS):
            before = self.cache.state()
            result: ScheduleResult | None = None
            problem = ""
            if self._config.unsupported is UnsupportedMode.REFUSE:
                unread = unsupported_constraints(pending.pod, self.policy_in_force.policy)
                problem = f"{unsupported_message(unread)}; see --unsupported-constraints" if unread else ""
            try:
                result = None if problem else await self._decide(pending)
            except errors.ResolutionError as error:
                problem = str(error)
            # The pod has changed and will be tried again, or is gone; or this process does not lead any more.
            if not self.queue.is_unchanged(pending) or not self._may_write():
                break
            if result is None or not result.node:
                why = result.message if result else problem
                self.metrics.attempts.count(UNSCHEDULABLE)
                self._back_off(pending.pod.namespaced_name)
                self.reporter.record_failure(pending.pod, POD_REASON_UNSCHEDULABLE, why)
                log.info("unschedulable", pod=pending.pod.key, why=why)
                return
            # The decision ran in a thread of its own: if its node changed meanwhile, the pod may not fit there any more.
            if self.cache.state().nodes.get(result.node) is before.nodes.get(result.node):
                self.metrics.decision_seconds.observe(self._clock() - began)
                self._warn_about_constraints(pending, result.node)
                self.cache.assume(pending, result.node)
                self._bindings_in_progress += 1
                self._no_bindings.clear()
                tasks.create_task(self._bind(pending, result.node), name=f"bind {pending.pod.key}")
                return
        self._back_off(pending.pod.namespaced_name)

    async def _decide(self, pending: PendingPod) -> ScheduleResult:
        policy = self.policy_in_force.policy
        longhorn = self.cache.longhorn if policy.reads_longhorn else None
        facts_for: FactsFor | None = None
        await check_claims(self._client, pending.pod)
        if longhorn is not None:
            await longhorn.fetch_missing(pending)
            assumed = ((self.cache.pod(key), node) for key, node in self.cache.assumed_nodes.items())
            changes = binding_changes((known.pod, node) for known, node in assumed if known is not None)
            facts_for = longhorn.facts_for(pending, changes)
        config = self._config
        return await self._runner.run(
            partial(decide, pending.pod, self.cache.state(), policy, config.select_host, facts_for, config.unsupported)
        )

    def _warn_about_constraints(self, pending: PendingPod, node: str) -> None:
        if self._config.unsupported is not UnsupportedMode.WARN:
            return
        constraints = ignored_constraints(pending.pod, node, self.cache.state(), self.policy_in_force.policy)
        if constraints:
            why = unsupported_message(constraints)
            self.reporter.record(pending.pod, "UnsupportedConstraints", why, normal=False)
            log.warning("constraints ignored", pod=pending.pod.key, node=node, why=why)

    async def _bind(self, pending: PendingPod, node: str) -> None:
        name = pending.pod.key
        try:
            async with self._binding_slots:
                problem = await self._binder.bind(pending, node)
            if problem:
                self.metrics.attempts.count(ERROR)
                log.warning("not bound", pod=name, node=node, problem=problem)
                self._handle_binding_failure(pending, node, problem)
                return
            self.metrics.attempts.count(SCHEDULED)
            if self.queue.is_unchanged(pending):
                self.queue.discard(pending.pod.namespaced_name)
            self.reporter.record(pending.pod, "Scheduled", f"Successfully assigned {name} to {node}", normal=True)
            log.info("bound", pod=name, node=node)
        finally:
            self._bindings_in_progress -= 1
            if not self._bindings_in_progress:
                self._no_bindings.set()

    def _handle_binding_failure(self, pending: PendingPod, node: str, problem: str) -> None:
        key = pending.pod.namespaced_name
        self._pass_change_on()
        self.cache.forget(pending)
        # The node has the pod's room again. That may help other pods, and they are retried below; the pod itself was not
        # refused for want of room, so its own back-off stays.
        self._changed = False
        current = self.cache.pod(key)
        # The queue has a later pod of the name, whose attempts have nothing to do with this one.
        if current is None or current.pod.uid != pending.pod.uid:
            self.queue.shorten_backoffs(self._clock())
            return
        self.queue.shorten_backoffs(self._clock(), except_for=key)
        self.queue.back_off(key, self._clock())
        # Changes of an assumed pod were not passed on to the queue.
        if not self.cache.needs_scheduling(current):
            self.queue.discard(key)
            return
        self.queue.put(current, self._clock())
        if self._may_write():
            why = f"binding to {node} failed: {problem}"
            self.reporter.record_failure(current.pod, POD_REASON_SCHEDULER_ERROR, why)
