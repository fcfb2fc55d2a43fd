"""The cost of demand and offers: `python -m tests.bench offers`.

With 10,000 demands, 1,000 offers and 1,000 unplaced volumes, and with a tenth of each. Only the core, on states made as the live caches
make them: an event through view, demand and profile cache; the decision about a pod of two claims that competes with all other pods; the
ledger. Times are CPU time, which a busy machine does not lengthen, and for information. x is a median divided by that of the smallest
cluster: it stays near 1 where the cost follows the changes, and not where it follows the cluster.
"""

import gc
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from statistics import median

from scheduler_core.cluster.update import Changes
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.decide.decision import Competing, Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.offered_nodes import make_offer
from scheduler_core.evaluation.cluster_state import ClusterState, ProfileCache
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import Event, ObservedPod, Offered, Tick
from scheduler_core.structs import replace
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.resolve import resolve
from tests.bench.http import p99
from tests.bench.offers_cluster import NOW, PendingObjects, make_ledger, make_view, new_pod, read

# Nodes, demands, offers and as many unplaced volumes.
SIZES = ((100, 1_000, 100), (1_000, 10_000, 1_000), (5_000, 10_000, 1_000))
EVENTS = 100
REQUESTS = 30
COLD = 3
UNCHANGED = "request, nothing changed, ms"
AFTER_EVENT = "request, after one event, ms"
BOUND = "event: a pod bound, us"

Times = dict[str, list[float]]


def run() -> str:
    """Measures the clusters and returns the table."""
    results = [_measure(*size) for size in SIZES]
    first = {name: median(times) for name, times in results[0].items()}
    heads = (
        f"{'offers':<46}" + "".join(f"{f'{nodes} nodes':>30}" for nodes, _, _ in SIZES),
        " " * 46 + "".join(f"{f'{demands} demands, {offers} offers':>30}" for _, demands, offers in SIZES),
        " " * 46 + f"{'p50':>11}{'p99':>11}{'x':>8}" * len(SIZES),
    )
    rows = (f"{name:<46}" + "".join(_cells(name, times[name], first[name]) for times in results) for name in results[0])
    return "\n".join(["", *heads, *rows, _summary(results)])


def _cells(name: str, times: list[float], first: float) -> str:
    """Formats times in the unit that the row's name ends with."""
    unit = 1e3 if name.endswith("ms") else 1e6
    return f"{median(times) * unit:>11.1f}{p99(times) * unit:>11.1f}{median(times) / first:>8.1f}"


def _summary(results: list[Times]) -> str:
    small = results[0]
    large = results[-1]

    def growth(name: str) -> float:
        return median(large[name]) / median(small[name])

    factor = SIZES[-1][0] / SIZES[0][0]
    return (
        f"With {factor:g} times the nodes a pod that is bound costs {growth(BOUND):.1f} times as much, "
        f"a request after one event {growth(AFTER_EVENT):.0f} times, one with nothing changed {growth(UNCHANGED):.0f} times."
    )


class Leader:
    """The state of a leader, and the events that change it."""

    def __init__(self, nodes: int, demands: int, offers: int) -> None:
        self.objects = PendingObjects(nodes)
        self.state = ClusterState.of(make_view(self.objects, demands, EVENTS + REQUESTS, offers))
        demand = self.state.demand
        if len(demand.all) != demands:
            raise RuntimeError(f"{len(demand.all)} demands instead of {demands}: this measures something else")
        if len(demand.unplaced.counted) != offers:
            raise RuntimeError(f"{len(demand.unplaced.counted)} volumes are unplaced instead of {offers}")
        self.ledger: Ledger = make_ledger(self.state.view, demand, offers)
        self.contention = Contention()
        self.equivalence = EquivalenceCache()
        self.names = list(self.state.view.cluster.nodes)
        self.first_spare_claim = demands
        self.next_unplaced = offers

    def update(self, changes: Changes) -> None:
        """Applies one event, as the live caches do."""
        self.state = self.state.update(changes, NOW)

    def decide(self, name: str) -> Decision:
        contenders = Competing(self.state.demand, self.ledger, self.contention, self.equivalence)
        return filter_nodes(new_pod(name), self.names, self.state, FilterOptions(), contenders)

    def clear_contention(self) -> None:
        """Forgets competitors and results."""
        self.contention = Contention()
        self.equivalence = EquivalenceCache()

    def clear_caches(self) -> None:
        """Forgets everything computed, except the demand."""
        self.clear_contention()
        view = self.state.view
        self.state = ClusterState(view, ProfileCache(view), self.state.demand)

    def step_ledger(self, event: Event) -> None:
        """Makes the next ledger. The time does not advance, so that no offer expires."""
        self.ledger, _ = step(self.ledger, event, self.ledger.time)

    def bind_pod(self, number: int) -> Changes:
        return self._changes(*list(self.objects.unbound_claim(2 * number, bound_pod=True))[1:])

    def place_replica(self, number: int) -> Changes:
        return self._changes(("replicas", self.objects.replica_on_demanded_node(2 * number + 1)))

    def select_node(self, number: int) -> Changes:
        return self._changes(next(self.objects.unbound_claim(self.first_spare_claim + number)))

    def create_unplaced(self, number: int) -> Changes:
        """A volume without local space and without a replica is created."""
        return self._changes(("volumes", self.objects.unplaced_volume(self.next_unplaced + number)))

    def _changes(self, *raws: tuple[str, dict[str, object]]) -> Changes:
        changes: dict[tuple[str, Key], object | None] = {}
        for field, raw in raws:
            key, value = read(field, raw)
            changes[field, key] = value
        return changes


def _measure(nodes: int, demands: int, offers: int) -> Times:
    leader = Leader(nodes, demands, offers)
    gc.collect()
    gc.freeze()  # as the live server
    try:
        return _measure_cold(leader) | _measure_events(leader) | _measure_requests(leader) | _measure_ledger(leader)
    finally:
        gc.unfreeze()


def _time(run: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None) -> list[float]:
    times = []
    for _ in range(repeats):
        before()
        started = time.thread_time()
        run()
        times.append(time.thread_time() - started)
    return times


def _measure_cold(leader: Leader) -> Times:
    """Measures a leader that has just taken over. All caches are empty, or only those of competing pods."""
    derive = _time(lambda: DemandIndex.of(leader.state.view), COLD)
    cold = _time(lambda: leader.decide("cold"), COLD, leader.clear_caches)
    without_contention = _time(lambda: leader.decide("cold"), COLD, leader.clear_contention)
    decision = leader.decide("cold")
    if not any(reason.fits for reason in decision.reasons):
        raise RuntimeError(f"no node fits, so this measures something else: {set(decision.reasons)}")
    return {"cold: all demands derived, ms": derive, "cold: request, nothing remembered, ms": cold,
            "cold: request, new joint look only, ms": without_contention}  # fmt: skip


def _measure_events(leader: Leader) -> Times:
    """Measures events, each of a different object. Objects are made before the measurement."""
    results: Times = {}
    for name, make in ((BOUND, leader.bind_pod), ("event: a replica placed, us", leader.place_replica),
                       ("event: a claim selected, us", leader.select_node),
                       ("event: a volume roams, us", leader.create_unplaced)):  # fmt: skip
        changes = iter([make(number) for number in range(EVENTS)])
        results[name] = _time(lambda changes=changes: leader.update(next(changes)), EVENTS)  # type: ignore[misc]
        leader.decide("settle")
    results["event: nothing, time passed, us"] = _time(lambda: leader.update({}), EVENTS)
    return results


def _measure_requests(leader: Leader) -> Times:
    makes = islice(cycle((leader.bind_pod, leader.place_replica, leader.select_node)), REQUESTS)
    changes = iter([make(EVENTS + number) for number, make in enumerate(makes)])
    after = _time(lambda: leader.decide("pod"), REQUESTS, lambda: leader.update(next(changes)))
    unchanged = _time(lambda: leader.decide("pod"), REQUESTS)
    offers = _add_offers(leader)
    burst = _time(lambda: leader.decide("pod"), REQUESTS, lambda: next(offers))
    decision = leader.decide("pod")
    view = leader.state.view
    offer = _time(lambda: make_offer(new_pod("pod"), decision, view, leader.ledger), REQUESTS)
    return {AFTER_EVENT: after, UNCHANGED: unchanged, "request, after one offer, ms": burst,
            "what is offered of a decision, ms": offer}  # fmt: skip


def _add_offers(leader: Leader) -> Iterator[None]:
    offered = _offer_of_first_node(leader)
    for number in range(REQUESTS):
        leader.step_ledger(
            replace(offered, pod=ObservedPod(uid=f"burst-{number}"), nodes=frozenset((leader.names[number],)))
        )
        yield


def _offer_of_first_node(leader: Leader) -> Offered:
    pod = new_pod("offered")
    return Offered(ObservedPod(uid=pod.uid), frozenset(leader.names[:1]), resolve(pod, leader.state.view).local)


def _measure_ledger(leader: Leader) -> Times:
    offered = _offer_of_first_node(leader)
    pods = [ObservedPod(uid=f"pod-{number}", version=1) for number in range(EVENTS)]
    offers = iter([replace(offered, pod=pod) for pod in pods])
    decisions = iter([replace(pod, version=2, node_name=leader.names[0]) for pod in pods])
    return {
        "ledger: an offer made, us": _time(lambda: leader.step_ledger(next(offers)), EVENTS),
        "ledger: an offer decided, us": _time(lambda: leader.step_ledger(next(decisions)), EVENTS),
        "ledger: time passed, us": _time(lambda: leader.step_ledger(Tick()), EVENTS),
    }
