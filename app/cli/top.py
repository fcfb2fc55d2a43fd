"""`longhorn-extender top`: the cluster in a few numbers, and nodes or disks with their space, worst first. Data flow: a
cluster or a snapshot file → the state of decisions → the rows of the status page (`scheduler_core.extender.status`) → a
table or JSON. No extender needs to run.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.explain_subject import read_source
from app.cli.list_output import ListOutput, show_list
from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    LonghornNamespaceOption,
    SnapshotOption,
    now,
)
from app.cli.refresh import DEFAULT_INTERVAL, IntervalOption, WatchOption, check_watch, refresh
from app.schemas.usage_answer import UsageListAnswer, disk_usage_list, node_usage_list, summary_answer
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.cluster.view import View
from scheduler_core.errors import CoreError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.status.node_rows import NodeRow, group_by_zone, select_rows
from scheduler_core.extender.status.placement_problems import placement_problems
from scheduler_core.extender.status.report import status_report
from scheduler_core.extender.status.row_order import DiskRow, RowOrder, disk_rows, sort_disks, sort_nodes

if TYPE_CHECKING:
    from rich.console import Console


class Subject(StrEnum):
    """What each row is about."""

    NODES = "nodes"
    DISKS = "disks"


class Group(StrEnum):
    """What rows are grouped by."""

    ZONE = "zone"


def top(
    subject: Annotated[Subject, typer.Argument(help="What each row is about.")] = Subject.NODES,
    snapshot: SnapshotOption = None,
    sort: Annotated[
        RowOrder,
        typer.Option(
            "--sort", help="What comes first: the worst, the least free bytes, or the most of another number."
        ),
    ] = RowOrder.WORST,
    zone: Annotated[
        str | None, typer.Option("--zone", metavar="NAME", help="Only nodes of this zone; '' for those without one.")
    ] = None,
    group_by: Annotated[
        Group | None, typer.Option("--group-by", help="Rows of one zone together, with its sum.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="The most rows; default: all.")
    ] = None,
    watch: WatchOption = False,  # noqa: FBT002 # --watch
    interval: IntervalOption = DEFAULT_INTERVAL,
    output: Annotated[
        ListOutput, typer.Option("--output", "-o", help="How to print; name prints the nodes.")
    ] = ListOutput.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Show how full nodes or disks are, the worst first.

    Sizes are those that decisions read: written, scheduled, promised (not in Longhorn's status yet), free by the rules,
    and reserved. The first lines say how many pods wait, and the largest volume that fits. Nothing is asked of a running
    extender.

    Exit code 0: printed. 2: bad input, or no cluster.
    """
    if snapshot == "-" and watch:
        raise CoreError("standard input (-) can be read only once; --watch reads again and again")

    def read() -> UsageListAnswer:
        source = read_source(snapshot, kubeconfig, context, longhorn_namespace)
        state = ClusterState.of(View.of(source.snapshot, now()))
        return _Selection(subject, sort, zone, limit, grouped=group_by is not None).answer(state, best_effort)

    if watch:
        check_watch(table=output is ListOutput.TABLE)
        refresh(lambda: partial(_print, read(), grouped=group_by is not None), interval)
        return
    answer = read()
    names = (f"node/{entry.node}" for entry in answer.items)
    show_list(answer.model_dump(by_alias=True), output, partial(_print, answer, grouped=group_by is not None), names)


class _Selection:
    """Which rows are shown, and in which order."""

    def __init__(
        self, subject: Subject, order: RowOrder, zone: str | None, limit: int | None, *, grouped: bool
    ) -> None:
        self._subject = subject
        self._order = order
        self._zone = zone
        self._limit = limit
        self._grouped = grouped

    def answer(self, state: ClusterState, best_effort: BestEffort) -> UsageListAnswer:
        report = status_report(state)
        required = best_effort is BestEffort.REQUIRE
        summary = summary_answer(report, placement_problems(state, require_best_effort=required))
        rows = select_rows(report.rows, zone=self._zone)
        if self._zone is not None and not rows:
            raise CoreError(f"--zone '{self._zone}': no Longhorn node is in it")
        if self._subject is Subject.DISKS:
            disks = self._disks(rows)
            return disk_usage_list(summary, rows, len(disks), disks[: self._limit])
        return node_usage_list(summary, rows, self._nodes(rows)[: self._limit])

    def _nodes(self, rows: tuple[NodeRow, ...]) -> list[NodeRow]:
        groups = [entry.rows for entry in group_by_zone(rows)] if self._grouped else [rows]
        return [row for group in groups for row in sort_nodes(group, self._order)]

    def _disks(self, rows: tuple[NodeRow, ...]) -> list[DiskRow]:
        groups = [entry.rows for entry in group_by_zone(rows)] if self._grouped else [rows]
        return [disk for group in groups for disk in sort_disks(disk_rows(group), self._order)]


def _print(answer: UsageListAnswer, console: Console, *, grouped: bool) -> None:
    from app.cli.usage_tables import print_usage

    print_usage(answer, console, grouped=grouped)
