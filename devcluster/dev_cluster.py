"""A real control plane on this machine, with kwok for kubelets.

with DevCluster(folder, Options(nodes=4)) as cluster:
    cluster.kubectl("get", "nodes")
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from app.kube.client import ApiError
from app.kube.resources import NODES
from devcluster import kubeconfig, scheduler_config
from devcluster import kwok_nodes as nodes
from devcluster.api import Api
from devcluster.build import ensure_built
from devcluster.components import KUBECTL, SCHEDULER, Components, Options
from devcluster.directories import Layout
from devcluster.errors import ConfigError, DevClusterError
from devcluster.kubectl import KUBECTL_SECONDS, Kubectl
from devcluster.ports import Ports
from devcluster.process import READY_SECONDS, Process, Ready

_POLL_SECONDS: Final = 0.05
_SETTLE_SECONDS: Final = 30.0
_TOKEN_SECONDS: Final = 7 * 24 * 3600


class DevCluster:
    """One cluster in one folder, which is emptied of a former one. Synchronous; several can run side by side.

    Attributes:
        processes: everything that runs, by name, in the order it was started
    """

    def __init__(self, directory: Path, options: Options | None = None) -> None:
        self._layout = Layout(directory.resolve())
        self._options = options or Options()
        self._ports = Ports()
        self._lock: int | None = None
        self._binaries = Path()
        self._components: Components | None = None
        self._api: Api | None = None
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Builds the programs if need be, starts them, and returns when the API server answers and all nodes are ready.

        Raises:
            DevClusterError: it did not work; nothing is left running
        """
        if self._lock is not None:
            raise DevClusterError(f"the cluster in {self._layout.directory} is running already")
        self._binaries = self._options.binaries or ensure_built()
        self._lock = self._layout.occupy()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops everything in the opposite order, clients before servers; does nothing if nothing runs.

        What fails keeps nothing else from being stopped: its error, the first if there are several, is raised at the end. Once
        interrupted, this waits for nobody any more.
        """
        processes = [process.stop for process in reversed(list(self.processes.values()))]
        failed: BaseException | None = None
        for step in (self._close_api, *processes, self._ports.release, self._unlock):
            try:
                step()
            except BaseException as error:  # noqa: BLE001 # raised when all is done
                failed = failed or error
                if not isinstance(error, Exception):
                    self._kill_all()
        self.processes.clear()
        self._components = None
        if failed is not None:
            raise failed

    @property
    def directory(self) -> Path:
        """The cluster's folder."""
        return self._layout.directory

    @property
    def logs(self) -> Path:
        """The folder with a log file per process."""
        return self._layout.logs

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._layout.kubeconfig

    @property
    def server(self) -> str:
        """The API server's URL.

        Raises:
            DevClusterError: the cluster does not run
        """
        return self._parts().server

    @property
    def api(self) -> Api:
        """Calls on API paths, as administrator.

        Raises:
            DevClusterError: the cluster does not run
        """
        if self._api is None:
            raise self._not_running()
        return self._api

    def free_port(self) -> int:
        """A port nobody else takes while this cluster runs.

        Raises:
            DevClusterError: there is none
        """
        return self._ports.take()

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 # as subprocess.run calls it
        check: bool = True,
        seconds: float = KUBECTL_SECONDS,
    ) -> str:
        """Runs kubectl on this cluster and returns what it printed.

        Args:
            arguments: as on its command line
            input: its standard input, for ``-f -``
            check: False: failing is fine, and what it printed as errors is returned as well
            seconds: how long it may take

        Raises:
            KubectlError: it failed (with `check`), or took too long
        """
        runner = Kubectl(self._binaries / KUBECTL, self.kubeconfig, self._layout.kubectl_cache)
        return runner.run(arguments, input, check=check, seconds=seconds)

    def apply(self, manifests: Path) -> str:
        """Applies a file or folder of manifests, with kustomize where the folder has a kustomization; what kubectl printed.

        Raises:
            KubectlError: something in it was refused
        """
        kustomized = (manifests / "kustomization.yaml").exists()
        return self.kubectl("apply", "--server-side", "-k" if kustomized else "-f", str(manifests))

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig for an existing service account, by a token that outlives any test.

        Raises:
            DevClusterError: there is no such service account
        """
        parts = self._parts()
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        try:
            answer = self.api.create(path, {**request, "spec": {"expirationSeconds": _TOKEN_SECONDS}})
        except ApiError as error:
            raise DevClusterError(f"no token for the service account {namespace}/{name}: {error}") from error
        file = parts.kubeconfig_of(f"{namespace}.{name}")
        token = answer["status"]["token"]
        return kubeconfig.write_for_token(file, parts.server, parts.authority, token, namespace)

    def create_node(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        allocatable: Mapping[str, str] | None = None,
    ) -> None:
        """Adds a node whose kubelet is kwok; it becomes ready within a second or two (see wait_nodes_ready).

        Args:
            name: its name and its ``kubernetes.io/hostname``
            labels: more labels
            annotations: more annotations
            taints: with ``key``, ``effect`` and, if wanted, ``value``
            allocatable: what pods can use, instead of 32 CPUs, 256 GiB and 200 pods

        Raises:
            ApiError: the API server refused it
        """
        self.api.create(NODES.path(), nodes.manifest(name, labels, annotations, taints, allocatable))

    def wait_nodes_ready(self, seconds: float = _SETTLE_SECONDS) -> None:
        """Returns when every node is Ready and has lost its not-ready taint.

        Raises:
            DevClusterError: that took longer than so many seconds
        """
        self._wait("nodes to become ready", self._nodes_ready, seconds)

    def use_scheduler_config(self, path: Path, url_prefix: scheduler_config.Addresses | None = None) -> None:
        """Restarts kube-scheduler with another configuration file.

        Args:
            path: a KubeSchedulerConfiguration
            url_prefix: where its extenders are (see scheduler_config.rewrite)

        Raises:
            DevClusterError: the file is wrong, or kube-scheduler does not start with it
        """
        self._write_scheduler_config(SCHEDULER, path, url_prefix, None)
        self.processes[SCHEDULER].restart()

    def start_scheduler(
        self,
        name: str,
        config_path: Path | None = None,
        *,
        scheduler_name: str | None = None,
        url_prefix: scheduler_config.Addresses | None = None,
    ) -> Process:
        """Starts one more kube-scheduler as process `name`, for the pods that ask for `scheduler_name`.

        Args:
            name: of the process and its log file
            config_path: a KubeSchedulerConfiguration; None: the defaults
            scheduler_name: replaces the name of the file's only profile; None: as in the file
            url_prefix: where its extenders are (see scheduler_config.rewrite)

        Raises:
            DevClusterError: there is such a process, the file is wrong, or kube-scheduler does not start with it
        """
        self._unused(name)
        file = self._write_scheduler_config(name, config_path, url_prefix, scheduler_name)
        process = self._adopt(self._parts().scheduler(file, name))
        process.start()
        return process

    def spawn(
        self,
        name: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        ready: Ready | None = None,
        ready_seconds: float = READY_SECONDS,
    ) -> Process:
        """Runs a further program under the same supervision: its log in the logs folder, stopped with the cluster, before it.

        A name that was used by a process that has ended can be used again.

        Raises:
            DevClusterError: a process of that name runs, or this one did not become ready
        """
        self._unused(name)
        log = self.logs / f"{name}.log"
        process = self._adopt(Process(name, argv, log, env=env, ready=ready, ready_seconds=ready_seconds))
        process.start()
        return process

    def audit_events(self) -> Iterator[dict[str, Any]]:
        """What the API server has logged so far, oldest first: each call, once it was answered.

        Raises:
            ConfigError: the cluster was started without an audit log
        """
        if not self._options.audit:
            raise ConfigError("this cluster writes no audit log; start it with Options(audit=True)")
        with self._layout.audit_log.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):  # otherwise it is being written
                    yield json.loads(line)

    def _start(self) -> None:
        parts = self._components = Components(self._layout, self._binaries, self._ports, self._options)
        config = self._write_scheduler_config(SCHEDULER, self._options.scheduler_config, self._options.url_prefix, None)
        self._adopt(parts.etcd()).start()
        self._adopt(parts.api_server()).start()
        together = [self._adopt(part) for part in (parts.controller_manager(), parts.scheduler(config), parts.kwok())]
        for process in together:
            process.start(wait=False)
        self._api = Api(self.kubeconfig)
        for number in range(1, self._options.nodes + 1):
            self.create_node(f"node-{number}")
        for process in together:
            process.wait_ready()
        self._wait("the default service account", self._namespaces_work, _SETTLE_SECONDS)
        self.wait_nodes_ready()

    def _close_api(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            api.close()

    def _kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _nodes_ready(self) -> bool:
        return all(nodes.is_ready(node) for node in self.api.get(NODES.path())["items"])

    def _namespaces_work(self) -> bool:
        try:
            self.api.get("/api/v1/namespaces/default/serviceaccounts/default")
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return True

    def _write_scheduler_config(
        self, name: str, path: Path | None, url_prefix: scheduler_config.Addresses | None, scheduler_name: str | None
    ) -> Path:
        try:
            text = scheduler_config.DEFAULT if path is None else path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the scheduler's configuration {path}: {error}") from error
        credentials = self._parts().kubeconfig_of(SCHEDULER)
        file = self._layout.config / f"{name}.yaml"
        file.write_text(scheduler_config.rewrite(text, credentials, url_prefix, scheduler_name, str(path)))
        return file

    def _adopt(self, process: Process) -> Process:
        """Registers a process before it starts, so that it is stopped whatever happens; last in the order of stopping."""
        self.processes.pop(process.name, None)
        self.processes[process.name] = process
        return process

    def _unused(self, name: str) -> None:
        self._parts()
        if name in self.processes and self.processes[name].running:
            raise ConfigError(f"a process named {name} is running already; stop it or choose another name")

    def _parts(self) -> Components:
        if self._components is None:
            raise self._not_running()
        return self._components

    def _not_running(self) -> DevClusterError:
        return DevClusterError(f"the cluster in {self._layout.directory} does not run; call start()")

    def _wait(self, what: str, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            for process in self.processes.values():
                if process.crashed:
                    raise DevClusterError(f"{process.name} ended while waiting for {what}; {process.log_tail()}")
            if time.monotonic() > deadline:
                raise DevClusterError(f"waited {seconds:g} s in vain for {what}; the logs are in {self.logs}")
            time.sleep(_POLL_SECONDS)
