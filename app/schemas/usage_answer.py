"""The stable JSON of `longhorn-extender top` and `waiting`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION, RemedyAnswer
from scheduler_core.extender.capacity_report import DiskUsage
from scheduler_core.extender.placement_monitor import PlacementReport
from scheduler_core.extender.status.node_rows import NodeCondition, NodeRow, SpaceTotal, group_by_zone
from scheduler_core.extender.status.report import StatusReport
from scheduler_core.extender.status.row_order import DiskRow
from scheduler_core.extender.status.waiting_rows import WaitingRow

_CLOSED_BY = "why it takes no new replica; empty if it takes some"


class SpaceAnswer(Answer):
    """Space of one or more disks, in bytes."""

    maximum: int = Field(description="size")
    reserved: int = Field(description="what Longhorn leaves to other programs")
    scheduled: int = Field(description="sizes of the replicas and images in Longhorn's status")
    promised: int = Field(description="sizes that are not in that status yet")
    free: int = Field(
        description="what replicas may still take by the rules, closed or not; negative while the limit is exceeded. Of nodes and zones: "
        "the sum over the disks that take new replicas"
    )
    written: int = Field(description="what files take, those of other programs included")


class DiskUsageAnswer(Answer):
    """A disk."""

    node: str
    disk: str
    zone: str = Field(description="of its node; empty for none")
    closed_by: str = Field(serialization_alias="closedBy", description=_CLOSED_BY)
    space: SpaceAnswer


class NodeUsageAnswer(Answer):
    """A Longhorn node with all of its disks."""

    node: str
    zone: str = Field(description="empty for none")
    condition: str = Field(description="not ready, over limit, closed, partly closed, open or no disks")
    closed_by: str = Field(
        serialization_alias="closedBy", description="why the first disk that is closed takes no new replica"
    )
    demand: int = Field(description="bytes of volumes that will take space there and have no replica there yet")
    disks: int
    space: SpaceAnswer


class ZoneUsageAnswer(Answer):
    """The nodes of a zone."""

    zone: str = Field(description="empty for nodes without one")
    nodes: int
    space: SpaceAnswer


class SummaryAnswer(Answer):
    """The cluster in a few numbers."""

    nodes: int
    disks: int
    not_ready: int = Field(serialization_alias="notReady", description="nodes that Longhorn does not reach")
    over_limit: int = Field(
        serialization_alias="overLimit", description="ready nodes with a disk over Longhorn's limit"
    )
    closed: int = Field(description="other nodes whose disks all take no new replica")
    waiting: int = Field(description="pods with claims and without a node")
    bound_without_volumes: int = Field(
        serialization_alias="boundWithoutVolumes",
        description="bound pods of which a volume is not on their node; also for a moment after binding",
    )
    misplaced: int = Field(description="new volumes that Longhorn placed on another node than their pod's")
    largest_volumes: dict[str, int] = Field(
        serialization_alias="largestVolumes",
        description="by StorageClass, bytes of the largest new volume that fits now",
    )


class UsageListAnswer(Answer):
    """Nodes or disks in an order."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str
    summary: SummaryAnswer
    zones: list[ZoneUsageAnswer] = Field(description="by name; nodes without a zone come last")
    count: int = Field(description="of all selected nodes or disks, before --limit")
    items: list[NodeUsageAnswer] | list[DiskUsageAnswer]


class ClosestCandidateAnswer(Answer):
    """The node that comes closest to taking a pod."""

    node: str
    reason: str
    missing: int = Field(
        description="the least bytes that one disk would have to have more; 0 if it lacks something else"
    )
    detail: str


class WaitingPodAnswer(Answer):
    """A pod without a node."""

    pod: str = Field(description="namespace/name")
    since: str = Field(description="when it was created; empty if that is not known")
    size: int = Field(description="bytes of its Longhorn volumes")
    nodes: int = Field(description="number of all nodes")
    fits: int = Field(description="number of nodes that fit now; kube-scheduler has not retried the pod then")
    reasons: dict[str, int] = Field(description="numbers of the other nodes by reason, the most frequent first")
    closest: ClosestCandidateAnswer | None = Field(description="null if some node fits, or nothing can be said")
    remedy: RemedyAnswer | None = Field(
        default=None,
        description="the cheapest change that makes the pod fit; null if it fits, or none was sought or found",
    )
    error: str = Field(description="why nothing can be decided about the pod; empty if it can")


class WaitingListAnswer(Answer):
    """The pods that wait, the oldest first."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "WaitingPodList"
    count: int = Field(description="of all selected pods, before --limit")
    items: list[WaitingPodAnswer]


def summary_answer(report: StatusReport, placements: PlacementReport) -> SummaryAnswer:
    """Returns a cluster's numbers as data."""
    return SummaryAnswer(
        nodes=len(report.rows),
        disks=report.disks,
        not_ready=report.count(NodeCondition.NOT_READY),
        over_limit=report.count(NodeCondition.OVER_LIMIT),
        closed=report.count(NodeCondition.CLOSED),
        waiting=len(report.waiting),
        bound_without_volumes=len(placements.stuck),
        misplaced=len(placements.misplaced),
        largest_volumes=dict(sorted(report.largest_volumes.items())),
    )


def node_usage_list(summary: SummaryAnswer, selected: Sequence[NodeRow], shown: Sequence[NodeRow]) -> UsageListAnswer:
    """Returns nodes as data; `shown` are those of the selected ones that are listed."""
    return UsageListAnswer(
        kind="NodeUsageList",
        summary=summary,
        zones=_zones(selected),
        count=len(selected),
        items=[_node_usage(row) for row in shown],
    )


def disk_usage_list(
    summary: SummaryAnswer, nodes: Iterable[NodeRow], count: int, shown: Sequence[DiskRow]
) -> UsageListAnswer:
    """Returns disks as data; `nodes` are those of all selected disks, `count` is the number of these."""
    return UsageListAnswer(
        kind="DiskUsageList",
        summary=summary,
        zones=_zones(nodes),
        count=count,
        items=[_disk_usage(row) for row in shown],
    )


def _zones(rows: Iterable[NodeRow]) -> list[ZoneUsageAnswer]:
    return [
        ZoneUsageAnswer(zone=entry.zone, nodes=len(entry.rows), space=_space(entry.space))
        for entry in group_by_zone(rows)
    ]


def _space(space: SpaceTotal | DiskUsage) -> SpaceAnswer:
    return SpaceAnswer(
        maximum=space.maximum,
        reserved=space.reserved,
        scheduled=space.scheduled,
        promised=space.promised,
        free=space.free,
        written=space.written,
    )


def _node_usage(row: NodeRow) -> NodeUsageAnswer:
    return NodeUsageAnswer(
        node=row.name,
        zone=row.zone,
        condition=row.condition.text,
        closed_by=row.closed,
        demand=row.demand,
        disks=len(row.disks),
        space=_space(row.space),
    )


def _disk_usage(row: DiskRow) -> DiskUsageAnswer:
    usage = row.usage
    return DiskUsageAnswer(
        node=usage.node,
        disk=usage.disk,
        zone=row.zone,
        closed_by=usage.closed_by.detail if usage.closed_by is not None else "",
        space=_space(usage),
    )


def waiting_pod_answer(row: WaitingRow) -> WaitingPodAnswer:
    """Returns a waiting pod as data."""
    closest = row.closest
    return WaitingPodAnswer(
        pod=row.pod.key,
        since=row.pod.created,
        size=row.size,
        nodes=row.nodes,
        fits=row.fitting,
        reasons=dict(row.reasons),
        closest=None
        if closest is None
        else ClosestCandidateAnswer(
            node=closest.node, reason=closest.reason.text, missing=closest.missing, detail=closest.detail
        ),
        error=row.error,
    )
