"""Changes that may help a pod: of the settings of nodes and disks, and of a disk's space."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from scheduler_core.evaluation.replicas_to_place import DEGRADED_SETTING, domain_shortage, replica_needs
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import DiskSpace, disk_space
from scheduler_core.longhorn.volume_validation import is_tag
from scheduler_core.model import kube, longhorn, quantity
from scheduler_core.model.longhorn import CORDONED
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.packing import budget, items
from scheduler_core.predict.pod_decision import PodDecision
from scheduler_core.predict.predicted_cluster import PredictedCluster, with_schedulable_condition
from scheduler_core.predict.remedy import RemedyKind, Step, exact_bytes, with_more_space
from scheduler_core.structs import Struct
from scheduler_core.volumes.existing_replicas import nodes_with_replica
from scheduler_core.volumes.resolve import Resolution

_NODES = frozenset({Reason.NODE_EVICTING, Reason.NODE_SCHEDULING_DISABLED, Reason.NODE_TAGS})
_CLOSED = frozenset({Reason.NO_DISK, Reason.DISK_PRESSURE, Reason.DISK_TYPE, Reason.DISK_TAGS, Reason.VOLUME_TOO_LARGE})
_DISKS = (
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
_MOST_GROWTH = 2**53
# Of more volumes the sums are too many to try.
_MAX_SUMMED_VOLUMES = 4
_WHOLE = 100


def setting_steps(cluster: PredictedCluster, decision: PodDecision) -> list[Step]:
    """Returns the steps that change settings of Longhorn, nodes and disks, and may help."""
    steps = _spread_steps(cluster, decision)
    for name in sorted({*cluster.snapshot.nodes, *cluster.snapshot.longhorn_nodes}):
        kube_node = cluster.snapshot.nodes.get(name)
        longhorn_node = cluster.snapshot.longhorn_nodes.get(name)
        conditions = longhorn_node.conditions if longhorn_node is not None else ()
        cordoned = kube.condition(conditions, "Schedulable").reason == CORDONED
        if cordoned or (kube_node is not None and kube_node.unschedulable):
            steps.append(Step(RemedyKind.UNCORDON, name, text=f"uncordon node {name}"))
    for candidate in _candidates(cluster, decision):
        steps += _place_steps(cluster, candidate, candidate.node)
        for disk in candidate.node.disks if candidate.of_disks else ():
            if disk.in_spec:
                steps += _place_steps(cluster, candidate, disk)
    return steps


def _spread_steps(cluster: PredictedCluster, of_pod: PodDecision) -> list[Step]:
    # By these steps replicas no longer need a node or zone each.
    decision = of_pod.decision
    if decision is None or Reason.TOO_FEW_NODES not in decision.reasons:
        return []
    shortage = domain_shortage(cluster.state, replica_needs(decision.resolution, cluster.state.view))
    if shortage is None:
        return []
    settings = {RemedyKind.ALLOW_DEGRADED: DEGRADED_SETTING}
    if not shortage.by_volume:
        settings[RemedyKind.SOFTEN_ANTI_AFFINITY] = shortage.setting
    return [Step(kind, "", text=f"set Longhorn's {name} to true", setting=name) for kind, name in settings.items()]


def _place_steps(
    cluster: PredictedCluster, candidate: "_Candidate", stored: longhorn.Node | longhorn.Disk
) -> Iterator[Step]:
    """Yields the steps that allow scheduling on a node or disk, and those that add tags which the pod's volumes select."""
    node = candidate.node.name
    of_disk = isinstance(stored, longhorn.Disk)
    disk = stored.name if of_disk else ""
    place = f"disk {node}/{disk}" if of_disk else f"Longhorn node {node}"
    allow = RemedyKind.ALLOW_DISK if of_disk else RemedyKind.ALLOW_NODE
    tag = RemedyKind.TAG_DISK if of_disk else RemedyKind.TAG_NODE
    select = attrgetter("disk_selector" if of_disk else "node_selector")
    if not stored.allow_scheduling or stored.eviction_requested:
        eviction = " and cancel its eviction" if stored.eviction_requested else ""
        yield Step(allow, node, disk, text=f"allow scheduling on {place}{eviction}")
    missing: set[tuple[str, ...]] = set()
    for entry in candidate.resolution.volumes:
        image = cluster.snapshot.backing_images.get(entry.volume.backing_image)
        selector = {*select(entry.volume), *(select(image) if image is not None else ())}
        # Longhorn admits no tag that is no qualified name.
        if all(map(is_tag, selector)):
            missing.add(tuple(sorted(selector - {*stored.tags})))
    # Volumes of a pod may be on different disks, so not every selector has to match.
    together = tuple(sorted({name for names in missing for name in names}))
    for tags in {*missing, together} - {()}:
        text = f"add tag{'s' * (len(tags) > 1)} {', '.join(tags)} to {place}"
        yield Step(tag, node, disk, tags=tags, text=text)


class _Candidate(Struct, frozen=True):
    """A node on which a step may help."""

    node: longhorn.Node
    reason: Reason | None  # None if steps of every kind may help
    resolution: Resolution  # the pod's volumes there

    @property
    def of_disks(self) -> bool:
        return self.reason is None or self.reason in _DISKS


def _candidates(cluster: PredictedCluster, of_pod: PodDecision) -> Iterator[_Candidate]:
    decision = of_pod.decision
    if decision is None:
        return
    longhorn_nodes = cluster.snapshot.longhorn_nodes
    if replica_needs(decision.resolution, cluster.state.view):
        for name in sorted(longhorn_nodes):
            budget.give_way()
            yield _Candidate(longhorn_nodes[name], None, decision.resolution_on(name))
        return
    for name, reason in zip(decision.candidates, decision.reasons, strict=True):
        budget.give_way()
        if name in longhorn_nodes and reason in _NODES | _DISKS:
            yield _Candidate(longhorn_nodes[name], reason, decision.resolution_on(name))
    if Reason.SPOKEN_FOR not in decision.reasons:
        return
    # A volume that does not fit on its pod's node counts on others until there is room for it, also on a node that kube-scheduler refuses.
    for name in sorted(set(longhorn_nodes).difference(decision.candidates)):
        if cluster.state.demand.by_node.get(name):
            yield _Candidate(longhorn_nodes[name], None, decision.resolution)


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

    def least_size(self, most: int, fits: Callable[[Step], bool]) -> int:
        """Returns the least bytes, at most `most`, with which the pod fits, else 0; with one byte less it was decided not
        to fit.
        """

        def suffices(size: int) -> bool:
            return fits(self.step(size))

        low = 0
        high = 0
        for high in (*(guess for guess in self.guesses if guess < most), most):
            if suffices(high):
                break
            low = high
        if low == high:
            return 0
        # Most guesses are the least size.
        if high - low > 1 and not suffices(high - 1):
            return high
        return _bisect_size(low, high, suffices)

    def step(self, size: int) -> Step:
        """Returns the step that frees or adds some bytes."""
        place = f"disk {self.node}/{self.disk.name}"
        amount = exact_bytes(size)
        reserved = self.disk.storage_reserved
        less = f"{quantity.format_bytes(reserved - size)} instead of {quantity.format_bytes(reserved)}"
        texts = {
            RemedyKind.LOWER_RESERVE: f"reserve {amount} less on {place} ({less})",
            RemedyKind.FREE_SCHEDULED: f"free {amount} of what is scheduled on {place}",
            RemedyKind.FREE_AVAILABLE: f"free {amount} of what is written on {place}",
            RemedyKind.GROW_DISK: f"grow {place} by {amount}",
        }
        return Step(self.kind, self.node, self.disk.name, size, text=texts[self.kind])


def _bisect_size(low: int, high: int, suffices: Callable[[int], bool]) -> int:
    """Returns the least size that suffices, where `low` does not, and `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return high


def space_questions(cluster: PredictedCluster, decision: PodDecision) -> list[SpaceQuestion]:
    """Returns the questions about disks whose space may help."""
    settings = cluster.state.view.settings
    questions: list[SpaceQuestion] = []
    for candidate in _candidates(cluster, decision):
        if not candidate.of_disks:
            continue
        volumes, spaces = _volumes_and_spaces(cluster, candidate)
        for disk in candidate.node.disks:
            settled = with_schedulable_condition(cluster, disk).schedulable == disk.schedulable
            # Longhorn is about to change the condition Schedulable of a disk whose numbers lead to another one.
            if not (disk.ready and disk.in_spec and disk.in_status and settled):
                continue
            # Where every disk is closed to some volume, space helps only if it opens a disk.
            if candidate.reason in _CLOSED and disk.schedulable:
                continue
            lacks = _lacking_bytes(candidate, disk, volumes, spaces)
            for kind, most in (
                (RemedyKind.LOWER_RESERVE, disk.storage_reserved),
                (RemedyKind.FREE_SCHEDULED, disk.storage_scheduled),
                (RemedyKind.FREE_AVAILABLE, disk.storage_maximum - disk.storage_available),
                (RemedyKind.GROW_DISK, _MOST_GROWTH),
            ):
                guesses = tuple(sorted(_guesses(disk, kind, most, lacks, settings)))
                if guesses and guesses[0] <= most:
                    # Where a bound is proven, it is the first guess.
                    least = guesses[0] if lacks.least or kind is RemedyKind.FREE_AVAILABLE else 1
                    questions.append(SpaceQuestion(kind, candidate.node.name, disk, least, guesses, most))
    return questions


def replicas_in_the_way(cluster: PredictedCluster, decision: PodDecision) -> list[longhorn.Replica]:
    """Returns the replicas whose disk may lack no more than their size."""
    replicas: list[longhorn.Replica] = []
    by_disk = cluster.state.view.indexes.replicas_by_disk
    for candidate in _candidates(cluster, decision):
        volumes, spaces = _volumes_and_spaces(cluster, candidate)
        for disk in candidate.node.disks if candidate.of_disks else ():
            least = _lacking_bytes(candidate, disk, volumes, spaces).least
            replicas += (each for each in by_disk.get(disk.uuid) or () if each.size >= least)
    return replicas


def _volumes_and_spaces(
    cluster: PredictedCluster, candidate: _Candidate
) -> tuple[list[longhorn.Volume], dict[str, DiskSpace]]:
    """Returns the volumes that need space on a node, or may, and what the node's disks have."""
    name = candidate.node.name
    view = cluster.state.view
    entries = candidate.resolution.volumes
    if candidate.reason is not None:
        entries = tuple(
            each for each in candidate.resolution.local if name not in nodes_with_replica(each, view.cluster)
        )
    return [entry.volume for entry in entries], dict(view.free_space(name))


class _Lacking(Struct, frozen=True):
    """What a disk lacks by Longhorn's over-provisioning rule."""

    least: int  # bytes that the disk must have more at least, 0 if no bound is proven
    guesses: frozenset[int]  # bytes that are likely to suffice
    written: frozenset[int]  # bytes that volumes bring along, 0 for a new volume


def _lacking_bytes(
    candidate: _Candidate, disk: longhorn.Disk, volumes: Sequence[longhorn.Volume], spaces: dict[str, DiskSpace]
) -> _Lacking:
    """Returns what a disk lacks if only it has more space. The bound ignores which disks are open to the volumes, and the
    volumes of other pods, which makes it lower.
    """
    free = spaces[disk.name].free
    sizes = [volume.size for volume in volumes]
    least = 0
    if candidate.reason is not None:
        others = [space.free for name, space in spaces.items() if name != disk.name]
        # The volumes of at least some size go to disks with at least that much space, and to the disk that has more.
        needed = (
            sum(size for size in sizes if size >= bound) - sum(space for space in others if space >= bound)
            for bound in {*sizes}
        )
        least = max(0, max(needed, default=0) - free)
    sums = items.reachable_sums(sizes) if len(sizes) <= _MAX_SUMMED_VOLUMES else ()
    guesses = {total - free for total in sums if total - free >= max(1, least)}
    # Where the volume of another pod takes the space, fewer bytes may do.
    if candidate.reason is not None or not guesses:
        guesses.add(max(1, least))
    return _Lacking(least, frozenset(guesses), frozenset(volume.actual_size for volume in volumes))


def _guesses(disk: longhorn.Disk, kind: RemedyKind, most: int, lacks: _Lacking, settings: Settings) -> set[int]:
    """Returns how many bytes of a kind may suffice; none if no number of bytes does."""
    before = disk_space(disk, settings)

    def size_for_headroom(headroom: int) -> int:
        def suffices(size: int) -> bool:
            return disk_space(with_more_space(disk, kind, size), settings).headroom >= headroom

        return max(1, _bisect_size(0, most, suffices))

    # A volume needs more headroom than it has data.
    headrooms = {written + 1 for written in lacks.written if written >= before.headroom}
    if kind is RemedyKind.FREE_AVAILABLE:
        return set() if lacks.least else {size_for_headroom(each) for each in headrooms}
    if kind is RemedyKind.FREE_SCHEDULED:
        return set(lacks.guesses)
    percentage = settings.storage_over_provisioning_percentage
    if percentage <= 0:
        return set() if lacks.least else {1}
    counted = disk.storage_maximum - disk.storage_reserved
    limit = before.free + disk.storage_scheduled
    sizes = {max(1, -(-_WHOLE * (limit + extra) // percentage) - counted) for extra in lacks.guesses}
    if kind is RemedyKind.GROW_DISK and settings.storage_minimal_available_percentage < _WHOLE:
        sizes |= {size for size in map(size_for_headroom, headrooms) if size > min(sizes)}
    return sizes
