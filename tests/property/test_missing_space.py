"""The bytes that one disk of a node lacks, compared with trying every disk for every volume."""

from itertools import product
from unittest.mock import patch

from hypothesis import assume, given, strategies as st

from scheduler_core.evaluation.fit import OpenDisk
from scheduler_core.evaluation.single_node import MissingSpace, NodeEvaluation, missing_space
from scheduler_core.model import longhorn
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.items import reachable_sums
from scheduler_core.volumes.resolve import PodVolume
from scheduler_core.volumes.volume_requirements import requirements
from tests.examples import examples

IMAGES = ("", "", "small", "large")
_sizes = st.integers(0, 12)


@st.composite
def volumes(draw: st.DrawFn, name: str) -> PodVolume:
    """A volume of one of two classes, perhaps with data or with a backing image."""
    volume = longhorn.Volume(
        name=name,
        size=draw(_sizes),
        actual_size=draw(st.sampled_from([0, 0, 0, 3])),
        disk_selector=draw(st.sampled_from([(), ("ssd",)])),
        backing_image=draw(st.sampled_from(IMAGES)),
    )
    return PodVolume(name, f"default/{name}", volume, bound=True, local=True)


@st.composite
def evaluations(draw: st.DrawFn) -> NodeEvaluation:
    """A node with up to three disks, and up to five volumes."""
    names = [f"v{number}" for number in range(draw(st.integers(1, 5)))]
    required = requirements([draw(volumes(name)) for name in names], ())
    copies = (("small", draw(st.integers(0, 2))), ("large", draw(st.integers(3, 9))))
    used = {volume.volume.backing_image for volume in required.volumes}
    disks = tuple(
        OpenDisk(
            uuid=f"disk-{number}",
            free=draw(st.integers(-2, 30)),
            headroom=draw(st.sampled_from([2, 50, 50])) if required.classes.rewrites else 0,
            classes=draw(st.integers(1, (1 << len(required.classes.requests)) - 1)),
            copies=tuple(copy for copy in copies if copy[0] in used and draw(st.booleans())),
        )
        for number in range(draw(st.integers(1, 3)))
    )
    allowed = {0: draw(st.integers(1, (1 << len(disks)) - 1))} if draw(st.booleans()) else {}
    return NodeEvaluation(required, None, disks, allowed)


def overflows(evaluation: NodeEvaluation, assignment: tuple[int, ...]) -> list[int] | None:
    """The bytes by which each disk overflows; None if a volume may not use its disk."""
    required = evaluation.required
    loads = dict.fromkeys(assignment, 0)
    copied = set()
    for index, disk in enumerate(assignment):
        entry = evaluation.disks[disk]
        written = required.written[index]
        if not evaluation.allowed.get(index, -1) >> disk & 1 or not entry.classes >> required.class_indexes[index] & 1:
            return None
        if written and written >= entry.headroom:
            return None
        loads[disk] += required.sizes[index]
        copied |= {(disk, image) for image, _ in entry.copies if image == required.images[index]}
    for disk, image in copied:
        loads[disk] += dict(evaluation.disks[disk].copies)[image]
    return [load - evaluation.disks[disk].free for disk, load in loads.items() if load > evaluation.disks[disk].free]


def brute_force(evaluation: NodeEvaluation) -> int | None:
    """The least bytes that one disk lacks; None if no amount on one disk is enough."""
    choices = product(range(len(evaluation.disks)), repeat=len(evaluation.required.sizes))
    shortages = [overflows(evaluation, assignment) for assignment in choices]
    return min((sum(shortage) for shortage in shortages if shortage is not None and len(shortage) <= 1), default=None)


@examples(300)
@given(evaluations(), st.booleans())
def test_the_missing_bytes_are_the_least_that_help_on_one_disk(evaluation: NodeEvaluation, many_sums: bool) -> None:
    """Tags, data, anti-affinity and backing images included; and whether or not the sums of the sizes are too many."""
    least = brute_force(evaluation)
    assume(least != 0)
    sums = (lambda _: []) if many_sums else reachable_sums
    with patch("scheduler_core.packing.items.reachable_sums", sums):
        assert missing_space(evaluation, Budget()) == MissingSpace(least or 0, exact=True)


@examples(150)
@given(evaluations(), st.integers(0, 60))
def test_with_few_steps_the_missing_bytes_are_never_overstated(evaluation: NodeEvaluation, steps: int) -> None:
    """What is not exact is a lower bound, and what is exact is the least."""
    least = brute_force(evaluation)
    assume(least != 0)
    missing = missing_space(evaluation, Budget(steps))
    if missing.exact:
        assert missing.size == (least or 0)
    else:
        assert 0 < missing.size <= (least or missing.size)


def test_no_disk_is_large_enough_for_volumes_of_nearly_the_largest_size() -> None:
    """There are too many sums of them, the sums have no common divisor, and no range can number them."""
    sizes = [9 * 10**17 + 7**number for number in range(14)]
    volumes = [
        PodVolume(f"v{size}", f"default/v{size}", longhorn.Volume(name=f"v{size}", size=size), bound=True, local=True)
        for size in sizes
    ]
    required = requirements(volumes, ())
    node = NodeEvaluation(required, None, (OpenDisk(uuid="d", free=0, headroom=0, classes=1, copies=()),), {})
    assert missing_space(node, Budget()) == MissingSpace(0, exact=True)
