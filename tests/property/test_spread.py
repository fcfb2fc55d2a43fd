"""Whether replicas fit apart from each other, compared with trying every assignment."""

from collections.abc import Sequence
from itertools import product

from hypothesis import given, strategies as st

from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.spread import SHARED, ReplicaGroup, fits_spread

DISKS = 4


@st.composite
def groups(draw: st.DrawFn) -> ReplicaGroup:
    """Up to three replicas of a volume; the first may be limited to other disks than the rest."""
    mask = st.integers(0, 2**DISKS - 1)
    count = draw(st.integers(1, 3))
    masks = [draw(mask)] + [draw(mask)] * (count - 1)
    per_disk = st.lists(st.integers(SHARED, 2), min_size=DISKS, max_size=DISKS)
    image = draw(st.sampled_from(["", "", "x", "y"]))
    sizes = {"": (), "x": (5, 0, 5, 5), "y": (0, 3, 3, 0)}
    return ReplicaGroup(draw(st.integers(0, 12)), tuple(masks), tuple(draw(per_disk)), sizes[image], image)


def fits_by_trying(volumes: Sequence[ReplicaGroup], free: Sequence[int]) -> bool:
    """Whether any assignment keeps every rule."""
    replicas = [(group, mask) for group in volumes for mask in group.masks]
    for picks in product(range(DISKS), repeat=len(replicas)):
        if any(not mask >> disk & 1 for (_, mask), disk in zip(replicas, picks, strict=True)):
            continue
        room = list(free)
        domains: list[tuple[int, int]] = []
        copied: set[tuple[str, int]] = set()
        for (group, _), disk in zip(replicas, picks, strict=True):
            room[disk] -= group.size
            if group.copies and (group.image, disk) not in copied:
                room[disk] -= group.copies[disk]
                copied.add((group.image, disk))
            if group.domains[disk] != SHARED:
                domains.append((id(group), group.domains[disk]))
        if all(left >= 0 for disk, left in enumerate(room) if disk in picks) and len(set(domains)) == len(domains):
            return True
    return False


@given(st.lists(groups(), max_size=3), st.lists(st.integers(-3, 30), min_size=DISKS, max_size=DISKS))
def test_replicas_fit_exactly_if_some_assignment_keeps_every_rule(volumes: list[ReplicaGroup], free: list[int]) -> None:
    """Sizes, disks, domains and copies of backing images together."""
    budget = Budget()
    expected = PackingAnswer.YES if fits_by_trying(volumes, free) else PackingAnswer.NO
    assert (fits_spread(volumes, tuple(free), budget), budget.gave_up) == (expected, 0)


@given(
    st.lists(groups(), max_size=3), st.lists(st.integers(-3, 30), min_size=DISKS, max_size=DISKS), st.integers(0, 60)
)
def test_a_small_budget_leaves_the_answer_open_but_never_wrong(
    volumes: list[ReplicaGroup], free: list[int], steps: int
) -> None:
    budget = Budget(steps)
    answer = fits_spread(volumes, tuple(free), budget)
    assert budget.gave_up == (answer is PackingAnswer.UNDECIDED)
    assert answer in (PackingAnswer.UNDECIDED, fits_spread(volumes, tuple(free), Budget()))
