"""The cost of packing and order safety: `python -m tests.bench packing`.

Also how often they give up, by family: the recorded corpus, then seeded instances of larger ones, then order safety on tight nodes, then
whole requests of 5,000 different nodes. Times are for information; nothing here passes or fails by them.
"""

import gc
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import fits, fits_many
from scheduler_core.packing.items import NO_OPTIONAL_ITEMS, Items, OptionalItems
from scheduler_core.packing.order_safe import Safety, order_safe, order_safe_many

CORPUS = Path(__file__).parents[1] / "golden" / "packing" / "packing.jsonl"
GI = 1 << 30
GENERATED = 150
NODES = 5_000


class Instance(NamedTuple):
    """A packing problem; `expected` is None where the answer is unknown."""

    free: tuple[int, ...]
    sizes: tuple[int, ...]
    allowed: tuple[int, ...] | None
    expected: bool | None


class Row(NamedTuple):
    """The answer to one problem, whether it was wrong, and its ms."""

    answer: PackingAnswer
    wrong: bool
    elapsed: float


def run() -> str:
    """Returns all tables as text."""
    # As the live server: otherwise the collector looks at all modules now and again, 0.1 s each time.
    gc.collect()
    gc.freeze()
    lines = [_heading("packing: recorded corpus")]
    lines += [
        _line(family, [_pack(instance) for instance in instances]) for family, instances in sorted(_corpus().items())
    ]
    lines.append(_heading(f"packing: generated, {GENERATED} each (answers checked where known)"))
    for name, make in LARGER.items():
        rng = random.Random(name)  # noqa: S311 -- seeded instances, no secrets
        lines.append(_line(name, [_pack(make(rng)) for _ in range(GENERATED)]))
    lines.append(_heading("order safety: tight nodes on which a packing exists"))
    lines += [_line(name, rows) for name, rows in _measure_order_safety().items()]
    lines += [
        "",
        f"requests over {NODES} different nodes (ms)".ljust(52) + "fits  order-safe  gave up",
        *_measure_requests(),
    ]
    return "\n".join(lines)


def _heading(title: str) -> str:
    return f"\n{title:<52}{'n':>6}{'yes':>6}{'no':>6}{'gave up':>9}{'wrong':>7}{'p50':>9}{'p99':>9}{'max ms':>9}"


def _line(name: str, rows: list[Row]) -> str:
    times = sorted(row.elapsed for row in rows)
    answers = [row.answer for row in rows]
    counts = [answers.count(answer) for answer in (PackingAnswer.YES, PackingAnswer.NO)]
    p50, p99 = (times[min(len(times) - 1, int(len(times) * part))] for part in (0.5, 0.99))
    return (
        f"{name:<52}{len(rows):>6}{counts[0]:>6}{counts[1]:>6}{answers.count(PackingAnswer.UNDECIDED):>9}"
        f"{sum(row.wrong for row in rows):>7}{p50:>9.3f}{p99:>9.3f}{times[-1]:>9.3f}"
    )


def _corpus() -> dict[str, list[Instance]]:
    families: dict[str, list[Instance]] = {}
    for line in CORPUS.read_text().splitlines():
        record = json.loads(line)
        allowed = record["allowed"] and tuple(sum(1 << disk for disk in disks) for disks in record["allowed"])
        families.setdefault(record["family"], []).append(
            Instance(tuple(record["disks"]), tuple(record["volumes"]), allowed, record["fits"])
        )
    return families


def _pack(instance: Instance) -> Row:
    started = time.perf_counter()
    answer = fits(Items(instance.sizes), instance.free, instance.allowed, Budget())
    elapsed = (time.perf_counter() - started) * 1_000
    wrong = answer is (PackingAnswer.NO if instance.expected else PackingAnswer.YES) and instance.expected is not None
    return Row(answer, wrong, elapsed)


def _without_slack(rng: random.Random, disks: int, volumes: int) -> Instance:
    """Fills each disk to the last byte with so many volumes."""
    contents = [[rng.randint(100, 400) for _ in range(volumes)] for _ in range(disks)]
    sizes = [size for disk in contents for size in disk]
    rng.shuffle(sizes)
    return Instance(tuple(sum(disk) for disk in contents), tuple(sizes), None, expected=True)


def _several_pods(rng: random.Random, *, odd: bool) -> Instance:
    """The volumes of several pods, 30 to 60 of common sizes. With `odd` the sizes differ slightly."""
    common = [1, 1, 2, 2, 5, 5, 8, 10, 10, 20, 20, 50, 100]
    sizes = [rng.choice(common) * 512 + (rng.randint(0, 200) if odd else 0) for _ in range(rng.randint(30, 60))]
    shares = [rng.randint(50, 100) for _ in range(rng.randint(2, 12))]
    total = sum(sizes) * rng.choice([1.0, 1.01, 1.05, 1.2])
    unit = 1 if odd else 512
    return Instance(
        tuple(int(total * share / sum(shares) / unit + 1) * unit for share in shares), tuple(sizes), None, None
    )


def _several_pods_without_slack(rng: random.Random) -> Instance:
    """As `_several_pods`, filled to the last byte by construction."""
    free = [0] * rng.randint(2, 12)
    sizes = []
    for _ in range(rng.randint(30, 60)):
        size = rng.choice([1, 2, 5, 8, 10, 20, 50]) * 512
        free[rng.randrange(len(free))] += size
        sizes.append(size)
    return Instance(tuple(free), tuple(sizes), None, expected=True)


Maker = Callable[[random.Random], Instance]
LARGER: dict[str, Maker] = {
    "four per disk, no slack": lambda rng: _without_slack(rng, 6, 4),
    "six per disk, no slack": lambda rng: _without_slack(rng, 4, 6),
    "joint, 30-60 volumes of common sizes": lambda rng: _several_pods(rng, odd=False),
    "joint, 30-60 volumes of common sizes, no slack": _several_pods_without_slack,
    "joint, 30-60 volumes all different": lambda rng: _several_pods(rng, odd=True),
}


def _measure_order_safety() -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    rng = random.Random("order safety")  # noqa: S311
    for _ in range(12_000):
        for count, name, row in _measure_one_node(rng):
            group = "up to 5" if count <= 5 else "6 to 12" if count <= 12 else "13 to 24" if count <= 24 else "40 to 60"
            rows.setdefault(f"{group} volumes, {name}", []).append(row)
            rows.setdefault("all up to 24 volumes" if count <= 24 else "all of 40 to 60 volumes", []).append(row)
    return dict(sorted(rows.items()))


def _measure_one_node(rng: random.Random) -> Iterator[tuple[int, str, Row]]:
    count = rng.choice([2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 40, 60])
    disks = rng.choice([1, 2, 2, 3, 4, 6, 8, 12])
    name = rng.choice(["common sizes", "all different", "tags", "rebuilds", "optional"])
    sizes = [rng.randint(10, 1_000) << 21 if name == "all different" else rng.choice([1, 2, 5, 10, 20, 50, 100]) * GI for _ in range(count)]  # fmt: skip
    average = sum(sizes) / disks * rng.uniform(1, 2.5)
    free = tuple(int(average * rng.uniform(0.6, 1.4)) for _ in range(disks))
    allowed = None
    required = None
    headroom = None
    if name == "tags":
        all_disks = (1 << disks) - 1
        allowed = tuple(rng.choice([all_disks, rng.randint(1, all_disks)]) for _ in sizes)
    if name == "rebuilds":
        required = tuple(rng.choice([0, rng.randint(0, size)]) for size in sizes)
        headroom = tuple(int(sum(required) / disks * rng.uniform(0.5, 2.5)) + 1 for _ in range(disks))
    items = Items(sizes)
    if fits(items, free, allowed, Budget()) is not PackingAnswer.YES:
        return
    optional = _optional_items(rng) if name == "optional" else NO_OPTIONAL_ITEMS
    started = time.perf_counter()
    safety = order_safe(items, required, free, headroom, allowed, Budget(), optional)
    elapsed = (time.perf_counter() - started) * 1_000
    remaining_headroom = list(headroom) if headroom else [items.total + 1] * disks
    wrong = safety.answer is not PackingAnswer.UNDECIDED and not _is_confirmed(
        safety, items, required or (0,) * len(sizes), list(free), remaining_headroom, allowed, optional
    )
    yield count, name, Row(safety.answer, wrong, elapsed)


def _optional_items(rng: random.Random) -> OptionalItems:
    """The replicas of one to three volumes without data locality, each on a disk of its own."""
    spread = [volume for volume in range(rng.randint(1, 3)) for _ in range(rng.randint(1, 3))]
    sizes = [rng.choice([1, 2, 5, 10, 20, 50, 100]) * GI for _ in range(3)]
    return OptionalItems(tuple(sizes[volume] for volume in spread), (0,) * len(spread), tuple(spread))


def _is_confirmed(  # noqa: PLR0917 # the two space rules need four of them
    safety: Safety,
    items: Items,
    required: tuple[int, ...],
    free: list[int],
    headroom: list[int],
    allowed: tuple[int, ...] | None,
    optional: OptionalItems,
) -> bool:
    """Whether an answer is correct as far as checked. A counter-example is replayed; a YES is tried in a hundred random orders."""
    sizes = items.sizes + optional.sizes
    written = required + optional.written
    # Volumes of one number share no disk; an item is a volume of its own.
    spread = tuple(range(-len(items), 0)) + optional.spread
    placements: set[tuple[int, int]] = set()

    def open_to(volume: int) -> list[int]:
        return [
            disk
            for disk in range(len(free))
            if (allowed is None or allowed[volume] >> disk & 1)
            and sizes[volume] <= free[disk]
            and written[volume] < headroom[disk]
            and (spread[volume], disk) not in placements
        ]

    def place(volume: int, disk: int) -> None:
        placements.add((spread[volume], disk))
        free[disk] -= sizes[volume]
        headroom[disk] -= written[volume]

    if safety.answer is PackingAnswer.NO:
        *placed, (last, _) = safety.counter_example
        for volume, disk in placed:
            if disk not in open_to(volume):
                return False
            place(volume, disk or 0)
        return not open_to(last)
    rng = random.Random(len(items))  # noqa: S311
    initial_free = free.copy()
    initial_headroom = headroom.copy()
    for _ in range(100):
        free[:] = initial_free
        headroom[:] = initial_headroom
        placements.clear()
        for volume in rng.sample(range(len(sizes)), len(sizes)):
            disks = open_to(volume)
            if disks:
                place(volume, rng.choice(disks))
            elif volume < len(items):
                return False
    return True


def _measure_requests() -> Iterator[str]:
    rng = random.Random("requests")  # noqa: S311
    for count in (2, 6, 12):
        for disks in (2, 3, 4):
            items = Items([rng.choice([5, 10, 20, 50]) * GI for _ in range(count)])
            profiles = [
                tuple(int(items.total / disks * rng.uniform(0.5, 2)) for _ in range(disks)) for _ in range(NODES)
            ]
            budget = Budget()
            started = time.perf_counter()
            answers = fits_many(items, profiles, budget)
            packed = time.perf_counter()
            order_safe_many(
                items,
                [free for free, answer in zip(profiles, answers, strict=True) if answer is PackingAnswer.YES],
                budget,
            )
            done = time.perf_counter()
            yield (
                f"  {count} volumes, {disks} disks, {answers.count(PackingAnswer.YES)} nodes fit".ljust(48)
                + f"{(packed - started) * 1_000:>8.1f}{(done - packed) * 1_000:>12.1f}{budget.gave_up:>9}"
            )
