"""How many pods per second `schedule --watch` binds, compared with kube-scheduler at the same client limits.

A burst of 500 pods without volumes on 100 nodes with room for all of them, in turns on one control plane. The pods are created while
the scheduler is paused; the time runs from its first second to the last binding, as a watch of the pods shows it. The CPU time is that
of the scheduler's process in between. Goal: no less than kube-scheduler's rate. `python -m tests.bench scheduler-burst`; it needs the
control plane.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from app.kube.resources import LEASES, PODS
from app.scheduler.lifecycle import LEASE
from devcluster.build import SCHEDULER
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.process import Process, log_has
from devcluster.programs import NAMESPACE
from devcluster.stack import ROOT
from tests.bench.http import cpu_seconds
from tests.e2e.object_watch import ObjectWatch
from tests.e2e.objects import PAUSE, Object
from tests.worlds.elector_process import OF_A_BENCHMARK, election_flags
from tests.worlds.service import EXTENDER

OURS: Final = "classic"
THEIRS: Final = "default-scheduler"
_BURST_SECONDS: Final = 300.0
_LONG_LEASE: Final = election_flags(OF_A_BENCHMARK)


@dataclass(frozen=True)
class Burst:
    """The result of one burst."""

    rate: float  # pods bound per second
    cpu: float  # milliseconds of the scheduler's CPU time per pod


def main(
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 100,
    pods: Annotated[int, typer.Option(min=1, help="The size of the burst.")] = 500,
    repetitions: Annotated[int, typer.Option(min=1, help="Bursts of each scheduler; the median counts.")] = 3,
) -> None:
    """Measure pods bound per second by both schedulers."""
    bursts: dict[str, list[Burst]] = {THEIRS: [], OURS: []}
    with (
        tempfile.TemporaryDirectory(prefix="scheduler-burst-") as folder,
        DevCluster(Path(folder) / "cluster", ClusterOptions(nodes=nodes, audit=False)) as cluster,
    ):
        cluster.wait_nodes_ready()
        schedulers = {THEIRS: cluster.processes[SCHEDULER], OURS: _start(cluster)}
        for turn in range(repetitions):
            for name, process in schedulers.items():
                bursts[name].append(_run_burst(cluster, process, name, pods))
                print(f"  {name} {turn + 1}: {bursts[name][-1].rate:.1f}/s", file=sys.stderr)
    reference = statistics.median(burst.rate for burst in bursts[THEIRS])
    print(
        f"\n{f'{pods} pods on {nodes} nodes, qps 50, burst 100':<46}{'pods/s':>8}{'min':>8}{'max':>8}{'x':>8}{'CPU ms/pod':>12}"
    )
    for name, results in bursts.items():
        rates = [burst.rate for burst in results]
        cpu = statistics.median(burst.cpu for burst in results)
        rate = statistics.median(rates)
        label = "kube-scheduler" if name == THEIRS else "schedule --watch"
        print(f"{label:<46}{rate:>8.1f}{min(rates):>8.1f}{max(rates):>8.1f}{rate / reference:>8.2f}{cpu:>12.1f}")


def _start(cluster: DevCluster) -> Process:
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    cluster.apply(ROOT / "manifests/generic-scheduler/access")
    released = {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
    cluster.api.create(LEASES.path(NAMESPACE), released)
    command = [EXTENDER, "schedule", "--watch", "--scheduler-name", OURS, "--kubeconfig", str(cluster.kubeconfig)]
    process = cluster.spawn("ours", [*command, "--log-format", "json", *_LONG_LEASE], ready=log_has("Scheduling pods"))
    deadline = time.monotonic() + 60
    # It has logged the term in which it leads.
    while '"term"' not in process.log_text():
        if time.monotonic() > deadline:
            raise RuntimeError("it does not lead")
        time.sleep(0.1)
    return process


def _run_burst(cluster: DevCluster, scheduler: Process, name: str, pods: int) -> Burst:
    bound: dict[str, float] = {}

    def note(_: str, pod: Object, at: float) -> None:
        if pod["spec"].get("nodeName"):
            bound.setdefault(pod["metadata"]["name"], at)

    with ObjectWatch(cluster, PODS.path("default"), note):
        scheduler.pause()
        for number in range(pods):
            cluster.api.create(PODS.path("default"), _pod(f"burst-{number}", name))
        time.sleep(2)  # every other program has read them
        used = cpu_seconds(scheduler.pid)
        started = time.time()
        scheduler.resume()
        deadline = time.monotonic() + _BURST_SECONDS
        while len(bound) < pods:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(bound)} of {pods} pods are bound after {_BURST_SECONDS:g} s")
            time.sleep(0.05)
        used = cpu_seconds(scheduler.pid) - used
    cluster.api.delete(PODS.path("default"))
    while cluster.api.get(PODS.path("default"))["items"]:
        time.sleep(0.5)
    return Burst(pods / (max(bound.values()) - started), used / pods * 1e3)


def _pod(name: str, scheduler: str) -> Object:
    requests = {"cpu": "10m", "memory": "16Mi"}
    spec = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": PAUSE, "resources": {"requests": requests}}],
    }
    return {"metadata": {"name": name, "labels": {"app": "burst"}}, "spec": spec}
