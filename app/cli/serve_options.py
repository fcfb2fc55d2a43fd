"""The flags of `serve` alone, and the keys of its configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final

import typer
import yaml
from typer.core import TyperCommand

from app import settings
from app.schemas.decision import problem_of
from app.settings import read_content
from scheduler_core.decide import settings as extender_settings
from scheduler_core.decide.settings import SettingsHistory, SettingsSource
from scheduler_core.errors import CoreError
from scheduler_core.model import installation

_ENV: Final = "LONGHORN_EXTENDER_"
# The parameters that are settings of the extender, which may also change at run time.
SETTINGS: Final = {
    "enabled": installation.ENABLED,
    "pod_scheduling_timeout": extender_settings.POD_SCHEDULING_TIMEOUT,
    "node_reservation_timeout": extender_settings.NODE_RESERVATION_TIMEOUT,
    "enforcement": installation.ENFORCEMENT,
    "placement_guard": extender_settings.PLACEMENT_GUARD,
    "guard_other_nodes": extender_settings.GUARD_OTHER_NODES,
}

Host = Annotated[str, typer.Option(envvar=f"{_ENV}HOST", help="Address to listen on.")]
Port = Annotated[int, typer.Option(envvar=f"{_ENV}PORT", min=0, max=65535, help="TCP port; 0 picks a free one.")]
Policy = Annotated[
    str | None,
    typer.Option(
        envvar=f"{_ENV}POLICY",
        metavar="FILE",
        help="Policy of /prioritize, whose predicates count in /filter, too; read again when it changes.",
    ),
]
TlsCertFile = Annotated[
    str,
    typer.Option(
        envvar=f"{_ENV}TLS_CERT_FILE",
        metavar="FILE",
        help="Certificate of --port, which then speaks HTTPS alone; read again when it changes, as are the two others.",
    ),
]
TlsPrivateKeyFile = Annotated[
    str, typer.Option(envvar=f"{_ENV}TLS_PRIVATE_KEY_FILE", metavar="FILE", help="Key of --tls-cert-file.")
]
ClientCaFile = Annotated[
    str,
    typer.Option(
        envvar=f"{_ENV}CLIENT_CA_FILE",
        metavar="FILE",
        help="Authorities of callers' certificates: nothing is answered to a caller that shows no certificate of theirs.",
    ),
]
ProbePort = Annotated[
    int | None,
    typer.Option(
        envvar=f"{_ENV}PROBE_PORT",
        min=0,
        max=65535,
        help="TCP port with /healthz and /readyz alone, without TLS, for a kubelet; 0 picks a free one.",
    ),
]


def _hidden(variable: str, **options: Any) -> Any:
    return typer.Option(envvar=variable, hidden=True, **options)


# The help does not show them; docs/configuration.md says what each means. Each is a key of the file.
MaxBody = Annotated[str, _hidden(f"{_ENV}MAX_BODY")]
MemoryLimit = Annotated[str, _hidden(f"{_ENV}MEMORY_LIMIT")]
BestEffort = Annotated[settings.BestEffort, _hidden(f"{_ENV}BEST_EFFORT")]
Enforcement = Annotated[extender_settings.Enforcement | None, _hidden(f"{_ENV}ENFORCEMENT")]
Plugin = Annotated[list[str] | None, typer.Option(hidden=True)]
Alone = Annotated[bool, typer.Option("--alone", hidden=True)]
DiskMetrics = Annotated[bool, _hidden(f"{_ENV}DISK_METRICS")]
StatusPage = Annotated[bool, _hidden(f"{_ENV}STATUS_PAGE")]
Identity = Annotated[str, _hidden("POD_NAME")]
Advertise = Annotated[str, _hidden("POD_IP")]
NodeName = Annotated[str, _hidden("NODE_NAME")]
Reservation = Annotated[settings.Reservation, _hidden(f"{_ENV}RESERVATION")]
Nudge = Annotated[bool, _hidden(f"{_ENV}NUDGE")]
StaleAfter = Annotated[float, _hidden(f"{_ENV}STALE_AFTER", min=1)]
LeaseDuration = Annotated[float, _hidden(f"{_ENV}LEASE_DURATION")]
RenewDeadline = Annotated[float, _hidden(f"{_ENV}RENEW_DEADLINE")]
RetryPeriod = Annotated[float, _hidden(f"{_ENV}RETRY_PERIOD")]
Enabled = Annotated[str, _hidden(f"{_ENV}ENABLED")]
PodSchedulingTimeout = Annotated[str, _hidden(f"{_ENV}POD_SCHEDULING_TIMEOUT")]
NodeReservationTimeout = Annotated[str, _hidden(f"{_ENV}NODE_RESERVATION_TIMEOUT")]
PlacementGuard = Annotated[str, _hidden(f"{_ENV}PLACEMENT_GUARD")]
GuardOtherNodes = Annotated[
    str, typer.Option("--placement-guard-other-nodes", envvar=f"{_ENV}PLACEMENT_GUARD_OTHER_NODES", hidden=True)
]
PlacementGuardPort = Annotated[int, _hidden(f"{_ENV}PLACEMENT_GUARD_PORT", min=0, max=65535)]
AllowedHost = Annotated[list[str] | None, _hidden(f"{_ENV}ALLOWED_HOST")]
LogFormat = Annotated[settings.LogFormat, _hidden(f"{_ENV}LOG_FORMAT")]
LogLevel = Annotated[str, _hidden(f"{_ENV}LOG_LEVEL")]


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
    """Raises a CoreError if one of the extender's own settings is not valid."""
    for problem in SettingsHistory().resolve([SettingsSource(source, values)]).problems:
        raise CoreError(problem.partition(";")[0])


Config = Annotated[
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
