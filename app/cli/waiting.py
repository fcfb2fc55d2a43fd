"""`longhorn-extender waiting`: pods that wait for a node, and why.

Data flow: a cluster or a snapshot file → kube-scheduler's own filters, then the decision of `/filter`, for each waiting pod → rows.
No extender needs to run.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.explain_subject import ClusterSource, ExplainedPod, read_source
from app.cli.list_output import ListOutput, show_list
from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    LonghornNamespaceOption,
    PackingOption,
    SnapshotOption,
    filter_options,
    now,
)
from app.cli.predictions import show_progress
from app.cli.refresh import DEFAULT_INTERVAL, IntervalOption, WatchOption, check_watch, refresh
from app.schemas.usage_answer import WaitingListAnswer, waiting_pod_answer
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.cluster.view import View
from scheduler_core.errors import CoreError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import Competing, FilterOptions, Packing
from scheduler_core.extender.kube_scheduler_filters import kube_scheduler_refusals, pod_claims
from scheduler_core.extender.status.waiting_rows import WaitingRow, candidate_nodes, waiting_pods, waiting_row
from scheduler_core.model.kube import Pod

if TYPE_CHECKING:
    from rich.console import Console

SOME_WAIT: Final = 1
_DEFAULT_REMEDIES: Final = 10


def waiting(
    snapshot: SnapshotOption = None,
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
    watch: WatchOption = False,  # noqa: FBT002 # --watch
    interval: IntervalOption = DEFAULT_INTERVAL,
    output: Annotated[
        ListOutput, typer.Option("--output", "-o", help="How to print; name prints the pods.")
    ] = ListOutput.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the pods; default: all.")
    ] = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Show the pods with claims that wait for a node.

    It shows since when and why they wait, the closest node and the cheapest remedy. Each pod is decided about as by
    explain: kube-scheduler's filters, then Longhorn's disks, with the space that other pods' volumes will take. No
    extender needs to run.

    Exit code 0: no pod waits. 1: some pod waits. 2: bad input, or no cluster.
    """
    if snapshot == "-" and watch:
        raise CoreError("standard input (-) can be read only once; --watch reads again and again")
    options = filter_options(best_effort, packing)

    def read() -> WaitingListAnswer:
        source = read_source(snapshot, kubeconfig, context, longhorn_namespace)
        answer = _answer(source, options, namespace, limit)
        return _with_remedies(answer, source, options, longhorn_namespace, remedies)

    if watch:
        check_watch(table=output is ListOutput.TABLE)
        refresh(lambda: partial(_print, read()), interval)
        return
    answer = read()
    names = (f"pod/{entry.pod.partition('/')[2]}" for entry in answer.items)
    show_list(answer.model_dump(by_alias=True), output, partial(_print, answer), names)
    if answer.count:
        raise typer.Exit(SOME_WAIT)


def _answer(
    source: ClusterSource, options: FilterOptions, namespace: str | None, limit: int | None
) -> WaitingListAnswer:
    state = ClusterState.of(View.of(source.snapshot, now()))
    contenders = Competing.without_offers(state)
    pods = [pod for pod in waiting_pods(state.view) if namespace in (None, pod.namespace)]

    def row(pod: Pod) -> WaitingRow:
        refused = _refusals(pod, source, candidate_nodes(state.view))
        return waiting_row(pod, state, options, contenders, refused)

    items = [waiting_pod_answer(row(pod)) for pod in show_progress(pods[:limit], "Deciding about pods")]
    return WaitingListAnswer(count=len(pods), items=items)


def _with_remedies(
    answer: WaitingListAnswer, source: ClusterSource, options: FilterOptions, longhorn_namespace: str, count: int
) -> WaitingListAnswer:
    from app.cli.remedies_command import cheapest_remedies

    items = list(answer.items)
    stuck = [index for index, entry in enumerate(items) if not entry.fits and not entry.error][:count]
    for index in show_progress(stuck, "Searching for remedies"):
        namespace, _, name = items[index].pod.partition("/")
        key = (namespace, name)
        pod = ExplainedPod(source.snapshot.pods[key], source.snapshot)
        remedies = cheapest_remedies(pod, source, options, longhorn_namespace, 1)
        items[index] = items[index].model_copy(update={"remedy": remedies[0] if remedies else None})
    return answer.model_copy(update={"items": items})


def _refusals(pod: Pod, source: ClusterSource, names: list[str]) -> dict[str, str]:
    objects = source.objects
    claims = pod_claims(pod, source.snapshot, objects.affinities)
    refusals = kube_scheduler_refusals(pod, names, objects.state, claims)
    return {name: refusal.text for name, refusal in refusals.items()}


def _print(answer: WaitingListAnswer, console: Console) -> None:
    from app.cli.usage_tables import print_waiting

    print_waiting(answer, console, now())
