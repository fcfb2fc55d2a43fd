"""The facts about an installation, and what checks say about them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.model import installation, kube, longhorn
from scheduler_core.structs import Struct

PROGRAM = "longhorn-scheduler-extender"
_EXCERPT = 160
_MAX_LISTED = 3
# What an API server says when RBAC or missing credentials forbid a call, and not a quota, a webhook or a policy.
_MAY_NOT = re.compile(r': User ".*" cannot |Unauthorized')
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    SKIPPED = "skipped"  # nothing was checked
    WARNING = "warning"
    ERROR = "error"


class Finding(Struct, frozen=True):
    """What one check says."""

    severity: Severity
    what: str
    where: str = ""  # the object, as kubectl names it; "" for none
    # A command, or an instruction, that mends it; "" if there is nothing to do. In a test, {kubectl} stands for kubectl in the extender's
    # namespace.
    command: str = ""
    check: str = ""  # the name of the check


Findings = Iterator[Finding]


class Caller(Struct, frozen=True):
    """A client that has called /filter."""

    address: str
    sends_whole_nodes: bool = False  # whether it sends nodes, and not their names


class ProcessReport(Struct, frozen=True):
    """What a process of the extender says about itself."""

    unreachable: str = ""  # why it could not be asked, or ""
    not_ready: str = ""  # why /readyz refuses, or ""
    unreadable: tuple[str, ...] = ()  # the objects that it leaves out, and why
    answering: bool = False  # whether it answers kube-scheduler
    refusal: str = ""  # why it does not, or ""
    refused_settings: tuple[str, ...] = ()  # settings with values that are not valid
    guard_mode: str = ""  # of the placement guard; "" without one
    guard_problem: str = ""  # why API servers cannot call the guard, or ""
    callers: tuple[Caller, ...] = ()  # clients that have called /filter lately
    certificate_expiry: float = 0.0  # seconds since 1970 at which the guard's certificate expires; 0 without one


class ProbeResult(Struct, frozen=True):
    """What happened to a probe pod that fits on no node."""

    problem: str = ""  # why it could not be tried, or ""
    message: str = ""  # why kube-scheduler has found no node; "" if it has not reported that
    node: str = ""  # the node that kube-scheduler has chosen nevertheless, or ""


class GuardTrial(Struct, frozen=True):
    """What happened to a replica that a dry run would have created."""

    answered: bool = False  # whether the placement guard has answered the API server
    problem: str = ""  # why it could not be tried, or ""
    obstacle: str = ""  # why the API server does not reach the leader's port for the guard, or ""


class Installation(Struct, frozen=True):
    """The facts about an installation; None is a fact that is not known."""

    now: datetime
    namespace: str = "longhorn-system"  # of Longhorn and of the extender
    kubernetes_version: str = ""  # the API server's ``gitVersion``
    service: installation.ServiceAddress | None = None  # the extender's Service
    pods: tuple[installation.InstalledPod, ...] = ()  # the extender's own pods
    system_pods: tuple[installation.InstalledPod, ...] = ()  # the pods of the extender's namespace and of kube-system
    requesting_pods: tuple[str, ...] = ()  # all pods that request the extender's resource, as ``namespace/name``
    # All pods with the schedulerName of the second kube-scheduler, likewise.
    second_scheduler_pods: tuple[str, ...] = ()
    claiming_pods: tuple[installation.InstalledPod, ...] = ()  # pods of other namespaces that mount a claim of Longhorn
    admitted: installation.InstalledPod | None = None  # a new pod with a claim, as the API server would store it
    lease: installation.HeldLease | None = None
    endpoints: tuple[str, ...] = ()  # addresses in the extender's EndpointSlice
    reports: Mapping[str, ProcessReport] = {}  # what each of the extender's processes says, by pod
    denied: tuple[installation.Permission, ...] | None = ()  # permissions that the extender lacks
    guard_installed: bool = False  # whether the placement guard's webhook is registered
    guard_trial: GuardTrial | None = None  # whether the placement guard answers; None if that was not tried
    failures: tuple[installation.SchedulingFailure, ...] | None = ()  # why pods waited in the last hour
    probe: ProbeResult | None = None  # what happened to the probe pod; None without one
    plain_probe: ProbeResult | None = None  # the same of one that does not request the extender's resource
    scheduler_name: str = installation.DEFAULT_SCHEDULER  # the kube-scheduler of the probe pod
    observes: bool = False  # whether the extender's ConfigMap says that refusals are only observed
    settings: Mapping[str, str] = {}  # Longhorn's settings by name
    refused_settings: tuple[str, ...] = ()  # what is wrong in the extender's ConfigMap
    storage_classes: tuple[kube.StorageClass, ...] = ()
    longhorn_nodes: tuple[longhorn.Node, ...] = ()
    tracks_capacity: bool = False  # whether kube-scheduler compares CSIStorageCapacity objects for Longhorn
    unknown: tuple[str, ...] = ()  # what could not be read, and why

    @property
    def longhorn_version(self) -> str:
        """Longhorn's version as it says itself, "" if it does not."""
        return self.settings.get("current-longhorn-version", "")

    @property
    def probes(self) -> tuple[ProbeResult | None, ProbeResult | None]:
        return self.probe, self.plain_probe

    @property
    def longhorn_classes(self) -> list[kube.StorageClass]:
        """The StorageClasses of Longhorn, by name."""
        own = [entry for entry in self.storage_classes if entry.provisioner == DRIVER]
        return sorted(own, key=lambda entry: entry.name)

    @property
    def leader(self) -> installation.InstalledPod | None:
        """The extender's pod that holds the Lease, None for another holder."""
        return leading_pod(self.pods, self.lease.holder if self.lease is not None else "")

    @property
    def leader_report(self) -> ProcessReport | str:
        """What the leader says about itself, or why it says nothing usable."""
        if self.service is not None and self.service.tls:
            return "the leader tells callers with a certificate"
        if self.leader is None:
            return "the leader is not known, as the check of the leader says"
        report = self.reports.get(self.leader.name)
        if report is None:
            return "the leader has no address"
        if report.unreachable:
            return f"the leader could not be asked: {report.unreachable}"
        return f"the leader is not ready: {report.not_ready}" if report.not_ready else report


def leading_pod(pods: Iterable[installation.InstalledPod], holder: str) -> installation.InstalledPod | None:
    # `holder` is as the Lease has it: the pod's name, and digits that differ at each start.
    name = holder.rpartition("_")[0] or holder
    return next((pod for pod in pods if pod.name == name), None)


def advice_about(problem: str) -> str:
    """What mends a call that the API server refused, or an object that cannot be read."""
    return "ask with more rights" if _MAY_NOT.search(problem) else "correct what it names"


def list_some(texts: Sequence[str], separator: str) -> str:
    more = len(texts) - _MAX_LISTED
    return separator.join(texts[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def excerpt(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def minor_version(text: str) -> tuple[int, int] | None:
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else None
