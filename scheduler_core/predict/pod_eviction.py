"""Whether a pod may be evicted, by the PodDisruptionBudgets that select it. The API server refuses an eviction while
the status of the pod's budget allows no disruption; the disruption controller writes that status. Here both are one
step: what is allowed is computed from the pods as they are predicted, so it is never outdated.

Source: pkg/registry/core/pod/storage/eviction.go, and pkg/controller/disruption/disruption.go of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Final

from scheduler_core.model import kube
from scheduler_core.model.disruption_budget import DisruptionBudget
from scheduler_core.model.generic import PodKey
from scheduler_core.predict.predicted_cluster import DAEMON_SET, PredictedCluster

# They have no number of replicas that the disruption controller could read.
_UNSCALED_OWNERS: Final = frozenset({DAEMON_SET, "Node", "Job"})
IsHealthy = Callable[[PodKey], bool]
"""Whether a pod is ready, and not being deleted."""


@dataclass(frozen=True)
class SelectedPods:
    """A budget with the live pods that it selects, by name."""

    budget: DisruptionBudget
    pods: tuple[PodKey, ...]
    cluster: PredictedCluster

    @cached_property
    def sync_failure(self) -> str:
        """Why the disruption controller cannot count pods, "" if it can; it then allows no eviction."""
        if self.budget.sync_failure or not self.budget.counts_controllers:
            return self.budget.sync_failure
        pods = self.cluster.snapshot.pods
        unscaled = (key for key in self.pods if pods[key].owner in _UNSCALED_OWNERS)
        return next((f'found no controllers for pod "{name}"' for _, name in unscaled), "")

    @cached_property
    def expected_count(self) -> int:
        """How many pods there should be (getExpectedPodCount)."""
        if not self.budget.counts_controllers:
            return len(self.pods)
        if self.budget.expected_pods is not None:
            return self.budget.expected_pods
        return sum(bool(self.cluster.snapshot.pods[key].owner) for key in self.pods)

    @cached_property
    def desired_healthy(self) -> int:
        return self.budget.desired_healthy(self.expected_count)

    def current_healthy(self, is_healthy: IsHealthy) -> int:
        """Returns how many pods are healthy (countHealthyPods)."""
        return sum(map(is_healthy, self.pods))

    def disruptions_allowed(self, current_healthy: int) -> int:
        """Returns how many pods may be evicted now (updatePdbStatus)."""
        if self.sync_failure or self.expected_count <= 0:
            return 0
        return max(0, current_healthy - self.desired_healthy)


class DisruptionBudgets:
    """The budgets of a cluster, with the pods that each selects."""

    def __init__(self, cluster: PredictedCluster) -> None:
        self._cluster = cluster
        self._by_namespace: dict[str, list[DisruptionBudget]] = {}
        for _, budget in sorted(cluster.snapshot.disruption_budgets.items()):
            self._by_namespace.setdefault(budget.namespace, []).append(budget)
        self._budgets: dict[PodKey, tuple[DisruptionBudget, ...]] = {}
        self._selected: dict[str, SelectedPods] = {}

    def of(self, key: PodKey) -> tuple[DisruptionBudget, ...]:
        """Returns the budgets that select a pod, by name (getPodDisruptionBudgets)."""
        if key not in self._budgets:
            budgets = self._by_namespace.get(key[0], ())
            pod = self._cluster.snapshot.pods.get(key) if budgets else None
            self._budgets[key] = () if pod is None else tuple(each for each in budgets if _selects(each, pod))
        return self._budgets[key]

    def selected_pods(self, budget: DisruptionBudget) -> SelectedPods:
        """Returns a budget with the live pods that it selects."""
        if budget.key not in self._selected:
            pods = self._pods_by_namespace.get(budget.namespace, ())
            keys = tuple(pod.namespaced_name for pod in pods if _selects(budget, pod))
            self._selected[budget.key] = SelectedPods(budget, keys, self._cluster)
        return self._selected[budget.key]

    @cached_property
    def _pods_by_namespace(self) -> dict[str, list[kube.Pod]]:
        pods: dict[str, list[kube.Pod]] = {}
        for _, pod in sorted(self._cluster.snapshot.pods.items(), key=itemgetter(0)):
            if pod.live:
                pods.setdefault(pod.namespace, []).append(pod)
        return pods

    def refusal(self, pod: kube.Pod, is_healthy: IsHealthy) -> str:
        """Returns why the API server refuses to evict a pod, "" if it evicts the pod."""
        key = pod.namespaced_name
        budgets = self.of(key)
        if not budgets or ignores_budgets(pod):
            return ""
        if len(budgets) > 1:
            names = " and ".join(budget.key for budget in budgets)
            return f"PodDisruptionBudgets {names} select it, and the API server evicts no pod with more than one"
        (budget,) = budgets
        selected = self.selected_pods(budget)
        current = selected.current_healthy(is_healthy)
        desired = selected.desired_healthy
        if not is_healthy(key) and (budget.evicts_unhealthy or current >= desired > 0):
            return ""
        if selected.sync_failure:
            return f"PodDisruptionBudget {budget.key} allows no eviction: {selected.sync_failure}"
        if selected.disruptions_allowed(current):
            return ""
        return f"PodDisruptionBudget {budget.key} needs {desired} healthy pods and has {current}"


def _selects(budget: DisruptionBudget, pod: kube.Pod) -> bool:
    return budget.selector is not None and budget.selector.matches(pod.scheduling.labels)


def without_expected_pods(cluster: PredictedCluster, pod: kube.Pod) -> PredictedCluster:
    """Returns the cluster after a workload with such pods was scaled."""
    budgets = cluster.snapshot.disruption_budgets.items()
    concerned = {key: budget for key, budget in budgets if key[0] == pod.namespace and _selects(budget, pod)}
    # What the disruption controller counted before does not hold any more.
    return cluster.update(
        {("disruption_budgets", key): replace(budget, expected_pods=None) for key, budget in concerned.items()}
    )


def ignores_budgets(pod: kube.Pod) -> bool:
    """Whether a pod is evicted whatever its budgets say, because it does not run yet or any more (canIgnorePDB)."""
    return pod.deleting or pod.phase in ("Pending", "Succeeded", "Failed")
