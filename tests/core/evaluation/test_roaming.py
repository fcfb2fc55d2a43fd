"""Best-effort volumes that their node cannot take count on the nodes where Longhorn may place them instead."""

from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation.competitors_anywhere import MAX_ROAMING, ROAMING_LIFETIME
from scheduler_core.evaluation.contention import Contention
from scheduler_core.evaluation.many_nodes import EquivalenceCache
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import PodGone
from tests import builders as make
from tests.builders import NOW, Object
from tests.worlds.changes import changes_of, empty_state
from tests.worlds.engines import engines
from tests.worlds.offers import ledger_with_offers

NODES = ("a", "b", "c")
CLASSES = [make.storage_class(), make.storage_class("strict", dataLocality="strict-local")]


def pod(name: str, node: str = "") -> Object:
    return make.pod(name, name=name, uid=f"uid-{name}", node=node)


def node(name: str, size: float = 10, *, allow: bool = True) -> Object:
    """A node with one disk, which is switched off unless `allow`."""
    return make.longhorn_node(name, {"disk-1": make.disk(size, allow=allow)})


class World:
    """Nodes a, b and c with 10 Gi each, and caches that outlive every change."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        self.contention = Contention()
        self.equivalence = EquivalenceCache()
        self.ledger = Ledger()
        self.seconds = 0.0
        self.state = empty_state()
        self.put(CLASSES, engines(NODES), [node(name) for name in NODES], *objects)
        assert self.state.demand.all is not None

    def put(self, *objects: Object | list[Object]) -> None:
        self.state = self.state.update(changes_of(*objects), NOW + timedelta(seconds=self.seconds))

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.put(make.kube_node("unrelated", second=str(self.seconds)))

    def switch_off(self, name: str) -> None:
        self.put(node(name, allow=False))

    def offer(self, *offers: tuple[str, str]) -> None:
        """Replaces all offers; nodes are single letters."""
        self.ledger = ledger_with_offers(self.state.view, offers)

    def reasons(self, size: float, names: tuple[str, ...] = NODES) -> dict[str, str]:
        """The reason of each node for a new pod."""
        self.put(make.claim("new", size), pod("new"))
        contenders = make.competing(self.state, self.ledger, self.contention, self.equivalence)
        requested = self.state.view.snapshot.pods["default", "new"]
        decision = filter_nodes(requested, names, self.state, FilterOptions(), contenders)
        return {name: reason.name for name, reason in zip(names, decision.reasons, strict=True)}

    def counted(self, size: float = 6) -> bool:
        return self.reasons(size, ("b",))["b"] != "ROOM"


def test_a_best_effort_volume_counts_on_other_nodes_once_its_node_cannot_take_it() -> None:
    world = World(make.claim("x", 6), pod("x", "a"))
    assert not world.counted()
    world.switch_off("a")
    assert world.counted()
    assert not world.counted(4)
    assert world.reasons(6) == {"a": "NO_DISK", "b": "SPOKEN_FOR", "c": "SPOKEN_FOR"}


def test_it_counts_before_its_volume_exists() -> None:
    claim = make.claim("x", 6)
    claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    world = World(claim, pod("x"))
    world.switch_off("a")
    assert world.counted()


def test_a_strict_local_volume_counts_on_its_node_only() -> None:
    world = World(make.claim("x", 6, storage_class="strict"), pod("x", "a"))
    world.switch_off("a")
    assert not world.counted()


def test_every_node_counts_every_roaming_volume_that_fits() -> None:
    world = World(*([make.claim(name, 3), pod(name, "a")] for name in ("x", "y", "z")))
    assert not world.counted(10)
    world.switch_off("a")
    assert world.counted(2)
    assert not world.counted(1)


def test_it_no_longer_counts_elsewhere_when_its_node_can_take_it_again() -> None:
    world = World(make.claim("x", 6), pod("x", "a"))
    world.switch_off("a")
    assert world.counted()
    world.put(node("a"))
    assert not world.counted()


def bound(name: str, replica_on: str = "", **volume_fields: Any) -> list[Object]:
    claim, _, volume = make.bound(name, 6, **volume_fields)
    replicas = [make.replica(f"r-{name}", f"vol-{name}", replica_on, size=6)] if replica_on else []
    return [claim, make.persistent_volume(name, uid=f"uid-{name}"), volume, *replicas]


def test_a_volume_whose_replica_is_placed_elsewhere_counts_on_that_disk_alone() -> None:
    world = World(bound("x"), pod("x", "a"))
    world.switch_off("a")
    assert world.counted()
    world.put(make.replica("r-x", "vol-x", "b", size=6))
    assert world.reasons(6) == {"a": "NO_DISK", "b": "INSUFFICIENT_STORAGE", "c": "ROOM"}


def test_a_volume_roams_while_some_of_its_replicas_have_no_place() -> None:
    world = World(bound("x", "c", numberOfReplicas=2), pod("x", "a"))
    world.switch_off("a")
    assert world.counted()


def test_a_volume_roams_while_a_failed_replica_has_no_successor() -> None:
    failed = make.replica("r-failed", "vol-x", "c", size=6, failed=True)
    world = World(bound("x", "c", numberOfReplicas=2), failed, pod("x", "a"))
    world.switch_off("a")
    assert world.counted()


def test_a_volume_does_not_roam_from_a_node_that_cannot_attach_it() -> None:
    assert not World(make.claim("x", 6), pod("x", "elsewhere")).counted()
    world = World(make.claim("x", 6), pod("x", "a"))
    world.put(make.longhorn_node("a", ready=False))
    assert not world.counted()


def test_a_volume_that_is_being_attached_roams_from_a_node_that_fails() -> None:
    world = World(bound("x", nodeID="a"), pod("x", "a"))
    world.put(make.longhorn_node("a", ready=False))
    assert world.counted()


def test_a_volume_that_does_not_fit_beside_older_ones_roams() -> None:
    world = World(*([make.claim(name, 6), pod(name, "a")] for name in ("x", "y")))
    assert world.counted(5)
    assert not world.counted(4)


def test_a_roaming_volume_counts_for_half_a_minute() -> None:
    """From when it was first seen to roam, or it would block other pods for ever."""
    world = World(make.claim("x", 6), pod("x", "a"))
    world.wait(100)
    world.switch_off("a")
    assert world.counted()
    world.wait(ROAMING_LIFETIME.total_seconds() - 0.1)
    assert world.counted()
    world.wait(0.1)
    assert not world.counted()


@pytest.mark.parametrize("age", [10, 29, 31])
def test_a_contention_that_follows_another_counts_as_long_as_that_one(age: float) -> None:
    world = World(make.claim("x", 6), pod("x", "a"))
    world.switch_off("a")
    assert world.counted()
    world.wait(age)
    counted = world.counted()
    decisions = world.contention
    world.contention = Contention()
    world.contention.follow(decisions)
    world.equivalence = EquivalenceCache()
    assert world.counted() is counted is (age < ROAMING_LIFETIME.total_seconds())


def test_a_volume_continues_from_when_its_claim_began_to_roam() -> None:
    world = World(make.claim("x", 6), pod("x", "a"))
    world.switch_off("a")
    assert world.counted()
    world.wait(20)
    world.put(*bound("x"))
    assert world.counted()
    world.wait(10)
    assert not world.counted()


def test_a_volume_that_is_created_late_roams_for_a_time_of_its_own() -> None:
    world = World(make.claim("x", 6), pod("x", "a"))
    world.switch_off("a")
    assert world.counted()
    world.wait(40)
    assert not world.counted()
    world.put(*bound("x"))
    assert world.counted()


def test_a_pods_own_volume_does_not_roam_against_it() -> None:
    """It is asked about again after its node has lost its disk."""
    world = World(make.claim("new", 6), pod("new", "a"))
    world.switch_off("a")
    assert not world.counted()


def test_an_offered_volume_roams_once_one_of_its_nodes_cannot_take_it() -> None:
    """kube-scheduler may have decided for that node; on the other one the volume counts once."""
    world = World(make.claim("x", 4), pod("x"))
    world.offer(("x", "ac"))
    assert world.reasons(7) == {"a": "SPOKEN_FOR", "b": "ROOM", "c": "SPOKEN_FOR"}
    world.switch_off("a")
    assert world.reasons(7) == {"a": "NO_DISK", "b": "SPOKEN_FOR", "c": "WAITING"}
    assert world.reasons(6) == {"a": "NO_DISK", "b": "ROOM", "c": "ROOM"}


def test_an_offered_volume_no_longer_roams_when_its_offer_ends() -> None:
    world = World(make.claim("x", 6), pod("x"))
    world.offer(("x", "a"))
    world.switch_off("a")
    assert world.counted()
    world.ledger, _ = step(world.ledger, PodGone("uid-x"), 1.0)
    assert not world.counted()


def test_a_bounded_number_of_volumes_roams() -> None:
    names = [f"x{number}" for number in range(MAX_ROAMING + 5)]
    world = World([make.claim(name, 1) for name in names], [pod(name, "a") for name in names])
    world.put(node("b", 1000))
    world.switch_off("a")
    assert not world.counted(1000 - MAX_ROAMING)
    assert world.counted(1000 - MAX_ROAMING + 1)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["older state first", "newer state first"])
def test_concurrent_queries_of_different_states_find_what_roams_in_theirs(order: tuple[int, int]) -> None:
    world = World(make.claim("x", 6), pod("x", "a"), make.claim("new", 6), pod("new"))
    world.counted()
    before = world.state
    world.switch_off("a")
    states = (before, world.state)
    for index in (*order, *order):
        world.state = states[index]
        contenders = make.competing(world.state, world.ledger, world.contention, world.equivalence)
        requested = world.state.view.snapshot.pods["default", "new"]
        decision = filter_nodes(requested, ("b",), world.state, FilterOptions(), contenders)
        assert decision.fits == (index == 0)


def test_a_cache_decides_like_a_new_one_about_an_equal_view() -> None:
    world = World(make.claim("x", 6), pod("x", "a"))
    world.switch_off("a")
    world.put(make.claim("new", 6), pod("new"))
    state = ClusterState.of(View.of(world.state.view.snapshot, NOW))
    requested = state.view.snapshot.pods["default", "new"]
    decision = filter_nodes(requested, ("b",), state, FilterOptions(), make.competing(state))
    assert not decision.fits


@pytest.mark.parametrize("ages", list(product((True, False), repeat=4)))
def test_queries_of_two_views_change_nothing_for_each_other(ages: tuple[bool, ...]) -> None:
    names = tuple(f"n{number:02d}" for number in range(40))
    demands = [entry for name in names[1:] for entry in (make.claim(f"d-{name}", 1), pod(f"d-{name}", name))]
    before = empty_state().update(
        changes_of(
            make.storage_class(),
            engines(names),
            [make.longhorn_node(name, 10) for name in names],
            [make.claim("x", 6), pod("x", "n00"), make.claim("new", 6), pod("new", "")],
            demands,
        ),
        make.NOW,
    )
    switched_off = make.longhorn_node("n00", {"disk-1": make.disk(10, allow=False)})
    after = before.update(changes_of(switched_off), make.NOW)
    contention = Contention()
    equivalence = EquivalenceCache()

    def decide(state: ClusterState, contention: Contention, equivalence: EquivalenceCache) -> Decision:
        contenders = make.competing(state, Ledger(), contention, equivalence)
        return filter_nodes(state.view.snapshot.pods["default", "new"], names, state, FilterOptions(), contenders)

    alone = {
        old: set(decide(before if old else after, Contention(), EquivalenceCache()).reasons) for old in (True, False)
    }
    assert {reason.name for reason in alone[False]} == {"NO_DISK", "SPOKEN_FOR"}
    assert alone[True] != alone[False]
    for old in ages:
        assert set(decide(before if old else after, contention, equivalence).reasons) == alone[old]
