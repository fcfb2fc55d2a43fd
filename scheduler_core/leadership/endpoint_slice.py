"""Where the Service leads: the EndpointSlice that should be there, against the one that is.

The Service has no selector, so no controller of Kubernetes writes its EndpointSlice. The leader does: one endpoint, its own
address; none while nobody answers. A slice's address type cannot be changed, so a leader of the other IP family deletes
the slice and creates another.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from scheduler_core.errors import CoreError

NAME: Final = "longhorn-scheduler-extender"
PORT_NAME: Final = "http"
DEFAULT_PORT: Final = 9504
SERVICE_LABEL: Final = "kubernetes.io/service-name"
MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
# A value of our own: Kubernetes' controllers delete slices that bear theirs and that they do not know.
LABELS: Final[Mapping[str, str]] = {SERVICE_LABEL: NAME, MANAGED_BY_LABEL: NAME}
_MOST_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the leader is reached.

    Attributes:
        address: an IP address in its canonical form
        port: TCP port
        node: name of the node it runs on, "" if it runs outside of the cluster
    """

    address: str
    port: int = DEFAULT_PORT
    node: str = ""

    @classmethod
    def at(cls, address: str, port: int = DEFAULT_PORT, node: str = "") -> Endpoint:
        """An endpoint, checked as the API server would.

        Raises:
            CoreError: the address is no IP address that others can reach, or the port is none
        """
        try:
            ip = ipaddress.ip_address(address.strip())
        except ValueError as error:
            raise CoreError(f"the leader's address: {address!r} is no IP address; give the pod's IP") from error
        if ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast:
            raise CoreError(f"the leader's address: an EndpointSlice cannot hold {ip}; give the pod's IP")
        if not 0 < port <= _MOST_PORT:
            raise CoreError(f"the leader's port: {port} is not between 1 and {_MOST_PORT}")
        return cls(str(ip), port, node)

    @property
    def address_type(self) -> str:
        """The IP family as an EndpointSlice names it."""
        return f"IPv{ipaddress.ip_address(self.address).version}"


@dataclass(frozen=True, slots=True)
class Slice:
    """An EndpointSlice.

    Attributes:
        address_type: ``IPv4``, ``IPv6`` or ``FQDN``; cannot be changed
        endpoints: the ready ones, each with every port
        labels: all its labels
        plain: whether it holds nothing but such endpoints and one TCP port `PORT_NAME`
    """

    address_type: str
    endpoints: tuple[Endpoint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Create:
    """There is no slice: create this one."""

    wanted: Slice


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the slice that is there, at the version it was read at."""

    wanted: Slice


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the slice that is there, at the version it was read at, and look again."""


Change = Create | Replace | Delete


def publish(leader: Endpoint, current: Slice | None) -> Change | None:
    """What makes the Service lead to the leader; None if it does."""
    wanted = Slice(leader.address_type, (leader,), LABELS)
    if current is None:
        return Create(wanted)
    if current.address_type != wanted.address_type:
        return Delete()
    return None if _serves(current, wanted) else Replace(wanted)


def withdraw(former: Endpoint, current: Slice | None) -> Change | None:
    """What makes the Service lead nowhere; None if it does not lead to the former leader, so that a successor's stays."""
    if current is None or all(
        (endpoint.address, endpoint.port) != (former.address, former.port) for endpoint in current.endpoints
    ):
        return None
    return Replace(Slice(current.address_type, (), LABELS))


def _serves(current: Slice, wanted: Slice) -> bool:
    return current.plain and current.endpoints == wanted.endpoints and LABELS.items() <= current.labels.items()
