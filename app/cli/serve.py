"""`longhorn-extender serve`: the HTTP service."""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import socket
from typing import Annotated, Any

import typer

from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    PackingOption,
    SnapshotOption,
    now,
    options_of,
    snapshot_from,
)
from app.runtime.logs import LogFormat, configure
from app.settings import (
    DEFAULT_HOST,
    DEFAULT_MAX_BODY,
    DEFAULT_NAMESPACE,
    DEFAULT_PORT,
    DEFAULT_STALE_AFTER,
    BestEffort,
    Enforcement,
    LiveOptions,
    Reservation,
    Settings,
)
from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.extender.filter import Packing
from scheduler_core.extender.settings import (
    ENABLED,
    NODE_RESERVATION_TIMEOUT,
    POD_SCHEDULING_TIMEOUT,
    SettingsHistory,
    Source,
)
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.policy import Policy
from scheduler_core.leadership.election import ElectionTiming
from scheduler_core.model.kube import Pod
from scheduler_core.model.quantity import parse_bytes
from scheduler_core.model.snapshot import Snapshot

_MOST_EXAMPLE_NODES = 12


def serve(  # one parameter per flag
    snapshot: SnapshotOption = None,
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
    enforcement: Annotated[
        Enforcement,
        typer.Option(
            envvar="LONGHORN_EXTENDER_ENFORCEMENT",
            help="observe: answer that every node fits, and only count and log what would be refused.",
        ),
    ] = Enforcement.ENFORCE,
    policy: Annotated[
        str | None,
        typer.Option(
            envvar="LONGHORN_EXTENDER_POLICY",
            metavar="FILE",
            help="Policy of /prioritize, whose predicates count in /filter, too; read again when it changes.",
        ),
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = DEFAULT_NAMESPACE,
    identity: Annotated[
        str, typer.Option(envvar="POD_NAME", help="Who this candidate is in the Lease; default: host name and process.")
    ] = "",
    advertise: Annotated[
        str,
        typer.Option(
            envvar="POD_IP",
            help="IP address the Service points to while this process leads; default: --host, if it is one.",
        ),
    ] = "",
    node_name: Annotated[str, typer.Option(envvar="NODE_NAME", help="The node this runs on; default: host name.")] = "",
    reservation: Annotated[
        Reservation,
        typer.Option(
            envvar="LONGHORN_EXTENDER_RESERVATION",
            help="capacity: pods are judged jointly, nobody waits for a lock; node: one pod at a time, its node is reserved.",
        ),
    ] = Reservation.CAPACITY,
    nudge: Annotated[  # noqa: FBT002 # --nudge and --no-nudge
        bool,
        typer.Option(
            "--nudge/--no-nudge",
            envvar="LONGHORN_EXTENDER_NUDGE",
            help="Have kube-scheduler retry a refused pod as soon as it fits, by an annotation of the pod.",
        ),
    ] = True,
    stale_after: Annotated[
        float,
        typer.Option(
            envvar="LONGHORN_EXTENDER_STALE_AFTER",
            min=1,
            help="Seconds without a word from the API server, after which nothing is decided.",
        ),
    ] = DEFAULT_STALE_AFTER,
    lease_duration: Annotated[
        float, typer.Option(envvar="LONGHORN_EXTENDER_LEASE_DURATION", help="Seconds until others may take the Lease.")
    ] = 15.0,
    renew_deadline: Annotated[
        float, typer.Option(envvar="LONGHORN_EXTENDER_RENEW_DEADLINE", help="Seconds after which a leader gives up.")
    ] = 10.0,
    retry_period: Annotated[
        float, typer.Option(envvar="LONGHORN_EXTENDER_RETRY_PERIOD", help="Seconds between renewals.")
    ] = 2.0,
    enabled: Annotated[
        str, typer.Option(envvar="LONGHORN_EXTENDER_ENABLED", metavar="true|false", help=f"See {ENABLED}.")
    ] = "",
    pod_scheduling_timeout: Annotated[
        str,
        typer.Option(
            envvar="LONGHORN_EXTENDER_POD_SCHEDULING_TIMEOUT", metavar="SECONDS", help=f"See {POD_SCHEDULING_TIMEOUT}."
        ),
    ] = "",
    node_reservation_timeout: Annotated[
        str,
        typer.Option(
            envvar="LONGHORN_EXTENDER_NODE_RESERVATION_TIMEOUT",
            metavar="SECONDS",
            help=f"See {NODE_RESERVATION_TIMEOUT}.",
        ),
    ] = "",
    log_format: Annotated[
        LogFormat, typer.Option(envvar="LONGHORN_EXTENDER_LOG_FORMAT", help="auto: readable on a terminal, else JSON.")
    ] = "auto",
    log_level: Annotated[str, typer.Option(envvar="LONGHORN_EXTENDER_LOG_LEVEL", help="debug, info, ...")] = "info",
) -> None:
    """Serve /filter, /prioritize, /preempt, /explain, /state, /metrics and /docs beside a cluster, or from a snapshot of one.

    Beside a cluster several of these may run; the one that holds the Lease answers.
    """
    settings = Settings(
        host=host,
        port=port,
        max_body=_positive(max_body),
        options=options_of(best_effort, packing),
        enforcement=enforcement,
        policy=policy,
    )
    check_level(log_level)
    if policy is not None:
        _check_policy(policy)
    if snapshot is not None:
        _serve_snapshot(snapshot, settings, log_format, log_level)
        return
    written = {
        ENABLED: enabled,
        POD_SCHEDULING_TIMEOUT: pod_scheduling_timeout,
        NODE_RESERVATION_TIMEOUT: node_reservation_timeout,
    }
    environment = {name: value for name, value in written.items() if value}
    for problem in SettingsHistory().effective([Source("flag or environment", environment)]).problems:
        raise CoreError(problem.partition(";")[0])
    options = LiveOptions(
        identity=identity or f"{socket.gethostname()}-{os.getpid()}",
        namespace=namespace,
        kubeconfig=kubeconfig,
        context=context,
        advertise=_advertised(advertise, host),
        node_name=node_name or socket.gethostname(),
        reservation=reservation,
        nudge=nudge,
        stale_after=stale_after,
        timing=ElectionTiming(lease_duration, renew_deadline, retry_period),
        environment=environment,
    )
    _serve_cluster(options, settings, log_format, log_level)


def _serve_snapshot(snapshot: str, settings: Settings, log_format: LogFormat, log_level: str) -> None:
    from app.bootstrap import create_app
    from app.policy.file import PolicyFile
    from app.server import exit_quietly, serve_snapshot

    exit_quietly()
    file = PolicyFile(settings.policy) if settings.policy is not None else None
    loaded, state = (snapshot_from(snapshot), None) if file is None else _whole_snapshot(snapshot, file.policy)
    app = create_app(loaded, settings, now(), state, file)
    listener = listen(settings.host, settings.port)
    configure(log_format, log_level)
    typer.echo(_welcome(loaded, settings.host, listener.getsockname()[1]), err=True)
    serve_snapshot(app, listener, file.run if file else None)


def _whole_snapshot(source: str, policy: Policy) -> tuple[Snapshot, State]:
    """A snapshot, and what the rules of a policy read of the same file; warnings go to standard error."""
    from app.kube.snapshot_generic import load_cluster

    loaded = load_cluster(source, policy, longhorn=True)
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return loaded.snapshot, loaded.state


def _serve_cluster(options: LiveOptions, settings: Settings, log_format: LogFormat, log_level: str) -> None:
    from app.runtime.server import serve_cluster
    from app.server import exit_quietly

    exit_quietly()
    listener = listen(settings.host, settings.port)
    configure(log_format, log_level)
    url = _url(settings.host, listener.getsockname()[1])
    welcome = f"Serving a cluster on {url} as {options.identity} (state: {url}/state, Ctrl-C hands over and stops)"
    serve_cluster(options, settings, listener, lambda: typer.echo(welcome, err=True))


def _advertised(advertise: str, host: str) -> str:
    """The address for the EndpointSlice, which takes no loopback and no wildcard address; "" if there is none."""
    try:
        address = ipaddress.ip_address(advertise or host)
    except ValueError as error:
        if advertise:
            raise CoreError(f"--advertise {advertise}: is no IP address") from error
        return ""
    usable = not (address.is_loopback or address.is_unspecified or address.is_link_local)
    if advertise and not usable:
        raise CoreError(f"--advertise {advertise}: an EndpointSlice takes no loopback, wildcard or link-local address")
    return str(address) if usable else ""


def _positive(text: str) -> int:
    try:
        size = parse_bytes(text)
    except QuantityError as error:
        raise CoreError(f"--max-body: {error}") from error
    if size <= 0:
        raise CoreError(f"--max-body: {text} must be more than 0 bytes")
    return size


def _check_policy(path: str) -> None:
    from app.policy.file import PolicyFile

    for warning in PolicyFile(path).policy.warnings:
        typer.echo(f"warning: {path}: {warning}", err=True)


def check_level(level: str) -> None:
    """Whether a log level is one.

    Raises:
        CoreError: it is none
    """
    levels = ("debug", "info", "warning", "error", "critical")
    if level.lower() not in levels:
        raise CoreError(f"--log-level {level}: expected one of {', '.join(levels)}")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 picks a free one.

    Raises:
        CoreError: the address cannot be had
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        # Python adds "(while attempting to bind ...)", which says what this says.
        problem = str(error.strerror).partition(" (")[0] if isinstance(error, OSError) else "no host has such a name"
        raise CoreError(f"cannot listen on {host} port {port}: {problem}; see --host and --port") from error


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _welcome(snapshot: Snapshot, host: str, port: int) -> str:
    url = _url(host, port)
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
