"""Ways to choose the nodes that a pod is offered, after kube-scheduler's own filters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from scheduler_core.cluster.view import View
from scheduler_core.errors import ResolutionError
from scheduler_core.extender.decision import Decision, ExcludedNodes, FilterOptions, Packing, resolve_candidates
from scheduler_core.extender.filter import filter_nodes
from scheduler_core.extender.placement_guard import STEPS_PER_PLACEMENT, Search, guard_placement
from scheduler_core.model.generic import PodKey
from scheduler_core.model.kube import Pod
from scheduler_core.model.replica_placement import Placement
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import Budget
from scheduler_core.predict.pod_decision import PodDecider, PodFilter
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import move_replica
from scheduler_core.volumes.by_node import merge_resolutions
from scheduler_core.volumes.pending_replicas import unlisted_volumes


class StrategyName(StrEnum):
    """The strategies that are compared.

    NONE: kube-scheduler alone. PROPOSAL: Longhorn's scheduler-extender proposal, as `serve --reservation node --packing exact`.
    CAPACITY: this extender, as `serve --reservation capacity`. GUARDED: the same with the placement guard.
    """

    NONE = "none"
    PROPOSAL = "proposal"
    CAPACITY = "capacity"
    GUARDED = "guarded"


class Strategy(PodFilter, Protocol):
    """One way to choose nodes, with what it remembers of one run."""

    @property
    def waits_for_binding(self) -> bool:
        """Whether other pods wait until a pod is bound; they wait only for a pod that takes space."""

    def on_binding(self, pod: Pod, node: str) -> None:
        """Notes that a pod that takes space has its node."""

    def on_timeout(self, key: PodKey) -> None:
        """Notes that the node-reservation time-out of a pod has run out."""

    def admit(self, before: PredictedCluster, after: PredictedCluster, volume: str) -> PredictedCluster:
        """Returns the cluster after Longhorn's placement of a volume, as an admission webhook changes it."""


class _PlainStrategy:
    """What a strategy does that remembers nothing and has no webhook."""

    waits_for_binding: bool = False

    def on_binding(self, pod: Pod, node: str) -> None:
        """Does nothing: what is reserved is derived from the cluster, if anything is."""

    def on_timeout(self, key: PodKey) -> None:
        """Does nothing: no reservation has a time-out."""

    def admit(self, before: PredictedCluster, after: PredictedCluster, volume: str) -> PredictedCluster:
        """Returns the later cluster: no webhook is called."""
        del before, volume
        return after


class WithoutExtender(_PlainStrategy):
    """kube-scheduler alone: every node that passes its filters, whatever Longhorn's disks hold. CSIStorageCapacity is
    not compared, because Longhorn does not publish it by default.
    """

    def __init__(self, options: FilterOptions) -> None:
        self._options = options

    def filter(self, pod: Pod, admitted: Sequence[str], cluster: PredictedCluster) -> Decision:
        """Returns a decision that all nodes fit, with the pod's volumes.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
        """
        parts = resolve_candidates(pod, admitted, cluster.state.view, self._options)
        resolutions = {name: part.resolution for part in parts for name in part.nodes or ()}
        # No node is judged by the pod's volumes, as if there were none.
        reasons = [Reason.NO_VOLUMES] * len(admitted)
        return Decision(merge_resolutions(parts), admitted, reasons, resolutions=resolutions)


class NodeReservation(_PlainStrategy):
    """Longhorn's scheduler-extender proposal: one pod at a time.

    The pod's node is then reserved. A node fits if the pod's volumes can be packed together into its free space (Filter
    step 4). It stays reserved until its status lists the pod's replicas, or until the node-reservation time-out (step
    5). `app/extender/node_reservation.py` does the same in a live cluster. As there, a placed replica takes its space
    before the status lists it, which the proposal does not say.
    """

    waits_for_binding = True

    def __init__(self, options: FilterOptions) -> None:
        self._options = replace(options, packing=Packing.EXACT)
        self._reservations: dict[PodKey, tuple[Pod, str]] = {}

    def filter(self, pod: Pod, admitted: Sequence[str], cluster: PredictedCluster) -> Decision:
        """Returns the decision about nodes that are not reserved.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
        """
        excluded = ExcludedNodes(self._reserved_nodes(cluster.state.view))
        return filter_nodes(pod, admitted, cluster.state, self._options, excluded)

    def _reserved_nodes(self, view: View) -> frozenset[str]:
        self._reservations = {
            key: (pod, node)
            for key, (pod, node) in self._reservations.items()
            if self._awaits_replicas(pod, node, view)
        }
        return frozenset(node for _, node in self._reservations.values())

    def _awaits_replicas(self, pod: Pod, node: str, view: View) -> bool:
        try:
            return bool(unlisted_volumes(pod, node, view, require_best_effort=self._options.require_best_effort))
        except ResolutionError:
            # What is awaited is not known yet.
            return True

    def on_binding(self, pod: Pod, node: str) -> None:
        self._reservations[pod.namespace, pod.name] = pod, node

    def on_timeout(self, key: PodKey) -> None:
        """Frees the node, whether or not the replicas are listed."""
        self._reservations.pop(key, None)


class CapacityReservation(_PlainStrategy, PodDecider):
    """This extender, without the placement guard: offers nodes that hold the pod's volumes together with the demand of
    pods decided before.
    """


class GuardedReservation(CapacityReservation):
    """This extender with the placement guard, which keeps Longhorn to the plan of every node."""

    def __init__(self, options: FilterOptions) -> None:
        super().__init__(options.with_guard())

    def admit(self, before: PredictedCluster, after: PredictedCluster, volume: str) -> PredictedCluster:
        """Returns the later cluster, with new replicas on the disks that the guard chooses."""
        earlier = {replica.name for replica in before.state.view.replicas_of(volume)}
        for replica in after.state.view.replicas_of(volume):
            if replica.name not in earlier and replica.node_id:
                budget = Budget(STEPS_PER_PLACEMENT)
                guard = guard_placement(Placement.of(replica), before.state, Ledger(), (), Search(budget))
                after = move_replica(after, replica, guard.allowance.disk)
        return after


STRATEGIES: Final[Mapping[StrategyName, Callable[[FilterOptions], Strategy]]] = MappingProxyType(
    {
        StrategyName.NONE: WithoutExtender,
        StrategyName.PROPOSAL: NodeReservation,
        StrategyName.CAPACITY: CapacityReservation,
        StrategyName.GUARDED: GuardedReservation,
    }
)
"""Makes the strategy of a run, by name."""
