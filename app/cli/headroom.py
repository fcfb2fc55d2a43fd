"""`longhorn-extender headroom`: how many more pods of a template fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.query import Orders, Query, Rules, predicted_cluster, seeded_choice
from app.cli.render import Output, OutputOption, document, format_range, show, show_progress
from app.cli.what_if_changes import pod_template
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.errors import CoreError
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.predict.cluster_additions import Workload
from scheduler_core.predict.pod_headroom import ClosestNode, Headroom, closest_node, fill_with_pods, summarize_headroom
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.prediction import refusal_text
from scheduler_core.predict.situation import Situation

if TYPE_CHECKING:
    from app.cli.console import EscapingConsole

FAILS: Final = 1
_DEFAULT_LIMIT: Final = 1_000
_MAX_LIMIT: Final = 100_000
_MAX_REFUSALS: Final = 2


def headroom(
    *,
    template: Annotated[
        str, typer.Argument(metavar="TEMPLATE", help="A file with a pod or workload, sts/NAME, deploy/NAME, or a pod.")
    ],
    at_least: Annotated[int, typer.Option(metavar="N", min=0, help="How many must fit for exit code 0.")] = 1,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_LIMIT, help="How many pods are tried at most.")
    ] = _DEFAULT_LIMIT,
    orders: Orders,
    output: OutputOption = Output.TABLE,
    rules: Rules,
    query: Query,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the workload or pod.")
    ] = None,
) -> None:
    """Say how many more pods of a template fit.

    It also says what limits them. The pods are placed one after the other, in several random orders: kube-scheduler's
    filters, the extender's decision, and Longhorn's placement of the replicas. Pods that wait already come first.

    Nothing is changed in the cluster.

    Exit code 0: at least one pod fits in every order, or as many as --at-least says. 1: fewer. 2: bad input.
    """
    if at_least > limit:
        raise CoreError(f"--at-least {at_least}: is more than --limit {limit}")
    query.check_standard_input(template)
    source = query.read(needs_nodes=True)
    workload, objects = pod_template(template, namespace, source)
    cluster = predicted_cluster(replace(source, snapshot=objects))
    result, closest = _predict(cluster, workload, rules.options, orders.seeds, limit)
    succeeds = result.least >= at_least
    notes = [*_notes(cluster), *source.notes(drains=False)]
    asked = {"template": template, "orders": orders.orders, "seed": orders.seed, "limit": limit, "atLeast": at_least}
    data = {**asked, **_data(result, closest, succeeds=succeeds), "notes": notes}

    def table(console: EscapingConsole) -> None:
        _print(result, closest, console)
        console.end(notes, _summary(result, template))

    show(document("Headroom", data), output, table)
    if not succeeds:
        raise typer.Exit(FAILS)


def _predict(
    cluster: PredictedCluster, template: Workload, options: FilterOptions, seeds: Sequence[str], limit: int
) -> tuple[Headroom, ClosestNode | None]:
    results = [
        fill_with_pods(cluster, template, options, seeded_choice(seed), limit)
        for seed in show_progress(seeds, "Playing orders")
    ]
    result = summarize_headroom(results, limit)
    refused = result.tightest.refused
    return result, None if refused is None else closest_node(refused, options)


def _notes(cluster: PredictedCluster) -> list[str]:
    waiting = len(Situation(cluster).all_pods())
    return [f"pods that wait already: {waiting}; they are placed first where they fit"] if waiting else []


def _data(result: Headroom, closest: ClosestNode | None, *, succeeds: bool) -> dict[str, Any]:
    refused = result.tightest.refused
    return {
        "least": result.least,
        "most": result.most,
        "limitReached": result.limit_reached,
        "succeeds": succeeds,
        "nodes": [{"node": name, "least": least, "most": most} for name, (least, most) in result.nodes.items()],
        "refusals": result.refusals,
        "refused": None
        if refused is None
        else {"pod": "/".join(refused.key), "reasons": refused.reasons, "closest": closest},
    }


def _print(result: Headroom, closest: ClosestNode | None, console: EscapingConsole) -> None:
    rows = ((name, format_range(str(least), str(most))) for name, (least, most) in result.nodes.items())
    console.section(("NODE", "PODS"), rows)
    refused = result.tightest.refused
    if refused is None:
        return
    first = refusal_text(refused.reasons)
    console.write(f"{'/'.join(refused.key)} does not fit after {format_count(result.least, 'pod')}: {first}")
    if closest is not None:
        lacks = f", {format_bytes(closest.missing)} are missing" if closest.missing else ""
        detail = f" ({closest.detail})" if closest.detail else ""
        console.write(f"closest: {closest.node}: {closest.reason}{lacks}{detail}")
    others = [text for text in result.refusals if text != first]
    for text in others[:_MAX_REFUSALS]:
        console.write(f"in {result.refusals[text]} of {format_count(result.orders, 'order')}: {text}")


def _summary(result: Headroom, template: str) -> str:
    most = result.limit if result.limit_reached else result.most
    least = "at least " if result.limit_reached else "" if result.least == most else f"{result.least} to "
    fit = format_count(most, f"more pod of {template} fits", f"more pods of {template} fit")
    return f"{least}{fit}, in {format_count(result.orders, 'order')}"
