"""Informers: which changes they report, and which version counts if events arrive in the wrong order."""

import json

import pytest

from app.disk_schedule.controller_cache import Informer, InformerObject, read_volume
from app.disk_schedule.schedule_controllers import OrphanRequests
from scheduler_core.convert.snapshot_kinds import REPLICA
from scheduler_core.model.disk_schedule import Fault
from tests.worlds.timeline import play, rows
from tests.worlds.virtual_time import virtual_loop

Change = tuple[str, str | Fault | None, str | Fault | None]


def object_at(version: int, value: str, name: str = "a") -> InformerObject[str]:
    return InformerObject(name, str(version), value)


def raw_at(version: str) -> bytes:
    return json.dumps({"metadata": {"name": "a", "resourceVersion": version}}).encode()


def subscribed_informer() -> tuple[Informer[str], list[Change]]:
    changes: list[Change] = []
    informer = Informer[str](lambda _: "decoded")
    informer.subscribe(lambda *change: changes.append(change))
    return informer, changes


def test_a_list_reports_new_changed_and_deleted_objects() -> None:
    informer, changes = subscribed_informer()
    informer.replace({"a": object_at(1, "x"), "b": object_at(1, "y", "b"), "c": object_at(1, "z", "c")})
    del changes[:]
    informer.replace({"a": object_at(2, "x"), "b": object_at(2, "Y", "b"), "d": object_at(2, "new", "d")})
    assert changes == [("c", "z", None), ("b", "y", "Y"), ("d", None, "new")]
    assert informer.get("a") == object_at(2, "x")


def test_a_new_version_of_an_unreadable_object_is_reported_even_with_the_same_fault() -> None:
    """It may be in deletion now. The same version is not reported again."""
    informer, changes = subscribed_informer()
    bad = Fault("spec", "is odd")
    informer.replace({"a": InformerObject("a", "1", bad)})
    informer.change("a", InformerObject("a", "2", bad))
    informer.replace({"a": InformerObject("a", "2", bad)})
    assert changes == [("a", None, bad), ("a", bad, bad)]
    assert (informer.readable, informer.unreadable) == ({}, {"a": bad})
    informer.change("a", object_at(3, "good"))
    assert (informer.readable, informer.unreadable) == ({"a": "good"}, {})
    informer.change("a", InformerObject("a", "4", bad))
    assert (informer.readable, informer.unreadable) == ({}, {"a": bad})
    informer.change("a", None)
    assert (informer.readable, informer.unreadable) == ({}, {})


def test_the_answer_to_a_write_counts_before_its_watch_event_and_does_not_restore_a_deleted_object() -> None:
    informer, changes = subscribed_informer()
    informer.replace({"a": object_at(5, "old")})
    informer.store(raw_at("9"))
    informer.change("a", object_at(7, "between"))
    assert informer.value("a") == "decoded"
    informer.change("a", object_at(12, "later"))
    informer.change("a", None)
    informer.store(raw_at("15"))
    assert changes == [("a", None, "old"), ("a", "old", "decoded"), ("a", "decoded", "later"), ("a", "later", None)]


def test_an_unreadable_object_is_stored_with_its_name_and_its_fault() -> None:
    raw = {"metadata": {"name": "r", "resourceVersion": "7"}, "spec": {"volumeSize": "-5"}}
    key, decoded = Informer(REPLICA.decode).decode(json.dumps(raw).encode())
    assert key == "r"
    assert (decoded.name, decoded.version) == ("r", "7")
    assert isinstance(decoded.value, Fault)
    assert str(decoded.value) == "spec.volumeSize '-5' is negative"


def test_a_version_that_is_in_the_cache_is_not_decoded_again() -> None:
    """Mostly this process has written it."""
    informer, _ = subscribed_informer()
    informer.replace({"a": object_at(7, "written")})
    values = [informer.decode(raw_at(version))[1].value for version in ("6", "7", "8", "")]
    assert values == ["decoded", "written", "decoded", "decoded"]


def test_kept_bytes_are_the_object_without_managed_fields() -> None:
    metadata = {"name": "v", "labels": {"a": "b"}}
    raw = {"metadata": metadata, "spec": {"size": "10", "unknown": [1, None]}, "status": {}}
    managed = {**raw, "metadata": {**metadata, "managedFields": [{"manager": "it"}]}}
    for written in (raw, managed):
        decoded = Informer(read_volume, keep=True).object_of(json.dumps(written).encode())
        assert json.loads(decoded.raw) == raw


def test_a_volume_is_read_with_its_condition() -> None:
    raw = {"metadata": {"name": "v"}, "spec": {"size": "10"}}
    plain = read_volume(json.dumps(raw).encode())
    status = {"conditions": [{"type": "DiskAllocation", "status": "True"}]}
    assert plain != read_volume(json.dumps({**raw, "status": status}).encode())


class Orphans(OrphanRequests):
    """Missing objects, for which requests are withdrawn after 300 seconds."""

    def __init__(self) -> None:
        super().__init__(300, virtual_loop().time)

    async def end(self) -> None:
        pass


TIMELINES = {
    "a request for an unknown object waits": """
        0    remaining_wait r -> 300
        100  remaining_wait r -> 200
        300  remaining_wait r -> 0
        1000 remaining_wait r -> 0
    """,
    "a request for a deleted object does not wait": """
        0   mark_deleted r; remaining_wait r -> 0
        299 stop_waiting r; remaining_wait r -> 0
        301 stop_waiting r; remaining_wait r -> 300
    """,
    "a request that is withdrawn late does not wait": """
        0    mark_deleted r; remaining_wait r -> 0
        1000 remaining_wait r -> 0
    """,
    "deletions are remembered for a limited time": """
        0   mark_deleted a
        150 mark_deleted b
        300 mark_deleted a
        451 mark_deleted c; __len__ -> 2
    """,
}


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_orphaned_requests(timeline: str) -> None:
    play(Orphans, timeline)
