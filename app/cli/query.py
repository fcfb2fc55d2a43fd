"""What a command asks about: the options that asking and planning commands share, and the cluster that these name.

Data flow: the flags of a command line → one value for each group of options, such as a `Query` (`app/cli/commands.py` makes an
option of each field) → the objects of a snapshot file or of the live cluster → a `ClusterSource` → decisions about the cluster as
it is, or a prediction that starts with it (`predicted_cluster`) → an answer, which `app/cli/render.py` prints.
"""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    LonghornNamespaceOption,
    PackingOption,
    SnapshotOption,
    filter_options,
    now,
)
from app.cli.render import format_duration
from app.cli.terminal import print_line, warn
from app.kube.snapshot_file import STDIN, read_from, read_objects, snapshot_of
from app.kube.snapshot_generic import SCHEDULING_KINDS, SchedulingObjects
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.convert.kubectl import creates_in_order
from scheduler_core.convert.snapshot_kinds import PREDICTED_KINDS, group_of
from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.kube_scheduler_filters import compares_resources
from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.model.quantity import parse_bytes
from scheduler_core.model.snapshot import NamespacedName, Snapshot

if TYPE_CHECKING:
    from scheduler_core.predict.predicted_cluster import PredictedCluster
    from scheduler_core.predict.predicted_replicas import Choose

CHANCE: Final = "a node is chosen at random among those that kube-scheduler may choose"
_NO_CONTROLLERS: Final = "no pod in the source has a controller, so that a drain moves none"
NO_RESOURCES: Final = "requests of CPU and memory are not compared: no node says what is allocatable"
_MAX_ORDERS: Final = 10_000

RebuildRateOption = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Bytes per second of a rebuild, such as 100Mi, to tell its time.")
]


@dataclass(frozen=True, slots=True)
class Query:
    """The cluster that is asked about."""

    snapshot: SnapshotOption = None
    kubeconfig: KubeconfigOption = None
    context: ContextOption = None
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE

    def check_standard_input(self, *files: str | None, repeats: bool = False) -> None:
        """Raises a CoreError if standard input is read more than once; `repeats` for a command that reads again and again."""
        if repeats and self.snapshot == STDIN:
            raise CoreError(f"standard input ({STDIN}) can be read only once; --watch reads again and again")
        if [self.snapshot, *files].count(STDIN) > 1:
            raise CoreError(f"standard input ({STDIN}) can be read only once")

    def read(self, *, needs_nodes: bool = False) -> ClusterSource:
        """Returns the cluster.

        Raises:
            CoreError: it cannot be read, has no objects, or lacks Longhorn nodes that are needed
        """
        # The objects stay; the collector would look at them again and again.
        gc.disable()
        try:
            if self.snapshot is None:
                return self._read_cluster(needs_nodes=needs_nodes)
            return self._read_file(self.snapshot, needs_nodes=needs_nodes)
        finally:
            gc.freeze()
            gc.enable()

    def _read_cluster(self, *, needs_nodes: bool) -> ClusterSource:
        # Its import brings the Kubernetes client, which a snapshot file does not need.
        from app.kube.snapshot_live import as_snapshot

        raw_objects = cluster_objects(self.kubeconfig, self.context, self.longhorn_namespace)
        snapshot = as_snapshot(raw_objects)
        listed = ((raw["kind"], group_of(raw["apiVersion"]), raw) for raw in raw_objects)
        objects = SchedulingObjects.of(listed, snapshot.pods.values())
        if not snapshot.longhorn_nodes:
            problem = f"no nodes.longhorn.io in the namespace {self.longhorn_namespace}; see --longhorn-namespace"
            # Without Longhorn nodes a prediction would call everything safe.
            if needs_nodes:
                raise CoreError(problem)
            warn(problem)
        return ClusterSource(snapshot, objects, self)

    def _read_file(self, file: str, *, needs_nodes: bool) -> ClusterSource:
        entries = list(read_objects(file))
        if not entries:
            raise CoreError(f"{file}: has no objects")
        loaded = snapshot_of(file, entries, SCHEDULING_KINDS, PREDICTED_KINDS)
        if needs_nodes and not loaded.snapshot.longhorn_nodes:
            raise CoreError(f"{file}: has no nodes.longhorn.io, so that nothing can be predicted")
        for warning in loaded.warnings:
            warn(warning)
        pods = loaded.snapshot.pods.values()
        return ClusterSource(loaded.snapshot, read_from(file, lambda: SchedulingObjects.of(entries, pods)), self)


@dataclass(frozen=True, slots=True)
class Rules:
    """By which options pods are decided about."""

    best_effort: BestEffortOption = BestEffort.REQUIRE
    packing: PackingOption = Packing.AUTO

    @property
    def options(self) -> FilterOptions:
        return filter_options(self.best_effort, self.packing)


@dataclass(frozen=True, slots=True)
class Orders:
    """Which orders of events are played."""

    orders: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_ORDERS, help="How many orders of events are played.")
    ] = 5
    seed: Annotated[int, typer.Option(help="Determines the orders; the same seed gives the same output.")] = 0

    @property
    def seeds(self) -> list[str]:
        """The seed of each order."""
        return [f"{self.seed}/{number}" for number in range(self.orders)]


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """A cluster, from a snapshot file or live."""

    snapshot: Snapshot
    objects: SchedulingObjects
    query: Query = field(default_factory=Query)  # where they come from

    @property
    def parallel_sets(self) -> frozenset[NamespacedName]:
        """The StatefulSets that create their pods at once."""
        return frozenset(
            (namespace, name)
            for (kind, namespace, name), raw in self.objects.workloads.items()
            if kind == "StatefulSet" and not creates_in_order(kind, raw)
        )

    def notes(self, *, drains: bool) -> list[str]:
        """Returns what the source lacks for a prediction, with or without drains."""
        notes = [] if compares_resources(self.objects.state) else [NO_RESOURCES]
        pods = self.snapshot.pods.values()
        if drains and pods and not any(pod.owner for pod in pods):
            notes.append(_NO_CONTROLLERS)
        return notes


def cluster_objects(
    kubeconfig: str | None, context: str | None, namespace: str, *, progress: bool = False
) -> list[dict[str, Any]]:
    """Reads the live cluster's objects in the form of a snapshot file. It prints warnings to standard error, and with
    `progress` what is being read.

    Raises:
        CoreError: there is no cluster to connect to, or it refuses
    """
    import asyncio

    from app.kube.client import KubeClient
    from app.kube.snapshot_live import read_cluster
    from app.runtime.logs import configure_for_results

    configure_for_results()

    def report(text: str) -> None:
        if progress:
            print_line(text, err=True)

    async def read() -> list[dict[str, Any]]:
        client = await KubeClient.connect(kubeconfig, context)
        try:
            return await read_cluster(client, namespace, report, warn)
        finally:
            await client.close()

    return asyncio.run(read())


def predicted_cluster(source: ClusterSource) -> PredictedCluster:
    """Returns the cluster of a source, as predictions change it.

    Raises:
        WhatIfError: the source is a cluster that cannot be predicted
    """
    from scheduler_core.predict.predicted_cluster import PredictedCluster, predicted_state

    return PredictedCluster(predicted_state(source.snapshot, now()), source.objects.state, source.objects.affinities)


def seeded_choice(seed: str) -> Choose:
    """Returns what makes the random choices of a prediction."""
    choose: Choose = random.Random(seed).randrange  # noqa: S311 # a seed is reproducible, not secret
    return choose


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


def wait_line(seconds: float) -> str:
    """Returns for how long Longhorn rebuilds nothing, as a sentence."""
    wait = format_duration(seconds)
    return f"nothing is rebuilt for {wait} where a failed replica could be reused (replica-replenishment-wait-interval)"
