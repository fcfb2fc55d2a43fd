"""`longhorn-extender explain` on a live cluster, as from a snapshot.

Workloads that only the cluster has are tested, too.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.kube.resources import STATEFUL_SETS
from tests import builders as make
from tests.builders import Object
from tests.worlds.cluster_cache import PATHS, path_of
from tests.worlds.command_line import Result, Run
from tests.worlds.fake_api import FakeApi, failing, serve
from tests.worlds.two_nodes import database_pod, two_nodes

NAMESPACES = "/api/v1/namespaces"


@asynccontextmanager
async def live_cluster(folder: Path, objects: list[Object], api: FakeApi | None = None) -> AsyncIterator[str]:
    """Serves objects with a fake API server; yields its kubeconfig."""
    api = api or FakeApi()
    for path in (*PATHS.values(), STATEFUL_SETS.path()):
        api.add(path)
    for raw in objects:
        api.add(STATEFUL_SETS.path() if raw["kind"] == "StatefulSet" else path_of(raw), raw)
    async with serve(api.handle, folder) as kubeconfig:
        yield str(kubeconfig)


def forbidding(api: FakeApi, *paths: str) -> FakeApi:
    """The fake API server, which refuses to list these paths."""
    listed = api.handle
    refuse = failing(403, "no", "Forbidden")

    async def handle(request: Any) -> Any:
        return await (refuse(request) if request.path in paths else listed(request))

    api.handle = handle  # type: ignore[method-assign]
    return api


async def run_in_thread(run: Run, *arguments: str) -> Result:
    async with asyncio.timeout(60):
        return await asyncio.to_thread(run, *arguments)


def anti_affinity(app: str) -> Object:
    """A required anti-affinity on each node, in namespaces of team x."""
    term = {
        "topologyKey": "node",
        "labelSelector": {"matchLabels": {"app": app}},
        "namespaceSelector": {"matchLabels": {"team": "x"}},
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def constrained_cluster() -> list[Object]:
    """The waiting pod db-0 keeps away from web. web runs on node `b` in the namespace `shop`."""
    objects = two_nodes()
    for raw in objects:
        if raw["kind"] == "Node" and raw["apiVersion"] == "v1":
            raw["metadata"]["labels"] = {"node": raw["metadata"]["name"]}
            raw["status"] = {"allocatable": {"cpu": "4", "pods": "10"}}
    waiting = database_pod(0)
    waiting["spec"]["affinity"] = anti_affinity("web")
    web = make.pod(name="web", namespace="shop", node="b")
    web["metadata"]["labels"] = {"app": "web", "note": "private"}
    return [*objects, make.claim("data-0", 10), waiting, web]


async def test_a_snapshot_has_what_kube_scheduler_filters_by(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "snapshot.yaml"
    api = FakeApi()
    shop = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "x", "cost": "9"}}}
    api.add(NAMESPACES, shop)
    async with live_cluster(tmp_path, constrained_cluster(), api) as kubeconfig:
        live = await run_in_thread(run, "explain", "--kubeconfig", kubeconfig, "db-0", "-o", "json")
        written = await run_in_thread(run, "snapshot", "--kubeconfig", kubeconfig, "-f", str(file))
    assert (live.code, live.err, written.code) == (0, "", 0)
    explained = await run_in_thread(run, "explain", "--snapshot", str(file), "db-0", "-o", "json")
    assert (explained.out, explained.err) == (live.out, "")
    plugins = {name: entry["kubeScheduler"]["plugin"] for name, entry in live.answer["nodes"].items()}
    assert plugins == {"a": "", "b": "InterPodAffinity"}
    assert not any(text in file.read_text() for text in ("private", "cost"))


async def test_namespaces_that_may_not_be_listed_are_a_warning(tmp_path: Path, run: Run) -> None:
    async with live_cluster(tmp_path, constrained_cluster(), forbidding(FakeApi(), NAMESPACES)) as kubeconfig:
        result = await run_in_thread(run, "explain", "--kubeconfig", kubeconfig, "db-0")
    assert (result.code, result.err) == (
        0, "warning: namespaces cannot be listed, so a namespaceSelector of a pod selects none\n",
    )  # fmt: skip


async def test_a_wrong_namespace_of_longhorn_is_a_warning(tmp_path: Path, run: Run) -> None:
    """Every node would be refused for no visible reason."""
    objects = [raw for raw in two_nodes() if raw["apiVersion"] != make.LONGHORN or raw["kind"] != "Node"]
    async with live_cluster(tmp_path, [*objects, make.claim("data-0", 10), database_pod(0)]) as kubeconfig:
        result = await run_in_thread(run, "explain", "--kubeconfig", kubeconfig, "db-0")
    assert (result.code, result.err) == (
        1, "warning: no nodes.longhorn.io in the namespace longhorn-system; see --longhorn-namespace\n",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["deploy/web", "deployments/web", "Deployment/web"])
async def test_a_workload_is_read_from_the_cluster(tmp_path: Path, run: Run, name: str) -> None:
    template = {"spec": {"nodeSelector": {"disk": "fast"}, "containers": []}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"}}
    api = FakeApi()
    api.add("/apis/apps/v1/namespaces/shop/deployments", {**deployment, "spec": {"template": template}})
    async with live_cluster(tmp_path, two_nodes(), api) as kubeconfig:
        result = await run_in_thread(run, "explain", "--kubeconfig", kubeconfig, name, "-n", "shop", "-o", "json")
        missing = await run_in_thread(run, "explain", "--kubeconfig", kubeconfig, "deploy/other", "-n", "shop")
    answer = result.answer
    assert (answer["pod"], result.code) == ("shop/web-0", 1)
    assert {entry["kubeScheduler"]["plugin"] for entry in answer["nodes"].values()} == {"NodeAffinity"}
    assert (missing.code, missing.out, missing.err.count("\n")) == (2, "", 1)


async def test_a_daemon_sets_pod_tolerates_a_cordon(tmp_path: Path, run: Run) -> None:
    cordoned = two_nodes()
    for raw in cordoned:
        if raw["kind"] == "Node" and raw["apiVersion"] == "v1":
            raw["spec"] = {"unschedulable": True}
    api = FakeApi()
    for plural, kind in (("daemonsets", "DaemonSet"), ("deployments", "Deployment")):
        metadata = {"name": "web", "namespace": "default"}
        spec: Object = {"template": {"spec": {"containers": []}}}
        api.add(f"/apis/apps/v1/namespaces/default/{plural}", {"kind": kind, "metadata": metadata, "spec": spec})
    async with live_cluster(tmp_path, cordoned, api) as kubeconfig:
        daemon = await run_in_thread(run, "explain", "--kubeconfig", kubeconfig, "ds/web")
        deployed = await run_in_thread(run, "explain", "--kubeconfig", kubeconfig, "deploy/web")
    assert (daemon.code, deployed.code) == (0, 1)
