"""The placement report by examples, and compared with a model that evaluates the whole history again."""

from collections.abc import Iterable, Mapping
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.competing_volumes import Competitors, ContentionQuery
from scheduler_core.evaluation.contention import Contention
from scheduler_core.evaluation.volumes_anywhere import VolumesAnywhere
from scheduler_core.monitor.demand_monitor import SETTLE_TIME, STUCK_AFTER, Misplaced, PlacementReport, Stuck
from scheduler_core.offers.ledger import Ledger
from scheduler_core.volumes.outstanding_demand import Demand, DemandSource
from tests import builders as make
from tests.builders import Object
from tests.worlds.changes import Changes, changes_of, empty_state
from tests.worlds.engines import engines
from tests.worlds.offers import with_offer

NODES = ("a", "b")


class RecordingContention(Contention):
    """A contention that records which nodes it is queried for."""

    def __init__(self) -> None:
        super().__init__()
        self.queried: list[str] = []

    def competitors(
        self, query: ContentionQuery, names: Iterable[str], anywhere: VolumesAnywhere | None = None
    ) -> Mapping[str, Competitors]:
        names = list(names)
        self.queried += names
        return super().competitors(query, names, anywhere)


EMPTY_CLUSTER = empty_state().update(
    changes_of(engines(NODES), make.storage_class("longhorn"), [make.longhorn_node(name) for name in NODES]), make.NOW
)


class World:
    """A cluster that changes, and its placement reports."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        self.state = EMPTY_CLUSTER
        self.contention = RecordingContention()
        self.ledger = Ledger()
        self.report = PlacementReport()
        self.now = 0.0
        self.put(*objects)

    def put(self, *objects: Object | list[Object], deleted: bool = False) -> None:
        self.apply(changes_of(*objects, deleted=deleted))

    def apply(self, changes: Changes) -> None:
        self.state = self.state.update(changes, make.NOW)

    def update_report(self, after: float = 0.0, *, require_best_effort: bool = True) -> PlacementReport:
        """The next report, `after` seconds later."""
        self.now += after
        updated = self.report.update(
            self.state, self.contention, self.ledger, self.now, require_best_effort=require_best_effort
        )
        self.report = updated
        return self.report


def bound(name: str, size: int = 10, **volume: Any) -> list[Object]:
    """A bound claim, its PersistentVolume and its Longhorn volume."""
    return [
        make.claim(name, size, bound=True),
        make.persistent_volume(name, uid=f"uid-{name}"),
        make.volume(f"vol-{name}", size, **volume),
    ]


def pod(name: str, *claims: str, node: str = "a", **fields: Any) -> Object:
    return make.pod(*claims, name=name, uid=f"uid-{name}", node=node, **fields)


def new_replica(name: str, node: str, *, volume: str = "vol-x", **fields: Any) -> Object:
    return make.replica(name, volume, node, size=10, healthy=False, **fields)


def world_with_misplaced_volume() -> World:
    """Pod p runs on a; its volume's only replica was placed on b."""
    return World(bound("x"), pod("p", "x"), new_replica("r", "b"))


MISPLACED = Misplaced("default/p", "vol-x", "a", ("b",))


def test_demands_are_counted_by_source() -> None:
    selected = make.claim("y", 10)
    selected["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "b"}
    world = World(bound("x"), bound("z", nodeID="b"), selected, pod("p", "x"), pod("q", "y", node=""))
    expected = {
        DemandSource.POD: 1,
        DemandSource.SELECTED_NODE: 1,
        DemandSource.NOMINATION: 0,
        DemandSource.ATTACHMENT: 1,
        DemandSource.HARD_NODE_AFFINITY: 0,
    }
    assert world.update_report().by_source == expected
    world.put(make.replica("r", "vol-x", "a", size=10))
    assert world.update_report().by_source == expected | {DemandSource.POD: 0}


def test_a_misplaced_volume_stays_misplaced_when_its_replica_becomes_healthy() -> None:
    world = world_with_misplaced_volume()
    world.update_report()
    world.put(make.replica("r", "vol-x", "b", size=10))
    report = world.update_report(1)
    assert (report.misplaced, report.new_misplacements) == ((MISPLACED,), ())
    world.put(new_replica("s", "a"))
    assert world.update_report(1).misplaced == ()


@pytest.mark.parametrize(
    "replica",
    [
        pytest.param(new_replica("r", "b", deleting=True), id="being deleted"),
        pytest.param(new_replica("r", "b", failed=True), id="failed"),
        pytest.param(new_replica("r", ""), id="not placed"),
        pytest.param(make.replica("r", "vol-x", "b", size=10), id="of a volume that was drained away"),
    ],
)
def test_the_replica_does_not_make_a_volume_misplaced(replica: Object) -> None:
    report = World(bound("x"), pod("p", "x"), replica).update_report(5)
    assert (report.misplaced, report.by_source[DemandSource.POD]) == ((), 1)


def test_a_volume_is_not_misplaced_while_a_replica_has_no_place_yet() -> None:
    world = World(bound("x"), pod("p", "x"), new_replica("r", "b"), new_replica("s", ""))
    assert world.update_report().misplaced == ()
    world.put(new_replica("s", "a"))
    assert world.update_report(SETTLE_TIME).misplaced == ()


def test_a_volume_is_misplaced_after_the_settle_time_if_a_replica_gets_no_place() -> None:
    world = World(bound("x"), pod("p", "x"), new_replica("r", "b"), new_replica("s", ""))
    world.update_report()
    world.put(make.replica("r", "vol-x", "b", size=10))
    assert world.update_report(SETTLE_TIME).new_misplacements == (MISPLACED,)


P = pod("p", "x")
LATER: dict[str, tuple[list[Object], list[Object], Misplaced, bool]] = {
    "time alone changes nothing": ([], [], MISPLACED, False),
    "demand on a third node is no new misplacement": (
        [], [make.longhorn_node("c"), pod("p", "x", node="c")], Misplaced("default/p", "vol-x", "c", ("b",)), False,
    ),
    "demand of another pod is a new misplacement": (
        [P], [pod("q", "x")], Misplaced("default/q", "vol-x", "a", ("b",)), True,
    ),
    "the name of a deleted pod stays": ([P], [make.volume("vol-x", 10, nodeID="a")], MISPLACED, False),
    # It has no volume yet that could be misplaced.
    "an unbound claim named like the volume is not misplaced": (
        [], [make.claim("vol-x", 10), pod("q", "vol-x")], MISPLACED, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("deleted", "changed", "expected", "is_new"), LATER.values(), ids=LATER)
def test_a_misplaced_volume_is_reported_again(
    deleted: list[Object], changed: list[Object], expected: Misplaced, is_new: bool
) -> None:
    world = world_with_misplaced_volume()
    report = world.update_report()
    assert (report.misplaced, report.new_misplacements) == ((MISPLACED,), (MISPLACED,))
    world.put(deleted, deleted=True)
    world.put(changed)
    report = world.update_report(1)
    assert (report.misplaced, report.new_misplacements) == ((expected,), (expected,) if is_new else ())


def test_a_misplaced_volume_whose_pod_is_delivered_later_is_no_new_misplacement() -> None:
    world = World(bound("x", nodeID="a"), new_replica("r", "b"))
    assert world.update_report().new_misplacements == (Misplaced("", "vol-x", "a", ("b",)),)
    world.put(pod("p", "x"))
    report = world.update_report(1)
    assert (report.misplaced, report.new_misplacements) == ((MISPLACED,), ())


def test_best_effort_volumes_that_only_prefer_their_node_may_be_on_another() -> None:
    world = World(bound("x"), bound("y"), pod("p", "x", "y"), new_replica("r", "b"))
    assert world.update_report(0, require_best_effort=False).misplaced == ()
    report = world.update_report(STUCK_AFTER, require_best_effort=False)
    assert [entry.volumes for entry in report.stuck] == [("vol-y",)]
    world.put(make.volume("vol-x", 10, locality="strict-local"))
    assert world.update_report(1, require_best_effort=False).misplaced == (MISPLACED,)


def test_the_report_stores_nothing_about_nodes_without_demand() -> None:
    world = world_with_misplaced_volume()
    world.update_report()
    world.put(pod("p", "x"), deleted=True)
    assert world.update_report(1) == PlacementReport(time=1.0)


def test_demand_that_does_not_fit_with_older_demand_is_hopeless() -> None:
    old = make.claim("old", 60)
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    young = make.claim("young", 60)
    young["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    world = World(young, old, pod("p", "old"), pod("q", "young"))
    assert [demand.volume.name for demand in world.update_report().hopeless] == ["young"]
    world.put(make.longhorn_node("a", 200))
    assert world.update_report().hopeless == ()


def test_demand_that_does_not_fit_alone_is_hopeless() -> None:
    """So is demand on a node that Longhorn does not list; offers on the nodes change nothing."""
    world = World(make.claim("huge", 500), make.claim("nowhere", 1), pod("p", "huge"), pod("q", "nowhere", node="z"))
    hopeless = world.update_report().hopeless
    assert [(demand.node, demand.volume.name) for demand in hopeless] == [("a", "huge"), ("z", "nowhere")]
    world.put(make.claim("small", 10), pod("r", "small", node=""))
    world.ledger = with_offer(Ledger(), world.state.view, "r", NODES, 0.0)
    world.put(make.claim("huge", 600))
    assert [demand.volume.name for demand in world.update_report().hopeless] == ["huge", "nowhere"]


def test_a_bound_pod_that_has_waited_for_a_minute_is_stuck() -> None:
    world = World(make.claim("x", 10), bound("y"), pod("p", "x"))
    world.update_report()
    world.put(pod("p", "x", "y"))
    world.update_report(30)
    world.put(bound("x"))
    assert world.update_report(29.9).stuck == ()
    assert world.update_report(0.1).stuck == (Stuck("default/p", "a", ("vol-x",), 0.0),)
    assert world.update_report(30).stuck == (Stuck("default/p", "a", ("vol-x", "vol-y"), 0.0),)
    world.put(make.replica("r", "vol-x", "a", size=10), make.replica("s", "vol-y", "a", volume="vol-y", size=10))
    assert world.update_report(1).stuck == ()


def test_the_time_before_a_pod_is_bound_does_not_make_it_stuck() -> None:
    claim = make.claim("x", 10)
    claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    world = World(claim, pod("p", "x", node=""))
    world.update_report()
    world.put(pod("p", "x"))
    world.update_report(STUCK_AFTER)
    assert world.update_report(STUCK_AFTER - 0.1).stuck == ()
    assert [entry.pod for entry in world.update_report(0.1).stuck] == ["default/p"]


def test_only_nodes_whose_demand_or_disks_changed_are_packed_again() -> None:
    world = World(bound("x"), bound("y"), pod("p", "x"), pod("q", "y", node="b"))
    world.update_report()
    assert sorted(world.contention.queried) == ["a", "b"]
    world.contention.queried.clear()
    world.update_report(STUCK_AFTER)
    assert world.contention.queried == []
    world.put(make.claim("z", 10), pod("r", "z", node="b"))
    world.update_report()
    world.put(make.longhorn_node("a", 200))
    world.update_report()
    assert world.contention.queried == ["b", "a"]


def test_the_time_of_a_report_never_decreases() -> None:
    """A clock that went back would make pods stuck that are not."""
    world = world_with_misplaced_volume()
    world.update_report(10)
    assert world.update_report(-5).time == 10


class Model:
    """The same rules, each applied to all demands in every step."""

    def __init__(self) -> None:
        self.bound_since: dict[tuple[str, str, str], float] = {}
        self.misplaced_since: dict[tuple[str, str], float] = {}
        self.misplaced: dict[str, Misplaced] = {}
        self.new_misplacements: list[Misplaced] = []

    def update(self, demands: tuple[Demand, ...], now: float) -> None:
        """Applies the rules to what holds now and what held in the previous step."""
        bound = {
            (demand.node, demand.pod, demand.volume.claim) for demand in demands if demand.source is DemandSource.POD
        }
        self.bound_since = {key: self.bound_since.get(key, now) for key in bound}
        misplaced_since: dict[tuple[str, str], float] = {}
        misplaced: dict[str, Misplaced] = {}
        self.new_misplacements = []
        for demand in demands:
            name = demand.volume.name
            replicas = demand.volume.replicas
            usable = [replica for replica in replicas if not replica.failed_at and not replica.deleting]
            nodes = {replica.node_id for replica in usable if replica.node_id}
            elsewhere = bool(nodes) and demand.node not in nodes
            since = self.misplaced_since.get((demand.node, name))
            if elsewhere and since is None and all(replica.healthy_at == "" for replica in replicas):
                since = now
            all_placed = all(replica.node_id for replica in usable)
            settled = elsewhere and since is not None and (all_placed or now - since >= 1)
            reported = self.misplaced.get(name)
            if settled or reported:
                pod_name = demand.pod or (reported.pod if reported else "")
                entry = Misplaced(pod_name, name, demand.node, tuple(sorted(nodes)) if elsewhere else ())
                misplaced[name] = entry
                if settled and (reported is None or reported.pod not in ("", pod_name)):
                    self.new_misplacements.append(entry)
            elif elsewhere and since is not None:
                misplaced_since[demand.node, name] = since
        self.misplaced_since = misplaced_since
        self.misplaced = misplaced

    def stuck(self, now: float) -> set[tuple[str, str]]:
        return {(pod_name, node) for (node, pod_name, _), since in self.bound_since.items() if now - since >= 60}


NODES_OR_NONE = ("", *NODES)
CLAIMS = ("x", "y")
RARELY = (False, False, True)
# All changes of each kind, read once; flags that are rarely set make some of them occur more than once.
REPLICAS = [
    changes_of(
        make.replica(
            f"{prefix}-{name}", f"vol-{name}", node, size=10, healthy=healthy, failed=failed, deleting=deleting
        )
    )
    for prefix, name, node in product(("r", "s"), CLAIMS, NODES_OR_NONE)
    for healthy, failed, deleting in product(RARELY, repeat=3)
]
VOLUMES = [changes_of(make.volume(f"vol-{name}", 60, nodeID=node)) for name, node in product(CLAIMS, NODES_OR_NONE)]
BOUND_CLAIMS = [changes_of(bound(name, size)) for name, size in product(CLAIMS, (30, 60))]
UNBOUND_CLAIMS = [changes_of(make.claim(name, 60)) for name in CLAIMS]
MOUNTED_CLAIMS = [claims for count in range(3) for claims in permutations(CLAIMS, count)]
PODS = [
    changes_of(pod(name, *claims, node=node))
    for name, claims, node in product(("p", "q"), MOUNTED_CLAIMS, NODES_OR_NONE)
]
LONGHORN_NODES = [changes_of(make.longhorn_node(name, size)) for name, size in product(NODES, (50, 100))]
CHANGES = (REPLICAS, VOLUMES, BOUND_CLAIMS, UNBOUND_CLAIMS, PODS, LONGHORN_NODES)
changes = st.one_of([st.sampled_from(changes_of_a_kind) for changes_of_a_kind in CHANGES])
seconds_to_next_report = st.sampled_from((0.0, 0.0, 0.5, 1.0, 30.0, 60.0))


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(changes, st.sampled_from(RARELY), st.none() | seconds_to_next_report), min_size=4, max_size=16)
)
def test_every_report_follows_from_the_whole_history(history: list[tuple[Changes, bool, float | None]]) -> None:
    world = World(bound("x"), bound("y"), pod("p", "x"), pod("q", "y", node="b"), new_replica("r-x", "b"))
    model = Model()
    for objects, deleted, seconds in history:
        world.apply(dict.fromkeys(objects) if deleted else objects)
        if seconds is None:
            continue
        report = world.update_report(seconds)
        state = ClusterState.of(world.state.view)
        model.update(state.demand.all, world.now)
        assert {entry.volume: entry for entry in report.misplaced} == model.misplaced
        assert list(report.new_misplacements) == model.new_misplacements
        assert {(entry.pod, entry.node) for entry in report.stuck} == model.stuck(world.now)
        fresh = PlacementReport().update(state, Contention(), Ledger(), world.now)
        assert report.hopeless == fresh.hopeless
        assert report.by_source == fresh.by_source
