"""Every check of an installation, in the order of the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from scheduler_core.installation import extender_checks, longhorn_checks, scheduler_checks
from scheduler_core.installation.facts import Finding, Installation, Severity, advice_about


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str  # in lower case with hyphens
    success: str  # what is true if the check finds nothing
    run: Callable[[Installation], list[Finding]]  # returns what is wrong


def _check_facts(facts: Installation) -> list[Finding]:
    return [
        Finding("facts", Severity.WARNING, f"could not be read: {problem}", "", advice_about(problem))
        for problem in facts.unknown
    ]


INSTALLED: Final = (
    Check("facts", "everything could be read", _check_facts),
    Check("kubernetes-version", "Kubernetes' version is tested", extender_checks.check_kubernetes_version),
    Check("longhorn-version", "Longhorn's rules were compared", extender_checks.check_longhorn_version),
    Check("pods", "the extender's pods are ready", extender_checks.check_pods),
    Check("own-pods", "no pod of the system waits for the extender", extender_checks.check_own_needs),
    Check("service", "kube-scheduler has an address to call", extender_checks.check_service),
    Check("leader", "pods, Lease and EndpointSlice agree", extender_checks.check_leader),
    Check("caches", "every process knows the cluster", extender_checks.check_caches),
    Check("answers", "the leader answers", extender_checks.check_answers),
    Check("permissions", "the ServiceAccount has every permission", extender_checks.check_permissions),
    Check("certificate", "the placement guard's certificate is valid", extender_checks.check_certificate),
    Check("placement-guard", "the placement guard answers API servers", extender_checks.check_guard),
    Check("registration", "kube-scheduler calls the extender", scheduler_checks.check_registration),
    Check("ask-policy", "pods with claims are sent to the extender", scheduler_checks.check_ask_policy),
    Check("requests", "requests have names of nodes", scheduler_checks.check_requests),
    Check("resource", "kube-scheduler does not look for the resource", scheduler_checks.check_resource),
    Check("events", "no event of the last hour tells of a failed call", scheduler_checks.check_events),
    Check("longhorn-settings", "Longhorn keeps space available", longhorn_checks.check_settings),
    Check("capacity-tracking", "kube-scheduler drops no node beforehand", longhorn_checks.check_capacity_tracking),
    Check("storage-classes", "volumes wait for their pods", longhorn_checks.check_storage_classes),
    Check("tags", "every selected tag exists", longhorn_checks.check_tags),
)
UNINSTALLED: Final = (
    Check("facts", "everything could be read", _check_facts),
    Check("uninstall", "kube-scheduler does not call the extender", scheduler_checks.check_registration_removal),
    Check("ask-policy", "no policy sends pods to the extender", scheduler_checks.check_policy_removal),
    Check(
        "requesting-pods",
        "no pod needs the extender's resource or kube-scheduler",
        scheduler_checks.check_requesting_pods,
    ),
)


def diagnose(facts: Installation, checks: Iterable[Check] = INSTALLED) -> list[Finding]:
    """Runs the checks in order. A check that finds nothing has one finding that says so."""
    findings: list[Finding] = []
    for check in checks:
        findings += check.run(facts) or [Finding(check.name, Severity.OK, check.success)]
    return findings


def is_well(findings: Iterable[Finding]) -> bool:
    return not {Severity.WARNING, Severity.ERROR} & {finding.severity for finding in findings}
