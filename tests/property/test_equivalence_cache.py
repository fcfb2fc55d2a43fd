"""Answers that are kept and mended where something changed, against deciding everything anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.changelog import MOST_STEPS, Trail
from scheduler_core.cluster.update import advance, empty_snapshot, rebuilt
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.cooperative import finish
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint
from scheduler_core.evaluation.equivalence_cache import Standing
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Decision, Options, Others, Packing, filter_nodes
from scheduler_core.offers.ledger import Ledger, Offered, PodGone, PodSeen, step
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import NOW, Object

NODES = ("a", "b", "c", "d")
OTHERS = range(4)
engine = {
    "apiVersion": make.LONGHORN,
    "kind": "EngineImage",
    "metadata": {"name": "ei", "namespace": "longhorn-system"},
    "spec": {"image": ""},
    "status": {"state": "deployed", "nodeDeploymentMap": dict.fromkeys(NODES, True)},
}
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


def node_of(name: str, *sizes: int) -> Object:
    """A Longhorn node with disks of these sizes."""
    return make.longhorn_node(name, {f"disk-{index}": make.disk(size) for index, size in enumerate(sizes, start=1)})


def pod_of(name: str, claims: int, node: str = "") -> Object:
    """A pod and its claims' names."""
    return make.pod(*(f"{name}-{index}" for index in range(claims)), name=name, uid=f"uid-{name}", node=node)


@dataclass
class World:
    """A cluster that changes, and one that remembers."""

    memory: Memory = field(default_factory=lambda: Memory(rebuilt(empty_snapshot(), NOW, 0)))
    ledger: Ledger = field(default_factory=Ledger)
    joint: Joint = field(default_factory=Joint)
    standing: Standing = field(default_factory=Standing)

    def __post_init__(self) -> None:
        self.demands = Demands.of(self.memory.view)
        classes = [make.storage_class(), make.storage_class("far", dataLocality="disabled", numberOfReplicas="1")]
        self.put(engine, *managers, *classes, *(node_of(name, 10, 6) for name in NODES))
        for asking in ("p", "q"):
            self.put(make.claim(f"{asking}-0", 5), make.claim(f"{asking}-1", 4), pod_of(asking, 2))
        self.put(make.claim("s-0", 7), pod_of("s", 1))
        self.put(make.pod("p-0", "t-0", name="t", uid="uid-t"), make.claim("t-0", 3))

    def put(self, *objects: Object, gone: bool = False) -> None:
        """Objects appear, change or go."""
        changes: dict[tuple[str, Key], object | None] = {}
        for raw in objects:
            kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
            key, value = kind.read(raw)
            changes[kind.field, key] = None if gone else value
        before = self.memory.view
        advanced = advance(before, changes, NOW)
        self.demands = self.demands.after(before, changes, advanced.view)
        self.memory = self.memory.after(advanced.view, advanced.touched)

    def offer(self, name: str, nodes: frozenset[str], *, roams: bool = False) -> None:
        """A pod is told these nodes fit."""
        pod = self.memory.view.snapshot.pods["default", name]
        volumes = resolve(pod, self.memory.view)
        event = Offered(PodSeen(pod.uid, pod.namespace, pod.name), nodes, volumes.local)
        if roams:
            event = Offered(event.pod, frozenset(), roaming=volumes.unplaced)
        self.ledger, _ = step(self.ledger, event, self.ledger.time + 0.001 if self.ledger.made else 0.0)

    def ask(self, name: str, names: tuple[str, ...], options: Options, *, remembering: bool) -> Decision:
        """kube-scheduler asks about a pod."""
        joint, standing = (self.joint, self.standing) if remembering else (Joint(), None)
        memory = self.memory if remembering else Memory(self.memory.view)
        others = Others(demands=self.demands, ledger=self.ledger, joint=joint, standing=standing)
        pod = self.memory.view.snapshot.pods["default", name]
        return finish(filter_nodes(pod, names, memory, options, others))


some_nodes = st.frozensets(st.sampled_from(NODES), min_size=1)
events = st.one_of(
    st.tuples(st.just("bound"), st.sampled_from(OTHERS), st.sampled_from(NODES), st.integers(1, 8)),
    st.tuples(st.just("gone"), st.sampled_from(OTHERS), st.just(""), st.just(0)),
    st.tuples(st.just("offered"), st.sampled_from(OTHERS), some_nodes, st.integers(1, 8)),
    st.tuples(st.just("withdrawn"), st.sampled_from(OTHERS), st.just(""), st.just(0)),
    st.tuples(st.just("roams"), st.sampled_from(OTHERS), st.just(""), st.integers(1, 8)),
    st.tuples(st.just("node"), st.just(0), st.sampled_from(NODES), st.integers(4, 20)),
    st.tuples(st.just("asked"), st.sampled_from(["p", "q", "s", "t"]), some_nodes, st.just(0)),
    st.tuples(st.just("made"), st.sampled_from(["p", "q", "t"]), st.just(""), st.just(0)),
)
orders = st.sampled_from([NODES, NODES, NODES[::-1], ("b", "d"), ("c", "nowhere", "a")])


def happens(world: World, what: str, which: object, where: object, size: int) -> None:
    """One event."""
    name = f"o{which}"
    if what == "bound":
        world.put(make.claim(f"{name}-0", size), pod_of(name, 1, str(where)))
    elif what == "gone":
        world.put(pod_of(name, 1), gone=True)
        world.ledger, _ = step(world.ledger, PodGone(f"uid-{name}"), world.ledger.time if world.ledger.made else 0.0)
    elif what == "offered" and isinstance(where, frozenset):
        world.put(make.claim(f"{name}-0", size), pod_of(name, 1))
        world.offer(name, where)
    elif what == "withdrawn":
        world.ledger, _ = step(world.ledger, PodGone(f"uid-{name}"), world.ledger.time if world.ledger.made else 0.0)
    elif what == "roams":
        world.put(make.claim(f"{name}-0", size, storage_class="far"), pod_of(name, 1))
        world.offer(name, frozenset(), roams=True)
    elif what == "node":
        world.put(node_of(str(where), size, 6))
    elif what == "made":
        size = {"p": 5, "q": 5, "t": 3}[str(which)]
        world.put(*make.bound(f"{which}-0", size))
    elif what == "asked" and isinstance(where, frozenset):
        world.offer(str(which), where)


def counted(decision: Decision, names: tuple[str, ...]) -> dict[str, list[int]]:
    """The sizes of what was counted; which of equal roaming volumes it was does not matter."""
    besides = decision.besides
    return {name: sorted(v.volume.size for v in besides[name].volumes) for name in names if name in besides}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(events, st.sampled_from(["p", "q", "s", "t"]), orders), min_size=1, max_size=12),
    st.sampled_from([Packing.EXACT, Packing.AUTO, Packing.ORDER_SAFE]),
)
def test_what_is_kept_is_what_would_be_decided_anew(
    history: list[tuple[tuple[str, object, object, int], str, tuple[str, ...]]], packing: Packing
) -> None:
    """Demands and offers come and go, disks change, volumes roam, p and t share a claim, claims become volumes; equal pods and unequal ones ask, about these nodes or those."""
    world, options = World(), Options(packing=packing)
    for event, asking, names in history:
        happens(world, *event)
        kept = world.ask(asking, names, options, remembering=True)
        anew = world.ask(asking, names, options, remembering=False)
        assert kept.reasons == anew.reasons
        assert counted(kept, names) == counted(anew, names)
        assert kept.gave_up == anew.gave_up == 0


def test_questions_without_answers_to_keep_leave_nothing() -> None:
    """Where every node holds a replica, or something of the pod's own, each question would leave an entry."""
    world = World()
    world.offer("p", frozenset(NODES))
    for size in range(1, 9):
        world.put(make.claim("p-0", size))
        world.ask("p", NODES, Options(), remembering=True)
    assert not world.standing._answers
    world.ask("q", NODES, Options(), remembering=True)
    assert world.standing._kept == 1 + len(NODES)


def test_a_trail_tells_what_changed_since() -> None:
    """In any number of steps; not of a descent it does not know, nor of one that was cut off."""
    start = Trail()
    later = start.after(frozenset("a")).after(frozenset()).after(frozenset("bc"))
    assert later.since(start) == frozenset("abc")
    assert later.since(later) == frozenset()
    assert start.since(later) is None
    assert later.after(None).since(later) is None
    long = start
    for _ in range(MOST_STEPS + 1):
        long = long.after(frozenset("a"))
    assert long.since(start) is None
