"""Free space on a disk with a DiskSchedule: every replica counts once, and both limits hold."""

import pytest
from hypothesis import given, strategies as st

from scheduler_core.cluster.update import Changes, Update, build_view, empty_snapshot, update
from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import space_detail, space_refusal
from scheduler_core.longhorn.stages import disk_and_space_refusal
from scheduler_core.model.longhorn import Volume
from scheduler_core.volumes.demand_index import DemandIndex
from tests import builders as make
from tests.builders import GI, NOW, Object
from tests.worlds.disk_schedules import Sizes, disk_schedule

UUID = "n-disk-1"


def free(*objects: Object, listed: Sizes | None = None, percent: int = 100, available: float = 100) -> float:
    """The free Gi of the only disk, which has 100 Gi."""
    view = view_of(*objects, listed=listed, percent=percent, available=available)
    return view.free_space("n")["disk-1"].free / GI


def view_of(*objects: Object, listed: Sizes | None = None, percent: int = 100, available: float = 100) -> View:
    node = make.longhorn_node("n", {"disk-1": make.disk(100, listed=listed, available=available)})
    return make.view(node, make.setting("storage-over-provisioning-percentage", str(percent)), *objects)


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
def test_free_space_is_the_smaller_remainder_of_both_limits(  # noqa: PLR0917
    placed: dict[str, int],
    listed: dict[str, int],
    requests: dict[str, int],
    answers: dict[str, tuple[str, int]],
    percent: int,
    available: int,
) -> None:
    longhorn = 0
    granted = 0
    for name in placed.keys() | listed.keys() | requests.keys() | answers.keys():
        state, held_size = answers.get(name, ("", 0))
        claim = held_size if state == "rejected" else max(held_size, requests.get(name, 0))
        leaving = state == "rejected" and not held_size
        longhorn += max(listed.get(name, 0), 0 if leaving else max(claim, placed.get(name, 0)))
        has_claim = name in requests or name in answers
        granted += claim if has_claim else max(placed.get(name, 0), listed.get(name, 0))
    replicas = [make.replica(name, f"vol-{name}", "n", size=size) for name, size in placed.items()]
    schedule = disk_schedule(replicas=requests, answers=answers)
    size = free(schedule, *replicas, listed=listed, percent=percent, available=available)
    assert size == min(percent - longhorn, available - granted)


def test_a_rejected_replica_that_is_about_to_leave_counts_nothing() -> None:
    leaving = make.replica("r", "vol", "n", size=30, healthy=False)
    rejected = disk_schedule(replicas={"r": 30}, answers={"r": ("rejected", 0)})
    assert free(rejected, leaving, available=1000) == free(rejected, leaving, percent=1000) == 100


def schedule_with_field(field: str, value: object) -> Object:
    part, _, name = field.partition(".")
    raw = disk_schedule()
    return {**raw, part: {**raw[part], name: value}}


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(disk_schedule(deleting=True), id="being deleted"),
        pytest.param(disk_schedule(node="other"), id="of another node"),
        pytest.param(disk_schedule(disk="disk-9"), id="of an unknown disk"),
        pytest.param(schedule_with_field("spec.replicas", [3]), id="requests unreadable"),
        pytest.param(schedule_with_field("spec.backingImages", "none"), id="requests for images unreadable"),
        pytest.param(schedule_with_field("status.replicas", 3), id="answers unreadable"),
    ],
)
def test_a_disk_whose_disk_schedule_would_refuse_everything_has_no_free_space(schedule: Object) -> None:
    assert free(schedule) == 0


@pytest.mark.parametrize("condition", ["ready", "schedulable"])
def test_a_disk_that_is_not_ready_or_not_schedulable_has_no_free_space(condition: str) -> None:
    node = make.longhorn_node("n", {"disk-1": make.disk(100, ready=condition != "ready", schedulable=False)})
    assert make.view(node).free_space("n")["disk-1"].free == 100 * GI
    assert make.view(node, disk_schedule()).free_space("n")["disk-1"].free == 0


def test_an_unreadable_request_counts_nothing() -> None:
    schedule = disk_schedule(replicas={"r": 30})
    schedule["spec"]["replicas"]["x"] = "many"
    assert free(schedule) == 70


def test_only_longhorn_s_limit_counts_without_a_disk_schedule() -> None:
    assert free(disk_schedule("other-disk-1", replicas={"r": 30}), disk_schedule("gone", node="n"), percent=200) == 200


def test_all_rules_read_the_same_free_space() -> None:
    view = view_of(disk_schedule(replicas={"r": 30}), percent=200, available=80)
    node = view.cluster.nodes["n"]
    (disk,) = node.disks
    free_space = view.free_space("n")["disk-1"]
    assert free_space.free == 50 * GI
    for gib, expected in ((50, None), (51, Rule.SCHEDULING_SPACE)):
        volume = Volume("v", size=gib * GI)
        refusal = disk_and_space_refusal(
            view.cluster, ReplicaRequest.for_volume(volume), disk, view.uncounted_bytes(node.name, disk)
        )
        assert (refusal.rule if refusal else None) is expected
        assert space_refusal(volume.size, 0, free_space) is expected


def test_a_refusal_names_the_smaller_limit() -> None:
    volume = Volume("v", size=60 * GI)

    def refusal_detail(percent: int) -> str:
        view = view_of(disk_schedule(), percent=percent, available=40)
        (disk,) = view.cluster.nodes["n"].disks
        return space_detail(Rule.SCHEDULING_SPACE, disk, view.settings, view.free_space("n")["disk-1"], volume)

    assert refusal_detail(200) == "disk disk-1: 60Gi must be at most the 40Gi its DiskSchedule still grants"
    assert "30 %" in refusal_detail(30)


@pytest.mark.parametrize(("requested", "fits"), [(50, True), (51, False)])
def test_a_pod_fits_only_where_the_disk_schedule_has_room(requested: float, fits: bool) -> None:
    explanation = make.explained(
        make.pod("data"),
        make.storage_class("longhorn"),
        make.kube_node("n"),
        make.longhorn_node("n", {"disk-1": make.disk(100)}),
        make.setting("storage-over-provisioning-percentage", "200"),
        make.claim("data", 50),
        disk_schedule(replicas={"r": requested}),
    )
    assert make.fitting(explanation) == (["n"] if fits else [])


def update_view(view: View, *objects: Object, deleted: bool = False) -> Update:
    """Creates, changes or deletes objects."""
    changes: dict[tuple[str, Key], object | None] = {}
    for raw in objects:
        kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
        key, value = kind.read(raw)
        changes[kind.field, key] = None if deleted else value
    return update(view, changes, NOW)


def updatable_view(*objects: Object) -> View:
    """A view of some objects that `update_view` accepts."""
    return update_view(build_view(empty_snapshot(), NOW, 0), *objects).view


def test_a_changed_disk_schedule_changes_its_node_and_no_other() -> None:
    """So only that node is profiled again."""
    base = updatable_view(make.longhorn_node("n"), make.longhorn_node("m"))
    schedule = disk_schedule(replicas={"r": 30})
    created = update_view(base, schedule)
    assert created.changed_nodes == frozenset({"n"})
    assert created.view.free_space("n")["disk-1"].free == 70 * GI
    deleted = update_view(created.view, schedule, deleted=True)
    assert deleted.changed_nodes == frozenset({"n"})
    assert deleted.view.free_space("n") == base.free_space("n")


def test_conditions_and_sums_of_a_disk_schedule_are_no_change() -> None:
    raw = disk_schedule(replicas={"r": 30})
    conditions = [{"type": "Schedulable", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    reconciled = {
        **raw,
        "status": {**raw["status"], "storageScheduled": 0, "storageAvailable": 5, "conditions": conditions},
    }
    kind = KINDS[group_of(make.LONGHORN), "DiskSchedule"]
    assert kind.read(reconciled) == kind.read(raw)


def test_a_disk_that_changes_nodes_takes_its_disk_schedule_along() -> None:
    new_node = make.longhorn_node("m", {"disk-1": make.disk(100)})
    new_node["status"]["diskStatus"]["disk-1"]["diskUUID"] = UUID
    schedule = disk_schedule(answers={"r": ("scheduled", 30)})
    view = updatable_view(make.longhorn_node("n"), schedule)
    view = update_view(view, new_node, make.longhorn_node("n", {})).view
    assert view.free_space("m")["disk-1"].free == 0
    view = update_view(view, {**schedule, "spec": {**schedule["spec"], "nodeID": "m"}}).view
    assert view.free_space("m")["disk-1"].free == 70 * GI


def test_a_volume_whose_replica_was_rejected_is_demand_on_its_node() -> None:
    """Otherwise its bytes would count nowhere until the controller moves the replica."""
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
    before = updatable_view(make.storage_class(), node, *bound, granted)
    assert DemandIndex.of(before).all == ()
    after = update_view(before, rejected).view
    changes: Changes = {("disk_schedules", "n-disk-1"): after.snapshot.disk_schedules["n-disk-1"]}
    demands = DemandIndex.of(before).update(before, changes, after)
    assert [demand.volume.name for demand in demands.all] == ["vol-x"]
    assert demands == DemandIndex.of(after)


def test_a_disk_that_two_nodes_list_has_free_space_only_on_its_disk_schedule_s_node() -> None:
    other_node = make.longhorn_node("m", {"moved": make.disk(100)})
    other_node["status"]["diskStatus"]["moved"]["diskUUID"] = UUID
    view = make.view(make.longhorn_node("n", {"disk-1": make.disk(100)}), other_node, disk_schedule())
    free_by_node = {
        node.name: [100 * GI - view.uncounted_bytes(node.name, disk) for disk in node.disks]
        for node in view.cluster.nodes.values()
    }
    assert free_by_node["n"][0] > 0
    assert free_by_node["m"][0] <= 0
