"""Monitors which disks new placements overbook, which volumes met there, and how close together they were placed.

A disk is *overbooked* if its replicas and backing images add up to more than Longhorn's scheduling limit. Longhorn
places a replica on what a disk's status says, and the status follows later. So replicas of several volumes that are
placed on the same status may overbook a disk, each on the node where its pod needs it: an overbooked disk is no
misplacement.

Data flow: when a watch delivered each replica with its disk → the replicas that are on another disk than in the
previous view are new placements → disks that exceed their limit with them, and not without them → the next
`OverbookingReport`.

Only placements overbook a disk. One that an administrator shrank, or lowered the over-provisioning of, is not reported,
and neither is one that replicas outgrew. A new leader does not report disks that were overbooked before. A disk whose
space is promised through a DiskSchedule is not reported: a replica is placed there before its request is answered, and
leaves again if that is rejected.
"""

import math
from collections.abc import Iterable, Mapping

from scheduler_core.cluster.view import View
from scheduler_core.longhorn import node_controller, space
from scheduler_core.structs import Struct, replace

# Volumes of one pod are placed within two seconds; a report before the last of them would not name all.
SETTLE_TIME = 1.0
# Longhorn writes the status of a disk every 30 s; the rest is for a slow sync.
MAX_STATUS_LAG = 60.0

Deliveries = Mapping[tuple[str, str], float]
"""When a watch first delivered a replica with a disk, in the caller's seconds, by the replica's name and the disk's UUID."""


class Overbooked(Struct, frozen=True, order=True):
    """A disk that new placements overbooked."""

    node: str
    disk: str  # its name on the node
    # Those that met: the last one, and those that Longhorn cannot have counted when it placed that; in order of
    # placement.
    volumes: tuple[str, ...]
    bytes_over: int  # how far the disk exceeds its limit, or did before it was mended
    milliseconds: int  # between the first and the last of these placements, as a watch delivered them


class _Placement(Struct, frozen=True, order=True):
    at: float
    replica: str
    volume: str
    size: int


class _Disk(Struct, frozen=True):
    node: str
    name: str
    booked: int  # bytes of its replicas and backing images
    limit: int  # its scheduling limit

    @property
    def bytes_over(self) -> int:
        return self.booked - self.limit


class _Meeting(Struct, frozen=True):
    disk: _Disk  # as it was when it was overbooked last
    placements: tuple[_Placement, ...]
    reported: bool = False  # whether a report had it

    @property
    def last(self) -> float:
        return self.placements[-1].at

    @property
    def entry(self) -> Overbooked:
        return Overbooked(
            node=self.disk.node,
            disk=self.disk.name,
            volumes=tuple(dict.fromkeys(placement.volume for placement in self.placements)),
            bytes_over=self.disk.bytes_over,
            milliseconds=round((self.last - self.placements[0].at) * 1000),
        )


_Placements = Mapping[str, tuple[_Placement, ...]]


class OverbookingReport(Struct, frozen=True):
    """The overbooked disks at one time. Only `update` makes the next, of which the first notes where replicas are."""

    time: float = -math.inf  # when it was made, in the caller's seconds
    overbooked: tuple[Overbooked, ...] = ()  # the disks that are overbooked, sorted by node and name
    new_overbookings: tuple[Overbooked, ...] = ()  # those that this report is the first to have
    _view: View | None = None
    _recent: _Placements = {}
    _meetings: Mapping[str, _Meeting] = {}

    def update(self, view: View, deliveries: Deliveries, now: float) -> "OverbookingReport":
        """Returns the report at a later time, with what watches delivered since the view of this report. A `now` before
        this report's time counts as that.
        """
        now = max(now, self.time)
        new = self._new_placements(view, deliveries)
        seen = {uuid: (*self._recent.get(uuid, ()), *new.get(uuid, ())) for uuid in {*self._recent, *new}}
        counting = {
            uuid: tuple(entry for entry in group if entry.at + MAX_STATUS_LAG > now) for uuid, group in seen.items()
        }
        recent = {uuid: placements for uuid, placements in counting.items() if placements}
        meetings: dict[str, _Meeting] = {}
        overbooked: list[Overbooked] = []
        new_overbookings: list[Overbooked] = []
        for uuid in {*new, *self._meetings}:
            disk = _disk(view, uuid)
            if disk is None:
                # While its size is unknown, a disk on a node is neither overbooked nor mended.
                if uuid in self._meetings and uuid in view.indexes.node_of_disk:
                    meetings[uuid] = self._meetings[uuid]
                continue
            meeting = self._meeting(uuid, disk, new.get(uuid, ()), _on_disk(recent.get(uuid, ()), uuid, view))
            if meeting is None:
                ended = self._meetings.get(uuid)
                # A disk that a replica has left before `SETTLE_TIME` is reported as well.
                # A limit that was raised at the same time may have been delivered after the placements that it let happen.
                if ended is not None and not ended.reported and disk.limit <= ended.disk.limit:
                    new_overbookings.append(ended.entry)
                continue
            # A disk is reported `SETTLE_TIME` after the last placement on it, once for as long as it is overbooked.
            is_new = not meeting.reported and meeting.last + SETTLE_TIME <= now
            meetings[uuid] = replace(meeting, reported=meeting.reported or is_new)
            if meetings[uuid].reported:
                overbooked.append(meeting.entry)
            if is_new:
                new_overbookings.append(meeting.entry)
        return OverbookingReport(
            time=now,
            overbooked=tuple(sorted(overbooked)),
            new_overbookings=tuple(sorted(new_overbookings)),
            _view=view,
            _recent=recent,
            _meetings=meetings,
        )

    def _new_placements(self, view: View, deliveries: Deliveries) -> _Placements:
        if self._view is None:
            return {}
        placements: dict[str, list[_Placement]] = {}
        for (name, uuid), at in deliveries.items():
            replica = view.snapshot.replicas.get(name)
            before = self._view.snapshot.replicas.get(name)
            moved = before is None or before.disk_id != uuid
            if replica is not None and replica.node_id and replica.disk_id == uuid and moved:
                placement = _Placement(at, name, replica.volume, replica.size)
                placements.setdefault(uuid, []).append(placement)
        return {uuid: tuple(sorted(group)) for uuid, group in placements.items()}

    def _meeting(
        self, uuid: str, disk: _Disk, new: tuple[_Placement, ...], recent: tuple[_Placement, ...]
    ) -> _Meeting | None:
        before = self._meetings.get(uuid)
        if disk.bytes_over <= 0:
            return None
        if before is not None:
            return replace(before, disk=disk, placements=(*before.placements, *new))
        size = sum(placement.size for placement in new)
        earlier = _disk(self._view, uuid) if self._view is not None else None
        limits = [disk.limit] if earlier is None else [disk.limit, earlier.limit]
        # It is not known whether a limit was lowered before or after the placements; then they have the benefit of the doubt.
        caused = disk.booked - size <= disk.limit and disk.booked > max(limits)
        return _Meeting(disk, _uncounted_placements(recent or new, disk)) if caused else None


def _uncounted_placements(placements: tuple[_Placement, ...], disk: _Disk) -> tuple[_Placement, ...]:
    last = placements[-1]
    counted = disk.booked
    for index in range(len(placements) - 1, -1, -1):
        counted -= placements[index].size
        # Longhorn placed the last replica, so what it had counted left space for that.
        if counted + last.size <= disk.limit:
            return placements[index:]
    return placements


def _on_disk(placements: Iterable[_Placement], uuid: str, view: View) -> tuple[_Placement, ...]:
    """Returns the latest placement of each replica that is still on a disk."""
    latest = {placement.replica: placement for placement in placements}
    replicas = {replica.name for replica in view.indexes.replicas_by_disk.get(uuid) or ()}
    return tuple(sorted(placement for name, placement in latest.items() if name in replicas))


def _disk(view: View, uuid: str) -> _Disk | None:
    # No node has it, its size is unknown, or a DiskSchedule promises its space.
    node = view.snapshot.longhorn_nodes.get(view.indexes.node_of_disk.get(uuid) or "")
    for disk in node.disks if node is not None else ():
        if node is not None and disk.uuid == uuid and disk.storage_maximum > 0 and view.schedule_of(disk) is None:
            replicas = view.indexes.replicas_by_disk.get(uuid) or ()
            images = node_controller.scheduled_backing_images(view.cluster, disk)
            booked = sum(replica.size for replica in replicas) + sum(images.values())
            return _Disk(node.name, disk.name, booked, space.scheduling_limit(disk, view.settings))
    return None


def bytes_over(view: View, uuid: str) -> int:
    """Returns by how many bytes a disk exceeds its scheduling limit; not positive if it does not, or is not monitored."""
    disk = _disk(view, uuid)
    return 0 if disk is None else disk.bytes_over
