"""Structure-aware mutation of JSON values: a valid value with some parts replaced, removed, doubled or moved."""

import copy
from typing import Any

from hypothesis import strategies as st

_NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**63, -(2**63) - 1, 1e308, 0.1, "", "x" * 5000, "\x00", "\u202e", "10E", "-1Gi", "NaN", "1e999999999999",
    [], {}, [[]], [None], {"": ""}, [{}] * 50, "node-1", "data-db-0", "longhorn", "kube-system/none",
)  # fmt: skip


def _paths(value: Any, prefix: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    paths = [prefix]
    for key, child in children:
        paths += _paths(child, (*prefix, key))
    return paths


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """A copy of a JSON value with one to four parts changed."""
    result = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(_paths(result)[1:] or [()]))
        if not path:
            return draw(st.sampled_from(_NASTY))
        parent = result
        for step in path[:-1]:
            parent = parent[step]
        _change(draw, parent, path[-1])
    return result


def _change(draw: st.DrawFn, parent: Any, key: str | int) -> None:
    change = draw(st.sampled_from(("replace", "nasty", "remove", "double", "wrap", "rename")))
    if change == "replace":
        parent[key] = draw(st.one_of(st.text(max_size=20), st.integers(), st.booleans(), st.floats(allow_nan=False)))
    elif change == "remove":
        del parent[key]
    elif change == "double" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[int(key)]))
    elif change == "wrap":
        parent[key] = [parent[key]]
    elif change == "rename" and isinstance(parent, dict):
        parent[draw(st.sampled_from((str(key).lower(), str(key).upper(), "metadata", "items", "spec")))] = parent[key]
    else:
        parent[key] = copy.deepcopy(draw(st.sampled_from(_NASTY)))
