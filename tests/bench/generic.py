"""The cost of the generic scheduler: `python -m tests.bench generic`.

A decision by the default policy among 5,000 nodes that run 100,000 pods of 1,000 services, one pod after
the other (budget: 250 ms); a what-if of 500 pods on 1,000 nodes, the whole command (budget: 2 s of CPU); and /prioritize over HTTP by
the extender's policy, compared with /filter of the same pod: requirements that were evaluated before, and new ones (budget for those
that were: 3 ms of CPU at 1,000 nodes and 12 ms at 5,000).
"""

import json
import random
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import DEFAULT_POLICY
from scheduler_core.generic.scheduler import schedule
from scheduler_core.model.constraints import PodScheduling
from scheduler_core.model.generic import Node, Service
from scheduler_core.model.kube import Pod
from tests.bench import cluster, http

NODES = 5_000
PODS_A_NODE = 20
SERVICES = 1_000
DECISIONS = 20
NAMES = (1_000, 5_000)
REQUESTS = 60
BUDGET_MS = 250
WHAT_IF_NODES = 1_000
WHAT_IF_PODS = 500
WHAT_IF_BUDGET = 2
TOPOLOGY = Path(__file__).parents[2] / "examples" / "policies" / "combined.json"
_MI = 1024**2


def run() -> str:
    return "\n".join(["", *_measure_decisions(), "", *_measure_what_if(), "", *_measure_prioritize()])


def _measure_decisions() -> Iterator[str]:
    chance = random.Random(11)  # noqa: S311 # repeatable, not secret
    state = _state()
    decision_times = []
    binding_times = []
    for number in range(DECISIONS):
        pod = _pod(NODES * PODS_A_NODE + number, "")
        started = time.process_time()
        decision = schedule(pod, None, state, DEFAULT_POLICY, chance.choice)
        decided = time.process_time()
        state = state.with_binding(pod, decision.node)
        decision_times.append(decided - started)
        binding_times.append(time.process_time() - decided)
        if len(decision.feasible) != NODES:
            raise RuntimeError("the pod does not fit everywhere: this measures something else")
    yield f"{f'default policy, {NODES} nodes, {NODES * PODS_A_NODE} pods':<46}{'p50 ms':>10}{'p99 ms':>10}{'budget':>10}"
    yield f"{'a decision':<46}{median(decision_times) * 1e3:>10.1f}{http.p99(decision_times) * 1e3:>10.1f}{BUDGET_MS:>10}"
    yield f"{'the next state, with the pod bound':<46}{median(binding_times) * 1e3:>10.2f}{http.p99(binding_times) * 1e3:>10.2f}"


def _state() -> GenericClusterState:
    chance = random.Random(7)  # noqa: S311 # repeatable, not secret
    nodes = [
        Node(cluster.name_of(index), {"zone": f"z{index % 3}"}, 32_000, 128 * 1024 * _MI, 110) for index in range(NODES)
    ]
    pods = [_pod(number, cluster.name_of(chance.randrange(NODES))) for number in range(NODES * PODS_A_NODE)]
    services = [Service("default", f"app-{number}", frozenset({("app", str(number))})) for number in range(SERVICES)]
    return GenericClusterState.of(nodes, pods, services)


def _pod(number: int, node: str) -> Pod:
    cpu = 100 + number % 7 * 50
    memory = (128 + number % 5 * 64) * _MI
    labels = frozenset({("app", str(number % SERVICES)), ("tier", "web")})
    scheduling = PodScheduling(labels, frozenset(), cpu, memory, cpu, memory)
    return Pod("default", f"pod-{number}", node_name=node, scheduling=scheduling)


def _measure_what_if() -> Iterator[str]:
    yield f"{f'what-if, {WHAT_IF_PODS} pods on {WHAT_IF_NODES} nodes':<46}{'CPU s':>10}{'budget':>10}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot.json"
        file.write_text(json.dumps(_snapshot()))
        for label, options in (("default policy", []), ("zones, racks and preferences", ["--policy", str(TOPOLOGY)])):
            times = [_what_if_seconds(file, options) for _ in range(3)]
            yield f"{label:<46}{median(times):>10.2f}{WHAT_IF_BUDGET:>10}"


def _what_if_seconds(file: Path, options: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [http.PROGRAM, "schedule", "--snapshot", str(file), "-o", "json", *options]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _snapshot() -> dict[str, Any]:
    capacity = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    status = {"capacity": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    items: list[dict[str, Any]] = []
    for index in range(WHAT_IF_NODES):
        labels = {"region": f"r{index % 2}", "zone": f"z{index % 3}", "rack": f"s{index % 20}"}
        items.append({"kind": "Node", "metadata": {"name": f"node-{index:04d}", "labels": labels}, "status": status})
    for number in range(WHAT_IF_PODS):
        requests = {"cpu": f"{100 + number % 7 * 50}m", "memory": f"{128 + number % 5 * 64}Mi"}
        labels = {"app": str(number % 200)}
        metadata = {"namespace": "default", "name": f"pod-{number}", "uid": str(number), "labels": labels}
        containers = [{"name": "main", "image": "x", "resources": {"requests": requests}}]
        items.append({"kind": "Pod", "metadata": metadata, "spec": {"containers": containers}})
    for number in range(200):
        metadata = {"namespace": "default", "name": f"app-{number}"}
        items.append({"kind": "Service", "metadata": metadata, "spec": {"selector": {"app": str(number)}}})
    return {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", **item} for item in items]}


def _measure_prioritize() -> Iterator[str]:
    yield f"{'over HTTP, names':<46}" + "".join(
        f"{head:>14}" for head in ("/filter p50", "/prioritize", "p99", "x", "CPU ms")
    )
    for nodes in NAMES:
        with http.run_extender(cluster.snapshot(nodes, half=False)) as (port, pid):
            yield from _measure_calls(port, pid, nodes)


def _measure_calls(port: int, pid: int, nodes: int) -> Iterator[str]:
    call_filter = http.connect(port, "/filter")
    call_prioritize = http.connect(port, "/prioritize")
    for label, bodies in http.name_cases(call_filter, nodes, 2 * REQUESTS):
        pairs = [(call_filter(body), call_prioritize(body)) for body in bodies[:REQUESTS]]
        filtering = [first for first, _ in pairs]
        scoring = [second for _, second in pairs]
        used = http.cpu_seconds(pid)
        for body in bodies[REQUESTS:]:
            call_prioritize(body)
        used = http.cpu_seconds(pid) - used
        cells = (
            median(filtering) * 1e3,
            median(scoring) * 1e3,
            http.p99(scoring) * 1e3,
            median(scoring) / median(filtering),
            used / REQUESTS * 1e3,
        )
        yield f"{f'{nodes} nodes, {label}':<46}" + "".join(f"{cell:>14.2f}" for cell in cells)
