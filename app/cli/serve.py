"""`longhorn-extender serve`: the HTTP service, its flags, and the keys of its configuration file."""

import ipaddress
import json
import shlex
import socket
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from app.cli import options as flags, render, schedule_and_policy_check
from app.runtime.logs import configure
from app.schemas.decision import problem_of
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
    read_content,
)
from scheduler_core.decide import decision, extender_settings
from scheduler_core.errors import CoreError
from scheduler_core.leadership import election, endpoint_slice
from scheduler_core.model import installation, kube, quantity
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import Struct, replace

if TYPE_CHECKING:  # a command that does not serve needs none of it
    from fastapi import FastAPI

    from app.runtime.server import HttpServer

_MAX_EXAMPLE_NODES = 12
_ENV = "LONGHORN_EXTENDER_"
# The parameters that are settings of the extender, which may also change at run time.
SETTINGS = {
    "enabled": installation.ENABLED,
    "pod_scheduling_timeout": extender_settings.POD_SCHEDULING_TIMEOUT,
    "node_reservation_timeout": extender_settings.NODE_RESERVATION_TIMEOUT,
    "enforcement": installation.ENFORCEMENT,
    "placement_guard": extender_settings.PLACEMENT_GUARD,
    "guard_other_nodes": extender_settings.GUARD_OTHER_NODES,
}


def _hidden(variable: str, **options: Any) -> Any:
    return typer.Option(envvar=variable, hidden=True, **options)


class Flags(Struct, frozen=True):
    """The flags of `serve`. The help does not show the hidden ones; docs/configuration.md says what each means. Each is a
    key of the file.
    """

    snapshot: flags.SnapshotOption = None
    host: Annotated[str, typer.Option(envvar=f"{_ENV}HOST", help="Address to listen on.")] = DEFAULT_HOST
    port: Annotated[int, typer.Option(envvar=f"{_ENV}PORT", min=0, max=65535, help="TCP port; 0 picks a free one.")] = (
        DEFAULT_PORT
    )
    max_body: Annotated[str, _hidden(f"{_ENV}MAX_BODY")] = ""
    memory_limit: Annotated[str, _hidden(f"{_ENV}MEMORY_LIMIT")] = ""
    best_effort: Annotated[BestEffort, _hidden(f"{_ENV}BEST_EFFORT")] = BestEffort.REQUIRE
    packing: flags.PackingOption = decision.Packing.AUTO
    enforcement: Annotated[extender_settings.Enforcement | None, _hidden(f"{_ENV}ENFORCEMENT")] = None
    policy: Annotated[
        str | None,
        typer.Option(
            envvar=f"{_ENV}POLICY",
            metavar="FILE",
            help="Policy of /prioritize, whose predicates count in /filter, too; read again when it changes.",
        ),
    ] = None
    plugin: Annotated[list[str] | None, typer.Option(hidden=True)] = None
    alone: Annotated[bool, typer.Option("--alone", hidden=True)] = False
    disk_metrics: Annotated[bool, _hidden(f"{_ENV}DISK_METRICS")] = True
    status_page: Annotated[bool, _hidden(f"{_ENV}STATUS_PAGE")] = True
    kubeconfig: flags.KubeconfigOption = None
    context: flags.ContextOption = None
    longhorn_namespace: flags.NamespaceOption = DEFAULT_NAMESPACE
    identity: Annotated[str, _hidden("POD_NAME")] = ""
    advertise: Annotated[str, _hidden("POD_IP")] = ""
    node_name: Annotated[str, _hidden("NODE_NAME")] = ""
    reservation: Annotated[Reservation, _hidden(f"{_ENV}RESERVATION")] = Reservation.CAPACITY
    nudge: Annotated[bool, _hidden(f"{_ENV}NUDGE")] = True
    stale_after: Annotated[float, _hidden(f"{_ENV}STALE_AFTER", min=1)] = DEFAULT_STALE_AFTER
    lease_duration: Annotated[float, _hidden(f"{_ENV}LEASE_DURATION")] = 15.0
    renew_deadline: Annotated[float, _hidden(f"{_ENV}RENEW_DEADLINE")] = 10.0
    retry_period: Annotated[float, _hidden(f"{_ENV}RETRY_PERIOD")] = 2.0
    enabled: Annotated[str, _hidden(f"{_ENV}ENABLED")] = ""
    pod_scheduling_timeout: Annotated[str, _hidden(f"{_ENV}POD_SCHEDULING_TIMEOUT")] = ""
    node_reservation_timeout: Annotated[str, _hidden(f"{_ENV}NODE_RESERVATION_TIMEOUT")] = ""
    placement_guard: Annotated[str, _hidden(f"{_ENV}PLACEMENT_GUARD")] = ""
    guard_other_nodes: Annotated[
        str, typer.Option("--placement-guard-other-nodes", envvar=f"{_ENV}PLACEMENT_GUARD_OTHER_NODES", hidden=True)
    ] = ""
    placement_guard_port: Annotated[int, _hidden(f"{_ENV}PLACEMENT_GUARD_PORT", min=0, max=65535)] = (
        endpoint_slice.PLACEMENT_GUARD.port
    )
    tls_cert_file: Annotated[
        str,
        typer.Option(
            envvar=f"{_ENV}TLS_CERT_FILE",
            metavar="FILE",
            help="Certificate of --port, which then speaks HTTPS alone; read again when it changes, as are the two others.",
        ),
    ] = ""
    tls_private_key_file: Annotated[
        str, typer.Option(envvar=f"{_ENV}TLS_PRIVATE_KEY_FILE", metavar="FILE", help="Key of --tls-cert-file.")
    ] = ""
    client_ca_file: Annotated[
        str,
        typer.Option(
            envvar=f"{_ENV}CLIENT_CA_FILE",
            metavar="FILE",
            help="Authorities of callers' certificates: nothing is answered to a caller that shows no certificate of theirs.",
        ),
    ] = ""
    probe_port: Annotated[
        int | None,
        typer.Option(
            envvar=f"{_ENV}PROBE_PORT",
            min=0,
            max=65535,
            help="TCP port with /healthz and /readyz alone, without TLS, for a kubelet; 0 picks a free one.",
        ),
    ] = None
    allowed_host: Annotated[list[str] | None, _hidden(f"{_ENV}ALLOWED_HOST")] = None
    log_format: Annotated[LogFormat, _hidden(f"{_ENV}LOG_FORMAT")] = "auto"
    log_level: Annotated[str, _hidden(f"{_ENV}LOG_LEVEL")] = "info"


def _use_file(context: typer.Context, file: str | None) -> str | None:
    """Makes the values of the file the defaults of the flags, which variables and flags replace."""
    if file is not None:
        parameters = context.command.params
        values = read_config(
            file, {config_key(each.name): each.multiple for each in parameters if each.name != "config"}
        )
        context.default_map = {
            each.name: values[key] for each in parameters if (key := config_key(each.name)) in values
        }
    return file


def config_key(name: str) -> str:
    """Returns the key of a parameter: the ConfigMap's, or that of the flag."""
    return SETTINGS.get(name) or name.replace("_", "-")


def read_config(file: str, keys: Mapping[str, bool]) -> dict[str, str | list[str]]:
    """Returns the values of a configuration file by key; `keys` says which there are, and whether each takes several
    values. Raises a CoreError if the file cannot be read, or has something else.
    """
    values: dict[str, str | list[str]] = {}
    for key, node in _entries(file):
        place = f"{file}: line {node.start_mark.line + 1}: {key}"
        if key not in keys:
            close = get_close_matches(key, keys, n=1)
            raise CoreError(f"{place}: there is no such key" + (f", {close[0]} is meant?" if close else ""))
        if key in values:
            raise CoreError(f"{place}: is written twice")
        items = node.value if isinstance(node, yaml.SequenceNode) and keys[key] else [node]
        if not all(isinstance(item, yaml.ScalarNode) for item in items):
            raise CoreError(f"{place}: expected one text" + (", or a list of them" if keys[key] else ""))
        values[key] = [item.value for item in items] if keys[key] else node.value
    check_settings(file, {key: str(values[key]) for key in SETTINGS.values() if key in values})
    return values


def _entries(file: str) -> list[tuple[str, yaml.Node]]:
    content = read_content(file)
    if isinstance(content, str):
        raise CoreError(f"{file}: {content}")
    try:
        # Its scalars stay texts, as those of a ConfigMap: `off` is no boolean.
        root = yaml.compose(content, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        raise CoreError(f"{file}: {place}is not YAML: {getattr(error, 'problem', None) or error}") from error
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise CoreError(f"{file}: expected lines KEY: VALUE")
    return [(str(key.value), value) for key, value in root.value] if root is not None else []


def check_settings(source: str, values: Mapping[str, str]) -> None:
    for problem in (
        extender_settings.SettingsHistory().merge([extender_settings.SettingsSource(source, values)]).problems
    ):
        raise CoreError(problem.partition(";")[0])


_Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=_use_file,
        is_eager=True,
        help="YAML with the keys of the ConfigMap, and one for each flag; docs/configuration.md has those that are not shown here.",
    ),
]


class CommandWithFile(TyperCommand):
    """`serve`, which names the file of a value that it cannot read."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is None or ctx.get_parameter_source(error.param.name).name != "DEFAULT_MAP":
                raise
            problem = problem_of(error.__cause__, error.message)
            raise CoreError(f"{ctx.params['config']}: {config_key(error.param.name)}: {problem}") from error

    def invoke(self, ctx: Any) -> Any:
        """Serves; the problem of a value that is checked now begins with its flag."""
        try:
            return super().invoke(ctx)
        except CoreError as error:
            flag = str(error).partition(" ")[0].rstrip(":")
            name = next((each.name for each in self.params if flag in each.opts), "")
            if not name or ctx.get_parameter_source(name).name != "DEFAULT_MAP":
                raise
            raise CoreError(f"{ctx.params['config']}: {config_key(name)}: {error}") from error


COMMAND_CLASS = CommandWithFile


def serve(config: _Config = None, *, given: Flags) -> None:
    """Answer kube-scheduler for a cluster, or for a snapshot of one.

    Serves /filter, /prioritize, /preempt, /explain, /state, /metrics and /docs. For a cluster several of these may run;
    the one that holds the Lease answers.
    """
    del config  # its callback has read it
    flags.check_log_level(given.log_level)
    if given.alone and given.snapshot is None:
        raise CoreError("--alone needs --snapshot: in a cluster the volumes of other pods always count")
    max_body, request_memory = flags.request_limits(given.max_body, given.memory_limit)
    settings = Settings(
        max_body=max_body,
        request_memory=request_memory,
        options=flags.filter_options(given.best_effort, given.packing),
        enforcement=given.enforcement or extender_settings.Enforcement.ENFORCE,
        policy=given.policy,
        alone=given.alone,
        plugins=tuple(given.plugin or ()),
        disk_metrics=given.disk_metrics,
        tls=_tls_files(given),
        status_page=given.status_page,
    )
    if settings.policy is not None:
        schedule_and_policy_check.read_policy(settings.policy, settings.plugins)
    if given.snapshot is not None:
        _serve_snapshot(given.snapshot, settings, given)
        return
    live_options = LiveOptions(
        identity=flags.holder_identity(given.identity),
        namespace=given.longhorn_namespace,
        kubeconfig=given.kubeconfig,
        context=given.context,
        advertise=_advertised_address(given.advertise, given.host),
        memory=flags.process_memory(given.memory_limit),
        node_name=given.node_name or socket.gethostname(),
        reservation=given.reservation,
        nudge=given.nudge,
        stale_after=given.stale_after,
        timing=election.ElectionTiming(given.lease_duration, given.renew_deadline, given.retry_period),
        environment={key: value for name, key in SETTINGS.items() if (value := getattr(given, name))},
    )
    # The extender's own settings that were given.
    check_settings("flag or environment", live_options.environment)
    _serve_cluster(live_options, settings, given)


def _tls_files(given: Flags) -> TlsFiles | None:
    files = TlsFiles(given.tls_cert_file, given.tls_private_key_file, given.client_ca_file)
    if files == TlsFiles("", "", ""):
        return None
    if not given.tls_cert_file or not given.tls_private_key_file:
        raise CoreError("--tls-cert-file and --tls-private-key-file go together, and --client-ca-file needs both")
    return files


def _serve_snapshot(source: str, settings: Settings, given: Flags) -> None:
    from app.bootstrap import SnapshotService, create_app
    from app.extender.certificates import CertificateFiles
    from app.kube.snapshot_file import LoadedCluster, load_cluster, load_snapshot
    from app.policy import PolicyFile, load_plugins
    from app.runtime.server import HttpServer, exit_quietly, freeze_heap, run_process, serve as serve_until_signal

    exit_quietly()
    file = PolicyFile(settings.policy, load_plugins(settings.plugins)) if settings.policy is not None else None
    loaded = load_snapshot(source) if file is None else load_cluster(source, file.policy, longhorn=True)
    for warning in loaded.warnings:
        render.warn(warning)
    generic = loaded.state if isinstance(loaded, LoadedCluster) else None
    app = create_app(loaded.snapshot, settings, flags.now(), generic, file)
    metrics = app.state.services.metrics
    certificate = CertificateFiles(settings.tls, metrics, flags.now) if settings.tls is not None else None
    listener = flags.listen(given.host, given.port)
    tls = None if certificate is None else lambda: certificate.context
    servers = [HttpServer(app, listener, tls, hosts=_hosts(given, DEFAULT_NAMESPACE)), *_probe_servers(app, given)]
    configure(given.log_format, given.log_level)
    render.print_lines(_welcome(loaded.snapshot, _address(given, listener)), err=True)
    freeze_heap()
    run_process(serve_until_signal(SnapshotService(file, certificate, app.state.services.node_losses), servers))


def _address(given: Flags, listener: socket.socket) -> str:
    return flags.url(given.host, listener.getsockname()[1], "https" if given.tls_cert_file else "http")


def _hosts(given: Flags, namespace: str) -> list[str]:
    services = (endpoint_slice.EXTENDER, endpoint_slice.PLACEMENT_GUARD)
    names = [name for service in services for name in service.host_names(namespace)]
    return [given.host, *(given.allowed_host or ()), *names]


def _probe_servers(app: "FastAPI", given: Flags) -> "list[HttpServer]":
    from app.bootstrap import plain_probes
    from app.runtime.server import HttpServer

    if given.probe_port is None:
        return []
    return [HttpServer(plain_probes(app), flags.listen(given.host, given.probe_port))]


def _serve_cluster(options: LiveOptions, settings: Settings, given: Flags) -> None:
    from app.runtime.server import exit_quietly, run_process

    exit_quietly()
    listeners = [flags.listen(given.host, given.port)]
    try:
        listeners.append(flags.listen(given.host, given.placement_guard_port))
    except CoreError as error:
        # The extender answers kube-scheduler without a placement guard.
        options = replace(options, guard_problem=str(error))
    else:
        options = replace(options, guard_port=listeners[1].getsockname()[1])
    configure(given.log_format, given.log_level)
    run_process(_run_live(options, settings, given, listeners))


async def _run_live(options: LiveOptions, settings: Settings, given: Flags, listeners: Sequence[socket.socket]) -> None:
    from app.bootstrap.live import live_application
    from app.runtime.server import HttpServer, serve as serve_until_signal

    extender = await live_application(options, settings, listeners[0].getsockname()[1])
    hosts = _hosts(given, options.namespace)
    servers = [HttpServer(extender.app, listeners[0], extender.tls, hosts=hosts)]
    servers += [
        HttpServer(extender.guard_app, listener, extender.guard_tls, extender.lifecycle.keeps_guard_connections, hosts)
        for listener in listeners[1:]
    ]
    try:
        servers += _probe_servers(extender.app, given)
        address = _address(given, listeners[0])
        hint = f"(state: {address}/state, Ctrl-C hands over and stops)"
        render.print_line(f"Serving a cluster on {address} as {options.identity} {hint}", err=True)
        await serve_until_signal(extender.lifecycle, servers)
    finally:
        await extender.client.close()


def _advertised_address(advertise: str, host: str) -> str:
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
    nodes = quantity.format_count(len(snapshot.longhorn_nodes), "Longhorn node")
    counts = f"{nodes} and {quantity.format_count(len(snapshot.volumes), 'volume')}"
    lines = [f"Serving {counts} on {address} (docs: {address}/docs, Ctrl-C stops)"]
    # A pod with a claim, preferably a pending one.
    pods = sorted(
        (pod for pod in snapshot.pods.values() if pod.volumes), key=lambda pod: (pod.node_name != "", pod.key)
    )
    names = sorted(snapshot.nodes or snapshot.longhorn_nodes)[:_MAX_EXAMPLE_NODES]
    # With TLS a caller has to name files.
    if pods and names and address.startswith("http:"):
        body = shlex.quote(json.dumps({"Pod": _kube_pod(pods[0]), "NodeNames": names}))
        lines += ["", "Ask it as kube-scheduler would:", "", f"  curl -s {address}/filter -d {body}", ""]
    return "\n".join(lines)


def _kube_pod(pod: kube.Pod) -> dict[str, Any]:
    metadata = {"namespace": pod.namespace, "name": pod.name}
    volumes = [
        {"name": volume.name, "persistentVolumeClaim": {"claimName": volume.claim}}
        for volume in pod.volumes
        if not volume.ephemeral
    ]
    return {"metadata": {**metadata, "uid": pod.uid} if pod.uid else metadata, "spec": {"volumes": volumes}}
