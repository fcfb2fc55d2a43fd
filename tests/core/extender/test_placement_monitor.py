"""What a survey tells of demands, by examples, and against working everything out again from the whole history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.update import advance, empty_snapshot, rebuilt
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.cooperative import Steps, finish
from scheduler_core.demand.derive import Demand, Source
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Beside, Joint, Own
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.placement_monitor import SETTLE_SECONDS, STUCK_SECONDS, Misplaced, Stuck, Survey
from scheduler_core.offers.ledger import Ledger, Offered, PodSeen, step
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import NOW, Object

NODES = ("a", "b")


def engines() -> list[Object]:
    """What lets nodes a and b run volumes."""
    managers = [
        {
            "apiVersion": make.LONGHORN,
            "kind": "InstanceManager",
            "metadata": {"name": f"im-{node}", "namespace": "longhorn-system"},
            "spec": {"nodeID": node, "dataEngine": "v1", "image": ""},
            "status": {"currentState": "running"},
        }
        for node in NODES
    ]
    image = {
        "apiVersion": make.LONGHORN,
        "kind": "EngineImage",
        "metadata": {"name": "ei", "namespace": "longhorn-system"},
        "spec": {"image": ""},
        "status": {"state": "deployed", "nodeDeploymentMap": dict.fromkeys(NODES, True)},
    }
    return [image, *managers]


class CountingJoint(Joint):
    """A real one that tells which nodes it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def besides(  # noqa: PLR0917 # as it is
        self, memory: Memory, demands: Demands, ledger: Ledger, names: Iterable[str], own: Own, budget: Budget
    ) -> Steps[dict[str, Beside]]:
        """As it is."""
        names = list(names)
        self.asked += names
        return super().besides(memory, demands, ledger, names, own, budget)


class World:
    """A cluster that changes, and the surveys of it."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        self.view = rebuilt(empty_snapshot(), NOW, 0)
        self.memory = Memory(self.view)
        self.demands = Demands.of(self.view)
        self.joint, self.ledger, self.survey, self.now = CountingJoint(), Ledger(), Survey(), 0.0
        self.put(engines(), make.storage_class("longhorn"), [make.longhorn_node(name) for name in NODES], *objects)

    def put(self, *objects: Object | list[Object], gone: bool = False) -> None:
        """Creates, changes or deletes objects."""
        changes: dict[tuple[str, Key], object | None] = {}
        for raw in make.flat(*objects):
            kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
            key, value = kind.read(raw)
            changes[kind.field, key] = None if gone else value
        advanced = advance(self.view, changes, NOW)
        self.demands = self.demands.after(self.view, changes, advanced.view)
        self.memory = self.memory.after(advanced.view, advanced.touched)
        self.view = advanced.view

    def look(self, after: float = 0.0) -> Survey:
        """The next survey, so many seconds later."""
        self.now += after
        self.survey = finish(self.survey.after(self.demands, self.memory, self.joint, self.ledger, self.now))
        return self.survey


def bound(name: str, size: int = 10, **volume: Any) -> list[Object]:
    """A bound claim, its PersistentVolume and its Longhorn volume."""
    return [
        make.claim(name, size, bound=True),
        make.persistent_volume(name, uid=f"uid-{name}"),
        make.volume(f"vol-{name}", size, **volume),
    ]


def pod(name: str, *claims: str, node: str = "a", **fields: Any) -> Object:
    """A pod that mounts claims."""
    return make.pod(*claims, name=name, uid=f"uid-{name}", node=node, **fields)


def fresh(name: str, node: str, *, volume: str = "vol-x", **fields: Any) -> Object:
    """A replica that was never healthy."""
    return make.replica(name, volume, node, size=10, healthy=False, **fields)


def astray() -> World:
    """Pod p runs on a; its volume's only replica was placed on b."""
    return World(bound("x"), pod("p", "x"), fresh("r", "b"))


WRONG = Misplaced("default/p", "vol-x", "a", ("b",))


def test_demands_are_counted_by_source() -> None:
    """One that has ended is no longer counted."""
    selected = make.claim("y", 10)
    selected["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "b"}
    world = World(bound("x"), bound("z", nodeID="b"), selected, pod("p", "x"), pod("q", "y", node=""))
    expected = {Source.POD: 1, Source.SELECTED_NODE: 1, Source.ATTACHMENT: 1, Source.HARD_NODE_AFFINITY: 0}
    assert world.look().by_source == expected
    world.put(make.replica("r", "vol-x", "a", size=10))
    assert world.look().by_source == expected | {Source.POD: 0}


def test_a_fresh_volume_that_was_placed_elsewhere_is_misplaced() -> None:
    """It is news once, and is listed as long as it is so."""
    world = astray()
    survey = world.look()
    assert (survey.misplaced, survey.news) == ((WRONG,), (WRONG,))
    survey = world.look(1)
    assert (survey.misplaced, survey.news) == ((WRONG,), ())


def test_a_misplaced_volume_stays_so_when_its_replica_becomes_healthy() -> None:
    """Only its demand's end ends it: a replica beside its pod."""
    world = astray()
    world.look()
    world.put(make.replica("r", "vol-x", "b", size=10))
    survey = world.look(1)
    assert (survey.misplaced, survey.news) == ((WRONG,), ())
    world.put(fresh("s", "a"))
    assert world.look(1).misplaced == ()


def test_a_volume_that_was_drained_away_is_not_misplaced() -> None:
    """It was healthy elsewhere before its pod came."""
    world = World(bound("x"), pod("p", "x"), make.replica("r", "vol-x", "b", size=10))
    survey = world.look()
    assert (survey.misplaced, survey.by_source[Source.POD]) == ((), 1)


@pytest.mark.parametrize(
    "replica",
    [
        pytest.param(fresh("r", "b", deleting=True), id="being deleted"),
        pytest.param(fresh("r", "b", failed=True), id="failed"),
        pytest.param(fresh("r", ""), id="without a place"),
    ],
)
def test_a_replica_that_is_not_there_misplaces_nothing(replica: Object) -> None:
    """Longhorn may still place the volume where it is wanted."""
    assert World(bound("x"), pod("p", "x"), replica).look(5).misplaced == ()


def test_a_replica_that_may_still_come_is_waited_for() -> None:
    """Longhorn writes down the places of a new volume's replicas one by one."""
    world = World(bound("x"), pod("p", "x"), fresh("r", "b"), fresh("s", ""))
    assert world.look().misplaced == ()
    world.put(fresh("s", "a"))
    assert world.look(SETTLE_SECONDS).misplaced == ()


def test_a_replica_is_not_waited_for_for_ever() -> None:
    """The volume was fresh when it was first seen elsewhere, so it counts though it is healthy by now."""
    world = World(bound("x"), pod("p", "x"), fresh("r", "b"), fresh("s", ""))
    world.look()
    world.put(make.replica("r", "vol-x", "b", size=10))
    assert world.look(SETTLE_SECONDS).news == (WRONG,)


def test_a_misplaced_volume_that_is_wanted_elsewhere_is_not_news_again() -> None:
    """Its pod was created anew, under its name, and is bound to a third node."""
    world = astray()
    world.look()
    world.put(make.longhorn_node("c"), pod("p", "x", node="c"))
    survey = world.look(1)
    assert (survey.misplaced, survey.news) == ((Misplaced("default/p", "vol-x", "c", ("b",)),), ())


def test_a_misplaced_volume_that_another_pod_wants_is_news_again() -> None:
    """If it is still fresh."""
    world = astray()
    world.look()
    world.put(pod("p", "x"), gone=True)
    world.put(pod("q", "x"))
    assert world.look(1).news == (Misplaced("default/q", "vol-x", "a", ("b",)),)


def test_a_misplaced_volume_keeps_its_pod_s_name_when_the_pod_is_gone() -> None:
    """As long as it is attached, it is wanted there."""
    world = astray()
    world.look()
    world.put(pod("p", "x"), gone=True)
    world.put(make.volume("vol-x", 10, nodeID="a"))
    survey = world.look(1)
    assert (survey.misplaced, survey.news) == ((WRONG,), ())


def test_a_misplaced_volume_whose_pod_is_heard_of_later_is_not_news_again() -> None:
    """It was wanted where it is attached before."""
    world = World(bound("x", nodeID="a"), fresh("r", "b"))
    assert world.look().news == (Misplaced("", "vol-x", "a", ("b",)),)
    world.put(pod("p", "x"))
    survey = world.look(1)
    assert (survey.misplaced, survey.news) == ((WRONG,), ())


def test_a_claim_that_is_named_like_a_misplaced_volume_is_another() -> None:
    """It has no volume yet, which could be misplaced."""
    world = astray()
    world.look()
    world.put(make.claim("vol-x", 10), pod("q", "vol-x"))
    assert world.look(1).misplaced == (WRONG,)


def test_where_best_effort_only_prefers_its_node_another_place_is_allowed() -> None:
    """Without any place it is awaited all the same, and strict-local volumes are."""
    world = World(bound("x"), bound("y"), pod("p", "x", "y"), fresh("r", "b"))

    def look(after: float) -> Survey:
        world.now += after
        survey = world.survey.after(
            world.demands, world.memory, world.joint, world.ledger, world.now, require_best_effort=False
        )
        world.survey = finish(survey)
        return world.survey

    assert look(0).misplaced == ()
    assert [entry.volumes for entry in look(STUCK_SECONDS).stuck] == [("vol-y",)]
    world.put(make.volume("vol-x", 10, locality="strict-local"))
    assert look(1).misplaced == (WRONG,)


def test_nothing_is_kept_of_nodes_without_demands() -> None:
    """Nodes come and go."""
    world = astray()
    world.look()
    world.put(pod("p", "x"), gone=True)
    assert world.look(1) == Survey(time=1.0)


def test_a_demand_without_room_beside_older_ones_is_hopeless() -> None:
    """The older one is not."""
    old, young = make.claim("old", 60), make.claim("young", 60)
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    young["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    world = World(young, old, pod("p", "old"), pod("q", "young"))
    assert [demand.volume.name for demand in world.look().hopeless] == ["young"]
    world.put(make.longhorn_node("a", 200))
    assert world.look().hopeless == ()


def test_a_demand_that_alone_has_no_room_is_hopeless() -> None:
    """Nor is there any on a node that Longhorn does not know; offers there change nothing."""
    world = World(make.claim("huge", 500), make.claim("nowhere", 1), pod("p", "huge"), pod("q", "nowhere", node="z"))
    assert [(demand.node, demand.volume.name) for demand in world.look().hopeless] == [("a", "huge"), ("z", "nowhere")]
    world.put(make.claim("small", 10), pod("r", "small", node=""))
    volumes = resolve(world.view.snapshot.pods["default", "r"], world.view).local
    world.ledger, _ = step(Ledger(), Offered(PodSeen("uid-r"), frozenset(NODES), volumes), 0.0)
    world.put(make.claim("huge", 600))
    assert [demand.volume.name for demand in world.look().hopeless] == ["huge", "nowhere"]


def test_a_bound_pod_that_has_waited_for_a_minute_is_stuck() -> None:
    """With the volumes that it has waited for so long; that its claim is bound meanwhile changes nothing."""
    world = World(make.claim("x", 10), bound("y"), pod("p", "x"))
    world.look()
    world.put(pod("p", "x", "y"))
    world.look(30)
    world.put(bound("x"))
    assert world.look(29.9).stuck == ()
    assert world.look(0.1).stuck == (Stuck("default/p", "a", ("vol-x",), 0.0),)
    assert world.look(30).stuck == (Stuck("default/p", "a", ("vol-x", "vol-y"), 0.0),)
    world.put(make.replica("r", "vol-x", "a", size=10), make.replica("s", "vol-y", "a", volume="vol-y", size=10))
    assert world.look(1).stuck == ()


def test_a_pod_is_not_stuck_for_the_time_before_it_was_bound() -> None:
    """Provisioning may take long."""
    claim = make.claim("x", 10)
    claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    world = World(claim, pod("p", "x", node=""))
    world.look()
    world.put(pod("p", "x"))
    world.look(STUCK_SECONDS)
    assert world.look(STUCK_SECONDS - 0.1).stuck == ()
    assert [entry.pod for entry in world.look(0.1).stuck] == ["default/p"]


def test_only_nodes_where_something_has_changed_are_packed_again() -> None:
    """Demands, or disks."""
    world = World(bound("x"), bound("y"), pod("p", "x"), pod("q", "y", node="b"))
    world.look()
    assert sorted(world.joint.asked) == ["a", "b"]
    world.joint.asked.clear()
    world.look(STUCK_SECONDS)
    assert world.joint.asked == []
    world.put(make.claim("z", 10), pod("r", "z", node="b"))
    world.look()
    world.put(make.longhorn_node("a", 200))
    world.look()
    assert world.joint.asked == ["b", "a"]


def test_time_does_not_go_back() -> None:
    """A clock that did so would make pods stuck that are not."""
    world = astray()
    world.look(10)
    assert world.look(-5).time == 10


class Model:
    """The same rules, each applied to all demands at every look."""

    def __init__(self) -> None:
        self.bound: dict[tuple[str, str, str], float] = {}
        self.astray: dict[tuple[str, str], float] = {}
        self.misplaced: dict[str, Misplaced] = {}
        self.news: list[Misplaced] = []

    def look(self, demands: tuple[Demand, ...], now: float) -> None:
        """What holds now, given what held at the last look."""
        waits = {(each.node, each.pod, each.volume.claim) for each in demands if each.source is Source.POD}
        self.bound = {wait: self.bound.get(wait, now) for wait in waits}
        astray, misplaced = dict[tuple[str, str], float](), dict[str, Misplaced]()
        self.news = []
        for demand in demands:
            name, replicas = demand.volume.name, demand.volume.replicas
            useful = [replica for replica in replicas if not replica.failed_at and not replica.deleting]
            on = {replica.node_id for replica in useful if replica.node_id}
            wrong = bool(on) and demand.node not in on
            since = self.astray.get((demand.node, name))
            if wrong and since is None and all(replica.healthy_at == "" for replica in replicas):
                since = now
            counts = wrong and since is not None and (all(each.node_id for each in useful) or now - since >= 1)
            known = self.misplaced.get(name)
            if counts or known:
                whose = demand.pod or (known.pod if known else "")
                misplaced[name] = Misplaced(whose, name, demand.node, tuple(sorted(on)) if wrong else ())
                if counts and (known is None or known.pod not in ("", whose)):
                    self.news.append(misplaced[name])
            elif wrong and since is not None:
                astray[demand.node, name] = since
        self.astray, self.misplaced = astray, misplaced

    def stuck(self, now: float) -> set[tuple[str, str]]:
        """The pods that have waited for too long, with their nodes."""
        return {(pod, node) for (node, pod, _), since in self.bound.items() if now - since >= 60}


nodes, names = st.sampled_from(("", *NODES)), st.sampled_from(("x", "y"))
pods = st.sampled_from(("p", "q"))
changes = st.one_of(
    st.builds(
        lambda prefix, name, node, healthy, **flags: make.replica(
            f"{prefix}-{name}", f"vol-{name}", node, size=10, healthy=healthy, **flags
        ),
        st.sampled_from(("r", "s")),
        names,
        nodes,
        st.sampled_from((False, False, True)),
        failed=st.sampled_from((False, False, True)),
        deleting=st.sampled_from((False, False, True)),
    ),
    st.builds(lambda name, node: make.volume(f"vol-{name}", 60, nodeID=node), names, nodes),
    st.builds(bound, names, st.sampled_from((30, 60))),
    st.builds(lambda name: make.claim(name, 60), names),
    st.builds(lambda name, claims, node: pod(name, *claims, node=node), pods, st.lists(names, unique=True), nodes),
    st.builds(make.longhorn_node, st.sampled_from(NODES), st.sampled_from((50, 100))),
)
moments = st.sampled_from((0.0, 0.0, 0.5, 1.0, 30.0, 60.0))


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(changes, st.sampled_from((False, False, True)), st.none() | moments), min_size=4, max_size=16)
)
def test_every_survey_is_what_the_whole_history_leads_to(
    history: list[tuple[Object | list[Object], bool, float | None]],
) -> None:
    """Objects appear, change and vanish in any order; somebody looks now and then."""
    world, model = World(bound("x"), bound("y"), pod("p", "x"), pod("q", "y", node="b"), fresh("r-x", "b")), Model()
    for change, deleted, moment in history:
        world.put(change if isinstance(change, list) else [change], gone=deleted)
        if moment is None:
            continue
        survey = world.look(moment)
        demands = Demands.of(world.view)
        model.look(demands.all, world.now)
        expected = {entry.volume: entry for entry in survey.misplaced}
        assert expected == model.misplaced
        assert list(survey.news) == model.news
        assert {(entry.pod, entry.node) for entry in survey.stuck} == model.stuck(world.now)
        anew = finish(Survey().after(demands, Memory(world.view), Joint(), Ledger(), world.now))
        assert survey.hopeless == anew.hopeless
        assert survey.by_source == anew.by_source
