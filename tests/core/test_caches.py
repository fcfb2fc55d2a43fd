"""A map with a limited weight drops what was used longest ago."""

from scheduler_core.caches import LruMap


def test_entry_used_longest_ago_is_dropped() -> None:
    dropped: list[str] = []
    entries: LruMap[str, int] = LruMap(2, on_evict=dropped.append)
    entries.put("a", 1)
    entries.put("b", 2)
    assert entries.get("a") == 1
    entries.put("c", 3)
    assert dropped == ["b"]
    assert list(dict(entries.items())) == ["a", "c"]


def test_weight_of_all_entries_is_limited() -> None:
    entries: LruMap[str, str] = LruMap(5, weight=len)
    entries.put("a", "123")
    entries.put("a", "12")
    entries.put("b", "123")
    assert list(dict(entries.items())) == ["a", "b"]
    entries.put("c", "123456")
    assert list(dict(entries.items())) == ["c"]
