"""Places in JSON texts, and keys that are written twice."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from scheduler_core.convert.json_text import JsonPlaces, Path, describe_syntax_error, find_offset, line_and_column

TEXT = '{"a": [1, {"b": "}]"}],\n "c": {"d": null, "e\\u0066": []}}'
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        ((), '{"a"'),
        (("a",), "[1, {"),
        (("a", 0), "1, {"),
        (("a", 1, "b"), '"}]"}'),
        (("c", "d"), "null"),
        (("c", "ef"), "[]}"),
        (("c", "missing", 3), '{"d"'),
        (("missing",), '{"a"'),
    ],
)
def test_a_place_is_that_of_the_value_or_of_the_innermost_one_around_it(path: Path, rest: str) -> None:
    assert TEXT[JsonPlaces.of(TEXT).offset(path) :].startswith(rest)
    assert find_offset(TEXT, path) == JsonPlaces.of(TEXT).offset(path)


@given(values, st.sampled_from([None, 1]))
def test_every_value_is_found_in_any_text(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)

    def assert_found(path: Path, expected: Any) -> None:
        decoded, _ = json.JSONDecoder().raw_decode(text, places.offsets[path])
        assert decoded == expected
        inner = expected.items() if isinstance(expected, dict) else []
        for key, entry in enumerate(expected) if isinstance(expected, list) else inner:
            assert_found((*path, key), entry)

    places = JsonPlaces.of(text)
    assert places.duplicates == []
    assert_found((), value)


def test_keys_that_are_equal_once_normalised_are_duplicates() -> None:
    text = '{"A": {"x": 1, "y": 2, "X": 3}, "b": 1}'
    (duplicate,) = JsonPlaces.of(text, str.lower).duplicates
    assert (duplicate.container, duplicate.keys) == (("A",), ("x", "X"))
    assert [text[offset : offset + 3] for offset in duplicate.offsets] == ['"x"', '"X"']
    assert JsonPlaces.of(text).duplicates == []


def test_lines_and_columns_count_from_1() -> None:
    assert [line_and_column("ab\nä c", offset) for offset in (0, 2, 3, 5)] == [
        "line 1, column 1",
        "line 1, column 3",
        "line 2, column 1",
        "line 2, column 3",
    ]


def test_a_decoder_s_byte_becomes_line_and_column() -> None:
    """Bytes before it may be parts of characters."""
    error = ValueError("JSON is malformed: expected ',' (byte 9)")
    assert describe_syntax_error('{"ä":\n 1 2}'.encode(), error).endswith("expected ',' (line 2, column 3)")
    assert describe_syntax_error(b"{", ValueError("Input data was truncated")) == "Input data was truncated"
