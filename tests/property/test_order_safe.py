"""Order safety, compared with every order and every choice of disks, and with Longhorn's own balance rule."""

from dataclasses import dataclass
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

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


def every_order_succeeds(node: Node) -> bool:
    """Tries all orders and all eligible disks."""

    @cache
    def succeeds(waiting: frozenset[int], remaining: tuple[int, ...], room: tuple[int, ...] | None) -> bool:
        for volume in waiting:
            disks = node.eligible(volume, remaining, room)
            if not disks:
                return False
            if not all(succeeds(waiting - {volume}, *node.after(volume, disk, remaining, room)) for disk in disks):
                return False
        return True

    return succeeds(frozenset(range(len(node.sizes))), node.free, node.headroom)


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


@examples(400)
@given(nodes())
def test_order_safe_agrees_with_trying_all_orders(node: Node) -> None:
    """No answer is wrong, and none of up to five volumes is missing."""
    assert evaluate(node).answer is (PackingAnswer.YES if every_order_succeeds(node) else PackingAnswer.NO)


@examples(200)
@given(nodes())
def test_a_counter_example_can_be_replayed(node: Node) -> None:
    """Each step goes to an eligible disk; the last volume has none."""
    safety = evaluate(node)
    if safety.answer is not PackingAnswer.NO:
        assert safety.counter_example == ()
        return
    *steps, (last, no_disk) = safety.counter_example
    remaining = node.free
    room = node.headroom
    for volume, disk in steps:
        assert disk in node.eligible(volume, remaining, room)
        assert disk is not None
        remaining, room = node.after(volume, disk, remaining, room)

    assert no_disk is None
    assert len({volume for volume, _ in safety.counter_example}) == len(safety.counter_example)
    assert node.eligible(last, remaining, room) == []


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


@examples(150)
@given(st.data())
def test_optional_replicas_agree_with_trying_all_orders(data: st.DataObject) -> None:
    """They may take any eligible disk at any time; the items must all find one, and a counter-example can be replayed."""
    node = data.draw(nodes(most=3))
    optional = data.draw(optional_items(node))
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
    placed: Placed = ()
    remaining, room = node.free, node.headroom
    for volume, disk in safety.counter_example:
        disks = eligible(volume, placed, remaining, room)
        if disk is None:
            assert (disks, volume < count) == ([], True)
            return
        assert disk in disks
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


def balanced_choices(size: int, eligible: list[int], usable: tuple[int, ...]) -> set[int]:
    """The disks Longhorn may pick on a single node: most evenly filled afterwards, ties and fallbacks at random. Ranges
    are compared instead of (max - min) / mean: the mean is the same for every choice.
    """
    room = {disk: max(0, usable[disk]) for disk in eligible}
    ranges: dict[int, int] = {}
    for disk in eligible:
        after = [room[each] - size * (each == disk) for each in eligible]
        if room[disk] >= size and sum(after) > 0:
            ranges[disk] = max(after) - min(after)
    if len(eligible) == 1 or not ranges:
        return set(eligible)
    return {disk for disk, value in ranges.items() if value == min(ranges.values())}


def balance_rule_succeeds(node: Node, usable: tuple[int, ...]) -> bool:
    """Tries every order and every tie of the balance rule. `usable` are the bytes that the score reads, not those that the checks read."""

    @cache
    def succeeds(
        waiting: frozenset[int], remaining: tuple[int, ...], room: tuple[int, ...] | None, scored: tuple[int, ...]
    ) -> bool:
        for volume in waiting:
            size = node.sizes[volume]
            disks = balanced_choices(size, node.eligible(volume, remaining, room), scored)
            if not disks or not all(
                succeeds(
                    waiting - {volume},
                    *node.after(volume, disk, remaining, room),
                    (*scored[:disk], scored[disk] - size, *scored[disk + 1 :]),
                )
                for disk in disks
            ):
                return False
        return True

    return succeeds(frozenset(range(len(node.sizes))), node.free, node.headroom, usable)


@examples(150)
@given(nodes(), st.lists(st.integers(-5, 40), min_size=3, max_size=3))
def test_order_safe_volumes_are_placed_by_longhorn_s_balance_rule(node: Node, usable: list[int]) -> None:
    """Whatever bytes the score reads, and whichever disk it picks among ties."""
    if evaluate(node).answer is PackingAnswer.YES:
        assert balance_rule_succeeds(node, tuple(usable[: len(node.free)]))
