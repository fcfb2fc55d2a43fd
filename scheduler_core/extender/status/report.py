"""Everything of one state that the status page and `top` show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.capacity_report import largest_volumes
from scheduler_core.extender.status.node_rows import NodeCondition, NodeRow, SpaceTotal, node_rows
from scheduler_core.extender.status.waiting_rows import waiting_pods
from scheduler_core.model.kube import Pod


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A cluster at one time."""

    rows: tuple[NodeRow, ...] = ()  # the nodes, worst first
    space: SpaceTotal = field(default_factory=SpaceTotal)  # of all disks
    # By Longhorn's StorageClasses, as in `CapacityReport`.
    largest_volumes: Mapping[str, int] = field(default_factory=dict[str, int])
    waiting: tuple[Pod, ...] = ()  # pods with claims and without a node, the oldest first

    @property
    def disks(self) -> int:
        return sum(len(row.disks) for row in self.rows)

    @property
    def largest_volume(self) -> int | None:
        """Bytes of the largest volume that some StorageClass can get now, None without StorageClasses of Longhorn."""
        return max(self.largest_volumes.values(), default=None)

    def count(self, condition: NodeCondition) -> int:
        return sum(row.condition is condition for row in self.rows)


def status_report(state: ClusterState) -> StatusReport:
    """Reports a state. The cost grows with disks, and with nodes times different StorageClasses."""
    rows = node_rows(state)
    largest = largest_volumes(state.view)
    waiting = waiting_pods(state.view)
    return StatusReport(
        rows=rows,
        space=sum((row.space for row in rows), SpaceTotal()),
        largest_volumes=largest,
        waiting=waiting,
    )
