"""What JSON has of the values of an answer."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest

from app.cli.render import plain_data
from app.schemas.decision import UnresolvedAnswer
from scheduler_core.model.verdict import Reason


class Place(NamedTuple):
    """A named tuple."""

    disk_name: str


@dataclass(frozen=True)
class Step:
    """A dataclass with a field of several words."""

    copied_bytes: int
    places: tuple[Place, ...] = ()


class Word(Enum):
    """An enumeration without texts for people."""

    ALWAYS = "always"


@pytest.mark.parametrize(
    ("value", "data"),
    [
        pytest.param(Step(1, (Place("hdd"),)), {"copiedBytes": 1, "places": [{"diskName": "hdd"}]}, id="fields"),
        pytest.param({"node_a": Step(0)}, {"node_a": {"copiedBytes": 0, "places": []}}, id="names of objects stay"),
        pytest.param((Word.ALWAYS, Reason.HOME), ["always", Reason.HOME.text], id="words and texts"),
        pytest.param([UnresolvedAnswer(error="gone")], [{"Error": "gone"}], id="an answer of the HTTP API"),
        pytest.param([None, 1.0, True, "text"], [None, 1.0, True, "text"], id="plain values"),
    ],
)
def test_an_answer_as_json_has_it(value: Any, data: Any) -> None:
    assert plain_data(value) == data
