"""The background task that predicts which nodes can be lost, in a cluster of 1,000 nodes: what it costs, and what it costs /filter.

Each node has two pods with volumes of two replicas each. The budgets: a tenth of one processor, and no more than 5 ms for the slowest of
a hundred requests. The first hundred nodes are to be known within two minutes.
"""

import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any
from urllib.request import urlopen

from app.extender.capacity import FIRST_NODES
from app.runtime.probes import PREFIX
from tests import builders as make
from tests.bench import cluster
from tests.bench.http import PROGRAM, TWO, connect, cpu_seconds, new_requirements, p99, run_extender

NODES = 1000
PODS_PER_NODE = 2
VOLUME = 5
IDLE_SECONDS = 20
SPACED = 100
PAUSE = 0.5
BURST = 1000
_SCRAPE_INTERVAL = 5
_WITHOUT = """
import sys
from app.extender import capacity
capacity.MAX_NODES = 0
sys.argv[0] = "longhorn-extender"
from app.cli.main import main
main()
"""


def run() -> str:
    """Measures an extender without and with the predictions, and returns the table."""
    cases = {"without predictions": [sys.executable, "-c", _WITHOUT], "with predictions": [PROGRAM]}
    snapshot = _snapshot()
    rows = [
        f"{f'node losses: {NODES} nodes':<32}{'CPU, idle':>12}{f'/filter, one each {PAUSE} s':>30}{'/filter, in a burst':>30}",
        f"{'':<32}{'':>12}{'p50 ms':>15}{'p99 ms':>15}{'p50 ms':>15}{'p99 ms':>15}",
    ]
    for label, command in cases.items():
        with run_extender(snapshot, command, flags=()) as (port, pid):
            rows.append(f"{label:<32}" + "".join(_measure(port, pid)))
    with run_extender(snapshot, flags=()) as (port, _):
        rows.append(f"first {FIRST_NODES} nodes predicted after {_seconds_to_first_nodes(port):.0f} s")
    return "\n".join(["", *rows])


def _snapshot() -> dict[str, Any]:
    """The nodes of other benchmarks, with pods that run and volumes that are attached."""
    snapshot = cluster.snapshot(NODES, half=True)
    names = [cluster.name_of(index) for index in range(NODES)]
    snapshot["items"] += [make.kube_node(name) for name in names]
    for index, name in enumerate(names):
        for number in range(PODS_PER_NODE):
            snapshot["items"] += _running_pod(f"app-{index}-{number}", name, names[(index + 1 + 37 * number) % NODES])
    return snapshot


def _running_pod(name: str, node: str, other: str) -> list[make.Object]:
    pod = make.pod(name, name=name, uid=f"uid-{name}", node=node, phase="Running")
    pod["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "app", "uid": "uid-owner"}]
    volume = make.volume(f"vol-{name}", VOLUME, actual=VOLUME, numberOfReplicas=2, nodeID=node)
    volume["status"] |= {"state": "attached", "robustness": "healthy", "currentNodeID": node}
    replicas = [
        make.replica(f"{name}-{place}", f"vol-{name}", place, size=VOLUME, disk="disk-0") for place in (node, other)
    ]
    claim = make.claim(name, VOLUME, bound=True)
    return [pod, claim, make.persistent_volume(name, uid=f"uid-{name}"), volume, *replicas]


def _seconds_to_first_nodes(port: int) -> float:
    began = time.monotonic()
    series = f"\n{PREFIX}_node_safe_to_lose{{"
    while True:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as response:  # its own server
            if response.read().decode().count(series) >= FIRST_NODES:
                return time.monotonic() - began
        # A scrape takes processor time itself.
        time.sleep(_SCRAPE_INTERVAL)


def _measure(port: int, pid: int) -> Iterator[str]:
    call = connect(port, "/filter")
    call(new_requirements(TWO, 0, NODES))
    before = cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    yield f"{(cpu_seconds(pid) - before) / IDLE_SECONDS:>12.1%}"
    turn = 1
    for count, pause in ((SPACED, PAUSE), (BURST, 0)):
        times: list[float] = []
        for _ in range(count):
            times.append(call(new_requirements(TWO, turn, NODES)))
            turn += 1
            time.sleep(pause)
        yield f"{median(times) * 1e3:>15.2f}{p99(times) * 1e3:>15.2f}"
