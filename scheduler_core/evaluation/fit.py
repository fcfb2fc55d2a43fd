"""Whether the open disks of one node can take all needs together, and if not, which reason says it best.

This turns a profile and needs into the plain question of `scheduler_core.packing`: sizes, free bytes, and a bit mask per
volume of the disks it may use (its kind, and Longhorn's actual-space rule, which is a test per volume and disk).
A backing image that a disk lacks takes its real size there once, so every choice of disks it is copied to is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice, product
from typing import Final

from scheduler_core.cooperative import Steps
from scheduler_core.evaluation.disk_profile import Profile
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.fairly import fairly
from scheduler_core.packing.feasible import assign, fits, fits_many
from scheduler_core.packing.order_safe import Safety, order_safe
from scheduler_core.packing.order_safe_batch import order_safe_many
from scheduler_core.volumes.requirements import Needs

Masks = tuple[int, ...]
Variant = tuple[tuple[int, ...], Masks | None]
# Two volumes of different images on twelve disks have 169 choices; more than this is a cluster to simplify.
MOST_VARIANTS: Final = 4096
_FIRST_LOOK: Final = 1_000
_STEPS_A_VARIANT: Final = 20


def reason_for(needs: Needs, profile: Profile, budget: Budget, only: Mapping[int, int] | None = None) -> Reason:
    """Whether a node with this profile has room for all needs, or why not.

    `only` narrows some needs (by index) to a bit mask of disks. The budget decides how long may be searched; Budget(0)
    answers what needs no search and says UNDECIDED otherwise.
    """
    if profile.reason is not None:
        return profile.reason
    if not needs.sizes:
        return Reason.ATTACHABLE
    return _reason(needs, profile, _packs(needs, profile, budget, only), only)


def reasons_for(needs: Needs, profiles: Sequence[Profile], budget: Budget) -> Steps[list[Reason]]:
    """`reason_for` many profiles, which share the budget fairly; pauses every now and then.

    Profiles with a backing image to bring along are asked about one by one, all others in one go.
    """
    if not needs.sizes:
        return [profile.reason or Reason.ATTACHABLE for profile in profiles]
    plain = [profile for profile in profiles if profile.reason is None and not profile.copying]
    masks = None if needs.uniform else [allowed_masks(needs, profile) for profile in plain]
    answers = yield from fits_many(needs.load, [profile.free for profile in plain], budget, masks)
    room, yes = Reason.ROOM, Answer.YES
    reasons = [
        room if answer is yes else _reason(needs, profile, answer)
        for profile, answer in zip(plain, answers, strict=True)
    ]
    if len(plain) == len(profiles):
        return reasons
    found = dict(zip(plain, reasons, strict=True))
    found.update((profile, profile.reason) for profile in profiles if profile.reason is not None)
    copying = [profile for profile in profiles if profile.reason is None and profile.copying]
    copying.sort(key=lambda profile: (-sum(profile.free), profile.key))
    searched = yield from fairly(copying, lambda profile, share: _packs(needs, profile, share), _FIRST_LOOK, budget)
    found.update((profile, _reason(needs, profile, answer)) for profile, answer in searched.items())
    return [found[profile] for profile in profiles]


def _packs(needs: Needs, profile: Profile, budget: Budget, only: Mapping[int, int] | None = None) -> Answer:
    undecided = False
    for count, variant in enumerate(_affordable(needs, profile, budget, only)):
        if variant is None:
            return Answer.UNDECIDED
        answer = fits(needs.load, *variant, budget)
        if answer is Answer.YES:
            return answer
        if not count and profile.copying and _never(needs, profile, only, budget):
            return Answer.NO
        undecided |= answer is Answer.UNDECIDED
    return Answer.UNDECIDED if undecided else Answer.NO


def _affordable(
    needs: Needs, profile: Profile, budget: Budget, only: Mapping[int, int] | None
) -> Iterator[Variant | None]:
    """`variants` as far as the budget goes: even one that needs no search costs something when there are thousands."""
    for count, variant in enumerate(variants(needs, profile, only)):
        if count and not budget.spend(_STEPS_A_VARIANT):
            yield None
            return
        yield variant


def _never(needs: Needs, profile: Profile, only: Mapping[int, int] | None, budget: Budget) -> bool:
    """Whether the needs would not pack even if every image were on every disk already."""
    return fits(needs.load, profile.free, allowed_masks(needs, profile, only), budget) is Answer.NO


def _reason(needs: Needs, profile: Profile, answer: Answer, only: Mapping[int, int] | None = None) -> Reason:
    if answer is Answer.YES:
        return Reason.ROOM
    return Reason.UNDECIDED if answer is Answer.UNDECIDED else shortage(needs, profile, only)


def safeties_for(needs: Needs, profiles: Sequence[Profile], budget: Budget) -> Steps[list[Answer]]:
    """Whether each of many profiles, all with room, is order-safe; they share the budget fairly."""
    if needs.uniform and needs.sizes:
        return (yield from order_safe_many(needs.load, [profile.free for profile in profiles], budget))
    ordered = sorted(set(profiles), key=lambda profile: (-sum(profile.free), profile.key))
    found = yield from fairly(
        ordered, lambda profile, share: safety_for(needs, profile, share).answer, _FIRST_LOOK, budget
    )
    return [found[profile] for profile in profiles]


def safety_for(needs: Needs, profile: Profile, budget: Budget, only: Mapping[int, int] | None = None) -> Safety:
    """Whether Longhorn finds room for all needs in whatever order and on whichever open disk it places them.

    Only meaningful where there is room. A backing image that is missing on a disk is taken off there beforehand: what is
    safe then is safe; otherwise nothing is claimed.
    """
    if not needs.sizes:
        return Safety(Answer.YES)
    if needs.uniform and not only:
        return order_safe(needs.load, None, profile.free, None, None, budget)
    masks = allowed_masks(needs, profile, only)
    free = tuple(
        room - sum(size for _, size in copies) for room, copies in zip(profile.free, profile.copies, strict=True)
    )
    rewrites = needs.kinds.rewrites
    found = order_safe(
        needs.load, needs.required if rewrites else None, free, profile.headroom if rewrites else None, masks, budget
    )
    return found if free == profile.free or found.answer is Answer.YES else Safety(Answer.UNDECIDED)


def plan_for(
    needs: Needs, profile: Profile, budget: Budget, only: Mapping[int, int] | None = None
) -> tuple[int, ...] | None:
    """The index of a disk for each need, None if there is no such plan or none was found in the budget."""
    for variant in _affordable(needs, profile, budget, only):
        found = Answer.UNDECIDED if variant is None else assign(needs.load, *variant, budget)
        if not isinstance(found, Answer):
            return found
    return None


def shortage(needs: Needs, profile: Profile, only: Mapping[int, int] | None = None) -> Reason:
    """Why needs that do not pack do not: a volume no open disk can take even alone, or all of them together."""
    if needs.uniform and not only:
        # Disks are in the order of their free bytes; this is asked for every node that does not fit.
        return Reason.NOT_TOGETHER if profile.free[0] >= needs.load.largest else Reason.INSUFFICIENT_STORAGE
    masks = allowed_masks(needs, profile, only)
    if not all(masks):
        return Reason.LOW_AVAILABLE
    alone = all(missing_alone(needs, profile, index, mask) <= 0 for index, mask in enumerate(masks))
    return Reason.NOT_TOGETHER if alone else Reason.INSUFFICIENT_STORAGE


def missing_alone(needs: Needs, profile: Profile, index: int, mask: int) -> int:
    """Bytes one need lacks on the disk that suits it best, were it alone; zero or less if it fits."""
    image = needs.images[index]
    return min(
        needs.sizes[index] + dict(profile.copies[disk]).get(image, 0) - profile.free[disk]
        for disk in range(len(profile.free))
        if mask >> disk & 1
    )


def allowed_masks(needs: Needs, profile: Profile, only: Mapping[int, int] | None = None) -> Masks:
    """For each need the disks it may use, sizes apart: bit d for disk d."""
    only = only or {}
    return tuple(
        only.get(index, -1)
        & sum(
            1 << disk
            for disk, kinds in enumerate(profile.kinds)
            if kinds >> kind & 1 and (required == 0 or required < profile.headroom[disk])
        )
        for index, (kind, required) in enumerate(zip(needs.kind, needs.required, strict=True))
    )


def variants(needs: Needs, profile: Profile, only: Mapping[int, int] | None = None) -> Iterator[Variant | None]:
    """The packing questions to ask: one, or one per choice of the disks that backing images are copied to.

    None at the end says that there are more choices than are tried.
    """
    if needs.uniform and not only:
        yield profile.free, None
        return
    masks = allowed_masks(needs, profile, only)
    if not all(masks):
        return
    images = sorted({image for image in needs.images if image})
    lacking = [_lacking(profile, image) for image in images]
    if not any(lacking):
        yield profile.free, masks
        return
    choices = [_choices(disks, needs.images.count(image)) for image, disks in zip(images, lacking, strict=True)]
    for count, copied in enumerate(product(*choices)):
        if count == MOST_VARIANTS:
            yield None
            return
        yield _with_copies(needs, profile, masks, dict(zip(images, zip(lacking, copied, strict=True), strict=True)))


def _lacking(profile: Profile, image: str) -> dict[int, int]:
    return {disk: size for disk, copies in enumerate(profile.copies) for name, size in copies if name == image}


def _choices(lacking: Mapping[int, int], volumes: int) -> list[tuple[int, ...]]:
    """Sets of disks to copy an image to, small ones first; never more disks than volumes that use it.

    Cut off one past what is tried, so that the caller sees that there are more.
    """
    disks = sorted(lacking)
    sets = (chosen for count in range(min(volumes, len(disks)) + 1) for chosen in combinations(disks, count))
    return list(islice(sets, MOST_VARIANTS + 1))


def _with_copies(
    needs: Needs, profile: Profile, masks: Masks, copies: Mapping[str, tuple[Mapping[int, int], Sequence[int]]]
) -> Variant:
    free = list(profile.free)
    closed = dict.fromkeys(copies, 0)
    for image, (lacking, copied) in copies.items():
        for disk in copied:
            free[disk] -= lacking[disk]
        closed[image] = sum(1 << disk for disk in lacking if disk not in copied)
    return tuple(free), tuple(mask & ~closed.get(image, 0) for mask, image in zip(masks, needs.images, strict=True))
