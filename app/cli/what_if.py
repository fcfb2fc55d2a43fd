"""`longhorn-extender what-if`: what a drain, loss or change leads to.

Data flow: the cluster, and the changes in the order of the options → the situation after them → its orders, each played once →
what they have in common, and the steps of one order → JSON, tables, or a report (`app/cli/what_if_html.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from app.cli import cluster_source, render, what_if_changes
from app.cli.options import namespace_option
from scheduler_core import errors
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.predict import predicted_replicas, timeline
from scheduler_core.predict.prediction import (
    Certainty,
    DiskOutcome,
    FewerReplicas,
    OrderHistory,
    PodOutcome,
    Prediction,
    predict,
)
from scheduler_core.predict.prediction_input import ExpansionOutcome, Situation
from scheduler_core.structs import Struct

_ORDERS = cluster_source.Orders(20)
# Each is searched for about a tenth of a second.
_MAX_REMEDIES = 3
# More remedies of nodes that must not be changed are not passed over.
_MAX_AVOIDED = 10
_MAX_NODES = 3
_MAX_REASONS = 2
_ORDER_KEY = "app.cli.what_if.order"
# The other parameters are named as their options.
_OPTIONS = {"setting": "set"}


class CommandWithOrder(TyperCommand):
    """A command that knows in which order its options were given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments, and stores the names of the options given in the context."""
        _, _, parameters = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[_ORDER_KEY] = [parameter.name for parameter in parameters]
        return super().parse_args(ctx, args)


class Changes(Struct, frozen=True):
    """What is changed in the cluster, in the order of the options."""

    drain: Annotated[
        list[str] | None, typer.Option(metavar="NODE[,NODE]", help="Drain nodes as `kubectl drain` does.")
    ] = None
    lose: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE|NODE/DISK|zone=NAME", help="Lose nodes, a disk, or all nodes of a zone for good."),
    ] = None
    scale: Annotated[
        list[str] | None,
        typer.Option(metavar="sts/NAME=N", help="Scale a StatefulSet, Deployment (deploy/) or ReplicaSet (rs/)."),
    ] = None
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="SETTING=VALUE", help="Give a Longhorn setting another value.")
    ] = None
    expand: Annotated[list[str] | None, typer.Option(metavar="CLAIM=SIZE", help="Expand a PersistentVolumeClaim.")] = (
        None
    )
    add_node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="like=NODE,count=N,disks=SIZE,SIZE",
            help="Add nodes with empty disks, otherwise like another one; each part may be left out.",
        ),
    ] = None
    add_disk: Annotated[
        list[str] | None, typer.Option(metavar="NODE=SIZE", help="Add an empty disk to a Longhorn node.")
    ] = None
    apply: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Apply the objects of a file; - for standard input.")
    ] = None

    def in_order(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Returns each option with its text; `names` are the options in the order in which they were given."""
        texts = {name: iter(getattr(self, name) or ()) for name in self.__struct_fields__}
        return [(name, next(texts[name])) for name in names if name in texts]


COMMAND_CLASS = CommandWithOrder


class WhatIf(Struct, frozen=True):
    """What some changes of the cluster lead to."""

    prediction: Prediction
    order: dict[str, Any]  # the first one in which something fails, or the first one, as JSON has it
    seed: int
    rate: int | None  # bytes per second of a rebuild, None if it was not given
    notes: Sequence[str]  # what was not taken into account

    def data(self) -> dict[str, Any]:
        """Returns what JSON has."""
        prediction = self.prediction
        least, most = prediction.copied_bytes
        return {
            "orders": prediction.orders,
            "seed": self.seed,
            "succeeds": prediction.succeeds,
            "pods": prediction.pods,
            "gonePods": prediction.gone_pods,
            "drains": prediction.drains,
            "expansions": prediction.expansions,
            "rebuilds": {
                "leastBytes": least,
                "mostBytes": most,
                "waitSeconds": prediction.rebuild_wait,
                "rate": self.rate,
                # One rebuild after the other.
                "leastSeconds": None if self.rate is None else least / self.rate,
                "mostSeconds": None if self.rate is None else most / self.rate,
            },
            "disks": prediction.disks,
            "volumes": prediction.volumes,
            "shownOrder": self.order,
            "notes": self.notes,
        }


def what_if(
    *,
    invocation: typer.Context,
    changes: Changes,
    orders: cluster_source.Orders = _ORDERS,
    rebuild_rate: cluster_source.RebuildRateOption = None,
    output: render.OutputOption = render.Output.TABLE,
    rules: cluster_source.Rules,
    query: cluster_source.Query,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a report with plots, one HTML file.")
    ] = None,
    namespace: Annotated[str | None, namespace_option("Namespace of claims and workloads.")] = None,
) -> None:
    """Predict what changes of the cluster lead to.

    The changes are made in the order of the options; then the extender decides about every pod without a node, pod by pod, in many
    random orders. The output says which pods find a node, and what Longhorn rebuilds.

    Nothing is changed in the cluster.

    Exit code 0: everything always gets its place. 1: something does not. 2: bad input.
    """
    query.check_standard_input(*(changes.apply or ()))
    rate = cluster_source.read_rate(rebuild_rate)
    verbs = changes.in_order(invocation.meta[_ORDER_KEY])
    if html is not None:
        _check_place(html)
    # The nodes may be those of --apply.
    source = query.read(needs_nodes=not changes.apply)
    reader = what_if_changes.ChangeReader(source, namespace)
    before = Situation(cluster_source.predicted_cluster(source), parallel=source.parallel_sets)
    after = before
    for change in [change for verb in verbs for change in reader.read(*verb)]:
        after = change(after)
    options = rules.options
    seeds = orders.seeds
    results = [
        timeline.run_order(after, options, cluster_source.seeded_choice(seed))
        for seed in render.show_progress(seeds, "Playing orders")
    ]
    prediction = predict(before, after, results)
    unlucky = next((number for number, result in enumerate(results) if result.fails), None)
    number = unlucky or 0
    history = OrderHistory(after.cluster)
    # A table has no steps.
    if output is not render.Output.TABLE or html is not None:
        # The order that is shown is played again.
        timeline.run_order(after, options, cluster_source.seeded_choice(seeds[number]), history.observe)
    remedies = [] if unlucky is None else _remedies(results[number], after, options, query.longhorn_namespace)
    notes = (cluster_source.CHANCE, *source.notes(drains=bool(after.drained)), *reader.skipped)
    order = {
        # From 0; it determines the order together with the seed.
        "number": number,
        "fails": unlucky is not None,
        # Of a long order not every step.
        "steps": tuple(history.points()),
        "remedies": remedies,
    }
    answer = WhatIf(prediction, order, orders.seed, rate, notes)
    if html is not None:
        # Its import brings the template engine, which no other output needs.
        from app.cli.what_if_html import write_report

        lines = [f"--{_OPTIONS.get(name, name.replace('_', '-'))} {text}" for name, text in verbs]
        write_report(html, answer, lines, query.snapshot or "the live cluster")
    render.show_answer(
        "WhatIf", answer.data(), output, lambda console: print_prediction(answer, console), succeeds=prediction.succeeds
    )


def _check_place(file: Path) -> None:
    """Raises a CoreError if no report can be written to a file, before anything is predicted."""
    try:
        problem = "it is a folder" if file.is_dir() else ""
        problem = problem or ("" if file.parent.is_dir() else f"there is no folder {file.parent}")
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        raise errors.CoreError(f"--html {file}: cannot be written: {problem}")


def _remedies(
    result: timeline.OrderResult, after: Situation, options: FilterOptions, longhorn_namespace: str
) -> list[dict[str, Any]]:
    """Returns what would help the first pods that no node fits at the end of an order, by a short search that changes no node
    which is drained or lost.
    """
    from app.cli.remedies_and_rebalance import EXPLAIN_DECISIONS
    from app.schemas.remedies_answer import remedy_answer
    from scheduler_core.predict.remedies import find_remedies

    avoided = {*after.drained, *after.lost}
    limit = 1 + min(len(avoided), _MAX_AVOIDED)
    answers: list[dict[str, Any]] = []
    for key in sorted(result.unplaced_pods)[:_MAX_REMEDIES]:
        pod = result.cluster.snapshot.pods[key]
        remedies = find_remedies(pod, result.cluster, options, limit, EXPLAIN_DECISIONS).remedies
        remedy = next((remedy for remedy in remedies if remedy.node not in avoided), None)
        if remedy is not None:
            answer = remedy_answer(result.cluster, remedy, longhorn_namespace)
            answers.append({"pod": "/".join(key), "remedy": answer})
    return answers


def print_prediction(answer: WhatIf, console: render.Console) -> None:
    """Prints what becomes of pods, drains, volumes and disks, without parts that have no entries."""
    prediction = answer.prediction
    orders = prediction.orders
    pods = (
        (
            pod.pod,
            pod.left or pod.origin,
            pod_outcome_text(pod, orders),
            render.shorten([*pod.nodes], _MAX_NODES),
            _shorten_reasons(pod.reasons),
        )
        for pod in prediction.pods
    )
    console.section(("POD", "FROM", "PLACED", "NODES", "OTHERWISE"), pods)
    for pod in prediction.pods:
        if pod.unlucky_order:
            order = ", ".join(f"{name} to {node}" for name, node in pod.unlucky_order)
            console.write(f"{pod.pod} waits if pods are placed in this order: {order}")
            console.print()
    for entry in answer.order["remedies"]:
        console.write(f"{entry['pod']} would fit after this: {entry['remedy'].text}")
        console.commands(entry["remedy"].commands, indent="   ")
        console.print()
    for name in prediction.gone_pods:
        console.write(f"pod {name} is gone: nothing creates it again")
    drains = (
        (entry.node, outcome_text(entry.outcome, entry.finished, orders), _shorten_reasons(entry.blockers))
        for entry in prediction.drains
    )
    console.section(("DRAIN", "FINISHES", "HELD UP BY"), drains)
    for expansion in prediction.expansions:
        console.write(f"claim {expansion.claim} to {format_bytes(expansion.size)} {expansion_text(expansion)}")
    headers = ("VOLUME", "REPLICAS", "LEAST HEALTHY", "IN THE END", "USED BY")
    console.section(headers, (_volume_cells(volume, orders) for volume in prediction.volumes))
    console.section(("DISK", "SCHEDULED BEFORE", "AFTER"), map(_disk_cells, prediction.disks))
    for line in rebuild_lines(answer):
        console.write(line)
    console.end(answer.notes, summary(prediction))


def expansion_text(expansion: ExpansionOutcome) -> str:
    if not expansion.refusals:
        return "fits"
    refusals = "; ".join(expansion.refusals)
    return f"is refused when it is updated ({expansion.refused_by}), and keeps its size: {refusals}"


def outcome_text(certainty: Certainty, count: int, orders: int) -> str:
    return f"{certainty} ({count} of {orders})" if certainty is Certainty.USUALLY else certainty


def pod_outcome_text(pod: PodOutcome, orders: int) -> str:
    """Returns in how many orders a pod is placed, and whether it then runs."""
    text = outcome_text(pod.outcome, pod.placed, orders)
    if not pod.not_running:
        return text
    return "bound, never runs" if pod.not_running == orders else f"{text}, bound without running ({pod.not_running})"


def _shorten_reasons(reasons: Mapping[str, int]) -> str:
    return render.shorten([*reasons], _MAX_REASONS, "; ")


def _volume_cells(volume: FewerReplicas, orders: int) -> Sequence[str]:
    end = "complete"
    if volume.incomplete:
        part = "" if volume.incomplete == orders else f" in {volume.incomplete} of {format_count(orders, 'order')}"
        end = f"incomplete{part}: {volume.problem}"
    if volume.rebuild_after_seconds and volume.incomplete < orders:
        end = f"{end}, {rebuild_start(volume)}"
    return volume.name, str(volume.replicas), str(volume.least_healthy), end, ", ".join(volume.pods)


def _disk_cells(disk: DiskOutcome) -> Sequence[str]:
    before = "new" if disk.before is None else format_bytes(disk.before)
    return f"{disk.node}/{disk.disk}", before, scheduled_after(disk)


def scheduled_after(disk: DiskOutcome) -> str:
    """Returns what a disk has scheduled in the end, and whether that is over its limit."""
    text = render.format_range(format_bytes(disk.least), format_bytes(disk.most))
    return f"{text}, over the limit" if disk.most > disk.limit else text


def rebuild_start(volume: FewerReplicas) -> str:
    return f"rebuilt after {render.format_duration(volume.rebuild_after_seconds)}"


def rebuild_lines(answer: WhatIf) -> Iterator[str]:
    """Yields when rebuilds begin, and what they copy, as sentences."""
    if answer.prediction.rebuild_wait:
        yield cluster_source.wait_line(answer.prediction.rebuild_wait)
    least, most = answer.prediction.copied_bytes
    if not most:
        return
    line = f"rebuilds copy {render.format_range(format_bytes(least), format_bytes(most))}"
    if answer.rate is None:
        yield line
    else:
        takes = render.format_range(
            render.format_duration(least / answer.rate), render.format_duration(most / answer.rate)
        )
        yield f"{line}, which takes {takes} one after the other"


def summary(prediction: Prediction) -> str:
    """Returns the last line: what always succeeds, and whatever fails."""
    always = sum(pod.outcome is Certainty.ALWAYS for pod in prediction.pods)
    pods = format_count(len(prediction.pods), "pod is", "pods are")
    parts = [f"{always} of {pods} always placed, in {format_count(prediction.orders, 'order')}"]
    if prediction.drains:
        finished = sum(drain.outcome is Certainty.ALWAYS for drain in prediction.drains)
        drains = format_count(len(prediction.drains), "drain always finishes", "drains always finish")
        parts.append(f"{finished} of {drains}")
    faulted = sum(volume.problem == predicted_replicas.NO_DATA for volume in prediction.volumes)
    incomplete = sum(volume.incomplete > 0 for volume in prediction.volumes) - faulted
    failures = (
        (len(prediction.gone_pods), "pod is gone", "pods are gone"),
        (
            sum(pod.not_running > 0 for pod in prediction.pods),
            "pod is bound without running",
            "pods are bound without running",
        ),
        (
            sum(bool(expansion.refusals) for expansion in prediction.expansions),
            "expansion is refused",
            "expansions are refused",
        ),
        (
            faulted,
            "volume is faulted, without a replica to salvage",
            "volumes are faulted, without a replica to salvage",
        ),
        (incomplete, "volume lacks a replica in the end", "volumes lack replicas in the end"),
    )
    parts += [format_count(*failure) for failure in failures if failure[0]]
    return "; ".join(parts)
