"""The report of `longhorn-extender what-if --html`: one file without scripts, which loads nothing from elsewhere. Its
plots are the numbers that an inline SVG needs, in the units of its viewBox. The template draws them, so every text is
escaped there.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.api.page.rendering import environment
from app.cli import options, what_if
from scheduler_core import errors
from scheduler_core.model.quantity import format_bytes
from scheduler_core.predict.prediction import Certainty, OrderPoint
from scheduler_core.predict.situation import Origin

_TEMPLATE = "what_if_report.html"
_BAR_WIDTH = 240
# Of a plot and its axes, in the units of its viewBox.
_AXES = {"width": 640, "height": 190, "left": 74, "right": 628, "top": 14, "bottom": 160}
# Pairs of a step and the value, by step.
Values = Sequence[tuple[int, int]]


def write_report(file: Path, answer: what_if.WhatIf, verbs: Sequence[str], source: str) -> None:
    """Writes the report of a prediction, or raises a CoreError if the file cannot be written. `verbs` are the options that
    change the cluster, as on the command line; `source` is the snapshot file, or the cluster.
    """
    prediction = answer.prediction
    certainties = list(Certainty)
    pods = sorted(prediction.pods, key=lambda pod: certainties.index(pod.outcome), reverse=True)
    context: Mapping[str, object] = {
        "answer": answer,
        "prediction": prediction,
        "capitalize": lambda text: text[:1].upper() + text[1:],
        "exact_bytes": format_bytes,
        "outcome": what_if.outcome_text,
        "pod_outcome": what_if.pod_outcome_text,
        "source": source,
        "time": options.now(),
        "title": f"What-if: {', '.join(verbs)}" if verbs else "What-if: the pods that wait",
        "summary": what_if.summary(prediction),
        "changed_pods": [pod for pod in pods if pod.origin is not Origin.WAITING],
        "waiting_pods": [pod for pod in pods if pod.origin is Origin.WAITING],
        "unlucky_pods": [pod for pod in pods if pod.unlucky_order],
        "size_bar": size_bar,
        "scheduled_after": what_if.scheduled_after,
        "plots": step_plots(answer.order["steps"]),
        "rebuilds": list(what_if.rebuild_lines(answer)),
        "rebuild_start": what_if.rebuild_start,
        "expansion_text": what_if.expansion_text,
    }
    try:
        file.write_text(environment().get_template(_TEMPLATE).render(context), encoding="utf-8")
    except OSError as error:
        raise errors.CoreError(f"--html {file}: cannot be written: {error.strerror}") from error


def step_plots(steps: Sequence[OrderPoint]) -> list[dict[str, Any]]:
    """Returns the plots of an order's steps, none without steps."""
    if len(steps) < 2:  # one point is no course
        return []

    def values(field: str) -> Values:
        return [(step.step, getattr(step, field)) for step in steps]

    pods = {"waiting": values("waiting"), "to be evicted": values("to_evict")}
    volumes = {"misplaced volumes": values("misplaced"), "overbooked disks": values("overbooked")}
    return [
        line_plot("Pods that wait, and pods that are still to be evicted", pods),
        line_plot("Misplaced volumes and overbooked disks", volumes),
        line_plot("Free space", {"free bytes": values("free_bytes")}, format_bytes),
        line_plot("Bytes that rebuilds have copied", {"copied bytes": values("copied_bytes")}, format_bytes),
    ]


def line_plot(title: str, series: Mapping[str, Values], text: Callable[[int], str] = str) -> dict[str, Any]:
    """Returns the plot of at least one quantity by name, each with at least one value, which `text` prints. The vertical
    axis begins at the least value and ends at the greatest one.
    """
    steps = [step for each in series.values() for step, _ in each]
    values = [value for each in series.values() for _, value in each]
    floor, ceiling = min(values), max(min(values) + 1, *values)
    last = max(1, *steps)
    left, right, top, bottom = (_AXES[side] for side in ("left", "right", "top", "bottom"))

    def place(step: int, value: int) -> tuple[float, float]:
        across = left + (right - left) * step / last
        down = bottom - (bottom - top) * (value - floor) / (ceiling - floor)
        return round(across, 1), round(down, 1)

    def polyline(each: Values) -> str:
        # A value stays until the next step, so that the line goes across before it goes up or down.
        corners = [place(*each[0])]
        for _, (step, value) in pairwise(each):
            across, down = place(step, value)
            corners += [(across, corners[-1][1]), (across, down)]
        return " ".join(f"{across:g},{down:g}" for across, down in corners)

    def describe(name: str, each: Values) -> str:
        amounts = [value for _, value in each]
        first, end, least, most = map(text, (amounts[0], amounts[-1], min(amounts), max(amounts)))
        return f"{name}: {first} at first, {end} in the end, at least {least}, at most {most}."

    return {
        **_AXES,
        "title": title,
        "description": " ".join(describe(name, each) for name, each in series.items()),
        "lines": [(name, polyline(each)) for name, each in series.items()],
        # Where the values of an axis lie, and their texts.
        "x_ticks": [(place(step, floor)[0], str(step)) for step in sorted({0, last // 2, last})],
        "y_ticks": [(place(0, value)[1], text(value)) for value in (floor, ceiling)],
    }


def size_bar(least: int, most: int, limit: int, scale: int) -> dict[str, float]:
    """Returns the widths of a bar of bytes with its limit: `least` to `most`, over all orders; `scale` bytes take the
    whole width.
    """
    sizes = {"least": least, "most": most, "limit": limit}
    return {"width": _BAR_WIDTH} | {key: round(_BAR_WIDTH * size / max(scale, 1), 1) for key, size in sizes.items()}
