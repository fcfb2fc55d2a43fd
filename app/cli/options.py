"""Flags that commands share, and what is made of their values."""

import errno
import os
import socket
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app.cli.render import warn
from app.settings import PEAK_FACTOR, BestEffort, LogFormat
from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.model.quantity import parse_bytes

# Every address of both IP families.
ANY_ADDRESS = "::"
_BACKLOG = 2048
_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

SnapshotOption = Annotated[
    str | None,
    typer.Option(
        "--snapshot",
        metavar="FILE",
        help="Read a snapshot file instead of a cluster: what `longhorn-extender snapshot` writes, or `kubectl get ... -A "
        "-o yaml` prints; - for standard input.",
    ),
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Credentials; default: the pod's own, else $KUBECONFIG or ~/.kube/config."),
]
ContextOption = Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")]
NamespaceOption = Annotated[
    str,
    typer.Option(
        "--longhorn-namespace",
        envvar="POD_NAMESPACE",
        metavar="NAME",
        help="Where Longhorn, the Lease, the Service and the ConfigMap are.",
    ),
]
LonghornNamespaceOption = Annotated[
    str, typer.Option("--longhorn-namespace", envvar="POD_NAMESPACE", metavar="NAME", help="Where Longhorn is.")
]


def namespace_option(text: str) -> Any:
    """Returns the option of the namespace of what is asked about; `text` is its help."""
    return typer.Option("--namespace", "-n", metavar="NAME", help=text)


LeaderUrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="Where the leader is reached, such as by `kubectl port-forward`; default: the API server.",
    ),
]
BestEffortOption = Annotated[
    BestEffort,
    typer.Option(
        "--best-effort",
        envvar="LONGHORN_EXTENDER_BEST_EFFORT",
        help="Whether best-effort volumes require room on the pod's node, or only prefer it.",
    ),
]
PackingOption = Annotated[
    Packing,
    typer.Option(
        "--packing",
        envvar="LONGHORN_EXTENDER_PACKING",
        help="Which nodes with room are offered: stale-safe = those where placement succeeds even on outdated status; "
        "order-safe = those where every placement order succeeds; exact = all; auto = the first of these that there are.",
    ),
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Module, or file that ends in .py, with rules that the policy may name; may be given several times.",
    ),
]
LeaseDurationOption = Annotated[float, typer.Option(help="Seconds until others may take the Lease.")]
RenewDeadlineOption = Annotated[float, typer.Option(help="Seconds after which a leader gives up.")]
RetryPeriodOption = Annotated[float, typer.Option(help="Seconds between renewals.")]
LogFormatOption = Annotated[LogFormat, typer.Option(help="auto: readable on a terminal, else JSON.")]
LogLevelOption = Annotated[str, typer.Option(help="debug, info, ...")]


def filter_options(best_effort: BestEffort, packing: Packing) -> FilterOptions:
    return FilterOptions(packing=packing, require_best_effort=best_effort is BestEffort.REQUIRE)


def check_url(url: str) -> None:
    """Raises a CoreError if the leader's URL has no scheme; it may be missing."""
    if url and not url.startswith(("http://", "https://")):
        raise CoreError(f"--url {url}: expected http://HOST:PORT")


def holder_identity(identity: str) -> str:
    return identity or f"{socket.gethostname()}-{os.getpid()}"


def check_log_level(level: str) -> None:
    if level.lower() not in _LOG_LEVELS:
        raise CoreError(f"--log-level {level}: expected one of {', '.join(_LOG_LEVELS)}")


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 picks a free one.

    ``::`` is every address of both IP families, and of IPv4 alone where the kernel has no IPv6. Raises a CoreError if
    the address cannot be used.
    """
    try:
        if host == ANY_ADDRESS:
            return _listen_on_any(port)
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        # Python adds "(while attempting to bind ...)", which repeats what this says.
        problem = str(error.strerror).partition(" (")[0] if isinstance(error, OSError) else "no host has such a name"
        raise CoreError(f"cannot listen on {host} port {port}: {problem}; see --host and --port") from error


def _listen_on_any(port: int) -> socket.socket:
    try:
        return socket.create_server(
            (ANY_ADDRESS, port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=socket.has_dualstack_ipv6()
        )
    except OSError as error:
        if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
            raise
        return socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)  # noqa: S104 # as asked


def url(host: str, port: int, scheme: str = "http") -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def request_limits(max_body: str, memory_limit: str) -> tuple[int, int]:
    """Returns the most bytes of one body, and of all requests together. 3/8 of the memory is for the process itself and
    its caches of the cluster; a body may take `PEAK_FACTOR` times its size.
    """
    limit = process_memory(memory_limit)
    request_memory = limit * 5 // 8
    if not max_body:
        return int(request_memory / PEAK_FACTOR), request_memory
    size = positive_bytes(max_body, "--max-body")
    if size * PEAK_FACTOR > request_memory:
        warn(f"--max-body {max_body} is more than a quarter of the memory limit, {limit} bytes")
    return size, max(request_memory, int(size * PEAK_FACTOR))


def process_memory(memory_limit: str) -> int:
    """Returns the memory that this process may use, in bytes, or raises a CoreError if `--memory-limit` is no size."""
    from app.memory_budget import memory_limit as container_limit

    return positive_bytes(memory_limit, "--memory-limit") if memory_limit else container_limit()


def positive_bytes(text: str, subject: str) -> int:
    """Returns the bytes of a quantity; `subject` is the option as written. Raises a CoreError if it is no quantity, or
    not positive.
    """
    try:
        size = parse_bytes(text)
    except QuantityError as error:
        raise CoreError(f"{subject}: {error}") from error
    if size <= 0:
        raise CoreError(f"{subject}: must be positive")
    return size


def now() -> datetime:
    """Returns the present time, because a snapshot does not say when it was taken."""
    return datetime.now(UTC)
