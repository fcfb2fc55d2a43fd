"""The choice among candidates: the balance score, its many ties, and the random fallbacks."""

import pytest

from scheduler_core.longhorn.placement import ChoiceReason, DiskCandidate, possible_choices
from tests.worlds.longhorn import GIB, disk, node


def candidates(usable: dict[str, list[int]]) -> list[DiskCandidate]:
    """Candidates with so many usable GiB, by node."""
    nodes = [
        node(name, *(disk(f"d{index}", storage_available=size * GIB) for index, size in enumerate(sizes, start=1)))
        for name, sizes in usable.items()
    ]
    return [DiskCandidate(entry, usable_disk) for entry in nodes for usable_disk in entry.disks]


def choices(usable: dict[str, list[int]], size: int) -> dict[str, ChoiceReason]:
    """The possible choices for a replica of so many GiB."""
    return {
        f"{choice.candidate.node.name}/{choice.candidate.disk.name}": choice.reason
        for choice in possible_choices(candidates(usable), size * GIB)
    }


@pytest.mark.parametrize(
    ("usable", "size", "expected"),
    [
        pytest.param({"n1": [5]}, 10, {"n1/d1": ChoiceReason.ONLY}, id="a single candidate is taken whatever its size"),
        pytest.param({"n1": [50], "n2": [80]}, 10, {"n2/d1": ChoiceReason.BEST}, id="the emptiest node"),
        pytest.param(
            {"n1": [50, 20], "n2": [60]}, 10, {"n1/d1": ChoiceReason.BEST}, id="a node is the sum of its disks"
        ),
        pytest.param(
            {"n1": [50], "n2": [50]}, 10, {"n1/d1": ChoiceReason.TIE, "n2/d1": ChoiceReason.TIE}, id="equals tie"
        ),
        pytest.param(
            {"a": [10], "b": [10], "c": [7], "d": [4]},
            2,
            {"a/d1": ChoiceReason.TIE, "b/d1": ChoiceReason.TIE, "c/d1": ChoiceReason.TIE},
            id="with two emptiest nodes anything but the fullest ties",
        ),
        pytest.param(
            {"n1": [20, 21, 3], "n2": [40]},
            1,
            {"n1/d1": ChoiceReason.TIE, "n1/d2": ChoiceReason.TIE},
            id="with the largest disk elsewhere anything but the smallest ties",
        ),
        pytest.param(
            {"n1": [5], "n2": [3]},
            10,
            {"n1/d1": ChoiceReason.NO_NODE, "n2/d1": ChoiceReason.NO_NODE},
            id="no node has the space",
        ),
        pytest.param(
            {"n1": [6, 6], "n2": [3]},
            10,
            {"n1/d1": ChoiceReason.NO_DISK, "n1/d2": ChoiceReason.NO_DISK, "n2/d1": ChoiceReason.NO_DISK},
            id="a node has it, no disk of it has",
        ),
        pytest.param(
            {"n1": [6, 6], "n2": [12]},
            10,
            {"n1/d1": ChoiceReason.NO_DISK, "n1/d2": ChoiceReason.NO_DISK, "n2/d1": ChoiceReason.TIE},
            id="one of two tying nodes has no disk for it",
        ),
        pytest.param(
            {"n1": [10], "n2": [0]},
            10,
            {"n1/d1": ChoiceReason.NO_NODE, "n2/d1": ChoiceReason.NO_NODE},
            id="all would be full",
        ),
    ],
)
def test_the_possible_choices_are_as_in_this_table(
    usable: dict[str, list[int]], size: int, expected: dict[str, ChoiceReason]
) -> None:
    assert choices(usable, size) == expected


def test_a_disk_that_two_nodes_list_counts_once() -> None:
    """It was moved, and the status of one node is late."""
    nodes = [node(name, disk("d1", uuid="moved", storage_available=50 * GIB)) for name in ("n1", "n2")]
    moved = [DiskCandidate(entry, entry.disks[0]) for entry in nodes]
    assert [choice.reason for choice in possible_choices(moved, GIB)] == [ChoiceReason.BEST] * 2


def test_usable_bytes_exclude_reserved_and_scheduled_bytes() -> None:
    entry = node("n1", disk(storage_available=60 * GIB, storage_reserved=10 * GIB, storage_scheduled=30 * GIB))
    assert DiskCandidate(entry, entry.disks[0]).usable_bytes == 20 * GIB


def test_usable_bytes_are_never_negative() -> None:
    entry = node("n1", disk(storage_scheduled=300 * GIB))
    assert DiskCandidate(entry, entry.disks[0]).usable_bytes == 0


@pytest.mark.parametrize(
    ("why", "chance"),
    [(ChoiceReason.ONLY, False), (ChoiceReason.BEST, False), (ChoiceReason.TIE, True), (ChoiceReason.NO_DISK, True)],
)
def test_only_ties_and_fallbacks_are_random(why: ChoiceReason, chance: bool) -> None:
    assert why.chance is chance
