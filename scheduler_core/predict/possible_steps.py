"""Changes that may help a pod: of the settings of nodes and disks, and of a disk's space, each with a lower bound of its bytes, as far as
one is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from operator import attrgetter
from typing import Final

from msgspec import Struct

from scheduler_core.evaluation.replicas import DEGRADED_SETTING, domain_shortage, replica_needs
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import DiskSpace, disk_space
from scheduler_core.longhorn.volume_validation import is_tag
from scheduler_core.model import longhorn
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import CORDONED
from scheduler_core.model.quantity import format_bytes
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.packing.budget import give_way
from scheduler_core.packing.items import reachable_sums
from scheduler_core.predict.pod_decision import PodDecision
from scheduler_core.predict.predicted_cluster import PredictedCluster, with_schedulable_condition
from scheduler_core.predict.remedy import RemedyKind, Step, exact_bytes, with_more_space
from scheduler_core.volumes.existing_replicas import nodes_with_replica
from scheduler_core.volumes.resolve import Resolution

_NODE_ALLOWED: Final = frozenset({Reason.NODE_EVICTING, Reason.NODE_SCHEDULING_DISABLED})
_CLOSED: Final = frozenset(
    {Reason.NO_DISK, Reason.DISK_PRESSURE, Reason.DISK_TYPE, Reason.DISK_TAGS, Reason.VOLUME_TOO_LARGE}
)
_DISKS: Final = (
    UNSAFE
    | _CLOSED
    | {
        Reason.ANTI_AFFINITY,
        Reason.LOW_AVAILABLE,
        Reason.INSUFFICIENT_STORAGE,
        Reason.NEVER_SAFE,
        Reason.NOT_TOGETHER,
        Reason.SPOKEN_FOR,
        Reason.WAITING,
        Reason.UNDECIDED,
    }
)
# Floats are exact up to here, and no disk grows by more.
_MOST_GROWTH: Final = 2**53
# Of more volumes the sums are too many to try.
_MAX_SUMMED_VOLUMES: Final = 4
_WHOLE: Final = 100
# Of more different selectors, only one each and all together are tried.
_MAX_COMBINED: Final = 3
Tags = tuple[str, ...]


def _allow_steps(node: longhorn.Node, *, of_disks: bool = False) -> list[Step]:
    """Returns the steps that allow scheduling on a node, or on those of its disks where it is not allowed."""
    kind = RemedyKind.ALLOW_DISK if of_disks else RemedyKind.ALLOW_NODE
    steps: list[Step] = []
    for place, disk, stored in _places(node, of_disks=of_disks):
        if not stored.allow_scheduling or stored.eviction_requested:
            eviction = " and cancel its eviction" if stored.eviction_requested else ""
            steps.append(Step(kind, node.name, disk, text=f"allow scheduling on {place}{eviction}"))
    return steps


def _tag_steps(cluster: PredictedCluster, candidate: _Candidate, *, of_disks: bool = False) -> list[Step]:
    """Returns the steps that add to a node, or to its disks, tags that the pod's volumes select and it lacks."""
    kind = RemedyKind.TAG_DISK if of_disks else RemedyKind.TAG_NODE
    select = attrgetter("disk_selector" if of_disks else "node_selector")
    selectors = _selectors(cluster, candidate.resolution, select)
    name = candidate.node.name
    return [
        Step(kind, name, disk, tags=tags, text=f"add tag{'s' * (len(tags) > 1)} {', '.join(tags)} to {place}")
        for place, disk, stored in _places(candidate.node, of_disks=of_disks)
        for tags in _tags_to_add(selectors, stored.tags)
    ]


def _places(node: longhorn.Node, *, of_disks: bool) -> list[tuple[str, str, longhorn.Node | longhorn.Disk]]:
    if not of_disks:
        return [(f"Longhorn node {node.name}", "", node)]
    return [(f"disk {node.name}/{disk.name}", disk.name, disk) for disk in node.disks if disk.in_spec]


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

    def least_size(self, fits: Callable[[Sequence[Step]], bool]) -> int:
        """Returns the least bytes with which the pod fits, else 0; with one byte less it was decided not to fit."""

        def suffices(size: int) -> bool:
            return fits((self.step(size),))

        low = 0
        high = 0
        for high in (*(guess for guess in self.guesses if guess < self.most), self.most):
            if suffices(high):
                break
            low = high
        if low == high:
            return 0
        # Most guesses are the least size.
        if high - low > 1 and not suffices(high - 1):
            low = high - 1
        return _bisect_size(low, high, suffices)

    def step(self, size: int) -> Step:
        """Returns the step that frees or adds some bytes."""
        place = f"disk {self.node}/{self.disk.name}"
        amount = exact_bytes(size)
        reserved = self.disk.storage_reserved
        less = f"{format_bytes(reserved - size)} instead of {format_bytes(reserved)}"
        texts = {
            RemedyKind.LOWER_RESERVE: f"reserve {amount} less on {place} ({less})",
            RemedyKind.FREE_SCHEDULED: f"free {amount} of what is scheduled on {place}",
            RemedyKind.FREE_AVAILABLE: f"free {amount} of what is written on {place}",
            RemedyKind.GROW_DISK: f"grow {place} by {amount}",
        }
        return Step(self.kind, self.node, self.disk.name, size, text=texts[self.kind])


def _needs_of_volumes(volumes: Collection[longhorn.Volume], spaces: Mapping[str, DiskSpace]) -> dict[str, DiskNeeds]:
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


def _needs_of_one_volume(
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


def _questions_of_node(
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
    return _bisect_size(low, high, suffices)


def _bisect_size(low: int, high: int, suffices: Callable[[int], bool]) -> int:
    """Returns the least size that suffices, where `low` does not, and `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return high


def _spread_steps(cluster: PredictedCluster, of_pod: PodDecision) -> list[Step]:
    # By these steps replicas no longer need a node or zone each.
    decision = of_pod.decision
    if decision is None or Reason.TOO_FEW_NODES not in decision.reasons:
        return []
    shortage = domain_shortage(cluster.state, replica_needs(decision.resolution, cluster.state.view))
    if shortage is None:
        return []
    degraded = _setting_step(RemedyKind.ALLOW_DEGRADED, DEGRADED_SETTING)
    soft = _setting_step(RemedyKind.SOFTEN_ANTI_AFFINITY, shortage.setting)
    return [degraded] if shortage.by_volume else [degraded, soft]


def _setting_step(kind: RemedyKind, setting: str) -> Step:
    return Step(kind, "", text=f"set Longhorn's {setting} to true", setting=setting)


def setting_steps(cluster: PredictedCluster, decision: PodDecision) -> list[Step]:
    """Returns the steps that change settings of Longhorn, nodes and disks, and may help."""
    steps = _spread_steps(cluster, decision)
    for name in sorted({*cluster.snapshot.nodes, *cluster.snapshot.longhorn_nodes}):
        kube_node = cluster.snapshot.nodes.get(name)
        longhorn_node = cluster.snapshot.longhorn_nodes.get(name)
        conditions = longhorn_node.conditions if longhorn_node is not None else ()
        if (kube_node is not None and kube_node.unschedulable) or condition(
            conditions, "Schedulable"
        ).reason == CORDONED:
            steps.append(Step(RemedyKind.UNCORDON, name, text=f"uncordon node {name}"))
    for candidate in _candidates(cluster, decision):
        reason = candidate.reason
        if reason is None or reason in _NODE_ALLOWED:
            steps += _allow_steps(candidate.node)
        # Of volumes of several classes, one may lack a disk, and another one the node's tag.
        if reason is None or reason is Reason.NODE_TAGS or reason in _DISKS:
            steps += _tag_steps(cluster, candidate)
        if reason is None or reason in _DISKS:
            steps += _allow_steps(candidate.node, of_disks=True)
            steps += _tag_steps(cluster, candidate, of_disks=True)
    return steps


class _Candidate(Struct, frozen=True):
    node: longhorn.Node
    reason: Reason | None  # None if steps of every kind may help
    resolution: Resolution  # the pod's volumes there


def _candidates(cluster: PredictedCluster, of_pod: PodDecision) -> Iterator[_Candidate]:
    decision = of_pod.decision
    if decision is None:
        return
    longhorn_nodes = cluster.snapshot.longhorn_nodes
    if replica_needs(decision.resolution, cluster.state.view):
        for name in sorted(longhorn_nodes):
            give_way()
            yield _Candidate(longhorn_nodes[name], None, decision.resolution_on(name))
        return
    for name, reason in zip(decision.candidates, decision.reasons, strict=True):
        give_way()
        node = longhorn_nodes.get(name)
        if node is not None:
            yield _Candidate(node, reason, decision.resolution_on(name))
    if Reason.SPOKEN_FOR not in decision.reasons:
        return
    # A volume that does not fit on its pod's node counts on others until there is room for it, also on a node that kube-scheduler refuses.
    for name in sorted(set(longhorn_nodes).difference(decision.candidates)):
        if cluster.state.demand.by_node.get(name):
            yield _Candidate(longhorn_nodes[name], None, decision.resolution)


def space_questions(cluster: PredictedCluster, decision: PodDecision, *, proven: bool) -> list[SpaceQuestion]:
    """Returns the questions about disks whose space may help. `proven`: whether a disk that takes no replica is of no use."""
    questions: list[SpaceQuestion] = []
    for candidate in _candidates(cluster, decision):
        if candidate.reason is None or candidate.reason in _DISKS:
            of_node = _questions_of_node(cluster, candidate.node, _needs(cluster, candidate, proven=proven))
            # Where every disk is closed to some volume, space helps only if it opens a disk.
            closed = candidate.reason in _CLOSED
            questions += (question for question in of_node if not (closed and question.disk.schedulable))
    return questions


def replicas_in_the_way(cluster: PredictedCluster, decision: PodDecision, *, proven: bool) -> list[longhorn.Replica]:
    """Returns the replicas whose disk may lack no more than their size; `proven` as for questions."""
    replicas: list[longhorn.Replica] = []
    by_disk = cluster.state.view.indexes.replicas_by_disk
    for candidate in _candidates(cluster, decision):
        if candidate.reason is not None and candidate.reason not in _DISKS:
            continue
        needs = _needs(cluster, candidate, proven=proven)
        for disk in candidate.node.disks:
            replicas += (each for each in by_disk.get(disk.uuid) or () if each.size >= needs[disk.name].least)
    return replicas


def _needs(cluster: PredictedCluster, candidate: _Candidate, *, proven: bool) -> Mapping[str, DiskNeeds]:
    name = candidate.node.name
    view = cluster.state.view
    spaces = view.free_space(name)
    if candidate.reason is None:
        volumes = [entry.volume for entry in candidate.resolution.volumes]
        return _needs_of_one_volume(volumes, spaces, proven=proven)
    unplaced = [entry for entry in candidate.resolution.local if name not in nodes_with_replica(entry, view.cluster)]
    return _needs_of_volumes([entry.volume for entry in unplaced], spaces)
