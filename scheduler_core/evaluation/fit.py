"""Whether one node's open disks can take all required volumes, in which orders, and on outdated status; or the reason that says best why not.

Nodes with equal profiles are evaluated once: a profile holds neither a name nor a volume's size. This turns it and requirements into questions for `packing/`: sizes, free bytes, and per volume a bit mask of the disks
it may use (its class, and Longhorn's actual-space rule, which is a test per volume and disk). A backing image that a disk lacks takes
its real size there once. So every choice of disks to copy it to is a packing variant of its own.

Outdated status may lead Longhorn to overbook a disk. Its free bytes and those that the status reports differ by what is promised and not in
`storageScheduled` yet: placements in flight and requested growth. That is only counted, so it needs no budget.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, product
from typing import Any

from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import STEPS_PER_REQUEST, Budget, PackingAnswer, Portions, share_fairly
from scheduler_core.packing.feasible import assign, fits, fits_many
from scheduler_core.packing.items import OptionalItems
from scheduler_core.packing.order_safe import (
    MAX_STEPS_PER_NODE,
    MeetingDisk,
    Overbooking,
    Safety,
    UnplacedVolumes,
    find_overbooking,
    missing_bytes as bytes_missing_by_disk,
    new_volumes_stale_safe,
    order_safe,
    order_safe_many,
)
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.volume_requirements import Requirements

Masks = tuple[int, ...]
Variant = tuple[tuple[int, ...], Masks | None]
AllowedDisks = Mapping[int, int]
"""For some required volumes, then optional ones, by index, the bit mask of disks that they may use."""

# Two volumes of different images on twelve disks have 169 choices; a node with more than this is not worth the search.
MAX_VARIANTS = 4096
_FIRST_PORTION = 1_000
_PACKING_PORTIONS = Portions(_FIRST_PORTION, STEPS_PER_REQUEST)
_ORDER_PORTIONS = Portions(_FIRST_PORTION, MAX_STEPS_PER_NODE)
_STEPS_PER_VARIANT = 20


class OpenDisk(Struct, frozen=True):
    """A disk that is open to at least one class. Sizes are bytes, as in `longhorn.space.DiskSpace`."""

    uuid: str
    free: int
    # Only if the volumes bring data (`VolumeClasses.rewrites`); otherwise 0, because an open disk has some.
    headroom: int
    classes: int  # bit mask of the `VolumeClasses.requests`, then `VolumeClasses.optional`, that the disk is open to
    # (backing image, real size) of the images that a volume would first have to copy here.
    copies: tuple[tuple[str, int], ...] = ()
    uncounted: int = 0  # bytes that are no longer free, though Longhorn's status does not show it yet


class Profile:
    """The open disks of a node, without their names. A profile without disks has the reason why no disk matters.
    `reported` are the free bytes of the disks as Longhorn takes them from its status.
    """

    __slots__ = ("classes", "copies", "copying", "free", "headroom", "reason", "reported")

    def __init__(self, reason: Reason | None, disks: tuple[OpenDisk, ...] = ()) -> None:
        self.reason = reason
        self.free = tuple(disk.free for disk in disks)
        self.reported = tuple(disk.free + disk.uncounted for disk in disks)
        self.headroom = tuple(disk.headroom for disk in disks)
        self.classes = tuple(disk.classes for disk in disks)
        self.copies = tuple(disk.copies for disk in disks)
        self.copying = any(self.copies)

    @property
    def key(self) -> tuple[object, ...]:
        return self.free, self.headroom, self.classes, self.copies, self.reported


class UnfinishedSearches(Struct, frozen=True):
    """The steps that searches for some requirements spent without an answer. A later request goes on from there
    (`packing/budget.py`).
    """

    # By free bytes and the disks that each volume may use, or by profile for profiles that lack a backing image.
    packing: dict[Any, int] = {}
    orders: dict[Any, int] = {}  # by free bytes, ascending, or by profile where more than sizes decides

    def __len__(self) -> int:
        return len(self.packing) + len(self.orders)


def fit(required: Requirements, profile: Profile, budget: Budget, allowed: AllowedDisks | None = None) -> Reason:
    """Returns whether a node fits all required volumes, or why not. The budget limits the search: Budget(0) answers
    what needs no search, and UNDECIDED otherwise.
    """
    if profile.reason is not None:
        return profile.reason
    if not required.sizes:
        return Reason.ATTACHABLE
    return _reason(required, profile, _find_packing(required, profile, budget, allowed), allowed)


def fit_many(
    required: Requirements, profiles: Sequence[Profile], budget: Budget, unfinished: UnfinishedSearches | None = None
) -> list[Reason]:
    """Returns `fit` of many profiles, which share one budget fairly. `unfinished` is from earlier calls with these
    requirements, and is updated. Profiles that lack a backing image are searched one by one, all others in one batch.
    """
    if not required.sizes:
        return [profile.reason or Reason.ATTACHABLE for profile in profiles]
    unfinished = UnfinishedSearches() if unfinished is None else unfinished
    plain = [profile for profile in profiles if profile.reason is None and not profile.copying]
    masks = None if required.uniform else [allowed_masks(required, profile) for profile in plain]
    answers = fits_many(required.items, [profile.free for profile in plain], budget, masks, unfinished.packing)
    # Local names, because this loop runs for every profile of a large cluster.
    room = Reason.ROOM
    yes = PackingAnswer.YES
    reasons = [
        room if answer is yes else _reason(required, profile, answer)
        for profile, answer in zip(plain, answers, strict=True)
    ]
    if len(plain) == len(profiles):
        return reasons
    results = dict(zip(plain, reasons, strict=True))
    results.update((profile, profile.reason) for profile in profiles if profile.reason is not None)
    copying = [profile for profile in profiles if profile.reason is None and profile.copying]
    copying.sort(key=_roomiest_first)
    searched = share_fairly(
        copying,
        lambda profile, share: _find_packing(required, profile, share),
        _PACKING_PORTIONS,
        budget,
        unfinished.packing,
    )
    results.update((profile, _reason(required, profile, answer)) for profile, answer in searched.items())
    return [results[profile] for profile in profiles]


def _roomiest_first(profile: Profile) -> tuple[int, object]:
    return -sum(profile.free), profile.key


def _find_packing(
    required: Requirements, profile: Profile, budget: Budget, allowed: AllowedDisks | None = None
) -> PackingAnswer:
    undecided = False
    for count, variant in enumerate(_packing_variants(required, profile, budget, allowed)):
        if variant is None:
            return PackingAnswer.UNDECIDED
        answer = fits(required.items, *variant, budget)
        if answer is PackingAnswer.YES:
            return answer
        if not count and profile.copying:
            # Perhaps they do not pack even if every disk had every image.
            masks = allowed_masks(required, profile, allowed)
            if fits(required.items, profile.free, masks, budget) is PackingAnswer.NO:
                return PackingAnswer.NO
        undecided |= answer is PackingAnswer.UNDECIDED
    return PackingAnswer.UNDECIDED if undecided else PackingAnswer.NO


def _reason(
    required: Requirements, profile: Profile, answer: PackingAnswer, allowed: AllowedDisks | None = None
) -> Reason:
    if answer is PackingAnswer.YES:
        return Reason.ROOM
    if answer is PackingAnswer.UNDECIDED:
        return Reason.UNDECIDED
    # One does not fit alone, or all do not fit together.
    if required.uniform and not allowed:
        # Disks are sorted by free bytes. This runs for every node that does not fit.
        return Reason.NOT_TOGETHER if profile.free[0] >= required.items.largest else Reason.INSUFFICIENT_STORAGE
    masks = allowed_masks(required, profile, allowed)
    if not all(masks):
        return Reason.LOW_AVAILABLE
    alone = all(missing_bytes_alone(required, profile, index, mask) <= 0 for index, mask in enumerate(masks))
    return Reason.NOT_TOGETHER if alone else Reason.INSUFFICIENT_STORAGE


def mark_unsafe(
    required: Requirements, results: dict[Profile, Reason], budget: Budget, unfinished: UnfinishedSearches
) -> set[Profile]:
    """Marks the profiles with ROOM that are not stale-safe, and returns those where it is undecided whether every order succeeds. They
    share the budget fairly. `unfinished` is from earlier calls with these requirements, and is updated.
    """
    fitting = [profile for profile, reason in results.items() if reason is Reason.ROOM]
    # Only profiles that are not stale-safe need a search.
    unsafe = [profile for profile in fitting if not stale_safe(required, profile)]
    if not unsafe:
        return set()
    if required.uniform and required.sizes and not required.optional:
        free = [profile.free for profile in unsafe]
        answers = dict(zip(unsafe, order_safe_many(required.items, free, budget, unfinished.orders), strict=True))
    else:
        answers = share_fairly(
            sorted(unsafe, key=_roomiest_first),
            lambda profile, share: order_safety(required, profile, share).answer,
            _ORDER_PORTIONS,
            budget,
            unfinished.orders,
        )
    results.update(
        (profile, Reason.STALE_UNSAFE if answer is PackingAnswer.YES else Reason.ORDER_UNSAFE)
        for profile, answer in answers.items()
    )
    return {profile for profile, answer in answers.items() if answer is PackingAnswer.UNDECIDED}


def order_safety(
    required: Requirements, profile: Profile, budget: Budget, allowed: AllowedDisks | None = None
) -> Safety:
    """Returns whether every placement order finds space, whichever open disks Longhorn chooses. The answer is only
    meaningful for a profile that fits. The bytes of missing backing images are subtracted on every disk beforehand: a
    profile that is safe then is safe, otherwise nothing is claimed.
    """
    if not required.sizes:
        return Safety(PackingAnswer.YES)
    if required.uniform and not allowed:
        return order_safe(required.items, None, profile.free, None, None, budget, required.optional_items)
    masks = allowed_masks(required, profile, allowed)
    free = tuple(
        size - sum(image_size for _, image_size in copies)
        for size, copies in zip(profile.free, profile.copies, strict=True)
    )
    rewrites = required.classes.rewrites
    safety = order_safe(
        required.items,
        required.written if rewrites else None,
        free,
        profile.headroom if rewrites else None,
        masks,
        budget,
        optional_items(required, profile, allowed),
    )
    return safety if free == profile.free or safety.answer is PackingAnswer.YES else Safety(PackingAnswer.UNDECIDED)


def plan(
    required: Requirements, profile: Profile, budget: Budget, allowed: AllowedDisks | None = None
) -> tuple[int, ...] | None:
    """Returns the index of a disk for each required volume, or None without a plan within the budget."""
    for variant in _packing_variants(required, profile, budget, allowed):
        assignment = None if variant is None else assign(required.items, *variant, budget)
        if isinstance(assignment, tuple):
            return assignment
    return None


def missing_bytes_alone(required: Requirements, profile: Profile, index: int, mask: int) -> int:
    """Returns the bytes that one volume lacks when placed alone on its best disk; zero or less if it fits."""
    image = required.images[index]
    return min(
        required.sizes[index] + dict(profile.copies[disk]).get(image, 0) - profile.free[disk]
        for disk in range(len(profile.free))
        if mask >> disk & 1
    )


def allowed_masks(required: Requirements, profile: Profile, allowed: AllowedDisks | None = None) -> Masks:
    """Returns the disks that each volume may use, sizes aside, as a bit mask: bit d stands for disk d."""
    allowed = allowed or {}
    return tuple(
        allowed.get(index, -1) & _open_mask(profile, class_index, written)
        for index, (class_index, written) in enumerate(zip(required.class_indexes, required.written, strict=True))
    )


def _open_mask(profile: Profile, class_index: int, written: int) -> int:
    return sum(
        1 << disk
        for disk, classes in enumerate(profile.classes)
        if classes >> class_index & 1 and (written == 0 or written < profile.headroom[disk])
    )


def optional_items(required: Requirements, profile: Profile, allowed: AllowedDisks | None = None) -> OptionalItems:
    """Returns the optional replicas with the disks of the profile that they may use."""
    if not required.optional:
        return required.optional_items
    allowed = allowed or {}
    masks: list[int] = []
    pairs = zip(required.optional, required.optional_class_indexes, strict=True)
    for index, (entry, class_index) in enumerate(pairs, start=len(required.volumes)):
        mask = allowed.get(index, -1) & _open_mask(profile, class_index, entry.volume.volume.actual_size)
        masks += [mask] * entry.count
    return replace(required.optional_items, allowed=tuple(masks))


def _packing_variants(
    required: Requirements, profile: Profile, budget: Budget, allowed: AllowedDisks | None
) -> Iterator[Variant | None]:
    """Yields packing problems, one of which must be solvable: one for each choice of disks to copy missing backing
    images to. A final None means that there are more choices than are tried, or than the budget allows.
    """
    if required.uniform and not allowed:
        yield profile.free, None
        return
    masks = allowed_masks(required, profile, allowed)
    if not all(masks):
        return
    images = sorted({image for image in required.images if image})
    missing = [
        {disk: size for disk, copies in enumerate(profile.copies) for name, size in copies if name == image}
        for image in images
    ]
    if not any(missing):
        yield profile.free, masks
        return
    choices = []
    for image, disks in zip(images, missing, strict=True):
        # A set of disks to copy an image to is no larger than the number of volumes that use the image.
        counts = range(min(required.images.count(image), len(disks)) + 1)
        sets = chain.from_iterable(combinations(sorted(disks), count) for count in counts)
        # One set more than is tried, so that more choices show.
        choices.append(list(islice(sets, MAX_VARIANTS + 1)))
    for count, copied in enumerate(product(*choices)):
        # Even a variant that needs no search costs steps, because there may be thousands.
        if (count and not budget.spend(_STEPS_PER_VARIANT)) or count == MAX_VARIANTS:
            yield None
            return
        free = list(profile.free)
        closed: dict[str, int] = {}
        for image, sizes, chosen in zip(images, missing, copied, strict=True):
            for disk in chosen:
                free[disk] -= sizes[disk]
            closed[image] = sum(1 << disk for disk in sizes if disk not in chosen)
        pairs = zip(masks, required.images, strict=True)
        yield tuple(free), tuple(mask & ~closed.get(image, 0) for mask, image in pairs)


def stale_safe(required: Requirements, profile: Profile) -> bool:
    """Returns whether no outdated status leads Longhorn to overbook a disk. The answer is only meaningful for a profile
    that fits. Then it implies order safety.
    """
    if not required.sizes:
        return True
    if required.uniform:
        optional = required.optional_on_one_disk
        return new_volumes_stale_safe(required.items, optional, profile.free, profile.reported)
    return overbooking(required, profile) is None


def overbooking(required: Requirements, profile: Profile, allowed: AllowedDisks | None = None) -> Overbooking | None:
    # By the oldest status the disk could take each volume alone. The indexes of optional replicas follow those of the
    # required volumes.
    volumes, disks, indexes = _meeting_volumes(required, profile, allowed)
    meeting = find_overbooking(volumes, disks)
    return meeting and Overbooking(meeting.disk, tuple(indexes[index] for index in meeting.volumes))


def missing_bytes(required: Requirements, profile: Profile, allowed: AllowedDisks | None = None) -> Sequence[int]:
    # Empty for volumes that bring data, for which more space left to schedule does not suffice.
    if required.classes.rewrites:
        return ()
    volumes, disks, _ = _meeting_volumes(required, profile, allowed)
    return bytes_missing_by_disk(volumes, disks)


def _meeting_volumes(
    required: Requirements, profile: Profile, allowed: AllowedDisks | None
) -> tuple[UnplacedVolumes, Sequence[MeetingDisk], Sequence[int]]:
    rewrites = required.classes.rewrites
    disks = [
        MeetingDisk(free, reported, headroom if rewrites else None, copies)
        for free, reported, headroom, copies in zip(
            profile.free, profile.reported, profile.headroom, profile.copies, strict=True
        )
    ]
    masks = allowed_masks(required, profile, allowed)
    optional = optional_items(required, profile, allowed)
    first = len(masks)
    # Replicas of one volume that no disk takes together are alike.
    indexes = (*range(first), *(first + index for index in optional.on_one_disk))
    volumes = (*required.volumes, *required.optional_replicas)
    open_disks = (*masks, *(optional.allowed or ()))
    unplaced = UnplacedVolumes(
        sizes=[volumes[index].volume.size for index in indexes],
        written=[volumes[index].volume.actual_size for index in indexes],
        images=[volumes[index].volume.backing_image for index in indexes],
        allowed=[open_disks[index] for index in indexes],
        optional=len(indexes) - first,
    )
    return unplaced, disks, indexes
