"""The cost of the generic scheduler: `python -m tests.bench generic`.

A decision by the default policy among 5,000 nodes that run 100,000 pods of 1,000 services, one pod after
the other (budget: 250 ms); and /prioritize over HTTP by the extender's policy, compared with /filter of the same pod: requirements that were
evaluated before, and new ones. CPU time for decisions, wall time over HTTP.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles

from scheduler_core.cooperative import run_to_end
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import DEFAULT_POLICY
from scheduler_core.generic.scheduler import schedule
from scheduler_core.model.generic import Node, Pod, Service
from tests.bench import cluster, http

NODES = 5_000
PODS_A_NODE = 20
SERVICES = 1_000
DECISIONS = 20
NAMES = (1_000, 5_000)
REQUESTS = 60
BUDGET_MS = 250
_MI = 1024**2


def run() -> str:
    """Measures everything and returns the tables."""
    return "\n".join(["", *_measure_decisions(), "", *_measure_prioritize()])


def _measure_decisions() -> Iterator[str]:
    chance = random.Random(11)  # noqa: S311 # repeatable, not secret
    state = _state()
    decision_times = []
    binding_times = []
    for number in range(DECISIONS):
        pod = _pod(NODES * PODS_A_NODE + number, "")
        started = time.process_time()
        decision = run_to_end(schedule(pod, None, state, DEFAULT_POLICY, chance.choice))
        decided = time.process_time()
        state = state.with_binding(pod, decision.node)
        decision_times.append(decided - started)
        binding_times.append(time.process_time() - decided)
        if len(decision.feasible) != NODES:
            raise RuntimeError("the pod does not fit everywhere: this measures something else")
    yield f"{f'default policy, {NODES} nodes, {NODES * PODS_A_NODE} pods':<46}{'p50 ms':>10}{'p99 ms':>10}{'budget':>10}"
    yield f"{'a decision':<46}{median(decision_times) * 1e3:>10.1f}{_p99(decision_times) * 1e3:>10.1f}{BUDGET_MS:>10}"
    yield f"{'the next state, with the pod bound':<46}{median(binding_times) * 1e3:>10.2f}{_p99(binding_times) * 1e3:>10.2f}"


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
    return Pod("default", f"pod-{number}", labels, node, {}, cpu, memory, cpu, memory)


def _measure_prioritize() -> Iterator[str]:
    yield f"{'over HTTP, names':<46}" + "".join(f"{head:>14}" for head in ("/filter p50", "/prioritize", "p99", "x"))
    with tempfile.TemporaryDirectory() as folder:
        for nodes in NAMES:
            file = Path(folder) / f"snapshot-{nodes}.json"
            file.write_text(json.dumps(cluster.snapshot(nodes, half=False)))
            with http.run_extender(file) as port:
                yield from _measure_calls(port, nodes)


def _measure_calls(port: int, nodes: int) -> Iterator[str]:
    call_filter = http.connect(port, "/filter")
    call_prioritize = http.connect(port, "/prioritize")
    repeated = cluster.names_body(cluster.pod("bench-0", http.TWO), nodes)
    call_filter(repeated)
    call_prioritize(repeated)
    cases: list[tuple[str, Callable[[int], bytes]]] = [
        ("two volumes, seen before", lambda _: repeated),
        ("two volumes, new", lambda turn: http.new_requirements(http.TWO, turn + 1, nodes)),
        ("six volumes, new", lambda turn: http.new_requirements(http.SIX, turn, nodes)),
    ]
    for label, body_of in cases:
        bodies = [body_of(turn) for turn in range(REQUESTS)]
        pairs = [(call_filter(body), call_prioritize(body)) for body in bodies]
        filtering = [first for first, _ in pairs]
        scoring = [second for _, second in pairs]
        cells = (
            median(filtering) * 1e3,
            median(scoring) * 1e3,
            _p99(scoring) * 1e3,
            median(scoring) / median(filtering),
        )
        yield f"{f'{nodes} nodes, {label}':<46}" + "".join(f"{cell:>14.2f}" for cell in cells)


def _p99(times: list[float]) -> float:
    return quantiles(times, n=100, method="inclusive")[98]


if __name__ == "__main__":
    print(run())
