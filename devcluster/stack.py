"""A development cluster with everything on top.

That is simulated Longhorn, candidates of the extender, a forwarder to their leader, and Prometheus.

`Stack` starts all of it. `make dev` and the end-to-end tests use it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from app.kube.resources import CONFIG_MAPS, LEASES, LONGHORN_NODES
from devcluster import prometheus
from devcluster.build import CONTROLLER_MANAGER
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.directories import Directories
from devcluster.http_check import http_request, is_filtered
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
from scheduler_core.decide.extender_settings import PLACEMENT_GUARD, GuardMode

__all__ = [
    "FAST_CLIENT",
    "FAST_LEASE",
    "LEASE_SECONDS",
    "NAMESPACE",
    "ROOT",
    "SERVICE",
    "Disk",
    "Report",
    "Stack",
    "StackOptions",
    "disk_statuses",
]

ROOT = Path(__file__).parents[1]
# Shorter than the extender's defaults, in proportion, so that a leader's successor does not need 15 s to take over.
LEASE_SECONDS = 6.0
FAST_LEASE = ("--lease-duration", f"{LEASE_SECONDS:g}", "--renew-deadline", "4", "--retry-period", "0.5")
# At its start each of some forty controllers makes its own service account and token, and all of them share one client: by
# default (20 calls a second) that takes four of the eight seconds until the first pod can be created.
FAST_CLIENT = ("--kube-api-qps=100", "--kube-api-burst=200")
# The Lease that a leader releases: without a holder, and with a duration of one second (scheduler_core.leadership.election).
_RELEASED_LEASE = {"metadata": {"name": SERVICE}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
_PROBE_REQUEST = {"Pod": {"metadata": {"name": "probe"}}, "NodeNames": []}
_SETTLE_TIMEOUT = 60.0
_SETTLE_TIMEOUT_PER_NODE = 0.1
_NODE_CREATORS = 8

Disk = str | Mapping[str, Any]
"""A disk: its size, or an entry of the simulator's annotation (docs/simulator.md). It gets a name if it has none."""

Report = Callable[[str], None]
"""Receives a line about each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """The options of a stack.

    Attributes:
        nodes: each node's disks, by the node's name
        candidates: the number of the extender's processes, named ``extender-1`` and so on
        arguments: additional arguments of each of them
        create_free_lease: whether to create a Lease without a holder, which no candidate can have held before. Otherwise the first
            candidate creates the Lease, and waits for its duration as after any Lease that went missing
        scheduler_config: kube-scheduler's configuration as users install it; None: without an extender
        simulator: the simulator's configuration
        prometheus: the program; None: it is not started
        audit: whether the API server writes an audit log
        placement_guard: the mode of the placement guard in the extender's ConfigMap
        extra_args: additional arguments by process name, as in `devcluster.ClusterOptions`
        binaries: as in `devcluster.ClusterOptions`
    """

    nodes: Mapping[str, Sequence[Disk]] = field(default_factory=dict)
    candidates: int = 1
    arguments: Sequence[str] = FAST_LEASE
    create_free_lease: bool = False
    scheduler_config: Path | None = None
    simulator: Mapping[str, object] = field(default_factory=dict)
    prometheus: Path | None = None
    audit: bool = True
    placement_guard: GuardMode = GuardMode.ENFORCE
    extra_args: Mapping[str, Sequence[str]] = field(default_factory=dict)
    binaries: Path | None = None


def disk_statuses(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A Longhorn node's status.diskStatus by disk name, {} without one. A new node has no status, and then a diskStatus of null."""
    return (node.get("status") or {}).get("diskStatus") or {}


class Stack:
    """A cluster with all programs; entering it starts them.

    The extender runs under its own ServiceAccount, with the permissions of manifests/ and nothing else.

    Attributes:
        cluster: the control plane below
        address: the ``host:port`` that kube-scheduler uses; it is forwarded to the leader, as a Service does in other clusters
        account: the kubeconfig of the extender's ServiceAccount
        simulator_url: the URL of the simulator
        prometheus_url: the URL of Prometheus; "" if it is not started
    """

    def __init__(
        self,
        directory: Path,
        options: StackOptions | None = None,
        report: Report = lambda _: None,
        running: DevCluster | None = None,
    ) -> None:
        self._options = options or StackOptions()
        self._owns_cluster = running is None
        self._report = report
        # kube-scheduler's configuration needs the address before anything runs.
        self._ports = Ports()
        self._port = self._ports.take()
        self.address = f"{LOOPBACK}:{self._port}"
        self.account = Path()
        self.simulator_url = ""
        self.prometheus_url = ""
        self._candidates: dict[str, int] = {}
        self._guard_ports: dict[str, int] = {}
        self.cluster = running or DevCluster(
            directory,
            ClusterOptions(
                scheduler_config=self._options.scheduler_config,
                url_prefix=self.address,
                audit=self._options.audit,
                binaries=self._options.binaries,
                extra_args={
                    **self._options.extra_args,
                    CONTROLLER_MANAGER: (*FAST_CLIENT, *self._options.extra_args.get(CONTROLLER_MANAGER, ())),
                },
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
        """Starts the cluster and all programs.

        Returns when Longhorn reports every disk and, if there are candidates, one of them answers kube-scheduler.

        Raises:
            DevClusterError: it could not be started; no process runs
        """
        try:
            if self._owns_cluster:
                self._report(
                    f"starting etcd, kube-apiserver, controllers, scheduler and kwok in {self.cluster.directory}"
                )
                self.cluster.start()
            elif self._options.scheduler_config is not None:
                self.use_scheduler_config(self._options.scheduler_config)
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops all processes, the last started first, if any run; without those of a cluster that ran before."""
        try:
            if self._owns_cluster:
                self.cluster.stop()
            else:
                self.cluster.stop_programs()
        finally:
            self._ports.release()

    def _start(self) -> None:
        """Starts all programs, and waits for them at the end only. Most of the time goes into starting Python, so it is spent in
        parallel.
        """
        cluster = self.cluster
        self._report("control plane is ready; starting the simulator and the extender")
        settings = self._write_simulator_config(self._options.simulator)
        port = cluster.free_port()
        self.simulator_url = f"http://{LOOPBACK}:{port}"
        starting = [start_simulator(cluster, settings, status_port=port, wait=False)]
        start_forwarder(cluster, self._port, wait=False)
        starting.append(cluster.processes["forwarder"])
        cluster.apply(ROOT / "manifests/test-cluster")
        mode = self._options.placement_guard
        if mode is not GuardMode.ENFORCE:
            cluster.api.patch(CONFIG_MAPS.path(NAMESPACE, SERVICE), {"data": {PLACEMENT_GUARD: mode.value}})
        self.account = cluster.service_account_kubeconfig(NAMESPACE, SERVICE)
        if self._options.create_free_lease:
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
            self.cluster.wait_until("a candidate to answer kube-scheduler", self._is_leader_answering, _SETTLE_TIMEOUT)
            self._report(f"{', '.join(self.answering())} answers kube-scheduler")

    def guard_port(self, name: str) -> int:
        """The port on which API servers call a candidate's placement guard."""
        if name not in self._guard_ports:
            self._guard_ports[name] = self.cluster.free_port()
        return self._guard_ports[name]

    def _write_simulator_config(self, config: Mapping[str, object]) -> Path:
        file = Directories(self.cluster.directory).config / f"{SIMULATOR}.yaml"
        file.write_text(yaml.safe_dump(dict(config)))
        return file

    def use_scheduler_config(self, path: Path) -> None:
        """Restarts kube-scheduler with a configuration as users install it. Addresses and credentials are replaced by this machine's."""
        self.cluster.use_scheduler_config(path, url_prefix=self.address)

    def use_simulator(self, config: Mapping[str, object]) -> None:
        """Restarts the simulator with a different configuration."""
        self._write_simulator_config(config)
        self.cluster.processes[SIMULATOR].restart()

    def start_candidate(self, name: str, *, env: Mapping[str, str] | None = None, wait: bool = True) -> Process:
        """Starts a candidate of the extender, with `env` in addition to this process's environment. A name that was used before
        gets its port again.
        """
        port = self._candidates.get(name) or self.cluster.free_port()
        self._candidates[name] = port
        guard = ("--placement-guard-port", str(self.guard_port(name)))
        arguments = ["--identity", name, "--node-name", name, *guard, *self._options.arguments]
        return start_extender(self.cluster, name, self.account, port, arguments, env, wait=wait)

    @property
    def candidates(self) -> list[str]:
        return list(self._candidates)

    def url(self, name: str) -> str:
        return f"http://{self._host_and_port(name)}"

    def answers(self, name: str) -> bool:
        """Whether a candidate answers kube-scheduler. It does when it leads and has read the cluster."""
        return is_filtered(*http_request(f"{self.url(name)}/filter", _PROBE_REQUEST))

    def answering(self) -> list[str]:
        """Running candidates that answer; several are an error."""
        return [name for name in self._candidates if self.cluster.processes[name].running and self.answers(name)]

    def add_nodes(self, disks: Mapping[str, Sequence[Disk]], labels: Mapping[str, str] | None = None) -> None:
        """Adds nodes with disks. Returns when the nodes are ready and Longhorn reports every disk."""
        self._create_nodes(disks, labels or {})
        self._wait_for_nodes(disks)

    def _create_nodes(self, disks: Mapping[str, Sequence[Disk]], labels: Mapping[str, str]) -> None:
        def create(name: str, entries: Sequence[Disk]) -> None:
            described = [{"size": disk} if isinstance(disk, str) else dict(disk) for disk in entries]
            layout = [{"name": f"disk-{number}", **disk} for number, disk in enumerate(described, start=1)]
            self.cluster.create_node(name, labels=labels, annotations={"simulator/disks": json.dumps(layout)})

        with ThreadPoolExecutor(_NODE_CREATORS) as pool:
            for _ in pool.map(create, disks, disks.values()):
                pass  # an error is raised here

    def _wait_for_nodes(self, disks: Mapping[str, Sequence[Disk]]) -> None:
        seconds = _SETTLE_TIMEOUT + _SETTLE_TIMEOUT_PER_NODE * len(disks)
        self.cluster.wait_nodes_ready(seconds)
        wanted = {name: len(sizes) for name, sizes in disks.items()}
        self.cluster.wait_until(
            "Longhorn to report the disks", lambda: wanted.items() <= self._count_reported_disks().items(), seconds
        )

    def _count_reported_disks(self) -> dict[str, int]:
        nodes = self.cluster.api.get(LONGHORN_NODES.path(NAMESPACE))["items"]
        return {
            node["metadata"]["name"]: sum(1 for disk in disk_statuses(node).values() if disk.get("storageMaximum"))
            for node in nodes
        }

    def _is_leader_answering(self) -> bool:
        return is_filtered(*http_request(f"http://{self.address}/filter", _PROBE_REQUEST, 2))

    def _host_and_port(self, name: str) -> str:
        return f"{primary_address()}:{self._candidates[name]}"
