"""Whether the volumes fit the disks together: exactly, or UNDECIDED when the budget ends first.

Callers of the package start here. `fast_path` answers what needs no search; everything else goes through `solve`,
which simplifies the problem, tries greedy packings and proofs, and then searches. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from itertools import repeat
from typing import Final

from scheduler_core.cooperative import Cooperative
from scheduler_core.packing.budget import Budget, OutOfStepsError, PackingAnswer, Portions, share_fairly
from scheduler_core.packing.fast_path import FastCheck, fast_check, fast_restricted_check
from scheduler_core.packing.items import Items
from scheduler_core.packing.solve import BRIEF_STEPS, solve

__all__ = ["Items", "PackingAnswer", "assign", "fits", "fits_many"]

# No single instance may take longer than this, even when the request has more steps left: about 60 ms.
MAX_STEPS_PER_INSTANCE: Final = BRIEF_STEPS + 50_000
_PORTIONS: Final = Portions(first=1_000, most=MAX_STEPS_PER_INSTANCE)
_FAST_CHECKS_PER_PAUSE: Final = 256

# Free bytes of each disk, and the mask of allowed disks for each volume.
Instance = tuple[tuple[int, ...], tuple[int, ...] | None]


def fits(items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget) -> PackingAnswer:
    """Whether the volumes fit into the disks' free bytes."""
    # `allowed` has a bit mask of the disks each volume may use, None when every volume may use every disk. A disk that
    # is filled to the last byte is fine; one with less than nothing free takes no volume, not even an empty one.
    answer = _fast_check(items, allowed)(free)
    if answer is not PackingAnswer.UNDECIDED:
        return answer
    return _search(items, (free, allowed), budget)


def fits_many(
    items: Items,
    profiles: Sequence[tuple[int, ...]],
    budget: Budget,
    restrictions: Sequence[tuple[int, ...] | None] | None = None,
    tried: MutableMapping[Instance, int] | None = None,
) -> Cooperative[list[PackingAnswer]]:
    """`fits` for many nodes, one answer per disk profile, in order.

    `restrictions` has the `allowed` of each profile (None: all unrestricted), and `tried` the steps that earlier calls with these items
    spent without an answer (see `share_fairly`). Equal profiles are searched once, and the steps that one gets do not depend on the order
    of the profiles. Pauses every now and then.
    """
    answers: list[PackingAnswer] = []
    for start in range(0, len(profiles), _FAST_CHECKS_PER_PAUSE):
        batch = profiles[start : start + _FAST_CHECKS_PER_PAUSE]
        if restrictions is None:
            check = fast_check(items)
            answers += [check(free) for free in batch]
        else:
            answers += [
                _fast_check(items, allowed)(free)
                for free, allowed in zip(batch, restrictions[start : start + _FAST_CHECKS_PER_PAUSE], strict=True)
            ]
        yield
    # Without restrictions disks are interchangeable, so sorting makes more profiles equal.
    undecided: list[Instance] = [
        (free if allowed else tuple(sorted(free)), allowed)
        for free, allowed, answer in zip(profiles, restrictions or repeat(None), answers, strict=False)
        if answer is PackingAnswer.UNDECIDED
    ]
    ordered = sorted(set(undecided), key=lambda instance: (-sum(instance[0]), instance[0], instance[1] or ()))
    searched = yield from share_fairly(
        ordered, lambda instance, share: _search(items, instance, share), _PORTIONS, budget, tried
    )
    instances = iter(undecided)
    return [searched[next(instances)] if answer is PackingAnswer.UNDECIDED else answer for answer in answers]


def _fast_check(items: Items, allowed: tuple[int, ...] | None) -> FastCheck:
    return fast_check(items) if allowed is None else fast_restricted_check(items, allowed)


def _search(items: Items, instance: Instance, budget: Budget) -> PackingAnswer:
    result = _solve(items, *instance, budget)
    return result if isinstance(result, PackingAnswer) else PackingAnswer.YES


def assign(
    items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget
) -> tuple[int, ...] | PackingAnswer:
    """A disk index per volume, in the caller's order; NO or UNDECIDED where `fits` says so."""
    return _solve(items, free, allowed, budget)


def _solve(
    items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget
) -> tuple[int, ...] | PackingAnswer:
    all_disks = (1 << len(free)) - 1
    masks = [all_disks] * len(items) if allowed is None else allowed
    portion = budget.portion(MAX_STEPS_PER_INSTANCE)
    try:
        assignment = solve(items.sizes, masks, free, portion)
    except OutOfStepsError:
        budget.gave_up += 1
        return PackingAnswer.UNDECIDED
    finally:
        budget.take_back([portion])
    return PackingAnswer.NO if assignment is None else tuple(assignment)
