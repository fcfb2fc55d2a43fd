"""Changes that may help a pod: of the settings of nodes and disks, and of a disk's space, each with a lower bound of its bytes, as far as
one is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations
from operator import attrgetter
from typing import Final

from msgspec import Struct

from scheduler_core.evaluation.replicas import DEGRADED_SETTING, DomainShortage
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import DiskSpace, disk_space
from scheduler_core.longhorn.volume_validation import is_tag
from scheduler_core.model import longhorn
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import CORDONED
from scheduler_core.model.quantity import format_bytes
from scheduler_core.packing.items import reachable_sums
from scheduler_core.predict.predicted_cluster import PredictedCluster, with_schedulable_condition
from scheduler_core.predict.remedy import RemedyKind, Step, exact_bytes, with_more_space
from scheduler_core.volumes.resolve import Resolution

# Floats are exact up to here, and no disk grows by more.
_MOST_GROWTH: Final = 2**53
# Of more volumes the sums are too many to try.
_MAX_SUMMED_VOLUMES: Final = 4
_WHOLE: Final = 100
# Of more different selectors, only one each and all together are tried.
_MAX_COMBINED: Final = 3
Tags = tuple[str, ...]


def spread_steps(shortage: DomainShortage) -> list[Step]:
    """Returns the steps by which replicas no longer need a node or zone each."""
    degraded = _setting_step(RemedyKind.ALLOW_DEGRADED, DEGRADED_SETTING)
    soft = _setting_step(RemedyKind.SOFTEN_ANTI_AFFINITY, shortage.setting)
    return [degraded] if shortage.by_volume else [degraded, soft]


def _setting_step(kind: RemedyKind, setting: str) -> Step:
    return Step(kind, "", text=f"set Longhorn's {setting} to true", setting=setting)


def uncordon_steps(cluster: PredictedCluster, name: str) -> list[Step]:
    """Returns the step that uncordons a node, if it is cordoned."""
    kube_node = cluster.snapshot.nodes.get(name)
    node = cluster.snapshot.longhorn_nodes.get(name)
    cordoned = kube_node is not None and kube_node.unschedulable
    cordoned |= node is not None and condition(node.conditions, "Schedulable").reason == CORDONED
    return [Step(RemedyKind.UNCORDON, name, text=f"uncordon node {name}")] if cordoned else []


def allow_node_steps(node: longhorn.Node) -> list[Step]:
    """Returns the step that allows scheduling on a Longhorn node, none if it is allowed."""
    if node.allow_scheduling and not node.eviction_requested:
        return []
    return [Step(RemedyKind.ALLOW_NODE, node.name, text=_allow_text(f"Longhorn node {node.name}", node))]


def allow_disk_steps(node: longhorn.Node) -> list[Step]:
    """Returns the steps that allow scheduling on those of a node's disks where it is not allowed."""
    return [
        Step(RemedyKind.ALLOW_DISK, node.name, disk.name, text=_allow_text(f"disk {node.name}/{disk.name}", disk))
        for disk in node.disks
        if disk.in_spec and (not disk.allow_scheduling or disk.eviction_requested)
    ]


def _allow_text(place: str, stored: longhorn.Node | longhorn.Disk) -> str:
    return f"allow scheduling on {place}" + (" and cancel its eviction" if stored.eviction_requested else "")


def tag_node_steps(cluster: PredictedCluster, resolution: Resolution, node: longhorn.Node) -> list[Step]:
    """Returns the steps that add to a node tags that the pod's volumes select and the node lacks."""
    selectors = _selectors(cluster, resolution, attrgetter("node_selector"))
    place = f"Longhorn node {node.name}"
    return [
        Step(RemedyKind.TAG_NODE, node.name, tags=tags, text=f"add {_tag_list(tags)} to {place}")
        for tags in _tags_to_add(selectors, node.tags)
    ]


def tag_disk_steps(cluster: PredictedCluster, resolution: Resolution, node: longhorn.Node) -> list[Step]:
    """Returns the steps that add to a node's disks tags that the pod's volumes select and the disk lacks."""
    selectors = _selectors(cluster, resolution, attrgetter("disk_selector"))
    places = [(disk, f"disk {node.name}/{disk.name}") for disk in node.disks if disk.in_spec]
    return [
        Step(RemedyKind.TAG_DISK, node.name, disk.name, tags=tags, text=f"add {_tag_list(tags)} to {place}")
        for disk, place in places
        for tags in _tags_to_add(selectors, disk.tags)
    ]


def _selectors(
    cluster: PredictedCluster, resolution: Resolution, select: Callable[[longhorn.Volume | longhorn.BackingImage], Tags]
) -> list[Tags]:
    """Returns the tags that each of the pod's volumes selects, together with its backing image."""
    images = cluster.snapshot.backing_images
    volumes = (entry.volume for entry in resolution.volumes)
    return [
        (*select(volume), *(select(images[volume.backing_image]) if volume.backing_image in images else ()))
        for volume in volumes
    ]


def _tags_to_add(selectors: Iterable[Sequence[str]], tags: Sequence[str]) -> list[Tags]:
    """Returns the sets of tags to try, fewest tags first."""
    # Longhorn admits no tag that is no qualified name.
    missing = {tuple(sorted({*selector} - {*tags})) for selector in selectors if all(map(is_tag, selector))} - {()}
    counts = range(1, len(missing) + 1) if len(missing) <= _MAX_COMBINED else (1, len(missing))
    # Volumes of a pod may be on different disks, so not every selector has to match.
    unions = {
        tuple(sorted({tag for part in chosen for tag in part}))
        for count in counts
        for chosen in combinations(sorted(missing), count)
    }
    return sorted(unions, key=lambda union: (len(union), union))


def _tag_list(tags: Tags) -> str:
    return f"{'tag' if len(tags) == 1 else 'tags'} {', '.join(tags)}"


class DiskNeeds(Struct, frozen=True):
    """What volumes need of a disk by Longhorn's over-provisioning rule, and by its rule of the available space."""

    least: int  # bytes that the disk must have more at least, 0 if no bound is proven
    guesses: frozenset[int]  # bytes that are likely to suffice
    written: frozenset[int]  # bytes that volumes bring along, 0 for a new volume


class SpaceQuestion(Struct, frozen=True):
    """How many bytes of one kind a disk must have more."""

    kind: RemedyKind
    node: str
    disk: longhorn.Disk
    least: int  # fewer bytes do not help
    guesses: tuple[int, ...]  # how many bytes are tried first, in this order, at least one
    most: int  # there are not more bytes than these

    @property
    def order(self) -> tuple[int, int, int, str, str]:
        return self.least, self.guesses[0], self.kind.rank, self.node, self.disk.name

    def step(self, size: int) -> Step:
        """Returns the step that frees or adds some bytes."""
        place = f"disk {self.node}/{self.disk.name}"
        amount = exact_bytes(size)
        if self.kind is RemedyKind.LOWER_RESERVE:
            reserved = self.disk.storage_reserved - size
            text = f"reserve {amount} less on {place} ({format_bytes(reserved)} instead of {format_bytes(self.disk.storage_reserved)})"
            return Step(self.kind, self.node, self.disk.name, size, text=text)
        texts = {
            RemedyKind.FREE_SCHEDULED: f"free {amount} of what is scheduled on {place}",
            RemedyKind.FREE_AVAILABLE: f"free {amount} of what is written on {place}",
            RemedyKind.GROW_DISK: f"grow {place} by {amount}",
        }
        return Step(self.kind, self.node, self.disk.name, size, text=texts[self.kind])


def needs_of_volumes(volumes: Collection[longhorn.Volume], spaces: Mapping[str, DiskSpace]) -> dict[str, DiskNeeds]:
    """Returns what volumes need of each disk if all of them go to the node, and only that disk has more space. The
    bounds ignore which disks are open to the volumes, and the volumes of other pods, which makes them lower.
    """
    written = frozenset(volume.actual_size for volume in volumes)
    sizes = [volume.size for volume in volumes]
    sums = reachable_sums(sizes) if len(sizes) <= _MAX_SUMMED_VOLUMES else ()
    needs: dict[str, DiskNeeds] = {}
    for name, space in spaces.items():
        others = [other.free for other_name, other in spaces.items() if other_name != name]
        # The volumes of at least some size go to disks with at least that much space, and to the disk that has more.
        least_free = max(
            (
                sum(size for size in sizes if size >= least_size) - sum(free for free in others if free >= least_size)
                for least_size in {*sizes}
            ),
            default=0,
        )
        least = max(0, least_free - space.free)
        guesses = {max(1, least), *(total - space.free for total in sums)}
        needs[name] = DiskNeeds(least, frozenset(guess for guess in guesses if guess >= max(1, least)), written)
    return needs


def needs_of_one_volume(
    volumes: Collection[longhorn.Volume], spaces: Mapping[str, DiskSpace], *, proven: bool
) -> dict[str, DiskNeeds]:
    """Returns the guess that a disk must take one more replica, of any one volume. `proven`: whether a disk that takes
    no replica of these volumes is of no use.
    """
    written = frozenset(volume.actual_size for volume in volumes)
    # If such a disk is of no use, the smallest volume is a bound.
    smallest = min((volume.size for volume in volumes), default=0) if proven else 0
    return {
        name: DiskNeeds(
            max(0, smallest - space.free) if smallest else 0,
            frozenset(max(1, volume.size - space.free) for volume in volumes),
            written,
        )
        for name, space in spaces.items()
    }


def space_questions(
    cluster: PredictedCluster, node: longhorn.Node, needs: Mapping[str, DiskNeeds]
) -> list[SpaceQuestion]:
    """Returns the questions about a node's disks."""
    settings = cluster.state.view.settings
    questions: list[SpaceQuestion] = []
    for disk in node.disks:
        settled = with_schedulable_condition(cluster, disk).schedulable == disk.schedulable
        # Longhorn is about to change the condition Schedulable of a disk whose numbers lead to another one.
        if not (disk.ready and disk.in_spec and disk.in_status and settled):
            continue
        for kind, most in _most(disk).items():
            guesses = _guesses(disk, kind, needs[disk.name], settings)
            if guesses and guesses[0] <= most:
                # Where a bound is proven, it is the first guess.
                least = guesses[0] if needs[disk.name].least or kind is RemedyKind.FREE_AVAILABLE else 1
                questions.append(SpaceQuestion(kind, node.name, disk, least, guesses, most))
    return questions


def _most(disk: longhorn.Disk) -> dict[RemedyKind, int]:
    return {
        RemedyKind.LOWER_RESERVE: disk.storage_reserved,
        RemedyKind.FREE_SCHEDULED: disk.storage_scheduled,
        RemedyKind.FREE_AVAILABLE: disk.storage_maximum - disk.storage_available,
        RemedyKind.GROW_DISK: _MOST_GROWTH,
    }


def _guesses(disk: longhorn.Disk, kind: RemedyKind, needs: DiskNeeds, settings: Settings) -> tuple[int, ...]:
    """Returns how many bytes of a kind may suffice, ascending; none if no number of bytes does."""
    before = disk_space(disk, settings)
    # A volume needs more headroom than it has data.
    headrooms = sorted(written + 1 for written in needs.written if written >= before.headroom)
    if kind is RemedyKind.FREE_AVAILABLE:
        return () if needs.least else tuple(_size_for_headroom(disk, kind, each, settings) for each in headrooms)
    if kind is RemedyKind.FREE_SCHEDULED:
        return tuple(sorted(needs.guesses))
    if settings.storage_over_provisioning_percentage <= 0:
        return () if needs.least else (1,)
    sizes = {_size_for_free(disk, kind, before.free + extra, settings) for extra in needs.guesses}
    if kind is RemedyKind.GROW_DISK and settings.storage_minimal_available_percentage < _WHOLE:
        least = min(sizes, default=1)
        with_headroom = {_size_for_headroom(disk, kind, headroom, settings) for headroom in headrooms}
        sizes |= {size for size in with_headroom if size > least}
    return tuple(sorted(sizes))


def _size_for_headroom(disk: longhorn.Disk, kind: RemedyKind, headroom: int, settings: Settings) -> int:
    lacking = headroom - disk_space(disk, settings).headroom
    return _least_size(lacking, lambda size: _space(disk, kind, size, settings).headroom >= headroom)


def _size_for_free(disk: longhorn.Disk, kind: RemedyKind, free: int, settings: Settings) -> int:
    lacking = free - disk_space(disk, settings).free
    guess = lacking * _WHOLE // settings.storage_over_provisioning_percentage
    return _least_size(guess, lambda size: _space(disk, kind, size, settings).free >= free)


def _space(disk: longhorn.Disk, kind: RemedyKind, size: int, settings: Settings) -> DiskSpace:
    return disk_space(with_more_space(disk, kind, size), settings)


def _least_size(guess: int, suffices: Callable[[int], bool]) -> int:
    """Returns the least positive size that suffices, near a guess; every larger one suffices, too."""
    width = 1
    high = max(1, guess)
    while not suffices(high):
        high += width
        width *= 2
    width = 1
    low = high - 1
    while low > 0 and suffices(low):
        high = low
        low = max(0, low - width)
        width *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return high
