"""The configuration of `serve`, and the content of small files that may be replaced at any time.

Every value is a flag, and most are an environment variable too.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scheduler_core.decide import decision, extender_settings
from scheduler_core.structs import Struct, field

if TYPE_CHECKING:
    from scheduler_core.leadership.election import ElectionTiming


# Loopback, because plain HTTP authenticates no caller.
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9504
DEFAULT_MAX_BODY = 256 * 1024**2
# What a body takes at most while it is decided, as a multiple of its size.
PEAK_FACTOR = 2.5
DEFAULT_REQUEST_MEMORY = int(PEAK_FACTOR * DEFAULT_MAX_BODY)
DEFAULT_NAMESPACE = "longhorn-system"
DEFAULT_STALE_AFTER = 60.0
# A header of this program's own calls. No script of a web page may set it, as it may set no header that begins with Sec-.
NO_BROWSER = "Sec-Longhorn-Extender"

LogFormat = Literal["auto", "json", "console"]


class BestEffort(StrEnum):
    """Whether a best-effort volume needs space on its pod's node."""

    REQUIRE = "require"
    PREFER = "prefer"


class TlsFiles(Struct, frozen=True):
    """Files in PEM form, with which the service's port speaks HTTPS."""

    certificate: str  # the server's, and those that lead to its authority
    private_key: str  # of the server
    client_ca: str = ""  # the authorities of callers; "" for callers without certificates


class Settings(Struct, frozen=True):
    """What an administrator may choose about the service."""

    max_body: int = DEFAULT_MAX_BODY  # the largest body of a request, in bytes; 5,000 full nodes of 10 kB are 50 MB
    request_memory: int = DEFAULT_REQUEST_MEMORY  # what all requests together may hold, in bytes
    options: decision.FilterOptions = field(default_factory=decision.FilterOptions)  # how pods are decided about
    # What happens to a refusal; over a snapshot only, in a cluster it may change while the process runs.
    enforcement: extender_settings.Enforcement = extender_settings.Enforcement.ENFORCE
    # A policy file of the generic scheduler; None: its default for /prioritize, and no predicates in /filter.
    policy: str | None = None
    alone: bool = False  # whether a pod is evaluated without the demand of other pods; over a snapshot only
    plugins: tuple[str, ...] = ()  # modules with rules that the policy may name
    disk_metrics: bool = True  # whether /metrics has the space of every disk
    tls: TlsFiles | None = None  # None for plain HTTP
    status_page: bool = True  # whether there are pages for people


class Reservation(StrEnum):
    """How pods are kept from taking the same space.

    CAPACITY: pods are packed jointly with what other pods will take, and requests never block each other. NODE: one pod at a time, and
    its node is reserved (step 5 of Longhorn's proposal).
    """

    CAPACITY = "capacity"
    NODE = "node"


class LiveOptions(Struct, frozen=True):
    """How to reach the cluster, and the identity of this process there."""

    identity: str  # holder of the Lease; unique among the candidates
    timing: "ElectionTiming"  # how long a Lease lasts, and how often it is renewed
    namespace: str = DEFAULT_NAMESPACE  # of Longhorn, the Lease, the Service and the ConfigMap
    # A kubeconfig file; None: the pod's own credentials, else $KUBECONFIG or ~/.kube/config.
    kubeconfig: str | None = None
    context: str | None = None  # a context of the kubeconfig; None: its current one
    advertise: str = ""  # the IP address kube-scheduler reaches this process at; "" if the Service is not used
    memory: int | None = None  # which the process may use, in bytes; None: as `memory_limit` says
    node_name: str = ""  # the node this process runs on, for the heartbeat metric and the EndpointSlice
    reservation: Reservation = Reservation.CAPACITY  # how pods are kept from taking the same space
    nudge: bool = True  # whether a refused pod is nudged once it fits; only with CAPACITY
    # Seconds without a message from the API server about some kind after which nothing is decided.
    stale_after: float = DEFAULT_STALE_AFTER
    # The extender's own settings given by flag or environment variable.
    environment: Mapping[str, str] = {}
    guard_port: int = 0  # the port on which the placement guard is reached; 0 if it could not be opened
    guard_problem: str = ""  # why it could not be opened, or ""


# How often files are read again. The content is compared, because a Secret's or ConfigMap's files are links whose times say nothing.
RELOAD_INTERVAL = 2.0
# A Secret or a ConfigMap cannot be larger; a path may also lead to something without an end.
MAX_BYTES = 1024**2
# The outcome of a changed file, as metrics count it.
LOADED = "loaded"
REFUSED = "refused"


def read_content(path: str) -> bytes | str:
    """Returns the file's bytes, or a text why it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return content if len(content) <= MAX_BYTES else f"is larger than {MAX_BYTES} bytes"
