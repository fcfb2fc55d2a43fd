"""What is watched: who is told of what, and what is believed when news arrive in the wrong order."""

from __future__ import annotations

import json

import pytest

from app.disk_schedule.informer import Collection, Seen, decoding, read_image, read_schedule, read_volume, reading
from app.disk_schedule.orphan_requests import Orphans
from scheduler_core.convert.snapshot_kinds import LONGHORN_GROUP
from scheduler_core.model.disk_schedule import Fault
from scheduler_core.model.longhorn import Replica

Told = tuple[str, str | Fault | None, str | Fault | None]


def seen(version: int, value: str, name: str = "a") -> Seen[str]:
    """An object at a version."""
    return Seen(name, str(version), value)


def listened() -> tuple[Collection[str], list[Told]]:
    """A collection, and what it tells."""
    told: list[Told] = []
    collection = Collection[str]()
    collection.listen(lambda *news: told.append(news))
    return collection, told


def test_a_list_tells_what_came_what_differs_and_what_went() -> None:
    """And nothing about what is as it was, whatever its version."""
    collection, told = listened()
    collection.replaced({"a": seen(1, "x"), "b": seen(1, "y", "b"), "c": seen(1, "z", "c")})
    del told[:]
    collection.replaced({"a": seen(2, "x"), "b": seen(2, "Y", "b"), "d": seen(2, "new", "d")})
    assert told == [("c", "z", None), ("b", "y", "Y"), ("d", None, "new")]
    assert collection.get("a") == seen(2, "x")


def test_another_version_of_what_cannot_be_read_is_told_although_the_same_is_wrong_with_it() -> None:
    """It may be deleted now, which no Fault says; the same version again is no news."""
    collection, told = listened()
    bad = Fault("spec", "is odd")
    collection.replaced({"a": Seen("a", "1", bad)})
    collection.changed("a", Seen("a", "2", bad))
    collection.replaced({"a": Seen("a", "2", bad)})
    assert told == [("a", None, bad), ("a", bad, bad)]


def test_the_answer_to_a_write_counts_before_the_watch_tells() -> None:
    """And what the watch tells of older versions afterwards does not undo it."""
    collection, told = listened()
    collection.replaced({"a": seen(5, "old")})
    collection.learn(seen(9, "written"))
    collection.changed("a", seen(7, "between"))
    assert collection.value("a") == "written"
    collection.changed("a", seen(12, "later"))
    assert told == [("a", None, "old"), ("a", "old", "written"), ("a", "written", "later")]


def test_the_answer_to_a_write_does_not_bring_back_what_is_gone() -> None:
    """Deleted while the answer was on its way."""
    collection, _ = listened()
    collection.replaced({"a": seen(5, "old")})
    collection.changed("a", None)
    collection.learn(seen(9, "written"))
    assert collection.get("a") is None


def test_a_copy_of_everything_stays_as_it_is() -> None:
    """A decision reads one moment."""
    collection, _ = listened()
    collection.replaced({"a": seen(5, "old")})
    before = collection.all()
    collection.changed("a", seen(6, "new"))
    assert before["a"].value == "old"


def test_an_object_that_cannot_be_read_is_kept_with_its_name_and_what_is_wrong() -> None:
    """It is neither forgotten nor an error that ends the watch."""
    decode = decoding(reading(LONGHORN_GROUP, "Replica", Replica))
    raw = {"metadata": {"name": "r", "resourceVersion": "7"}, "spec": {"volumeSize": "-5"}}
    key, found = decode(json.dumps(raw).encode())
    assert key == "r"
    assert found is not None
    assert (found.name, found.version) == ("r", "7")
    assert isinstance(found.value, Fault)
    assert str(found.value) == "spec.volumeSize '-5' is negative"


def test_a_volume_is_read_with_its_condition_so_that_an_edit_of_it_is_noticed() -> None:
    """The condition is part of what is compared."""
    raw = {"metadata": {"name": "v"}, "spec": {"size": "10"}}
    plain = read_volume(json.dumps(raw).encode())
    status = {"conditions": [{"type": "DiskAllocation", "status": "True"}]}
    assert plain != read_volume(json.dumps({**raw, "status": status}).encode())


def test_what_of_an_image_or_a_schedule_cannot_be_used_is_among_its_faults() -> None:
    """Both are read field by field."""
    image = read_image(json.dumps({"metadata": {"name": "i"}, "spec": {"minNumberOfCopies": -1}}).encode())
    assert not isinstance(image, Fault)
    assert [fault.field for fault in image.copies.faults] == ["spec.minNumberOfCopies"]
    schedule = read_schedule(json.dumps({"metadata": {"name": "s"}, "spec": {"replicas": {"r": -1}}}).encode())
    assert not isinstance(schedule, Fault)
    assert [fault.field for fault in schedule.faults] == ["spec.replicas.r"]


@pytest.mark.parametrize(("passed", "left"), [(0, 300.0), (100, 200.0), (300, 0.0), (1000, 0.0)])
def test_an_object_that_was_never_seen_is_waited_for(passed: float, left: float) -> None:
    """From the first time it is missed."""
    now = [50.0]
    orphans = Orphans(300, lambda: now[0])
    assert orphans.wait("r") == 300
    now[0] += passed
    assert orphans.wait("r") == left


def test_an_object_that_was_seen_to_go_is_not_waited_for() -> None:
    """Nor when it is asked for once more, by who was about to: as long as one that was never seen is waited for."""
    now = [50.0]
    orphans = Orphans(300, lambda: now[0])
    orphans.gone("r")
    assert orphans.wait("r") == 0
    now[0] += 299
    orphans.there("r")
    assert orphans.wait("r") == 0
    now[0] += 1
    orphans.there("r")
    assert orphans.wait("r") == 300


def test_a_request_that_is_hard_to_withdraw_is_not_waited_for_later() -> None:
    """What was seen to go is forgotten meanwhile; the request was there before."""
    now = [50.0]
    orphans = Orphans(300, lambda: now[0])
    orphans.gone("r")
    assert orphans.wait("r") == 0
    now[0] += 1000
    assert orphans.wait("r") == 0


def test_what_went_is_remembered_for_a_while_only() -> None:
    """Many go in the life of a process."""
    now = [50.0]
    orphans = Orphans(300, lambda: now[0])
    for name in ("a", "b", "a", "c"):
        orphans.gone(name)
        now[0] += 150
    assert len(orphans) == 2
