"""The cluster as the stand-alone scheduler sees it: watched nodes, services and pods, with assumed pods on their nodes.

Data flow: `GenericCache` watches, and asks `SchedulerCache` how each pod counts → `GenericClusterState`; and a `PodQueueHandler`
receives the pods that need a node, and a call whenever something has changed that may help unschedulable pods.

**Assumptions.** An assumed pod counts on its node from the decision on, before the API server has answered, so that the next decision
counts it. The assumption ends when the pod is seen with a node, when it is gone or replaced by a new pod of its name, or when
binding it has failed. A pod that is seen without a node ends nothing: that event is older than the Binding. A `BindingObserver` is
called when an assumed pod is seen with a node, because the observer's own watch may not have delivered that yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.kube.client import KubeClient
from app.kube.generic_cache import GenericCache
from app.kube.reflector import Timing
from scheduler_core.convert.binding import PendingPod, pod_on_node
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.rule_inputs import SERVICES
from scheduler_core.model.generic import PodKey
from scheduler_core.model.kube import Pod


class PodQueueHandler(Protocol):
    """Receives changes for the scheduling queue. Called on the event loop; must not block."""

    def enqueue(self, pending: PendingPod) -> None:
        """A pod needs a node, or has changed while it does."""

    def dequeue(self, key: PodKey) -> None:
        """A pod has a node now, or is gone."""

    def retry_unschedulable(self) -> None:
        """Something has changed that may help unschedulable pods."""


class BindingObserver(Protocol):
    """Notified when an assumed pod is bound, and when a pod is gone, as a `PodQueueHandler` is. It is for a cache that
    watches pods itself, and may see their nodes later than `SchedulerCache`.
    """

    def on_bound(self, pending: PendingPod, node: str) -> None:
        """An assumed pod, passed as assumed, is seen on a node."""

    def on_gone(self, key: PodKey) -> None:
        """A pod has finished, is gone, or is replaced by a namesake."""


class _NoObserver:
    """Ignores every call."""

    def on_bound(self, pending: PendingPod, node: str) -> None:
        pass

    def on_gone(self, key: PodKey) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _AssumedPod:
    """A pod that counts on a node before it is seen there."""

    pending: PendingPod
    node: str

    @property
    def pod(self) -> Pod:
        return self.pending.pod


class SchedulerCache:
    """Owner of the watched objects and the assumed pods. Everything happens on the event loop that runs `run`.

    Args:
        scheduler_name: the `spec.schedulerName` of this scheduler's pods
        handler: receives these pods
        stale_after: seconds without an answer of the API server, after which `problem` says so
    """

    def __init__(
        self, client: KubeClient, scheduler_name: str, handler: PodQueueHandler, timing: Timing, *, stale_after: float
    ) -> None:
        self._scheduler_name = scheduler_name
        self._handler = handler
        self._observer: BindingObserver = _NoObserver()
        self._assumed: dict[PodKey, _AssumedPod] = {}
        self.objects = GenericCache(client, timing, stale_after, observer=self, prefix="")
        self.want(SERVICES)

    def subscribe(self, observer: BindingObserver) -> None:
        self._observer = observer

    async def run(self) -> None:
        await self.objects.run()

    async def catch_up(self) -> None:
        await self.objects.catch_up()

    def want(self, kinds: frozenset[str]) -> None:
        """Watches these kinds from now on, and no others; nodes, services and pods are always watched."""
        self.objects.want(kinds | SERVICES)

    def problem(self, kinds: frozenset[str]) -> str:
        return self.objects.problem(kinds | SERVICES)

    @property
    def state(self) -> GenericClusterState:
        return self.objects.state()

    @property
    def assumed_nodes(self) -> Mapping[PodKey, str]:
        return {key: assumed.node for key, assumed in self._assumed.items()}

    def pod(self, key: PodKey) -> PendingPod | None:
        return self.objects.pod(key)

    def needs_scheduling(self, pending: PendingPod | None) -> bool:
        return pending is not None and pending.needs_node and pending.scheduler_name == self._scheduler_name

    def assume(self, pending: PendingPod, node: str) -> None:
        self._assumed[pending.pod.namespaced_name] = _AssumedPod(pending, node)
        self.objects.recount(pending.pod.namespaced_name)

    def forget(self, pending: PendingPod) -> None:
        """Ends the assumption: binding the pod has failed."""
        key = pending.pod.namespaced_name
        assumed = self._assumed.get(key)
        if assumed is None or assumed.pod.uid != pending.pod.uid:
            return
        del self._assumed[key]
        self.objects.recount(key)
        self._handler.retry_unschedulable()

    def effective_pod(self, pod: PendingPod) -> Pod:
        assumed = self._assumed.get(pod.pod.namespaced_name)
        return pod.pod if assumed is None else pod_on_node(assumed.pod, assumed.node)

    def on_change(self, kind: str, key: Any, before: Any, value: Any) -> None:
        """Takes a change; called by `GenericCache`."""
        if kind == "pods":
            self._update_pod(key, before, value)
        # A node that is gone helps no pod.
        elif kind == "services" or value is not None:
            self._handler.retry_unschedulable()

    def _update_pod(self, key: PodKey, before: PendingPod | None, value: PendingPod | None) -> None:
        assumed = self._assumed.get(key)
        if assumed is not None and value is not None and value.pod.node_name and value.pod.uid == assumed.pod.uid:
            self._observer.on_bound(assumed.pending, value.pod.node_name)
        if before is not None and (value is None or value.pod.finished or value.pod.uid != before.pod.uid):
            self._observer.on_gone(key)
        if assumed is not None and (value is None or value.pod.node_name or value.pod.uid != assumed.pod.uid):
            del self._assumed[key]
            assumed = None
        # It was on a node, and is gone or different.
        if before is not None and before.pod.node_name:
            self._handler.retry_unschedulable()
        # The scheduler learns the result of the Binding soon enough.
        if assumed is not None:
            return
        if value is not None and self.needs_scheduling(value):
            self._handler.enqueue(value)
        else:
            self._handler.dequeue(key)
