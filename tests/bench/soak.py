"""Whether the extender's memory stays bounded: 20,000 calls about pods that differ.

Each call has claims of other sizes, so that no decision is in a cache. Some name nodes that do not exist, claims that do not exist, or
whole nodes; every verb is called. Goal: after the first 2,000 calls resident memory grows by less than 5 %.
"""

import json
import random
from typing import Any

from tests.bench import cluster
from tests.bench.http import connect, resident_mb, run_extender

NODES = 1000
CALLS = 20_000
WARM_UP = 2_000
_LARGEST = 50 * cluster.GI
_STEP = 2**20


def run() -> str:
    """Sends the calls and returns a table of resident memory."""
    chance = random.Random(16)  # noqa: S311 # repeatable, not secret
    rows = [f"{'soak: calls':<46}{'MB':>10}{'growth':>10}"]
    with run_extender(cluster.snapshot(NODES, half=True)) as (port, pid):
        verbs = {path: connect(port, path) for path in ("/filter", "/prioritize", "/preempt", "/explain")}
        reference = 0.0
        for number in range(1, CALLS + 1):
            path, body = _request(chance, number)
            verbs[path](body)
            if number % WARM_UP == 0:
                size = resident_mb(pid)
                reference = reference or size
                rows.append(f"{number:<46}{size:>10.1f}{size / reference - 1:>10.1%}")
    return "\n".join(["", *rows])


def _request(chance: random.Random, number: int) -> tuple[str, bytes]:
    sizes = [chance.randrange(1, _LARGEST // _STEP) * _STEP for _ in range(chance.choice((1, 1, 2, 3, 6)))]
    pod = cluster.pod(f"soak-{number}", sizes)
    kind = chance.random()
    if kind < 0.02:
        return "/filter", cluster.nodes_body(pod, 100)
    if kind < 0.04:
        pod["spec"]["volumes"].append({"name": "gone", "persistentVolumeClaim": {"claimName": f"gone-{number}"}})
    names = [cluster.name_of(chance.randrange(2 * NODES)) for _ in range(20)] if kind < 0.1 else _names(chance)
    if kind < 0.2:
        return "/preempt", _encode({"Pod": pod, "NodeNameToMetaVictims": {name: {"Pods": []} for name in names}})
    path = "/explain" if kind < 0.21 else "/prioritize" if kind < 0.5 else "/filter"
    return path, _encode({"Pod": pod, "NodeNames": names[:10] if path == "/explain" else sorted(set(names))})


def _names(chance: random.Random) -> list[str]:
    first = chance.randrange(NODES - 200)
    return [cluster.name_of(number) for number in range(first, first + 200)]


def _encode(body: Any) -> bytes:
    return json.dumps(body).encode()
