"""Stale safety, compared with a model of Longhorn placing volumes with arbitrarily old status."""

from dataclasses import dataclass
from itertools import product
from typing import Self

from hypothesis import given, strategies as st

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import fits
from scheduler_core.packing.items import Items
from scheduler_core.packing.order_safe import (
    MeetingDisk,
    UnplacedVolumes,
    find_overbooking,
    missing_bytes,
    new_volumes_stale_safe,
)
from scheduler_core.structs import replace
from tests import builders as make
from tests.examples import examples


@dataclass(frozen=True)
class DiskModel:
    """What is left of a disk: bytes to promise, and bytes that rebuilds may write (None: not checked)."""

    free: int
    headroom: int | None = None

    def takes(self, size: int, written: int) -> bool:
        """Longhorn's two space rules for one volume."""
        return size <= self.free and (self.headroom is None or written < self.headroom)

    def after(self, size: int, written: int) -> Self:
        return type(self)(self.free - size, None if self.headroom is None else self.headroom - written)


@dataclass(frozen=True)
class Node:
    """Volumes as (size, written, mask of open disks), the disks, and what their first status says to be free. The last
    `optional` volumes may also go elsewhere.
    """

    volumes: tuple[tuple[int, int, int], ...]
    disks: tuple[DiskModel, ...]
    reported: tuple[int, ...]
    optional: int = 0


Histories = tuple[tuple[DiskModel, ...], ...]


def placement_always_succeeds(node: Node) -> bool:
    """Places the volumes in any order, each on any disk that is eligible by any earlier states of the disks. The states that Longhorn sees
    of different disks may be of different ages. Placement fails if a volume finds no disk, or one that lacks the room. An optional volume
    without a disk is skipped, and may overbook a disk on which no other volume lies.
    """
    before = tuple(DiskModel(reported, disk.headroom) for disk, reported in zip(node.disks, node.reported, strict=True))
    histories = tuple(zip(before, node.disks, strict=True))
    return _succeeds(node, frozenset(range(len(node.volumes))), histories, frozenset())


def _succeeds(node: Node, waiting: frozenset[int], histories: Histories, holding: frozenset[int]) -> bool:
    """`holding` are the disks with a volume that is not optional."""
    for volume in waiting:
        needed = volume < len(node.volumes) - node.optional
        size, written, mask = node.volumes[volume]
        chosen: set[int] = set()
        for status in set(product(*[dict.fromkeys(history) for history in histories])):
            eligible = {index for index, disk in enumerate(status) if mask >> index & 1 and disk.takes(size, written)}
            if not eligible and needed:
                return False
            chosen |= eligible
        for index in chosen:
            latest = histories[index][-1]
            on_disk = holding | {index} if needed else holding
            if not latest.takes(size, written) and index in on_disk:
                return False
            later = (*histories[:index], (*histories[index], latest.after(size, written)), *histories[index + 1 :])
            if not _succeeds(node, waiting - {volume}, later, on_disk):
                return False
    return True


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Up to four volumes on two disks or three on three, tight to roomy, with and without bytes in flight, headroom and masks."""
    disks = draw(st.integers(1, 3))
    count = draw(st.integers(0, 4 if disks <= 2 else 3))
    sizes = draw(st.lists(st.integers(0, draw(st.sampled_from([3, 8]))), min_size=count, max_size=count))
    largest = max(sizes, default=0)
    free = st.one_of(st.integers(-2, largest + 1), st.integers(sum(sizes) - 2, sum(sizes) + 3))
    rewrites = draw(st.booleans())
    written = [draw(st.integers(0, size)) if rewrites else 0 for size in sizes]
    headroom = st.one_of(st.integers(1, sum(written) + 2), st.just(sum(written) + 1)) if rewrites else st.none()
    models = [DiskModel(draw(free), draw(headroom)) for _ in range(disks)]
    in_flight = draw(st.lists(st.sampled_from([0, 0, 0, 1, 4]), min_size=disks, max_size=disks))
    mask = st.one_of(st.just((1 << disks) - 1), st.integers(1, (1 << disks) - 1))
    return Node(
        tuple((size, bytes_written, draw(mask)) for size, bytes_written in zip(sizes, written, strict=True)),
        tuple(models),
        tuple(disk.free + uncounted for disk, uncounted in zip(models, in_flight, strict=True)),
    )


def volumes_of(node: Node) -> UnplacedVolumes:
    sizes, written, allowed = ([volume[field] for volume in node.volumes] for field in range(3))
    return UnplacedVolumes(sizes, written, [""] * len(sizes), allowed, node.optional)


def disks_of(node: Node) -> list[MeetingDisk]:
    return [
        MeetingDisk(disk.free, reported, disk.headroom)
        for disk, reported in zip(node.disks, node.reported, strict=True)
    ]


def packs(node: Node) -> bool:
    """Whether some assignment holds all volumes that are not optional."""
    needed = node.volumes[: len(node.volumes) - node.optional]
    masks = tuple(
        mask
        & sum(1 << index for index, disk in enumerate(node.disks) if disk.headroom is None or written < disk.headroom)
        for _, written, mask in needed
    )
    sizes = Items([size for size, _, _ in needed])
    return fits(sizes, tuple(disk.free for disk in node.disks), masks, Budget()) is PackingAnswer.YES


@examples(400)
@given(nodes(), st.sampled_from([0, 0, 1, 2, 3]))
def test_stale_safety_agrees_with_every_placement_on_outdated_status(node: Node, optional: int) -> None:
    """Any order, any eligible disk by any older state: it succeeds exactly where the volumes pack and no disk is overbooked."""
    node = replace(node, optional=min(optional, len(node.volumes)))
    found = find_overbooking(volumes_of(node), disks_of(node))
    assert (packs(node) and found is None) == placement_always_succeeds(node)
    if found is None:
        return
    # Each of the volumes that meet fits the disk alone by the first status, all together they do not fit.
    disk = node.disks[found.disk]
    meeting = [node.volumes[volume] for volume in found.volumes]
    seen = DiskModel(node.reported[found.disk], disk.headroom)
    assert all(mask >> found.disk & 1 and seen.takes(size, written) for size, written, mask in meeting)
    together = [sum(volume[field] for volume in meeting) for field in range(2)]
    assert together[0] > disk.free or (disk.headroom is not None and together[1] >= disk.headroom)


@examples(150)
@given(nodes(), st.sampled_from([0, 0, 1]))
def test_missing_bytes_are_the_least_that_make_each_disk_safe(node: Node, optional: int) -> None:
    """With fewer bytes on a disk, volumes still meet there that it cannot take; brute force over every smaller number."""
    volumes = replace(
        volumes_of(replace(node, optional=min(optional, len(node.volumes)))), written=[0] * len(node.volumes)
    )
    for index, disk in enumerate(disks_of(node)):
        alone = [replace(disk, free=0, reported=-1, headroom=None)] * index
        tried = (
            extra
            for extra in range(sum(volumes.sizes) + max(0, -disk.free) + 1)
            if find_overbooking(
                volumes, [*alone, replace(disk, free=disk.free + extra, reported=disk.reported + extra, headroom=None)]
            )
            is None
        )
        without_data = [replace(other, headroom=None) for other in disks_of(node)]
        assert missing_bytes(volumes, without_data)[index] == next(tried)


@examples(150)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(-3, 30), st.sampled_from([0, 0, 1, 5])), min_size=1, max_size=3),
    st.lists(st.integers(0, 9), max_size=2),
)
def test_the_count_for_new_volumes_equals_the_general_check(
    sizes: list[int], disks: list[tuple[int, int]], optional: list[int]
) -> None:
    """Also if some may go elsewhere."""
    ordered = sorted(disks, reverse=True)
    free = [size for size, _ in ordered]
    reported = [size + uncounted for size, uncounted in ordered]
    count = len(sizes) + len(optional)
    volumes = UnplacedVolumes(sizes + optional, [0] * count, [""] * count, [-1] * count, len(optional))
    expected = find_overbooking(volumes, [MeetingDisk(*pair) for pair in zip(free, reported, strict=True)]) is None
    assert new_volumes_stale_safe(Items(sizes), Items(optional), free, reported) == expected


@examples(150)
@given(
    st.lists(st.tuples(st.integers(1, 16), st.sampled_from([0, 0, 0, 4])), min_size=1, max_size=2),
    st.lists(st.integers(1, 8), min_size=1, max_size=2),
    st.lists(st.integers(1, 8), max_size=2),
)
def test_filter_offers_the_nodes_where_placement_always_succeeds(
    disks: list[tuple[int, int]], sizes: list[int], others: list[int]
) -> None:
    """Disks with bytes in flight; the volumes of a pod, and those of one that is bound to the node."""
    names = [f"own-{index}" for index in range(len(sizes))]
    names_of_others = [f"other-{index}" for index in range(len(others))]
    claims = [make.claim(name, size) for name, size in zip(names + names_of_others, sizes + others, strict=True)]
    replicas = [
        make.replica(f"r-{index}", f"vol-flight-{index}", "n1", disk=f"disk-{index}", size=in_flight)
        for index, (_, in_flight) in enumerate(disks)
        if in_flight
    ]
    current = make.state(
        make.storage_class(),
        make.longhorn_node("n1", {f"disk-{index}": make.disk(size) for index, (size, _) in enumerate(disks)}),
        claims,
        replicas,
        make.pod(*names_of_others, name="other", uid="other", node="n1"),
    )
    node = Node(
        tuple((size, 0, -1) for size in sizes + others),
        tuple(DiskModel(size - in_flight) for size, in_flight in disks),
        tuple(size for size, _ in disks),
    )
    if not packs(Node(node.volumes[len(sizes) :], node.disks, node.reported)):
        return
    options = FilterOptions(packing=Packing.STALE_SAFE)
    requested = make.as_pod(make.pod(*names))
    decision = filter_nodes(requested, ["n1"], current, options, make.competing(current))
    assert decision.fits == placement_always_succeeds(node)
