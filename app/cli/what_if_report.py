"""The report of `longhorn-extender what-if --html`: one file without scripts, which loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from app.api.page.rendering import environment
from app.cli.svg_plots import LinePlot, Series, SizeBar, line_plot, size_bar
from app.cli.what_if_tables import (
    expansion_text,
    outcome_text,
    pod_outcome_text,
    rebuild_lines,
    rebuild_start,
    scheduled_after,
    summary,
)
from app.schemas.what_if_answer import OrderAnswer, WhatIfAnswer
from scheduler_core.errors import CoreError
from scheduler_core.model.quantity import format_bytes
from scheduler_core.predict.situation import Origin

_TEMPLATE: Final = "what_if_report.html"
_GOOD: Final = "always"


@dataclass(frozen=True, slots=True)
class ReportHead:
    """What the prediction was asked."""

    verbs: Sequence[str]  # the options that change the cluster, as on the command line
    source: str  # the snapshot file, or the cluster
    time: datetime


@dataclass(frozen=True, slots=True)
class _DiskBars:
    """A disk before and after, as bars of one scale."""

    name: str
    before: SizeBar | None
    after: SizeBar
    before_text: str
    after_text: str
    limit_text: str


def write_report(file: Path, answer: WhatIfAnswer, head: ReportHead) -> None:
    """Writes the report of a prediction, or raises a CoreError if the file cannot be written."""
    try:
        file.write_text(render_report(answer, head), encoding="utf-8")
    except OSError as error:
        raise CoreError(f"--html {file}: cannot be written: {error.strerror}") from error


def render_report(answer: WhatIfAnswer, head: ReportHead) -> str:
    """Returns the report of a prediction as HTML."""
    pods = sorted(answer.pods, key=lambda pod: (pod.outcome == _GOOD, pod.outcome != "never"))
    context: Mapping[str, object] = {
        "answer": answer,
        "capitalize": _capitalize,
        "exact_bytes": format_bytes,
        "outcome": outcome_text,
        "pod_outcome": pod_outcome_text,
        "head": head,
        "title": f"What-if: {', '.join(head.verbs)}" if head.verbs else "What-if: the pods that wait",
        "summary": summary(answer),
        "changed_pods": [pod for pod in pods if pod.origin != Origin.WAITING.value],
        "waiting_pods": [pod for pod in pods if pod.origin == Origin.WAITING.value],
        "unlucky_pods": [pod for pod in pods if pod.unlucky_order],
        "disks": _disk_bars(answer),
        "plots": step_plots(answer.shown_order),
        "rebuilds": rebuild_lines(answer.rebuilds),
        "rebuild_start": rebuild_start,
        "expansion_text": expansion_text,
    }
    return environment().get_template(_TEMPLATE).render(context)


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def step_plots(order: OrderAnswer) -> list[LinePlot]:
    """Returns the plots of an order's steps, none without steps."""
    steps = order.steps
    if len(steps) < 2:  # one point is no course
        return []

    def series(name: str, field: str) -> Series:
        return Series(name, [(step.step, getattr(step, field)) for step in steps])

    pods = [series("waiting", "waiting"), series("to be evicted", "to_evict")]
    volumes = [series("misplaced volumes", "misplaced"), series("overbooked disks", "overbooked")]
    return [
        line_plot("Pods that wait, and pods that are still to be evicted", pods),
        line_plot("Misplaced volumes and overbooked disks", volumes),
        line_plot("Free space", [series("free bytes", "free_bytes")], format_bytes),
        line_plot("Bytes that rebuilds have copied", [series("copied bytes", "copied_bytes")], format_bytes),
    ]


def _disk_bars(answer: WhatIfAnswer) -> list[_DiskBars]:
    rows = []
    for disk in answer.disks:
        scale = max(disk.limit, disk.before or 0, disk.most)
        rows.append(
            _DiskBars(
                name=f"{disk.node}/{disk.disk}",
                before=None if disk.before is None else size_bar(disk.before, disk.before, disk.limit, scale),
                after=size_bar(disk.least, disk.most, disk.limit, scale),
                before_text="new" if disk.before is None else format_bytes(disk.before),
                after_text=scheduled_after(disk),
                limit_text=format_bytes(disk.limit),
            )
        )
    return rows
