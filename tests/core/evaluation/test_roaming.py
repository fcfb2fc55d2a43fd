"""Best-effort volumes that their node cannot take count on the nodes where Longhorn may place them instead."""

from datetime import timedelta
from itertools import count, product
from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.evaluation.volumes_anywhere import MAX_ROAMING, ROAMING_LIFETIME
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import PodGone
from scheduler_core.packing.budget import giving_way
from tests import builders as make
from tests.builders import NOW, Object
from tests.worlds.changes import changes_of, empty_state
from tests.worlds.engines import engines
from tests.worlds.offers import ledger_with_offers
from tests.worlds.timeline import play, rows

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

    def switch_on(self, name: str) -> None:
        self.put(node(name))

    def fail(self, name: str) -> None:
        self.put(make.longhorn_node(name, ready=False))

    def claim(self, names: str, size: float, on: str = "", *, storage_class: str = "longhorn") -> None:
        """Creates pods with a claim each, on a node unless `on` is empty."""
        for name in names.split(","):
            self.put(make.claim(name, size, storage_class=storage_class), pod(name, on))

    def select(self, name: str, on: str) -> None:
        """Selects a node for an unbound claim of a pod that is not bound yet."""
        claim = make.claim(name, 6)
        claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": on}
        self.put(claim, pod(name))

    def provision(self, name: str, on: str = "", replica_on: str = "", **volume_fields: Any) -> None:
        """Creates the volume of a claim, and its pod unless that exists."""
        self.put(bound(name, replica_on, **volume_fields), *([pod(name, on)] if on else []))

    def place(self, name: str, on: str) -> None:
        self.put(make.replica(f"r-{name}", f"vol-{name}", on, size=6))

    def offer(self, name: str, nodes: str) -> None:
        """Replaces all offers; nodes are single letters."""
        self.ledger = ledger_with_offers(self.state.view, [(name, nodes)])

    def end_offer(self, name: str) -> None:
        self.ledger, _ = step(self.ledger, PodGone(f"uid-{name}"), 1.0)

    async def end(self) -> None:
        """Nothing runs."""

    def reasons(self, size: float, names: tuple[str, ...] = NODES) -> dict[str, str]:
        """The reason of each node for a new pod."""
        self.put(make.claim("new", size), pod("new"))
        contenders = make.competing(self.state, self.ledger, self.contention, self.equivalence)
        requested = self.state.view.snapshot.pods["default", "new"]
        decision = filter_nodes(requested, names, self.state, FilterOptions(), contenders)
        return {name: reason.name for name, reason in zip(names, decision.reasons, strict=True)}

    def by_node(self, size: float) -> list[str]:
        return list(self.reasons(size).values())

    def counted(self, size: float = 6) -> bool:
        return self.reasons(size, ("b",))["b"] != "ROOM"


def bound(name: str, replica_on: str = "", **volume_fields: Any) -> list[Object]:
    claim, _, volume = make.bound(name, 6, **volume_fields)
    replicas = [make.replica(f"r-{name}", f"vol-{name}", replica_on, size=6)] if replica_on else []
    return [claim, make.persistent_volume(name, uid=f"uid-{name}"), volume, *replicas]


ROAMING = {
    "a best-effort volume counts on other nodes once its node cannot take it": """
        0 claim x 6 a; counted -> no; switch_off a; counted -> yes; counted 4 -> no; by_node 6 -> NO_DISK SPOKEN_FOR SPOKEN_FOR
    """,
    "it counts before its volume exists": """
        0 select x a; switch_off a; counted -> yes
    """,
    "a strict-local volume counts on its node only": """
        0 claim x 6 a storage_class=strict; switch_off a; counted -> no
    """,
    "every node counts every roaming volume that fits": """
        0 claim x,y,z 3 a; counted 10 -> no; switch_off a; counted 2 -> yes; counted 1 -> no
    """,
    "it no longer counts elsewhere when its node can take it again": """
        0 claim x 6 a; switch_off a; counted -> yes; switch_on a; counted -> no
    """,
    "a volume whose replica is placed elsewhere counts on that disk alone": """
        0 provision x a; switch_off a; counted -> yes; place x b; by_node 6 -> NO_DISK INSUFFICIENT_STORAGE ROOM
    """,
    "a volume roams while some of its replicas have no place": """
        0 provision x a c numberOfReplicas=2; switch_off a; counted -> yes
    """,
    "a volume does not roam from a node that is not there": """
        0 claim x 6 elsewhere; counted -> no
    """,
    "a volume does not roam from a node that cannot attach it": """
        0 claim x 6 a; fail a; counted -> no
    """,
    "a volume that is being attached roams from a node that fails": """
        0 provision x a nodeID=a; fail a; counted -> yes
    """,
    "a volume that does not fit beside older ones roams": """
        0 claim x,y 6 a; counted 5 -> yes; counted 4 -> no
    """,
    "a roaming volume counts for half a minute": """
        # From when it was first seen to roam, or it would block other pods for ever.
        0 claim x 6 a; wait 100; switch_off a; counted -> yes; wait 29.9; counted -> yes; wait 0.1; counted -> no
    """,
    "a volume continues from when its claim began to roam": """
        0 claim x 6 a; switch_off a; counted -> yes; wait 20; provision x; counted -> yes; wait 10; counted -> no
    """,
    "a volume that is created late roams for a time of its own": """
        0 claim x 6 a; switch_off a; counted -> yes; wait 40; counted -> no; provision x; counted -> yes
    """,
    "a pod's own volume does not roam against it": """
        # It is asked about again after its node has lost its disk.
        0 claim new 6 a; switch_off a; counted -> no
    """,
    "an offered volume roams once one of its nodes cannot take it": """
        # kube-scheduler may have decided for that node; on the other one the volume counts once.
        0 claim x 4; offer x ac; by_node 7 -> SPOKEN_FOR ROOM SPOKEN_FOR; switch_off a
        0 by_node 7 -> NO_DISK SPOKEN_FOR WAITING; by_node 6 -> NO_DISK ROOM ROOM
    """,
    "an offered volume no longer roams when its offer ends": """
        0 claim x 6; offer x a; switch_off a; counted -> yes; end_offer x; counted -> no
    """,
}


@pytest.mark.parametrize("timeline", rows(ROAMING))
def test_a_volume_roams(timeline: str) -> None:
    play(World, timeline)


def test_a_volume_roams_while_a_failed_replica_has_no_successor() -> None:
    failed = make.replica("r-failed", "vol-x", "c", size=6, failed=True)
    world = World(bound("x", "c", numberOfReplicas=2), failed, pod("x", "a"))
    world.switch_off("a")
    assert world.counted()


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


def test_a_bounded_number_of_volumes_roams() -> None:
    names = [f"x{number}" for number in range(MAX_ROAMING + 5)]
    world = World([make.claim(name, 1) for name in names], [pod(name, "a") for name in names])
    world.put(node("b", 1000))
    world.switch_off("a")
    assert not world.counted(1000 - MAX_ROAMING)
    assert world.counted(1000 - MAX_ROAMING + 1)


@pytest.mark.parametrize("turn", range(40))
def test_a_request_in_the_middle_of_one_about_an_older_state_changes_nothing(turn: int) -> None:
    """`turn`: how often the older one gives way before."""
    world = World(make.claim("x", 6), pod("x", "a"), make.claim("new", 6), pod("new"))
    before = world.state
    world.switch_off("a")

    def fits(state: ClusterState) -> list[str]:
        contenders = make.competing(state, world.ledger, world.contention, EquivalenceCache())
        requested = state.view.snapshot.pods["default", "new"]
        return filter_nodes(requested, NODES, state, FilterOptions(), contenders).fitting_nodes

    turns = count()

    def interrupt() -> None:
        if next(turns) == turn:
            fits(world.state)

    with giving_way(interrupt):
        fits(before)
    assert (fits(world.state), fits(before)) == ([], ["b", "c"])


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
