"""What runs on top of the cluster: Longhorn (simulated), candidates of the extender, the way from kube-scheduler to their leader,
and Prometheus. `Stack` brings up all of it; `make dev` and the end-to-end tests are two users of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import yaml

from app.kube.resources import LEASES, LONGHORN_NODES
from devcluster import prometheus
from devcluster.components import CONTROLLER_MANAGER, Options
from devcluster.dev_cluster import DevCluster
from devcluster.directories import Layout
from devcluster.errors import DevClusterError
from devcluster.http_check import ask
from devcluster.ports import Ports
from devcluster.process import Process
from devcluster.programs import (
    LOOPBACK,
    NAMESPACE,
    SERVICE,
    SIMULATOR,
    primary_address,
    start_extender,
    start_forwarder,
    start_prometheus,
    start_simulator,
)

__all__ = ["FAST_LEASE", "LEASE_SECONDS", "NAMESPACE", "ROOT", "SERVICE", "Disk", "Report", "Stack", "StackOptions"]

ROOT: Final = Path(__file__).parents[1]
# Shorter than the extender's defaults, in proportion: who waits for what happens after a leader's death need not wait 15 s.
LEASE_SECONDS: Final = 6.0
FAST_LEASE: Final = ("--lease-duration", f"{LEASE_SECONDS:g}", "--renew-deadline", "4", "--retry-period", "0.5")
# At its start each of some forty controllers makes its own service account and token, and all of them share one client: by
# default (20 calls a second) that takes four of the eight seconds until the first pod can be created.
_SWIFT: Final = ("--kube-api-qps=100", "--kube-api-burst=200")
# What a leader leaves behind that hands over: no holder, and a duration of one second (scheduler_core.leadership.election).
_RELEASED_LEASE: Final = {"metadata": {"name": SERVICE}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
_QUESTION: Final = {"Pod": {"metadata": {"name": "probe"}}, "NodeNames": []}
_SETTLE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05

Disk = str | Mapping[str, str]
"""A disk by its size, or as the simulator's annotation has it (docs/simulator.md); it gets a name."""

Report = Callable[[str], None]
"""Told what has just happened, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What can differ between stacks.

    Attributes:
        nodes: each node's disks, by the node's name
        candidates: processes of the extender, named ``extender-1`` and so on
        arguments: more arguments for each of them
        first_at_once: give the cluster a Lease that is free, which nobody can have held before; otherwise the first candidate
            makes one, and has to wait for its duration as after any Lease that went missing
        scheduler_config: what kube-scheduler is started with, as users install it; None: it knows no extender
        simulator: the simulator's configuration
        prometheus: the program; None: it is not started
        audit: have the API server write an audit log
        binaries: as in `devcluster.Options`
    """

    nodes: Mapping[str, Sequence[Disk]] = field(default_factory=dict)
    candidates: int = 1
    arguments: Sequence[str] = FAST_LEASE
    first_at_once: bool = False
    scheduler_config: Path | None = None
    simulator: Mapping[str, object] = field(default_factory=dict)
    prometheus: Path | None = None
    audit: bool = True
    binaries: Path | None = None


class Stack:
    """A cluster with everything a user would run, started by entering it.

    The extender runs under its own ServiceAccount, with the permissions of manifests/ and nothing else.

    Attributes:
        cluster: the control plane below
        address: ``host:port`` that leads to the leader, as the Service does elsewhere: what kube-scheduler asks
        account: the kubeconfig of the extender's ServiceAccount
        simulator_url: where the simulator answers
        prometheus_url: where Prometheus answers; "" if it is not started
    """

    def __init__(self, directory: Path, options: StackOptions | None = None, report: Report = lambda _: None) -> None:
        self._options = options or StackOptions()
        self._report = report
        # kube-scheduler's configuration needs the address before anything runs.
        self._ports = Ports()
        self._port = self._ports.take()
        self.address = f"{LOOPBACK}:{self._port}"
        self.account = Path()
        self.simulator_url = ""
        self.prometheus_url = ""
        self._candidates: dict[str, int] = {}
        self.cluster = DevCluster(
            directory,
            Options(
                scheduler_config=self._options.scheduler_config,
                url_prefix=self.address,
                audit=self._options.audit,
                binaries=self._options.binaries,
                extra_args={CONTROLLER_MANAGER: _SWIFT},
            ),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts everything; returns when Longhorn reports every disk and a candidate answers kube-scheduler, if there is any.

        Raises:
            DevClusterError: it did not work; nothing is left running
        """
        try:
            self._report(f"starting etcd, kube-apiserver, controllers, scheduler and kwok in {self.cluster.directory}")
            self.cluster.start()
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops everything, the last started first; does nothing if nothing runs."""
        try:
            self.cluster.stop()
        finally:
            self._ports.release()

    def _start(self) -> None:
        """Starts what needs nothing first, and waits only at the end: most of the time goes into starting Python."""
        cluster = self.cluster
        self._report("control plane is ready; starting the simulator and the extender")
        settings = self._write_simulator_config(self._options.simulator)
        port = cluster.free_port()
        self.simulator_url = f"http://{LOOPBACK}:{port}"
        starting = [start_simulator(cluster, settings, status_port=port, wait=False)]
        start_forwarder(cluster, self._port, wait=False)
        starting.append(cluster.processes["forwarder"])
        cluster.apply(ROOT / "manifests/test-cluster")
        self.account = cluster.service_account_kubeconfig(NAMESPACE, SERVICE)
        if self._options.first_at_once:
            cluster.api.create(LEASES.path(NAMESPACE), _RELEASED_LEASE)
        names = [f"extender-{number}" for number in range(1, self._options.candidates + 1)]
        starting += [self.start_candidate(name, wait=False) for name in names]
        if self._options.prometheus is not None:
            targets = {name: self._host_and_port(name) for name in self._candidates}
            self.prometheus_url = start_prometheus(cluster, self._options.prometheus, targets, wait=False)
            starting.append(cluster.processes[prometheus.PROGRAM])
        self._create_nodes(self._options.nodes, {})
        for process in starting:
            process.wait_ready()
            self._report(f"{process.name} is ready")
        self._wait_for_nodes(self._options.nodes)
        if self._options.candidates:
            self._until("a candidate to answer kube-scheduler", self._leads)
            self._report(f"{', '.join(self.answering())} answers kube-scheduler")

    def _write_simulator_config(self, config: Mapping[str, object]) -> Path:
        file = Layout(self.cluster.directory).config / f"{SIMULATOR}.yaml"
        file.write_text(yaml.safe_dump(dict(config)))
        return file

    def use_scheduler_config(self, path: Path) -> None:
        """Restarts kube-scheduler with one of the files users install; only addresses and credentials are this machine's.

        Raises:
            DevClusterError: the file is wrong, or kube-scheduler does not start with it
        """
        self.cluster.use_scheduler_config(path, url_prefix=self.address)

    def use_simulator(self, config: Mapping[str, object]) -> None:
        """Restarts the simulator with another configuration.

        Raises:
            DevClusterError: it does not start with it
        """
        self._write_simulator_config(config)
        self.cluster.processes[SIMULATOR].restart()

    def start_candidate(self, name: str, *, wait: bool = True) -> Process:
        """One more process of the extender; a name used before gets its port again.

        Raises:
            DevClusterError: one of that name runs, or it did not become ready
        """
        port = self._candidates.get(name) or self.cluster.free_port()
        self._candidates[name] = port
        arguments = ["--identity", name, "--node-name", name, *self._options.arguments]
        return start_extender(self.cluster, name, self.account, port, arguments, wait=wait)

    @property
    def candidates(self) -> list[str]:
        """The names of all candidates, running or not."""
        return list(self._candidates)

    def url(self, name: str) -> str:
        """Where a candidate answers, without the path."""
        return f"http://{self._host_and_port(name)}"

    def answers(self, name: str) -> bool:
        """Whether a candidate answers kube-scheduler's verbs: it leads, and knows the cluster."""
        return ask(f"{self.url(name)}/filter", _QUESTION)[0] == 200

    def answering(self) -> list[str]:
        """The running candidates that answer; more than one would be an error."""
        return [name for name in self._candidates if self.cluster.processes[name].running and self.answers(name)]

    def add_nodes(self, disks: Mapping[str, Sequence[Disk]], labels: Mapping[str, str] | None = None) -> None:
        """Adds nodes by name, with their disks; returns once they are ready and Longhorn reports every disk.

        Raises:
            DevClusterError: that did not happen in time
            ApiError: the API server refused one
        """
        self._create_nodes(disks, labels or {})
        self._wait_for_nodes(disks)

    def _create_nodes(self, disks: Mapping[str, Sequence[Disk]], labels: Mapping[str, str]) -> None:
        for name, entries in disks.items():
            described = [{"size": disk} if isinstance(disk, str) else dict(disk) for disk in entries]
            layout = [{"name": f"disk-{number}", **disk} for number, disk in enumerate(described, start=1)]
            self.cluster.create_node(name, labels=labels, annotations={"simulator/disks": json.dumps(layout)})

    def _wait_for_nodes(self, disks: Mapping[str, Sequence[Disk]]) -> None:
        self.cluster.wait_nodes_ready()
        wanted = {name: len(sizes) for name, sizes in disks.items()}
        self._until("Longhorn to report the disks", lambda: wanted.items() <= self._reported().items())

    def _reported(self) -> dict[str, int]:
        """How many disks of each Longhorn node have a size."""
        found = self.cluster.api.get(LONGHORN_NODES.path(NAMESPACE))["items"]
        return {
            node["metadata"]["name"]: sum(
                1 for disk in (node.get("status") or {}).get("diskStatus", {}).values() if disk.get("storageMaximum")
            )
            for node in found
        }

    def _leads(self) -> bool:
        return ask(f"http://{self.address}/filter", _QUESTION, 2)[0] == 200

    def _host_and_port(self, name: str) -> str:
        return f"{primary_address()}:{self._candidates[name]}"

    def _until(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not done():
            for process in self.cluster.processes.values():
                if process.crashed:
                    raise DevClusterError(f"{process.name} ended while waiting for {what}; {process.log_tail()}")
            if time.monotonic() > deadline:
                raise DevClusterError(
                    f"waited {_SETTLE_SECONDS:g} s in vain for {what}; the logs are in {self.cluster.logs}"
                )
            time.sleep(_POLL_SECONDS)
