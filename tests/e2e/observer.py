"""What a test sees of a cluster as it changes: by watches of its own, and by listing everything anew."""

from __future__ import annotations

import random
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from app.kube.client import KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.reflector import Timing
from app.kube.snapshot_live import as_snapshot, read_cluster
from devcluster.programs import NAMESPACE
from scheduler_core.cluster.view import View
from scheduler_core.demand.derive import Demand, DemandSource
from scheduler_core.demand.index import DemandIndex

Line = tuple[str, str, str, str, str, int, str]


class Observer:
    """Watches a cluster on an event loop of its own, from entering it until leaving it."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal: BlockingPortal = stack.enter_context(start_blocking_portal(name="observer"))
            self._client = self._portal.call(KubeClient.connect, str(self._kubeconfig))
            stack.callback(self._portal.call, self._client.close)
            timing = Timing(monotonic, random.uniform)
            self._cache = ClusterCache(self._client, NAMESPACE, timing, _now, stale_after=600)
            watching: Future[None] = self._portal.start_task_soon(self._cache.run)
            stack.callback(watching.cancel)
            self._portal.call(self._cache.wait_for_sync)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def view(self) -> View:
        """The cluster now."""
        return self._portal.call(self._cache.state).view

    def demands(self) -> tuple[Demand, ...]:
        """What volumes demand now."""
        return self._portal.call(self._cache.state).demand.all

    def chosen_not_bound(self) -> set[str]:
        """The pods kube-scheduler has chosen a node for and not bound yet: their claims are being provisioned."""
        selected = {demand.pod for demand in self.demands() if demand.source is DemandSource.SELECTED_NODE}
        nominated = {
            pod.key
            for pod in self.view().snapshot.pods.values()
            if pod.live and pod.nominated_node and not pod.node_name and not pod.unschedulable
        }
        return selected | nominated

    def bound_without_replicas(self) -> set[str]:
        """The pods that are bound, with a local volume that has no replica on their node yet."""
        return {demand.pod for demand in self.demands() if demand.source is DemandSource.POD}

    def listed_demands(self) -> set[Line]:
        """What volumes demand, derived from a list of everything as `longhorn-extender snapshot` makes it: no watch, nothing remembered."""
        return self._portal.call(self._listed)

    async def _listed(self) -> set[Line]:
        objects = await read_cluster(self._client, NAMESPACE, _ignore, _ignore)
        view = View.of(as_snapshot(objects), _now())
        return {line(demand) for demand in DemandIndex.of(view).all}


def line(demand: Demand) -> Line:
    """A demand as it is compared: everything about it but the volume's other fields."""
    volume, source = demand.volume, demand.source.name.lower()
    return (volume.name, volume.claim, demand.node, source, demand.pod, volume.volume.size, demand.since)


def state_line(entry: dict[str, Any]) -> Line:
    """The same from an entry of ``demands`` in /state."""
    return tuple(entry[key] for key in ("volume", "claim", "node", "source", "pod", "size", "since"))


def _now() -> datetime:
    return datetime.now(UTC)


def _ignore(_: str) -> None:
    return None
