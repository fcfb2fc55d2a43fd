"""A Service's EndpointSlice: compares the desired slice with the current one and plans the change."""

import ipaddress
from collections.abc import Mapping

from scheduler_core import errors
from scheduler_core.structs import Struct

SERVICE_LABEL = "kubernetes.io/service-name"
MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
_MAX_PORT = 65535


class LeaderService(Struct, frozen=True):
    """A Service without a selector, which leads to the leader, or one of its ports, which leads to a standby."""

    name: str  # of the EndpointSlice
    port_name: str
    port: int  # which an empty slice names
    service: str = ""  # the Service's name if it is another one

    @property
    def labels(self) -> Mapping[str, str]:
        # The manager is a value of our own: Kubernetes' controllers delete unknown slices that bear theirs.
        return {SERVICE_LABEL: self.service or self.name, MANAGED_BY_LABEL: self.service or self.name}

    def host_names(self, namespace: str) -> list[str]:
        """Returns the names by which pods and API servers of a cluster with the usual domain reach the Service."""
        return [f"{self.name}{suffix.format(namespace)}" for suffix in ("", ".{}", ".{}.svc", ".{}.svc.cluster.local")]


EXTENDER = LeaderService("longhorn-scheduler-extender", "http", 9504)
# kube-proxy compares the name with that of the Service's port, and service meshes read the protocol from it.
EXTENDER_WITH_TLS = LeaderService(EXTENDER.name, "https", EXTENDER.port)
PLACEMENT_GUARD = LeaderService("longhorn-scheduler-extender-placement-guard", "https", 9507)
# API servers call it if the leader has not answered.
PLACEMENT_GUARD_STANDBY = LeaderService(
    f"{PLACEMENT_GUARD.name}-standby", "standby", PLACEMENT_GUARD.port, PLACEMENT_GUARD.name
)


class Endpoint(Struct, frozen=True):
    """The leader's address."""

    address: str  # an IP address in its canonical form
    port: int = EXTENDER.port  # TCP port
    node: str = ""  # name of the node it runs on, "" if it runs outside of the cluster

    @classmethod
    def at(cls, address: str, port: int = EXTENDER.port, node: str = "") -> "Endpoint":
        """An endpoint, validated as the API server would.

        Raises:
            CoreError: the address is no IP address that other hosts can reach, or the port is invalid
        """
        try:
            ip = ipaddress.ip_address(address.strip())
        except ValueError as error:
            raise errors.CoreError(f"the leader's address: {address!r} is no IP address; give the pod's IP") from error
        if ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast:
            raise errors.CoreError(f"the leader's address: an EndpointSlice cannot hold {ip}; give the pod's IP")
        if not 0 < port <= _MAX_PORT:
            raise errors.CoreError(f"the leader's port: {port} is not between 1 and {_MAX_PORT}")
        return cls(str(ip), port, node)

    @property
    def address_type(self) -> str:
        return f"IPv{ipaddress.ip_address(self.address).version}"


class Slice(Struct, frozen=True):
    """An EndpointSlice."""

    address_type: str  # ``IPv4``, ``IPv6`` or ``FQDN``; cannot be changed
    endpoints: tuple[Endpoint, ...] = ()  # the ready ones, each with every port
    labels: Mapping[str, str] = {}
    # Whether it holds nothing but ready endpoints with one address each and one TCP port with the Service's name for
    # it.
    plain: bool = True


class CreateSlice(Struct, frozen=True):
    """Create this slice, because there is none."""

    desired: Slice


class ReplaceSlice(Struct, frozen=True):
    """Replace the current slice, at the version it was read at."""

    desired: Slice


class DeleteSlice(Struct, frozen=True):
    """Delete the current slice, at the version it was read at, and read again."""


SliceChange = CreateSlice | ReplaceSlice | DeleteSlice


def plan_publish(service: LeaderService, leader: Endpoint, current: Slice | None) -> SliceChange | None:
    """The change that points the Service to the leader; None if it points there."""
    desired = Slice(leader.address_type, (leader,), service.labels)
    if current is None:
        return CreateSlice(desired)
    if current.address_type != desired.address_type:
        return DeleteSlice()
    matches = current.endpoints == desired.endpoints and desired.labels.items() <= current.labels.items()
    return None if current.plain and matches else ReplaceSlice(desired)


def plan_withdraw(service: LeaderService, former: Endpoint, current: Slice | None) -> SliceChange | None:
    """The change that points the Service nowhere; None if it points to another process, such as a successor."""
    if current is None or all(
        (endpoint.address, endpoint.port) != (former.address, former.port) for endpoint in current.endpoints
    ):
        return None
    return ReplaceSlice(Slice(current.address_type, (), service.labels))


def plan_empty(service: LeaderService, current: Slice | None) -> SliceChange | None:
    """The change that points the Service nowhere, wherever it points; None if it points nowhere. For the leader alone."""
    if current is None or (current.plain and not current.endpoints):
        return None
    return ReplaceSlice(Slice(current.address_type, (), service.labels))
