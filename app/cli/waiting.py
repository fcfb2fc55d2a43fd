"""`longhorn-extender waiting`: pods that wait for a node, and why.

Data flow: a cluster or a snapshot file → kube-scheduler's own filters, then the decision of `/filter`, for each waiting pod → rows.
No extender needs to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.options import now
from app.cli.query import ClusterSource, Query, Rules
from app.cli.render import ListOutput, Refreshing, Table, document, show
from app.cli.subjects import ExplainedPod
from app.cli.terminal import show_progress
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Competing, FilterOptions
from scheduler_core.decide.kube_scheduler_filters import kube_scheduler_refusals, pod_claims
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.longhorn.replenish_wait import parse_time
from scheduler_core.model.kube import Pod
from scheduler_core.model.quantity import format_age, format_bytes
from scheduler_core.monitor.report import (
    NearestNode,
    WaitingRow,
    candidate_nodes,
    waiting_pods,
    waiting_row,
)

if TYPE_CHECKING:
    from app.cli.console import EscapingConsole
    from app.schemas.remedies_answer import RemedyAnswer

SOME_WAIT: Final = 1
_DEFAULT_REMEDIES: Final = 10
_MAX_REASONS: Final = 2


@dataclass(frozen=True, slots=True)
class WaitingPods:
    """The pods that wait, the oldest first, with the remedies that were found."""

    count: int  # of all selected pods, before --limit
    rows: Sequence[WaitingRow]
    remedies: dict[str, RemedyAnswer]

    def data(self) -> dict[str, Any]:
        """Returns what JSON has."""
        items = [
            {
                "pod": row.pod.key,
                "since": row.pod.created,
                "size": row.size,
                "nodes": row.nodes,
                "fits": row.fitting,
                "reasons": row.reasons,
                "closest": row.closest,
                "remedy": self.remedies.get(row.pod.key),
                "error": row.error,
            }
            for row in self.rows
        ]
        return document("WaitingPodList", {"count": self.count, "items": items})


def waiting(
    *,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="The most pods; default: all.")
    ] = None,
    remedies: Annotated[
        int,
        typer.Option(
            "--remedies",
            metavar="N",
            min=0,
            help="For how many pods that fit nowhere, the oldest first, the cheapest remedy is sought.",
        ),
    ] = _DEFAULT_REMEDIES,
    refreshing: Refreshing,
    output: Annotated[
        ListOutput, typer.Option("--output", "-o", help="How to print; name prints the pods.")
    ] = ListOutput.TABLE,
    rules: Rules,
    query: Query,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the pods; default: all.")
    ] = None,
) -> None:
    """Show the pods with claims that wait for a node.

    It shows since when and why they wait, the closest node and the cheapest remedy. Each pod is decided about as by
    explain: kube-scheduler's filters, then Longhorn's disks, with the space that other pods' volumes will take. No
    extender needs to run.

    Exit code 0: no pod waits. 1: some pod waits. 2: bad input, or no cluster.
    """
    query.check_standard_input(repeats=refreshing.watch)

    def read() -> WaitingPods:
        source = query.read()
        answer = _answer(source, rules.options, namespace, limit)
        return replace(answer, remedies=_remedies(answer.rows, source, rules.options, remedies))

    if refreshing.watch:
        refreshing.run(lambda: _table(read()), output)
        return
    answer = read()
    show(answer.data(), output, _table(answer), (f"pod/{row.pod.name}" for row in answer.rows))
    if answer.count:
        raise typer.Exit(SOME_WAIT)


def _answer(source: ClusterSource, options: FilterOptions, namespace: str | None, limit: int | None) -> WaitingPods:
    state = ClusterState.of(View.of(source.snapshot, now()))
    contenders = Competing.without_offers(state)
    pods = [pod for pod in waiting_pods(state.view) if namespace in (None, pod.namespace)]

    def row(pod: Pod) -> WaitingRow:
        refused = _refusals(pod, source, candidate_nodes(state.view))
        return waiting_row(pod, state, options, contenders, refused)

    rows = [row(pod) for pod in show_progress(pods[:limit], "Deciding about pods")]
    return WaitingPods(len(pods), rows, {})


def _refusals(pod: Pod, source: ClusterSource, names: list[str]) -> dict[str, str]:
    objects = source.objects
    claims = pod_claims(pod, source.snapshot, objects.affinities)
    refusals = kube_scheduler_refusals(pod, names, objects.state, claims)
    return {name: refusal.text for name, refusal in refusals.items()}


def _remedies(
    rows: Sequence[WaitingRow], source: ClusterSource, options: FilterOptions, count: int
) -> dict[str, RemedyAnswer]:
    from app.cli.remedies_command import cheapest_remedies

    stuck = [row.pod for row in rows if not row.fitting and not row.error][:count]
    remedies = {}
    for pod in show_progress(stuck, "Searching for remedies"):
        for remedy in cheapest_remedies(ExplainedPod(pod, source.snapshot), source, options, 1):
            remedies[pod.key] = remedy
    return remedies


def _table(answer: WaitingPods) -> Table:
    return lambda console: print_waiting(answer, console, now())


def print_waiting(answer: WaitingPods, console: EscapingConsole, now: datetime) -> None:
    """Prints one row per waiting pod; ages are those at `now`."""
    if not answer.rows:
        console.write("no pod with claims waits for a node")
        return
    headers = ("POD", "SINCE", "AGE", "SIZE", "FITS", "WHY", "CLOSEST NODE", "REMEDY")
    console.print(console.table_of(headers, _cells(answer, now)))
    if len(answer.rows) < answer.count:
        console.print()
        console.write(f"{answer.count - len(answer.rows)} more; see --limit")


def _cells(answer: WaitingPods, now: datetime) -> Iterator[Sequence[str]]:
    for row in answer.rows:
        created = parse_time(row.pod.created)
        remedy = answer.remedies.get(row.pod.key)
        yield (
            row.pod.key,
            row.pod.created or "-",
            format_age((now - created).total_seconds()) if created is not None else "-",
            format_bytes(row.size) if row.size else "-",
            f"{row.fitting} of {row.nodes}",
            _why(row),
            _closest(row.closest),
            remedy.text if remedy is not None else "-",
        )


def _why(row: WaitingRow) -> str:
    if row.error:
        return row.error
    if row.fitting:
        return "fits now; kube-scheduler has not tried again"
    shown = list(row.reasons.items())[:_MAX_REASONS]
    others = sum(row.reasons.values()) - sum(count for _, count in shown)
    return "; ".join([*(f"{reason} ({count})" for reason, count in shown), *([f"others ({others})"] if others else [])])


def _closest(closest: NearestNode | None) -> str:
    if closest is None:
        return "-"
    lack = f"lacks {format_bytes(closest.missing)}" if closest.missing else closest.reason.text
    return f"{closest.node}: {lack}"
