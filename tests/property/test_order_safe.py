"""Order safety, compared with every order and every choice of disks."""

from dataclasses import dataclass
from functools import cache

from hypothesis import given, strategies as st

from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.items import Items, OptionalItems
from scheduler_core.packing.order_safe import Safety, order_safe, order_safe_many
from tests.examples import examples

Placed = tuple[tuple[int, int], ...]
"""The volumes that must be on different disks, with those disks."""


@dataclass(frozen=True)
class Node:
    """Volumes, the bytes each writes and its allowed disks, and the free bytes and headroom of the disks."""

    sizes: tuple[int, ...]
    required: tuple[int, ...] | None
    free: tuple[int, ...]
    headroom: tuple[int, ...] | None
    allowed: tuple[int, ...] | None

    def written_bytes(self, volume: int) -> int:
        """The bytes that the volume takes from a disk's headroom."""
        return 0 if self.required is None or self.headroom is None else self.required[volume]

    def eligible(self, volume: int, remaining: tuple[int, ...], room: tuple[int, ...] | None) -> list[int]:
        """The disks that Longhorn's two space rules and the tags allow."""
        return [
            disk
            for disk in range(len(remaining))
            if (self.allowed is None or self.allowed[volume] >> disk & 1)
            and self.sizes[volume] <= remaining[disk]
            and (room is None or self.written_bytes(volume) < room[disk])
        ]

    def after(
        self, volume: int, disk: int, remaining: tuple[int, ...], room: tuple[int, ...] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """The free bytes and headroom of the disks after the volume is placed."""
        remaining = (*remaining[:disk], remaining[disk] - self.sizes[volume], *remaining[disk + 1 :])
        if room is not None:
            room = (*room[:disk], room[disk] - self.written_bytes(volume), *room[disk + 1 :])
        return remaining, room


@st.composite
def nodes(draw: st.DrawFn, most: int = 5) -> Node:
    """Up to five volumes and three disks, mostly tight, with and without headroom and masks."""
    count = draw(st.integers(0, most))
    disks = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(0, draw(st.sampled_from([3, 10]))), min_size=count, max_size=count))
    around = sum(sizes) // disks
    free = draw(st.lists(st.integers(around - 2, 2 * around + 4), min_size=disks, max_size=disks))
    masks = st.lists(st.integers(1, (1 << disks) - 1), min_size=count, max_size=count).map(tuple)
    required = None
    headroom = None
    if draw(st.booleans()):
        required = draw(st.one_of(st.none(), st.tuples(*[st.integers(0, size) for size in sizes])))
        share = sum(required or ()) // disks
        headroom = tuple(draw(st.lists(st.integers(share - 1, 2 * share + 3), min_size=disks, max_size=disks)))
    return Node(tuple(sizes), required, tuple(free), headroom, draw(st.one_of(st.none(), masks)))


def evaluate(node: Node) -> Safety:
    return order_safe(Items(node.sizes), node.required, node.free, node.headroom, node.allowed, Budget())


@st.composite
def optional_items(draw: st.DrawFn, node: Node) -> OptionalItems:
    """One or two replicas of one or two volumes, which may have to be on different disks."""
    largest = max(node.sizes, default=0) + 2
    sizes: list[int] = []
    spread: list[int] = []
    allowed: list[int] = []
    written: list[int] = []
    for volume in range(draw(st.integers(1, 2))):
        count = draw(st.integers(1, 2))
        size = draw(st.integers(0, largest))
        sizes += [size] * count
        written += [draw(st.integers(0, size))] * count
        spread += [draw(st.sampled_from([-1, volume]))] * count
        allowed += [draw(st.integers(0, (1 << len(node.free)) - 1))] * count
    masks = draw(st.sampled_from([None, tuple(allowed)]))
    return OptionalItems(tuple(sizes), tuple(written), tuple(spread), masks)


@examples(500)
@given(st.data())
def test_order_safe_agrees_with_trying_all_orders(data: st.DataObject) -> None:
    """Of up to five volumes no answer is wrong, and none is missing. Optional replicas may take any eligible disk at any time; the items must
    all find one, and a counter-example can be replayed. So Longhorn's balance rule, which chooses among eligible disks, succeeds, too.
    """
    node = data.draw(nodes())
    optional = data.draw(optional_items(node)) if len(node.sizes) <= 3 and data.draw(st.booleans()) else OptionalItems()
    count = len(node.sizes)
    everything = Node(
        node.sizes + optional.sizes,
        (node.required or (0,) * count) + optional.written,
        node.free,
        node.headroom,
        (node.allowed or ((1 << len(node.free)) - 1,) * count)
        + (optional.allowed or ((1 << len(node.free)) - 1,) * len(optional.sizes)),
    )

    def eligible(volume: int, placed: Placed, remaining: tuple[int, ...], room: tuple[int, ...] | None) -> list[int]:
        disks = everything.eligible(volume, remaining, room)
        spread = -1 if volume < count else optional.spread[volume - count]
        return [disk for disk in disks if spread < 0 or (spread, disk) not in placed]

    def with_placed(volume: int, disk: int, placed: Placed) -> Placed:
        spread = -1 if volume < count else optional.spread[volume - count]
        return placed if spread < 0 else tuple(sorted({*placed, (spread, disk)}))

    @cache
    def succeeds(
        waiting: frozenset[int], placed: Placed, remaining: tuple[int, ...], room: tuple[int, ...] | None
    ) -> bool:
        for volume in waiting:
            disks = eligible(volume, placed, remaining, room)
            if not disks and volume < count:
                return False
            for disk in disks:
                after = everything.after(volume, disk, remaining, room)
                if not succeeds(waiting - {volume}, with_placed(volume, disk, placed), *after):
                    return False
        return True

    safety = order_safe(Items(node.sizes), node.required, node.free, node.headroom, node.allowed, Budget(), optional)
    expected = succeeds(frozenset(range(len(everything.sizes))), (), node.free, node.headroom)
    assert safety.answer is (PackingAnswer.YES if expected else PackingAnswer.NO)
    assert (safety.counter_example == ()) is expected
    placed: Placed = ()
    waiting = set(range(len(everything.sizes)))
    remaining, room = node.free, node.headroom
    for volume, disk in safety.counter_example:
        disks = eligible(volume, placed, remaining, room)
        if disk is None:
            assert (disks, volume < count, volume in waiting) == ([], True, True)
            return
        assert disk in disks
        waiting.remove(volume)
        placed = with_placed(volume, disk, placed)
        remaining, room = everything.after(volume, disk, remaining, room)


@examples(100)
@given(nodes())
def test_each_of_many_nodes_gets_the_answer_it_gets_alone(node: Node) -> None:
    """The table for two disks agrees with the search."""
    alone = order_safe(Items(node.sizes), None, node.free, None, None, Budget()).answer

    assert order_safe_many(Items(node.sizes), [node.free, node.free], Budget()) == [alone, alone]


@examples(100)
@given(nodes(), st.integers(0, 12))
def test_a_small_budget_makes_answers_missing_but_never_wrong(node: Node, steps: int) -> None:
    answer = order_safe(Items(node.sizes), node.required, node.free, node.headroom, node.allowed, Budget(steps)).answer

    assert answer is PackingAnswer.UNDECIDED or answer is evaluate(node).answer
