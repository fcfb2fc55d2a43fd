"""What Longhorn's placements lead to during a run, seen in API objects alone and without any code that decides.

`Overbookings` follows the replicas and nodes of a cluster by plain watches. So a disk that is overbooked counts even if it is mended
later. `PlacementAudit` begins it together with the count of misplacements.
"""

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from app.kube.resources import LONGHORN_NODES, LONGHORN_REPLICAS
from devcluster.programs import NAMESPACE
from tests.e2e.object_watch import ObjectWatch
from tests.e2e.objects import Object
from tests.e2e.rig import Rig, disk_limits

_DELETED = "DELETED"
_GIBIBYTE = 2**30


@dataclass(frozen=True, slots=True)
class _Replica:
    """A replica; `placed_at` is when the watch first delivered it on its disk, in seconds."""

    volume: str
    disk: str
    size: int
    placed_at: float


@dataclass(slots=True)
class _Event:
    """A disk that became overbooked, and what met there by the moment when that was at its worst."""

    place: str
    placements: list[_Replica]
    bytes_over: int = 0

    def __str__(self) -> str:
        times = [replica.placed_at for replica in self.placements]
        volumes = list(dict.fromkeys(replica.volume for replica in self.placements))
        milliseconds = round((max(times) - min(times)) * 1000)
        return (
            f"{self.place}: {self.bytes_over / _GIBIBYTE:g}Gi over, "
            f"{len(volumes)} volumes within {milliseconds} ms: {' '.join(volumes)}"
        )


class Overbookings:
    """Records the disks that placements overbook, from the replicas and nodes that watches deliver. The volumes that
    met are those on the disk that the node's status did not list at that moment.
    """

    def __init__(self, percentage: int = 100) -> None:
        self._percentage = percentage
        self._lock = threading.Lock()
        self._replicas: dict[str, _Replica] = {}
        self._nodes: dict[str, Object] = {}
        self._open: dict[str, _Event] = {}
        self._overbooked_before: set[str] = set()
        self._events: list[_Event] = []
        self._begun = False

    def begin(self) -> None:
        """Counts from now on; a disk that is overbooked already is not counted until it was mended."""
        with self._lock:
            disks = {replica.disk for replica in self._replicas.values()} - {""}
            self._overbooked_before = {disk for disk in disks if self._bytes_over(disk) > 0}
            self._begun = True

    @property
    def events(self) -> list[str]:
        """The disks that were overbooked, mended ones included, as texts in order of time."""
        with self._lock:
            return [str(event) for event in self._events]

    @property
    def bytes_over(self) -> int:
        """The bytes that were too many on these disks, each at its worst."""
        with self._lock:
            return sum(event.bytes_over for event in self._events)

    def note_node(self, kind: str, raw: Object, _at: float) -> None:
        """Follows a node of Longhorn."""
        with self._lock:
            if kind == _DELETED:
                self._nodes.pop(raw["metadata"]["name"], None)
            else:
                self._nodes[raw["metadata"]["name"]] = raw

    def note_replica(self, kind: str, raw: Object, at: float) -> None:
        """Follows a replica, and records what its placement leads to."""
        name = raw["metadata"]["name"]
        spec = raw["spec"]
        with self._lock:
            before = self._replicas.pop(name, None)
            disk = spec.get("diskID", "") if kind != _DELETED else ""
            placed = disk != "" and (before is None or before.disk != disk)
            if kind != _DELETED:
                moment = before.placed_at if before is not None and not placed else at
                self._replicas[name] = _Replica(spec["volumeName"], disk, int(spec["volumeSize"]), moment)
            if not self._begun:
                return
            for changed in {disk, before.disk if before is not None else ""} - {""}:
                if self._bytes_over(changed) <= 0:
                    self._open.pop(changed, None)
                    self._overbooked_before.discard(changed)
            if placed and disk not in self._overbooked_before and self._bytes_over(disk) > 0:
                self._record(disk, self._replicas[name])

    def _record(self, disk: str, placed: _Replica) -> None:
        event = self._open.get(disk)
        if event is None:
            event = _Event(self._place(disk), self._unlisted(disk))
            self._open[disk] = event
            self._events.append(event)
        if placed not in event.placements:
            event.placements.append(placed)
        event.bytes_over = max(event.bytes_over, self._bytes_over(disk))

    def _bytes_over(self, disk: str) -> int:
        limit = self._limits().get(disk)
        if limit is None:
            return 0
        return sum(replica.size for replica in self._replicas.values() if replica.disk == disk) - limit

    def _limits(self) -> dict[str, int]:
        return {disk: limit for node in self._nodes.values() for disk, (_, limit) in self._disks(node).items()}

    def _disks(self, node: Object) -> dict[str, tuple[str, int]]:
        return disk_limits(node, self._percentage)

    def _place(self, disk: str) -> str:
        return next(
            f"{name} {self._disks(node)[disk][0]}" for name, node in self._nodes.items() if disk in self._disks(node)
        )

    def _unlisted(self, disk: str) -> list[_Replica]:
        listed = {
            replica
            for node in self._nodes.values()
            for status in ((node.get("status") or {}).get("diskStatus") or {}).values()
            for replica in status.get("scheduledReplica") or {}
        }
        unlisted = [entry for name, entry in self._replicas.items() if entry.disk == disk and name not in listed]
        return sorted(unlisted, key=lambda entry: entry.placed_at)


class PlacementAudit:
    """What goes wrong with placements while it is entered."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._overbookings = Overbookings(rig.over_provisioning())
        self._misplacements_before = 0
        self._stack = ExitStack()
        self.started = 0.0  # when it began, in monotonic seconds

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            overbookings = self._overbookings
            for resource, note in (
                (LONGHORN_NODES, overbookings.note_node),
                (LONGHORN_REPLICAS, overbookings.note_replica),
            ):
                stack.enter_context(ObjectWatch(self._rig.cluster, resource.path(NAMESPACE), note))
            overbookings.begin()
            self._misplacements_before = self._rig.misplacements()
            self.started = time.monotonic()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def misplacements(self) -> int:
        """How many replicas were placed on another node than their volume's so far, mended ones included."""
        return self._rig.misplacements() - self._misplacements_before

    @property
    def overbooked(self) -> list[str]:
        """The disks that were overbooked so far, mended ones included, with the volumes that met."""
        return self._overbookings.events

    @property
    def bytes_overbooked(self) -> int:
        """The bytes that were too many on these disks, each at its worst."""
        return self._overbookings.bytes_over
