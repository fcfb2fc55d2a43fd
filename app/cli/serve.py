"""`longhorn-extender serve`: the HTTP service."""

from __future__ import annotations

import ipaddress
import json
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.options import (
    AloneOption,
    BestEffortOption,
    CandidateIdentityOption,
    ContextOption,
    ExtenderLeaseDurationOption,
    ExtenderLogFormatOption,
    ExtenderLogLevelOption,
    ExtenderRenewDeadlineOption,
    ExtenderRetryPeriodOption,
    KubeconfigOption,
    NamespaceOption,
    PackingOption,
    PluginOption,
    SnapshotOption,
    StatusPageOption,
    check_log_level,
    filter_options,
    holder_identity,
    listen,
    now,
    process_memory,
    read_policy,
    read_snapshot_file,
    request_limits,
    url,
)
from app.cli.terminal import print_line, print_lines, warn
from app.runtime.logs import LogFormat, configure
from app.settings import (
    DEFAULT_GUARD_PORT,
    DEFAULT_HOST,
    DEFAULT_NAMESPACE,
    DEFAULT_PORT,
    DEFAULT_STALE_AFTER,
    BestEffort,
    LiveOptions,
    Reservation,
    Settings,
    TlsFiles,
)
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import Packing
from scheduler_core.extender.settings import (
    ENABLED,
    ENFORCEMENT,
    NODE_RESERVATION_TIMEOUT,
    PLACEMENT_GUARD,
    POD_SCHEDULING_TIMEOUT,
    Enforcement,
    SettingsHistory,
    SettingsSource,
)
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import Policy
from scheduler_core.leadership import endpoint_slice
from scheduler_core.leadership.election import ElectionTiming
from scheduler_core.model.kube import Pod
from scheduler_core.model.quantity import format_count
from scheduler_core.model.snapshot import Snapshot

if TYPE_CHECKING:  # a command that does not serve needs none of it
    from fastapi import FastAPI

    from app.runtime.server import HttpServer

_MAX_EXAMPLE_NODES: Final = 12
_ENV: Final = "LONGHORN_EXTENDER_"

_Host = Annotated[str, typer.Option(envvar=f"{_ENV}HOST", help="Address to listen on.")]
_Port = Annotated[int, typer.Option(envvar=f"{_ENV}PORT", min=0, max=65535, help="TCP port; 0 picks a free one.")]
_MaxBody = Annotated[
    str,
    typer.Option(
        envvar=f"{_ENV}MAX_BODY",
        metavar="QUANTITY",
        help="Largest request body, e.g. 256Mi; default: a quarter of --memory-limit.",
    ),
]
_MemoryLimit = Annotated[
    str,
    typer.Option(
        envvar=f"{_ENV}MEMORY_LIMIT",
        metavar="QUANTITY",
        help="Memory this process may use, 5/8 of it for requests; default: the container's limit, else 1Gi.",
    ),
]
_Enforcement = Annotated[
    Enforcement | None,
    typer.Option(
        envvar=f"{_ENV}ENFORCEMENT",
        help=f"observe: answer that every node fits, and only count and log what would be refused; see {ENFORCEMENT}.",
    ),
]
_Policy = Annotated[
    str | None,
    typer.Option(
        envvar=f"{_ENV}POLICY",
        metavar="FILE",
        help="Policy of /prioritize, whose predicates count in /filter, too; read again when it changes.",
    ),
]
_Advertise = Annotated[
    str,
    typer.Option(
        envvar="POD_IP",
        help="IP address the Service points to while this process leads; default: --host, if it is one.",
    ),
]
_NodeName = Annotated[str, typer.Option(envvar="NODE_NAME", help="The node this runs on; default: host name.")]
_Reservation = Annotated[
    Reservation,
    typer.Option(
        envvar=f"{_ENV}RESERVATION",
        help="capacity: pods are judged jointly, without a lock; node: one pod at a time, its node is reserved.",
    ),
]
_Nudge = Annotated[
    bool,
    typer.Option(
        "--nudge/--no-nudge",
        envvar=f"{_ENV}NUDGE",
        help="Have kube-scheduler retry a refused pod as soon as it fits, by an annotation of the pod.",
    ),
]
_DiskMetrics = Annotated[
    bool,
    typer.Option(
        "--disk-metrics/--no-disk-metrics",
        envvar=f"{_ENV}DISK_METRICS",
        help="Have the space of every disk in /metrics: seven series for each, eight for a closed one.",
    ),
]
_StaleAfter = Annotated[
    float,
    typer.Option(
        envvar=f"{_ENV}STALE_AFTER",
        min=1,
        help="Seconds without a word from the API server, after which nothing is decided.",
    ),
]
_Enabled = Annotated[str, typer.Option(envvar=f"{_ENV}ENABLED", metavar="true|false", help=f"See {ENABLED}.")]
_PodSchedulingTimeout = Annotated[
    str,
    typer.Option(envvar=f"{_ENV}POD_SCHEDULING_TIMEOUT", metavar="SECONDS", help=f"See {POD_SCHEDULING_TIMEOUT}."),
]
_NodeReservationTimeout = Annotated[
    str,
    typer.Option(envvar=f"{_ENV}NODE_RESERVATION_TIMEOUT", metavar="SECONDS", help=f"See {NODE_RESERVATION_TIMEOUT}."),
]
_PlacementGuard = Annotated[
    str,
    typer.Option(
        envvar=f"{_ENV}PLACEMENT_GUARD",
        metavar="off|observe|enforce",
        help=f"See {PLACEMENT_GUARD}.",
    ),
]
_PlacementGuardPort = Annotated[
    int,
    typer.Option(
        envvar=f"{_ENV}PLACEMENT_GUARD_PORT",
        min=0,
        max=65535,
        help="TCP port that API servers call the placement guard on, with TLS; 0 picks a free one.",
    ),
]
_TlsCertFile = Annotated[
    str,
    typer.Option(
        envvar=f"{_ENV}TLS_CERT_FILE",
        metavar="FILE",
        help="Certificate of --port, which then speaks HTTPS alone; read again when it changes, as are the two others.",
    ),
]
_TlsPrivateKeyFile = Annotated[
    str, typer.Option(envvar=f"{_ENV}TLS_PRIVATE_KEY_FILE", metavar="FILE", help="Key of --tls-cert-file.")
]
_ClientCaFile = Annotated[
    str,
    typer.Option(
        envvar=f"{_ENV}CLIENT_CA_FILE",
        metavar="FILE",
        help="Authorities of callers' certificates: nothing is answered to a caller that shows no certificate of theirs.",
    ),
]
_ProbePort = Annotated[
    int | None,
    typer.Option(
        envvar=f"{_ENV}PROBE_PORT",
        min=0,
        max=65535,
        help="TCP port with /healthz and /readyz alone, without TLS, for a kubelet; 0 picks a free one.",
    ),
]

_AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        envvar=f"{_ENV}ALLOWED_HOST",
        metavar="NAME",
        help="A name by which callers reach the service, besides IP addresses, localhost and the names of its Services; may be "
        "given several times.",
    ),
]


def serve(  # one parameter per flag
    snapshot: SnapshotOption = None,
    host: _Host = DEFAULT_HOST,
    port: _Port = DEFAULT_PORT,
    max_body: _MaxBody = "",
    memory_limit: _MemoryLimit = "",
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    enforcement: _Enforcement = None,
    policy: _Policy = None,
    plugin: PluginOption = None,
    alone: AloneOption = False,  # noqa: FBT002 # --alone
    disk_metrics: _DiskMetrics = True,  # noqa: FBT002 # --disk-metrics and --no-disk-metrics
    status_page: StatusPageOption = True,  # noqa: FBT002 # --status-page and --no-status-page
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = DEFAULT_NAMESPACE,
    identity: CandidateIdentityOption = "",
    advertise: _Advertise = "",
    node_name: _NodeName = "",
    reservation: _Reservation = Reservation.CAPACITY,
    nudge: _Nudge = True,  # noqa: FBT002 # --nudge and --no-nudge
    stale_after: _StaleAfter = DEFAULT_STALE_AFTER,
    lease_duration: ExtenderLeaseDurationOption = 15.0,
    renew_deadline: ExtenderRenewDeadlineOption = 10.0,
    retry_period: ExtenderRetryPeriodOption = 2.0,
    enabled: _Enabled = "",
    pod_scheduling_timeout: _PodSchedulingTimeout = "",
    node_reservation_timeout: _NodeReservationTimeout = "",
    placement_guard: _PlacementGuard = "",
    placement_guard_port: _PlacementGuardPort = DEFAULT_GUARD_PORT,
    tls_cert_file: _TlsCertFile = "",
    tls_private_key_file: _TlsPrivateKeyFile = "",
    client_ca_file: _ClientCaFile = "",
    probe_port: _ProbePort = None,
    allowed_host: _AllowedHost = None,
    log_format: ExtenderLogFormatOption = "auto",
    log_level: ExtenderLogLevelOption = "info",
) -> None:
    """Answer kube-scheduler for a cluster, or for a snapshot of one.

    Serves /filter, /prioritize, /preempt, /explain, /state, /metrics and /docs. For a cluster several of these may run;
    the one that holds the Lease answers.
    """
    _check_alone(snapshot, alone=alone)
    options = filter_options(best_effort, packing)
    limits = request_limits(max_body, memory_limit)
    mode = enforcement or Enforcement.ENFORCE
    tls = _tls_files(tls_cert_file, tls_private_key_file, client_ca_file)
    settings = Settings(host, port, *limits, options, mode, policy, alone, tuple(plugin or ()), disk_metrics, tls)
    settings = replace(settings, probe_port=probe_port, status_page=status_page, allowed_hosts=allowed_host or ())
    check_log_level(log_level)
    if policy is not None:
        read_policy(policy, settings.plugins)
    if snapshot is not None:
        _serve_snapshot(snapshot, settings, log_format, log_level)
        return
    live_options = LiveOptions(
        identity=holder_identity(identity),
        namespace=namespace,
        kubeconfig=kubeconfig,
        context=context,
        advertise=_advertised_address(advertise, host),
        memory=process_memory(memory_limit),
        node_name=node_name or socket.gethostname(),
        reservation=reservation,
        nudge=nudge,
        stale_after=stale_after,
        timing=ElectionTiming(lease_duration, renew_deadline, retry_period),
        environment=_extender_settings(
            {
                ENABLED: enabled,
                POD_SCHEDULING_TIMEOUT: pod_scheduling_timeout,
                NODE_RESERVATION_TIMEOUT: node_reservation_timeout,
                ENFORCEMENT: enforcement or "",
                PLACEMENT_GUARD: placement_guard,
            }
        ),
    )
    _serve_cluster(live_options, settings, placement_guard_port, log_format, log_level)


def _check_alone(snapshot: str | None, *, alone: bool) -> None:
    if alone and snapshot is None:
        raise CoreError("--alone needs --snapshot: in a cluster the volumes of other pods always count")


def _tls_files(certificate: str, private_key: str, client_ca: str) -> TlsFiles | None:
    """Returns the files of TLS, None for plain HTTP; raises a CoreError if one of them is missing."""
    if not certificate and not private_key and not client_ca:
        return None
    if not certificate or not private_key:
        raise CoreError("--tls-cert-file and --tls-private-key-file go together, and --client-ca-file needs both")
    return TlsFiles(certificate, private_key, client_ca)


def _extender_settings(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the extender's own settings that were given, or raises a CoreError if one is not valid."""
    given = {name: value for name, value in values.items() if value}
    for problem in SettingsHistory().resolve([SettingsSource("flag or environment", given)]).problems:
        raise CoreError(problem.partition(";")[0])
    return given


def _serve_snapshot(source: str, settings: Settings, log_format: LogFormat, log_level: str) -> None:
    from app.bootstrap import SnapshotService, create_app
    from app.extender.certificate_files import CertificateFiles
    from app.policy.in_force import PolicyFile
    from app.policy.plugins import load_plugins
    from app.runtime.server import HttpServer, exit_quietly, freeze_heap, run_process
    from app.runtime.server import serve as serve_until_signal

    exit_quietly()
    file = PolicyFile(settings.policy, load_plugins(settings.plugins)) if settings.policy is not None else None
    snapshot, generic = (
        (read_snapshot_file(source), None) if file is None else _snapshot_with_generic_state(source, file.policy)
    )
    app = create_app(snapshot, settings, now(), generic, file)
    metrics = app.state.services.metrics
    certificate = CertificateFiles(settings.tls, metrics, now) if settings.tls is not None else None
    listener = listen(settings.host, settings.port)
    tls = None if certificate is None else lambda: certificate.context
    servers = [HttpServer(app, listener, tls, hosts=_hosts(settings)), *_probe_servers(app, settings)]
    configure(log_format, log_level)
    print_lines(_welcome(snapshot, _address(settings, listener)), err=True)
    freeze_heap()
    run_process(serve_until_signal(SnapshotService(file, certificate, app.state.services.node_losses), servers))


def _address(settings: Settings, listener: socket.socket) -> str:
    return url(settings.host, listener.getsockname()[1], "https" if settings.tls is not None else "http")


def _hosts(settings: Settings, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    services = (endpoint_slice.EXTENDER, endpoint_slice.PLACEMENT_GUARD)
    names = [name for service in services for name in service.host_names(namespace)]
    return [settings.host, *settings.allowed_hosts, *names]


def _probe_servers(app: FastAPI, settings: Settings) -> list[HttpServer]:
    from app.bootstrap import plain_probes
    from app.runtime.server import HttpServer

    if settings.probe_port is None:
        return []
    return [HttpServer(plain_probes(app), listen(settings.host, settings.probe_port))]


def _snapshot_with_generic_state(source: str, policy: Policy) -> tuple[Snapshot, GenericClusterState]:
    """Returns a snapshot and what a policy's rules read of it; prints warnings to standard error."""
    from app.kube.snapshot_generic import load_cluster

    loaded = load_cluster(source, policy, longhorn=True)
    for warning in loaded.warnings:
        warn(warning)
    return loaded.snapshot, loaded.state


def _serve_cluster(
    options: LiveOptions, settings: Settings, guard_port: int, log_format: LogFormat, log_level: str
) -> None:
    from app.runtime.server import exit_quietly, run_process

    exit_quietly()
    listeners = [listen(settings.host, settings.port)]
    try:
        listeners.append(listen(settings.host, guard_port))
    except CoreError as error:
        # The extender answers kube-scheduler without a placement guard.
        options = replace(options, guard_problem=str(error))
    else:
        options = replace(options, guard_port=listeners[1].getsockname()[1])
    configure(log_format, log_level)
    address = _address(settings, listeners[0])
    welcome = (
        f"Serving a cluster on {address} as {options.identity} (state: {address}/state, Ctrl-C hands over and stops)"
    )
    run_process(_run_live(options, settings, listeners, lambda: print_line(welcome, err=True)))


async def _run_live(
    options: LiveOptions, settings: Settings, listeners: Sequence[socket.socket], connected: Callable[[], None]
) -> None:
    from app.bootstrap.live import live_application
    from app.runtime.server import HttpServer
    from app.runtime.server import serve as serve_until_signal

    extender = await live_application(options, settings, listeners[0].getsockname()[1])
    hosts = _hosts(settings, options.namespace)
    servers = [HttpServer(extender.app, listeners[0], extender.tls, hosts=hosts)]
    servers += [
        HttpServer(
            extender.guard_app, listener, extender.guard_tls, lambda: not extender.lifecycle.late_refusal(), hosts
        )
        for listener in listeners[1:]
    ]
    try:
        servers += _probe_servers(extender.app, settings)
        connected()
        await serve_until_signal(extender.lifecycle, servers)
    finally:
        await extender.client.close()


def _advertised_address(advertise: str, host: str) -> str:
    """Returns the address for the EndpointSlice, or ""."""
    try:
        address = ipaddress.ip_address(advertise or host)
    except ValueError as error:
        if advertise:
            raise CoreError(f"--advertise {advertise}: is no IP address") from error
        return ""
    # An EndpointSlice holds no loopback, wildcard or link-local address.
    usable = not (address.is_loopback or address.is_unspecified or address.is_link_local)
    if advertise and not usable:
        raise CoreError(f"--advertise {advertise}: an EndpointSlice takes no loopback, wildcard or link-local address")
    return str(address) if usable else ""


def _welcome(snapshot: Snapshot, address: str) -> str:
    nodes = format_count(len(snapshot.longhorn_nodes), "Longhorn node")
    counts = f"{nodes} and {format_count(len(snapshot.volumes), 'volume')}"
    lines = [f"Serving {counts} on {address} (docs: {address}/docs, Ctrl-C stops)"]
    example = _example_request(snapshot)
    # With TLS a caller has to name files.
    if example and address.startswith("http:"):
        body = shlex.quote(json.dumps(example))
        lines += ["", "Ask it as kube-scheduler would:", "", f"  curl -s {address}/filter -d {body}", ""]
    return "\n".join(lines)


def _example_request(snapshot: Snapshot) -> dict[str, Any] | None:
    """Returns a request about a pod with a claim, preferably a pending one, or None."""
    pods = sorted(
        (pod for pod in snapshot.pods.values() if pod.volumes), key=lambda pod: (pod.node_name != "", pod.key)
    )
    names = sorted(snapshot.nodes or snapshot.longhorn_nodes)[:_MAX_EXAMPLE_NODES]
    return {"Pod": _kube_pod(pods[0]), "NodeNames": names} if pods and names else None


def _kube_pod(pod: Pod) -> dict[str, Any]:
    metadata = {"namespace": pod.namespace, "name": pod.name}
    volumes = [
        {"name": volume.name, "persistentVolumeClaim": {"claimName": volume.claim}}
        for volume in pod.volumes
        if not volume.ephemeral
    ]
    return {"metadata": {**metadata, "uid": pod.uid} if pod.uid else metadata, "spec": {"volumes": volumes}}
