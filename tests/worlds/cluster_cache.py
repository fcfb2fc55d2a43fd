"""A `ClusterCache` that reads a fake API server, which serves every kind that the cache watches."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.evaluator import Evaluator
from app.kube.client import KubeClient
from app.kube.cluster_cache import WATCHED, ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE
from scheduler_core.convert.snapshot_kinds import group_of
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.builders import NOW
from tests.worlds.fake_api import FakeApi, Object, connect_client, until
from tests.worlds.two_nodes import NODES, database_pod, two_nodes

# By group and kind, where the cache lists and watches it.
PATHS = {
    (entry.resource.group, entry.resource.kind): entry.resource.path(entry.namespace(LONGHORN_NAMESPACE))
    for entry in WATCHED
}
CLAIMS = PATHS["", "PersistentVolumeClaim"]
LONGHORN_NODES = PATHS["longhorn.io", "Node"]
PODS = PATHS["", "Pod"]
REPLICAS = PATHS["longhorn.io", "Replica"]


def path_of(raw: Object) -> str:
    return PATHS[group_of(raw["apiVersion"]), raw["kind"]]


class CachedCluster:
    """The fake API server and the cache, for which it is `time`."""

    def __init__(self, api: FakeApi, client: KubeClient, stale_after: float) -> None:
        self.api = api
        self.time = NOW
        timing = Timing(time.monotonic, max)
        self.cache = ClusterCache(client, LONGHORN_NAMESPACE, timing, lambda: self.time, stale_after)

    async def put(self, *objects: Object) -> None:
        for raw in make.flat(*objects):
            await self.api.put(path_of(raw), raw)

    async def remove(self, raw: Object) -> None:
        await self.api.remove(path_of(raw), raw["metadata"]["name"], raw["metadata"].get("namespace", ""))

    async def wait_for_sync(self) -> None:
        await until("every watch", lambda: self.api.open_watches == len(WATCHED))
        await until("the state", lambda: not self.cache.problem)

    async def reasons(self, number: int = 0) -> list[Reason]:
        """Decides about the pod db-<number> on both nodes."""
        decision = await Evaluator(self.cache, FilterOptions()).decide(make.as_pod(database_pod(number)), NODES)
        return list(decision.reasons)

    @property
    def snapshot(self) -> Snapshot:
        return self.cache.state().view.snapshot


@asynccontextmanager
async def cached_cluster(
    folder: Path, *objects: Object | list[Object], stale_after: float = 60, api: FakeApi | None = None, run: bool = True
) -> AsyncIterator[CachedCluster]:
    """Serves objects, by default the two nodes, and runs a cache of them unless `run` is false."""
    api = api or FakeApi()
    for path in PATHS.values():
        api.add(path)
    for raw in make.flat(*(objects or (two_nodes(),))):
        api.add(path_of(raw), raw)
    async with connect_client(api, folder) as client:
        world = CachedCluster(api, client, stale_after)
        task = asyncio.create_task(world.cache.run()) if run else None
        yield world
        if task is not None:
            assert not task.done(), task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def synced_cluster(
    folder: Path, *objects: Object | list[Object], stale_after: float = 60, api: FakeApi | None = None
) -> AsyncIterator[CachedCluster]:
    """As `cached_cluster`; the cache is complete."""
    async with cached_cluster(folder, *objects, stale_after=stale_after, api=api) as world:
        await world.wait_for_sync()
        yield world
