"""Overbooked disks by examples, and compared with a model that reads the whole history."""

from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from scheduler_core.convert.disk_schedule import MIRROR_LABEL
from scheduler_core.monitor.overbooking_monitor import MAX_STATUS_LAG, SETTLE_TIME, Overbooked, OverbookingReport
from tests import builders as make
from tests.builders import GI, Object
from tests.worlds.changes import Changes, changes_of, empty_state
from tests.worlds.disk_schedules import disk_schedule

DISK = "a-disk-1"
WAITS = {"report": 0.0, "settle": SETTLE_TIME, "lag": MAX_STATUS_LAG}


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
        self.new: list[str] = []
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

    def place(
        self, volume: str, size: float, *, name: str = "", after: float = 0.0, node: str = "a", disk: str = "disk-1"
    ) -> None:
        """Places a volume's replica `after` seconds; without another name it has that of the volume."""
        self.now += after
        self.put(make.replica(name or volume, volume, node, size=size, disk=disk, healthy=False))

    def play(self, history: str) -> str:
        """Plays a history, and returns the overbooked disks once no placement can follow.

        `x 60 +0.1 disk-2` places a volume of 60 Gi after 0.1 s, `r:x 60` with a replica named r, `show x 60` shows it healthy, and
        `disk 50` resizes the disk.
        """
        for verb, *words in (event.split() for event in history.split(", ")):
            if verb in WAITS:
                self.update_report(WAITS[verb])
            elif verb == "remove":
                self.remove(words[0])
            elif verb == "show":
                self.put(make.replica(words[0], words[0], "a", size=float(words[1])))
            elif verb == "disk":
                self.put(make.longhorn_node("a", int(words[0])))
            elif verb == "no":
                self.put(make.longhorn_node("a", {}))
            else:
                after = next((float(word) for word in words if word.startswith("+")), 0.0)
                disk = next((word for word in words if word.startswith("disk")), "disk-1")
                name, _, volume = verb.rpartition(":")
                self.place(volume, float(words[0]), name=name, after=after, disk=disk)
        return ", ".join(map(text, self.update_report(0.0 if history.endswith("report") else SETTLE_TIME).overbooked))

    def remove(self, name: str) -> None:
        self.put(make.replica(name, name), deleted=True)

    def update_report(self, after: float = 0.0) -> OverbookingReport:
        """The next report, `after` seconds later."""
        self.now += after
        deliveries = self.deliveries
        self.deliveries = {}
        self.report = self.report.update(self.state.view, deliveries, self.now)
        self.new += map(text, self.report.new_overbookings)
        return self.report


def text(entry: Overbooked) -> str:
    """Volumes, the Gi too many, the milliseconds between the placements, and the disk unless it is a's first one."""
    place = "" if (entry.node, entry.disk) == ("a", "disk-1") else f" {entry.node}/{entry.disk}"
    return f"{' '.join(entry.volumes)} {entry.bytes_over / GI:g} {entry.milliseconds}{place}"


NODE = make.longhorn_node("a")
TWO_DISKS = make.longhorn_node("a", {name: make.disk(100) for name in ("disk-1", "disk-2")})
RESERVED = make.longhorn_node("a", {"disk-1": make.disk(100, reserved=20)})
HISTORIES: dict[str, tuple[list[Object], str, str]] = {
    "two volumes that meet on a disk overbook it": ([], "x 60, y 60 +0.016", "x y 20 16"),
    "a disk at its limit is not overbooked": ([], "x 60, y 40", ""),
    "a disk below its limit is not overbooked": ([], "x 60, y 39", ""),
    "what is reserved lowers the limit": ([RESERVED], "x 60, y 50", "x y 30 0"),
    "over-provisioning raises the limit": (
        [RESERVED, make.setting("storage-over-provisioning-percentage", "200")], "x 60, y 50", "",
    ),
    "a backing image alone overbooks nothing": ([NODE, image(30, DISK)], "x 60", ""),
    "backing images are booked, too": ([NODE, image(30, DISK)], "x 60, settle, y 20", "x y 10 1000"),
    "only volumes that Longhorn cannot have counted met": ([], "counted 40, x 40 +0.1, y 40 +0.1", "x y 20 100"),
    "all volumes of a pod may meet": ([], "w 100, x 100 +0.12, y 100 +0.12, z 100 +0.12", "w x y z 300 360"),
    "volumes meet across reports": ([], "x 60, settle, y 60 +0.5", "x y 20 1500"),
    "a volume that was placed long ago did not meet another": ([], "x 60, lag, y 60", "y 20 0"),
    "a limit that is raised at a placement may have let it happen": ([], "x 160, report, disk 200", ""),
    "the bytes follow the disk": ([], "x 60, y 60, settle, disk 110", "x y 10 0"),
    "a smaller disk is no outcome of placements": ([NODE, make.replica("x", "x", "a", size=80)], "disk 50", ""),
    # Longhorn may still place on the figures before.
    "a placement right after it neither": ([NODE, make.replica("x", "x", "a", size=80)], "disk 50, settle, y 10", ""),
    "a limit that is lowered at a placement is no outcome of it": ([], "x 60, disk 50", ""),
    "a replica that grows overbooks no disk": ([], "x 60, report, show x 160", ""),
    "disks that were overbooked before the first report are not reported": (
        [NODE, *(make.replica(name, name, "a", size=60) for name in "xy")], "report", "",
    ),
    "a replica that changes on its disk is not placed again": (
        [NODE, make.replica("x", "x", "a", size=60, healthy=False)], "y 60, show x 60", "y 20 0",
    ),
    "a replica that moves is placed on the new disk": (
        [TWO_DISKS], "x 60, y 60 disk-2, x 60 +0.2 disk-2", "y x 20 200 a/disk-2",
    ),
    "a replica that is gone met no other": (
        [NODE, make.replica("old", "old", "a", size=50)],
        "x 30, gone 20 +0.1, report, remove gone, y 30 +0.1",
        "x y 10 200",
    ),
    "a replica that left the disk met no other": (
        [TWO_DISKS],
        "old 50, report, x 30 +0.1, report, moved 20 +0.1, report, moved 40 disk-2, y 30 +0.1",
        "x y 10 200",
    ),
    "a disk with a schedule is not reported": (
        [NODE, disk_schedule(DISK, node="a")], "x 60, y 60, remove y, settle, y 60", "",
    ),
    "a disk whose schedule only mirrors it is reported": ([NODE, mirror(DISK)], "x 60, y 60", "x y 20 0"),
    "two replicas of one volume are one volume": ([], "r-1:x 60, r-2:x 60", "x 20 0"),
    "replicas that only the stale status lists are not booked": (
        [make.longhorn_node("a", {"disk-1": make.disk(100, listed={"gone": 80})})], "x 60", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "history", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_overbooked_disks_follow_from_the_history(objects: list[Object], history: str, expected: str) -> None:
    world = World(*objects)
    assert world.play(history) == expected
    assert bool(world.new) is bool(expected)


@pytest.mark.parametrize(
    "lowered",
    [
        [make.longhorn_node("a", {"disk-1": make.disk(100, reserved=50)})],
        [NODE, make.setting("storage-over-provisioning-percentage", "50")],
    ],
    ids=["reserve", "percentage"],
)
def test_an_administrator_overbooks_no_disk(lowered: list[Object]) -> None:
    world = World(NODE, make.replica("x", "x", "a", size=80))
    world.put(*lowered)
    assert (world.play("settle"), world.play("y 10"), world.new) == ("", "", [])


def test_an_overbooked_disk_is_reported_after_the_last_placement() -> None:
    world = World()
    reports = []
    for name in ("x", "y", "z"):
        world.place(name, 60, after=0.5)
        reports.append(world.update_report())
    reports += [world.update_report(SETTLE_TIME), world.update_report(SETTLE_TIME)]
    expected = ["x y z 80 1000"]
    assert [[*map(text, report.new_overbookings)] for report in reports] == [[], [], [], expected, []]
    assert [[*map(text, report.overbooked)] for report in reports] == [[], [], [], expected, expected]


def test_a_volume_that_joins_a_reported_disk_is_no_new_overbooking() -> None:
    world = World()
    assert world.play("x 60, y 60, settle, z 10") == "x y z 30 1000"
    assert world.new == ["x y 20 0"]


def test_an_entry_ends_when_the_disk_is_mended_and_may_begin_again() -> None:
    world = World()
    for _ in range(2):
        assert world.play("x 60, y 60")
        assert world.play("remove x, report") == ""
        world.remove("y")
    assert len(world.new) == 2


def test_a_disk_that_is_mended_before_it_was_reported_is_reported_all_the_same() -> None:
    world = World()
    assert world.play("x 60, y 60, report, remove x, report") == ""
    assert world.new == ["x y 20 0"]


@pytest.mark.parametrize(("event", "later"), [("disk 120", ""), ("disk 0", "x y 20 0"), ("no disk", "")])
def test_an_entry_ends_with_the_lack_and_with_the_disk_but_not_while_its_size_is_unknown(
    event: str, later: str
) -> None:
    world = World()
    assert world.play(f"x 60, y 60, settle, {event}") == ""
    assert world.play("disk 100") == later
    assert world.new == ["x y 20 0"]


def test_disks_are_sorted_by_node_and_name() -> None:
    both = {name: make.disk(10) for name in ("disk-1", "disk-2")}
    world = World(make.longhorn_node("a", both), make.longhorn_node("b", both))
    for node, disk in (("b", "disk-1"), ("a", "disk-2"), ("a", "disk-1")):
        world.place("v", 20, name=f"{node}-{disk}", node=node, disk=disk)
    found = world.update_report(SETTLE_TIME).overbooked
    assert [(entry.node, entry.disk) for entry in found] == [("a", "disk-1"), ("a", "disk-2"), ("b", "disk-1")]


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
