"""What the commands share that predict: their options, their cluster, their orders and their progress."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, TypeVar

import typer
from rpds import HashTrieMap

from app.cli.explain_subject import ClusterSource
from app.cli.options import now
from scheduler_core.cooperative import Cooperative, run_to_end
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster, predicted_state

DEFAULT_ORDERS: Final = 20
_MAX_ORDERS: Final = 10_000
_Step = TypeVar("_Step")

OrdersOption = Annotated[
    int, typer.Option(metavar="N", min=1, max=_MAX_ORDERS, help="How many orders of events are played.")
]
SeedOption = Annotated[int, typer.Option(help="Determines the orders; the same seed gives the same output.")]
RebuildRateOption = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Bytes per second of a rebuild, such as 100Mi, to tell its time.")
]


def order_seeds(seed: int, orders: int) -> list[str]:
    """Returns the seed of each order."""
    return [f"{seed}/{number}" for number in range(orders)]


def predicted_cluster(source: ClusterSource) -> PredictedCluster:
    """Returns the cluster of a source, as predictions change it.

    Raises:
        WhatIfError: the source is a cluster that cannot be predicted
    """
    objects = source.objects
    return PredictedCluster(
        state=predicted_state(source.snapshot, now()),
        scheduling=objects.state,
        pods=HashTrieMap(objects.pods),
        affinities=objects.affinities,
        owners=HashTrieMap(objects.owners),
    )


def run_with_spinner(computation: Cooperative[_Step], text: str) -> _Step:
    """Runs a computation of unknown length; on a terminal a spinner says that it goes on."""
    if not sys.stderr.isatty():
        return run_to_end(computation)
    from rich.console import Console

    with Console(stderr=True).status(text):
        return run_to_end(computation)


def show_progress(steps: Sequence[_Step], text: str) -> Iterable[_Step]:
    """Shows on a terminal how many steps are done."""
    if not sys.stderr.isatty():
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, text, console=Console(stderr=True), transient=True)
