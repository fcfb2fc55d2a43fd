"""The caches beside a real API server and etcd: catching up, and everything that can be done to these two."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.kube.client import ApiError, KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE, PODS, Resource
from app.kube.watched_kinds import WATCHED
from devcluster import DevCluster, Options
from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import group_of
from scheduler_core.model.snapshot import Snapshot
from tests import builders as make
from tests.builders import NOW
from tests.worlds.fake_api import Object, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120), pytest.mark.xdist_group("live")]
CRDS = Path(__file__).parents[3] / "simulator/crds"
RESOURCES: dict[tuple[str, str], Resource] = {
    (entry.resource.group, entry.resource.kind): entry.resource for entry in WATCHED
}
STALE_AFTER = 1.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A control plane with Longhorn's definitions, and nobody who acts on them."""
    with DevCluster(tmp_path_factory.mktemp("cluster"), Options(audit=False)) as running:
        running.kubectl("create", "namespace", LONGHORN_NAMESPACE)
        running.apply(CRDS)
        running.kubectl("wait", "--for=condition=Established", "crd", "--all")
        for name in ("kube-scheduler", "kube-controller-manager", "kwok"):
            running.processes[name].stop()  # nobody else changes anything
        yield running


@asynccontextmanager
async def caching(kubeconfig: Path, silence: float = 90) -> AsyncIterator[tuple[ClusterCache, KubeClient]]:
    """Running caches and a client of their own for the test; the caches need not be filled yet."""
    client, other = await KubeClient.connect(str(kubeconfig)), await KubeClient.connect(str(kubeconfig))
    timing = Timing(time.monotonic, random.uniform, silence)
    cache = ClusterCache(client, LONGHORN_NAMESPACE, timing, lambda: NOW, STALE_AFTER)
    task = asyncio.create_task(cache.run())
    try:
        yield cache, other
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()
        await other.close()


async def synced(cache: ClusterCache) -> None:
    """Returns when there is no problem."""
    await until("the caches", lambda: not cache.problem, 20)


def resource_of(raw: Object) -> tuple[Resource, str, str]:
    """Kind, namespace and name."""
    metadata = raw["metadata"]
    return RESOURCES[group_of(raw["apiVersion"]), raw["kind"]], metadata.get("namespace", ""), metadata["name"]


async def apply(client: KubeClient, raw: Object) -> None:
    """Creates or replaces an object, its status included; waits for no watch."""
    resource, namespace, name = resource_of(raw)
    body = {**raw, "metadata": {key: value for key, value in raw["metadata"].items() if key != "uid"}}
    try:
        await client.create(resource.path(namespace), body)
    except ApiError as error:
        if not error.conflict:
            raise
        await client.patch(resource.path(namespace, name), body)
    if resource.group == "longhorn.io" and "status" in raw:
        await client.patch(resource.path(namespace, name, "status"), {"status": raw["status"]})


async def delete(client: KubeClient, raw: Object) -> None:
    """Deletes an object at once; it need not exist."""
    resource, namespace, name = resource_of(raw)
    try:
        await client.patch(resource.path(namespace, name), {"metadata": {"finalizers": None}})
        await client.delete(resource.path(namespace, name), {"gracePeriodSeconds": 0})
    except ApiError as error:
        if not error.not_found:
            raise


def numbered(name: str, number: int) -> Object:
    """A claim that bears a number."""
    raw = make.claim(name, 1)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": str(number)}
    return raw


async def test_after_catching_up_everything_that_had_been_written_is_seen(cluster: DevCluster) -> None:
    """Many writers, random moments: what a writer's call had returned before is in the view, or something later is."""
    chance = random.Random(5)  # noqa: S311 # repeatable, not secret
    written: dict[str, int] = {}
    async with caching(cluster.kubeconfig) as (cache, client):

        async def write(name: str) -> None:
            for number in itertools.count():
                await apply(client, numbered(name, number))
                written[name] = number
                await asyncio.sleep(chance.random() / 20)

        await synced(cache)
        writers = [asyncio.create_task(write(f"number-{index}")) for index in range(8)]
        took = []
        for _ in range(4):
            await asyncio.sleep(chance.random())
            expected, began = dict(written), time.monotonic()
            await cache.catch_up()
            took.append(time.monotonic() - began)
            claims = cache.memory().view.snapshot.claims
            for name, number in expected.items():
                assert int(claims["default", name].selected_node) >= number
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        await cache.catch_up()
        claims = cache.memory().view.snapshot.claims
        # A write that was cancelled may have been made.
        assert all(int(claims["default", name].selected_node) - number in (0, 1) for name, number in written.items())
    print(f"catching up took {min(took):.2f} to {max(took):.2f} s; {sum(written.values())} writes")
    assert max(took) < 3


def plain(value: Any) -> Any:
    """Equal whatever kind of mapping holds it."""
    if isinstance(value, Snapshot):
        return {name: plain(getattr(value, name)) for name in Snapshot.__dataclass_fields__}
    return dict(value) if hasattr(value, "items") else value


def contents(view: View) -> dict[str, Any]:
    """Everything in a view, comparable."""
    found = {name: plain(getattr(view.cluster, name)) for name in type(view.cluster).__dataclass_fields__}
    found |= {name: plain(getattr(view.indexes, name)) for name in type(view.indexes).__dataclass_fields__}
    found["settings"] = repr(found["settings"])
    return found


def change(chance: random.Random) -> list[Object]:
    """Some objects as they might be."""
    name, node = chance.choice("abc"), chance.choice(["", "a", "b", "c"])
    listed = {f"r-{key}": chance.randrange(1, 9) for key in "abc" if chance.random() < 0.5}
    disks = {
        f"disk-{index}": make.disk(chance.randrange(50, 99), listed=listed) for index in range(chance.randrange(3))
    }
    pod = make.pod(f"claim-{name}", *(["other"] if chance.random() < 0.3 else []), name=f"pod-{name}")
    pod["spec"] = {"volumes": pod["spec"]["volumes"], "containers": [{"name": "main", "image": "none"}]}
    return chance.choice(
        [
            [make.longhorn_node(name, disks)],
            [make.replica(f"r-{name}", f"v-{chance.choice('abc')}", node, size=chance.randrange(1, 9))],
            [make.volume(f"v-{name}", chance.randrange(1, 9))],
            [numbered(f"claim-{name}", chance.randrange(9))],
            [make.setting("storage-over-provisioning-percentage", chance.choice(["100", "200", "x"]))],
            [pod],
            [make.storage_class(f"class-{name}", default=chance.random() < 0.5)],
        ]
    )


async def test_advancing_gives_the_view_of_a_fresh_start(cluster: DevCluster) -> None:
    """After a random history of every kind, with views made at random moments."""
    chance = random.Random(6)  # noqa: S311 # repeatable, not secret
    touched: list[Object] = []
    async with caching(cluster.kubeconfig) as (cache, client):
        await synced(cache)
        for _ in range(150):
            for raw in change(chance):
                touched.append(raw)
                if chance.random() < 0.25 or (raw["kind"] == "StorageClass"):
                    await delete(client, raw)
                if chance.random() < 0.75:
                    try:
                        await apply(client, raw)
                    except ApiError as error:
                        if error.status != 422:  # what may not be changed, such as a pod's volumes
                            raise
            if chance.random() < 0.3:
                cache.memory()
        await cache.catch_up()
        async with caching(cluster.kubeconfig) as (fresh, _):
            await synced(fresh)
            assert contents(cache.memory().view) == contents(fresh.memory().view)
        assert cache.memory().view.version > 30
        for raw in touched:
            await delete(client, raw)


async def test_a_stopped_api_server_is_noticed_and_found_again(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: its connections stay open and silent. What happened meanwhile is seen afterwards."""
    monkeypatch.setattr("app.kube.client.CALL_SECONDS", 2.0)
    server = cluster.processes["kube-apiserver"]
    async with caching(cluster.kubeconfig, silence=2.0) as (cache, client):
        await synced(cache)
        server.pause()
        try:
            began = time.monotonic()
            await until("the problem", lambda: "not heard of for" in cache.problem, 10)
            print(
                f"a stopped API server: a problem after {time.monotonic() - began:.1f} s (silence 2 s, stale after 1 s)"
            )
        finally:
            server.resume()
        began = time.monotonic()
        await until("no problem", lambda: not cache.problem, 15)
        print(f"no problem {time.monotonic() - began:.1f} s after it goes on")
        await apply(client, numbered("after-the-pause", 1))
        await cache.catch_up()
        assert ("default", "after-the-pause") in cache.memory().view.snapshot.claims


async def test_a_killed_api_server_is_found_again(cluster: DevCluster) -> None:
    """What was deleted and created around its death is as it is; versions from before may be too old by then."""
    server = cluster.processes["kube-apiserver"]
    async with caching(cluster.kubeconfig) as (cache, client):
        await apply(client, numbered("deleted", 1))
        await synced(cache)
        await cache.catch_up()
        assert ("default", "deleted") in cache.memory().view.snapshot.claims
        server.kill()
        await until("the trouble", lambda: all(standing.problem for standing in cache.standings.values()), 20)
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(20):
            while True:
                try:
                    await delete(client, numbered("deleted", 1))
                    await apply(client, numbered("created", 1))
                except ApiError as error:
                    if not (error.unreachable or error.forbidden):
                        raise
                    await asyncio.sleep(0.1)
                else:
                    break
        await synced(cache)
        await asyncio.wait_for(cache.catch_up(), 20)
        claims = {name for _, name in cache.memory().view.snapshot.claims}
        assert "created" in claims
        assert "deleted" not in claims


async def test_a_restarted_etcd_is_survived(cluster: DevCluster) -> None:
    """The API server comes back by itself."""
    async with caching(cluster.kubeconfig) as (cache, client):
        await synced(cache)
        await asyncio.to_thread(cluster.processes["etcd"].restart)
        async with asyncio.timeout(30):
            while True:
                try:
                    await apply(client, numbered("after-etcd", 1))
                except ApiError:
                    await asyncio.sleep(0.1)
                else:
                    break
        await asyncio.wait_for(cache.catch_up(), 30)
        assert ("default", "after-etcd") in cache.memory().view.snapshot.claims
        await synced(cache)


async def test_a_list_of_many_pages(cluster: DevCluster) -> None:
    """Pods without claims are not kept; nothing is lost at the seams of pages."""
    client = await KubeClient.connect(str(cluster.kubeconfig))
    names = [f"page-{index:04}" for index in range(1100)]

    async def create(part: list[str]) -> None:
        for name in part:
            await client.create("/api/v1/namespaces/default/persistentvolumeclaims", make.claim(name, 1))

    try:
        await asyncio.gather(*(create(names[start::8]) for start in range(8)))
        async with caching(cluster.kubeconfig) as (cache, _):
            await synced(cache)
            found = [name for _, name in cache.memory().view.snapshot.claims]
            assert sorted(name for name in found if name.startswith("page-")) == names
    finally:
        await client.delete("/api/v1/namespaces/default/persistentvolumeclaims")
        await client.close()


async def test_a_definition_installed_later_is_found(cluster: DevCluster) -> None:
    """Until then it is named, if it is required."""
    cluster.kubectl("delete", "crd", "instancemanagers.longhorn.io")
    try:
        async with caching(cluster.kubeconfig) as (cache, _):
            await until("the problem", lambda: "knows no instancemanagers.longhorn.io" in cache.problem, 20)
            await asyncio.to_thread(cluster.apply, CRDS)
            await synced(cache)
    finally:
        cluster.apply(CRDS)
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")


async def test_what_rbac_forbids_is_named_until_it_is_granted(cluster: DevCluster) -> None:
    """By verb, resource and who asked."""
    cluster.kubectl("-n", LONGHORN_NAMESPACE, "create", "serviceaccount", "reader")
    account = f"--serviceaccount={LONGHORN_NAMESPACE}:reader"
    kubeconfig = cluster.service_account_kubeconfig(LONGHORN_NAMESPACE, "reader")
    try:
        async with caching(kubeconfig) as (cache, _):
            who = f"system:serviceaccount:{LONGHORN_NAMESPACE}:reader"
            text = f'nodes not listed yet: GET /api/v1/nodes: nodes is forbidden: User "{who}" cannot list resource "nodes"'
            await until("the problem", lambda: cache.problem.startswith(text), 10)
            cluster.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=cluster-admin", account)
            await synced(cache)
            cluster.kubectl("delete", "clusterrolebinding", "reader")
            # The API server hears of it a moment later; who catches up before that is not refused.
            may = ("auth", "can-i", "list", "nodes", "--as", who)
            await until("the refusal", lambda: cluster.kubectl(*may, check=False).startswith("no"), 20)
            catching = asyncio.create_task(cache.catch_up())
            await until("the problem", lambda: "cannot" in cache.problem, 10)
            cluster.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=cluster-admin", account)
            await asyncio.wait_for(catching, 20)
            await synced(cache)
    finally:
        cluster.kubectl("delete", "clusterrolebinding", "reader", "--ignore-not-found")
        cluster.kubectl("-n", LONGHORN_NAMESPACE, "delete", "serviceaccount", "reader")


async def test_only_pods_with_claims_are_kept(cluster: DevCluster) -> None:
    """As the API server sends them, with all that it adds."""
    async with caching(cluster.kubeconfig) as (cache, client):
        await synced(cache)
        for name, claims in (("busy", ["data"]), ("idle", [])):
            pod = make.pod(*claims, name=name)
            pod["spec"] = {"volumes": pod["spec"]["volumes"], "containers": [{"name": "main", "image": "none"}]}
            del pod["metadata"]["uid"]
            await client.create(PODS.path("default"), pod)
        await cache.catch_up()
        pods = cache.memory().view.snapshot.pods
        assert [name for _, name in pods if name in ("busy", "idle")] == ["busy"]
        raw = json.loads(await client.get(PODS.path("default", "busy")))
        assert pods["default", "busy"].uid == raw["metadata"]["uid"]
        for name in ("busy", "idle"):
            await client.delete(PODS.path("default", name), {"gracePeriodSeconds": 0})
