"""The disks with the most free bytes come first, whatever changed before."""

from hypothesis import given, strategies as st

from scheduler_core.disk_schedule.disk_space import DiskSpace, DiskSpaces

UUIDS = st.sampled_from("abcde")
SPACES = st.builds(DiskSpace, st.sampled_from(["n1", "n2"]), st.just("disk-1"), st.integers(-2, 4))


@given(st.dictionaries(UUIDS, SPACES), st.lists(st.tuples(UUIDS, st.none() | SPACES)), st.integers(0, 4))
def test_disks_are_ordered_by_free_bytes_after_any_changes(
    first: dict[str, DiskSpace], changes: list[tuple[str, DiskSpace | None]], size: int
) -> None:
    spaces = DiskSpaces(first)
    expected: dict[str, DiskSpace] = dict(first)
    for uuid, space in changes:
        spaces.set(uuid, space)
        expected.pop(uuid, None)
        if space is not None:
            expected[uuid] = space
    ranked = sorted((-space.free, space.node, uuid) for uuid, space in expected.items() if space.free >= size)
    assert spaces == expected
    assert list(spaces.roomiest(size)) == [(node, uuid) for _, node, uuid in ranked]
