"""What a policy's Longhorn rules read of a live cluster or a snapshot, with pods bound before.

A bound pod is all that its volumes need to count: the demand on nodes is derived from pods with a node
(`scheduler_core/demand/derive.py`). So a pod that was bound and is not seen on its node yet is put on it in a state for
one decision.

`SchedulerCache` watches pods itself, and so does `ClusterCache`, whose watch may lag. A pod that the first watch shows on its node is put
there in the state, too, until the second watch shows that, or a later pod of the name, or the first watch shows that the pod is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from rpds import HashTrieMap

from app.decisions.evaluator import Evaluator
from app.kube.cluster_cache import ClusterCache
from app.scheduler.decide import FactsFor
from scheduler_core.cluster.update import Changes
from scheduler_core.cluster.view import View
from scheduler_core.convert.binding import PendingPod
from scheduler_core.evaluation.contention import Contention
from scheduler_core.evaluation.results import EquivalenceCache
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import Competing, FilterOptions
from scheduler_core.extender.longhorn_facts import PlanCache
from scheduler_core.generic.longhorn_facts import LonghornFacts
from scheduler_core.model.generic import PodKey
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.offers.ledger import Ledger

_PODS: Final = "pods"


def binding_changes(pods: Iterable[tuple[Pod, str]]) -> Changes:
    return {(_PODS, pod.namespaced_name): replace(pod, node_name=node) for pod, node in pods if pod.volumes}


class LonghornCache:
    """Longhorn's objects in a live cluster.

    Args:
        cache: kept current by its own `run`, which the caller runs
    """

    def __init__(self, cache: ClusterCache, options: FilterOptions, now: Callable[[], datetime]) -> None:
        self.cache = cache
        self._now = now
        self._evaluator = Evaluator(cache, options)
        self._facts = _FactsEvaluator(options)
        self.bound: dict[PodKey, Pod] = {}

    def on_bound(self, pending: PendingPod, node: str) -> None:
        if pending.pod.volumes:
            self.bound[pending.pod.namespaced_name] = replace(pending.pod, node_name=node)
            self._drop_shown_pods()

    def on_gone(self, key: PodKey) -> None:
        self.bound.pop(key, None)

    def _drop_shown_pods(self) -> None:
        pods = self.cache.state().view.snapshot.pods
        shown = [key for key, pod in self.bound.items() if key in pods and _shows_binding(pods[key], pod)]
        for key in shown:
            del self.bound[key]

    @property
    def version(self) -> int:
        return self.cache.state().view.version

    async def fetch_missing(self, pending: PendingPod) -> None:
        """Fetches objects that a pod names and no watch has delivered yet.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
        """
        await self._evaluator.fetch_missing(pending.pod)

    def facts_for(self, pending: PendingPod, assumed: Changes) -> FactsFor:
        """Returns how to compute facts about a pod's volumes. `assumed` puts the assumed pods on their nodes; see
        `binding_changes`.
        """
        self._drop_shown_pods()
        bound = binding_changes((pod, pod.node_name) for pod in self.bound.values())
        return self._facts.of(pending, _bind(self.cache.state(), {**bound, **assumed}, self._now()))


def _shows_binding(shown: Pod, bound: Pod) -> bool:
    """Whether the cache shows a pod's Binding, or something later."""
    # The pod has a node or has ended, or is a later pod of the name.
    if shown.uid == bound.uid:
        return bool(shown.node_name) or not shown.live
    return shown.version >= bound.version


class LonghornSnapshot:
    """Longhorn's objects in a snapshot, whose pods are bound one by one."""

    def __init__(self, snapshot: Snapshot, options: FilterOptions, now: datetime) -> None:
        self._now = now
        self._facts = _FactsEvaluator(options)
        # Only pods will change. A kind that the file does not list stays unknown.
        self._state = ClusterState.of(View.of(replace(snapshot, pods=HashTrieMap(snapshot.pods)), now))

    def facts_for(self, pending: PendingPod) -> FactsFor:
        return self._facts.of(pending, self._state)

    def bind(self, pending: PendingPod, node: str) -> None:
        self._state = _bind(self._state, binding_changes([(pending.pod, node)]), self._now)


class _FactsEvaluator:
    """Computes facts, with caches that outlive one decision."""

    def __init__(self, options: FilterOptions) -> None:
        self._options = options
        self._contention = Contention()
        self._equivalence = EquivalenceCache()
        self._plans = PlanCache()

    def of(self, pending: PendingPod, state: ClusterState) -> FactsFor:
        """Returns how to compute facts about a pod's volumes in this state."""
        contenders = Competing(state.demand, Ledger(), self._contention, self._equivalence)

        def facts(names: Sequence[str]) -> LonghornFacts:
            return self._plans.longhorn_facts(pending.pod, names, state, self._options, contenders)

        return facts


def _bind(state: ClusterState, changes: Changes, now: datetime) -> ClusterState:
    if not changes:
        return state
    # Derived before the update, so that the update takes it over. Otherwise it would be derived for every decision.
    _ = state.demand
    return state.update(changes, now)
