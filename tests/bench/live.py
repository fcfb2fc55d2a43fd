"""The caches of a large cluster: memory, time until synced, and what one event and one question cost.

A fake API server in a process of its own serves 5,000 nodes, 100,000 pods (20,000 with claims), 20,000 volumes and 40,000 replicas as
bytes of about the size real ones have; the real caches list and watch them in another process, which measures itself.
Budgets: 250 MB at rest, 400 MB at the peak, synced within 30 s, and an event's cost must not grow with the cluster.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from aiohttp import web

from app.api.extender_codec import decode_filter
from app.decisions.evaluator import Scheduling
from app.kube.client import KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE
from app.kube.watched_kinds import WATCHED
from scheduler_core.convert.kube import Pod as WirePod
from scheduler_core.convert.kube import pod as read_pod
from scheduler_core.convert.meta import shape
from scheduler_core.extender.filter import Options
from scheduler_core.model.kube import Pod
from tests.bench import cluster
from tests.bench.http import _free_port, _wait_for
from tests.bench.live_cluster import STORAGE, Objects, uid

GI = cluster.GI
SIZES = (500, 5000)
PATHS = {entry.kind.field: entry.resource.path(entry.namespace(LONGHORN_NAMESPACE)) for entry in WATCHED}
PAGE = 500
EVENTS = 400
REPEATS = 20


def run() -> str:
    """Measures clusters of two sizes and returns the tables."""
    results = {size: _measured(size) for size in SIZES}
    head = f"{'live caches':<58}" + "".join(f"{f'{size} nodes':>14}" for size in SIZES)
    rows = (f"{name:<58}" + "".join(f"{results[size][name]:>14.1f}" for size in SIZES) for name in results[SIZES[-1]])
    return "\n".join(["", head, *rows])


def _measured(nodes: int) -> dict[str, float]:
    port = _free_port()
    server = subprocess.Popen([sys.executable, "-m", "tests.bench.live", "serve", str(nodes), str(port)])
    try:
        for _ in range(120):
            try:
                _wait_for(port, server)
                break
            except RuntimeError:
                if server.poll() is not None:
                    raise
        answer = subprocess.run(
            [sys.executable, "-m", "tests.bench.live", "measure", str(nodes), str(port)],
            stdout=subprocess.PIPE, check=True, timeout=900,
        )  # fmt: skip
        found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
        return found
    finally:
        server.kill()
        server.wait()


def serve(nodes: int, port: int) -> None:
    """Serves the cluster: every list page is made once; watches bring what is posted to /event, or end with 410 after /expire."""
    objects = Objects(nodes)
    pages: dict[str, list[bytes]] = {}
    for field, path in PATHS.items():
        found = [json.dumps(raw, separators=(",", ":")).encode() for raw in objects.of(field)]
        pages[path] = [b",".join(found[start : start + PAGE]) for start in range(0, max(1, len(found)), PAGE)]
    expired = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/expire":
            expired.set()
            await asyncio.sleep(0.5)
            expired.clear()
            return web.Response()
        if "watch" in request.query:
            return await _watch(request, expired)
        index = int(request.query.get("continue", "0"))
        more = f',"continue":"{index + 1}"' if index + 1 < len(pages[request.path]) else ""
        head = f'{{"metadata":{{"resourceVersion":"1000000"{more}}},"items":['
        return web.Response(body=head.encode() + pages[request.path][index] + b"]}", content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    web.run_app(app, host="127.0.0.1", port=port, print=None, handle_signals=False)


async def _watch(request: web.Request, expired: asyncio.Event) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await expired.wait()
    await response.write(b'{"type":"ERROR","object":{"code":410,"message":"expired"}}\n')
    return response


def _memory(key: str) -> float:
    """MB of this process: VmRSS now, VmHWM at the most since the last reset."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{key}:")[2].split()[0]) / 1024


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def measure(nodes: int, port: int) -> dict[str, float]:
    """Everything about one size of cluster."""
    found: dict[str, float] = {}
    async with _caching(port) as (cache, client):
        began = time.perf_counter()
        await asyncio.wait_for(cache.synced(), 300)
        cache.memory()
        found["seconds until synced"] = time.perf_counter() - began
        await asyncio.sleep(1)
        gc.collect()
        found["MB at rest"] = _memory("VmRSS")
        await _questions(cache, nodes, found)
        found["MB after questions of six kinds"] = _memory("VmRSS")
        _events(cache, nodes, found)
        await _relist(cache, client, nodes, found)
        return found


@asynccontextmanager
async def _caching(port: int) -> AsyncIterator[tuple[ClusterCache, KubeClient]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kubeconfig"
        context = {"name": "it", "context": {"cluster": "it", "user": "it"}}
        clusters = [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{port}"}}]
        users = [{"name": "it", "user": {"token": "none"}}]
        kubeconfig = {"current-context": "it", "contexts": [context], "clusters": clusters, "users": users}
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **kubeconfig}))
        client = await KubeClient.connect(str(file))
    timing = Timing(time.monotonic, random.uniform)
    cache = ClusterCache(client, LONGHORN_NAMESPACE, timing, lambda: datetime.now(UTC), 60)
    task = asyncio.create_task(cache.run())
    try:
        yield cache, client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


def _asking(kind: int, turn: int = 0) -> Pod:
    """A pod with one ephemeral volume of a kind."""
    spec = {"storageClassName": f"storage-{kind}", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{5 + turn}Gi"}}}  # fmt: skip
    volume = {"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    raw = {"metadata": {"name": f"new-{kind}", "namespace": "default", "uid": "u"}, "spec": {"volumes": [volume]}}
    return read_pod(shape("Pod", raw, WirePod))


async def _questions(cache: ClusterCache, nodes: int, found: dict[str, float]) -> None:
    """Cold; the same again; and after one Longhorn node has changed."""
    scheduling = Scheduling(cache, Options())
    names = [cluster.name_of(index) for index in range(nodes)]
    objects = Objects(nodes)
    reflector = cache._reflectors["longhorn_nodes"]
    for kind, label in enumerate(STORAGE):
        began = time.perf_counter()
        decision = await scheduling.filter(_asking(kind), names)
        found[f"ms, question about {label}: cold"] = (time.perf_counter() - began) * 1e3
        if not any(reason.fits for reason in decision.reasons):
            raise RuntimeError(f"{label}: no node fits, so this measures something else: {set(decision.reasons)}")
    for kind, label in enumerate(STORAGE):
        times = []
        for turn in range(REPEATS):
            reflector._heard(_event(objects.longhorn_node(turn * 7 % nodes, (190 + turn) * GI + kind)))
            began = time.perf_counter()
            await scheduling.filter(_asking(kind), names)
            times.append(time.perf_counter() - began)
        found[f"ms, question about {label}: after one changed node"] = median(times) * 1e3


def _event(raw: dict[str, Any]) -> bytes:
    return json.dumps({"type": "MODIFIED", "object": raw}).encode()


def _events(cache: ClusterCache, nodes: int, found: dict[str, float]) -> None:
    """One event at a time, each followed by a step to the next view: decoding it, and the view."""
    objects, some = Objects(nodes), range(EVENTS)
    stories: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "Longhorn node's status": ("longhorn_nodes", [objects.longhorn_node(i % nodes, 150 * GI + i) for i in some]),
        "Longhorn volume's status": ("volumes", [objects.volume(i, i) for i in some]),
        "replica moved": ("replicas", [objects.replica(i, uid(i + 1)) for i in some]),
        "replica unchanged": ("replicas", [objects.replica(4000 + i % 1000) for i in some]),
        "pod with a claim, changed": (
            "pods", [{**raw, "status": {"phase": "Failed"}} for raw in (objects.pod(5 * i) for i in some)]),
        "pod without claims": ("pods", [objects.pod(5 * i + 1) for i in some]),
        "Kubernetes node's heartbeat": ("nodes", [objects.node(i % nodes) for i in some]),
    }  # fmt: skip
    for label, (field, raws) in stories.items():
        reflector, times = cache._reflectors[field], []
        for line in [_event(raw) for raw in raws]:
            began = time.perf_counter()
            reflector._heard(line)
            heard = time.perf_counter()
            cache.memory()
            times.append((heard - began, time.perf_counter() - heard))
        found[f"us, {label}: decoding"] = median(heard for heard, _ in times) * 1e6
        found[f"us, {label}: next view"] = median(step for _, step in times) * 1e6
    began = time.perf_counter()
    for _ in range(EVENTS):
        cache.memory()
    found["us, nothing happened: next view"] = (time.perf_counter() - began) / EVENTS * 1e6


async def _relist(cache: ClusterCache, client: KubeClient, nodes: int, found: dict[str, float]) -> None:
    """Every kind at once, while a request of full nodes is in hand."""
    body = bytearray(cluster.nodes_body(cluster.pod("bench-0", [GI]), nodes, 11_000))
    question = decode_filter(body)
    found["MB of the request in hand"] = len(body) / 1e6
    lists = {name: standing.lists for name, standing in cache.standings.items()}
    gc.collect()
    _forget_peak()
    found["MB at rest with it"] = _memory("VmRSS")
    began = time.perf_counter()
    await client.get("/expire")
    while any(standing.lists == lists[name] for name, standing in cache.standings.items()):
        await asyncio.sleep(0.01)
        cache.memory()
    found["seconds for a relist of everything"] = time.perf_counter() - began
    found["MB at the peak of it"] = _memory("VmHWM")
    gc.collect()
    found["MB afterwards"] = _memory("VmRSS")
    if len(question.candidates) != nodes:
        raise RuntimeError("the request was not read")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["measure"]:
        print(json.dumps(asyncio.run(measure(int(sys.argv[2]), int(sys.argv[3])))))
    else:
        print(run())
