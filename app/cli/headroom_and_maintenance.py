"""`longhorn-extender headroom`: how many more pods of a template fit; `longhorn-extender maintenance`: an order of nodes in which every
drain fits.
"""

from functools import partial
from typing import Annotated, Any

import typer

from app.cli import cluster_source, options, render, what_if_changes
from scheduler_core import errors
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.predict import predicted_replicas, prediction
from scheduler_core.predict.drain_order import DrainOrder, DrainStep, MaintenanceRequest, find_drain_order
from scheduler_core.predict.pod_headroom import ClosestNode, Headroom, closest_node, fill_with_pods, summarize_headroom
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.structs import replace

_DEFAULT_LIMIT = 1_000
_MAX_LIMIT = 100_000
_MAX_REFUSALS = 2


def headroom(
    *,
    template: Annotated[
        str, typer.Argument(metavar="TEMPLATE", help="A file with a pod or workload, sts/NAME, deploy/NAME, or a pod.")
    ],
    at_least: Annotated[int, typer.Option(metavar="N", min=0, help="How many must fit for exit code 0.")] = 1,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_LIMIT, help="How many pods are tried at most.")
    ] = _DEFAULT_LIMIT,
    orders: cluster_source.Orders,
    output: render.OutputOption = render.Output.TABLE,
    rules: cluster_source.Rules,
    query: cluster_source.Query,
    namespace: Annotated[str | None, options.namespace_option("Namespace of the workload or pod.")] = None,
) -> None:
    """Say how many more pods of a template fit.

    It also says what limits them. The pods are placed one after the other, in several random orders: kube-scheduler's
    filters, the extender's decision, and Longhorn's placement of the replicas. Pods that wait already come first.

    Nothing is changed in the cluster.

    Exit code 0: at least one pod fits in every order, or as many as --at-least says. 1: fewer. 2: bad input.
    """
    if at_least > limit:
        raise errors.CoreError(f"--at-least {at_least}: is more than --limit {limit}")
    query.check_standard_input(template)
    source = query.read(needs_nodes=True)
    workload, objects = what_if_changes.pod_template(template, namespace, source)
    cluster = cluster_source.predicted_cluster(replace(source, snapshot=objects))
    results = [
        fill_with_pods(cluster, workload, rules.options, cluster_source.seeded_choice(seed), limit)
        for seed in render.show_progress(orders.seeds, "Playing orders")
    ]
    result = summarize_headroom(results, limit)
    refused = result.tightest.refused
    closest = None if refused is None else closest_node(refused, rules.options)
    succeeds = result.least >= at_least
    notes = source.notes(drains=False)
    waiting = len(Situation(cluster).all_pods())
    if waiting:
        notes.insert(0, f"pods that wait already: {waiting}; they are placed first where they fit")
    asked = {"template": template, "orders": orders.orders, "seed": orders.seed, "limit": limit, "atLeast": at_least}
    data = {
        **asked,
        "least": result.least,
        "most": result.most,
        "limitReached": result.limit_reached,
        "succeeds": succeeds,
        "nodes": [{"node": name, "least": least, "most": most} for name, (least, most) in result.nodes.items()],
        "refusals": result.refusals,
        "refused": refused and {"pod": "/".join(refused.key), "reasons": refused.reasons, "closest": closest},
        "notes": notes,
    }

    def table(console: render.Console) -> None:
        _print_headroom(result, closest, console)
        most = result.limit if result.limit_reached else result.most
        least = "at least " if result.limit_reached else "" if result.least == most else f"{result.least} to "
        fit = format_count(most, f"more pod of {template} fits", f"more pods of {template} fit")
        console.end(notes, f"{least}{fit}, in {format_count(result.orders, 'order')}")

    render.show_answer("Headroom", data, output, table, succeeds=succeeds)


def _print_headroom(result: Headroom, closest: ClosestNode | None, console: render.Console) -> None:
    rows = ((name, render.format_range(str(least), str(most))) for name, (least, most) in result.nodes.items())
    console.section(("NODE", "PODS"), rows)
    refused = result.tightest.refused
    if refused is None:
        return
    first = prediction.refusal_text(refused.reasons)
    console.write(f"{'/'.join(refused.key)} does not fit after {format_count(result.least, 'pod')}: {first}")
    if closest is not None:
        lacks = f", {format_bytes(closest.missing)} are missing" if closest.missing else ""
        detail = f" ({closest.detail})" if closest.detail else ""
        console.write(f"closest: {closest.node}: {closest.reason}{lacks}{detail}")
    others = [text for text in result.refusals if text != first]
    for text in others[:_MAX_REFUSALS]:
        console.write(f"in {result.refusals[text]} of {format_count(result.orders, 'order')}: {text}")


_DEFAULT_TRIES = 50
_MAX_PROBLEMS = 2


def maintenance(
    *,
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE]...", help="The nodes to maintain; all of them by default.")
    ] = None,
    orders: cluster_source.Orders,
    tries: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many orders of nodes may end in a dead end.")
    ] = _DEFAULT_TRIES,
    rebuild_rate: cluster_source.RebuildRateOption = None,
    output: render.OutputOption = render.Output.TABLE,
    rules: cluster_source.Rules,
    query: cluster_source.Query,
) -> None:
    """Find an order of nodes in which every drain fits.

    One node after the other is drained, maintained and uncordoned. Its pods go where the extender lets them and stay there, and
    Longhorn rebuilds replicas meanwhile. A drain fits if it finishes, every pod that it moves runs elsewhere, and no attached volume
    is without a healthy replica, in many random orders of events.

    Nothing is changed in the cluster.

    Exit code 0: all nodes can be drained in the order that is printed. 1: there is no such order, or none was found. 2: bad input.
    """
    rate = cluster_source.read_rate(rebuild_rate)
    source = query.read(needs_nodes=True)
    snapshot = source.snapshot
    names = tuple(dict.fromkeys(nodes or sorted(snapshot.nodes or snapshot.longhorn_nodes)))
    with render.progress_of("Draining nodes", len(names)) as report:
        request = MaintenanceRequest(
            start=Situation(cluster_source.predicted_cluster(source), parallel=source.parallel_sets),
            nodes=names,
            options=rules.options,
            courses=[partial(_choose, seed) for seed in orders.seeds],
            tries=tries,
            report=report,
        )
        order = find_drain_order(request)
    notes = [cluster_source.CHANCE, *source.notes(drains=True)]
    data = {
        "orders": order.courses,
        "seed": orders.seed,
        "rate": rate,
        "succeeds": order.complete,
        "exhaustive": order.exhaustive,
        "tries": order.dead_ends,
        "steps": [_step_data(step, rate) for step in order.steps],
        "failed": order.failed,
        "notes": notes,
    }

    def table(console: render.Console) -> None:
        _print_order(order, rate, console)
        console.end(notes, _order_summary(order))

    render.show_answer("Maintenance", data, output, table, succeeds=order.complete)


def _choose(seed: str, node: str) -> predicted_replicas.Choose:
    return cluster_source.seeded_choice(f"{seed}/{node}")


def _step_data(step: DrainStep, rate: int | None) -> dict[str, Any]:
    least, most = step.copied_bytes
    return {
        "node": step.node,
        "leastPods": step.pods[0],
        "mostPods": step.pods[1],
        "leastBytes": least,
        "mostBytes": most,
        # One rebuild after the other.
        "leastSeconds": None if rate is None else least / rate,
        "mostSeconds": None if rate is None else most / rate,
        "leastReducedVolumes": step.reduced_volumes[0],
        "mostReducedVolumes": step.reduced_volumes[1],
        "waitSeconds": float(step.rebuild_wait),
    }


def _print_order(order: DrainOrder, rate: int | None, console: render.Console) -> None:
    headers = ("", "DRAIN", "PODS", "FEWER REPLICAS", "REBUILDS", *(["TAKES"] if rate else []))
    console.section(headers, ([str(n), *_step_cells(step, rate)] for n, step in enumerate(order.steps, start=1)))
    wait = max((step.rebuild_wait for step in order.steps), default=0)
    if wait:
        console.write(f"after each drain {cluster_source.wait_line(wait)}")
        console.print()
    rows = []
    for entry in order.failed:
        after = "after these, and even first" if entry.first_problems else "after these"
        when = "in any order" if entry.blocked else after if order.steps else "first"
        problems = render.shorten(entry.problems or entry.first_problems, _MAX_PROBLEMS, "; ")
        rows.append((entry.node, when, problems))
    console.section(("NODE", "WHEN", "DOES NOT FIT BECAUSE"), rows)


def _step_cells(step: DrainStep, rate: int | None) -> list[str]:
    cells = [
        step.node,
        render.format_range(*map(str, step.pods)),
        render.format_range(*map(str, step.reduced_volumes)),
        render.format_range(*map(format_bytes, step.copied_bytes)),
    ]
    takes = [render.format_duration(size / rate) for size in step.copied_bytes] if rate else []
    return [*cells, render.format_range(*takes)] if takes else cells


def _order_summary(order: DrainOrder) -> str:
    total = format_count(len(order.steps) + len(order.failed), "node")
    drained = f"{len(order.steps)} of {total} can be drained"
    orders = format_count(order.courses, "order")
    if order.complete:
        return f"{drained} in this order, in {orders} of events"
    longest = f"{drained} one after the other, in {orders} of events"
    if order.exhaustive:
        return f"{longest}; every order was tried, so that no other one drains more"
    if any(entry.blocked for entry in order.failed):
        longest = f"{longest}; there is no order of all nodes"
    return f"{longest}; no longer order was found in {format_count(order.dead_ends, 'try', 'tries')}"
