"""Models are read by the paths that their fields carry."""

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Struct

from scheduler_core.convert.wire_types import Fields
from scheduler_core.errors import ObjectError, OversizeError
from scheduler_core.model.quantity import read_size


class _Part(Struct, frozen=True):
    name: Annotated[str, "name"]
    zone: Annotated[str, "where.zone"] = "none"


class _Whole(Struct, frozen=True):
    mode: Annotated[str, "spec.mode"] = "default"


class _Model(Struct, frozen=True):
    name: Annotated[str, "metadata.name"]
    label: Annotated[str, "metadata.labels[a.b/c]"] = ""
    generation: Annotated[int, "metadata.generation"] = 0
    size: Annotated[int, "spec.size", read_size] = 0
    strict: Annotated[str, "spec.strict", str] = ""
    parts: Annotated[tuple[_Part, ...], "spec.parts"] = ()
    part: Annotated[_Part | None, "spec.part"] = None
    whole: Annotated[_Whole | None, ""] = None
    unread: int = 7
    counts: Annotated[dict[str, int], "spec.counts"] = {}


class _Extended(Struct, frozen=True):
    name: Annotated[str, "metadata.name"]
    whole: _Whole = _Whole()


_FIELDS = Fields("Thing", _Model)
_NAMED = {"name": "a", "namespace": "shop"}


@pytest.mark.parametrize(
    "spec", [None, {}, {"mode": None, "parts": None, "part": None}], ids=["null", "empty", "nulls"]
)
def test_absent_values_are_the_defaults(spec: Any) -> None:
    assert _FIELDS.read({"metadata": _NAMED, "spec": spec}) == _Model("a", whole=_Whole())


def test_every_path_is_read() -> None:
    metadata = {**_NAMED, "labels": {"a.b/c": "x"}, "generation": 3}
    parts = {"parts": [{"name": "p", "where": {"zone": "z"}}, {}], "part": {"name": "q"}}
    body = {"metadata": metadata, "spec": {"size": "1Ki", "strict": "s", "counts": {"n": 1}, "mode": "m", **parts}}
    expected = _Model("a", "x", 3, 1024, "s", (_Part("p", "z"), _Part("")), _Part("q"), _Whole("m"), counts={"n": 1})
    assert _FIELDS.read(body) == expected
    assert _FIELDS.decode(msgspec.json.encode(body)) == expected


def test_a_part_without_a_path_is_read_where_it_is_asked_for() -> None:
    """Otherwise it is not even checked."""
    fields = Fields("Thing", _Extended)
    extended = fields.extend(whole=Fields("", _Whole))
    body = {"metadata": _NAMED, "spec": {"mode": "m"}}
    assert (fields.read(body), extended.read(body)) == (_Extended("a"), _Extended("a", _Whole("m")))
    assert fields.read({**body, "spec": {"mode": 1}}) == _Extended("a")
    with pytest.raises(ObjectError, match="Thing shop/a"):
        extended.read({**body, "spec": {"mode": 1}})


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"mode": 1}, "spec.mode: Expected `str | null`, got `int`"),
        ({"strict": None}, "spec.strict: Expected `str`, got `null`"),
        ({"parts": [{"where": {"zone": []}}]}, "spec.parts[0].where.zone: Expected `str | null`, got `array`"),
        ({"size": "-1"}, "spec.size: '-1' is negative"),
    ],
)
def test_messages_name_the_object_and_the_field(spec: Any, problem: str) -> None:
    with pytest.raises(ObjectError) as caught:
        _FIELDS.read({"metadata": _NAMED, "spec": spec})
    assert str(caught.value) == f"Thing shop/a: {problem}"


def test_size_beyond_64_bits_is_an_error_of_its_own() -> None:
    """Callers tell it apart, because the API server accepts it."""
    with pytest.raises(OversizeError):
        _FIELDS.read({"metadata": _NAMED, "spec": {"size": "16Ei"}})
