"""A view advanced change by change equals one built from scratch, and so do the decisions made from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.update import Advanced, advance, empty_snapshot, rebuilt
from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.cooperative import finish
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Options, explain_nodes
from scheduler_core.model.snapshot import Snapshot
from tests import builders as make
from tests.builders import NOW, Object
from tests.core.disk_schedule.test_accounting import disk_schedule

NODES = ("a", "b", "c")
VOLUMES = ("v1", "v2", "v3")


def _node(name: str, scheduled: int, listed: dict[str, int], allow: bool, disks: int) -> Object:
    disk = make.disk(100, scheduled=scheduled, listed=listed, allow=allow)
    return make.longhorn_node(name, {f"disk-{index}": disk for index in range(1, 1 + disks)})


def _manager(node: str) -> Object:
    return {
        "apiVersion": make.LONGHORN,
        "kind": "InstanceManager",
        "metadata": {"name": f"im-{node}", "namespace": "longhorn-system"},
        "spec": {"nodeID": node, "dataEngine": "v1", "image": ""},
        "status": {"currentState": "running"},
    }


def _engine_image(nodes: list[str]) -> Object:
    return {
        "apiVersion": make.LONGHORN,
        "kind": "EngineImage",
        "metadata": {"name": "ei", "namespace": "longhorn-system"},
        "spec": {"image": ""},
        "status": {"state": "deployed", "nodeDeploymentMap": dict.fromkeys(nodes, True)},
    }


names = st.sampled_from(NODES)
changes = st.one_of(
    st.builds(
        lambda name, volume, node, size: make.replica(name, f"vol-{volume}", node, size=size),
        st.sampled_from(["r1", "r2", "r3"]),
        st.sampled_from(VOLUMES),
        st.sampled_from(("", *NODES)),
        st.integers(1, 90),
    ),
    st.builds(
        _node,
        names,
        st.integers(0, 100),
        st.dictionaries(st.sampled_from(["r1", "r2"]), st.integers(1, 50)),
        st.booleans(),
        st.integers(0, 2),
    ),
    st.builds(lambda name, label: make.kube_node(name, zone=label), names, st.sampled_from("xy")),
    st.builds(make.claim, st.sampled_from(["data", "logs"]), st.integers(1, 100)),
    st.builds(lambda name: make.bound(name, 10), st.sampled_from(VOLUMES)),
    st.builds(
        lambda name, node, claims: make.pod(*claims, name=name, node=node),
        st.sampled_from(["p", "q"]),
        st.sampled_from(("", *NODES)),
        st.lists(st.sampled_from(["data", "logs", *VOLUMES]), unique=True),
    ),
    st.builds(
        lambda percent: make.setting("storage-over-provisioning-percentage", percent),
        st.sampled_from(["100", "200", "x"]),
    ),
    st.builds(lambda: make.storage_class("longhorn")),
    st.builds(_manager, names),
    st.builds(_engine_image, st.lists(names, unique=True)),
    *[
        st.builds(
            lambda name, disk, asked, answers, owner: disk_schedule(
                f"{name}-{disk}", replicas=asked, answers=answers, node=owner or name, disk=disk
            ),
            names,
            st.sampled_from(["disk-1", "disk-2"]),
            st.dictionaries(st.sampled_from(["r1", "r2", "r3", "other"]), st.integers(0, 60)),
            st.dictionaries(
                st.sampled_from(["r1", "r2", "r3"]),
                st.tuples(st.sampled_from(["scheduled", "rejected"]), st.integers(0, 60)),
            ),
            st.sampled_from(["", "", "", "a"]),
        )
    ]
    * 2,
)


def _read(raw: Object) -> tuple[str, Key, object]:
    kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
    key, value = kind.read(raw)
    return kind.field, key, value


def _plain(value: Any) -> Any:
    """Equal whatever kind of mapping holds it."""
    if isinstance(value, Snapshot):
        return {name: dict(getattr(value, name) or {}) for name in Snapshot.__dataclass_fields__}
    return dict(value) if hasattr(value, "items") else value


def _contents(view: View) -> dict[str, Any]:
    cluster = {name: _plain(getattr(view.cluster, name)) for name in type(view.cluster).__dataclass_fields__}
    indexes = {name: dict(getattr(view.indexes, name)) for name in type(view.indexes).__dataclass_fields__}
    cluster["settings"] = repr(cluster["settings"])  # faults are exceptions, which equal only themselves
    return {**cluster, **indexes, "class": view.default_storage_class, "order": list(view.cluster.nodes)}


# What every history starts with, so that a change more often meets something it affects.
BASE: list[Object] = [
    make.storage_class("longhorn"),
    *(make.longhorn_node(name) for name in NODES),
    *(make.kube_node(name, zone="x") for name in NODES),
    *(_manager(name) for name in NODES),
    _engine_image(list(NODES)),
    *(raw for name in VOLUMES for raw in make.bound(name, 10)),
    make.claim("data", 40),
    make.claim("logs", 40),
    *(make.replica(f"r{index}", f"vol-v{index}", node=name, size=50) for index, name in enumerate(NODES, start=1)),
    make.pod("v1", name="p", node="a"),
]


@settings(max_examples=300)
@given(st.lists(st.tuples(changes, st.sampled_from([False, False, True]), st.booleans()), min_size=4, max_size=15))
def test_every_change_leads_to_the_view_and_the_decision_that_a_fresh_start_gives(
    history: list[tuple[Object | list[Object], bool, bool]],
) -> None:
    """Objects appear, change and vanish in any order, one by one and several at once."""
    objects: dict[tuple[str, Key], object] = {}
    memory = Memory(rebuilt(empty_snapshot(), NOW, 0))
    pending: dict[tuple[str, Key], object | None] = {}
    asked = [make.as_pod(make.pod(*claims, uid="new", name="new")) for claims in (("data", "logs"), ("data",), VOLUMES)]
    for change, deleted, batched in [(BASE, False, False), *history]:
        for raw in make.flat(change):
            field, key, value = _read(raw)
            pending[field, key] = None if deleted else value
            if deleted:
                objects.pop((field, key), None)
            else:
                objects[field, key] = value
        if batched:
            continue
        advanced = advance(memory.view, pending, NOW)
        pending = {}
        memory = memory.after(advanced.view, advanced.touched)
        fresh = rebuilt(_snapshot(objects), NOW, 0)
        assert _contents(advanced.view) == _contents(fresh)
        for pod in asked:
            assert _decision(memory, pod) == _decision(Memory(fresh), pod)


def _snapshot(objects: dict[tuple[str, Key], object]) -> Snapshot:
    found: dict[str, dict[Key, object]] = {name: {} for name in Snapshot.__dataclass_fields__}
    for (field, key), value in objects.items():
        found[field][key] = value
    return replace(empty_snapshot(), **found)  # type: ignore[arg-type]


def _decision(memory: Memory, pod: Any) -> Any:
    from scheduler_core.errors import ResolutionError

    try:
        return finish(explain_nodes(pod, [*NODES, "elsewhere"], memory, Options())).verdicts
    except ResolutionError as error:
        return str(error)


def test_a_change_that_makes_no_difference_leaves_the_version_alone() -> None:
    """Most events of a cluster are such: a heartbeat, a repeated status."""
    field, key, value = _read(make.longhorn_node("a"))
    first: Advanced = advance(rebuilt(empty_snapshot(), NOW, 0), {(field, key): value}, NOW)
    again = advance(first.view, {(field, key): value}, NOW)
    assert (first.view.version, again.view.version, again.touched) == (1, 1, frozenset())


def test_a_table_that_is_being_brought_up_to_date_is_not_disturbed_by_the_next_change() -> None:
    """A request pauses while its nodes are looked at again; meanwhile more nodes change."""
    names = [f"n{index}" for index in range(200)]
    manager = [_manager(name) for name in names]
    objects = [make.storage_class("longhorn"), make.claim("data", 40), _engine_image(names), *manager]
    nodes = [make.longhorn_node(name) for name in names]
    pod = make.as_pod(make.pod("data"))
    memory = _stepped(Memory(rebuilt(empty_snapshot(), NOW, 0)), [*objects, *nodes[:100]])
    finish(explain_nodes(pod, names, memory, Options()))
    memory = _stepped(memory, [make.longhorn_node(name, 10) for name in names[:100]])
    paused = explain_nodes(pod, names, memory, Options())
    next(paused)
    _stepped(memory, nodes[100:])
    fits = [verdict.fits for verdict in finish(paused).verdicts]
    assert fits == [False] * 200


def _stepped(memory: Memory, raws: list[Object]) -> Memory:
    changes: dict[tuple[str, Key], object | None] = {(field, key): value for field, key, value in map(_read, raws)}
    advanced = advance(memory.view, changes, NOW)
    return memory.after(advanced.view, advanced.touched)


def test_what_is_remembered_is_bounded_however_often_nodes_change() -> None:
    """A long-lived leader sees every node change without end; verdicts of profiles that are gone must go too."""
    names = [f"n{index}" for index in range(4)]
    base = [make.storage_class("longhorn"), make.claim("data", 40), _engine_image(names), *map(_manager, names)]
    memory = _stepped(Memory(rebuilt(empty_snapshot(), NOW, 0)), base)
    pod = make.as_pod(make.pod("data"))
    most = 0
    for number in range(1500):
        node = make.longhorn_node(names[number % 4], {"disk-1": make.disk(100, scheduled=number % 997 / 10)})
        memory = _stepped(memory, [node])
        finish(explain_nodes(pod, names, memory, Options()))
        most = max(most, *(len(known) for _, known in memory._known.items()))
    assert most <= memory._most_profiles + len(names)
