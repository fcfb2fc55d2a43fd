"""Overbooked disks by examples, and compared with a model that reads the whole history."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.convert.disk_schedule import MIRROR_LABEL
from scheduler_core.monitor.overbooking_monitor import (
    MAX_STATUS_LAG,
    SETTLE_TIME,
    Overbooked,
    OverbookingReport,
)
from tests import builders as make
from tests.builders import GI, Object
from tests.worlds.changes import Changes, changes_of, empty_state
from tests.worlds.disk_schedules import disk_schedule

DISK = "a-disk-1"


def image(size: int, *disks: str) -> Object:
    """A backing image of `size` Gi on some disks."""
    return {
        "apiVersion": make.LONGHORN,
        "kind": "BackingImage",
        "metadata": {"name": "image", "namespace": "longhorn-system"},
        "spec": {"diskFileSpecMap": {disk: {} for disk in disks}},
        "status": {"realSize": size * GI},
    }


def mirror(disk: str) -> Object:
    raw = disk_schedule(disk, node="a")
    raw["metadata"]["labels"] = {MIRROR_LABEL: "true"}
    return raw


class World:
    """Node a with one disk of 100 Gi, unless other objects are given; the first report has been made."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        self.state = empty_state()
        self.report = OverbookingReport()
        self.now = 0.0
        self.deliveries: dict[tuple[str, str], float] = {}
        self.put(*objects or (make.longhorn_node("a"),))
        self.update_report()

    def put(self, *objects: Object | list[Object], deleted: bool = False) -> None:
        self.apply(changes_of(*objects, deleted=deleted))

    def apply(self, changes: Changes) -> None:
        """Applies changes, and notes when replicas were delivered with a disk."""
        self.state = self.state.update(changes, make.NOW)
        for (field, name), value in changes.items():
            disk = getattr(value, "disk_id", "")
            if field == "replicas" and disk:
                self.deliveries.setdefault((str(name), disk), self.now)

    def place(self, name: str, size: float, *, after: float = 0.0, node: str = "a", disk: str = "disk-1") -> None:
        """Places a volume's replica `after` seconds; volume and replica have one name."""
        self.now += after
        self.put(make.replica(name, name, node, size=size, disk=disk, healthy=False))

    def remove(self, name: str) -> None:
        self.put(make.replica(name, name), deleted=True)

    def update_report(self, after: float = 0.0) -> OverbookingReport:
        """The next report, `after` seconds later."""
        self.now += after
        deliveries = self.deliveries
        self.deliveries = {}
        self.report = self.report.update(self.state.view, deliveries, self.now)
        return self.report


def entry(*volumes: str, over: float, milliseconds: int = 0, node: str = "a", disk: str = "disk-1") -> Overbooked:
    """An overbooked disk; `over` in Gi."""
    return Overbooked(node, disk, volumes, int(over * GI), milliseconds)


def overbooked(world: World) -> tuple[Overbooked, ...]:
    return world.update_report(SETTLE_TIME).overbooked


def test_two_volumes_that_meet_on_a_disk_overbook_it() -> None:
    world = World()
    world.place("x", 60)
    world.place("y", 60, after=0.016)
    report = world.update_report(SETTLE_TIME)
    assert report.overbooked == report.new_overbookings == (entry("x", "y", over=20, milliseconds=16),)


@pytest.mark.parametrize("size", [40, 39], ids=["equal", "less"])
def test_a_disk_at_its_limit_is_not_overbooked(size: int) -> None:
    world = World()
    world.place("x", 60)
    world.place("y", size)
    assert overbooked(world) == ()


@pytest.mark.parametrize(
    ("percentage", "expected"),
    [pytest.param("100", (entry("x", "y", over=30),), id="100 %"), pytest.param("200", (), id="200 %")],
)
def test_the_limit_is_longhorns(percentage: str, expected: tuple[Overbooked, ...]) -> None:
    node = make.longhorn_node("a", {"disk-1": make.disk(100, reserved=20)})
    world = World(node, make.setting("storage-over-provisioning-percentage", percentage))
    world.place("x", 60)
    world.place("y", 50)
    assert overbooked(world) == expected


def test_backing_images_are_booked_too() -> None:
    world = World(make.longhorn_node("a"), image(30, DISK))
    world.place("x", 60)
    assert overbooked(world) == ()
    world.place("y", 20)
    assert overbooked(world) == (entry("x", "y", over=10, milliseconds=2000 - 1000),)


def test_only_volumes_that_longhorn_cannot_have_counted_met() -> None:
    world = World()
    for name in ("counted", "x", "y"):
        world.place(name, 40, after=0.1)
    assert overbooked(world) == (entry("x", "y", over=20, milliseconds=100),)


def test_all_volumes_of_a_pod_may_meet() -> None:
    world = World()
    for name in "wxyz":
        world.place(name, 100, after=0.12)
    assert overbooked(world) == (entry(*"wxyz", over=300, milliseconds=360),)


def test_volumes_meet_across_reports() -> None:
    world = World()
    world.place("x", 60)
    assert overbooked(world) == ()
    world.place("y", 60, after=0.5)
    assert overbooked(world) == (entry("x", "y", over=20, milliseconds=1500),)


def test_a_volume_that_was_placed_long_ago_did_not_meet_another() -> None:
    world = World()
    world.place("x", 60)
    world.update_report(MAX_STATUS_LAG)
    world.place("y", 60)
    assert overbooked(world) == (entry("y", over=20),)


def test_an_overbooked_disk_is_reported_after_the_last_placement() -> None:
    world = World()
    reports = []
    for name in ("x", "y", "z"):
        world.place(name, 60, after=0.5)
        reports.append(world.update_report())
    reports += [world.update_report(SETTLE_TIME), world.update_report(SETTLE_TIME)]
    expected = (entry("x", "y", "z", over=80, milliseconds=1000),)
    assert [report.new_overbookings for report in reports] == [(), (), (), expected, ()]
    assert [report.overbooked for report in reports] == [(), (), (), expected, expected]


def test_a_volume_that_joins_a_reported_disk_is_no_new_overbooking() -> None:
    world = World()
    world.place("x", 60)
    world.place("y", 60)
    world.update_report(SETTLE_TIME)
    world.place("z", 10)
    report = world.update_report(SETTLE_TIME)
    assert report.new_overbookings == ()
    assert report.overbooked == (entry("x", "y", "z", over=30, milliseconds=1000),)


def test_an_entry_ends_when_the_disk_is_mended() -> None:
    world = World()
    for _ in range(2):
        world.place("x", 60)
        world.place("y", 60)
        assert len(world.update_report(SETTLE_TIME).new_overbookings) == 1
        world.remove("x")
        assert world.update_report().overbooked == ()
        world.remove("y")


def test_a_disk_that_is_mended_before_it_was_reported_is_reported_all_the_same() -> None:
    world = World()
    world.place("x", 60)
    world.place("y", 60)
    assert world.update_report().new_overbookings == ()
    world.remove("x")
    report = world.update_report()
    assert (report.new_overbookings, report.overbooked) == ((entry("x", "y", over=20),), ())
    assert world.update_report(SETTLE_TIME).new_overbookings == ()


def test_a_limit_that_is_raised_at_a_placement_may_have_let_it_happen() -> None:
    world = World()
    world.place("x", 160)
    world.update_report()
    world.put(make.longhorn_node("a", 200))
    assert world.update_report(SETTLE_TIME).new_overbookings == ()


def test_the_bytes_follow_the_disk() -> None:
    world = World()
    world.place("x", 60)
    world.place("y", 60)
    world.update_report(SETTLE_TIME)
    world.put(make.longhorn_node("a", 110))
    assert overbooked(world) == (entry("x", "y", over=10),)
    world.put(make.longhorn_node("a", 120))
    assert overbooked(world) == ()


def test_an_administrator_overbooks_no_disk() -> None:
    world = World(make.longhorn_node("a"), make.replica("x", "x", "a", size=80))
    world.put(make.longhorn_node("a", 50))
    assert overbooked(world) == ()
    world.put(make.longhorn_node("a", {"disk-1": make.disk(100, reserved=50)}))
    assert overbooked(world) == ()
    world.put(make.longhorn_node("a"), make.setting("storage-over-provisioning-percentage", "50"))
    assert overbooked(world) == ()
    # Longhorn may still place on the figures before.
    world.place("y", 10)
    assert overbooked(world) == ()


def test_a_limit_that_is_lowered_at_a_placement_is_no_outcome_of_it() -> None:
    world = World()
    world.place("x", 60)
    world.put(make.longhorn_node("a", 50))
    assert overbooked(world) == ()


def test_a_replica_that_grows_overbooks_no_disk() -> None:
    world = World()
    world.place("x", 60)
    world.update_report()
    world.put(make.replica("x", "x", "a", size=160))
    assert overbooked(world) == ()


def test_disks_that_were_overbooked_before_the_first_report_are_not_reported() -> None:
    world = World(make.longhorn_node("a"), [make.replica(name, name, "a", size=60) for name in "xy"])
    assert overbooked(world) == ()


def test_a_replica_that_changes_on_its_disk_is_not_placed_again() -> None:
    world = World(make.longhorn_node("a"), make.replica("x", "x", "a", size=60, healthy=False))
    world.place("y", 60)
    world.put(make.replica("x", "x", "a", size=60))
    assert overbooked(world) == (entry("y", over=20),)


def test_a_replica_that_moves_is_placed_on_the_new_disk() -> None:
    world = World(make.longhorn_node("a", {name: make.disk(100) for name in ("disk-1", "disk-2")}))
    world.place("x", 60)
    world.place("y", 60, disk="disk-2")
    world.place("x", 60, after=0.2, disk="disk-2")
    assert overbooked(world) == (entry("y", "x", over=20, milliseconds=200, disk="disk-2"),)


def test_a_replica_that_is_gone_met_no_other() -> None:
    world = World(make.longhorn_node("a"), make.replica("old", "old", "a", size=50))
    world.place("x", 30, after=0.1)
    world.place("gone", 20, after=0.1)
    world.update_report()
    world.remove("gone")
    world.place("y", 30, after=0.1)
    assert overbooked(world) == (entry("x", "y", over=10, milliseconds=200),)


def test_a_replica_that_left_the_disk_met_no_other() -> None:
    world = World(make.longhorn_node("a", {name: make.disk(100) for name in ("disk-1", "disk-2")}))
    for name, size in (("old", 50), ("x", 30), ("moved", 20)):
        world.place(name, size, after=0.1)
        world.update_report()
    world.place("moved", 40, disk="disk-2")
    world.place("y", 30, after=0.1)
    assert overbooked(world) == (entry("x", "y", over=10, milliseconds=200),)


def test_a_disk_with_a_schedule_is_not_reported() -> None:
    world = World(make.longhorn_node("a"), disk_schedule(DISK, node="a"))
    world.place("x", 60)
    world.place("y", 60)
    world.remove("y")
    assert (world.update_report(SETTLE_TIME).new_overbookings, world.report.overbooked) == ((), ())
    world.place("y", 60)
    assert overbooked(world) == ()


def test_a_disk_whose_schedule_only_mirrors_it_is_reported() -> None:
    world = World(make.longhorn_node("a"), mirror(DISK))
    world.place("x", 60)
    world.place("y", 60)
    assert overbooked(world) == (entry("x", "y", over=20),)


def test_two_replicas_of_one_volume_are_one_volume() -> None:
    world = World()
    for name in ("r-1", "r-2"):
        world.put(make.replica(name, "x", "a", size=60))
    assert overbooked(world) == (entry("x", over=20),)


def test_replicas_that_only_the_stale_status_lists_are_not_booked() -> None:
    world = World(make.longhorn_node("a", {"disk-1": make.disk(100, listed={"gone": 80})}))
    world.place("x", 60)
    assert overbooked(world) == ()


def test_a_disk_of_unknown_size_keeps_its_entry() -> None:
    world = World()
    world.place("x", 60)
    world.place("y", 60)
    world.update_report(SETTLE_TIME)
    world.put(make.longhorn_node("a", 0))
    assert overbooked(world) == ()
    world.put(make.longhorn_node("a"))
    report = world.update_report()
    assert (report.overbooked, report.new_overbookings) == ((entry("x", "y", over=20),), ())


def test_a_removed_disk_has_no_entry() -> None:
    world = World()
    world.place("x", 60)
    world.place("y", 60)
    world.update_report(SETTLE_TIME)
    world.put(make.longhorn_node("a", {}))
    assert overbooked(world) == ()
    world.put(make.longhorn_node("a"))
    assert overbooked(world) == ()


def test_disks_are_sorted_by_node_and_name() -> None:
    both = {name: make.disk(10) for name in ("disk-1", "disk-2")}
    world = World(make.longhorn_node("a", both), make.longhorn_node("b", both))
    for node, disk in (("b", "disk-1"), ("a", "disk-2"), ("a", "disk-1")):
        world.place(f"{node}-{disk}", 20, node=node, disk=disk)
    assert [(found.node, found.disk) for found in overbooked(world)] == [
        ("a", "disk-1"),
        ("a", "disk-2"),
        ("b", "disk-1"),
    ]


placements = st.lists(
    st.tuples(st.sampled_from(["disk-1", "disk-2"]), st.integers(1, 60), st.floats(0.001, 0.4), st.booleans()),
    max_size=12,
)


@settings(max_examples=200)
@given(placements)
def test_placements_alone_overbook_a_disk_once(history: list[tuple[str, int, float, bool]]) -> None:
    world = World(make.longhorn_node("a", {name: make.disk(100) for name in ("disk-1", "disk-2")}))
    new: list[Overbooked] = []
    times: dict[str, float] = {}
    sizes = {"disk-1": 0, "disk-2": 0}
    for number, (disk, size, after, reports) in enumerate(history):
        world.place(f"v-{number}", size, after=after, disk=disk)
        times[f"v-{number}"] = world.now
        sizes[disk] += size
        if reports:
            new += world.update_report().new_overbookings
    report = world.update_report(SETTLE_TIME)
    new += report.new_overbookings
    assert {found.disk: found.bytes_over for found in report.overbooked} == {
        disk: (size - 100) * GI for disk, size in sizes.items() if size > 100
    }
    assert sorted(found.disk for found in new) == [found.disk for found in report.overbooked]
    for found in report.overbooked:
        moments = [times[volume] for volume in found.volumes]
        assert all(earlier <= later for earlier, later in pairwise(moments))
        assert found.milliseconds == round((moments[-1] - moments[0]) * 1000)
