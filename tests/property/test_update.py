"""A state updated change by change equals one built from scratch, and so do the decisions made from it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given, strategies as st

from scheduler_core.cluster.update import build_view, empty_snapshot, update
from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.decide.decision import Decision, FilterOptions
from scheduler_core.decide.explain import explain_nodes
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation import cluster_state
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.disk_profiles import Refused, profile_node
from scheduler_core.evaluation.fit import OpenDisk
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.packing.budget import Budget
from scheduler_core.structs import replace
from scheduler_core.volumes.resolve import resolve
from scheduler_core.volumes.volume_requirements import VolumeClasses, requirements
from tests import builders as make
from tests.builders import NOW, Object
from tests.examples import examples
from tests.worlds.changes import Changes, changes_of, empty_state
from tests.worlds.decision_runners import run_with
from tests.worlds.disk_schedules import disk_schedule
from tests.worlds.engines import engine_image, engines, instance_manager

NODES = ("a", "b", "c")
VOLUMES = ("v1", "v2", "v3")
PODS = [make.as_pod(make.pod(*claims, uid="new", name="new")) for claims in (("data", "logs"), ("data",), VOLUMES)]


def _node(name: str, scheduled: int, listed: dict[str, int], allow: bool, disks: int) -> Object:
    disk = make.disk(100, scheduled=scheduled, listed=listed, allow=allow)
    return make.longhorn_node(name, {f"disk-{index}": disk for index in range(1, 1 + disks)})


names = st.sampled_from(NODES)
replica_names = st.sampled_from(["r1", "r2", "r3"])
disk_schedules = st.builds(
    lambda name, disk, replicas, answers, owner: disk_schedule(
        f"{name}-{disk}", replicas=replicas, answers=answers, node=owner or name, disk=disk
    ),
    names,
    st.sampled_from(["disk-1", "disk-2"]),
    st.dictionaries(st.sampled_from(["r1", "r2", "r3", "other"]), st.integers(0, 60)),
    st.dictionaries(replica_names, st.tuples(st.sampled_from(["scheduled", "rejected"]), st.integers(0, 60))),
    st.sampled_from(["", "", "", "a"]),
)


def _growing_claim(name: str, requested: int, capacity: int, reserved: bool) -> list[Object]:
    volume = make.persistent_volume(name, uid=f"uid-{name}" if reserved else None)
    volume["spec"]["capacity"] = {"storage": f"{capacity}Gi"}
    return [make.claim(name, requested, bound=True), volume]


def _claim_with_node(name: str, node: str, bound: bool) -> Object:
    raw = make.claim(name, 40, bound=bound)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": node}
    return raw


changed_objects = st.one_of(
    st.builds(_growing_claim, st.sampled_from(VOLUMES), st.integers(5, 60), st.sampled_from([0, 30]), st.booleans()),
    st.builds(
        lambda name, size: make.volume(f"vol-{name}", size, locality="strict-local"),
        st.sampled_from(VOLUMES),
        st.integers(5, 60),
    ),
    st.builds(
        lambda name, volume, node, size: make.replica(name, f"vol-{volume}", node, size=size),
        replica_names,
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
    st.builds(_claim_with_node, st.sampled_from(["data", "logs"]), names, st.booleans()),
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
    st.builds(
        lambda name, size, node: make.available_volume(name, size, node=node),
        st.sampled_from(["pv-v1", "pv-v2"]),
        st.integers(30, 60),
        st.sampled_from(["", "x"]),
    ),
    st.builds(
        lambda name, claim: make.available_volume(name, claimRef={"namespace": "default", "name": claim}),
        st.sampled_from(["pv-v1", "pv-v2"]),
        st.sampled_from(["data", "logs"]),
    ),
    st.builds(instance_manager, names),
    st.builds(engine_image, st.lists(names, unique=True)),
    # Twice, so that they are chosen more often.
    disk_schedules,
    disk_schedules,
)


def _plain(value: Any) -> Any:
    if isinstance(value, Snapshot):
        return {name: dict(getattr(value, name) or {}) for name in Snapshot.__match_args__}
    return dict(value) if hasattr(value, "items") else value


def _contents(view: View) -> dict[str, Any]:
    cluster: dict[str, Any] = {name: _plain(getattr(view.cluster, name)) for name in type(view.cluster).__match_args__}
    values = {name: getattr(view.indexes, name) for name in type(view.indexes).__match_args__}
    indexes = {name: _plain(value) for name, value in values.items()}
    cluster["settings"] = repr(cluster["settings"])  # faults are exceptions, which equal only themselves
    return {**cluster, **indexes, "class": view.default_storage_class, "order": list(view.cluster.nodes)}


# The start of every history, so that most changes meet an object that they affect.
BASE: list[Object] = [
    make.storage_class("longhorn"),
    *(make.longhorn_node(name) for name in NODES),
    *(make.kube_node(name, zone="x") for name in NODES),
    *engines(NODES),
    *(raw for name in VOLUMES for raw in make.bound(name, 10)),
    make.claim("data", 40),
    make.claim("logs", 40),
    *(make.replica(f"r{index}", f"vol-v{index}", node=name, size=50) for index, name in enumerate(NODES, start=1)),
    make.pod("v1", name="p", node="a"),
    make.pod("data", name="q", uid="uid-q"),
]
BASE_OBJECTS = {key: value for key, value in changes_of(BASE).items() if value is not None}
BASE_VIEW = update(build_view(empty_snapshot(), NOW, 0), BASE_OBJECTS, NOW).view


def _snapshot(objects: Mapping[tuple[str, Key], object]) -> Snapshot:
    by_field: dict[str, dict[Key, object]] = {name: {} for name in Snapshot.__match_args__}
    for (field, key), value in objects.items():
        by_field[field][key] = value
    return replace(empty_snapshot(), **by_field)  # type: ignore[arg-type]


def _try(answer: Callable[[], Any]) -> Any:
    try:
        return answer()
    except ResolutionError as error:
        return str(error)


def _explain(state: ClusterState, pod: Pod) -> Any:
    return _try(lambda: explain_nodes(pod, [*NODES, "elsewhere"], state, FilterOptions()).verdicts)


def _decide(state: ClusterState, pod: Pod) -> Any:
    return _try(lambda: filter_nodes(pod, [*NODES, "elsewhere"], state, FilterOptions()).reasons)


def _fresh_state(objects: Mapping[tuple[str, Key], object]) -> ClusterState:
    return ClusterState.of(build_view(_snapshot(objects), NOW, 0))


@examples(150)
@given(
    st.lists(st.tuples(changed_objects, st.sampled_from([False, False, True]), st.booleans()), min_size=4, max_size=15)
)
def test_every_change_leads_to_the_view_and_decisions_of_a_fresh_state(
    history: list[tuple[Object | list[Object], bool, bool]],
) -> None:
    """Objects appear, change and vanish in any order, also several at once."""
    objects: dict[tuple[str, Key], object] = dict(BASE_OBJECTS)
    state = ClusterState.of(BASE_VIEW)
    for pod in PODS:
        _decide(state, pod)
    pending: Changes = {}
    for change, deleted, batched in history:
        for key, value in changes_of(change).items():
            pending[key] = None if deleted else value
            if deleted:
                objects.pop(key, None)
            else:
                objects[key] = value
        if batched:
            continue
        state = state.update(pending, NOW)
        pending = {}
        fresh = _fresh_state(objects)
        assert _contents(state.view) == _contents(fresh.view)
        for pod in PODS:
            assert _decide(state, pod) == _decide(fresh, pod)
    state = state.update(pending, NOW)
    fresh = _fresh_state(objects)
    for pod in PODS:
        assert _explain(state, pod) == _explain(fresh, pod)


def test_a_change_without_a_difference_keeps_the_version() -> None:
    """Most events of a cluster are such changes: a heartbeat, a repeated status."""
    changes = changes_of(make.longhorn_node("a"))
    first = update(build_view(empty_snapshot(), NOW, 0), changes, NOW)
    second = update(first.view, changes, NOW)
    assert (first.view.version, second.view.version, second.changed_nodes) == (1, 1, frozenset())


def _numbered(number: int, nodes: int | None = None) -> tuple[list[str], ClusterState]:
    """Names of nodes, and the state with the first of them and a claim `data`."""
    names = [f"n{index}" for index in range(number)]
    raw = [make.longhorn_node(name) for name in names[:nodes]]
    objects = changes_of(make.storage_class("longhorn"), make.claim("data", 40), engines(names), raw)
    return names, empty_state().update(objects, NOW)


PENDING = make.as_pod(make.pod("data"))


def _filter(names: list[str], state: ClusterState) -> Decision:
    return filter_nodes(PENDING, names, state, FilterOptions())


def test_a_request_that_updates_a_table_ignores_the_next_change() -> None:
    """While changed nodes are profiled, more nodes change, and a more urgent request reads them."""
    names, state = _numbered(200, nodes=100)
    explain_nodes(PENDING, names, state, FilterOptions())
    state = state.update(changes_of([make.longhorn_node(name, 10) for name in names[:100]]), NOW)
    explain = partial(explain_nodes, PENDING, names, state, FilterOptions())
    later = state.update(changes_of([make.longhorn_node(name) for name in names[100:]]), NOW)
    answer = run_with(lambda: _filter(names, later), explain, after=50)
    assert [verdict.fits for verdict in answer.verdicts] == [False] * 200


def _refused(decision: Decision) -> list[str]:
    return [name for name, reason in zip(decision.candidates, decision.reasons, strict=True) if not reason.fits]


def test_profiles_made_while_nodes_change_serve_the_later_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a burst each state has a successor before its profiles are complete."""
    names, state = _numbered(200)
    profiled: list[str] = []

    def count(view: View, classes: VolumeClasses, name: str) -> Refused | tuple[OpenDisk, ...]:
        profiled.append(name)
        return profile_node(view, classes, name)

    monkeypatch.setattr(cluster_state, "profile_node", count)
    later: list[ClusterState] = []

    def change() -> None:
        later.append(state.update(changes_of(make.longhorn_node("n7", 10)), NOW))

    assert _refused(run_with(change, partial(_filter, names, state), after=100)) == []
    (later_state,) = later
    profiled.clear()
    assert _refused(_filter(names, later_state)) == ["n7"]
    assert profiled == ["n7"]
    last = later_state.update(changes_of(make.longhorn_node("n8", 10)), NOW)
    latest = last.update(changes_of(make.longhorn_node("n9", 10)), NOW)
    profiled.clear()
    assert _refused(_filter(names, latest)) == ["n7", "n8", "n9"]
    assert _refused(_filter(names, last)) == ["n7", "n8"]
    assert profiled in (["n8", "n9", "n9"], ["n9", "n8", "n9"]), "an older state is made from the newer one"


def test_the_profile_cache_is_bounded_however_often_nodes_change() -> None:
    """A long-lived leader sees nodes change without end; results of outdated profiles must be dropped."""
    names, state = _numbered(4, nodes=0)
    resolution = resolve(PENDING, state.view)
    required = requirements(resolution.local, resolution.volumes)
    largest = 0
    for number in range(1500):
        node = make.longhorn_node(names[number % 4], {"disk-1": make.disk(100, scheduled=number % 997 / 10)})
        state = state.update(changes_of(node), NOW)
        explain_nodes(PENDING, names, state, FilterOptions())
        cached = state.profiles.evaluate(required, [], Budget(), examine_safety=True)
        largest = max(largest, len(cached))
    # At most 64 results, 4 for each node, and those of one request; there are 997 different profiles.
    assert len(names) < largest <= 64 + 5 * len(names)
