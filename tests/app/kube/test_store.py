"""The objects of a store: the same as in one map, wherever the base lies; subscribers see each difference once."""

from hypothesis import given, strategies as st

from app.kube.store import Objects

NAMES = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(NAMES, st.none() | st.integers(0, 3)),  # an event
        st.dictionaries(NAMES, st.integers(0, 3)),  # a list
        st.just("rebase"),
    )
)


@given(STEPS)
def test_objects_are_the_same_as_in_one_map(steps: list[object]) -> None:
    objects = Objects[int]()
    known: dict[str, int | None] = {}
    followed: dict[str, int | None] = {}

    def follow(name: str, before: int | None, after: int | None) -> None:
        assert followed.get(name) == before
        followed[name] = after

    objects.subscribe(follow)
    for step in steps:
        if isinstance(step, tuple):
            objects.change(*step)
            known[step[0]] = step[1]
        elif isinstance(step, dict):
            objects.replace(step)
            known = dict(step)
        else:
            objects.rebase({name: value for name, value in known.items() if value is not None})
            assert objects.latest == {}
        expected = {name: value for name, value in known.items() if value is not None}
        assert {name: objects.get(name) for name in objects.keys()} == expected  # noqa: SIM118 # it is no mapping
        assert sorted(objects.values()) == sorted(expected.values())
        assert {name: value for name, value in followed.items() if value is not None} == expected
        assert all(objects.get(name) is None for name in set("abcd") - expected.keys())


def test_an_object_that_is_delivered_once_more_is_no_change() -> None:
    objects = Objects[str]()
    changes: list[object] = []
    objects.replace({"a": "x"})
    objects.subscribe(lambda *change: changes.append(change))
    objects.replace({"a": "x", "b": "y"})
    objects.change("a", "x")
    assert changes == [("b", None, "y")]
    assert objects.listed.is_set()
