"""Compares ways to choose nodes for the same pods: no extender, Longhorn's proposal, and this extender.

Data flow: a `Situation` with pods to place → one run per strategy and order (`PacedTimeline`): kube-scheduler's filters, the strategy's
own, a node at random, binding, Longhorn's placement on a status that lags → the figures of all runs.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from statistics import median_low
from types import MappingProxyType

from msgspec import Struct

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Decision, FilterOptions, Packing
from scheduler_core.decide.filter import candidate_volumes, filter_nodes
from scheduler_core.errors import ResolutionError
from scheduler_core.guard.placement_guard import STEPS_PER_PLACEMENT, Search, guard_placement
from scheduler_core.model import longhorn
from scheduler_core.model.generic import PodKey
from scheduler_core.model.kube import Pod
from scheduler_core.model.longhorn import Placement
from scheduler_core.model.verdict import Reason
from scheduler_core.monitor.overbooking_monitor import bytes_over
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import Budget
from scheduler_core.predict.predicted_cluster import PredictedCluster, list_replica
from scheduler_core.predict.predicted_replicas import Choose, with_written_bytes
from scheduler_core.predict.prediction import sort_by_count
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.predict.timeline import OrderProgress, OrderResult
from scheduler_core.structs import replace
from scheduler_core.volumes.decided_pods import unlisted_volumes
from scheduler_core.volumes.resolve import is_local
from tests.worlds.paced_timeline import Pace, PacedTimeline, Strategy


class StrategyName(StrEnum):
    """The strategies that are compared.

    NONE: kube-scheduler alone. PROPOSAL: Longhorn's scheduler-extender proposal, as `serve --reservation node --packing exact`.
    CAPACITY: this extender, as `serve --reservation capacity`. GUARDED: the same with the placement guard.
    """

    NONE = "none"
    PROPOSAL = "proposal"
    CAPACITY = "capacity"
    GUARDED = "guarded"


class WithoutExtender(Strategy):
    """kube-scheduler alone: every node that passes its filters, whatever Longhorn's disks hold. CSIStorageCapacity is
    not compared, because Longhorn does not publish it by default.
    """

    def filter(self, pod: Pod, admitted: Sequence[str], cluster: PredictedCluster) -> Decision:
        """Returns a decision that all nodes fit, with the pod's volumes."""
        volumes = candidate_volumes(pod, admitted, cluster.state.view, self._options)
        resolutions = {name: part.resolution for part in volumes.parts for name in part.nodes or ()}
        # No node is judged by the pod's volumes, as if there were none.
        reasons = [Reason.NO_VOLUMES] * len(admitted)
        return Decision(volumes.resolution, admitted, reasons, resolutions=resolutions)


class NodeReservation(Strategy):
    """Longhorn's scheduler-extender proposal: one pod at a time.

    The pod's node is then reserved. A node fits if the pod's volumes can be packed together into its free space (Filter
    step 4). It stays reserved until its status lists the pod's replicas, or until the node-reservation time-out (step
    5). `app/extender/whole_node_reservation.py` does the same in a live cluster. As there, a placed replica takes its space
    before the status lists it, which the proposal does not say.
    """

    waits_for_binding = True

    def __init__(self, options: FilterOptions) -> None:
        super().__init__(replace(options, packing=Packing.EXACT))
        self._reservations: dict[PodKey, tuple[Pod, str]] = {}

    def filter(self, pod: Pod, admitted: Sequence[str], cluster: PredictedCluster) -> Decision:
        excluded = self._reserved_nodes(cluster.state.view)
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


class GuardedReservation(Strategy):
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


def move_replica(cluster: PredictedCluster, replica: longhorn.Replica, uuid: str) -> PredictedCluster:
    """Returns the cluster with a replica and its data on another disk of the same node, by `uuid`; a node that lacks it
    is not changed.
    """
    place = cluster.disk_of(replica)
    target = next((disk for disk in place[0].disks if disk.uuid == uuid), None) if place is not None else None
    if place is None or target is None:
        return cluster
    node, source = place
    volume = cluster.snapshot.volumes.get(replica.volume)
    written = volume.actual_size if volume is not None else 0
    node = list_replica(cluster, node, with_written_bytes(source, -written), replica.name, 0)
    node = list_replica(cluster, node, with_written_bytes(target, written), replica.name, replica.size)
    moved = replace(replica, disk_id=target.uuid, disk_path=target.path)
    return cluster.update({("replicas", replica.name): moved, ("longhorn_nodes", node.name): node})


STRATEGIES: Mapping[StrategyName, Callable[[FilterOptions], Strategy]] = MappingProxyType(
    {
        StrategyName.NONE: WithoutExtender,
        StrategyName.PROPOSAL: NodeReservation,
        StrategyName.CAPACITY: Strategy,
        StrategyName.GUARDED: GuardedReservation,
    }
)
"""Makes the strategy of a run, by name."""


class StrategyRun(Struct, frozen=True):
    """One run of a strategy."""

    end: OrderResult
    last_placement: int  # the step at which the last pod was placed, 0 without any
    # Names of the volumes that Longhorn has placed on another node than the one their pod needs them on, also if mended later.
    misplaced: frozenset[str]
    # The most bytes over Longhorn's scheduling limit, by node and name of a disk, also if mended later.
    overbooked: Mapping[tuple[str, str], int]

    @property
    def placed(self) -> int:
        """How many pods have a node and volumes with data."""
        return len(self.end.nodes) - len(self.end.stuck)

    @property
    def reasons(self) -> dict[str, int]:
        """Why pods without a node wait, with the number of pods."""
        return sort_by_count(map(_main_reason, self.end.refusals.values()))


def _main_reason(reasons: Mapping[str, int]) -> str:
    return min(reasons, key=lambda text: (-reasons[text], text))


class _Mistakes:
    def __init__(self, cluster: PredictedCluster) -> None:
        self.misplaced: set[str] = set()
        self.overbooked: dict[tuple[str, str], int] = {}
        self._placed = {replica.volume for replica in cluster.snapshot.replicas.values() if replica.node_id}
        uuids = (disk.uuid for node in cluster.snapshot.longhorn_nodes.values() for disk in node.disks)
        self._overbooked_before = frozenset(uuid for uuid in uuids if bytes_over(cluster.state.view, uuid) > 0)

    def observe(self, progress: OrderProgress) -> None:
        """Notes what placing or removing replicas of volumes led to."""
        cluster = progress.cluster
        for name in progress.volumes:
            replicas = [replica for replica in cluster.state.view.replicas_of(name) if replica.node_id]
            if replicas and name not in self._placed:
                self._placed.add(name)
                self._note_place(cluster.snapshot.volumes[name], replicas)
            for replica in replicas:
                place = cluster.disk_of(replica)
                over = bytes_over(cluster.state.view, replica.disk_id)
                if place is not None and over > 0 and replica.disk_id not in self._overbooked_before:
                    key = (place[0].name, place[1].name)
                    self.overbooked[key] = max(over, self.overbooked.get(key, 0))

    def _note_place(self, volume: longhorn.Volume, replicas: Sequence[longhorn.Replica]) -> None:
        on_node = any(replica.node_id == volume.node_id for replica in replicas)
        if volume.node_id and is_local(volume) and not on_node:
            self.misplaced.add(volume.name)


def run_strategy(
    situation: Situation, strategy: Strategy, pace: Pace, choose_arrival: Choose, choose: Choose
) -> StrategyRun:
    """Runs a strategy to its end.

    Args:
        situation: the cluster, with the pods to place
        strategy: a new one, which remembers nothing
        pace: how long things take
        choose_arrival: chooses in which order kube-scheduler gets the pods
        choose: makes every other choice that depends on chance in the cluster
    """
    mistakes = _Mistakes(situation.cluster)
    timeline = PacedTimeline(situation, strategy, pace, choose, mistakes.observe)
    timeline.shuffle_arrivals(choose_arrival)
    end = timeline.play()
    last = max(timeline.started.values(), default=0)
    return StrategyRun(end, last, frozenset(mistakes.misplaced), mistakes.overbooked)


class Spread(Struct, frozen=True):
    """A number in all orders; the median is the lower one of two."""

    least: int
    median: int
    most: int

    @classmethod
    def of(cls, values: Sequence[int]) -> "Spread":
        return cls(min(values), median_low(values), max(values))


class StrategyFigures(Struct, frozen=True):
    """What a strategy leads to in the end, as in `StrategyRun`."""

    name: StrategyName
    placed: Spread
    waiting: Spread  # all other pods
    stuck: Spread  # of the pods that wait, those with a node
    misplaced: Spread
    overbooked: Spread
    overbooked_bytes: Spread  # the sum over these disks of the most bytes over the limit
    last_placement: Spread
    reasons: Mapping[str, int]  # why pods without a node wait in the end, with the number of pods in all orders


class StrategyComparison(Struct, frozen=True):
    """Strategies on the same pods."""

    nodes: int  # how many nodes pods may run on
    pods: int  # how many pods are to be placed
    orders: int  # how many orders each strategy was run in
    strategies: tuple[StrategyFigures, ...]


def compare_strategies(situation: Situation, orders: Sequence[Callable[[str], Choose]]) -> StrategyComparison:
    """Runs every strategy in every order, of which there is at least one; the pods of an order arrive in the same way
    for each strategy. An order gives the choices of `arrival`, and all other `choices`.
    """
    pods = len(situation.all_pods())
    strategies: list[StrategyFigures] = []
    for name, make_strategy in STRATEGIES.items():
        runs = [
            run_strategy(situation, make_strategy(FilterOptions()), Pace(), order("arrival"), order("choices"))
            for order in orders
        ]
        figures = StrategyFigures(
            name=name,
            placed=Spread.of([run.placed for run in runs]),
            waiting=Spread.of([pods - run.placed for run in runs]),
            stuck=Spread.of([len(run.end.stuck) for run in runs]),
            misplaced=Spread.of([len(run.misplaced) for run in runs]),
            overbooked=Spread.of([len(run.overbooked) for run in runs]),
            overbooked_bytes=Spread.of([sum(run.overbooked.values()) for run in runs]),
            last_placement=Spread.of([run.last_placement for run in runs]),
            reasons=sort_by_count(
                reason for run in runs for reason, count in run.reasons.items() for _ in range(count)
            ),
        )
        strategies.append(figures)
    return StrategyComparison(len(situation.cluster.node_names), pods, len(orders), tuple(strategies))
