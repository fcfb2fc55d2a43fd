"""Options, cluster, orders and progress, shared by commands that predict."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from app.cli.explain_subject import ClusterSource
from app.cli.options import now
from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.extender.kube_scheduler_filters import compares_resources
from scheduler_core.model.quantity import parse_bytes
from scheduler_core.predict.predicted_cluster import PredictedCluster, predicted_state
from scheduler_core.predict.predicted_replicas import Choose

DEFAULT_ORDERS: Final = 20
_NO_CONTROLLERS: Final = "no pod in the source has a controller, so that a drain moves none"
NO_RESOURCES: Final = "requests of CPU and memory are not compared: no node says what is allocatable"
_MAX_ORDERS: Final = 10_000
_Step = TypeVar("_Step")

OrdersOption = Annotated[
    int, typer.Option(metavar="N", min=1, max=_MAX_ORDERS, help="How many orders of events are played.")
]
SeedOption = Annotated[int, typer.Option(help="Determines the orders; the same seed gives the same output.")]
HtmlOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a report with plots, one HTML file.")]
RebuildRateOption = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Bytes per second of a rebuild, such as 100Mi, to tell its time.")
]


def order_seeds(seed: int, orders: int) -> list[str]:
    return [f"{seed}/{number}" for number in range(orders)]


def seeded_choice(seed: str) -> Choose:
    """Returns what makes the random choices of a prediction."""
    choose: Choose = random.Random(seed).randrange  # noqa: S311 # a seed is reproducible, not secret
    return choose


def predicted_cluster(source: ClusterSource) -> PredictedCluster:
    """Returns the cluster of a source, as predictions change it.

    Raises:
        WhatIfError: the source is a cluster that cannot be predicted
    """
    return PredictedCluster(predicted_state(source.snapshot, now()), source.objects.state, source.objects.affinities)


def read_rate(text: str | None) -> int | None:
    """Returns the bytes per second of `--rebuild-rate`, None without it; raises a CoreError if it is not positive."""
    return None if text is None else positive_bytes(text, "--rebuild-rate")


def positive_bytes(text: str, subject: str) -> int:
    """Returns the bytes of a quantity; `subject` is the option as written.

    Raises:
        CoreError: it is no quantity, or not positive
    """
    try:
        size = parse_bytes(text)
    except QuantityError as error:
        raise CoreError(f"{subject}: {error}") from error
    if size <= 0:
        raise CoreError(f"{subject}: must be positive")
    return size


def source_notes(source: ClusterSource, *, drains: bool) -> list[str]:
    """Returns what the source lacks for a prediction, with or without drains."""
    notes = [] if compares_resources(source.objects.state) else [NO_RESOURCES]
    pods = source.snapshot.pods.values()
    if drains and pods and not any(pod.owner for pod in pods):
        notes.append(_NO_CONTROLLERS)
    return notes


@contextmanager
def progress_of(total: int, text: str) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how much of a total is done; yields a function that takes the number."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import Progress

    from app.cli.console import EscapingConsole

    with Progress(console=EscapingConsole(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total)
        yield lambda done: progress.update(task, completed=done)


def show_progress(steps: Sequence[_Step], text: str) -> Iterable[_Step]:
    """Shows on a terminal how many steps are done."""
    if not sys.stderr.isatty():
        return steps
    from rich.progress import track

    from app.cli.console import EscapingConsole

    return track(steps, text, console=EscapingConsole(stderr=True), transient=True)


@contextmanager
def show_status(text: str) -> Iterator[None]:
    """Shows on a terminal that a computation of unknown length runs."""
    if not sys.stderr.isatty():
        yield
        return
    from app.cli.console import EscapingConsole

    with EscapingConsole(stderr=True).status(text):
        yield
