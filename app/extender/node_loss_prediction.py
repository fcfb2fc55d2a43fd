"""Which nodes can be lost for good, predicted in the background; metrics of that, and of disk space, computed only when Prometheus
scrapes.

    every 30 s at most, if the cluster's state has changed → for each node, the fullest first: the state of that moment → a prediction in
    a tenth of the time (the first hundred in a third), while no decision runs nor has just run → its outcome replaces the one before

In a live cluster only the leader does so, between `adopt` and `clear`. A node has no outcome until its first prediction is done. In a
cluster of more than `MAX_NODES` nodes none has: a single step of a prediction takes up to 5 ms with so many, and kube-scheduler waits
for it.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import structlog
from prometheus_client.core import Metric

from app.evaluator import Evaluator
from app.runtime import decision_thread, probes
from scheduler_core.errors import CoreError
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.monitor.capacity_report import CapacityReport, DiskUsage
from scheduler_core.predict import node_loss, predicted_cluster

log = structlog.get_logger("node losses")

ROUND_INTERVAL = 30.0
ORDERS = 3
# A leader soon knows about so many nodes.
FIRST_NODES = 100
_FIRST_REST = 2.0
# Seconds of rest for each second of work. With what the rests cost it takes a tenth of the time.
_REST = 10.0


class NodeLosses:
    """Owner of the latest outcome of each node.

    Args:
        read: returns the current state; its maps are persistent
    """

    def __init__(self, evaluator: Evaluator, read: Callable[[], ClusterState]) -> None:
        self._evaluator = evaluator
        self._read = read
        # The known outcomes of nodes, by name. The mapping does not change, and may be read from any thread.
        self.latest: Mapping[str, node_loss.NodeLossOutcome] = MappingProxyType({})
        self._leads = asyncio.Event()
        self._predicted: Snapshot | None = None  # the objects of the latest round
        self._round: asyncio.Task[None] | None = None

    def adopt(self) -> None:
        self._leads.set()

    def clear(self) -> None:
        """Forgets everything: another process leads."""
        self._leads.clear()
        self._predicted = None
        if self._round is not None:
            self._round.cancel()
        self.latest = MappingProxyType({})

    async def run(self) -> None:
        """Predicts until cancelled."""
        while True:
            await self._leads.wait()
            snapshot = self._read().view.snapshot
            before = self._predicted
            # What did not change is shared by two versions.
            unchanged = before is not None and all(
                getattr(before, name) is getattr(snapshot, name) for name in Snapshot.__struct_fields__
            )
            if not unchanged:
                self._predicted = snapshot
                self._round = asyncio.create_task(self._predict_all(snapshot), name="node losses")
                try:
                    await asyncio.wait({self._round})
                finally:
                    self._round.cancel()
                if not self._round.cancelled():
                    self._round.result()
            await asyncio.sleep(ROUND_INTERVAL)

    async def _predict_all(self, snapshot: Snapshot) -> None:
        # A round may take hours: what is on the fullest nodes is the hardest to place elsewhere, so they come first.
        names = sorted(snapshot.nodes or snapshot.longhorn_nodes, key=lambda name: (-_fullness(snapshot, name), name))
        if len(names) > node_loss.MAX_NODES:
            names = []
        self.latest = MappingProxyType({name: self.latest[name] for name in names if name in self.latest})
        for name in names:
            first = name not in self.latest and len(self.latest) < FIRST_NODES
            outcome = await self._predict(name, _FIRST_REST if first else _REST)
            outcomes = {key: entry for key, entry in self.latest.items() if key != name}
            self.latest = MappingProxyType(outcomes if outcome is None else {**outcomes, name: outcome})

    async def _predict(self, name: str, rest: float) -> node_loss.NodeLossOutcome | None:
        # None if it cannot be predicted.
        try:
            make_cluster = partial(predicted_cluster.cluster_without_scheduling, self._read())
            cluster = await self._evaluator.run(make_cluster, decision_thread.Urgency.IDLE, rest)
            # A seed is reproducible, not secret.
            orders = [random.Random(f"{name}/{number}").randrange for number in range(ORDERS)]  # noqa: S311
            predict = partial(node_loss.predict_node_loss, cluster, name, self._evaluator.options, orders)
            return await self._evaluator.run(predict, decision_thread.Urgency.IDLE, rest)
        except CoreError as error:
            log.debug("cannot predict the loss of a node", node=name, problem=str(error))
        except Exception:
            # What nothing waits for must not end the process.
            log.exception("predicting the loss of a node has failed", node=name)
        return None


def _fullness(snapshot: Snapshot, name: str) -> float:
    node = snapshot.longhorn_nodes.get(name)
    disks = node.disks if node is not None else ()
    size = sum(disk.storage_maximum - disk.storage_reserved for disk in disks)
    return sum(disk.storage_scheduled for disk in disks) / size if size > 0 else 0.0


_DISK_LABELS = ("node", "disk")
_DISK_SIZES = {
    "maximum": "Size of the disk",
    "reserved": "What Longhorn leaves to other programs",
    "scheduled": "Sizes of the replicas and images in Longhorn's status",
    "promised": "Sizes that are not in Longhorn's status yet: placed replicas, and growth that claims request",
    "free": "What replicas may still take by the rules; negative while the limit is exceeded",
    "written": "What files take, those of other programs included",
}
_NO_DISKS = CapacityReport((), {}, {})


def capacity_metrics(state: ClusterState | None, *, with_disks: bool) -> Iterable[Metric]:
    """Returns the space of every node and StorageClass, and `with_disks` that of every disk; of none without a state, which
    another process reports then.
    """
    report = CapacityReport.of(state, with_disks=with_disks) if state is not None else _NO_DISKS
    if with_disks:
        yield from _disk_metrics(report.disks)
    yield probes.gauge_family(
        "node_demand_bytes",
        "Sizes of volumes that will take room on the node and have no replica there yet",
        ["node"],
        (([node], size) for node, size in report.demand.items()),
    )
    yield probes.gauge_family(
        "largest_fitting_volume_bytes",
        "The largest new volume of the StorageClass of which some node can take a replica",
        ["storage_class"],
        (([name], size) for name, size in report.largest_volumes.items()),
    )


def node_loss_metrics(outcomes: Mapping[str, node_loss.NodeLossOutcome]) -> Iterable[Metric]:
    """Returns whether each node can be lost for good, of those whose outcome is known."""
    yield probes.gauge_family(
        "node_safe_to_lose",
        "1 if the node can be lost for good: its pods with Longhorn volumes find other nodes, and no volume loses its data; "
        "otherwise 0",
        ["node"],
        (([name], outcome.safe) for name, outcome in outcomes.items()),
    )


def _disk_metrics(disks: Sequence[DiskUsage]) -> Iterable[Metric]:
    for name, text in _DISK_SIZES.items():
        sizes = (((usage.node, usage.disk), getattr(usage, name)) for usage in disks)
        yield probes.gauge_family(f"disk_{name}_bytes", text, _DISK_LABELS, sizes)
    yield probes.gauge_family(
        "disk_open",
        "1 if the disk takes new replicas of some size, otherwise 0",
        _DISK_LABELS,
        (((usage.node, usage.disk), usage.closed_by is None) for usage in disks),
    )
    yield probes.gauge_family(
        "disk_closed",
        "1 for each disk that takes no new replica; reason says why",
        (*_DISK_LABELS, "reason"),
        (((usage.node, usage.disk, usage.closed_by.reason.name.lower()), 1) for usage in disks if usage.closed_by),
    )
