"""Every check of an installation, in the order of the output.

Data flow: the facts that a check reads → its test → findings, one line for each, with the command that mends it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.installation import extender_checks as extender
from scheduler_core.installation import longhorn_checks as longhorn
from scheduler_core.installation import scheduler_checks as scheduler
from scheduler_core.installation.facts import Finding, Installation, Severity


@dataclass(frozen=True, slots=True)
class Check:
    """One check. Its test is given nothing but the facts that it reads, so they alone say what mends a mistake."""

    name: str  # in lower case with hyphens
    success: str  # what is true if the test finds nothing
    reads: str  # names of facts: attributes of `Installation`, and parameters of the test
    test: Callable[..., list[Finding]]


# fmt: off
_FACTS: Final = Check("facts", "everything could be read", "unknown", extender.check_unread)
INSTALLED: Final = (
    _FACTS,
    Check("kubernetes-version", "Kubernetes' version is tested", "kubernetes_version", extender.check_kubernetes_version),
    Check("longhorn-version", "Longhorn's rules were compared", "longhorn_version", extender.check_longhorn_version),
    Check("pods", "the extender's pods are ready", "pods", extender.check_pods),
    Check("own-pods", "no pod of the system waits for the extender", "pods system_pods", extender.check_own_pods),
    Check("service", "kube-scheduler has an address to call", "service", extender.check_service),
    Check("leader", "pods, Lease and EndpointSlice agree", "lease now leader endpoints leader_report", extender.check_leader),
    Check("caches", "every process knows the cluster", "reports service", extender.check_caches),
    Check("answers", "the leader answers", "refused_settings leader leader_report", extender.check_answers),
    Check("permissions", "the ServiceAccount has every permission", "denied pods namespace", extender.check_permissions),
    Check("certificate", "the placement guard's certificate is valid", "leader leader_report now", extender.check_certificate),
    Check("placement-guard", "the placement guard answers API servers", "leader_report guard_trial", extender.check_guard),
    Check("registration", "kube-scheduler calls the extender", "probe scheduler_name observes", scheduler.check_registration),
    Check("ask-policy", "pods with claims are sent to the extender",
          "admitted probes claiming_pods scheduler_name kubernetes_version", scheduler.check_ask_policy),
    Check("requests", "requests have names of nodes", "leader leader_report", scheduler.check_requests),
    Check("resource", "kube-scheduler does not look for the resource", "failures probe", scheduler.check_resource),
    Check("events", "no event of the last hour tells of a failed call", "failures", scheduler.check_events),
    Check("longhorn-settings", "Longhorn keeps space available", "settings", longhorn.check_settings),
    Check("capacity-tracking", "kube-scheduler drops no node beforehand", "settings tracks_capacity", longhorn.check_capacity_tracking),
    Check("storage-classes", "volumes wait for their pods", "longhorn_classes settings", longhorn.check_storage_classes),
    Check("tags", "every selected tag exists", "longhorn_classes longhorn_nodes", longhorn.check_tags),
)
UNINSTALLED: Final = (
    _FACTS,
    Check("uninstall", "kube-scheduler does not call the extender", "probes scheduler_name", scheduler.check_registration_removal),
    Check("ask-policy", "no policy sends pods to the extender", "admitted scheduler_name kubernetes_version", scheduler.check_policy_removal),
    Check("requesting-pods", "no pod needs the extender's resource or kube-scheduler", "requesting_pods second_scheduler_pods",
          scheduler.check_requesting_pods),
)
# fmt: on


def diagnose(facts: Installation, checks: Iterable[Check] = INSTALLED) -> list[Finding]:
    """Runs the checks in order. A check that finds nothing has one finding that says so."""
    kubectl = f"kubectl -n {facts.namespace}"
    findings: list[Finding] = []
    for check in checks:
        read = {name: getattr(facts, name) for name in check.reads.split()}
        for finding in check.test(**read) or [Finding(Severity.OK, check.success)]:
            command = finding.command.replace("{kubectl}", kubectl)
            findings.append(replace(finding, check=check.name, command=command))
    return findings


def is_well(findings: Iterable[Finding]) -> bool:
    return not {Severity.WARNING, Severity.ERROR} & {finding.severity for finding in findings}
