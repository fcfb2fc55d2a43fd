"""`longhorn-extender what-if`: what a drain, loss or change leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from app.cli.explain import Output, show
from app.cli.explain_subject import ClusterSource, read_source
from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    LonghornNamespaceOption,
    PackingOption,
    SnapshotOption,
    check_standard_input,
    filter_options,
    now,
)
from app.cli.pod_remedies import remedy_after
from app.cli.predictions import (
    DEFAULT_ORDERS,
    HtmlOption,
    OrdersOption,
    RebuildRateOption,
    SeedOption,
    order_seeds,
    predicted_cluster,
    read_rate,
    seeded_choice,
    show_progress,
    source_notes,
)
from app.cli.what_if_changes import ChangeReader, parallel_sets
from app.schemas.what_if_answer import NOTES, OrderAnswer, PodRemedyAnswer, WhatIfAnswer, order_answer, what_if_answer
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions, Packing
from scheduler_core.predict.prediction import OrderHistory, Prediction, predict, unlucky_order
from scheduler_core.predict.situation import Change, Situation
from scheduler_core.predict.timeline import OrderResult, run_order

FAILS: Final = 1
# Each is searched for about a tenth of a second.
_MAX_REMEDIES: Final = 3
_ORDER_KEY: Final = "app.cli.what_if.order"
# The other parameters are named as their options.
_OPTIONS: Final = {"setting": "set"}


LoseOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NODE|NODE/DISK|zone=NAME", help="Lose nodes, a disk, or all nodes of a zone for good."),
]
AddNodeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="like=NODE,count=N,disks=SIZE,SIZE",
        help="Add nodes with empty disks, otherwise like another one; each part may be left out.",
    ),
]


class CommandWithOrder(TyperCommand):
    """A command that knows in which order its options were given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments, and stores the names of the options given in the context."""
        _, _, parameters = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[_ORDER_KEY] = [parameter.name for parameter in parameters]
        return super().parse_args(ctx, args)


COMMAND_CLASS: Final = CommandWithOrder


def what_if(
    invocation: typer.Context,
    snapshot: SnapshotOption = None,
    drain: Annotated[
        list[str] | None, typer.Option(metavar="NODE[,NODE]", help="Drain nodes as `kubectl drain` does.")
    ] = None,
    lose: LoseOption = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(metavar="sts/NAME=N", help="Scale a StatefulSet, Deployment (deploy/) or ReplicaSet (rs/)."),
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="SETTING=VALUE", help="Give a Longhorn setting another value.")
    ] = None,
    expand: Annotated[
        list[str] | None, typer.Option(metavar="CLAIM=SIZE", help="Expand a PersistentVolumeClaim.")
    ] = None,
    add_node: AddNodeOption = None,
    add_disk: Annotated[
        list[str] | None, typer.Option(metavar="NODE=SIZE", help="Add an empty disk to a Longhorn node.")
    ] = None,
    apply: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Apply the objects of a file; - for standard input.")
    ] = None,
    orders: OrdersOption = DEFAULT_ORDERS,
    seed: SeedOption = 0,
    rebuild_rate: RebuildRateOption = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    html: HtmlOption = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of claims and workloads.")
    ] = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Predict what changes of the cluster lead to.

    The changes are made in the order of the options; then the extender decides about every pod without a node, pod by pod, in many
    random orders. The output says which pods find a node, and what Longhorn rebuilds.

    Nothing is changed in the cluster.

    Exit code 0: everything always gets its place. 1: something does not. 2: bad input.
    """
    texts = {
        "drain": drain,
        "lose": lose,
        "scale": scale,
        "setting": setting,
        "expand": expand,
        "add_node": add_node,
        "add_disk": add_disk,
        "apply": apply,
    }
    check_standard_input(snapshot, *(apply or ()))
    rate = read_rate(rebuild_rate)
    verbs = _in_order(invocation.meta[_ORDER_KEY], texts)
    _check_place(html)
    # The nodes may be those of --apply.
    source = read_source(snapshot, kubeconfig, context, longhorn_namespace, needs_nodes=not apply)
    reader = ChangeReader(source, namespace)
    changes = reader.read(verbs)
    options = filter_options(best_effort, packing)
    prediction, order, notes = _predict(source, changes, options, order_seeds(seed, orders), longhorn_namespace)
    answer = what_if_answer(prediction, order, seed, rate, (*notes, *reader.notes))
    _report(html, answer, _command_line(verbs), snapshot)
    _print(answer, output)
    if not answer.succeeds:
        raise typer.Exit(FAILS)


def _check_place(file: Path | None) -> None:
    """Raises a CoreError if no report can be written to a file, before anything is predicted; None is for no report."""
    if file is None:
        return
    try:
        problem = "it is a folder" if file.is_dir() else ""
        problem = problem or ("" if file.parent.is_dir() else f"there is no folder {file.parent}")
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        raise CoreError(f"--html {file}: cannot be written: {problem}")


def _report(file: Path | None, answer: WhatIfAnswer, verbs: Sequence[str], snapshot: str | None) -> None:
    if file is None:
        return
    # Its import brings the template engine, which no other output needs.
    from app.cli.what_if_report import ReportHead, write_report

    write_report(file, answer, ReportHead(verbs, snapshot or "the live cluster", now()))


def _in_order(names: Sequence[str], texts: Mapping[str, list[str] | None]) -> list[tuple[str, str]]:
    """Returns verbs with their texts, as ordered on the command line."""
    texts_by_verb = {name: iter(values or ()) for name, values in texts.items()}
    return [(name, next(texts_by_verb[name])) for name in names if name in texts_by_verb]


def _command_line(verbs: Sequence[tuple[str, str]]) -> list[str]:
    return [f"--{_OPTIONS.get(name, name.replace('_', '-'))} {text}" for name, text in verbs]


def _predict(
    source: ClusterSource,
    changes: Sequence[Change],
    options: FilterOptions,
    seeds: Sequence[str],
    longhorn_namespace: str,
) -> tuple[Prediction, OrderAnswer, tuple[str, ...]]:
    before, after = _situations(source, changes)
    results = _play(after, options, seeds)
    order = _shown_order(after, options, results, seeds)
    remedies = [] if not order.fails else _remedies(results[order.number], after, options, longhorn_namespace)
    order = order.model_copy(update={"remedies": remedies})
    return predict(before, after, results), order, (*NOTES, *source_notes(source, drains=bool(after.drained)))


def _situations(source: ClusterSource, changes: Sequence[Change]) -> tuple[Situation, Situation]:
    before = Situation(predicted_cluster(source), parallel=parallel_sets(source))
    after = before
    for change in changes:
        after = change.apply(after)
    return before, after


def _play(after: Situation, options: FilterOptions, seeds: Sequence[str]) -> list[OrderResult]:
    return [run_order(after, options, seeded_choice(seed)) for seed in show_progress(seeds, "Playing orders")]


def _remedies(
    result: OrderResult, after: Situation, options: FilterOptions, longhorn_namespace: str
) -> list[PodRemedyAnswer]:
    """Returns what would help the first pods that no node fits at the end of an order."""
    avoided = {*after.drained, *after.lost}
    answers: list[PodRemedyAnswer] = []
    for key in sorted(result.unplaced_pods)[:_MAX_REMEDIES]:
        remedy = remedy_after(result.cluster, key, avoided, options, longhorn_namespace)
        if remedy is not None:
            answers.append(PodRemedyAnswer(pod="/".join(key), remedy=remedy))
    return answers


def _shown_order(
    after: Situation, options: FilterOptions, results: Sequence[OrderResult], seeds: Sequence[str]
) -> OrderAnswer:
    """Plays the first failing order again, or the first one where none fails, and returns its steps."""
    unlucky = unlucky_order(results)
    number = unlucky or 0
    history = OrderHistory(after.cluster)
    run_order(after, options, seeded_choice(seeds[number]), history.observe)
    return order_answer(number, fails=unlucky is not None, points=history.points())


def _print(answer: WhatIfAnswer, output: Output) -> None:
    def table(console: Any) -> None:
        from app.cli.what_if_tables import print_prediction

        print_prediction(answer, console)

    show(answer.model_dump(by_alias=True), output, table)
