"""The cluster as the stand-alone scheduler sees it: watched nodes, services and pods, with assumed pods on their nodes, and Longhorn's
objects while a policy reads them.

Data flow: `GenericCache` watches, and asks `SchedulerCache` how each pod counts → `GenericClusterState`; and the scheduling queue
receives the pods that need a node, and a call whenever something has changed that may help unschedulable pods.

**Assumptions.** An assumed pod counts on its node from the decision on, before the API server has answered, so that the next decision
counts it. The assumption ends when the pod is seen with a node, when it is gone or replaced by a new pod of its name, or when
binding it has failed. A pod that is seen without a node ends nothing: that event is older than the Binding.

**Longhorn's rules.** A bound pod is all that its volumes need to count: the demand on nodes is derived from pods with a node
(`scheduler_core/volumes/outstanding_demand.py`). So a pod that was bound and is not seen on its node yet is put on it in a state for one decision.
`ClusterCache` watches pods itself, and its watch may lag. A pod that the first watch shows on its node is put there in the state,
too, until the second watch shows that, or a later pod of the name, or the first watch shows that the pod is gone.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from rpds import HashTrieMap

from app.evaluator import Evaluator
from app.kube.client import KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.generic_cache import GenericCache
from app.kube.reflector import Timing
from scheduler_core.cluster.update import Changes
from scheduler_core.cluster.view import View
from scheduler_core.convert.generic import PendingPod, pod_on_node
from scheduler_core.decide import decision, score_facts
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.generic import cluster_state, rule_registry, scheduler
from scheduler_core.generic.policy import Policy, kinds_read
from scheduler_core.model import generic, kube
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import Struct, replace

LONGHORN = "longhorn"
_PODS = "pods"


def kinds_required(policy: Policy) -> frozenset[str]:
    """Returns the kinds that a policy needs; nodes, services and pods always, and Longhorn's kinds as one."""
    kinds = rule_registry.SERVICES | kinds_read(policy)
    return kinds | {LONGHORN} if policy.reads_longhorn else kinds


class _AssumedPod(Struct, frozen=True):
    """A pod that counts on a node before it is seen there."""

    pending: PendingPod
    node: str


class SchedulerCache:
    """Owner of the watched objects and the assumed pods. Everything happens on the event loop that runs `run`.

    Args:
        scheduler_name: the `spec.schedulerName` of this scheduler's pods
        take_pod: called with each of these pods that needs a node, or has changed while it does; with None in place of a pod
            that has a node now, or is gone
        retry_unschedulable: called when something has changed that may help unschedulable pods
        stale_after: seconds without an answer of the API server, after which `problem_of` says so
        new_longhorn_cache: returns a new cache, which does not run yet; without it Longhorn's objects are never known
    """

    def __init__(  # noqa: PLR0913 # every one is a port
        self,
        client: KubeClient,
        scheduler_name: str,
        take_pod: Callable[[generic.PodKey, PendingPod | None], None],
        retry_unschedulable: Callable[[], None],
        timing: Timing,
        *,
        stale_after: float,
        new_longhorn_cache: "Callable[[], LonghornCache] | None" = None,
    ) -> None:
        self._scheduler_name = scheduler_name
        self._take_pod = take_pod
        self._retry_unschedulable = retry_unschedulable
        self._assumed: dict[generic.PodKey, _AssumedPod] = {}
        self.objects = GenericCache(client, timing, stale_after, observer=self, prefix="")
        self._new_longhorn_cache = new_longhorn_cache
        self.longhorn: LonghornCache | None = None
        self._caught_up: LonghornCache | None = None
        self._longhorn_changed = asyncio.Event()
        self.want(rule_registry.SERVICES)

    def want(self, kinds: frozenset[str]) -> None:
        """Watches these kinds from now on, and no others; nodes, services and pods are always watched."""
        self.objects.want((kinds - {LONGHORN}) | rule_registry.SERVICES)
        new_cache = self._new_longhorn_cache if LONGHORN in kinds else None
        if (new_cache is None) != (self.longhorn is None):
            self.longhorn = None if new_cache is None else new_cache()
            self._caught_up = None
            self._longhorn_changed.set()

    def problem_of(self, kinds: frozenset[str]) -> str:
        """Returns why these kinds cannot be used now, "" if they can."""
        problem = self.objects.problem_of((kinds - {LONGHORN}) | rule_registry.SERVICES)
        if problem or LONGHORN not in kinds:
            return problem
        if self.longhorn is None:
            return "Longhorn's objects are not watched"
        if self.longhorn.cache.problem:
            return self.longhorn.cache.problem
        return "" if self._caught_up is self.longhorn else "Longhorn's objects not caught up with yet"

    def state(self) -> cluster_state.GenericClusterState:
        return self.objects.state()

    async def run(self) -> None:
        """Watches what is wanted until cancelled."""
        running: LonghornCache | None = None
        task: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.objects.run())
            while True:
                self._longhorn_changed.clear()
                if running is not self.longhorn:
                    if task is not None:
                        task.cancel()
                    running = self.longhorn
                    task = None if running is None else tasks.create_task(self._watch(running), name=LONGHORN)
                await self._longhorn_changed.wait()

    async def _watch(self, longhorn: "LonghornCache") -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(longhorn.cache.run())
            await longhorn.cache.wait_for_sync()
            # Kinds are listed one by one, some long before the last; this process may have been elected in between.
            await longhorn.cache.catch_up()
            self._caught_up = longhorn

    async def catch_up(self) -> None:
        """Returns once everything is known that happened before this call."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.objects.catch_up())
            if self.longhorn is not None and self.longhorn.cache.has_synced:
                tasks.create_task(self.longhorn.cache.catch_up())

    @property
    def assumed_nodes(self) -> Mapping[generic.PodKey, str]:
        return {key: assumed.node for key, assumed in self._assumed.items()}

    def pod(self, key: generic.PodKey) -> PendingPod | None:
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
        if assumed is None or assumed.pending.pod.uid != pending.pod.uid:
            return
        del self._assumed[key]
        self.objects.recount(key)
        self._retry_unschedulable()

    def effective_pod(self, pod: PendingPod) -> kube.Pod:
        assumed = self._assumed.get(pod.pod.namespaced_name)
        return pod.pod if assumed is None else pod_on_node(assumed.pending.pod, assumed.node)

    def on_change(self, kind: str, key: Any, before: Any, value: Any) -> None:
        """Takes a change; called by `GenericCache`."""
        if kind == "pods":
            self._update_pod(key, before, value)
        # A node that is gone helps no pod.
        elif kind == "services" or value is not None:
            self._retry_unschedulable()

    def _update_pod(self, key: generic.PodKey, before: PendingPod | None, value: PendingPod | None) -> None:
        assumed = self._assumed.get(key)
        if self.longhorn is not None:
            # Its own watch may not have delivered that yet.
            if (
                assumed is not None
                and value is not None
                and value.pod.node_name
                and value.pod.uid == assumed.pending.pod.uid
            ):
                self.longhorn.on_bound(assumed.pending, value.pod.node_name)
            if before is not None and (value is None or value.pod.finished or value.pod.uid != before.pod.uid):
                self.longhorn.on_gone(key)
        if assumed is not None and (value is None or value.pod.node_name or value.pod.uid != assumed.pending.pod.uid):
            del self._assumed[key]
            assumed = None
        # It was on a node, and is gone or different.
        if before is not None and before.pod.node_name:
            self._retry_unschedulable()
        # The scheduler learns the result of the Binding soon enough.
        if assumed is not None:
            return
        self._take_pod(key, value if self.needs_scheduling(value) else None)


def binding_changes(pods: Iterable[tuple[kube.Pod, str]]) -> Changes:
    return {(_PODS, pod.namespaced_name): replace(pod, node_name=node) for pod, node in pods if pod.volumes}


class LonghornCache:
    """Longhorn's objects in a live cluster.

    Args:
        cache: kept current by its own `run`, which the caller runs
    """

    def __init__(self, cache: ClusterCache, options: decision.FilterOptions, now: Callable[[], datetime]) -> None:
        self.cache = cache
        self._now = now
        self._evaluator = Evaluator(cache, options)
        self._facts = _FactsEvaluator(options)
        self.bound: dict[generic.PodKey, kube.Pod] = {}

    def on_bound(self, pending: PendingPod, node: str) -> None:
        """Takes an assumed pod that is seen on its node; called by `SchedulerCache`."""
        # A cache that is not listed yet catches up with this Binding once it is.
        if pending.pod.volumes and self.cache.has_synced:
            self.bound[pending.pod.namespaced_name] = replace(pending.pod, node_name=node)
            self._drop_shown_pods()

    def on_gone(self, key: generic.PodKey) -> None:
        """Takes a pod that has finished, is gone, or is replaced by a namesake."""
        self.bound.pop(key, None)

    def _drop_shown_pods(self) -> None:
        """Drops the pods whose Binding, or something later, the cache shows."""
        pods = self.cache.state().view.snapshot.pods
        for key, bound in list(self.bound.items()):
            shown = pods.get(key)
            # The pod has a node or has ended, or is a later pod of the name.
            if shown is not None and (
                bool(shown.node_name) or not shown.live if shown.uid == bound.uid else shown.version >= bound.version
            ):
                del self.bound[key]

    @property
    def version(self) -> int:
        return self.cache.state().view.version

    async def fetch_missing(self, pending: PendingPod) -> None:
        """Fetches objects that a pod names and no watch has delivered yet. Raises a ResolutionError if an object the
        pod names does not exist or contradicts it.
        """
        await self._evaluator.fetch_missing(pending.pod)

    def facts_for(self, pending: PendingPod, assumed: Changes) -> scheduler.FactsFor:
        """Returns how to compute facts about a pod's volumes. `assumed` puts the assumed pods on their nodes; see
        `binding_changes`.
        """
        self._drop_shown_pods()
        bound = binding_changes((pod, pod.node_name) for pod in self.bound.values())
        return self._facts.of(pending, _bind(self.cache.state(), {**bound, **assumed}, self._now()))


class LonghornSnapshot:
    """Longhorn's objects in a snapshot, whose pods are bound one by one."""

    def __init__(self, snapshot: Snapshot, options: decision.FilterOptions, now: datetime) -> None:
        self._now = now
        self._facts = _FactsEvaluator(options)
        # Only pods will change. A kind that the file does not list stays unknown.
        self._state = ClusterState.of(View.of(replace(snapshot, pods=HashTrieMap(snapshot.pods)), now))

    def facts_for(self, pending: PendingPod) -> scheduler.FactsFor:
        return self._facts.of(pending, self._state)

    def bind(self, pending: PendingPod, node: str) -> None:
        self._state = _bind(self._state, binding_changes([(pending.pod, node)]), self._now)


class _FactsEvaluator:
    """Computes facts, with caches that outlive one decision."""

    def __init__(self, options: decision.FilterOptions) -> None:
        self._options = options
        self._contention = Contention()
        self._equivalence = EquivalenceCache()
        self._plans = score_facts.PlanCache()

    def of(self, pending: PendingPod, state: ClusterState) -> scheduler.FactsFor:
        """Returns how to compute facts about a pod's volumes in this state."""
        contenders = decision.Competing(state.demand, Ledger(), self._contention, self._equivalence)
        return lambda names: self._plans.longhorn_facts(pending.pod, names, state, self._options, contenders)


def _bind(state: ClusterState, changes: Changes, now: datetime) -> ClusterState:
    if not changes:
        return state
    # Derived before the update, so that the update takes it over. Otherwise it would be derived for every decision.
    _ = state.demand
    return state.update(changes, now)
