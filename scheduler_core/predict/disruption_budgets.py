"""Which evictions PodDisruptionBudgets allow.

A pod is evicted only if the PodDisruptionBudgets that select it allow it. The API server refuses an eviction while the status of the
pod's budget allows no disruption; the disruption controller writes that status. Here both are one step: what is allowed is computed
from the pods as they are predicted, so it is never outdated.

Source: pkg/registry/core/pod/storage/eviction.go, and pkg/controller/disruption/disruption.go of Kubernetes 1.36.
"""

from collections.abc import Callable
from functools import cached_property

from scheduler_core.model import kube
from scheduler_core.model.generic import DisruptionBudget, PodKey
from scheduler_core.predict.predicted_cluster import DAEMON_SET, PredictedCluster
from scheduler_core.structs import replace

# They have no number of replicas that the disruption controller could read.
_UNSCALED_OWNERS = frozenset({DAEMON_SET, "Node", "Job"})


class DisruptionBudgets:
    """The budgets of a cluster, with the pods that each selects."""

    def __init__(self, cluster: PredictedCluster) -> None:
        self._cluster = cluster
        self._by_namespace: dict[str, list[DisruptionBudget]] = {}
        for _, budget in sorted(cluster.snapshot.disruption_budgets.items()):
            self._by_namespace.setdefault(budget.namespace, []).append(budget)
        self._budgets: dict[PodKey, tuple[DisruptionBudget, ...]] = {}
        self._selected: dict[str, tuple[PodKey, ...]] = {}

    def of(self, key: PodKey) -> tuple[DisruptionBudget, ...]:
        """Returns the budgets that select a pod, by name (getPodDisruptionBudgets)."""
        if key not in self._budgets:
            budgets = self._by_namespace.get(key[0], ())
            pod = self._cluster.snapshot.pods.get(key) if budgets else None
            self._budgets[key] = () if pod is None else tuple(each for each in budgets if _selects(each, pod))
        return self._budgets[key]

    @cached_property
    def _pods_by_namespace(self) -> dict[str, list[kube.Pod]]:
        pods: dict[str, list[kube.Pod]] = {}
        for _, pod in sorted(self._cluster.snapshot.pods.items(), key=lambda item: item[0]):
            if pod.live:
                pods.setdefault(pod.namespace, []).append(pod)
        return pods

    def refusal(self, pod: kube.Pod, is_healthy: Callable[[PodKey], bool]) -> str:
        """Returns why the API server refuses to evict a pod, "" if it evicts the pod. `is_healthy` says whether a pod is
        ready, and not being deleted.
        """
        key = pod.namespaced_name
        budgets = self.of(key)
        if not budgets or ignores_budgets(pod):
            return ""
        if len(budgets) > 1:
            names = " and ".join(budget.key for budget in budgets)
            return f"PodDisruptionBudgets {names} select it, and the API server evicts no pod with more than one"
        (budget,) = budgets
        if budget.key not in self._selected:
            own = self._pods_by_namespace.get(budget.namespace, ())
            self._selected[budget.key] = tuple(each.namespaced_name for each in own if _selects(budget, each))
        selected = self._selected[budget.key]
        current = sum(map(is_healthy, selected))
        failure = budget.sync_failure
        # getExpectedPodCount
        expected = len(selected)
        if budget.counts_controllers:
            owners = {each: self._cluster.snapshot.pods[each].owner for each in selected}
            expected = sum(map(bool, owners.values())) if budget.expected_pods is None else budget.expected_pods
            unscaled = [name for (_, name), owner in owners.items() if owner in _UNSCALED_OWNERS]
            failure = failure or (f'found no controllers for pod "{unscaled[0]}"' if unscaled else "")
        desired = budget.desired_healthy(expected)
        if not is_healthy(key) and (budget.evicts_unhealthy or current >= desired > 0):
            return ""
        # The disruption controller, which cannot count the pods, then allows no eviction.
        if failure:
            return f"PodDisruptionBudget {budget.key} allows no eviction: {failure}"
        # updatePdbStatus
        if expected > 0 and current > desired:
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
    return pod.deleting or pod.finished or pod.phase == "Pending"
