"""What the stand-alone scheduler writes: Bindings, Events about pods, the condition PodScheduled; and its metrics.

A claim whose class waits for its first consumer gets the selected node before its pod is bound, because it is not provisioned otherwise.
Provisioning is not waited for; the kubelet does that. While a claim is provisioned for the node of a different pod that mounts it, no pod
is bound to another node.

A Binding carries the pod's UID and the API server accepts one per pod. So a pod is never bound twice, whichever process tries, and
the same Binding may be repeated. Without an answer it is repeated a few times: a pod that is read without a node proves little,
because the API server may still be working on the Binding. The pod counts on its node until the answer is definite, or until no
request can be in work any more.

A pod's claims are checked before a node is selected. A pod whose claim does not exist can run nowhere. kube-scheduler checks claims first, too (VolumeBinding, PreFilter).
Without the check each attempt would fail while the pod is bound, for a different node each time.

`kubectl describe` shows the condition of an unschedulable pod, and a cluster autoscaler reads it. It is written only when it differs.
The pod is read first, so that the condition of a pod that was bound meanwhile, by whichever scheduler, is never touched. Binding makes
the condition True, which the API server does itself.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from time import monotonic

import prometheus_client
import structlog

from app.kube.client import STRATEGIC_MERGE_PATCH, ApiError, KubeClient, pages
from app.kube.resources import CLAIMS, PODS, STORAGE_CLASSES
from app.runtime.event_recorder import EVENT, ApiDispatcher, EventRecorder
from app.runtime.probes import BUCKETS, LabelledCounter
from app.settings import LOADED, REFUSED
from scheduler_core import caches, errors
from scheduler_core.backoff import Backoff
from scheduler_core.convert import generic, kube
from scheduler_core.model.kube import Pod
from scheduler_core.structs import Struct

log = structlog.get_logger("binding")

_BACKOFF = Backoff(0.25, 5.0)
# After this long kube-apiserver gives up any request (--request-timeout).
REQUEST_TIMEOUT = 60.0
_MAX_ATTEMPTS = 4
# With these answers the API server has finished a request: it failed, or there were too many.
_FINISHED_STATUSES = frozenset({429, 500})
_BOUND_PODS_QUERY = {"fieldSelector": "spec.nodeName!="}
_POD_GONE = "the pod is gone"

_ClaimKey = tuple[str, str]


class _BindingAttempt(Struct, frozen=True, eq=False):
    """A pod that is being bound, from before its claims are read."""

    pod: Pod
    node: str


class Binder:
    """Writes Bindings while this process leads.

    Args:
        leads: whether this process leads; asked right before each write
    """

    def __init__(self, client: KubeClient, leads: Callable[[], bool]) -> None:
        self._client = client
        self._leads = leads
        self._attempts: defaultdict[_ClaimKey, list[_BindingAttempt]] = defaultdict(list)

    async def bind(self, pending: generic.PendingPod, node: str) -> str:
        """Binds a pod; returns why that failed, "" if it did not."""
        attempt = _BindingAttempt(pending.pod, node)
        claims = sorted({(pending.pod.namespace, volume.claim) for volume in pending.pod.volumes})
        # Before anything is read, and all at once: a later attempt sees this one, and two attempts never wait for each other.
        conflicts: dict[_ClaimKey, _BindingAttempt | None] = {}
        for claim in claims:
            conflicts[claim] = next((each for each in self._attempts[claim] if each.node != node), None)
            self._attempts[claim].append(attempt)
        try:
            # Before the pod is bound: a claim whose class waits for its first consumer is not provisioned otherwise.
            for claim, conflict in conflicts.items():
                await self._select_node(claim, attempt, conflict)
            if not self._leads():
                return "this process does not lead any more"
            failure = await self._post(pending.pod, node)
            if failure is None or not failure.unreachable:
                return str(failure or "")
            log.warning("not known yet whether a pod was bound", pod=pending.pod.key, node=node, problem=str(failure))
            return await self._find_outcome(pending.pod, node, failure)
        except errors.CoreError as error:
            return str(error)
        finally:
            for claim in claims:
                self._attempts[claim].remove(attempt)
                if not self._attempts[claim]:
                    del self._attempts[claim]

    async def _post(self, pod: Pod, node: str) -> ApiError | None:
        try:
            await self._client.create(PODS.path(pod.namespace, pod.name, "binding"), generic.binding(pod, node))
        except ApiError as error:
            return error
        return None

    async def _find_outcome(self, pod: Pod, node: str, error: ApiError) -> str:
        """Repeats a Binding until its result is known; returns as `bind`, or raises a CoreError."""
        attempts = 1
        in_work_until = _end_of_work(error)
        for pauses in count():
            bound_to = await self._read_node(pod)
            if bound_to:
                return "" if bound_to == node else f"it was bound to {bound_to} meanwhile"
            may_retry = error.unreachable and attempts < _MAX_ATTEMPTS
            # From now on the pod shows the final result.
            is_over = not error.unreachable or (not may_retry and monotonic() >= in_work_until)
            # A process that does not lead any more must not repeat the Binding, and decides nothing from what it assumes.
            if bound_to is not None and (is_over or not self._leads()):
                return str(error)
            await asyncio.sleep(_BACKOFF.delay(pauses))
            if bound_to is not None and may_retry and self._leads():
                retry_error = await self._post(pod, node)
                if retry_error is None:
                    return ""
                error = retry_error
                attempts += 1
                in_work_until = max(in_work_until, _end_of_work(error))
        raise AssertionError("the loop ends when the result is known")

    async def _read_node(self, pod: Pod) -> str | None:
        """Returns the pod's node, "" if it has none, None if the API server does not answer."""
        # A pod that is gone, or cannot be read, is a CoreError.
        try:
            current = generic.pending_pod(await self._client.get(PODS.path(pod.namespace, pod.name)))
        except ApiError as error:
            if error.unreachable:
                return None
            raise errors.CoreError(_POD_GONE if error.not_found else str(error)) from error
        if current.pod.uid != pod.uid:
            raise errors.CoreError(_POD_GONE)
        return current.pod.node_name

    async def _select_node(self, key: _ClaimKey, attempt: _BindingAttempt, conflict: _BindingAttempt | None) -> None:
        """Selects the node of a claim that waits for its first consumer, or raises a CoreError."""
        path = CLAIMS.path(*key)
        claim = kube.CLAIM.decode(await self._client.get(path))
        class_name = claim.spec.storage_class
        if claim.spec.volume_name or not class_name:
            return
        storage_class = kube.STORAGE_CLASS.decode(await self._client.get(STORAGE_CLASSES.path(name=class_name)))
        if not storage_class.waits_for_consumer:
            return
        if conflict is not None:
            raise _claim_conflict(key, conflict.node, conflict.pod.key)
        if claim.selected_node == attempt.node:
            return
        if claim.selected_node:
            await self._check_no_consumer(key, claim.selected_node, attempt.pod)
        if self._leads():
            await self._client.patch(path, generic.selected_node_patch(attempt.node))

    async def _check_no_consumer(self, claim: _ClaimKey, selected_node: str, pod: Pod) -> None:
        """Raises a CoreError if a bound pod mounts a claim whose node is selected, or if that cannot be read."""
        namespace, name = claim
        async for page in pages(self._client, PODS.path(namespace), _BOUND_PODS_QUERY):
            for raw in page.items:
                bound_pod = kube.POD.decode(raw)
                mounts = any(volume.claim == name for volume in bound_pod.volumes)
                if mounts and bound_pod.node_name and bound_pod.live and bound_pod.uid != pod.uid:
                    raise _claim_conflict(claim, selected_node, bound_pod.key)


def _end_of_work(error: ApiError) -> float:
    """Until when the API server may still be making a Binding."""
    in_work = error.unreachable and error.status not in _FINISHED_STATUSES
    return monotonic() + REQUEST_TIMEOUT if in_work else -math.inf


def _claim_conflict(claim: _ClaimKey, node: str, pod: str) -> errors.CoreError:
    return errors.CoreError(
        f"PersistentVolumeClaim {'/'.join(claim)} is being provisioned for node {node}, because pod {pod} mounts it"
    )


# The scheduler decides about one pod at a time. If the API server is slower, binding finds out.
TIMEOUT = 2.0
# A pod with more claims is checked while it is bound.
MAX_CLAIMS = 16


async def check_claims(client: KubeClient, pod: Pod) -> None:
    """Returns if no claim of the pod is known to be unusable. Raises a ResolutionError if a claim does not exist, or is
    being deleted; the text is the same in every attempt.
    """
    names = sorted({volume.claim for volume in pod.volumes})[:MAX_CLAIMS]
    if not names:
        return

    async def find_problem(name: str) -> errors.ResolutionError | None:
        with suppress(ApiError, errors.ObjectError):
            raw = await client.find(CLAIMS.path(pod.namespace, name))
            if raw is None:
                return errors.MissingObjectError(CLAIMS.kind, f"{pod.namespace}/{name}", f"pod {pod.key}")
            if kube.CLAIM.decode(raw).deleting:
                deleting = f"{CLAIMS.kind} {pod.namespace}/{name} is being deleted (named by pod {pod.key})"
                return errors.ResolutionError(deleting)
        return None

    problems: list[errors.ResolutionError | None] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT):
            problems = await asyncio.gather(*map(find_problem, names))
    for problem in filter(None, problems):
        raise problem


PREFIX = "longhorn_generic_scheduler"
SCHEDULED = "scheduled"
UNSCHEDULABLE = "unschedulable"
ERROR = "error"
CONDITION = "condition"
# Some hundred bytes each; a pod that is evicted here is read once more.
_MAX_PODS = 10_000
# Other programs may keep changing the pod; the next attempt to schedule it writes the condition again.
_MAX_READS = 3


class _Condition(Struct, frozen=True):
    pod: Pod
    reason: str
    message: str


class PodReporter:
    """Writes Events about pods, and owns the condition that each unschedulable pod should have.

    Args:
        component: the scheduler's name
        clock: seconds of a clock that never goes back
        now: the time of day
        on_failure: called with EVENT or CONDITION after every write that was refused or not answered
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        on_failure: Callable[[str], None],
    ) -> None:
        self._client = client
        self._now = now
        # With limits of their own, as in kube-scheduler, Events delay no Binding.
        self._events = EventRecorder(client.with_own_limits(), component, clock, now, on_failure=on_failure)
        self._dispatcher = ApiDispatcher(CONDITION, self._write, on_failure, self._forget)
        self._latest: caches.LruMap[str, _Condition] = caches.LruMap(_MAX_PODS, on_evict=self._dispatcher.discard)

    def record(self, pod: Pod, reason: str, message: str, *, normal: bool) -> None:
        about = kube.ObjectReference(PODS.api_version, PODS.kind, pod.namespace, pod.name, pod.uid)
        self._events.record(about, reason, message, normal=normal)

    def record_failure(self, pod: Pod, reason: str, message: str) -> None:
        """Records an Event, and sets the condition, of a pod that was not scheduled."""
        text = kube.truncate_message(message)
        self.record(pod, "FailedScheduling", text, normal=False)
        condition = _Condition(pod, reason, text)
        latest = self._latest.get(pod.uid)
        if latest is None or (latest.reason, latest.message) != (reason, text):
            self._latest.put(pod.uid, condition)
            self._dispatcher.put(pod.uid, condition)

    def clear_conditions(self) -> None:
        # Attempts of a successor decide what conditions say. Events are still written: an Event reports what has happened.
        self._latest.clear()
        self._dispatcher.clear()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._events.run())
            tasks.create_task(self._dispatcher.run())

    async def wait_until_written(self) -> None:
        """Returns once everything recorded has been written or given up."""
        await self._events.wait_until_written()
        await self._dispatcher.wait_until_idle()

    async def _write(self, uid: str, condition: _Condition) -> None:
        """Writes the condition of a pod without node, if the pod exists."""
        pod = condition.pod
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for reads in count(1):
            try:
                raw = await self._client.get(PODS.path(pod.namespace, pod.name))
                patch = generic.not_scheduled_patch(raw, pod.uid, condition.reason, condition.message, now)
                if patch is not None:
                    path = PODS.path(pod.namespace, pod.name, "status")
                    await self._client.patch(path, patch, STRATEGIC_MERGE_PATCH)
            except ApiError as error:
                if error.not_found:
                    self._forget(uid, condition)
                elif not error.conflict or reads == _MAX_READS:
                    raise
                else:
                    continue
            return

    def _forget(self, uid: str, condition: _Condition) -> None:
        if self._latest.get(uid) is condition:
            self._latest.pop(uid)


class SchedulerMetrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()  # has these metrics and no others
        self.attempts = LabelledCounter(
            f"{PREFIX}_attempts_total",
            "Attempts to schedule a pod, by what came of them",
            "result",
            (SCHEDULED, UNSCHEDULABLE, ERROR),
            self.registry,
        )
        self.decision_seconds = prometheus_client.Histogram(
            f"{PREFIX}_decision_seconds", "Time to decide about a pod", buckets=BUCKETS, registry=self.registry
        )
        self.write_failures = LabelledCounter(
            f"{PREFIX}_write_failures_total",
            "Events and conditions of pods that the API server refused, or did not answer",
            "what",
            (EVENT, CONDITION),
            self.registry,
        )
        text = "Other contents of the policy file"
        self.policy_reloads = LabelledCounter(
            f"{PREFIX}_policy_reloads_total", text, "result", (LOADED, REFUSED), self.registry
        )

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        prometheus_client.Gauge(f"{PREFIX}_{name}", text, registry=self.registry).set_function(read)
