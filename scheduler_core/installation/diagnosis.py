"""Every check of an installation, in the order of the output.

Data flow: the facts that a check reads → its test → findings, one line for each, with the command that mends it

The checks of Longhorn are here: settings and StorageClasses that undo what the extender decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.installation import extender_checks as extender
from scheduler_core.installation import scheduler_checks as scheduler
from scheduler_core.installation.facts import Finding, Installation, Severity
from scheduler_core.longhorn.csi_driver import DRIVER, parameter_tags
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.volume_validation import is_tag
from scheduler_core.model.kube import StorageClass
from scheduler_core.model.longhorn import Node

CAPACITY_TRACKING: Final = "csi-storage-capacity-tracking"
# Longhorn writes it from a ConfigMap, whenever it is missing.
_CHARTS_CLASS: Final = "longhorn"
# Longhorn names it in the claims that it creates for volumes that exist.
_STATIC_CLASS: Final = "default-longhorn-static-storage-class"
_FULL: Final = 100
_OVER_PROVISIONING: Final = "storage-over-provisioning-percentage"
_MINIMAL_AVAILABLE: Final = "storage-minimal-available-percentage"


def check_settings(settings: Mapping[str, str]) -> list[Finding]:
    """Whether Longhorn's settings keep what is promised available."""
    known = Settings.read(settings)
    findings: list[Finding] = []
    for name, fault in sorted(known.faults.items()):
        what = f"cannot be read, so Longhorn places nothing: {fault}"
        findings.append(_setting_finding(name, Severity.ERROR, what, "VALUE"))
    percentage = known.storage_over_provisioning_percentage
    if percentage > _FULL:
        what = f"is {percentage}: more than a disk holds is promised, so that volumes may fill it"
        findings.append(_setting_finding(_OVER_PROVISIONING, Severity.WARNING, what, str(_FULL)))
    if known.storage_minimal_available_percentage <= 0:
        what = "is 0: volumes are placed on disks without available space"
        findings.append(_setting_finding(_MINIMAL_AVAILABLE, Severity.WARNING, what, "25"))
    return findings


def check_capacity_tracking(
    settings: Mapping[str, str],
    tracks_capacity: bool,  # noqa: FBT001 # a fact
) -> list[Finding]:
    """Whether kube-scheduler drops nodes before it calls the extender."""
    setting = settings.get(CAPACITY_TRACKING)
    drops = "kube-scheduler drops nodes by older figures before it calls the extender"
    if setting == "true":
        return [_setting_finding(CAPACITY_TRACKING, Severity.WARNING, f"is true: {drops}", "false")]
    if not tracks_capacity:
        return []
    because = f"although the setting {CAPACITY_TRACKING} is {setting}"
    command = "{kubectl} rollout restart deployment longhorn-driver-deployer, which writes it by the setting"
    if setting is None:
        # From v1.10.0 on; the setting is off by default since v1.11.2.
        because = "as this version of Longhorn always writes it"
        command = f"upgrade Longhorn to v1.11.2 or newer, where the setting {CAPACITY_TRACKING} decides, and is off"
    what = f"storageCapacity is true, {because}: {drops}"
    return [Finding(Severity.WARNING, what, f"csidriver/{DRIVER}", command)]


def _setting_finding(name: str, severity: Severity, what: str, value: str) -> Finding:
    command = f'{{kubectl}} patch settings.longhorn.io {name} --type=merge -p \'{{"value": "{value}"}}\''
    return Finding(severity, what, f"setting.longhorn.io/{name}", command)


def check_storage_classes(longhorn_classes: Sequence[StorageClass], settings: Mapping[str, str]) -> list[Finding]:
    """Whether volumes wait until their pod has a node."""
    static = settings.get(_STATIC_CLASS, "longhorn-static")
    what = "binds at once: Longhorn places its volumes before their pods, and the extender cannot help"
    findings: list[Finding] = []
    for entry in longhorn_classes:
        places_nothing = entry.name == static != _CHARTS_CLASS
        if not entry.waits_for_consumer and not places_nothing:
            command = _create_again(entry, "volumeBindingMode: WaitForFirstConsumer", "volumeBindingMode")
            findings.append(Finding(Severity.WARNING, what, f"storageclass/{entry.name}", command))
    return findings


def check_tags(longhorn_classes: Sequence[StorageClass], longhorn_nodes: Sequence[Node]) -> list[Finding]:
    """Whether nodes and disks have the tags that StorageClasses select."""
    node_tags = {tag for node in longhorn_nodes for tag in node.tags}
    disk_tags = {tag for node in longhorn_nodes for disk in node.disks for tag in disk.tags}
    findings: list[Finding] = []
    for entry in longhorn_classes:
        for key, kind, tags in (("nodeSelector", "node", node_tags), ("diskSelector", "disk", disk_tags)):
            for tag in parameter_tags(entry.parameters, key):
                valid = is_tag(tag)
                if valid and tag in tags:
                    continue
                command = f"add the tag to a {kind}: {{kubectl}} edit nodes.longhorn.io NODE"
                if not valid:
                    value = f"default{key[0].upper()}{key[1:]}.selector"
                    command = _create_again(entry, f"a {key} that has neither blanks nor empty tags", value)
                which = f"no {kind} {'has' if valid else 'can have'}"
                what = f"{key} has the tag {tag!r}, which {which}: its volumes fit nowhere"
                findings.append(Finding(Severity.WARNING, what, f"storageclass/{entry.name}", command))
    return findings


def _create_again(entry: StorageClass, correct: str, value: str) -> str:
    """How a StorageClass gets other fields, which the API server does not let change."""
    if entry.name != _CHARTS_CLASS:
        return f"create it again with {correct}"
    return (
        f"give it {correct} where Longhorn takes it from, or Longhorn writes the old one again: the chart's value persistence.{value}, or "
        "without the chart the ConfigMap longhorn-storageclass"
    )


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
    Check("longhorn-settings", "Longhorn keeps space available", "settings", check_settings),
    Check("capacity-tracking", "kube-scheduler drops no node beforehand", "settings tracks_capacity", check_capacity_tracking),
    Check("storage-classes", "volumes wait for their pods", "longhorn_classes settings", check_storage_classes),
    Check("tags", "every selected tag exists", "longhorn_classes longhorn_nodes", check_tags),
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
