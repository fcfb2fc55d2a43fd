"""Objects of an installation of the extender, as a diagnosis reads them."""

from typing import Annotated

from scheduler_core.model.kube import namespace_or_default
from scheduler_core.structs import Struct

DEFAULT_SCHEDULER = "default-scheduler"
# The extender's own settings that keep it from refusing nodes.
ENABLED = "scheduler-extender-enabled"
ENFORCEMENT = "scheduler-extender-enforcement"


class Permission(Struct, frozen=True):
    """A call that a ServiceAccount may make."""

    verb: str
    group: str  # the API group, "" for core
    resource: str
    name: str = ""  # the object's name, "" for all
    everywhere: bool = False  # whether in all namespaces, and not in the extender's alone

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}{f'/{self.name}' if self.name else ''}"


class InstalledPod(Struct, frozen=True):
    """A pod whose own needs matter to the extender."""

    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    # Whether it is neither finished nor being deleted.
    live: Annotated[bool, "metadata.deletionTimestamp", "status.phase"] = True
    ready: Annotated[bool, "status.conditions"] = True  # whether the Ready condition is True
    address: Annotated[str, "status.podIP"] = ""  # status.podIP, "" without one
    # Of its container port for HTTP, or else of its first; 0 without one.
    port: Annotated[int, "spec.containers", "spec.initContainers"] = 0
    # Of its container port for probes alone, 0 without one.
    probe_port: Annotated[int, "spec.containers", "spec.initContainers"] = 0
    # Of its container port for the placement guard, 0 without one.
    guard_port: Annotated[int, "spec.containers", "spec.initContainers"] = 0
    # Whether it listens on its node's loopback address alone.
    on_loopback: Annotated[bool, "spec.hostNetwork", "spec.containers", "spec.initContainers"] = False
    account: Annotated[str, "spec.serviceAccountName"] = ""
    # Whether a container requests the extender's resource.
    requests_extender: Annotated[bool, "spec.containers", "spec.initContainers"] = False
    scheduler_name: Annotated[str, "spec.schedulerName"] = DEFAULT_SCHEDULER  # the kube-scheduler that places it
    # Names of the claims that it mounts, those of ephemeral volumes included.
    claims: Annotated[tuple[str, ...], "metadata", "spec.volumes"] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def asks(self, scheduler: str) -> bool:
        """Whether its own fields send it to the extender: the resource, and the name of a second kube-scheduler."""
        return self.requests_extender or self.scheduler_name == scheduler != DEFAULT_SCHEDULER


class HeldLease(Struct, frozen=True):
    """The Lease of the leader."""

    holder: Annotated[str, "spec.holderIdentity"] = ""  # the leader's identity, "" for none
    duration: Annotated[int, "spec.leaseDurationSeconds"] = 0  # seconds within which it promises to renew
    renewed: Annotated[str, "spec.renewTime"] = ""  # when it did so last, in the API's form


def _pod_key(namespace: str | None, name: str) -> str:
    return f"{namespace_or_default(namespace)}/{name}"


def _first_time(series: str | None, last: str | None, event: str | None) -> str:
    return series or last or event or ""


class SchedulingFailure(Struct, frozen=True):
    """An event in which kube-scheduler says why a pod waits."""

    pod: Annotated[str, "involvedObject.namespace", "involvedObject.name", _pod_key]  # ``namespace/name``
    message: Annotated[str, "message"] = ""
    # When it happened last, in the API's form.
    last: Annotated[str, "series.lastObservedTime", "lastTimestamp", "eventTime", _first_time] = ""


class ServiceAddress(Struct, frozen=True):
    """Where a Service is reached."""

    cluster_ip: Annotated[str, "spec.clusterIP"] = ""  # "" or ``None`` if it has none
    port: Annotated[int, "spec.ports"] = 0  # of its first port
    tls: Annotated[bool, "spec.ports"] = False  # whether that port's name is the one for HTTPS
