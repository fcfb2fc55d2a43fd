"""Checks of Longhorn: settings and StorageClasses that undo what the extender decides. Each returns what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scheduler_core.installation.facts import Finding, Severity
from scheduler_core.longhorn.provisioned_volume import DRIVER, parameter_tags
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
