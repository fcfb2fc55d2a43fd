"""What runs on top of the cluster: the Longhorn simulator, candidates of the extender, and the way from kube-scheduler to their leader."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from devcluster import forwarder
from devcluster.cluster import DevCluster
from devcluster.errors import ConfigError, DevClusterError
from devcluster.process import Process, http_ok, logged

SERVICE: Final = "longhorn-scheduler-extender"
NAMESPACE: Final = "longhorn-system"
_LOOPBACK: Final = "127.0.0.1"
_ELSEWHERE: Final = ("203.0.113.1", 9)  # RFC 5737: an address for documentation
_ADDRESS_VARIABLE: Final = "DEVCLUSTER_ADDRESS"


def primary_address() -> str:
    """This machine's own IPv4 address that is no loopback address: EndpointSlices refuse those.

    $DEVCLUSTER_ADDRESS, or the one from which a packet to elsewhere would leave; none is sent.

    Raises:
        DevClusterError: there is none
    """
    given = os.environ.get(_ADDRESS_VARIABLE)
    if given:
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
            address = str(probe.getsockname()[0])
        except OSError:
            address = _LOOPBACK
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
) -> Process:
    """Starts the Longhorn simulator; ready when its ``/status`` says that everything is installed.

    Args:
        cluster: where
        config_path: its configuration; None: its defaults
        status_port: where ``/status`` is served on the loopback address; None: a free port
        kubeconfig: its credentials; None: the administrator's

    Raises:
        DevClusterError: it did not become ready
    """
    port = status_port or cluster.free_port()
    argv = [sys.executable, "-m", "simulator", "--kubeconfig", str(kubeconfig or cluster.kubeconfig)]
    argv += ["--status-port", str(port)]
    argv += [] if config_path is None else ["--config", str(config_path)]
    return cluster.spawn("simulator", argv, ready=http_ok(f"http://{_LOOPBACK}:{port}/status", accept=_says_ready))


def _says_ready(body: bytes) -> bool:
    try:
        status = json.loads(body)
    except ValueError:
        return False
    return isinstance(status, dict) and status.get("ready") is True


def start_extender(  # noqa: PLR0913, PLR0917 # in the order of a command line
    cluster: DevCluster,
    name: str,
    kubeconfig: Path,
    port: int,
    extra_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Process:
    """Starts a candidate of the extender on this machine's primary address; ready when its ``/healthz`` answers.

    Raises:
        DevClusterError: it did not become ready, or there is no address for it
    """
    host = primary_address()
    program = Path(sys.executable).with_name("longhorn-extender")
    if not program.exists():
        raise ConfigError(f"{program} does not exist; run make .venv/dev")
    argv: list[str | os.PathLike[str]] = [
        program,
        "serve",
        "--kubeconfig",
        kubeconfig,
        "--host",
        host,
        "--port",
        str(port),
        *extra_args,
    ]
    return cluster.spawn(name, argv, env=env, ready=http_ok(f"http://{host}:{port}/healthz"))


def start_forwarder(
    cluster: DevCluster,
    port: int | None = None,
    *,
    service: str = SERVICE,
    namespace: str = NAMESPACE,
    name: str = "forwarder",
) -> str:
    """Starts the stand-in for kube-proxy and returns the ``host:port`` kube-scheduler is to use; ready when it watches.

    Raises:
        DevClusterError: it did not become ready
    """
    address = f"{_LOOPBACK}:{port or cluster.free_port()}"
    argv = [sys.executable, "-m", forwarder.__name__, "--kubeconfig", str(cluster.kubeconfig)]
    argv += ["--namespace", namespace, "--service", service, "--listen", address]
    cluster.spawn(name, argv, ready=logged(forwarder.READY))
    return address
