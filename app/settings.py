"""The configuration of `serve`.

Every value is a flag, and most are an environment variable too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_core.extender.decision import FilterOptions
from scheduler_core.extender.settings import Enforcement
from scheduler_core.leadership.election import ElectionTiming
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9504
DEFAULT_GUARD_PORT = PLACEMENT_GUARD.port
DEFAULT_MAX_BODY = 256 * 1024**2
# What a body takes at most while it is decided, as a multiple of its size.
PEAK_FACTOR = 2.5
DEFAULT_REQUEST_MEMORY = int(PEAK_FACTOR * DEFAULT_MAX_BODY)
DEFAULT_NAMESPACE = "longhorn-system"
DEFAULT_STALE_AFTER = 60.0
# A header of this program's own calls. No script of a web page may set it, as it may set no header that begins with Sec-.
NO_BROWSER = "Sec-Longhorn-Extender"


class BestEffort(StrEnum):
    """Whether a best-effort volume needs space on its pod's node."""

    REQUIRE = "require"
    PREFER = "prefer"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM form, with which the service's port speaks HTTPS.

    Attributes:
        certificate: the server's, and those that lead to its authority
        private_key: of the server
        client_ca: the authorities of callers; "" for callers without certificates
    """

    certificate: str
    private_key: str
    client_ca: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an administrator may choose about the service.

    Attributes:
        host: address to listen on; loopback by default, because plain HTTP authenticates no caller
        port: TCP port to listen on; 0 picks a free one
        max_body: the largest body of a request, in bytes; 5,000 full nodes of 10 kB are 50 MB
        request_memory: what all requests together may hold, in bytes
        options: how pods are decided about
        enforcement: what happens to a refusal; over a snapshot only, in a cluster it may change while the process runs
        policy: a policy file of the generic scheduler; None: its default for /prioritize, and no predicates in /filter
        alone: whether a pod is evaluated without the demand of other pods; over a snapshot only
        plugins: modules with rules that the policy may name
        disk_metrics: whether /metrics has the space of every disk
        tls: None for plain HTTP
        status_page: whether there are pages for people
        allowed_hosts: names by which the service is called, besides its own
        probe_port: TCP port with /healthz and /readyz alone, without TLS; 0 picks a free one, None: no such port
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    max_body: int = DEFAULT_MAX_BODY
    request_memory: int = DEFAULT_REQUEST_MEMORY
    options: FilterOptions = field(default_factory=FilterOptions)
    enforcement: Enforcement = Enforcement.ENFORCE
    policy: str | None = None
    alone: bool = False
    plugins: tuple[str, ...] = ()
    disk_metrics: bool = True
    tls: TlsFiles | None = None
    probe_port: int | None = None
    allowed_hosts: Sequence[str] = ()
    status_page: bool = True


class Reservation(StrEnum):
    """How pods are kept from taking the same space.

    CAPACITY: pods are packed jointly with what other pods will take, and requests never block each other. NODE: one pod at a time, and
    its node is reserved (step 5 of Longhorn's proposal).
    """

    CAPACITY = "capacity"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How to reach the cluster, and the identity of this process there.

    Attributes:
        identity: holder of the Lease; unique among the candidates
        namespace: of Longhorn, the Lease, the Service and the ConfigMap
        kubeconfig: a kubeconfig file; None: the pod's own credentials, else $KUBECONFIG or ~/.kube/config
        context: a context of the kubeconfig; None: its current one
        advertise: the IP address kube-scheduler reaches this process at; "" if the Service is not used
        memory: which the process may use, in bytes; None: as `memory_limit` says
        node_name: the node this process runs on, for the heartbeat metric and the EndpointSlice
        reservation: how pods are kept from taking the same space
        nudge: whether a refused pod is nudged once it fits; only with CAPACITY
        stale_after: seconds without a message from the API server about some kind after which nothing is decided
        timing: how long a Lease lasts, and how often it is renewed
        environment: the extender's own settings given by flag or environment variable
        guard_port: the port on which the placement guard is reached; 0 if it could not be opened
        guard_problem: why it could not be opened, or ""
    """

    identity: str
    namespace: str = DEFAULT_NAMESPACE
    kubeconfig: str | None = None
    context: str | None = None
    advertise: str = ""
    memory: int | None = None
    node_name: str = ""
    reservation: Reservation = Reservation.CAPACITY
    nudge: bool = True
    stale_after: float = DEFAULT_STALE_AFTER
    timing: ElectionTiming = field(default_factory=ElectionTiming)
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    guard_port: int = 0
    guard_problem: str = ""
