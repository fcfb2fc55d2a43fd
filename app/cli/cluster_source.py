"""What a command asks about: the options that asking and planning commands share, and the cluster that these name;
`longhorn-extender snapshot`: the objects of the live cluster as a file, for a bug report, or as such a cluster.

Data flow: the flags of a command line → one value for each group of options, such as a `Query` (`app/cli/commands.py` makes an
option of each field) → the objects of a snapshot file or of the live cluster → a `ClusterSource` → decisions about the cluster as
it is, or a prediction that starts with it (`predicted_cluster`) → an answer, which `app/cli/render.py` prints.

An argument names pods and workloads in a file or in the cluster; the pod may also be that of a workload or claim.
"""

import gc
import random
import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import typer

from app.cli import options as flags
from app.cli.render import format_duration, json_text, print_line, print_result, warn, yaml_text
from app.kube import resources, snapshot_file
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.convert.kubectl import read_pod, workload_spec
from scheduler_core.convert.snapshot_kinds import PREDICTED_KINDS, group_of
from scheduler_core.decide import decision, kube_scheduler_filters
from scheduler_core.errors import CoreError
from scheduler_core.model import kube
from scheduler_core.model.quantity import format_count, natural_key
from scheduler_core.model.snapshot import NamespacedName, Snapshot
from scheduler_core.structs import Struct, field

if TYPE_CHECKING:
    from scheduler_core.predict.predicted_cluster import PredictedCluster
    from scheduler_core.predict.predicted_replicas import Choose


CHANCE = "a node is chosen at random among those that kube-scheduler may choose"
_NO_CONTROLLERS = "no pod in the source has a controller, so that a drain moves none"
NO_RESOURCES = "requests of CPU and memory are not compared: no node says what is allocatable"
_MAX_ORDERS = 10_000

RebuildRateOption = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Bytes per second of a rebuild, such as 100Mi, to tell its time.")
]


class Query(Struct, frozen=True):
    """The cluster that is asked about."""

    # Where a command shows these options; the others are where its parameter is.
    PLACES: ClassVar = {"snapshot": -1, "longhorn_namespace": 1}
    snapshot: flags.SnapshotOption = None
    kubeconfig: flags.KubeconfigOption = None
    context: flags.ContextOption = None
    longhorn_namespace: flags.LonghornNamespaceOption = DEFAULT_NAMESPACE

    def check_standard_input(self, *files: str | None, repeats: bool = False) -> None:
        """Raises a CoreError if standard input is read more than once; `repeats` for a command that reads again and again."""
        if repeats and self.snapshot == snapshot_file.STDIN:
            raise CoreError(
                f"standard input ({snapshot_file.STDIN}) can be read only once; --watch reads again and again"
            )
        if [self.snapshot, *files].count(snapshot_file.STDIN) > 1:
            raise CoreError(f"standard input ({snapshot_file.STDIN}) can be read only once")

    def read(self, *, needs_nodes: bool = False) -> "ClusterSource":
        """Returns the cluster. Raises a CoreError if it cannot be read, has no objects, or lacks Longhorn nodes that
        are needed.
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

    def _read_cluster(self, *, needs_nodes: bool) -> "ClusterSource":
        # Its import brings the Kubernetes client, which a snapshot file does not need.
        from app.kube.cluster_cache import as_snapshot

        raw_objects = cluster_objects(self.kubeconfig, self.context, self.longhorn_namespace)
        snapshot = as_snapshot(raw_objects)
        listed = ((raw["kind"], group_of(raw["apiVersion"]), raw) for raw in raw_objects)
        objects = snapshot_file.SchedulingObjects.of(listed, snapshot.pods.values())
        if not snapshot.longhorn_nodes:
            problem = f"no nodes.longhorn.io in the namespace {self.longhorn_namespace}; see --longhorn-namespace"
            # Without Longhorn nodes a prediction would call everything safe.
            if needs_nodes:
                raise CoreError(problem)
            warn(problem)
        return ClusterSource(snapshot, objects, self)

    def _read_file(self, file: str, *, needs_nodes: bool) -> "ClusterSource":
        entries = list(snapshot_file.read_objects(file))
        if not entries:
            raise CoreError(f"{file}: has no objects")
        loaded = snapshot_file.snapshot_of(file, entries, snapshot_file.SCHEDULING_KINDS, PREDICTED_KINDS)
        if needs_nodes and not loaded.snapshot.longhorn_nodes:
            raise CoreError(f"{file}: has no nodes.longhorn.io, so that nothing can be predicted")
        for warning in loaded.warnings:
            warn(warning)
        pods = loaded.snapshot.pods.values()
        return ClusterSource(
            loaded.snapshot,
            snapshot_file.read_from(file, lambda: snapshot_file.SchedulingObjects.of(entries, pods)),
            self,
        )


class Rules(Struct, frozen=True):
    """By which options pods are decided about."""

    best_effort: flags.BestEffortOption = BestEffort.REQUIRE
    packing: flags.PackingOption = decision.Packing.AUTO

    @property
    def options(self) -> decision.FilterOptions:
        return flags.filter_options(self.best_effort, self.packing)


class Orders(Struct, frozen=True):
    """Which orders of events are played."""

    orders: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_ORDERS, help="How many orders of events are played.")
    ] = 5
    seed: Annotated[int, typer.Option(help="Determines the orders; the same seed gives the same output.")] = 0

    @property
    def seeds(self) -> list[str]:
        return [f"{self.seed}/{number}" for number in range(self.orders)]


class ClusterSource(Struct, frozen=True):
    """A cluster, from a snapshot file or live."""

    snapshot: Snapshot
    objects: snapshot_file.SchedulingObjects
    query: Query = field(default_factory=Query)  # where they come from

    @property
    def parallel_sets(self) -> frozenset[NamespacedName]:
        """The StatefulSets that create their pods at once."""
        return frozenset(
            (namespace, name)
            for (kind, namespace, name), raw in self.objects.workloads.items()
            if kind == "StatefulSet" and not workload_spec(kind, raw).creates_in_order
        )

    def notes(self, *, drains: bool) -> list[str]:
        """Returns what the source lacks for a prediction, with or without drains."""
        notes = [] if kube_scheduler_filters.compares_resources(self.objects.state) else [NO_RESOURCES]
        pods = self.snapshot.pods.values()
        if drains and pods and not any(pod.owner for pod in pods):
            notes.append(_NO_CONTROLLERS)
        return notes


def cluster_objects(
    kubeconfig: str | None, context: str | None, namespace: str, *, progress: bool = False
) -> list[dict[str, Any]]:
    """Reads the live cluster's objects in the form of a snapshot file. It prints warnings to standard error, and with
    `progress` what is being read. Raises a CoreError if there is no cluster to connect to, or it refuses.
    """
    import asyncio

    from app.kube.client import KubeClient
    from app.kube.cluster_cache import read_cluster
    from app.runtime.logs import configure_for_results

    configure_for_results()

    def report(text: str) -> None:
        if progress:
            print_line(text, err=True)

    async def read() -> list[dict[str, Any]]:
        async with await KubeClient.connect(kubeconfig, context) as client:
            return await read_cluster(client, namespace, report, warn)

    return asyncio.run(read())


# Texts that YAML 1.2 reads as floating-point numbers.
_FLOAT = re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$")


class SnapshotFormat(StrEnum):
    """The format of a snapshot file."""

    YAML = "yaml"
    JSON = "json"


def snapshot(
    kubeconfig: flags.KubeconfigOption = None,
    context: flags.ContextOption = None,
    longhorn_namespace: flags.LonghornNamespaceOption = DEFAULT_NAMESPACE,
    output: Annotated[SnapshotFormat, typer.Option("--output", "-o", help="How to print.")] = SnapshotFormat.YAML,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Write here instead of to standard output.")
    ] = None,
) -> None:
    """Write what decisions read of the cluster: nodes, pods, claims, volumes, and Longhorn's objects.

    Only the fields that decide something are written: no environment variables, secrets, commands or annotations.
    `serve --snapshot` and `explain --snapshot` read the file.
    """
    objects = cluster_objects(kubeconfig, context, longhorn_namespace, progress=sys.stderr.isatty() or file is not None)
    object_list = {"apiVersion": "v1", "kind": "List", "items": objects}
    if output is SnapshotFormat.JSON:
        text = json_text(object_list, indent=1)
    else:
        import yaml

        class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
            """Also quotes texts such as 1.5e3: PyYAML takes them for texts, but YAML 1.2, which kubectl and this program
            read, for numbers.
            """

        Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
        text = yaml_text(partial(yaml.dump, Dumper=Dumper), object_list)
    if file is None:
        print_result(text)
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise CoreError(f"{file}: cannot be written: {error.strerror}") from error
    print_line(f"wrote {format_count(len(objects), 'object')} to {file}", err=True)


def predicted_cluster(source: ClusterSource) -> "PredictedCluster":
    """Returns the cluster of a source, as predictions change it. Raises a WhatIfError if the source is a cluster that
    cannot be predicted.
    """
    from scheduler_core.predict.predicted_cluster import PredictedCluster, predicted_state

    return PredictedCluster(
        predicted_state(source.snapshot, flags.now()), source.objects.state, source.objects.affinities
    )


def seeded_choice(seed: str) -> "Choose":
    choose: Choose = random.Random(seed).randrange  # noqa: S311 # a seed is reproducible, not secret
    return choose


def read_rate(text: str | None) -> int | None:
    """Returns the bytes per second of `--rebuild-rate`, None without it; raises a CoreError if it is not positive."""
    return None if text is None else flags.positive_bytes(text, "--rebuild-rate")


def wait_line(seconds: float) -> str:
    wait = format_duration(seconds)
    return f"nothing is rebuilt for {wait} where a failed replica could be reused (replica-replenishment-wait-interval)"


DEFAULT_POD_NAMESPACE = "default"
POD_PREFIXES = frozenset({"po", "pod", "pods"})
_APPS = ("apps", "v1")
_BATCH = ("batch", "v1")
WORKLOADS = {
    prefix: resources.Resource(*group, plural, kind, namespaced=True)
    for group, plural, kind, *short in (
        (_APPS, "deployments", "Deployment", "deploy"),
        (_APPS, "statefulsets", "StatefulSet", "sts"),
        (_APPS, "daemonsets", "DaemonSet", "ds"),
        (_APPS, "replicasets", "ReplicaSet", "rs"),
        (_BATCH, "jobs", "Job"),
        (_BATCH, "cronjobs", "CronJob", "cj"),
    )
    for prefix in (plural, kind.lower(), *short)
}
"""Kinds with a pod template by the names that kubectl takes."""


class ExplainedPod(Struct, frozen=True):
    """A pod that is asked about."""

    pod: kube.Pod
    snapshot: Snapshot  # the cluster with the other objects of the pod's file
    selection: str = ""  # why it is this pod, where something else was named; otherwise ""


def select_pod(text: str, namespace: str | None, source: ClusterSource) -> ExplainedPod:
    """Returns the pod that an argument names: `pod/NAME`, `deploy/NAME`, `sts/NAME` and the like, a file with a pod or
    a workload, or a pod's name or namespace/name. Raises a CoreError if there is no such pod, or there are several.
    """
    prefix, _, name = text.partition("/")
    if not text or text.endswith("/"):
        raise CoreError(f"'{text}': the name of a pod is missing; see --help")
    if snapshot_file.is_file(text):
        pod, snapshot, (kind, raw) = snapshot_file.pod_in_file(text, source.snapshot)
        selection = "" if kind == "Pod" else _first_pod(kind, raw)
        return ExplainedPod(pod, snapshot, selection)
    if name and prefix.lower() in POD_PREFIXES:
        return ExplainedPod(pod_by_name(text, name, namespace, source), source.snapshot)
    if name and prefix.lower() in WORKLOADS:
        return _pod_of_workload(WORKLOADS[prefix.lower()], (namespace or DEFAULT_POD_NAMESPACE, name), source)
    return ExplainedPod(pod_by_name(text, text, namespace, source), source.snapshot)


def pod_by_name(text: str, name: str, namespace: str | None, source: ClusterSource) -> kube.Pod:
    """Returns the pod of a name or namespace/name; `text` is how the user wrote it."""
    named_namespace, slash, _ = name.partition("/")
    if slash and namespace is not None and namespace != named_namespace:
        raise CoreError(f"{text}: contradicts --namespace {namespace}")
    return snapshot_file.named_pod(name, source.snapshot, namespace)


def _pod_of_workload(resource: resources.Resource, key: NamespacedName, source: ClusterSource) -> ExplainedPod:
    """Returns a workload's first pod that waits, its first pod, or the one that it would create."""
    # Its import brings what `what-if` changes in a cluster.
    from scheduler_core.predict.cluster_additions import MEMBER_NAMES, workload_members

    kind = resource.kind
    pods = source.snapshot.pods
    members = workload_members(kind, key, pods) if kind in MEMBER_NAMES else []
    if members:
        first = next((member for member in members if not pods[member].node_name), members[0])
        waits = "none of its pods waits" if pods[first].node_name else "of those that wait"
        return ExplainedPod(pods[first], source.snapshot, f"the first of {kind} {key[1]}, {waits}")
    raw = read_workload(resource, key[1], key[0], source)
    return ExplainedPod(read_pod(kind, raw), source.snapshot, _first_pod(kind, raw))


def _first_pod(kind: str, raw: Any) -> str:
    # Only a StatefulSet's pods have names that are known before.
    name = "" if kind == "StatefulSet" else ", under a name of its own"
    return f"the first that {kind} {raw['metadata']['name']} creates{name}"


def read_workload(resource: resources.Resource, name: str, namespace: str, source: ClusterSource) -> Any:
    """Returns a workload, undecoded, from its cluster."""
    raw = source.objects.workloads.get((resource.kind, namespace, name))
    if raw is None and source.query.snapshot is None:
        import asyncio

        return asyncio.run(_get(resource.path(namespace, name), source.query.kubeconfig, source.query.context))
    if raw is None:
        raise CoreError(
            f"{source.query.snapshot}: has no {resource.kind} {namespace}/{name}; give a file with it, or add the output of "
            f"`kubectl get {resource.plural} -A -o yaml`"
        )
    return raw


async def _get(path: str, kubeconfig: str | None, context: str | None) -> Any:
    from app.kube.client import KubeClient

    async with await KubeClient.connect(kubeconfig, context) as client:
        return msgspec.json.decode(await client.get(path))


def claim_pod(text: str, namespace: str | None, source: ClusterSource) -> ExplainedPod:
    """Returns the pod that uses a claim or, without one, a pod that would mount the claim alone. Raises a CoreError if
    there is no such claim.
    """
    head, slash, tail = text.partition("/")
    if slash and namespace is not None and namespace != head:
        raise CoreError(f"--claim {text}: contradicts --namespace {namespace}")
    key = (head, tail) if slash else (namespace or DEFAULT_POD_NAMESPACE, text)
    if key not in source.snapshot.claims:
        raise CoreError(f"--claim {text}: there is no PersistentVolumeClaim {'/'.join(key)}")
    users = [
        pod
        for pod in source.snapshot.pods.values()
        if pod.live and pod.namespace == key[0] and any(volume.claim == key[1] for volume in pod.volumes)
    ]
    if users:
        # One that waits comes first.
        user = min(users, key=lambda pod: (bool(pod.node_name), pod.key))
        return ExplainedPod(user, source.snapshot, f"which uses claim {key[1]}")
    pod = kube.Pod(key[0], key[1], volumes=(kube.ClaimVolume("claim", key[1]),))
    selection = f"no pod uses claim {key[1]}; one that mounts it alone"
    return ExplainedPod(pod, source.snapshot, selection)


def waiting_pods(namespace: str | None, source: ClusterSource) -> list[ExplainedPod]:
    pods: Iterable[kube.Pod] = source.snapshot.pods.values()
    waiting = [pod for pod in pods if pod.live and not pod.node_name and namespace in (None, pod.namespace)]
    return [ExplainedPod(pod, source.snapshot) for pod in sorted(waiting, key=lambda pod: natural_key(pod.key))]
