"""`longhorn-extender serve`: the HTTP service."""

from __future__ import annotations

import ipaddress
import json
import shlex
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from app.cli import options as flags
from app.cli import serve_options as flag
from app.cli.render import print_line, print_lines, warn
from app.cli.schedule import read_policy
from app.runtime.logs import configure
from app.settings import (
    DEFAULT_HOST,
    DEFAULT_NAMESPACE,
    DEFAULT_PORT,
    DEFAULT_STALE_AFTER,
    BestEffort,
    LiveOptions,
    LogFormat,
    Reservation,
    Settings,
    TlsFiles,
)
from scheduler_core.decide.decision import Packing
from scheduler_core.decide.settings import Enforcement
from scheduler_core.errors import CoreError
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import Policy
from scheduler_core.leadership import endpoint_slice
from scheduler_core.leadership.election import ElectionTiming
from scheduler_core.model.kube import Pod
from scheduler_core.model.quantity import format_count
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.values import replace

if TYPE_CHECKING:  # a command that does not serve needs none of it
    from fastapi import FastAPI

    from app.runtime.server import HttpServer

COMMAND_CLASS: Final = flag.CommandWithFile
_MAX_EXAMPLE_NODES: Final = 12


def serve(  # one parameter per flag
    config: flag.Config = None,  # noqa: ARG001 # its callback has read it
    snapshot: flags.SnapshotOption = None,
    host: flag.Host = DEFAULT_HOST,
    port: flag.Port = DEFAULT_PORT,
    max_body: flag.MaxBody = "",
    memory_limit: flag.MemoryLimit = "",
    best_effort: flag.BestEffort = BestEffort.REQUIRE,
    packing: flags.PackingOption = Packing.AUTO,
    enforcement: flag.Enforcement = None,
    policy: flag.Policy = None,
    plugin: flag.Plugin = None,
    alone: flag.Alone = False,  # noqa: FBT002 # --alone
    disk_metrics: flag.DiskMetrics = True,  # noqa: FBT002 # --disk-metrics and --no-disk-metrics
    status_page: flag.StatusPage = True,  # noqa: FBT002 # --status-page and --no-status-page
    kubeconfig: flags.KubeconfigOption = None,
    context: flags.ContextOption = None,
    longhorn_namespace: flags.NamespaceOption = DEFAULT_NAMESPACE,
    identity: flag.Identity = "",
    advertise: flag.Advertise = "",
    node_name: flag.NodeName = "",
    reservation: flag.Reservation = Reservation.CAPACITY,
    nudge: flag.Nudge = True,  # noqa: FBT002 # --nudge and --no-nudge
    stale_after: flag.StaleAfter = DEFAULT_STALE_AFTER,
    lease_duration: flag.LeaseDuration = 15.0,
    renew_deadline: flag.RenewDeadline = 10.0,
    retry_period: flag.RetryPeriod = 2.0,
    enabled: flag.Enabled = "",
    pod_scheduling_timeout: flag.PodSchedulingTimeout = "",
    node_reservation_timeout: flag.NodeReservationTimeout = "",
    placement_guard: flag.PlacementGuard = "",
    guard_other_nodes: flag.GuardOtherNodes = "",
    placement_guard_port: flag.PlacementGuardPort = endpoint_slice.PLACEMENT_GUARD.port,
    tls_cert_file: flag.TlsCertFile = "",
    tls_private_key_file: flag.TlsPrivateKeyFile = "",
    client_ca_file: flag.ClientCaFile = "",
    probe_port: flag.ProbePort = None,
    allowed_host: flag.AllowedHost = None,
    log_format: flag.LogFormat = "auto",
    log_level: flag.LogLevel = "info",
) -> None:
    """Answer kube-scheduler for a cluster, or for a snapshot of one.

    Serves /filter, /prioritize, /preempt, /explain, /state, /metrics and /docs. For a cluster several of these may run;
    the one that holds the Lease answers.
    """
    _check(snapshot, log_level, alone=alone)
    options = flags.filter_options(best_effort, packing)
    limits = flags.request_limits(max_body, memory_limit)
    mode = enforcement or Enforcement.ENFORCE
    tls = _tls_files(tls_cert_file, tls_private_key_file, client_ca_file)
    settings = Settings(host, port, *limits, options, mode, policy, alone, tuple(plugin or ()), disk_metrics, tls)
    settings = replace(settings, probe_port=probe_port, status_page=status_page, allowed_hosts=allowed_host or ())
    if policy is not None:
        read_policy(policy, settings.plugins)
    if snapshot is not None:
        _serve_snapshot(snapshot, settings, log_format, log_level)
        return
    live_options = LiveOptions(
        identity=flags.holder_identity(identity),
        namespace=longhorn_namespace,
        kubeconfig=kubeconfig,
        context=context,
        advertise=_advertised_address(advertise, host),
        memory=flags.process_memory(memory_limit),
        node_name=node_name or socket.gethostname(),
        reservation=reservation,
        nudge=nudge,
        stale_after=stale_after,
        timing=ElectionTiming(lease_duration, renew_deadline, retry_period),
        environment=_extender_settings(
            enabled,
            pod_scheduling_timeout,
            node_reservation_timeout,
            enforcement or "",
            placement_guard,
            guard_other_nodes,
        ),
    )
    _serve_cluster(live_options, settings, placement_guard_port, log_format, log_level)


def _check(snapshot: str | None, log_level: str, *, alone: bool) -> None:
    flags.check_log_level(log_level)
    if alone and snapshot is None:
        raise CoreError("--alone needs --snapshot: in a cluster the volumes of other pods always count")


def _tls_files(certificate: str, private_key: str, client_ca: str) -> TlsFiles | None:
    """Returns the files of TLS, None for plain HTTP; raises a CoreError if one of them is missing."""
    if not certificate and not private_key and not client_ca:
        return None
    if not certificate or not private_key:
        raise CoreError("--tls-cert-file and --tls-private-key-file go together, and --client-ca-file needs both")
    return TlsFiles(certificate, private_key, client_ca)


def _extender_settings(*values: str) -> dict[str, str]:
    """Returns the extender's own settings that were given, or raises a CoreError if one is not valid."""
    given = {key: value for key, value in zip(flag.SETTINGS.values(), values, strict=True) if value}
    flag.check_settings("flag or environment", given)
    return given


def _serve_snapshot(source: str, settings: Settings, log_format: LogFormat, log_level: str) -> None:
    from app.bootstrap import SnapshotService, create_app
    from app.extender.certificates import CertificateFiles
    from app.policy import PolicyFile, load_plugins
    from app.runtime.server import HttpServer, exit_quietly, freeze_heap, run_process
    from app.runtime.server import serve as serve_until_signal

    exit_quietly()
    file = PolicyFile(settings.policy, load_plugins(settings.plugins)) if settings.policy is not None else None
    snapshot, generic = (
        (flags.read_snapshot_file(source), None) if file is None else _snapshot_with_generic_state(source, file.policy)
    )
    app = create_app(snapshot, settings, flags.now(), generic, file)
    metrics = app.state.services.metrics
    certificate = CertificateFiles(settings.tls, metrics, flags.now) if settings.tls is not None else None
    listener = flags.listen(settings.host, settings.port)
    tls = None if certificate is None else lambda: certificate.context
    servers = [HttpServer(app, listener, tls, hosts=_hosts(settings)), *_probe_servers(app, settings)]
    configure(log_format, log_level)
    print_lines(_welcome(snapshot, _address(settings, listener)), err=True)
    freeze_heap()
    run_process(serve_until_signal(SnapshotService(file, certificate, app.state.services.node_losses), servers))


def _address(settings: Settings, listener: socket.socket) -> str:
    return flags.url(settings.host, listener.getsockname()[1], "https" if settings.tls is not None else "http")


def _hosts(settings: Settings, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    services = (endpoint_slice.EXTENDER, endpoint_slice.PLACEMENT_GUARD)
    names = [name for service in services for name in service.host_names(namespace)]
    return [settings.host, *settings.allowed_hosts, *names]


def _probe_servers(app: FastAPI, settings: Settings) -> list[HttpServer]:
    from app.bootstrap import plain_probes
    from app.runtime.server import HttpServer

    if settings.probe_port is None:
        return []
    return [HttpServer(plain_probes(app), flags.listen(settings.host, settings.probe_port))]


def _snapshot_with_generic_state(source: str, policy: Policy) -> tuple[Snapshot, GenericClusterState]:
    """Returns a snapshot and what a policy's rules read of it; prints warnings to standard error."""
    from app.kube.snapshot_file import load_cluster

    loaded = load_cluster(source, policy, longhorn=True)
    for warning in loaded.warnings:
        warn(warning)
    return loaded.snapshot, loaded.state


def _serve_cluster(
    options: LiveOptions, settings: Settings, guard_port: int, log_format: LogFormat, log_level: str
) -> None:
    from app.runtime.server import exit_quietly, run_process

    exit_quietly()
    listeners = [flags.listen(settings.host, settings.port)]
    try:
        listeners.append(flags.listen(settings.host, guard_port))
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
        HttpServer(extender.guard_app, listener, extender.guard_tls, extender.lifecycle.keeps_guard_connections, hosts)
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
