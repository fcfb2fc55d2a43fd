"""Demand that is updated change by change equals demand that is derived from scratch."""

from hypothesis import example, given, strategies as st

from scheduler_core.cluster.update import build_view, empty_snapshot, update
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.volumes.demand_index import DemandIndex
from tests import builders as make
from tests.builders import NOW, Object
from tests.examples import examples
from tests.worlds.engines import engines

NODES = ("a", "b")
NAMES = ("x", "y")


def _attachment(name: str, volume: str, node: str) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {
            "attacher": "driver.longhorn.io",
            "nodeName": node,
            "source": {"persistentVolumeName": f"pv-{volume}"},
        },
    }


def _unbound_claim(name: str, selected: str) -> Object:
    raw = make.claim(name, 10)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": selected} if selected else {}
    return raw


def _bound_volume(name: str) -> list[Object]:
    return [make.claim(name, 10, bound=True), _persistent_volume(name), make.volume(f"vol-{name}", 10)]


def _persistent_volume(name: str) -> Object:
    return make.persistent_volume(name, uid=f"uid-{name}")


TIMES = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z")


def _provisioned_claim(name: str, selected: str, at: str) -> list[Object]:
    claim = make.claim(name, 10, bound=True)
    persistent = _persistent_volume(name)
    claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": selected} if selected else {}
    persistent["metadata"]["creationTimestamp"] = at
    return [claim, persistent]


def _with_creation_time(raw: Object, at: str) -> Object:
    raw["metadata"]["creationTimestamp"] = at
    return raw


def _node_with_disk(*, available: float, ready: bool = True, pressure: bool = True) -> Object:
    return make.longhorn_node("a", {"disk-1": make.disk(100, ready=ready, pressure=pressure, available=available)})


nodes = st.sampled_from(("", *NODES))
names = st.sampled_from(NAMES)
changes = st.one_of(
    st.builds(lambda name, node: make.replica(f"r-{name}", f"vol-{name}", node=node, size=10), names, nodes),
    st.builds(lambda name, node: make.replica(f"s-{name}", f"vol-{name}", node=node, size=10), names, nodes),
    st.builds(
        lambda name, node: make.replica(f"r-{name}", f"vol-{name}", size=10, hardNodeAffinity=node), names, nodes
    ),
    st.builds(_bound_volume, names),
    st.builds(_persistent_volume, names),
    st.builds(lambda name: make.claim(name, 10, bound=True), names),
    # The claim requests growth.
    st.builds(lambda name: make.claim(name, 20, bound=True), names),
    # Another volume takes the space to grow.
    st.builds(lambda node: make.replica("r-other", "vol-other", node=node, size=95), nodes),
    st.builds(
        lambda name, locality: make.volume(f"vol-{name}", 10, locality=locality),
        names,
        st.sampled_from(["disabled", "strict-local"]),
    ),
    st.builds(lambda name, node: make.volume(f"vol-{name}", 10, nodeID=node), names, nodes),
    st.builds(_unbound_claim, names, nodes),
    st.builds(_attachment, st.sampled_from(["t1", "t2"]), names, st.sampled_from(NODES)),
    st.builds(_provisioned_claim, names, nodes, st.sampled_from(TIMES)),
    st.builds(lambda name, at: _provisioned_claim(name, "", at)[1], names, st.sampled_from(TIMES)),
    st.builds(
        lambda name, node, claims, phase, at: _with_creation_time(
            make.pod(*claims, name=name, uid=name, node=node, phase=phase), at
        ),
        st.sampled_from(["p", "q"]),
        nodes,
        st.lists(names, unique=True),
        st.sampled_from(["Pending", "Succeeded"]),
        st.sampled_from(TIMES),
    ),
    st.builds(lambda name, ready: make.longhorn_node(name, ready=ready), st.sampled_from(NODES), st.booleans()),
    # A failed replica is used again or not, by its disk.
    st.builds(_node_with_disk, ready=st.booleans(), pressure=st.booleans(), available=st.sampled_from([5, 100])),
    st.builds(lambda: make.storage_class("longhorn")),
)
BASE: list[Object] = [
    *engines(NODES),
    make.storage_class("longhorn"),
    *(make.longhorn_node(name) for name in NODES),
    *_bound_volume("x"),
    make.volume("vol-y", 10),
    make.replica("r-x", "vol-x", node="a", size=10),
    make.pod("x", name="p", uid="p", node="a"),
    make.pod("y", name="r", uid="r", node="b"),
    make.pod("x", "y", name="q", uid="q"),
    make.claim("y", 20, bound=True),
    _persistent_volume("y"),
    make.replica("r-y", "vol-y", node="a", size=10),
    *_bound_volume("failed"),
    make.pod("failed", name="failed", uid="failed", node="a"),
    make.replica("r-failed", "vol-failed", node="a", size=10, failed=True),
    make.replica("s-failed", "vol-failed", node="b", size=10),
]


@examples(200)
@given(st.lists(st.tuples(changes, st.sampled_from([False, False, True]), st.booleans()), min_size=3, max_size=14))
@example([(_node_with_disk(available=5), False, False), (_node_with_disk(available=100), False, False)])
def test_every_change_leads_to_the_demand_that_a_fresh_start_derives(
    history: list[tuple[Object | list[Object], bool, bool]],
) -> None:
    """Objects appear, change and vanish in any order, one by one and several at once."""
    view = build_view(empty_snapshot(), NOW, 0)
    demands = DemandIndex.of(view)
    pending: dict[tuple[str, Key], object | None] = {}
    for change, deleted, batched in [(BASE, False, False), *history]:
        for raw in make.flat(change):
            kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
            key, value = kind.read(raw)
            pending[kind.field, key] = None if deleted else value
        if batched:
            continue
        later = update(view, pending, NOW).view
        demands = demands.update(view, pending, later)
        view = later
        pending = {}
        fresh = DemandIndex.of(view)
        assert demands.all == fresh.all
        assert dict(demands.by_node) == dict(fresh.by_node)
        assert demands == fresh
        assert demands.unplaced.by_size == fresh.unplaced.by_size
        assert demands.unplaced.replicas == fresh.unplaced.replicas
        assert sorted(demands.unplaced.by_key) == sorted(entry.key for entry in demands.unplaced.counted)
