"""Volumes that need no local space: until Longhorn has placed them they may take space on any node, for 30 s at most."""

from datetime import timedelta
from typing import Any

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.offered_nodes import make_offer
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.competing_volumes import NO_REQUESTER, ContentionQuery, Requester
from scheduler_core.evaluation.contention import Contention
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.worlds.changes import changes_of

CLUSTER = [
    make.longhorn_node("a", 100),
    make.longhorn_node("b", 50),
    make.storage_class(),
    make.storage_class("remote", dataLocality="disabled"),
]


def with_selected_node(raw_claim: make.Object, node: str) -> make.Object:
    raw_claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": node}
    return raw_claim


def view_at(seconds: float, *objects: make.Object | list[make.Object]) -> View:
    """The cluster with some objects, so many seconds later."""
    return View.of(make.snapshot(CLUSTER, make.flat(*objects)), make.NOW + timedelta(seconds=seconds))


def unplaced(demand: DemandIndex) -> list[str]:
    return [entry.volume.name for entry in demand.unplaced.counted]


def unbound_remote(name: str = "x") -> make.Object:
    return make.claim(name, 30, storage_class="remote")


def bound_remote(name: str = "x", **fields: Any) -> list[make.Object]:
    """A bound claim of 30Gi whose Longhorn volume needs no local space."""
    return [
        make.claim(name, 30, bound=True, storage_class="remote"),
        make.persistent_volume(name),
        make.volume(f"vol-{name}", 30, locality="disabled", **fields),
    ]


def test_a_local_volume_is_never_unplaced() -> None:
    assert unplaced(DemandIndex.of(view_at(0, [make.claim("x", 30), make.pod("x", node="a")]))) == []


def decide(view: View, name: str, ledger: Ledger | None = None) -> Decision:
    state = ClusterState.of(view)
    requested = view.snapshot.pods["default", name]
    return filter_nodes(requested, ("a", "b"), state, FilterOptions(), make.competing(state, ledger))


def reasons(decision: Decision) -> list[str]:
    return [reason.name for reason in decision.reasons]


def test_an_unplaced_volume_counts_on_every_node_where_it_fits() -> None:
    """80Gi and the unplaced 30Gi do not fit on a's 100Gi; 80Gi do not fit on b either way."""
    view = view_at(0, bound_remote(), make.claim("y", 80), make.pod("y", name="local"))
    assert reasons(decide(view, "local")) == ["WAITING", "INSUFFICIENT_STORAGE"]
    smaller = view_at(0, bound_remote(), make.claim("y", 60), make.pod("y", name="local"))
    assert reasons(decide(smaller, "local")) == ["ROOM", "INSUFFICIENT_STORAGE"]


def test_an_unplaced_volume_does_not_count_where_it_does_not_fit_with_the_demand() -> None:
    """80Gi are demanded on a, so that the volume cannot be placed there."""
    demanded = [make.claim("z", 80), make.pod("z", name="runs", node="a")]
    view = view_at(0, bound_remote(), demanded, make.claim("y", 20), make.pod("y", name="local"))
    assert reasons(decide(view, "local")) == ["ROOM", "ROOM"]


def test_a_pod_does_not_compete_with_its_own_unplaced_volume() -> None:
    requester = make.pod("x", "y", name="mixed", uid="uid-mixed")
    view = view_at(0, with_selected_node(unbound_remote(), "a"), make.claim("y", 80), requester)
    assert reasons(decide(view, "mixed"))[0] == "ROOM"


def test_an_offer_counts_the_pod_s_unplaced_volumes() -> None:
    remote_pod = make.pod("x", name="remote", uid="uid-remote")
    view = view_at(0, unbound_remote(), remote_pod, make.claim("y", 80), make.pod("y", name="local", uid="uid-local"))
    offered, answer = make_offer(make.as_pod(remote_pod), decide(view, "remote"), view, Ledger())
    assert reasons(answer) == ["ATTACHABLE", "ATTACHABLE"]
    ledger, _ = step(Ledger(), offered, 0.0)
    assert reasons(decide(view, "local", ledger)) == ["WAITING", "INSUFFICIENT_STORAGE"]
    assert ledger.competing_offers("uid-local") == 0, "it takes no node from other pods"
    assert reasons(decide(view, "remote", ledger)) == ["ATTACHABLE", "ATTACHABLE"]


def offer_of_remote_volume(remote_pod: make.Object, view: View) -> Ledger:
    volumes = resolve(make.as_pod(remote_pod), view).unplaced
    ledger, _ = step(Ledger(), Offered(ObservedPod("uid-remote"), frozenset(), unplaced_volumes=volumes), 0.0)
    return ledger


def test_a_volume_that_is_both_offered_and_selected_counts_once() -> None:
    remote_pod = make.pod("x", name="remote", uid="uid-remote")
    selected = with_selected_node(unbound_remote(), "b")
    view = view_at(0, selected, remote_pod, make.claim("y", 60), make.pod("y", name="local"))
    assert reasons(decide(view, "local", offer_of_remote_volume(remote_pod, view)))[0] == "ROOM"


def counted_since(demand: DemandIndex) -> list[tuple[str, float]]:
    """What counts, and the seconds after NOW since when."""
    return [(entry.key, (entry.since - make.NOW).total_seconds()) for entry in demand.unplaced.counted]


def provisioning() -> tuple[list[make.Object], list[make.Object], list[make.Object]]:
    """The steps of provisioning a remote claim: a node is selected, the volume exists, the claim is bound."""
    selected = [with_selected_node(unbound_remote(), "b"), make.pod("x")]
    provisioned = [*selected, make.volume("pvc-uid-x", 30, locality="disabled")]
    bound_claim = make.claim("x", 30, bound=True, storage_class="remote")
    bound = [*provisioned[1:], bound_claim, make.persistent_volume("x", handle="pvc-uid-x")]
    return selected, provisioned, bound


def test_a_claim_and_the_volume_provisioned_for_it_count_once_for_one_lifetime() -> None:
    selected, provisioned, bound = provisioning()
    before = view_at(0, *selected)
    demand = DemandIndex.of(before)
    assert counted_since(demand) == [("default/x (claim)", 0)]
    for second, objects in ((10, provisioned), (20, bound)):
        after = view_at(second, *objects)
        demand = demand.update(before, changes_of(*objects), after)
        assert counted_since(demand) == [("pvc-uid-x", 0)]
        assert counted_since(DemandIndex.of(after)) == [("pvc-uid-x", second)]
        before = after
    assert counted_since(demand.update(before, {}, view_at(30, *bound))) == []


def test_a_volume_provisioned_after_its_claim_stopped_counting_has_a_lifetime_of_its_own() -> None:
    selected, provisioned, _ = provisioning()
    before = view_at(0, *selected)
    after = view_at(30, *provisioned)
    demand = DemandIndex.of(before).update(before, changes_of(*provisioned), after)
    assert counted_since(demand) == [("pvc-uid-x", 30)]
    assert counted_since(demand.update(after, {}, view_at(59, *provisioned))) == [("pvc-uid-x", 30)]


def test_unplaced_volumes_are_sorted_by_age_and_by_size() -> None:
    sizes = {"a": 3, "b": 9, "c": 9, "d": 1, "e": 5}
    volumes = [make.volume(name, size, locality="disabled", numberOfReplicas=2) for name, size in sizes.items()]
    before = view_at(0)
    demand = DemandIndex.of(before)
    for second, raw in enumerate(volumes):
        after = view_at(second, *volumes[: second + 1])
        demand = demand.update(before, changes_of(raw), after)
        before = after
    assert [entry.key for entry in demand.unplaced.counted] == list("abcde")
    assert [entry.key for entry in demand.unplaced.by_size] == list("bcead")
    assert demand.unplaced.replicas == 10
    assert demand.update(before, {}, view_at(29, *volumes)).unplaced is demand.unplaced
    grown = make.volume("a", 20, locality="disabled", numberOfReplicas=3)
    after = view_at(31, grown, *volumes[1:])
    later = demand.update(before, changes_of(grown), after).unplaced
    assert [entry.key for entry in later.counted] == list("cde"), "a's age has not changed with its size"
    assert [entry.key for entry in later.by_size] == list("ced")
    assert later.replicas == 6


def unplaced_share(view: View, ledger: Ledger, requester: Requester) -> list[str]:
    state = ClusterState.of(view)
    query = ContentionQuery(state, state.demand, ledger, requester, Budget())
    return [entry.volume.name for entry in Contention().unplaced_share(query)]


def test_an_offered_volume_counts_once_after_it_is_provisioned() -> None:
    """It competes with another pod's 60Gi; twice 30Gi would be too much, if it counted as two volumes."""
    remote_pod = make.pod("x", name="remote", uid="uid-remote")
    local = [make.claim("y", 60), make.pod("y", name="local")]
    ledger = offer_of_remote_volume(remote_pod, view_at(0, unbound_remote(), remote_pod, local))
    after = view_at(0, bound_remote(numberOfReplicas=2), remote_pod, local)
    assert unplaced_share(after, ledger, NO_REQUESTER) == ["vol-x"]
    assert reasons(decide(after, "local", ledger))[0] == "ROOM"
    requester = Requester.of("uid-remote", resolve(make.as_pod(remote_pod), after).volumes)
    assert unplaced_share(after, ledger, requester) == []
