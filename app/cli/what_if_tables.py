"""The tables of `longhorn-extender what-if`."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.list_output import plain_table, shorten
from app.schemas.what_if_answer import (
    DiskOutcomeAnswer,
    ExpansionAnswer,
    PodOutcomeAnswer,
    PodRemedyAnswer,
    RebuildAnswer,
    VolumeOutcomeAnswer,
    WhatIfAnswer,
)
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.predict.predicted_replicas import NO_DATA

_MAX_NODES: Final = 3
_MAX_REASONS: Final = 2


def print_prediction(answer: WhatIfAnswer, console: Console) -> None:
    """Prints what becomes of pods, drains, volumes and disks, without parts that have no entries."""
    if answer.pods:
        print_table(console, _pod_table(answer))
    for pod in answer.pods:
        _print_unlucky_order(console, pod)
    for entry in answer.shown_order.remedies:
        _print_remedy(console, entry)
    for name in answer.gone_pods:
        console.print(Text(f"pod {name} is gone: nothing creates it again"))
    if answer.drains:
        print_table(console, _drain_table(answer))
    for expansion in answer.expansions:
        console.print(Text(f"claim {expansion.claim} to {format_bytes(expansion.size)} {expansion_text(expansion)}"))
    if answer.volumes:
        print_table(console, _volume_table(answer))
    if answer.disks:
        print_table(console, _disk_table(answer))
    for line in rebuild_lines(answer.rebuilds):
        console.print(Text(line))
    for note in answer.notes:
        console.print(Text(f"note: {note}"))
    console.print()
    console.print(Text(summary(answer), style="bold"))


def expansion_text(expansion: ExpansionAnswer) -> str:
    if expansion.fits:
        return "fits"
    refusals = "; ".join(expansion.refusals)
    return f"is refused when it is updated ({expansion.refused_by}), and keeps its size: {refusals}"


def print_table(console: Console, table: Table) -> None:
    console.print(table)
    console.print()


def outcome_text(word: str, count: int, orders: int) -> str:
    return f"{word} ({count} of {orders})" if word == "usually" else word


def pod_outcome_text(pod: PodOutcomeAnswer, orders: int) -> str:
    text = outcome_text(pod.outcome, pod.placed, orders)
    if not pod.not_running:
        return text
    return "bound, never runs" if pod.not_running == orders else f"{text}, bound without running ({pod.not_running})"


def _pod_table(answer: WhatIfAnswer) -> Table:
    table = plain_table("POD", "FROM", "PLACED", "NODES", "OTHERWISE")
    for pod in answer.pods:
        table.add_row(
            pod.pod,
            pod.left or pod.origin,
            pod_outcome_text(pod, answer.orders),
            shorten([*pod.nodes], _MAX_NODES),
            shorten([*pod.reasons], _MAX_REASONS, "; "),
        )
    return table


def _print_unlucky_order(console: Console, pod: PodOutcomeAnswer) -> None:
    if pod.unlucky_order:
        order = ", ".join(f"{entry.pod} to {entry.node}" for entry in pod.unlucky_order)
        console.print(Text(f"{pod.pod} waits if pods are placed in this order: {order}"))
        console.print()


def _print_remedy(console: Console, entry: PodRemedyAnswer) -> None:
    console.print(Text(f"{entry.pod} would fit after this: {entry.remedy.text}"))
    for step in entry.remedy.steps:
        for command in step.commands:
            console.print(Text(f"   {command}"), soft_wrap=True)
    console.print()


def _drain_table(answer: WhatIfAnswer) -> Table:
    table = plain_table("DRAIN", "FINISHES", "HELD UP BY")
    for drain in answer.drains:
        outcome = outcome_text(drain.outcome, drain.finished, answer.orders)
        table.add_row(drain.node, outcome, shorten([*drain.blockers], _MAX_REASONS, "; "))
    return table


def _volume_table(answer: WhatIfAnswer) -> Table:
    table = plain_table("VOLUME", "REPLICAS", "LEAST HEALTHY", "IN THE END", "USED BY")
    for volume in answer.volumes:
        complete = answer.orders - volume.incomplete
        end = (
            f"incomplete in {volume.incomplete} of {format_count(answer.orders, 'order')}: {volume.problem}"
            if volume.incomplete
            else "complete"
        )
        end = f"incomplete: {volume.problem}" if not complete else end
        end = f"{end}, {rebuild_start(volume)}" if complete and volume.rebuild_after_seconds else end
        table.add_row(volume.name, str(volume.replicas), str(volume.least_healthy), end, ", ".join(volume.pods))
    return table


def _disk_table(answer: WhatIfAnswer) -> Table:
    table = plain_table("DISK", "SCHEDULED BEFORE", "AFTER")
    for disk in answer.disks:
        before = "new" if disk.before is None else format_bytes(disk.before)
        table.add_row(f"{disk.node}/{disk.disk}", before, scheduled_after(disk))
    return table


def scheduled_after(disk: DiskOutcomeAnswer) -> str:
    """Returns what a disk has scheduled in the end, and whether that is over its limit."""
    text = format_range(format_bytes(disk.least), format_bytes(disk.most))
    return f"{text}, over the limit" if disk.most > disk.limit else text


def format_range(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def rebuild_start(volume: VolumeOutcomeAnswer) -> str:
    return f"rebuilt after {format_duration(volume.rebuild_after_seconds)}"


def wait_line(seconds: float) -> str:
    """Returns for how long Longhorn rebuilds nothing, as a sentence."""
    wait = format_duration(seconds)
    return f"nothing is rebuilt for {wait} where a failed replica could be reused (replica-replenishment-wait-interval)"


def rebuild_lines(rebuilds: RebuildAnswer) -> list[str]:
    """Returns when rebuilds begin, and what they copy, as sentences."""
    lines = [wait_line(rebuilds.wait_seconds)] if rebuilds.wait_seconds else []
    return [*lines, _rebuild_line(rebuilds)] if rebuilds.most_bytes else lines


def _rebuild_line(rebuilds: RebuildAnswer) -> str:
    line = f"rebuilds copy {format_range(format_bytes(rebuilds.least_bytes), format_bytes(rebuilds.most_bytes))}"
    if rebuilds.least_seconds is None or rebuilds.most_seconds is None:
        return line
    least, most = (format_duration(each) for each in (rebuilds.least_seconds, rebuilds.most_seconds))
    return f"{line}, which takes {format_range(least, most)} one after the other"


def format_duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def summary(answer: WhatIfAnswer) -> str:
    """Returns the last line: what always succeeds, and whatever fails."""
    always = sum(pod.outcome == "always" for pod in answer.pods)
    pods = format_count(len(answer.pods), "pod is", "pods are")
    parts = [f"{always} of {pods} always placed, in {format_count(answer.orders, 'order')}"]
    if answer.drains:
        finished = sum(drain.outcome == "always" for drain in answer.drains)
        drains = format_count(len(answer.drains), "drain always finishes", "drains always finish")
        parts.append(f"{finished} of {drains}")
    faulted = sum(volume.problem == NO_DATA for volume in answer.volumes)
    incomplete = sum(volume.incomplete > 0 for volume in answer.volumes) - faulted
    failures = (
        (len(answer.gone_pods), "pod is gone", "pods are gone"),
        (
            sum(pod.not_running > 0 for pod in answer.pods),
            "pod is bound without running",
            "pods are bound without running",
        ),
        (sum(not expansion.fits for expansion in answer.expansions), "expansion is refused", "expansions are refused"),
        (
            faulted,
            "volume is faulted, without a replica to salvage",
            "volumes are faulted, without a replica to salvage",
        ),
        (incomplete, "volume lacks a replica in the end", "volumes lack replicas in the end"),
    )
    parts += [format_count(*failure) for failure in failures if failure[0]]
    return "; ".join(parts)
