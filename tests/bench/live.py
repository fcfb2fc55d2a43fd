"""The caches of a large cluster: their memory, first sync and costs.

The costs are those of one event and one request. A fake API server in a process of its own serves 5,000 nodes, 100,000 pods (20,000
with claims), 20,000 volumes and 40,000 replicas as bytes of about the size of real objects; the real caches list and watch them in
another process, which measures itself. Budgets: 250 MB at rest, 400 MB at the peak, synced within 30 s, and an event's cost must not
grow with the cluster.
"""

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from aiohttp import web

from app.api.extender_codec import decode_filter
from app.evaluator import Evaluator
from app.kube.client import KubeClient
from app.kube.cluster_cache import WATCHED, ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.model.kube import Pod
from tests import builders as make
from tests.bench import cluster
from tests.bench.http import find_free_port, resident_mb, wait_until_listening
from tests.bench.live_cluster import STORAGE, Objects, uid

GI = cluster.GI
SIZES = (500, 5000)
PATHS = {entry.kind.field: entry.resource.path(entry.namespace(LONGHORN_NAMESPACE)) for entry in WATCHED}
PAGE = 500
EVENTS = 400
REPEATS = 20


def run() -> str:
    results = {size: _measure_in_processes(size) for size in SIZES}
    head = f"{'live caches':<58}" + "".join(f"{f'{size} nodes':>14}" for size in SIZES)
    rows = (f"{name:<58}" + "".join(f"{results[size][name]:>14.1f}" for size in SIZES) for name in results[SIZES[-1]])
    return "\n".join(["", head, *rows])


def _measure_in_processes(nodes: int) -> dict[str, float]:
    port = find_free_port()
    server = subprocess.Popen([sys.executable, "-m", "tests.bench.live", "serve", str(nodes), str(port)])
    try:
        for _ in range(120):
            try:
                wait_until_listening(port, server)
                break
            except RuntimeError:
                if server.poll() is not None:
                    raise
        measurement = subprocess.run(
            [sys.executable, "-m", "tests.bench.live", "measure", str(nodes), str(port)],
            stdout=subprocess.PIPE, check=True, timeout=900,
        )  # fmt: skip
        results: dict[str, float] = json.loads(measurement.stdout.splitlines()[-1])
        return results
    finally:
        server.kill()
        server.wait()


def serve(nodes: int, port: int) -> None:
    """Serves lists and watches of the cluster. Every list page is made once. A watch sends no event, and ends with 410 after /expire."""
    objects = Objects(nodes)
    pages: dict[str, list[bytes]] = {}
    for field, path in PATHS.items():
        items = [json.dumps(raw, separators=(",", ":")).encode() for raw in objects.of(field)]
        pages[path] = [b",".join(items[start : start + PAGE]) for start in range(0, max(1, len(items)), PAGE)]
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


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def measure(nodes: int, port: int) -> dict[str, float]:
    """Measures a cluster of one size."""
    results: dict[str, float] = {}
    async with _running_cache(port) as (cache, client):
        started = time.perf_counter()
        await asyncio.wait_for(cache.wait_for_sync(), 300)
        cache.state()
        results["seconds until synced"] = time.perf_counter() - started
        await asyncio.sleep(1)
        gc.collect()
        results["MB at rest"] = resident_mb(os.getpid())
        await _measure_requests(cache, nodes, results)
        results["MB after questions of six kinds"] = resident_mb(os.getpid())
        _measure_events(cache, nodes, results)
        await _measure_relist(cache, client, nodes, results)
        return results


@asynccontextmanager
async def _running_cache(port: int) -> AsyncIterator[tuple[ClusterCache, KubeClient]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kubeconfig"
        context = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
        clusters = [{"name": "bench", "cluster": {"server": f"http://127.0.0.1:{port}"}}]
        users = [{"name": "bench", "user": {"token": "none"}}]
        kubeconfig = {"current-context": "bench", "contexts": [context], "clusters": clusters, "users": users}
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


def _new_pod(kind: int) -> Pod:
    ephemeral = {"data": make.ephemeral_spec(5, f"storage-{kind}")}
    return make.as_pod(make.pod(name=f"new-{kind}", uid="u", ephemeral=ephemeral))


async def _measure_requests(cache: ClusterCache, nodes: int, results: dict[str, float]) -> None:
    evaluator = Evaluator(cache, FilterOptions())
    names = [cluster.name_of(index) for index in range(nodes)]
    objects = Objects(nodes)
    deliver = _delivery(cache, "longhorn_nodes")
    for kind, label in enumerate(STORAGE):
        started = time.perf_counter()
        decision = await evaluator.decide(_new_pod(kind), names)
        results[f"ms, question about {label}: cold"] = (time.perf_counter() - started) * 1e3
        if not any(reason.fits for reason in decision.reasons):
            raise RuntimeError(f"{label}: no node fits, so this measures something else: {set(decision.reasons)}")
    for kind, label in enumerate(STORAGE):
        times = []
        for turn in range(REPEATS):
            deliver(_event(objects.longhorn_node(turn * 7 % nodes, (190 + turn) * GI + kind)))
            started = time.perf_counter()
            await evaluator.decide(_new_pod(kind), names)
            times.append(time.perf_counter() - started)
        results[f"ms, question about {label}: after one changed node"] = median(times) * 1e3


def _delivery(cache: ClusterCache, field: str) -> Callable[[bytes], None]:
    """Returns what the reflector of a kind calls with each line of its watch: there is no API server here."""
    return cache._members[field].reflector._handle_line  # noqa: SLF001


def _event(raw: dict[str, Any]) -> bytes:
    return json.dumps({"type": "MODIFIED", "object": raw}).encode()


def _measure_events(cache: ClusterCache, nodes: int, results: dict[str, float]) -> None:
    objects = Objects(nodes)
    indexes = range(EVENTS)
    events_by_label: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "Longhorn node's status": ("longhorn_nodes", [objects.longhorn_node(i % nodes, 150 * GI + i) for i in indexes]),
        "Longhorn volume's status": ("volumes", [objects.volume(i, i) for i in indexes]),
        "replica moved": ("replicas", [objects.replica(i, uid(i + 1)) for i in indexes]),
        "replica unchanged": ("replicas", [objects.replica(4000 + i % 1000) for i in indexes]),
        "pod with a claim, changed": (
            "pods", [{**raw, "status": {"phase": "Failed"}} for raw in (objects.pod(5 * i) for i in indexes)]),
        "pod without claims": ("pods", [objects.pod(5 * i + 1) for i in indexes]),
        "Kubernetes node's heartbeat": ("nodes", [objects.node(i % nodes) for i in indexes]),
    }  # fmt: skip
    for label, (field, raws) in events_by_label.items():
        deliver = _delivery(cache, field)
        times = []
        for line in [_event(raw) for raw in raws]:
            started = time.perf_counter()
            deliver(line)
            decoded = time.perf_counter()
            cache.state()
            times.append((decoded - started, time.perf_counter() - decoded))
        results[f"us, {label}: decoding"] = median(decoding for decoding, _ in times) * 1e6
        results[f"us, {label}: next view"] = median(update for _, update in times) * 1e6
    started = time.perf_counter()
    for _ in range(EVENTS):
        cache.state()
    results["us, nothing happened: next view"] = (time.perf_counter() - started) / EVENTS * 1e6


async def _measure_relist(cache: ClusterCache, client: KubeClient, nodes: int, results: dict[str, float]) -> None:
    """Measures listing every kind again while a large request is being served."""
    body = bytearray(cluster.nodes_body(cluster.pod("bench-0", [GI]), nodes, 11_000))
    request = await decode_filter(body, lambda _: None)
    results["MB of the request in hand"] = len(body) / 1e6
    lists = {name: status.lists for name, status in cache.statuses.items()}
    gc.collect()
    _reset_peak()
    results["MB at rest with it"] = resident_mb(os.getpid())
    started = time.perf_counter()
    await client.get("/expire")
    while any(status.lists == lists[name] for name, status in cache.statuses.items()):
        await asyncio.sleep(0.01)
        cache.state()
    results["seconds for a relist of everything"] = time.perf_counter() - started
    results["MB at the peak of it"] = resident_mb(os.getpid(), "VmHWM")
    gc.collect()
    results["MB afterwards"] = resident_mb(os.getpid())
    if len(request.candidates) != nodes:
        raise RuntimeError("the request was not read")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["measure"]:
        print(json.dumps(asyncio.run(measure(int(sys.argv[2]), int(sys.argv[3])))))
    else:
        print(run())
