"""Cached results for equivalent pods, compared with evaluating every node again."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from scheduler_core import caches
from scheduler_core.caches import MAX_STEPS, ChangeLog, LruMap
from scheduler_core.decide.decision import Decision, FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.offered_nodes import observed_pod, stale_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import Offered, PodGone
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import NOW, Object
from tests.examples import examples
from tests.worlds.changes import changes_of, empty_state
from tests.worlds.engines import engines
from tests.worlds.offers import with_offer

NODES = ("a", "b", "c", "d")
OTHERS = range(4)


def node_of(name: str, *sizes: int) -> Object:
    return make.longhorn_node(name, {f"disk-{index}": make.disk(size) for index, size in enumerate(sizes, start=1)})


def pod_of(name: str, claims: int, node: str = "") -> Object:
    return make.pod(*(f"{name}-{index}" for index in range(claims)), name=name, uid=f"uid-{name}", node=node)


# Pods p and q are equivalent, s is not; t shares a claim of p.
BASE_VIEW = (
    empty_state()
    .update(
        changes_of(
            engines(NODES),
            make.storage_class(),
            make.storage_class("remote", dataLocality="disabled", numberOfReplicas="1"),
            [node_of(name, 10, 6) for name in NODES],
            [make.claim("p-0", 5), make.claim("p-1", 4), pod_of("p", 2)],
            [make.claim("q-0", 5), make.claim("q-1", 4), pod_of("q", 2)],
            [make.claim("s-0", 7), pod_of("s", 1)],
            [make.claim("t-0", 3), make.pod("p-0", "t-0", name="t", uid="uid-t")],
        ),
        NOW,
    )
    .view
)


class World:
    """A cluster and offers that change, with caches that outlive the changes."""

    def __init__(self) -> None:
        self.state = ClusterState.of(BASE_VIEW)
        self.ledger = Ledger()
        self.contention = Contention()
        self.equivalence = EquivalenceCache()
        # Derived now, so that later states keep it current instead of deriving it again.
        assert self.state.demand.all == ()

    def put(self, *objects: Object | list[Object], deleted: bool = False) -> None:
        self.state = self.state.update(changes_of(*objects, deleted=deleted), NOW)

    def offer(self, name: str, nodes: frozenset[str]) -> None:
        """Offers those of the nodes to a pod that fit it."""
        decision = self.decide_without_cache(name, tuple(sorted(nodes)), FilterOptions(packing=Packing.EXACT))
        nodes = frozenset(
            node for node, reason in zip(decision.candidates, decision.reasons, strict=True) if reason.fits
        )
        self.ledger = with_offer(self.ledger, self.state.view, name, nodes, self._next_time())

    def offer_unplaced(self, name: str) -> None:
        pod = self.state.view.snapshot.pods["default", name]
        volumes = resolve(pod, self.state.view).unplaced
        offered = Offered(observed_pod(pod), frozenset(), unplaced_volumes=volumes)
        self.ledger, _ = step(self.ledger, offered, self._next_time())

    def end_offer(self, name: str) -> None:
        self.ledger, _ = step(self.ledger, PodGone(f"uid-{name}"), self._next_time())

    def _next_time(self) -> float:
        return self.ledger.time + 0.001 if self.ledger.offers_made else 0.0

    def decide(self, name: str, names: tuple[str, ...], options: FilterOptions) -> Decision:
        contenders = make.competing(self.state, self.ledger, self.contention, self.equivalence)
        pod = self.state.view.snapshot.pods["default", name]
        return filter_nodes(pod, names, self.state, options, contenders)

    def decide_without_cache(self, name: str, names: tuple[str, ...], options: FilterOptions) -> Decision:
        contenders = make.competing(self.state, self.ledger)
        pod = self.state.view.snapshot.pods["default", name]
        return filter_nodes(pod, names, ClusterState.of(self.state.view), options, contenders)

    def create_claim(self, name: str, size: int, storage_class: str = "longhorn") -> None:
        """Creates a claim; an existing one keeps its size, as claims do while they are unbound."""
        if ("default", name) not in self.state.view.snapshot.claims:
            self.put(make.claim(name, size, storage_class=storage_class))


Change = Callable[[World], None]


def bind_other(world: World, number: int, node: str, size: int) -> None:
    """Another pod is bound to a node, which begins demand."""
    world.create_claim(f"o{number}-0", size)
    world.put(pod_of(f"o{number}", 1, node))


def delete_other(world: World, number: int) -> None:
    """Another pod and its claim are deleted, which ends demand and its offer."""
    world.put(pod_of(f"o{number}", 1), make.claim(f"o{number}-0", 1), deleted=True)
    world.end_offer(f"o{number}")


def offer_other(world: World, number: int, nodes: frozenset[str], size: int) -> None:
    world.create_claim(f"o{number}-0", size)
    world.put(pod_of(f"o{number}", 1))
    world.offer(f"o{number}", nodes)


def offer_unplaced_of_other(world: World, number: int, size: int) -> None:
    """Another pod with a remote volume gets an answer."""
    world.create_claim(f"o{number}-0", size, "remote")
    world.put(pod_of(f"o{number}", 1))
    world.offer_unplaced(f"o{number}")


def provision_claim(world: World, name: str) -> None:
    """The first claim of a requesting pod is bound to a new volume."""
    world.put(make.bound(f"{name}-0", {"p": 5, "q": 5, "t": 3}[name]))


def cordon(world: World, node: str, unschedulable: bool) -> None:  # drawn
    world.put({**make.kube_node(node), "spec": {"unschedulable": unschedulable}})


def changed_by(change: Callable[..., None], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Change]:
    return st.builds(lambda *values: lambda world: change(world, *values), *arguments)


node_names = st.sampled_from(NODES)
node_sets = st.frozensets(node_names, min_size=1)
others = st.sampled_from(OTHERS)
requesters = st.sampled_from(["p", "q", "s", "t"])
sizes = st.integers(1, 8)
changes = st.one_of(
    changed_by(bind_other, others, node_names, sizes),
    changed_by(delete_other, others),
    changed_by(offer_other, others, node_sets, sizes),
    changed_by(lambda world, number: world.end_offer(f"o{number}"), others),
    changed_by(offer_unplaced_of_other, others, sizes),
    changed_by(lambda world, node, size: world.put(node_of(node, size, 6)), node_names, st.integers(4, 20)),
    changed_by(World.offer, requesters, node_sets),
    changed_by(provision_claim, st.sampled_from(["p", "q", "t"])),
)
candidates = st.sampled_from([NODES, NODES, NODES[::-1], ("b", "d"), ("c", "nowhere", "a")])


def counted_sizes(decision: Decision, names: tuple[str, ...]) -> dict[str, list[int]]:
    """The sizes of the competing volumes; which of equal unplaced volumes it is does not matter."""
    competitors = decision.competitors
    return {
        name: sorted(volume.volume.size for volume in competitors[name].volumes)
        for name in names
        if name in competitors
    }


@examples(150)
@given(st.lists(st.tuples(changes, requesters, candidates), min_size=1, max_size=12), st.sampled_from(Packing))
def test_cached_results_equal_results_without_a_cache(
    history: list[tuple[Change, str, tuple[str, ...]]], packing: Packing
) -> None:
    """Demand and offers come and go, disks change, claims are shared and provisioned."""
    world = World()
    options = FilterOptions(packing=packing)
    for change, requester, names in history:
        change(world)
        cached = world.decide(requester, names, options)
        fresh = world.decide_without_cache(requester, names, options)
        assert cached.reasons == fresh.reasons
        assert counted_sizes(cached, names) == counted_sizes(fresh, names)
        assert cached.gave_up == fresh.gave_up == 0


def test_requests_without_results_to_share_store_nothing() -> None:
    """Where the pod's own offer counts on every node, each request would store an empty entry."""
    stored: list[int] = []

    class Recording(LruMap[object, Any]):
        def put(self, key: object, value: Any) -> None:
            stored.append(self._weight(value))
            super().put(key, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches, "LruMap", Recording)
        world = World()
    world.offer("p", frozenset(NODES))
    for size in range(1, 9):
        world.put(make.claim("p-0", size))
        world.decide("p", NODES, FilterOptions())
    assert stored == []
    world.decide("q", NODES, FilterOptions())
    assert stored == [1 + len(NODES)]


def test_a_change_log_names_what_changed_since_an_earlier_version() -> None:
    """Over any number of steps, for versions of the same log that are not too old."""
    start = ChangeLog()
    later = start.append(frozenset("a")).append(frozenset()).append(frozenset("bc"))
    assert later.since(start) == frozenset("abc")
    assert later.since(later) == frozenset()
    assert start.since(later) is None
    assert later.append(None).since(later) is None
    long = start
    for _ in range(MAX_STEPS + 1):
        long = long.append(frozenset("a"))
    assert long.since(start) is None


@examples(100)
@given(st.lists(changes | changed_by(cordon, node_names, st.booleans()), max_size=4))
def test_the_nodes_of_a_decision_that_changed_meanwhile_are_those_with_other_values(history: list[Change]) -> None:
    """Disks, demand and Kubernetes nodes change; the change logs name too many nodes and none too few."""
    world = World()
    decision = world.decide("p", NODES, FilterOptions())
    before = (world.state, make.competing(world.state))
    for change in history:
        change(world)
    after = (world.state, make.competing(world.state))

    def values(name: str, state: ClusterState) -> list[object]:
        view = state.view
        maps = (view.indexes.free_space, view.snapshot.longhorn_nodes, view.snapshot.nodes or {})
        return [each.get(name) for each in (*maps, state.demand.by_node)]

    changed = {name for name in decision.fitting_nodes if values(name, world.state) != values(name, before[0])}
    assert changed <= stale_nodes(decision, before, after) <= frozenset(decision.fitting_nodes)
