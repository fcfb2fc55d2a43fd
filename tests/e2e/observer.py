"""The cluster as a test sees it: by watches, or listed again."""

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
from app.kube.cluster_cache import ClusterCache, as_snapshot, read_cluster
from app.kube.reflector import Timing
from devcluster.programs import NAMESPACE
from scheduler_core.cluster.view import View
from scheduler_core.volumes.demand import Demand, DemandSource
from scheduler_core.volumes.demand_index import DemandIndex

Line = tuple[str, str, str, str, str, int, str]


class Observer:
    """Watches a cluster on an event loop of its own, while entered."""

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
        return self._portal.call(self._cache.state).view

    def demands(self) -> tuple[Demand, ...]:
        return self._portal.call(self._cache.state).demand.all

    def chosen_not_bound(self) -> set[str]:
        """Pods with a chosen node that are not bound yet. Their claims are being provisioned."""
        selected = {demand.pod for demand in self.demands() if demand.source is DemandSource.SELECTED_NODE}
        nominated = {
            pod.key
            for pod in self.view().snapshot.pods.values()
            if pod.live and pod.nominated_node and not pod.node_name and not pod.unschedulable
        }
        return selected | nominated

    def bound_without_replicas(self) -> set[str]:
        """Bound pods with a local volume without a replica on their node."""
        return {demand.pod for demand in self.demands() if demand.source is DemandSource.POD}

    def listed_demands(self) -> set[Line]:
        """The demand derived from a new list of everything, without any watch. `longhorn-extender snapshot` lists in the same way."""
        return self._portal.call(self._list_demands)

    async def _list_demands(self) -> set[Line]:
        objects = await read_cluster(self._client, NAMESPACE, _ignore, _ignore)
        view = View.of(as_snapshot(objects), _now())
        return {line(demand) for demand in DemandIndex.of(view).all}


def line(demand: Demand) -> Line:
    volume = demand.volume
    source = demand.source.name.lower()
    return (volume.name, volume.claim, demand.node, source, demand.pod, volume.volume.size, demand.since)


def state_line(entry: dict[str, Any]) -> Line:
    return tuple(entry[key] for key in ("volume", "claim", "node", "source", "pod", "size", "since"))


def _now() -> datetime:
    return datetime.now(UTC)


def _ignore(_: str) -> None:
    return None
