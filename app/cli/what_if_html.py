"""The report of `longhorn-extender what-if --html`: one file without scripts, which loads nothing from elsewhere. Its
plots are the numbers that an inline SVG needs, in the units of its viewBox. The template draws them, so every text is
escaped there.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from app.api.page.rendering import environment
from app.cli import options, what_if
from scheduler_core import errors
from scheduler_core.model.quantity import format_bytes
from scheduler_core.predict.prediction import Certainty, OrderPoint
from scheduler_core.predict.prediction_input import Origin
from scheduler_core.structs import Struct

_TEMPLATE = "what_if_report.html"
WIDTH = 640
HEIGHT = 190
_LEFT = 74
_RIGHT = 12
_TOP = 14
_BOTTOM = 30
_BAR_WIDTH = 240
_NICE = (1, 2, 5)
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


def step_plots(steps: Sequence[OrderPoint]) -> "list[LinePlot]":
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


class LinePlot(Struct, frozen=True):
    """Several quantities over the same steps."""

    title: str
    description: str  # what it shows, in words
    lines: list[tuple[str, str]]  # the name of each quantity, and the points of its polyline
    # Where the values of the horizontal and of the vertical axis lie, and their texts.
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


class SizeBar(Struct, frozen=True):
    """A quantity as the widths of a bar."""

    least: float  # of the bar's filled part, over all orders
    most: float  # of the bar's filled part, over all orders
    limit: float  # where the limit is
    width: int = _BAR_WIDTH


def line_plot(title: str, series: Mapping[str, Values], text: Callable[[int], str] = str) -> LinePlot:
    """Returns the plot of at least one quantity by name, each with at least one value, which `text` prints. The vertical
    axis begins at 0, or below the least value if that is more than half of the greatest.
    """
    steps = [step for each in series.values() for step, _ in each]
    values = [value for each in series.values() for _, value in each]
    floor, ceiling = _bounds(min(values), max(values))
    last = max(1, *steps)

    def place(step: int, value: int) -> tuple[float, float]:
        across = _LEFT + (WIDTH - _LEFT - _RIGHT) * step / last
        down = HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - floor) / (ceiling - floor)
        return round(across, 1), round(down, 1)

    middle = floor + (ceiling - floor) // 2
    y_values = sorted({floor, ceiling} | ({middle} if (ceiling - floor) % 2 == 0 else set()))
    return LinePlot(
        title=title,
        description=" ".join(_describe(name, each, text) for name, each in series.items()),
        lines=[(name, _polyline([place(*value) for value in each])) for name, each in series.items()],
        x_ticks=[(place(step, floor)[0], str(step)) for step in sorted({0, last // 2, last})],
        y_ticks=[(place(0, value)[1], text(value)) for value in y_values],
    )


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    corners = [points[0]]
    for before, after in pairwise(points):
        if after[1] != before[1]:
            corners += [(after[0], before[1]), after]
    if corners[-1] != points[-1]:
        corners.append(points[-1])
    return " ".join(f"{across:g},{down:g}" for across, down in corners)


def _describe(name: str, series: Values, text: Callable[[int], str]) -> str:
    values = [value for _, value in series]
    return (
        f"{name}: {text(values[0])} at first, {text(values[-1])} in the end, "
        f"at least {text(min(values))}, at most {text(max(values))}."
    )


def _bounds(least: int, most: int) -> tuple[int, int]:
    """Returns where the vertical axis begins and ends; the end is greater."""
    if least <= most - least:
        return 0, _round_up(max(most, 1))
    grain = _round_up(max(most - least, 1))
    floor = least // grain * grain
    return floor, floor + grain * -(-(most - floor) // grain) if most > floor else floor + grain


def _round_up(value: int) -> int:
    """Returns the least round number that is not below a positive number. Round are 1, 2, 5, 10, 20 and so on; bytes
    are round in their binary unit.

    >>> _round_up(1), _round_up(37), _round_up(3 * 1024**3)
    (1, 50, 5368709120)
    """
    unit = 1
    while value >= unit * 1024 and unit < 1024**4:
        unit *= 1024
    power = unit
    while True:
        for factor in _NICE:
            if factor * power >= value:
                return factor * power
        power *= 10


def size_bar(least: int, most: int, limit: int, scale: int) -> SizeBar:
    """Returns a bar of bytes with its limit; the whole width stands for `scale` bytes."""
    widths = [round(_BAR_WIDTH * value / max(scale, 1), 1) for value in (least, most, limit)]
    return SizeBar(widths[0], widths[1], widths[2])
