"""How many bytes each disk has left for newcomers, as placement reads it; and what a DiskSchedule adds to the bytes that the
extender counts on the disk anyway.

What is left depends on one disk only: its DiskSchedule, its node and its occupancy. So a controller keeps it from one decision to
the next, and computes it again for the disks that changed.

A replica is visible in up to three places: as a Replica object with that place, in the node's `scheduledReplica`, and in the
DiskSchedule. It counts once, by name, with the largest of the sizes, because a growth that is granted or pending is in the
DiskSchedule first.

A replica may request space on the disk that Longhorn itself would choose, among the disks whose DiskSchedule would grant the request together
with the backing image that the replica needs there.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from itertools import takewhile

from scheduler_core.disk_schedule.allocation import claim, claims, taken_bytes
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy
from scheduler_core.disk_schedule.reconcile import NodeLookup, limit_of
from scheduler_core.longhorn import new_volume_placement, placement
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.model.disk_schedule import Allocations, AllocationState, DiskSchedule, Fault, Requests
from scheduler_core.model.longhorn import STRICT_LOCAL, Disk, Node, Replica, Volume
from scheduler_core.model.quantity import format_bytes, join_first
from scheduler_core.structs import Struct, replace


class DiskSpace(Struct, frozen=True):
    """What a newcomer can get on one disk."""

    node: str  # the node's name
    disk: str  # the disk's name on its node
    free: int  # bytes that are available and not taken; may be negative; 0 if nothing is granted at all
    problem: str = ""  # why nothing is granted whatever its size, as a sentence; "" if what fits is granted
    undecided: bool = False  # whether that is not known, because the node cannot be read

    def grants(self, size: int) -> bool:
        return not self.problem and size <= self.free

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        return f"disk {self.disk} on node {self.node} has {format_bytes(max(0, self.free))} left"


class DiskSpaces(Mapping[str, DiskSpace]):
    """The space of every disk by UUID, in the order of the free bytes, so that the disks with the most space are found
    without looking at the others.
    """

    def __init__(self, spaces: Mapping[str, DiskSpace] | None = None) -> None:
        self._spaces = dict(spaces or {})
        self._ranking = sorted(_rank(uuid, space) for uuid, space in self._spaces.items())

    def __getitem__(self, uuid: str) -> DiskSpace:
        return self._spaces[uuid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spaces)

    def __len__(self) -> int:
        return len(self._spaces)

    def set(self, uuid: str, space: DiskSpace | None) -> None:
        """Replaces the space of a disk; None: there is no such disk."""
        old = self._spaces.pop(uuid, None)
        if old is not None:
            del self._ranking[bisect_left(self._ranking, _rank(uuid, old))]
        if space is not None:
            self._spaces[uuid] = space
            insort(self._ranking, _rank(uuid, space))

    def roomiest(self, size: int) -> Iterable[tuple[str, str]]:
        """Returns node and UUID of disks with at least `size` free bytes, most free bytes first, ties by node and UUID."""
        # The caller takes the first few of them.
        return (rank[1:] for rank in takewhile(lambda rank: -rank[0] >= size, self._ranking))


def _rank(uuid: str, space: DiskSpace) -> tuple[int, str, str]:
    return -space.free, space.node, uuid


def disk_space(schedule: DiskSchedule, node: NodeLookup, occupancy: DiskOccupancy = NO_OCCUPANTS) -> DiskSpace:
    """Returns what a newcomer can get on the disk of a DiskSchedule."""
    limit = limit_of(schedule, node)
    place = schedule.spec.node, schedule.spec.disk
    if limit.reason or limit.available is None:
        return DiskSpace(*place, 0, limit.message, undecided=isinstance(node, Fault))
    taken = taken_bytes(schedule, occupancy.with_adoption(schedule.adoption, schedule.spec))
    return DiskSpace(*place, limit.available - taken)


class DiskAccounting(Struct, frozen=True):
    """What counts on a disk in addition to `storageScheduled`."""

    uncounted: int  # bytes to add to storageScheduled for Longhorn's own two rules
    free: int  # bytes the DiskSchedule would still grant: its own limit, in addition to those rules; may be negative


def account(disk: Disk, schedule: DiskSchedule, unlisted_replicas: Iterable[Replica]) -> DiskAccounting:
    """Returns what the DiskSchedule of a disk adds. A new request that the DiskSchedule rejected counts 0 there, and so
    does its Replica, which is about to leave; if Longhorn's status lists the replica, it still counts for Longhorn's
    rules. A replica that is not in the DiskSchedule will be requested, so it counts for both. `unlisted_replicas` are
    placed on the disk, and the node's status does not list them yet.
    """
    placed = {replica.name: replica.size for replica in unlisted_replicas}
    spec, status = schedule.spec, schedule.status
    replicas = _count_kind(disk.scheduled_replicas, placed, spec.replicas, status.replicas)
    images = _count_kind(disk.scheduled_backing_images, {}, spec.backing_images, status.backing_images)
    return DiskAccounting(replicas[0] + images[0], disk.storage_available - replicas[1] - images[1])


def _count_kind(
    listed: Mapping[str, int], placed: Mapping[str, int], requests: Requests, allocations: Allocations
) -> tuple[int, int]:
    """Returns the bytes of one kind of object that Longhorn's status lacks, and all of them by the DiskSchedule's measure."""
    claimed = claims(requests, allocations)
    rejected = {
        name for name, entry in allocations.items() if entry.state is AllocationState.REJECTED and entry.size == 0
    }
    uncounted = 0
    total = 0
    for name in listed.keys() | placed.keys() | claimed.keys():
        size = 0 if name in rejected else max(placed.get(name, 0), claimed.get(name, 0))
        uncounted += max(0, size - listed.get(name, 0))
        total += claimed[name] if name in claimed else max(placed.get(name, 0), listed.get(name, 0))
    return uncounted, total


# Nodes that are evaluated for one replica: so many, or else more, or else all.
_EVALUATED_NODES = (6, 64, math.inf)
# Longhorn prefers zones without replicas, and the roomiest nodes may all be in zones with one.
_MIN_IN_UNUSED_ZONES = 3


class DiskChoice(Struct, frozen=True):
    """The disk where a replica requests space, or why there is none."""

    candidate: placement.DiskCandidate | None  # the disk; None if there is none
    # What is free on the disks and why they are refused, as a sentence; "" if there is a candidate.
    explanation: str = ""
    undecided: bool = False  # whether a node that cannot be read might have room


class PlacementView(Struct, frozen=True):
    """What a choice of disks is made from."""

    cluster: Cluster  # what Longhorn's placement rules read
    schedules: Mapping[str, DiskSchedule]  # all DiskSchedules, by disk UUID
    space: DiskSpaces  # what a newcomer can get on each disk, by UUID


def choose_disk(view: PlacementView, volume: Volume, replica: Replica, replicas: Iterable[Replica]) -> DiskChoice:
    """Chooses the disk where a replica requests space, if any. The replica's present place is disregarded and not
    chosen again: it was refused there. A disk that it has left is chosen again once its bytes there are released. The
    disk with the most bytes left wins among those Longhorn might pick, ties by node and disk name. `replicas` are all
    of the volume.
    """
    if new_volume_placement.waits_for_attachment(volume):
        return DiskChoice(None, "the volume is not attached")
    affinity = volume.node_id if volume.data_locality == STRICT_LOCAL else replica.hard_node_affinity
    unplaced = replace(replica, node_id="", disk_id="", hard_node_affinity=affinity)
    volume_replicas = [unplaced if each.name == replica.name else each for each in replicas]
    needs = _Needs(view, volume, replica)
    hosts = {each.node_id for each in volume_replicas if each.node_id}
    best = None
    # As in kube-scheduler (percentageOfNodesToScore), few nodes suffice, those with the most space left first. Then come more, and in
    # the end all that would grant the request.
    for limit in _EVALUATED_NODES:
        names, complete = _roomiest_nodes(view, needs, hosts, limit)
        # Anti-affinity depends on the nodes of the volume's replicas.
        nodes = needs.closed_nodes(hosts | names)
        result = placement.schedule_replica(replace(view.cluster, nodes=nodes), volume, unplaced, volume_replicas)
        options = [choice.candidate for choice in result.choices]
        best = min(
            options, key=lambda each: (-view.space[each.disk.uuid].free, each.node.name, each.disk.name), default=None
        )
        if complete or (best is not None and _is_first_choice(view.cluster, nodes, hosts, best)):
            break
    return DiskChoice(best) if best is not None else needs.explain()


def _roomiest_nodes(
    view: PlacementView, needs: "_Needs", hosts: AbstractSet[str], limit: float
) -> tuple[AbstractSet[str], bool]:
    # Some of the nodes are in zones without replicas, if there are any.
    nodes = view.cluster.nodes
    used_zones = _zones_of(view.cluster, hosts)
    selected: set[str] = set()
    in_unused_zones = 0
    complete = True
    for name, uuid in view.space.roomiest(needs.size):
        if len(selected) >= limit and in_unused_zones >= _MIN_IN_UNUSED_ZONES:
            return selected, False
        if name not in nodes or name in selected:
            continue
        in_unused_zone = nodes[name].zone not in used_zones
        if len(selected) >= limit and not in_unused_zone:
            complete = False
        elif needs.grants(uuid):
            selected.add(name)
            in_unused_zones += in_unused_zone
    return selected, complete


def _zones_of(cluster: Cluster, names: Iterable[str]) -> AbstractSet[str]:
    return {cluster.nodes[name].zone for name in names if name in cluster.nodes}


def _is_first_choice(
    cluster: Cluster, evaluated: Mapping[str, Node], hosts: AbstractSet[str], best: placement.DiskCandidate
) -> bool:
    """Whether no node outside the evaluated ones could be in an earlier tier (see `anti_affinity.Tier`)."""
    # Such a node is in a zone without replicas, or itself without.
    if len(evaluated) >= len(cluster.nodes):
        return True
    used_zones = _zones_of(cluster, hosts)
    if best.node.zone not in used_zones:
        return True
    unused_zone = any(node.zone not in used_zones for name, node in cluster.nodes.items() if name not in evaluated)
    return not unused_zone and best.node.name not in hosts


class _Needs:
    """The bytes that a replica needs on a disk, with its backing image."""

    def __init__(self, view: PlacementView, volume: Volume, replica: Replica) -> None:
        self._view = view
        self._replica = replica
        self.size = replica.size or volume.size  # bytes of the replica alone
        image = view.cluster.backing_image(volume.backing_image) if volume.backing_image else None
        self._image = image.name if image else ""
        self._image_size = image.real_size if image else 0

    def of(self, uuid: str) -> int:
        """The bytes that the replica needs on a disk, with its backing image if that claims nothing there yet."""
        return self.size + unclaimed_image_bytes(self._view.schedules.get(uuid), self._image, self._image_size)

    def grants(self, uuid: str) -> bool:
        space = self._view.space.get(uuid)
        return (
            space is not None
            and uuid != self._replica.disk_id
            and not self._has_old_answer(uuid)
            and space.grants(self.of(uuid))
        )

    def _has_old_answer(self, uuid: str) -> bool:
        """Whether the disk, which the replica has left, has yet to release its answer."""
        schedule = self._view.schedules.get(uuid)
        # The answer looks like a grant: placed there again, the replica could start before the new request is written.
        return schedule is not None and self._replica.name in schedule.status.replicas

    def closed_nodes(self, names: AbstractSet[str]) -> dict[str, Node]:
        """Returns these nodes, in order of their names, with every disk closed that would reject the request."""
        closed: dict[str, Node] = {}
        for name in sorted(names & self._view.cluster.nodes.keys()):
            node = self._view.cluster.nodes[name]
            disks: list[Disk] = []
            for disk in node.disks:
                space = self._view.space.get(disk.uuid)
                # A moved disk's UUID is listed twice. The entry that its DiskSchedule does not name may look open while every request is
                # refused, and the replica would choose it again and again.
                able = space is not None and (space.node, space.disk) == (name, disk.name) and self.grants(disk.uuid)
                disks.append(disk if able else replace(disk, allow_scheduling=False))
            closed[name] = replace(node, disks=tuple(disks))
        return closed

    def explain(self) -> DiskChoice:
        ranked = sorted(self._view.space.items(), key=lambda entry: (bool(entry[1].problem), -entry[1].free, entry[0]))
        wanted = format_bytes(self.size)
        if self._image:
            wanted += f" and {format_bytes(self._image_size)} for backing image {self._image}"
        disks = join_first([self._describe(uuid, space) for uuid, space in ranked], "; ")
        undecided = any(space.undecided for space in self._view.space.values())
        return DiskChoice(None, f"{wanted}: {disks or 'there is no disk'}", undecided)

    def _describe(self, uuid: str, space: DiskSpace) -> str:
        if uuid == self._replica.disk_id and not space.problem:
            return f"{space}, but has refused it"
        if self._has_old_answer(uuid) and not space.problem:
            return f"{space}, but has yet to release what the replica requested before"
        if space.grants(self.of(uuid)):
            return f"{space}, but Longhorn's rules exclude it (tags, anti-affinity, its own limits or a node that is not ready)"
        return str(space)


def unclaimed_image_bytes(schedule: DiskSchedule | None, image: str, size: int) -> int:
    """Returns the bytes that a backing image still needs on a disk, 0 without an image."""
    if not image or schedule is None:
        return size if image else 0
    return 0 if claim(schedule.spec.backing_images.get(image), schedule.status.backing_images.get(image)) else size
