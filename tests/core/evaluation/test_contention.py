"""The volumes of other pods on a node: shared claims count once, unfinished searches are repeated, deleted nodes are dropped."""

from datetime import timedelta

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.competing_volumes import NO_REQUESTER, ContentionQuery, Requester
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import NOW, Object


def pod(name: str, *claims: str, node: str = "") -> Object:
    return make.pod(*claims, name=name, uid=f"uid-{name}", node=node)


def reason(
    name: str,
    state: ClusterState,
    ledger: Ledger,
    contention: Contention | None = None,
    equivalence: EquivalenceCache | None = None,
) -> str:
    contenders = make.competing(state, ledger, contention, equivalence)
    requested = state.view.snapshot.pods["default", name]
    decision = filter_nodes(requested, ("a",), state, FilterOptions(), contenders)
    return decision.reasons[0].name


def test_a_result_for_a_pod_that_shares_a_claim_is_not_cached_for_equal_pods() -> None:
    objects = [make.storage_class(), make.longhorn_node("a", 10), pod("q", "c"), pod("r", "d")]
    state = make.state(objects, make.claim("c", 8), make.claim("d", 8))
    volumes = resolve(state.view.snapshot.pods["default", "q"], state.view).local
    ledger, _ = step(Ledger(), Offered(ObservedPod("uid-not-delivered"), frozenset("a"), volumes), 0.0)
    contention = Contention()
    equivalence = EquivalenceCache()
    assert [reason(name, state, ledger, contention, equivalence) for name in "qr"] == ["ROOM", "WAITING"]


def node_with_hard_packing() -> ClusterState:
    """A node with nine demands that are hard to pack; eight of them fit."""
    sizes = (16, 15, 14, 14, 14, 13, 11, 7, 7)
    disks = {f"disk-{number}": make.disk(size) for number, size in enumerate((20, 21, 35, 35), start=1)}
    names = [f"c{number}" for number in range(len(sizes))]
    claims = [make.claim(name, size) for name, size in zip(names, sizes, strict=True)]
    return make.state(make.storage_class(), make.longhorn_node("a", disks), claims, pod("p", *names, node="a"))


def count_demands(state: ClusterState, contention: Contention, budget: Budget) -> int:
    query = ContentionQuery(state, state.demand, Ledger(), NO_REQUESTER, budget)
    return len(contention.competitors(query, ("a",))["a"].demanded)


def test_a_search_without_budget_is_repeated_with_a_larger_budget() -> None:
    state = node_with_hard_packing()
    contention = Contention()
    assert [count_demands(state, contention, Budget(steps)) for steps in (0, 150_000)] == [9, 8]
    assert count_demands(node_with_hard_packing(), Contention(), Budget(150_000)) == 8


def test_a_search_that_exceeds_the_budget_is_not_repeated_by_every_request() -> None:
    """It would leave nothing of the budget for other nodes."""
    state = node_with_hard_packing()
    contention = Contention()
    gave_up = []
    for _ in range(2):
        budget = Budget(10)
        count_demands(state, contention, budget)
        gave_up.append(budget.gave_up > 0)
    assert gave_up == [True, False]


def test_deleted_nodes_are_dropped_from_the_cache() -> None:
    contention = Contention()
    names = [f"node-{number}" for number in range(300)]
    requester = Requester("", frozenset())
    for number, name in enumerate(names):
        objects = [make.storage_class(), make.longhorn_node(name, 10), make.claim("c", 8), pod("p", "c", node=name)]
        state = ClusterState.of(View.of(make.snapshot(objects), NOW + timedelta(seconds=number)))
        requester = Requester.of("", resolve(state.view.snapshot.pods["default", "p"], state.view).volumes)
        query = ContentionQuery(state, state.demand, Ledger(), NO_REQUESTER, Budget())
        contention.competitors(query, (name,))
    # Every cached node has a demand of this pod's claim.
    assert names[-1] in contention.nodes_involving(requester, names)
    assert len(contention.nodes_involving(requester, names)) < 100


def test_a_volume_that_only_prefers_its_node_leaves_out_no_other_volume_of_its_offer() -> None:
    classes = [make.storage_class(), make.storage_class("strict", dataLocality="strict-local")]
    claims = [
        make.claim("c", 8, storage_class="strict"),
        make.claim("d", 8),
        make.claim("e", 8, storage_class="strict"),
    ]
    state = make.state(classes, make.longhorn_node("a", 15), claims, pod("p", "c", "d"), pod("q", "e"))
    volumes = resolve(state.view.snapshot.pods["default", "p"], state.view, require_best_effort=False).volumes
    ledger, _ = step(Ledger(), Offered(ObservedPod("uid-p"), frozenset("a"), volumes), 0.0)
    assert reason("q", state, ledger) == "WAITING"
