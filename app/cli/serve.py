"""`longhorn-extender serve`: the HTTP service."""

from __future__ import annotations

import gc
import json
import shlex
import signal
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.load import BestEffortOption, PackingOption, SnapshotOption, now, options_of, snapshot_from
from app.logs import LogFormat, configure
from app.settings import DEFAULT_HOST, DEFAULT_MAX_BODY, DEFAULT_PORT, BestEffort, Settings
from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.quantity import parse_bytes
from scheduler_core.verbs import Packing

if TYPE_CHECKING:
    from fastapi import FastAPI

# Go's HTTP client keeps idle connections for 90 s and does not repeat a POST that meets a closing server.
KEEP_ALIVE_SECONDS = 120
SHUTDOWN_SECONDS = 20
_MOST_EXAMPLE_NODES = 12


def serve(
    snapshot: SnapshotOption,
    host: Annotated[str, typer.Option(envvar="LONGHORN_EXTENDER_HOST", help="Address to listen on.")] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option(envvar="LONGHORN_EXTENDER_PORT", min=0, max=65535, help="TCP port; 0 picks a free one.")
    ] = DEFAULT_PORT,
    max_body: Annotated[
        str,
        typer.Option(envvar="LONGHORN_EXTENDER_MAX_BODY", metavar="QUANTITY", help="Largest request body, e.g. 256Mi."),
    ] = f"{DEFAULT_MAX_BODY // 1024**2}Mi",
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    log_format: Annotated[
        LogFormat, typer.Option(envvar="LONGHORN_EXTENDER_LOG_FORMAT", help="auto: readable on a terminal, else JSON.")
    ] = "auto",
    log_level: Annotated[str, typer.Option(envvar="LONGHORN_EXTENDER_LOG_LEVEL", help="debug, info, ...")] = "info",
) -> None:
    """Serve /filter, /preempt, /explain, /state, /metrics and /docs from a snapshot of a cluster."""
    settings = Settings(
        host=host,
        port=port,
        max_body=_positive(max_body),
        options=options_of(best_effort, packing),
    )
    _check_level(log_level)
    from app.bootstrap import create_app

    # uvicorn raises the signal that stopped it once more after a clean shutdown; that is no failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    loaded = snapshot_from(snapshot)
    app = create_app(loaded, settings, now())
    listener = _listen(settings.host, settings.port)
    configure(log_format, log_level)
    typer.echo(_welcome(loaded, settings.host, listener.getsockname()[1]), err=True)
    _run(app, listener)


def _positive(text: str) -> int:
    try:
        size = parse_bytes(text)
    except QuantityError as error:
        raise CoreError(f"--max-body: {error}") from error
    if size <= 0:
        raise CoreError(f"--max-body: {text} must be more than 0 bytes")
    return size


def _check_level(level: str) -> None:
    levels = ("debug", "info", "warning", "error", "critical")
    if level.lower() not in levels:
        raise CoreError(f"--log-level {level}: expected one of {', '.join(levels)}")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        # Python adds "(while attempting to bind ...)", which says what this says.
        problem = str(error.strerror).partition(" (")[0] if isinstance(error, OSError) else "no host has such a name"
        raise CoreError(f"cannot listen on {host} port {port}: {problem}; see --host and --port") from error


def _run(app: FastAPI, listener: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    # What was loaded lives as long as the process; the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    uvicorn.Server(config).run(sockets=[listener])


def _welcome(snapshot: Snapshot, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    counts = f"{len(snapshot.longhorn_nodes)} Longhorn nodes and {len(snapshot.volumes)} volumes"
    lines = [f"Serving {counts} on {url} (docs: {url}/docs, Ctrl-C stops)"]
    question = _example(snapshot)
    if question:
        body = shlex.quote(json.dumps(question))
        lines += ["", "Ask it as kube-scheduler would:", "", f"  curl -s {url}/filter -d {body}", ""]
    return "\n".join(lines)


def _example(snapshot: Snapshot) -> dict[str, Any] | None:
    """A question about a pod of the snapshot: the first pending one with a claim, else the first with a claim."""
    pods = sorted(
        (pod for pod in snapshot.pods.values() if pod.volumes), key=lambda pod: (pod.node_name != "", pod.key)
    )
    names = sorted(snapshot.nodes or snapshot.longhorn_nodes)[:_MOST_EXAMPLE_NODES]
    return {"Pod": _pod(pods[0]), "NodeNames": names} if pods and names else None


def _pod(pod: Pod) -> dict[str, Any]:
    metadata = {"namespace": pod.namespace, "name": pod.name}
    volumes = [
        {"name": volume.name, "persistentVolumeClaim": {"claimName": volume.claim}}
        for volume in pod.volumes
        if not volume.ephemeral
    ]
    return {"metadata": {**metadata, "uid": pod.uid} if pod.uid else metadata, "spec": {"volumes": volumes}}
