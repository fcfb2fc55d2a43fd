"""`longhorn-extender remedies`: the cheapest changes that make a pod fit. `explain`, `waiting` and `what-if` print some, too."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.options import namespace_option
from app.cli.query import ClusterSource, ExplainedPod, Query, Rules, predicted_cluster, select_pod
from app.cli.render import Output, OutputOption, show_answer, show_status
from app.schemas.remedies_answer import RemedyAnswer, remedy_answer
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.decide.filter import candidate_volumes, check_existing_volumes
from scheduler_core.errors import CoreError
from scheduler_core.model.quantity import format_count
from scheduler_core.predict.remedies import MAX_DECISIONS, find_remedies
from scheduler_core.values import replace

if TYPE_CHECKING:
    from app.cli.console import EscapingConsole

_MAX_REMEDIES: Final = 100
_DEFAULT_LIMIT: Final = 5
# Each takes about 1 ms in a cluster of 100 nodes. `explain` is asked why a pod waits, so its remedy must not take long.
EXPLAIN_DECISIONS: Final = 100


def remedies(
    *,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="POD",
            help="NAME, NAMESPACE/NAME or pod/NAME of a pod; deploy/NAME, sts/NAME, ... for the first pod of a workload that waits; or "
            "a file with a pod or a workload.",
        ),
    ],
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_REMEDIES, help="How many remedies are printed at most.")
    ] = _DEFAULT_LIMIT,
    output: OutputOption = Output.TABLE,
    rules: Rules,
    query: Query,
    namespace: Annotated[str | None, namespace_option("Namespace of the pod.")] = None,
) -> None:
    """Find the cheapest changes of the cluster that make a pod fit.

    Uncordon a node, allow scheduling, add tags, free or add space, move a replica. Each is checked by the decision of /filter on the
    changed cluster before it is printed.

    Nothing is changed in the cluster.

    Exit code 0: the pod fits as it is. 1: it does not, and the remedies are printed, if there are any. 2: bad input.
    """
    query.check_standard_input(subject)
    source = query.read(needs_nodes=True)
    pod = select_pod(subject, namespace, source)
    if pod.snapshot.disk_schedules:
        raise CoreError("remedies cannot predict a cluster whose disks are allocated through DiskSchedules")
    cluster = predicted_cluster(replace(source, snapshot=pod.snapshot))
    with show_status("Searching for remedies"):
        volumes = candidate_volumes(pod.pod, cluster.node_names, cluster.state.view, rules.options)
        check_existing_volumes(volumes.resolution)
        search = find_remedies(pod.pod, cluster, rules.options, limit)
    answers = [remedy_answer(cluster, remedy, query.longhorn_namespace) for remedy in search.remedies]
    data = {"pod": pod.pod.key, "fits": search.fits, "remedies": answers, "complete": search.complete}

    def table(console: EscapingConsole) -> None:
        if search.fits:
            console.write(f"pod {pod.pod.key} fits as it is")
        else:
            _print_remedies(pod.pod.key, answers, console, complete=search.complete)

    show_answer("Remedies", data, output, table, succeeds=search.fits)


def _print_remedies(pod: str, answers: Collection[RemedyAnswer], console: EscapingConsole, *, complete: bool) -> None:
    for number, remedy in enumerate(answers, start=1):
        console.write(f"{number}. {remedy.text}", "bold")
        console.commands(remedy.commands, indent="   ")
    if answers:
        console.print()
    if not complete:
        console.write(
            "not searched further: so many changed clusters were decided already; there may be cheaper remedies"
        )
    count = format_count(len(answers), "remedy", "remedies")
    shown = f"{count}, the cheapest first" if answers else "no remedy was found"
    console.write(f"pod {pod} fits nowhere; {shown}", "bold")


def cheapest_remedies(
    pod: ExplainedPod, source: ClusterSource, options: FilterOptions, limit: int
) -> tuple[RemedyAnswer, ...]:
    """Returns the cheapest remedies, none in a cluster that cannot be predicted. The search for one is short."""
    if pod.snapshot.disk_schedules:
        return ()
    cluster = predicted_cluster(replace(source, snapshot=pod.snapshot))
    decisions = EXPLAIN_DECISIONS if limit == 1 else MAX_DECISIONS
    remedies = find_remedies(pod.pod, cluster, options, limit, decisions).remedies
    return tuple(remedy_answer(cluster, remedy, source.query.longhorn_namespace) for remedy in remedies)
