"""A real control plane on this machine; kwok stands in for the kubelets.

with DevCluster(folder, ClusterOptions(nodes=4)) as cluster:
    cluster.kubectl("get", "nodes")
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from app.kube.client import ApiError
from app.kube.resources import NODES
from devcluster import kubeconfig, scheduler_config
from devcluster.api import Api
from devcluster.build import KUBECTL, SCHEDULER, ensure_built
from devcluster.components import ClusterOptions, Components
from devcluster.directories import Directories
from devcluster.errors import ConfigError, DevClusterError
from devcluster.kubectl import KUBECTL_TIMEOUT, Kubectl
from devcluster.polling import wait_until
from devcluster.ports import Ports
from devcluster.process import READY_TIMEOUT, Process, Ready

_POLL_INTERVAL = 0.05
_SETTLE_TIMEOUT = 30.0
_TOKEN_LIFETIME = 7 * 24 * 3600
_NODE_CAPACITY = {"cpu": "32", "memory": "256Gi", "pods": "200"}
_NODE_ANNOTATIONS = {
    "kwok.x-k8s.io/node": "fake",
    # As a kubelet sets it: without it the attach/detach controller creates no VolumeAttachments for the node.
    "volumes.kubernetes.io/controller-managed-attach-detach": "true",
}


class DevCluster:
    """One cluster in one folder.

    Its methods are synchronous. Several clusters can run at the same time. A previous cluster in the folder is removed.

    Attributes:
        processes: all processes by name, in the order in which they were started
    """

    def __init__(self, directory: Path, options: ClusterOptions | None = None) -> None:
        self._directories = Directories(directory.resolve())
        self._options = options or ClusterOptions()
        self._ports = Ports()
        self._lock: int | None = None
        self._binaries = Path()
        self._components: Components | None = None
        self._api: Api | None = None
        self._control_plane: tuple[str, ...] = ()
        self._has_first_scheduler_config = True
        self._audit_start = 0
        self._tenants = 0
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the programs, which are built if necessary.

        Returns when the API server answers and all nodes are ready.

        Raises:
            DevClusterError: the cluster could not be started; no process runs
        """
        if self._lock is not None:
            raise DevClusterError(f"the cluster in {self._directories.directory} is running already")
        self._binaries = self._options.binaries or ensure_built()
        self._lock = self._directories.occupy()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops all processes in reverse order, clients before servers. An error does not prevent the next step; the first error
        is raised at the end. After an interrupt all processes are killed at once. Without a running cluster nothing happens.
        """
        processes = [process.stop for process in reversed(list(self.processes.values()))]
        first_error: BaseException | None = None
        for step in (self._close_api, *processes, self._ports.release, self._unlock):
            try:
                step()
            except BaseException as error:  # noqa: BLE001 # raised after the last step
                first_error = first_error or error
                if not isinstance(error, Exception):
                    self._kill_all()
        self.processes.clear()
        self._components = None
        if first_error is not None:
            raise first_error

    @property
    def directory(self) -> Path:
        return self._directories.directory

    @property
    def logs(self) -> Path:
        return self._directories.logs

    @property
    def kubeconfig(self) -> Path:
        return self._directories.kubeconfig

    @property
    def server(self) -> str:
        return self._running_components().server

    @property
    def api(self) -> Api:
        if self._api is None:
            raise self._not_running()
        return self._api

    def free_port(self) -> int:
        """Reserves a port until this cluster stops."""
        return self._ports.take()

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 # as subprocess.run calls it
        check: bool = True,
        seconds: float = KUBECTL_TIMEOUT,
    ) -> str:
        """Runs kubectl on this cluster and returns its output.

        Args:
            arguments: its command line
            input: its standard input, for ``-f -``
            check: False: a failure is no error, and its standard error is returned, too
            seconds: how long it may take
        """
        runner = Kubectl(self._binaries / KUBECTL, self.kubeconfig, self._directories.kubectl_cache)
        return runner.run(arguments, input, check=check, seconds=seconds)

    def apply(self, manifests: Path) -> str:
        """Applies a file or folder of manifests; returns kubectl's output. A folder with a kustomization is applied with kustomize."""
        kustomized = (manifests / "kustomization.yaml").exists()
        return self.kubectl("apply", "--server-side", "-k" if kustomized else "-f", str(manifests))

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Writes a kubeconfig for a service account. Its token outlives any test."""
        components = self._running_components()
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        try:
            answer = self.api.create(path, {**request, "spec": {"expirationSeconds": _TOKEN_LIFETIME}})
        except ApiError as error:
            raise DevClusterError(f"no token for the service account {namespace}/{name}: {error}") from error
        file = components.kubeconfig_of(f"{namespace}.{name}")
        token = answer["status"]["token"]
        return kubeconfig.write_for_token(file, components.server, components.authority, token, namespace)

    def create_node(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        allocatable: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a node whose kubelet is kwok.

        It is ready within a second or two (see `wait_nodes_ready`).

        Args:
            name: its name and its ``kubernetes.io/hostname``
            labels: additional labels
            annotations: additional annotations
            taints: mappings with ``key``, ``effect`` and optionally ``value``
            allocatable: the resources for pods; None: 32 CPUs, 256 GiB and 200 pods
        """
        resources = dict(allocatable or _NODE_CAPACITY)
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
                "annotations": {**_NODE_ANNOTATIONS, **(annotations or {})},
            },
            "spec": {"taints": [dict(taint) for taint in taints]},
            "status": {"allocatable": resources, "capacity": resources},
        }
        self.api.create(NODES.path(), node)

    def wait_nodes_ready(self, seconds: float = _SETTLE_TIMEOUT) -> None:
        """Waits until every node is Ready and untainted. The taint is not-ready, which the node controller removes."""
        self.wait_until("nodes to become ready", self._are_nodes_ready, seconds)

    def use_scheduler_config(self, path: Path, url_prefix: str | None = None) -> None:
        """Restarts kube-scheduler with another configuration file."""
        self._write_scheduler_config(SCHEDULER, path, url_prefix)
        self._has_first_scheduler_config = False
        self.processes[SCHEDULER].restart()

    def stop_programs(self) -> None:
        """Stops every program but those of the control plane, the last one first, and puts its logs into a folder of their own. A
        process of the control plane that does not run is started, and kube-scheduler gets its first configuration again.
        """
        self._tenants += 1
        folder = self.logs / f"{self._tenants}"
        folder.mkdir()
        for name in reversed([name for name in self.processes if name not in self._control_plane]):
            process = self.processes.pop(name)
            process.stop()
            if process.log.exists():
                process.log.rename(folder / process.log.name)
        for name in self._control_plane:
            if not self.processes[name].running:
                self.processes[name].start()
        if not self._has_first_scheduler_config:
            self._write_scheduler_config(SCHEDULER, self._options.scheduler_config, self._options.url_prefix)
            self.processes[SCHEDULER].restart()
            self._has_first_scheduler_config = True

    def start_scheduler(self, name: str, config_path: Path | None = None, *, url_prefix: str | None = None) -> Process:
        """Starts an additional kube-scheduler.

        Args:
            name: the name of the process and of its log file
            config_path: a KubeSchedulerConfiguration; None: the defaults
            url_prefix: the ``host:port`` of its extenders (see scheduler_config.rewrite)
        """
        self._require_free_name(name)
        file = self._write_scheduler_config(name, config_path, url_prefix)
        process = self._register(self._running_components().scheduler(file, name))
        process.start()
        return process

    def spawn(
        self,
        name: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        ready: Ready | None = None,
        ready_timeout: float = READY_TIMEOUT,
    ) -> Process:
        """Runs a program as a part of this cluster. It logs into the logs folder, and is stopped with the cluster, before the
        control plane. The name of a process that has ended can be used again.
        """
        self._require_free_name(name)
        log = self.logs / f"{name}.log"
        process = self._register(Process(name, argv, log, env=env, ready=ready, ready_timeout=ready_timeout))
        process.start()
        return process

    def begin_audit(self) -> None:
        """Leaves the calls so far out of `audit_events`."""
        self._audit_start = self._directories.audit_log.stat().st_size if self._options.audit else 0

    def audit_events(self) -> Iterator[dict[str, Any]]:
        """The API server's answered calls since the start or `begin_audit`, oldest first."""
        if not self._options.audit:
            raise ConfigError("this cluster writes no audit log; start it with Options(audit=True)")
        with self._directories.audit_log.open("rb") as file:
            file.seek(self._audit_start)
            for line in file:
                if line.endswith(b"\n"):  # the last line may be incomplete while it is being written
                    yield json.loads(line)

    def _start(self) -> None:
        components = self._components = Components(self._directories, self._binaries, self._ports, self._options)
        config = self._write_scheduler_config(SCHEDULER, self._options.scheduler_config, self._options.url_prefix)
        self._register(components.etcd()).start()
        self._register(components.api_server()).start()
        processes = [
            self._register(part)
            for part in (components.controller_manager(), components.scheduler(config), components.kwok())
        ]
        for process in processes:
            process.start(wait=False)
        self._api = Api(self.kubeconfig)
        for number in range(1, self._options.nodes + 1):
            self.create_node(f"node-{number}")
        for process in processes:
            process.wait_ready()
        self.wait_until("the default service account", self._default_account_exists, _SETTLE_TIMEOUT)
        self.wait_nodes_ready()
        self._control_plane = tuple(self.processes)

    def _close_api(self) -> None:
        api = self._api
        self._api = None
        if api is not None:
            api.close()

    def _kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()

    def _unlock(self) -> None:
        lock = self._lock
        self._lock = None
        if lock is not None:
            os.close(lock)

    def _are_nodes_ready(self) -> bool:
        return all(_is_ready(node) for node in self.api.get(NODES.path())["items"])

    def _default_account_exists(self) -> bool:
        try:
            self.api.get("/api/v1/namespaces/default/serviceaccounts/default")
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return True

    def _write_scheduler_config(self, name: str, path: Path | None, url_prefix: str | None) -> Path:
        try:
            text = scheduler_config.DEFAULT if path is None else path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the scheduler's configuration {path}: {error}") from error
        credentials = self._running_components().kubeconfig_of(SCHEDULER)
        file = self._directories.config / f"{name}.yaml"
        file.write_text(scheduler_config.rewrite(text, credentials, url_prefix, str(path)))
        return file

    def _register(self, process: Process) -> Process:
        """Registers a process before its start, so that `stop` stops it. It becomes the last one in the order of starting, and so
        is the first one to be stopped.
        """
        self.processes.pop(process.name, None)
        self.processes[process.name] = process
        return process

    def _require_free_name(self, name: str) -> None:
        self._running_components()
        if name in self.processes and self.processes[name].running:
            raise ConfigError(f"a process named {name} is running already; stop it or choose another name")

    def _running_components(self) -> Components:
        if self._components is None:
            raise self._not_running()
        return self._components

    def _not_running(self) -> DevClusterError:
        return DevClusterError(f"the cluster in {self._directories.directory} does not run; call start()")

    def wait_until(self, what: str, done: Callable[[], bool], seconds: float) -> None:
        """Waits for a condition, as long as no process of the cluster crashes."""

        def is_done() -> bool:
            if done():
                return True
            for process in self.processes.values():
                if process.crashed:
                    raise DevClusterError(f"{process.name} ended while waiting for {what}; {process.log_tail()}")
            return False

        wait_until(what, is_done, seconds, explain=lambda: f"the logs are in {self.logs}", poll=_POLL_INTERVAL)


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node["status"].get("conditions") or ()
    tainted = any(taint["key"] == "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints") or ())
    return not tainted and any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
