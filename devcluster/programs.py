"""Starts the programs of a cluster, one function per program. They are the Longhorn simulator, a candidate of the extender, the
forwarder from kube-scheduler to the leading candidate, and Prometheus.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.kube.resources import LONGHORN_NAMESPACE
from devcluster import forwarder, prometheus
from devcluster.dev_cluster import DevCluster
from devcluster.directories import Directories
from devcluster.errors import ConfigError, DevClusterError
from devcluster.process import Process, Ready, http_ok, log_has

SERVICE = "longhorn-scheduler-extender"
NAMESPACE = LONGHORN_NAMESPACE
SIMULATOR = "simulator"
LOOPBACK = "127.0.0.1"
_OUTSIDE_ADDRESS = ("203.0.113.1", 9)  # RFC 5737: an address for documentation
_ADDRESS_VARIABLE = "DEVCLUSTER_ADDRESS"


def primary_address() -> str:
    """This machine's IPv4 address, no loopback address: EndpointSlices refuse those. It is $DEVCLUSTER_ADDRESS, or the source
    address of a packet to another network; none is sent.
    """
    given = os.environ.get(_ADDRESS_VARIABLE)
    if given:
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_OUTSIDE_ADDRESS)
            address = str(probe.getsockname()[0])
        except OSError:
            address = LOOPBACK
    if address.startswith("127."):
        raise DevClusterError(
            "this machine has no network address but the loopback one, which EndpointSlices refuse; "
            f"add one (ip address add 10.254.0.1/32 dev lo) and set {_ADDRESS_VARIABLE} to it"
        )
    return address


def start_simulator(
    cluster: DevCluster,
    config_path: Path | None = None,
    *,
    status_port: int | None = None,
    kubeconfig: Path | None = None,
    wait: bool = True,
) -> Process:
    """Starts the Longhorn simulator.

    It is ready when its ``/status`` says so: everything is installed.

    Args:
        cluster: the cluster to run in
        config_path: its configuration; None: its defaults
        status_port: the port of ``/status`` on the loopback address; None: a free port
        kubeconfig: its credentials; None: the administrator's
        wait: whether to return when it is ready, not as soon as it runs
    """
    port = status_port or cluster.free_port()
    argv = [sys.executable, "-m", "simulator", "--kubeconfig", str(kubeconfig or cluster.kubeconfig)]
    argv += ["--status-port", str(port)]
    argv += [] if config_path is None else ["--config", str(config_path)]
    return _spawn(
        cluster, SIMULATOR, argv, http_ok(f"http://{LOOPBACK}:{port}/status", accept=_reports_ready), wait=wait
    )


def find_extender() -> Path:
    """Returns the path of the extender's program, which runs this working tree."""
    program = Path(sys.executable).with_name("longhorn-extender")
    if not program.exists():
        raise ConfigError(f"{program} does not exist; run make .venv/dev")
    return program


def start_extender(  # noqa: PLR0913, PLR0917 # in the order of a command line
    cluster: DevCluster,
    name: str,
    kubeconfig: Path,
    port: int,
    extra_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    wait: bool = True,
) -> Process:
    """Starts a candidate of the extender on this machine's primary address. It is ready when its ``/healthz`` answers."""
    host = primary_address()
    argv = [
        str(find_extender()),
        "serve",
        "--kubeconfig",
        str(kubeconfig),
        "--host",
        host,
        "--port",
        str(port),
        *extra_args,
    ]
    return _spawn(cluster, name, argv, http_ok(f"http://{host}:{port}/healthz"), env=env, wait=wait)


def start_forwarder(  # noqa: PLR0913 # each is an option of the program
    cluster: DevCluster,
    port: int | None = None,
    *,
    service: str = SERVICE,
    namespace: str = NAMESPACE,
    name: str = "forwarder",
    wait: bool = True,
) -> str:
    """Starts the forwarder; returns the ``host:port`` for kube-scheduler. It is ready when it watches the Service's endpoints."""
    address = f"{LOOPBACK}:{port or cluster.free_port()}"
    argv = [sys.executable, "-m", forwarder.__name__, "--kubeconfig", str(cluster.kubeconfig)]
    argv += ["--namespace", namespace, "--service", service, "--listen", address]
    _spawn(cluster, name, argv, log_has(forwarder.READY), wait=wait)
    return address


def start_prometheus(cluster: DevCluster, program: Path, targets: Mapping[str, str], *, wait: bool = True) -> str:
    """Starts Prometheus; returns its URL. Targets are ``host:port`` by name."""
    config = Directories(cluster.directory).config
    file = config / "prometheus.yaml"
    file.write_text(prometheus.configuration(SERVICE, targets))
    address = f"{LOOPBACK}:{cluster.free_port()}"
    argv = [str(program), f"--config.file={file}", f"--storage.tsdb.path={config / 'prometheus'}"]
    argv.append(f"--web.listen-address={address}")
    _spawn(cluster, prometheus.PROGRAM, argv, http_ok(f"http://{address}/-/ready"), wait=wait)
    return f"http://{address}"


class _DeferredProbe:
    """A readiness probe that is true once. So starting does not wait. Later calls return the result of another probe."""

    def __init__(self, probe: Ready) -> None:
        self._probe = probe
        self._was_called = False

    def __call__(self, process: Process) -> bool:
        if self._was_called:
            return self._probe(process)
        self._was_called = True
        return True


def _spawn(  # noqa: PLR0913
    cluster: DevCluster,
    name: str,
    argv: Sequence[str | os.PathLike[str]],
    probe: Ready,
    *,
    env: Mapping[str, str] | None = None,
    wait: bool,
) -> Process:
    return cluster.spawn(name, argv, env=env, ready=probe if wait else _DeferredProbe(probe))


def _reports_ready(body: bytes) -> bool:
    try:
        status = json.loads(body)
    except ValueError:
        return False
    return isinstance(status, dict) and status.get("ready") is True
