"""The choice among candidates: the balance score, its many ties, and the random fallbacks."""

from __future__ import annotations

import pytest

from scheduler_core.longhorn.disk_choice import Candidate, Why, choices
from tests.worlds.longhorn import GIB, disk, node


def candidates(usable: dict[str, list[int]]) -> list[Candidate]:
    """Candidates with so many usable GiB, by node."""
    nodes = [
        node(name, *(disk(f"d{index}", storage_available=size * GIB) for index, size in enumerate(sizes, start=1)))
        for name, sizes in usable.items()
    ]
    return [Candidate(entry, each) for entry in nodes for each in entry.disks]


def chosen(usable: dict[str, list[int]], size: int) -> dict[str, Why]:
    """The possible choices for a replica of so many GiB."""
    return {
        f"{choice.candidate.node.name}/{choice.candidate.disk.name}": choice.why
        for choice in choices(candidates(usable), size * GIB)
    }


@pytest.mark.parametrize(
    ("usable", "size", "expected"),
    [
        pytest.param({"n1": [5]}, 10, {"n1/d1": Why.ONLY}, id="a single candidate is taken whatever its size"),
        pytest.param({"n1": [50], "n2": [80]}, 10, {"n2/d1": Why.BEST}, id="the emptiest node"),
        pytest.param({"n1": [50, 20], "n2": [60]}, 10, {"n1/d1": Why.BEST}, id="a node is the sum of its disks"),
        pytest.param({"n1": [50], "n2": [50]}, 10, {"n1/d1": Why.TIE, "n2/d1": Why.TIE}, id="equals tie"),
        pytest.param(
            {"a": [10], "b": [10], "c": [7], "d": [4]},
            2,
            {"a/d1": Why.TIE, "b/d1": Why.TIE, "c/d1": Why.TIE},
            id="with two emptiest nodes anything but the fullest ties",
        ),
        pytest.param(
            {"n1": [20, 21, 3], "n2": [40]},
            1,
            {"n1/d1": Why.TIE, "n1/d2": Why.TIE},
            id="with the largest disk elsewhere anything but the smallest ties",
        ),
        pytest.param(
            {"n1": [5], "n2": [3]}, 10, {"n1/d1": Why.NO_NODE, "n2/d1": Why.NO_NODE}, id="no node has the space"
        ),
        pytest.param(
            {"n1": [6, 6], "n2": [3]},
            10,
            {"n1/d1": Why.NO_DISK, "n1/d2": Why.NO_DISK, "n2/d1": Why.NO_DISK},
            id="a node has it, no disk of it has",
        ),
        pytest.param(
            {"n1": [6, 6], "n2": [12]},
            10,
            {"n1/d1": Why.NO_DISK, "n1/d2": Why.NO_DISK, "n2/d1": Why.TIE},
            id="one of two tying nodes has no disk for it",
        ),
        pytest.param({"n1": [10], "n2": [0]}, 10, {"n1/d1": Why.NO_NODE, "n2/d1": Why.NO_NODE}, id="all would be full"),
    ],
)
def test_choice(usable: dict[str, list[int]], size: int, expected: dict[str, Why]) -> None:
    """Every disk Longhorn may choose, and why."""
    assert chosen(usable, size) == expected


def test_usable_counts_reserved_and_scheduled_as_gone() -> None:
    """Used bytes count twice: they are not available, and they are scheduled."""
    entry = node("n1", disk(storage_available=60 * GIB, storage_reserved=10 * GIB, storage_scheduled=30 * GIB))
    assert Candidate(entry, entry.disks[0]).usable == 20 * GIB


def test_usable_is_never_negative() -> None:
    """An over-provisioned disk counts as empty, not as less."""
    entry = node("n1", disk(storage_scheduled=300 * GIB))
    assert Candidate(entry, entry.disks[0]).usable == 0


@pytest.mark.parametrize(
    ("why", "chance"), [(Why.ONLY, False), (Why.BEST, False), (Why.TIE, True), (Why.NO_DISK, True)]
)
def test_only_ties_and_fallbacks_are_chance(why: Why, chance: bool) -> None:
    """A best score leaves no choice."""
    assert why.chance is chance
