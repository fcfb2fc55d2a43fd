"""The configuration of the process, one frozen tree; every value is a flag of `serve`, and most an environment variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_core.extender.filter import Options
from scheduler_core.leadership.election import ElectionTiming

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9504
DEFAULT_MAX_BODY = 256 * 1024**2
DEFAULT_NAMESPACE = "longhorn-system"
DEFAULT_STALE_AFTER = 60.0


class BestEffort(StrEnum):
    """What a best-effort volume asks of its pod's node."""

    REQUIRE = "require"
    PREFER = "prefer"


class Enforcement(StrEnum):
    """What becomes of a refusal.

    ENFORCE: kube-scheduler is told. OBSERVE: kube-scheduler is told that every node fits; what would have been refused is counted and
    logged, so that an administrator sees what enforcing would change.
    """

    ENFORCE = "enforce"
    OBSERVE = "observe"


@dataclass(frozen=True, slots=True)
class Settings:
    """What an administrator may choose about the service."""

    host: str = DEFAULT_HOST
    """Address to listen on. Loopback, because nothing authenticates callers of plain HTTP."""

    port: int = DEFAULT_PORT
    """TCP port to listen on; 0 picks a free one."""

    max_body: int = DEFAULT_MAX_BODY
    """Bytes a request's body may have. 5,000 full nodes of 10 kB are 50 MB."""

    options: Options = field(default_factory=Options)
    """How decisions are made."""

    enforcement: Enforcement = Enforcement.ENFORCE
    """What becomes of a refusal."""

    policy: str | None = None
    """A policy file of the generic scheduler; None: its default for /prioritize, and nothing more in /filter."""


class Reservation(StrEnum):
    """How pods are kept from taking the same room.

    CAPACITY: what other pods will take is packed jointly with the pod; nobody waits for a lock. NODE: one pod at a time, and its
    node is reserved (the proposal's step 5).
    """

    CAPACITY = "capacity"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Where the cluster is, and who this process is there."""

    identity: str
    """Holder of the Lease; unique among the candidates."""

    namespace: str = DEFAULT_NAMESPACE
    """Where Longhorn is, and with it the Lease, the Service and the ConfigMap."""

    kubeconfig: str | None = None
    """A kubeconfig file; None: the pod's own credentials, else $KUBECONFIG or ~/.kube/config."""

    context: str | None = None
    """Which context of the kubeconfig; None: its current one."""

    advertise: str = ""
    """The IP address kube-scheduler reaches this process at; "" if it is reached in another way than the Service."""

    node_name: str = ""
    """The node this process runs on, for the heartbeat metric and the EndpointSlice."""

    reservation: Reservation = Reservation.CAPACITY
    """How pods are kept from taking the same room."""

    nudge: bool = True
    """Whether a refused pod that fits now is made to be tried again at once; only with CAPACITY."""

    stale_after: float = DEFAULT_STALE_AFTER
    """Seconds without a word from the API server about some kind after which nothing is decided."""

    timing: ElectionTiming = field(default_factory=ElectionTiming)
    """How long a Lease lasts, and how often it is renewed."""

    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """The extender's own settings given by flag or environment variable."""
