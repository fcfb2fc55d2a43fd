"""The extender and DiskSchedules: a replica counts once wherever it is seen, and what a DiskSchedule refuses nobody is sent to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.cluster.update import Changes, Update, build_view, empty_snapshot, update
from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.demand.index import DemandIndex
from scheduler_core.longhorn.disk_stage import disk_and_space_refusal
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.rules import Rule
from scheduler_core.longhorn.space import space_detail, space_refusal
from scheduler_core.model.longhorn import Volume
from tests import builders as make
from tests.builders import GI, NOW, Object

UUID = "n-disk-1"
Sizes = Mapping[str, float]
Answers = Mapping[str, tuple[str, float]]


def disk_schedule(
    uuid: str = UUID,
    *,
    replicas: Sizes | None = None,
    answers: Answers | None = None,
    images: Sizes | None = None,
    image_answers: Answers | None = None,
    node: str = "n",
    disk: str = "disk-1",
    deleting: bool = False,
) -> Object:
    """A diskschedules.longhorn.io; sizes in Gi, answers as (state, size)."""

    def asked(sizes: Sizes | None) -> Object:
        return {name: int(size * GI) for name, size in (sizes or {}).items()}

    def answered(entries: Answers | None) -> Object:
        found = (entries or {}).items()
        return {name: {"state": state, "scheduledSize": int(size * GI)} for name, (state, size) in found}

    metadata: Object = {"name": uuid, "namespace": "longhorn-system", "finalizers": ["longhorn.io"]}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": make.LONGHORN,
        "kind": "DiskSchedule",
        "metadata": metadata,
        "spec": {"name": disk, "nodeID": node, "replicas": asked(replicas), "backingImages": asked(images)},
        "status": {"replicas": answered(answers), "backingImages": answered(image_answers)},
    }


def free(*objects: Object, listed: Sizes | None = None, percent: int = 100, available: float = 100) -> float:
    """The Gi that the only disk, of 100 Gi, can still take."""
    view = seen(*objects, listed=listed, percent=percent, available=available)
    return view.free_space("n")["disk-1"].free / GI


def seen(*objects: Object, listed: Sizes | None = None, percent: int = 100, available: float = 100) -> View:
    """A view of that disk."""
    node = make.longhorn_node("n", {"disk-1": make.disk(100, listed=listed, available=available)})
    return make.view(node, make.setting("storage-over-provisioning-percentage", str(percent)), *objects)


PLACES = ("replica", "scheduledReplica", "request", "answer")
SUBSETS = [set(found) for count in range(5) for found in itertools.combinations(PLACES, count)]


def placed(seen_as: Mapping[str, set[str]], sizes: Sizes) -> tuple[list[Object], dict[str, float]]:
    """Some replicas where each is seen: the objects, and what Longhorn's status lists."""
    asked = {name: sizes[name] for name, places in seen_as.items() if "request" in places}
    answers = {name: ("scheduled", sizes[name]) for name, places in seen_as.items() if "answer" in places}
    objects = [
        make.replica(name, f"vol-{name}", "n", size=sizes[name])
        for name, places in seen_as.items()
        if "replica" in places
    ]
    listed = {name: sizes[name] for name, places in seen_as.items() if "scheduledReplica" in places}
    return [*objects, disk_schedule(replicas=asked, answers=answers)], listed


@pytest.mark.parametrize(
    ("percent", "available"), [(100, 1000), (1000, 100)], ids=["Longhorn's limit", "its own limit"]
)
def test_replicas_count_once_wherever_they_are_seen(percent: int, available: float) -> None:
    """Every one of two replicas in every subset of places: nowhere is 0, anywhere is its size, for either limit."""
    sizes = {"r1": 7, "r2": 11}
    for first, second in itertools.product(SUBSETS, SUBSETS):
        objects, listed = placed({"r1": first, "r2": second}, sizes)
        counted = (7 if first else 0) + (11 if second else 0)
        found = free(*objects, listed=listed, percent=percent, available=available)
        assert found == 100 - counted, (first, second)


NAMES = st.sampled_from(["r1", "r2", "r3"])
GIBS = st.integers(1, 12)


@given(
    st.dictionaries(NAMES, GIBS),
    st.dictionaries(NAMES, GIBS),
    st.dictionaries(NAMES, GIBS),
    st.dictionaries(NAMES, st.tuples(st.sampled_from(["scheduled", "rejected"]), st.integers(0, 12))),
    st.sampled_from([20, 60, 100, 200]),
    st.integers(1, 100),
)
def test_the_room_is_what_is_left_of_both_limits_when_every_name_counts_once(  # noqa: PLR0917
    there: dict[str, int],
    listed: dict[str, int],
    asked: dict[str, int],
    answers: dict[str, tuple[str, int]],
    percent: int,
    available: int,
) -> None:
    """Name by name: by Longhorn's limit the largest size at which it is seen, by the DiskSchedule's what that says, if it knows it."""
    longhorn = granted = 0
    for name in there.keys() | listed.keys() | asked.keys() | answers.keys():
        state, held = answers.get(name, ("", 0))
        claim = held if state == "rejected" else max(held, asked.get(name, 0))
        leaving = state == "rejected" and not held
        longhorn += max(listed.get(name, 0), 0 if leaving else max(claim, there.get(name, 0)))
        known = name in asked or name in answers
        granted += claim if known else max(there.get(name, 0), listed.get(name, 0))
    replicas = [make.replica(name, f"vol-{name}", "n", size=size) for name, size in there.items()]
    schedule = disk_schedule(replicas=asked, answers=answers)
    found = free(schedule, *replicas, listed=listed, percent=percent, available=available)
    assert found == min(percent - longhorn, available - granted)


@pytest.mark.parametrize(
    ("schedule", "listed", "replicas", "taken"),
    [
        pytest.param(disk_schedule(replicas={"r": 30}), {}, [], 30, id="pending"),
        pytest.param(disk_schedule(replicas={"r": 30}, answers={"r": ("scheduled", 30)}), {}, [], 30, id="scheduled"),
        pytest.param(disk_schedule(answers={"r": ("scheduled", 30)}), {}, [], 30, id="withdrawn, not released yet"),
        pytest.param(disk_schedule(replicas={"r": 30}, answers={"r": ("rejected", 0)}), {}, [], 0, id="rejected"),
        pytest.param(
            disk_schedule(replicas={"r": 30}, answers={"r": ("rejected", 0)}),
            {},
            [make.replica("r", "vol", "n", size=30, healthy=False)],
            0,
            id="rejected, its replica about to leave",
        ),
        pytest.param(
            disk_schedule(replicas={"r": 50}, answers={"r": ("scheduled", 30)}),
            {"r": 30},
            [make.replica("r", "vol", "n", size=30)],
            50,
            id="growth pending",
        ),
        pytest.param(
            disk_schedule(replicas={"r": 50}, answers={"r": ("rejected", 30)}),
            {"r": 30},
            [make.replica("r", "vol", "n", size=30)],
            30,
            id="growth rejected: the old size",
        ),
        pytest.param(disk_schedule(), {}, [make.replica("r", "vol", "n", size=30)], 30, id="placed, not asked for yet"),
        pytest.param(disk_schedule(images={"b": 3}), {}, [], 3, id="backing image pending"),
        pytest.param(disk_schedule(image_answers={"b": ("scheduled", 3)}), {}, [], 3, id="backing image held"),
    ],
)
def test_what_a_disk_schedule_says_counts(
    schedule: Object, listed: Sizes, replicas: list[Object], taken: float
) -> None:
    """By Longhorn's limit as by its own."""
    assert free(schedule, *replicas, listed=listed, percent=100, available=1000) == 100 - taken
    assert free(schedule, *replicas, listed=listed, percent=1000, available=100) == 100 - taken


def test_the_limit_of_a_disk_schedule_holds_beside_longhorns_over_provisioning() -> None:
    """Longhorn alone would promise 200 Gi here; the DiskSchedule promises what is available, less as data is written."""
    assert free(percent=200, available=40) == 200
    assert free(disk_schedule(), percent=200, available=40) == 40
    assert free(disk_schedule(), percent=50, available=80) == 50


def test_an_over_allocated_disk_takes_nothing() -> None:
    """What is held is more than what is available, and stays held."""
    schedule = disk_schedule(replicas={"r": 70}, answers={"r": ("scheduled", 70)})
    assert free(schedule, percent=200, available=40) == -30


def faulty(field: str, value: object) -> Object:
    """A DiskSchedule with one field that is not what it should be."""
    part, _, name = field.partition(".")
    raw = disk_schedule()
    return {**raw, part: {**raw[part], name: value}}


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(disk_schedule(deleting=True), id="being deleted"),
        pytest.param(disk_schedule(node="other"), id="of another node"),
        pytest.param(disk_schedule(disk="disk-9"), id="of a disk that is not there"),
        pytest.param(faulty("spec.replicas", [3]), id="requests unreadable"),
        pytest.param(faulty("spec.backingImages", "none"), id="requests for images unreadable"),
        pytest.param(faulty("status.replicas", 3), id="answers unreadable"),
    ],
)
def test_a_disk_whose_disk_schedule_would_refuse_everything_takes_nothing(schedule: Object) -> None:
    """And so does one of which nobody knows what it holds."""
    assert free(schedule) == 0


@pytest.mark.parametrize("condition", ["ready", "schedulable"])
def test_a_disk_that_is_not_ready_or_not_schedulable_takes_nothing(condition: str) -> None:
    """Longhorn's own space rules do not look at that; the DiskSchedule's controller does."""
    node = make.longhorn_node("n", {"disk-1": make.disk(100, ready=condition != "ready", schedulable=False)})
    assert make.view(node).free_space("n")["disk-1"].free == 100 * GI
    assert make.view(node, disk_schedule()).free_space("n")["disk-1"].free == 0


def test_one_request_that_cannot_be_read_counts_nothing_and_leaves_the_others_alone() -> None:
    """Its controller rejects it: nothing is held for it."""
    schedule = disk_schedule(replicas={"r": 30})
    schedule["spec"]["replicas"]["x"] = "many"
    assert free(schedule) == 70


def test_a_disk_without_a_disk_schedule_is_judged_by_longhorn_alone() -> None:
    """Others' do not matter, nor do those of disks that are not there."""
    assert free(disk_schedule("other-disk-1", replicas={"r": 30}), disk_schedule("gone", node="n"), percent=200) == 200


def test_every_way_to_look_at_a_disk_finds_the_same_room() -> None:
    """The rules for nodes with replicas of the volume take bytes that are not counted, all others the room."""
    view = seen(disk_schedule(replicas={"r": 30}), percent=200, available=80)
    node = view.cluster.nodes["n"]
    (disk,) = node.disks
    room = view.free_space("n")["disk-1"]
    assert room.free == 50 * GI
    for gib, refused in ((50, None), (51, Rule.SCHEDULING_SPACE)):
        volume = Volume("v", size=gib * GI)
        found = disk_and_space_refusal(
            view.cluster, ReplicaRequest.for_volume(volume), node, disk, view.uncounted_bytes(node.name, disk)
        )
        assert (found.rule if found else None) is refused
        assert space_refusal(volume.size, 0, room) is refused


def test_a_refusal_names_the_limit_that_refused() -> None:
    """The DiskSchedule's, or Longhorn's where that is the smaller one."""
    volume = Volume("v", size=60 * GI)

    def told(percent: int) -> str:
        view = seen(disk_schedule(), percent=percent, available=40)
        (disk,) = view.cluster.nodes["n"].disks
        return space_detail(Rule.SCHEDULING_SPACE, disk, view.settings, view.free_space("n")["disk-1"], volume)

    assert told(200) == "disk disk-1: 60Gi must be at most the 40Gi its DiskSchedule still grants"
    assert "30 %" in told(30)


@pytest.mark.parametrize(("held", "fits"), [(50, True), (51, False)])
def test_a_pod_fits_only_where_the_disk_schedule_leaves_room(held: float, fits: bool) -> None:
    """Its own limit and what is pending are part of the decision."""
    found = make.explained(
        make.pod("data"),
        make.storage_class("longhorn"),
        make.kube_node("n"),
        make.longhorn_node("n", {"disk-1": make.disk(100)}),
        make.setting("storage-over-provisioning-percentage", "200"),
        make.claim("data", 50),
        disk_schedule(replicas={"r": held}),
    )
    assert make.fitting(found) == (["n"] if fits else [])


def changed(view: View, *objects: Object, gone: bool = False) -> Update:
    """The view after some objects came, changed or went."""
    changes: dict[tuple[str, Key], object | None] = {}
    for raw in objects:
        kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
        key, value = kind.read(raw)
        changes[kind.field, key] = None if gone else value
    return update(view, changes, NOW)


def started(*objects: Object) -> View:
    """A view of some objects that can be advanced."""
    return changed(build_view(empty_snapshot(), NOW, 0), *objects).view


def test_a_changed_disk_schedule_touches_its_node_and_no_other() -> None:
    """So that only there profiles are looked at again."""
    base, schedule = started(make.longhorn_node("n"), make.longhorn_node("m")), disk_schedule(replicas={"r": 30})
    there = changed(base, schedule)
    assert there.changed_nodes == frozenset({"n"})
    assert there.view.free_space("n")["disk-1"].free == 70 * GI
    gone = changed(there.view, schedule, gone=True)
    assert gone.changed_nodes == frozenset({"n"})
    assert gone.view.free_space("n") == base.free_space("n")


def test_what_says_nothing_about_bytes_is_not_a_change() -> None:
    """Its controller's conditions and sums come with every decision; a view need not be made for them."""
    raw = disk_schedule(replicas={"r": 30})
    conditions = [{"type": "Schedulable", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    told = {**raw, "status": {**raw["status"], "storageScheduled": 0, "storageAvailable": 5, "conditions": conditions}}
    kind = KINDS[group_of(make.LONGHORN), "DiskSchedule"]
    assert kind.read(told) == kind.read(raw)


def test_a_disk_that_changes_nodes_takes_its_disk_schedule_along() -> None:
    """The new node counts what is held; while spec.nodeID still names the old one, nothing is granted there."""
    moved = make.longhorn_node("m", {"disk-1": make.disk(100)})
    moved["status"]["diskStatus"]["disk-1"]["diskUUID"] = UUID
    schedule = disk_schedule(answers={"r": ("scheduled", 30)})
    view = changed(started(make.longhorn_node("n"), schedule), moved, make.longhorn_node("n", {})).view
    assert view.free_space("m")["disk-1"].free == 0
    view = changed(view, {**schedule, "spec": {**schedule["spec"], "nodeID": "m"}}).view
    assert view.free_space("m")["disk-1"].free == 70 * GI


def test_a_volume_whose_replica_was_rejected_demands_its_node_until_it_has_another_place() -> None:
    """Otherwise its bytes would count nowhere until the controller moves it; once the answer is another one, they count there."""
    bound = [
        make.claim("x", 20, bound=True),
        make.persistent_volume("x", uid="uid-x"),
        make.volume("vol-x", 20),
        make.replica("r", "vol-x", "n", size=20, healthy=False),
        make.pod("x", node="n"),
    ]
    rejected = disk_schedule(replicas={"r": 20}, answers={"r": ("rejected", 0)})
    granted = disk_schedule(replicas={"r": 20}, answers={"r": ("scheduled", 20)})
    node = make.longhorn_node("n", {"disk-1": make.disk(100)})
    before = started(make.storage_class(), node, *bound, granted)
    assert DemandIndex.of(before).all == ()
    changes: Changes = {
        ("disk_schedules", "n-disk-1"): changed(before, rejected).view.snapshot.disk_schedules["n-disk-1"]
    }
    after = changed(before, rejected).view
    demands = DemandIndex.of(before).updated(before, changes, after)
    assert [demand.volume.name for demand in demands.all] == ["vol-x"]
    assert demands == DemandIndex.of(after)


def test_one_that_mirrors_what_longhorn_does_by_itself_counts_nothing() -> None:
    """Nothing is allocated through it, so its limit holds for nobody."""
    mirror = disk_schedule(replicas={"r": 60}, answers={"r": ("scheduled", 60)})
    assert free(mirror, available=70) == 10
    mirror["metadata"]["labels"] = {"longhorn.io/disk-schedule-mirror": "true"}
    assert free(mirror, available=70) == 100


def test_a_disk_that_two_nodes_list_is_looked_at_on_each() -> None:
    """It was moved, and the node it left does not know yet: there is no room on a node that its DiskSchedule does not name."""
    moved = make.longhorn_node("m", {"moved": make.disk(100)})
    moved["status"]["diskStatus"]["moved"]["diskUUID"] = UUID
    view = make.view(make.longhorn_node("n", {"disk-1": make.disk(100)}), moved, disk_schedule())
    left = {
        node.name: [100 * GI - view.uncounted_bytes(node.name, disk) for disk in node.disks]
        for node in view.cluster.nodes.values()
    }
    assert left["n"][0] > 0
    assert left["m"][0] <= 0
