"""The cache with a real API server and etcd: catching up, and failures of both."""

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
from app.kube.cluster_cache import WATCHED, ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE, PODS, Resource
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import group_of
from scheduler_core.model.snapshot import Snapshot
from tests import builders as make
from tests.builders import NOW
from tests.worlds.fake_api import Object, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
CRDS = Path(__file__).parents[3] / "simulator/crds"
RESOURCES: dict[tuple[str, str], Resource] = {
    (entry.resource.group, entry.resource.kind): entry.resource for entry in WATCHED
}
STALE_AFTER = 1.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A control plane with Longhorn's definitions, in which only the tests change objects."""
    with DevCluster(tmp_path_factory.mktemp("cluster"), ClusterOptions(audit=False)) as running:
        running.kubectl("create", "namespace", LONGHORN_NAMESPACE)
        running.apply(CRDS)
        running.kubectl("wait", "--for=condition=Established", "crd", "--all")
        for name in ("kube-scheduler", "kube-controller-manager", "kwok"):
            running.processes[name].stop()  # only the tests change objects
        yield running


@asynccontextmanager
async def running_cache(kubeconfig: Path, silence: float = 90) -> AsyncIterator[tuple[ClusterCache, KubeClient]]:
    """A running cache, and a client for the test; the cache need not be filled yet."""
    client = await KubeClient.connect(str(kubeconfig))
    test_client = await KubeClient.connect(str(kubeconfig))
    timing = Timing(time.monotonic, random.uniform, silence)
    cache = ClusterCache(client, LONGHORN_NAMESPACE, timing, lambda: NOW, STALE_AFTER)
    task = asyncio.create_task(cache.run())
    try:
        yield cache, test_client
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()
        await test_client.close()


async def wait_for_sync(cache: ClusterCache) -> None:
    await until("the caches", lambda: not cache.problem, 20)


def resource_of(raw: Object) -> tuple[Resource, str, str]:
    metadata = raw["metadata"]
    return RESOURCES[group_of(raw["apiVersion"]), raw["kind"]], metadata.get("namespace", ""), metadata["name"]


async def apply(client: KubeClient, raw: Object) -> None:
    """Creates or replaces an object with its status, without waiting for the watch."""
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
    """Deletes an object at once, if it exists."""
    resource, namespace, name = resource_of(raw)
    try:
        await client.patch(resource.path(namespace, name), {"metadata": {"finalizers": None}})
        await client.delete(resource.path(namespace, name), {"gracePeriodSeconds": 0})
    except ApiError as error:
        if not error.not_found:
            raise


def numbered_claim(name: str, number: int) -> Object:
    raw = make.claim(name, 1)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": str(number)}
    return raw


async def test_catching_up_delivers_everything_written_before(cluster: DevCluster) -> None:
    chance = random.Random(5)  # noqa: S311 # repeatable, not secret
    written: dict[str, int] = {}
    async with running_cache(cluster.kubeconfig) as (cache, client):

        async def write(name: str) -> None:
            for number in itertools.count():
                await apply(client, numbered_claim(name, number))
                written[name] = number
                await asyncio.sleep(chance.random() / 20)

        await wait_for_sync(cache)
        writers = [asyncio.create_task(write(f"number-{index}")) for index in range(8)]
        durations = []
        for _ in range(4):
            await asyncio.sleep(chance.random())
            expected = dict(written)
            began = time.monotonic()
            await cache.catch_up()
            durations.append(time.monotonic() - began)
            claims = cache.state().view.snapshot.claims
            for name, number in expected.items():
                assert int(claims["default", name].selected_node) >= number
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        await cache.catch_up()
        claims = cache.state().view.snapshot.claims
        # A write that was cancelled may have been made.
        assert all(int(claims["default", name].selected_node) - number in (0, 1) for name, number in written.items())
    print(f"catching up took {min(durations):.2f} to {max(durations):.2f} s; {sum(written.values())} writes")
    assert max(durations) < 3


def comparable(value: Any) -> Any:
    if isinstance(value, Snapshot):
        return {name: comparable(getattr(value, name)) for name in Snapshot.__match_args__}
    return dict(value) if hasattr(value, "items") else value


def contents(view: View) -> dict[str, Any]:
    parts: tuple[Any, Any] = (view.cluster, view.indexes)
    values = {name: comparable(getattr(part, name)) for part in parts for name in type(part).__match_args__}
    values["settings"] = repr(values["settings"])
    return values


def random_change(chance: random.Random) -> list[Object]:
    """A random change: one or more objects."""
    name = chance.choice("abc")
    node = chance.choice(["", "a", "b", "c"])
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
            [numbered_claim(f"claim-{name}", chance.randrange(9))],
            [make.setting("storage-over-provisioning-percentage", chance.choice(["100", "200", "x"]))],
            [pod],
            [make.storage_class(f"class-{name}", default=chance.random() < 0.5)],
        ]
    )


@pytest.mark.smoke
async def test_updates_give_the_view_of_a_fresh_cache(cluster: DevCluster) -> None:
    chance = random.Random(6)  # noqa: S311 # repeatable, not secret
    changed: list[Object] = []
    async with running_cache(cluster.kubeconfig) as (cache, client):
        await wait_for_sync(cache)
        for _ in range(150):
            for raw in random_change(chance):
                changed.append(raw)
                if chance.random() < 0.25 or (raw["kind"] == "StorageClass"):
                    await delete(client, raw)
                if chance.random() < 0.75:
                    try:
                        await apply(client, raw)
                    except ApiError as error:
                        if error.status != 422:  # what may not be changed, such as a pod's volumes
                            raise
            if chance.random() < 0.3:
                cache.state()
        await cache.catch_up()
        async with running_cache(cluster.kubeconfig) as (fresh, _):
            await wait_for_sync(fresh)
            assert contents(cache.state().view) == contents(fresh.state().view)
        assert cache.state().view.version > 30
        for raw in changed:
            await delete(client, raw)


async def test_a_stopped_api_server_is_a_problem_until_it_continues(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kube.client.CALL_TIMEOUT", 2.0)
    server = cluster.processes["kube-apiserver"]
    async with running_cache(cluster.kubeconfig, silence=2.0) as (cache, client):
        await wait_for_sync(cache)
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
        await apply(client, numbered_claim("after-the-pause", 1))
        await cache.catch_up()
        assert ("default", "after-the-pause") in cache.state().view.snapshot.claims


async def test_a_killed_api_server_is_read_again_after_its_restart(cluster: DevCluster) -> None:
    """Objects changed around its death are right, though earlier versions may be too old."""
    server = cluster.processes["kube-apiserver"]
    async with running_cache(cluster.kubeconfig) as (cache, client):
        await apply(client, numbered_claim("deleted", 1))
        await wait_for_sync(cache)
        await cache.catch_up()
        assert ("default", "deleted") in cache.state().view.snapshot.claims
        server.kill()
        await until("the problems", lambda: all(status.problem for status in cache.statuses.values()), 20)
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(20):
            while True:
                try:
                    await delete(client, numbered_claim("deleted", 1))
                    await apply(client, numbered_claim("created", 1))
                except ApiError as error:
                    if not (error.unreachable or error.forbidden):
                        raise
                    await asyncio.sleep(0.1)
                else:
                    break
        await wait_for_sync(cache)
        await asyncio.wait_for(cache.catch_up(), 20)
        claims = {name for _, name in cache.state().view.snapshot.claims}
        assert "created" in claims
        assert "deleted" not in claims


async def test_the_cache_survives_a_restart_of_etcd(cluster: DevCluster) -> None:
    async with running_cache(cluster.kubeconfig) as (cache, client):
        await wait_for_sync(cache)
        await asyncio.to_thread(cluster.processes["etcd"].restart)
        async with asyncio.timeout(30):
            while True:
                try:
                    await apply(client, numbered_claim("after-etcd", 1))
                except ApiError:
                    await asyncio.sleep(0.1)
                else:
                    break
        await asyncio.wait_for(cache.catch_up(), 30)
        assert ("default", "after-etcd") in cache.state().view.snapshot.claims
        await wait_for_sync(cache)


async def test_a_definition_that_is_installed_later_is_watched(cluster: DevCluster) -> None:
    """A required kind is a problem until then."""
    cluster.kubectl("delete", "crd", "instancemanagers.longhorn.io")
    try:
        async with running_cache(cluster.kubeconfig) as (cache, _):
            await until("the problem", lambda: "knows no instancemanagers.longhorn.io" in cache.problem, 20)
            await asyncio.to_thread(cluster.apply, CRDS)
            await wait_for_sync(cache)
            assert cache.problem == ""
    finally:
        cluster.apply(CRDS)
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")


async def test_a_forbidden_kind_is_named_until_it_is_granted(cluster: DevCluster) -> None:
    cluster.kubectl("-n", LONGHORN_NAMESPACE, "create", "serviceaccount", "reader")
    account = f"--serviceaccount={LONGHORN_NAMESPACE}:reader"
    kubeconfig = cluster.service_account_kubeconfig(LONGHORN_NAMESPACE, "reader")
    try:
        async with running_cache(kubeconfig) as (cache, _):
            user = f"system:serviceaccount:{LONGHORN_NAMESPACE}:reader"
            text = f'nodes not listed yet: GET /api/v1/nodes: nodes is forbidden: User "{user}" cannot list resource "nodes"'
            await until("the problem", lambda: cache.problem.startswith(text), 10)
            cluster.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=cluster-admin", account)
            await wait_for_sync(cache)
            cluster.kubectl("delete", "clusterrolebinding", "reader")
            # The API server learns of it a moment later; a cache that catches up before that is not refused.
            can_list = ("auth", "can-i", "list", "nodes", "--as", user)
            await until("the refusal", lambda: cluster.kubectl(*can_list, check=False).startswith("no"), 20)
            catching = asyncio.create_task(cache.catch_up())
            await until("the problem", lambda: "cannot" in cache.problem, 10)
            cluster.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=cluster-admin", account)
            await asyncio.wait_for(catching, 20)
            await wait_for_sync(cache)
            assert cache.problem == ""
    finally:
        cluster.kubectl("delete", "clusterrolebinding", "reader", "--ignore-not-found")
        cluster.kubectl("-n", LONGHORN_NAMESPACE, "delete", "serviceaccount", "reader")


async def test_only_pods_with_claims_are_stored(cluster: DevCluster) -> None:
    async with running_cache(cluster.kubeconfig) as (cache, client):
        await wait_for_sync(cache)
        for name, claims in (("busy", ["data"]), ("idle", [])):
            pod = make.pod(*claims, name=name)
            pod["spec"] = {"volumes": pod["spec"]["volumes"], "containers": [{"name": "main", "image": "none"}]}
            del pod["metadata"]["uid"]
            await client.create(PODS.path("default"), pod)
        await cache.catch_up()
        pods = cache.state().view.snapshot.pods
        assert [name for _, name in pods if name in ("busy", "idle")] == ["busy"]
        raw = json.loads(await client.get(PODS.path("default", "busy")))
        assert pods["default", "busy"].uid == raw["metadata"]["uid"]
        for name in ("busy", "idle"):
            await client.delete(PODS.path("default", name), {"gracePeriodSeconds": 0})
