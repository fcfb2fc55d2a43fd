"""How many pods the real kube-scheduler binds per second, with and without extenders.

A burst of 500 pods with two claims each, on nodes with room for all of them: without an extender, with one that always says yes (a Go
program that only decodes and encodes), and with this one. Every way gets the file kube-scheduler-config/recommended.yaml, on the same
nodes, in turns. Claims are provisioned by the simulator, so that the pods really are bound. The pods are created while kube-scheduler
is paused; the time runs from its first second to the last binding. Goal: at least 95 % of the rate with the extender that always says
yes. `python -m tests.bench throughput --help` lists the options; it needs the control plane and go on PATH.
"""

import re
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml

from app.kube.resources import CLAIMS, LONGHORN_ENGINE_IMAGES, PODS
from devcluster.build import CONTROLLER_MANAGER, KWOK, SCHEDULER
from devcluster.programs import NAMESPACE
from tests.bench.http import HERE, cpu_seconds, find_free_port, wait_until_listening
from tests.e2e.journal import Journal
from tests.e2e.object_watch import ObjectWatch
from tests.e2e.objects import Object, Volume, Workload
from tests.e2e.rig import RECOMMENDED, Rig

APP = "throughput"
EXTENDER = "extender-1"
# Nothing but the burst should write: the leases and the status of thousands of nodes would take most of the API server's time.
_QUIET_ARGUMENTS = {
    KWOK: ["--node-lease-duration-seconds=4000"],
    CONTROLLER_MANAGER: [
        "--node-monitor-grace-period=1h",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        # Attaching comes after the binding. Its writes would slow the simulator down, on which the bindings wait.
        "--controllers=-persistentvolume-attach-detach-controller",
    ],
}
_SIMULATOR = {
    "provision_seconds": [0.05, 0.1],
    # As Longhorn's own default: kube-scheduler looks at no capacity.
    "storage_capacity": False,
    "capacity_period": "none",
    "workers": 16,
}
_NEW_NODES_PERIOD = 2
_QUIET_PERIOD = 3600
_BURST_SECONDS = 600.0
_CYCLES = "scheduler_scheduling_algorithm_duration_seconds"


class Way(StrEnum):
    """What kube-scheduler asks."""

    NONE = "no extender"
    YES = "always yes"
    YES_SAMPLED = "always yes, sampled nodes"
    """`percentageOfNodesToScore` is unset, so that kube-scheduler looks at a part of the nodes only."""
    YES_WATCHED = "always yes, ours watches"
    """This extender follows the cluster and is asked nothing: what its watches alone cost."""
    OURS = "ours"
    OURS_SCORING = "ours, with scores"
    """`prioritizeVerb` is set, too."""

    @property
    def is_ours(self) -> bool:
        return self in (Way.OURS, Way.OURS_SCORING)

    @property
    def runs_ours(self) -> bool:
        return self.is_ours or self is Way.YES_WATCHED


class Limits(StrEnum):
    """The client limits of kube-scheduler."""

    DEFAULT = "default"
    RAISED = "raised"

    @property
    def connection(self) -> dict[str, int]:
        return {"qps": 500, "burst": 1000} if self is Limits.RAISED else {"qps": 50, "burst": 100}


@dataclass(frozen=True)
class Sample:
    """One burst."""

    rate: float  # pods bound per second
    cycle: float  # milliseconds per scheduling cycle of kube-scheduler, the extender's answer included
    answers: Sequence[float] = ()  # the milliseconds of each /filter
    memory: float = 0.0  # of our process after the burst, in MB
    cpu: float = 0.0  # CPU milliseconds of our process per pod


@dataclass
class Series:
    """All bursts of one way."""

    way: Way
    samples: list[Sample] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median of pods bound per second."""
        return statistics.median(sample.rate for sample in self.samples)


def main(
    nodes: Annotated[list[int] | None, typer.Option(help="How many nodes; may be given several times.")] = None,
    limits: Annotated[list[Limits] | None, typer.Option(help="Client limits; may be given several times.")] = None,
    ways: Annotated[list[Way] | None, typer.Option("--way", help="Only these; may be given several times.")] = None,
    pods: Annotated[int, typer.Option(min=1, help="The size of the burst.")] = 500,
    repetitions: Annotated[int, typer.Option(min=1, help="Bursts of each way; the median counts.")] = 3,
) -> None:
    """Measure pods bound per second on the real kube-scheduler."""
    print(f"\n{'nodes, limits, extender':<46}{'pods/s':>8}{'min':>8}{'max':>8}{'of yes':>8}{'ms/cycle':>10}{'CPU ms/pod':>12}{'/filter p50':>13}{'p99':>8}{'MB':>7}")  # fmt: skip
    for count in nodes or (100, 1000, 5000):
        with _started_rig(count) as (rig, folder), _run_yes(folder) as yes:
            for limit in limits or Limits:
                series = [Series(way) for way in ways or (Way.NONE, Way.YES, Way.OURS)]
                for turn in range(repetitions):
                    for one in series:
                        config = _configuration(folder, one.way, limit)
                        one.samples.append(_measure(rig, config, one.way, yes, pods))
                        print(f"  {count} {limit} {one.way} {turn + 1}: {one.samples[-1].rate:.1f}/s", file=sys.stderr)
                print("\n".join(_rows(count, limit, series)), flush=True)


@contextmanager
def _started_rig(nodes: int) -> Iterator[tuple[Rig, Path]]:
    folder = Path(tempfile.mkdtemp(prefix="throughput-"))
    settling = {**_SIMULATOR, "status_period": _NEW_NODES_PERIOD + nodes / 100}
    with Rig(folder, config=RECOMMENDED, simulator=settling, extra_args=_QUIET_ARGUMENTS) as rig:
        started = time.monotonic()
        rig.add_nodes(APP, {f"node-{number:04d}": ["1000Gi"] for number in range(1, nodes + 1)})
        # At its start it reports every node once, and so deploys the engine image on all of them.
        rig.use_simulator({**_SIMULATOR, "status_period": _QUIET_PERIOD})
        rig.until("the engine image is deployed", lambda: _count_deployed(rig) == nodes, _BURST_SECONDS)
        print(f"  {nodes} nodes after {time.monotonic() - started:.0f} s", file=sys.stderr)
        yield rig, folder
    shutil.rmtree(folder)


def _count_deployed(rig: Rig) -> int:
    images = rig.items(LONGHORN_ENGINE_IMAGES.path(NAMESPACE))
    return sum(len((image.get("status") or {}).get("nodeDeploymentMap") or {}) for image in images)


@contextmanager
def _run_yes(folder: Path) -> Iterator[str]:
    """Runs the extender that always says yes; provides its host:port."""
    program = folder / "always-yes"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE / "go", check=True)
    port = find_free_port()
    with subprocess.Popen([str(program), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until_listening(port, process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _measure(rig: Rig, config: Path, way: Way, yes: str, pods: int) -> Sample:
    if way.runs_ours and EXTENDER not in rig.candidates:
        rig.start_candidate(EXTENDER)
    elif not way.runs_ours and EXTENDER in rig.candidates:
        rig.cluster.processes[EXTENDER].stop()
    if way.runs_ours:
        rig.until("it answers", rig.leader)
    rig.cluster.use_scheduler_config(config, rig.address if way.is_ours else yes)
    workload = Workload(app=APP, group=APP, volumes=[Volume("1Gi")] * 2, asks=False)
    try:
        return _run_burst(rig, [entry for number in range(pods) for entry in workload.loose(number)], pods)
    finally:
        for kind in (PODS, CLAIMS):
            rig.delete_all(kind, f"app={APP}")
        rig.until("all space is free", rig.reclaim, 300)


def _run_burst(rig: Rig, objects: Sequence[Object], pods: int) -> Sample:
    bound: dict[str, float] = {}

    def note(_: str, pod: Object, at: float) -> None:
        if pod["spec"].get("nodeName"):
            bound.setdefault(pod["metadata"]["name"], at)

    scheduler = rig.cluster.processes[SCHEDULER]
    with ObjectWatch(rig.cluster, PODS.path("default"), note):
        cycles = _read_cycles(rig)
        cpu = _cpu_seconds(rig)
        scheduler.pause()
        rig.post(objects)
        time.sleep(2)  # every other program has read them
        started = time.time()
        scheduler.resume()
        rig.until("all pods are bound", lambda: len(bound) == pods, _BURST_SECONDS)
        seconds, count = (after - before for after, before in zip(_read_cycles(rig), cycles, strict=True))
    answers = [call.milliseconds for call in Journal(rig.cluster.logs, rig.candidates).calls if call.at >= started]
    return Sample(
        pods / (max(bound.values()) - started),
        seconds / count * 1e3,
        sorted(answers),
        _resident_memory(rig),
        (_cpu_seconds(rig) - cpu) / pods * 1e3,
    )


def _configuration(folder: Path, way: Way, limits: Limits) -> Path:
    config = yaml.safe_load(RECOMMENDED.read_text())
    config["clientConnection"].update(limits.connection)
    if way is Way.NONE:
        del config["extenders"]
    if way is Way.OURS_SCORING:
        config["extenders"][0].update(prioritizeVerb="prioritize", weight=1)
    if way is Way.YES_SAMPLED:
        del config["percentageOfNodesToScore"]
    file = folder / "kube-scheduler.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def _read_cycles(rig: Rig) -> tuple[float, float]:
    """Seconds in scheduling cycles so far, and their number, from kube-scheduler's metrics."""
    [port] = [
        argument.rpartition("=")[2]
        for argument in map(str, rig.cluster.processes[SCHEDULER].argv)
        if argument.startswith("--secure-port=")
    ]
    [entry] = yaml.safe_load(rig.cluster.kubeconfig.read_text())["clusters"]
    authority = b64decode(entry["cluster"]["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context) as answer:
        text = answer.read().decode()
    values = [re.search(rf"^{_CYCLES}_{part}(?:{{.*}})? (\S+)$", text, re.MULTILINE) for part in ("sum", "count")]
    return float(values[0][1] if values[0] else 0), float(values[1][1] if values[1] else 0)


def _resident_memory(rig: Rig) -> float:
    """MB of our process, 0 if it does not run."""
    if not rig.candidates:
        return 0.0
    text = Path(f"/proc/{rig.cluster.processes[EXTENDER].pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def _cpu_seconds(rig: Rig) -> float:
    """CPU seconds of our process so far, 0 if it does not run."""
    pid = rig.cluster.processes[EXTENDER].pid if rig.candidates else None
    return cpu_seconds(pid) if pid else 0.0


def _rows(nodes: int, limits: Limits, series: Sequence[Series]) -> Iterator[str]:
    reference = next((one.rate for one in series if one.way is Way.YES), None)
    for one in series:
        rates = [sample.rate for sample in one.samples]
        answers = sorted(answer for sample in one.samples for answer in sample.answers)
        cells = f"{one.rate:>8.1f}{min(rates):>8.1f}{max(rates):>8.1f}"
        cells += f"{one.rate / reference:>8.2f}" if reference else f"{'-':>8}"
        cells += f"{statistics.median(sample.cycle for sample in one.samples):>10.2f}"
        if one.way.runs_ours:
            cells += f"{statistics.median(sample.cpu for sample in one.samples):>12.1f}"
        if answers:
            cells += f"{statistics.median(answers):>13.2f}{answers[len(answers) * 99 // 100]:>8.2f}"
            cells += f"{max(sample.memory for sample in one.samples):>7.0f}"
        yield f"{f'{nodes} nodes, {limits}, {one.way}':<46}{cells}"
