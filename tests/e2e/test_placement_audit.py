"""The audit of end-to-end runs, on objects as a watch delivers them."""

from tests import builders as make
from tests.builders import Object
from tests.e2e.placement_audit import Overbookings


def audit(*replicas: Object, percentage: int = 100) -> Overbookings:
    """An audit of node a with a disk of 100 Gi, which has begun."""
    overbookings = Overbookings(percentage)
    overbookings.note_node("ADDED", make.longhorn_node("a"), 0.0)
    for raw in replicas:
        overbookings.note_replica("ADDED", raw, 0.0)
    overbookings.begin()
    return overbookings


def place(overbookings: Overbookings, name: str, size: float, at: float) -> None:
    overbookings.note_replica("ADDED", make.replica(name, f"vol-{name}", size=size), at)
    overbookings.note_replica("MODIFIED", make.replica(name, f"vol-{name}", "a", size=size), at)


def test_volumes_that_meet_are_recorded_once() -> None:
    overbookings = audit()
    for name, at in (("x", 1.0), ("y", 1.016), ("z", 1.2)):
        place(overbookings, name, 60, at)
    assert overbookings.events == ["a disk-1: 80Gi over, 3 volumes within 200 ms: vol-x vol-y vol-z"]
    assert overbookings.bytes_over == 80 * 2**30


def test_a_mended_disk_stays_recorded() -> None:
    """When it is overbooked again, that is another event."""
    overbookings = audit()
    for at in (1.0, 2.0):
        place(overbookings, "x", 60, at)
        place(overbookings, "y", 60, at)
        for name in ("x", "y"):
            overbookings.note_replica("DELETED", make.replica(name, f"vol-{name}", "a", size=60), at)
    assert len(overbookings.events) == 2


def test_replicas_that_the_status_lists_did_not_meet() -> None:
    overbookings = audit()
    place(overbookings, "x", 50, 1.0)
    overbookings.note_node("MODIFIED", make.longhorn_node("a", {"disk-1": make.disk(100, listed={"x": 50})}), 1.1)
    place(overbookings, "y", 50, 2.0)
    place(overbookings, "z", 10, 2.5)
    assert overbookings.events == ["a disk-1: 10Gi over, 2 volumes within 500 ms: vol-y vol-z"]


def test_what_was_overbooked_before_is_not_recorded() -> None:
    """Neither is a disk at its limit, nor one that shrinks."""
    overbookings = audit(make.replica("before", "v", "a", size=120))
    place(overbookings, "x", 60, 1.0)
    assert overbookings.events == []
    overbookings = audit()
    place(overbookings, "x", 100, 1.0)
    overbookings.note_node("MODIFIED", make.longhorn_node("a", 50), 2.0)
    overbookings.note_replica("MODIFIED", make.replica("x", "vol-x", "a", size=100), 3.0)
    assert overbookings.events == []


def test_over_provisioning_raises_the_limit() -> None:
    """Longhorn's setting is a percentage."""
    overbookings = audit(percentage=200)
    place(overbookings, "x", 120, 1.0)
    place(overbookings, "y", 80, 1.0)
    assert overbookings.events == []
    place(overbookings, "z", 1, 1.0)
    assert len(overbookings.events) == 1
