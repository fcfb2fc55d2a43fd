"""Order safety against every order and every choice of disks, and against Longhorn's own balance rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cooperative import run_to_end
from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import fits
from scheduler_core.packing.items import Items
from scheduler_core.packing.order_safe import Safety, order_safe
from scheduler_core.packing.order_safe_batch import order_safe_many


@dataclass(frozen=True)
class Node:
    """The volumes, what each writes and where it may go, and the disks' free bytes and headroom."""

    sizes: tuple[int, ...]
    required: tuple[int, ...] | None
    free: tuple[int, ...]
    headroom: tuple[int, ...] | None
    allowed: tuple[int, ...] | None

    def written(self, volume: int) -> int:
        """What the volume takes from a disk's headroom."""
        return 0 if self.required is None or self.headroom is None else self.required[volume]

    def eligible(self, volume: int, left: tuple[int, ...], room: tuple[int, ...] | None) -> list[int]:
        """Longhorn's two space rules and the tags."""
        return [
            disk
            for disk in range(len(left))
            if (self.allowed is None or self.allowed[volume] >> disk & 1)
            and self.sizes[volume] <= left[disk]
            and (room is None or self.written(volume) < room[disk])
        ]

    def after(
        self, volume: int, disk: int, left: tuple[int, ...], room: tuple[int, ...] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """The disks once the volume is there."""
        left = (*left[:disk], left[disk] - self.sizes[volume], *left[disk + 1 :])
        if room is not None:
            room = (*room[:disk], room[disk] - self.written(volume), *room[disk + 1 :])
        return left, room


def every_order_succeeds(node: Node) -> bool:
    """Brute force over all orders and all eligible disks."""

    @cache
    def succeeds(waiting: frozenset[int], left: tuple[int, ...], room: tuple[int, ...] | None) -> bool:
        for volume in waiting:
            disks = node.eligible(volume, left, room)
            if not disks:
                return False
            if not all(succeeds(waiting - {volume}, *node.after(volume, disk, left, room)) for disk in disks):
                return False
        return True

    return succeeds(frozenset(range(len(node.sizes))), node.free, node.headroom)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Up to five volumes and three disks, mostly tight; with and without headroom and masks."""
    count, disks = draw(st.integers(0, 5)), draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(0, draw(st.sampled_from([3, 10]))), min_size=count, max_size=count))
    around = sum(sizes) // disks
    free = draw(st.lists(st.integers(around - 2, 2 * around + 4), min_size=disks, max_size=disks))
    masks = st.lists(st.integers(1, (1 << disks) - 1), min_size=count, max_size=count).map(tuple)
    required = headroom = None
    if draw(st.booleans()):
        required = draw(st.one_of(st.none(), st.tuples(*[st.integers(0, size) for size in sizes])))
        written = sum(required or ()) // disks
        headroom = tuple(draw(st.lists(st.integers(written - 1, 2 * written + 3), min_size=disks, max_size=disks)))
    return Node(tuple(sizes), required, tuple(free), headroom, draw(st.one_of(st.none(), masks)))


def ask(node: Node) -> Safety:
    """The answer with a whole budget."""
    return order_safe(Items(node.sizes), node.required, node.free, node.headroom, node.allowed, Budget())


@settings(max_examples=800, deadline=None)
@given(nodes())
def test_order_safe_says_what_all_orders_say(node: Node) -> None:
    """Never a wrong answer, and nothing undecided up to five volumes."""
    assert ask(node).answer is (PackingAnswer.YES if every_order_succeeds(node) else PackingAnswer.NO)


@settings(max_examples=400, deadline=None)
@given(nodes())
def test_a_counter_example_can_be_replayed(node: Node) -> None:
    """Each step goes to an eligible disk, and the last volume, still waiting, finds none."""
    safety = ask(node)
    if safety.answer is not PackingAnswer.NO:
        assert safety.counter_example == ()
        return
    *placed, (last, nowhere) = safety.counter_example
    left, room = node.free, node.headroom
    for volume, disk in placed:
        assert disk in node.eligible(volume, left, room)
        assert disk is not None
        left, room = node.after(volume, disk, left, room)

    assert nowhere is None
    assert len({volume for volume, _ in safety.counter_example}) == len(safety.counter_example)
    assert node.eligible(last, left, room) == []


@settings(max_examples=200, deadline=None)
@given(nodes())
def test_what_is_safe_also_fits(node: Node) -> None:
    """An order-safe node has a packing: any order ends in one."""
    if ask(node).answer is PackingAnswer.YES:
        assert fits(Items(node.sizes), node.free, node.allowed, Budget()) is PackingAnswer.YES


@settings(max_examples=200, deadline=None)
@given(nodes(), st.randoms(use_true_random=False))
def test_the_order_of_volumes_and_disks_does_not_matter(node: Node, random: Random) -> None:
    """Names and positions decide nothing."""
    volumes, disks = list(range(len(node.sizes))), list(range(len(node.free)))
    random.shuffle(volumes)
    random.shuffle(disks)
    allowed = node.allowed and tuple(
        sum(1 << at for at, disk in enumerate(disks) if node.allowed[v] >> disk & 1) for v in volumes
    )
    shuffled = Node(
        tuple(node.sizes[v] for v in volumes),
        node.required and tuple(node.required[v] for v in volumes),
        tuple(node.free[d] for d in disks),
        node.headroom and tuple(node.headroom[d] for d in disks),
        allowed,
    )

    assert ask(shuffled).answer is ask(node).answer


@settings(max_examples=200, deadline=None)
@given(nodes())
def test_many_nodes_are_answered_as_one(node: Node) -> None:
    """The table for two disks says what the search says."""
    alone = order_safe(Items(node.sizes), None, node.free, None, None, Budget()).answer

    assert run_to_end(order_safe_many(Items(node.sizes), [node.free, node.free], Budget())) == [alone, alone]


@settings(max_examples=100, deadline=None)
@given(nodes(), st.integers(0, 12))
def test_a_small_budget_makes_answers_missing_but_never_wrong(node: Node, steps: int) -> None:
    """Whatever was being looked at when the steps ended, nothing is claimed that is not known."""
    answer = order_safe(Items(node.sizes), node.required, node.free, node.headroom, node.allowed, Budget(steps)).answer

    assert answer is PackingAnswer.UNDECIDED or answer is ask(node).answer


def balanced_choices(size: int, eligible: list[int], usable: tuple[int, ...]) -> set[int]:
    """The disks Longhorn may pick on a single node: most evenly filled afterwards, ties and fallbacks at random.

    Ranges are compared instead of (max - min) / mean: the mean is the same for every choice.
    """
    room = {disk: max(0, usable[disk]) for disk in eligible}
    ranges: dict[int, int] = {}
    for disk in eligible:
        after = [room[other] - size * (other == disk) for other in eligible]
        if room[disk] >= size and sum(after) > 0:
            ranges[disk] = max(after) - min(after)
    if len(eligible) == 1 or not ranges:
        return set(eligible)
    return {disk for disk, value in ranges.items() if value == min(ranges.values())}


def balance_rule_succeeds(node: Node, usable: tuple[int, ...]) -> bool:
    """Every order under the balance rule, every tie explored; `usable` is what the score sees, not what the checks see."""

    @cache
    def succeeds(
        waiting: frozenset[int], left: tuple[int, ...], room: tuple[int, ...] | None, seen: tuple[int, ...]
    ) -> bool:
        for volume in waiting:
            size = node.sizes[volume]
            disks = balanced_choices(size, node.eligible(volume, left, room), seen)
            if not disks or not all(
                succeeds(
                    waiting - {volume},
                    *node.after(volume, disk, left, room),
                    (*seen[:disk], seen[disk] - size, *seen[disk + 1 :]),
                )
                for disk in disks
            ):
                return False
        return True

    return succeeds(frozenset(range(len(node.sizes))), node.free, node.headroom, usable)


@settings(max_examples=300, deadline=None)
@given(nodes(), st.lists(st.integers(-5, 40), min_size=3, max_size=3))
def test_what_is_safe_succeeds_under_longhorns_balance_rule(node: Node, usable: list[int]) -> None:
    """Whatever bytes the score looks at and however its ties fall."""
    if ask(node).answer is PackingAnswer.YES:
        assert balance_rule_succeeds(node, tuple(usable[: len(node.free)]))
