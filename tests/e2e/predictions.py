"""What `what-if` predicts of random clusters, compared with what happens.

Each seed makes three to nine nodes with disks, two StatefulSets and one change: a drain, a loss, more replicas or a larger claim. A snapshot is taken,
the command predicts from it, the change is made, and once the cluster rests every pod, every disk and every drain is compared with the
prediction. Seeds follow each other, because volumes with several replicas may be placed on any node.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from app.kube.client import ApiError
from app.kube.resources import CLAIMS, LONGHORN_REPLICAS, LONGHORN_VOLUMES, NODES
from tests.builders import GI, storage_class
from tests.e2e.objects import LOCAL, Object, Volume, Workload, name_of, node_of, runs
from tests.e2e.report import Options, Part
from tests.e2e.rig import Rig, run_extender

# Where many replicas are placed at once, fifty orders miss some distributions: of 12 large clusters two went as only 1,000 orders predict.
ORDERS = 1_000
# Longhorn's waits, so short that a cluster rests soon after a change.
_SIMULATOR = {
    "schedule_retry": 1.0,
    "strict_local_retry": 1.0,
    "attach_retry_limit": 2.0,
    "settings": {"replica-replenishment-wait-interval": "1"},
}
# Longer than any of the simulator's delays: what did not change for so long does not change any more.
_REST_SECONDS = 6.0
_REST_TIMEOUT = 120.0
_POLL = 0.5
_CLASSES = (LOCAL, "two-local", "two-apart")
_APPS = ("one", "two")
# Each four seeds have each verb once; of eight seeds the last four have large clusters.
_VERBS = 4
# Each fourth one has the same verb.
_CLUSTERS = 32


@dataclass
class Agreement:
    """Predictions compared with what happened.

    Attributes:
        clusters: compared clusters, by verb
        pods, disks, drains: how many were compared
        open: how many of the pods had more than one predicted outcome
        wrong: predictions that did not come true
    """

    clusters: Counter[str] = field(default_factory=Counter)
    pods: int = 0
    disks: int = 0
    drains: int = 0
    open: int = 0
    wrong: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The figures, one per line."""
        wrong_clusters = len({problem.partition(":")[0] for problem in self.wrong})
        total = self.clusters.total()
        verbs = ", ".join(f"{count} {verb}" for verb, count in sorted(self.clusters.items()))
        return "\n".join(
            (
                f"clusters as predicted: {total - wrong_clusters} of {total} ({verbs})",
                f"compared: {self.pods} pods ({self.open} with several predicted outcomes), {self.disks} disks, {self.drains} drains",
                *self.wrong,
            )
        )


@dataclass(frozen=True)
class Change:
    """A change of a cluster."""

    verb: str
    arguments: Sequence[str]  # as `what-if` takes it
    make: Callable[[], None]  # makes it


def report(folder: Path, options: Options) -> Part:
    """Compares every seed, one after the other on one rig."""
    agreement = Agreement()
    with Rig(folder, simulator=_SIMULATOR) as rig:
        parameters = {"two-local": "best-effort", "two-apart": "disabled"}
        rig.create(*(_storage_class(name, locality) for name, locality in parameters.items()))
        for seed in range(1, (options.repetitions or _CLUSTERS) + 1):
            compare(rig, seed, folder, agreement)
    return Part(agreement.wrong, asdict(agreement), [agreement.text()])


def _storage_class(name: str, locality: str) -> Object:
    return {**storage_class(name, numberOfReplicas="2", dataLocality=locality), "allowVolumeExpansion": True}


def compare(rig: Rig, seed: int, folder: Path, agreement: Agreement) -> None:
    """Makes a cluster, predicts a change, makes the change, and compares."""
    cluster = RandomCluster(rig, seed)
    cluster.create()
    try:
        cluster.rest()
        before = cluster.observe()
        change = cluster.choose_change()
        file = str(folder / f"seed-{seed}.yaml")
        run_extender(rig.cluster, "snapshot", "--file", file, quiet=False)
        options = ("--snapshot", file, "--orders", str(ORDERS), "-o", "json")
        prediction = json.loads(run_extender(None, "what-if", *change.arguments, *options, quiet=False))
        change.make()
        cluster.rest()
        name = f"seed {seed}, {' '.join(change.arguments)}"
        agreement.clusters[change.verb] += 1
        problems = cluster.compare(name, prediction, before, agreement)
        if problems:
            agreement.wrong += problems
            run_extender(rig.cluster, "snapshot", "--file", str(folder / f"seed-{seed}-after.yaml"), quiet=False)
    finally:
        cluster.remove()


@dataclass(frozen=True)
class Observation:
    """A cluster at rest."""

    nodes: dict[str, str]  # of each pod, "" for none
    running: frozenset[str]  # the pods that run
    disks: dict[tuple[str, str], int]  # scheduled bytes by node and disk
    replicas: frozenset[tuple[str, str, str, bool]]  # node and disk of each volume's replicas, those that failed marked


class RandomCluster:
    """The cluster of a seed, and the change made to it."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311
        self._group = f"s{seed}"
        large = seed % 8 >= _VERBS
        count = self._random.randint(6, 9) if large else self._random.randint(3, 5)
        self._nodes = {
            f"{self._group}-{number}": [f"{size}Gi" for size in self._disk_sizes()] for number in range(1, count + 1)
        }
        self._apps = {f"{self._group}-{app}": self._workload(app) for app in _APPS}
        self._sizes = {app: self._random.randint(3, 6) if large else self._random.randint(1, 3) for app in self._apps}
        self._blocked: set[str] = set()

    def _disk_sizes(self) -> list[int]:
        return [self._random.randrange(100, 500, 50) for _ in range(self._random.choice((1, 1, 2)))]

    def _workload(self, app: str) -> Workload:
        claims = [
            Volume(f"{self._random.randrange(30, 130, 10)}Gi", self._random.choice(_CLASSES))
            for _ in range(self._random.choice((1, 1, 2)))
        ]
        return Workload(app=f"{self._group}-{app}", group=self._group, volumes=claims)

    def create(self) -> None:
        """Adds the nodes and the StatefulSets."""
        self._rig.add_nodes(self._group, self._nodes)
        sets = [
            workload.statefulset(self._sizes[app], parallel=self._random.random() < 0.5)
            for app, workload in self._apps.items()
        ]
        self._rig.create(*sets)

    def remove(self) -> None:
        """Deletes everything that belongs to the seed."""
        self._rig.remove(*self._apps)
        self._rig.remove_nodes(*self._nodes)

    def observe(self) -> Observation:
        """Returns where pods and replicas are."""
        pods = [pod for app in self._apps for pod in self._rig.pods(app)]
        return Observation(
            nodes={name_of(pod): node_of(pod) for pod in pods},
            running=frozenset(name_of(pod) for pod in pods if runs(pod) and "deletionTimestamp" not in pod["metadata"]),
            disks=self._rig.scheduled_bytes(),
            replicas=frozenset(
                (
                    raw["spec"]["volumeName"],
                    raw["spec"].get("nodeID", ""),
                    raw["spec"].get("diskID", ""),
                    bool(raw["spec"].get("failedAt")),
                )
                for raw in self._rig.longhorn(LONGHORN_REPLICAS)
            ),
        )

    def rest(self) -> None:
        """Waits until pods, replicas and disks are stable for some seconds."""
        last = self._fingerprint()
        since = time.monotonic()
        deadline = since + _REST_TIMEOUT
        while time.monotonic() - since < _REST_SECONDS:
            assert time.monotonic() < deadline, f"seed {self._seed} does not rest: {last}"
            time.sleep(_POLL)
            now = self._fingerprint()
            if now != last:
                since = time.monotonic()
                last = now

    def _fingerprint(self) -> object:
        volumes = {name_of(raw): _volume_state(raw) for raw in self._rig.longhorn(LONGHORN_VOLUMES)}
        return self.observe(), volumes

    def choose_change(self) -> Change:
        changes = (self._drain, self._lose, self._scale, self._expand)
        return changes[self._seed % _VERBS]()

    def _drain(self) -> Change:
        node = self._random.choice(self._nodes_with_pods())

        def make() -> None:
            self._rig.cluster.kubectl("drain", node, "--ignore-daemonsets", "--timeout=60s")
            self.rest()
            if self._holds_up(node):
                self._blocked.add(node)
                return
            _annotate(self._rig, node, {"simulator/down": "true"})
            self.rest()
            _annotate(self._rig, node, {"simulator/down": None})

        return Change("drain", ["--drain", node], make)

    def _holds_up(self, node: str) -> bool:
        """Whether Longhorn's budget would hold up the drain. It does if a volume is attached there, or has its last healthy replica there."""
        attached = {raw["spec"].get("nodeID") for raw in self._rig.longhorn(LONGHORN_VOLUMES)}
        replicas = self.observe().replicas
        healthy = [(volume, place) for volume, place, _, failed in replicas if place and not failed]
        here = {volume for volume, place in healthy if place == node}
        elsewhere = {volume for volume, place in healthy if place != node}
        return node in attached or not here <= elsewhere

    def _lose(self) -> Change:
        node = self._random.choice(self._nodes_with_pods())

        def make() -> None:
            self._rig.cluster.api.delete(NODES.path(name=node))
            # What Kubernetes' pod garbage collector does within a minute.
            for pod in [pod for app in self._apps for pod in self._rig.pods(app)]:
                if node_of(pod) == node:
                    self._rig.cluster.kubectl("delete", "pod", name_of(pod), "--force", "--grace-period=0")

        return Change("lose", ["--lose", node], make)

    def _scale(self) -> Change:
        app = self._random.choice(sorted(self._apps))
        count = self._sizes[app] + self._random.randint(1, 4)

        def make() -> None:
            self._rig.cluster.kubectl("scale", "statefulset", app, f"--replicas={count}")

        return Change("scale", ["--scale", f"sts/{app}={count}"], make)

    def _expand(self) -> Change:
        claims = [raw for app in self._apps for raw in self._rig.claims(app)]
        bound = [raw for raw in claims if raw["spec"].get("volumeName")]
        claim = self._random.choice(sorted(bound, key=name_of))
        name = name_of(claim)
        size = f"{self._random.randrange(140, 400, 10)}Gi"

        def make() -> None:
            body = {"spec": {"resources": {"requests": {"storage": size}}}}
            try:
                self._rig.cluster.api.patch(CLAIMS.path("default", name), body)
            except ApiError as error:
                if not error.forbidden:  # as by Longhorn, where the growth does not fit
                    raise

        return Change("expand", ["--expand", f"{name}={size}"], make)

    def _nodes_with_pods(self) -> list[str]:
        return sorted({node for node in self.observe().nodes.values() if node}) or sorted(self._nodes)

    def compare(self, name: str, prediction: Any, before: Observation, agreement: Agreement) -> list[str]:
        """Counts what was compared; returns what is not as predicted."""
        after = self.observe()
        problems: list[str] = []
        pods = {entry["pod"].partition("/")[2]: entry for entry in prediction["pods"]}
        for pod, node in after.nodes.items():
            agreement.pods += 1
            entry = pods.get(pod)
            if entry is None:
                if (node, pod in after.running) != (before.nodes.get(pod), pod in before.running):
                    problems.append(f"{name}: {pod} moved to {node or 'no node'} unpredicted")
                continue
            agreement.open += len(entry["nodes"]) > 1 or entry["outcome"] == "usually"
            if not _is_predicted(entry, node, runs=pod in after.running):
                state = "runs" if pod in after.running else "waits"
                problems.append(f"{name}: {pod} {state} on {node or 'no node'}, predicted: {entry}")
        predicted = {(entry["node"], entry["disk"]): (entry["least"], entry["most"]) for entry in prediction["disks"]}
        for disk, size in after.disks.items():
            agreement.disks += 1
            same = before.disks.get(disk, 0)
            least, most = predicted.get(disk, (same, same))
            if not least <= size <= most:
                problems.append(
                    f"{name}: {'/'.join(disk)} has {size / GI:g}Gi, predicted: {least / GI:g} to {most / GI:g}"
                )
        for entry in prediction["drains"]:
            agreement.drains += 1
            finished = entry["node"] not in self._blocked
            if entry["outcome"] == ("never" if finished else "always"):
                problems.append(f"{name}: the drain ends: {finished}, predicted: {entry}")
        return problems


def _is_predicted(entry: Any, node: str, *, runs: bool) -> bool:
    if entry["outcome"] == ("never" if runs else "always"):
        return False
    return not node or node in entry["nodes"]


def _volume_state(volume: Object) -> tuple[str, str, str]:
    status = volume.get("status") or {}
    return volume["spec"].get("nodeID", ""), status.get("state", ""), status.get("robustness", "")


def _annotate(rig: Rig, node: str, annotations: dict[str, str | None]) -> None:
    rig.cluster.api.patch(NODES.path(name=node), {"metadata": {"annotations": annotations}})
