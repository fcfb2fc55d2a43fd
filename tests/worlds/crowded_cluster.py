"""A cluster in which a pod competes with demand, unplaced and roaming volumes, offers and holds on every node."""

from typing import Any

from scheduler_core.decide.decision import Competing, Contenders, Decision, FilterOptions
from scheduler_core.decide.explain import Explanation, explain_nodes
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.score_facts import PlanCache
from scheduler_core.evaluation.cluster_state import ClusterState, ProfileCache
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.model.kube import Pod
from scheduler_core.monitor.report import waiting_row
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered
from scheduler_core.volumes.resolve import resolve
from tests.bench.offers_cluster import PendingObjects, make_ledger, make_view, new_pod

NODES = 80


class CrowdedCluster:
    """The state and the caches of a process that leads."""

    def __init__(self) -> None:
        view = make_view(PendingObjects(NODES), 2 * NODES, 0, 3 * NODES, 4)
        self.state = ClusterState.of(view)
        self.ledger: Ledger = make_ledger(view, self.state.demand, 12)
        for number in range(4):
            pod = new_pod(f"held-{number}")
            held = Offered(
                ObservedPod(uid=pod.uid), frozenset(view.cluster.nodes), resolve(pod, view).local, priority=1
            )
            self.ledger, _ = step(self.ledger, held, self.ledger.time)
        self.names = tuple(view.cluster.nodes)
        self.clear_caches()

    def clear_caches(self) -> None:
        """Forgets everything but the demand."""
        view = self.state.view
        self.state = ClusterState(view, ProfileCache(view), self.state.demand)
        self.plans = PlanCache()
        self.clear_contention()

    def clear_contention(self) -> None:
        """Forgets competitors and results, but not what fits on disks."""
        self.contention = Contention()
        self.equivalence = EquivalenceCache()

    @property
    def contenders(self) -> Contenders:
        return Competing(self.state.demand, self.ledger, self.contention, self.equivalence)

    def filter(self, pod: Pod) -> Decision:
        return filter_nodes(pod, self.names, self.state, FilterOptions(), self.contenders)

    def prioritize(self, pod: Pod) -> Any:
        return self.plans.longhorn_facts(pod, self.names, self.state, FilterOptions(), self.contenders)

    def explain(self, pod: Pod) -> Explanation:
        return explain_nodes(pod, self.names, self.state, FilterOptions(), self.contenders)

    def row(self, pod: Pod) -> Any:
        return waiting_row(pod, self.state, FilterOptions(), self.contenders, {})
