"""Checks of Longhorn: settings and StorageClasses that undo what the extender decides. Each yields what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scheduler_core.extender.finding import Finding, Installation, Severity
from scheduler_core.longhorn.provisioned_volume import DRIVER, parameter_tags
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.volume_validation import is_tag
from scheduler_core.model.kube import StorageClass

CAPACITY_TRACKING: Final = "csi-storage-capacity-tracking"
# Longhorn writes it from a ConfigMap, whenever it is missing.
_CHARTS_CLASS: Final = "longhorn"
# Longhorn names it in the claims that it creates for volumes that exist.
_STATIC_CLASS: Final = "default-longhorn-static-storage-class"
_FULL: Final = 100
_OVER_PROVISIONING: Final = "storage-over-provisioning-percentage"
_MINIMAL_AVAILABLE: Final = "storage-minimal-available-percentage"


def check_settings(facts: Installation) -> Iterator[Finding]:
    """Whether Longhorn's settings keep what is promised available."""
    settings = Settings.read(facts.settings)
    for name, fault in sorted(settings.faults.items()):
        yield _setting_finding(
            facts, name, Severity.ERROR, f"cannot be read, so Longhorn places nothing: {fault}", "VALUE"
        )
    if settings.storage_over_provisioning_percentage > _FULL:
        percentage = settings.storage_over_provisioning_percentage
        yield _setting_finding(
            facts,
            _OVER_PROVISIONING,
            Severity.WARNING,
            f"is {percentage}: more than a disk holds is promised, so that volumes may fill it",
            str(_FULL),
        )
    if settings.storage_minimal_available_percentage <= 0:
        yield _setting_finding(
            facts,
            _MINIMAL_AVAILABLE,
            Severity.WARNING,
            "is 0: volumes are placed on disks without available space",
            "25",
        )


def check_capacity_tracking(facts: Installation) -> Iterator[Finding]:
    """Whether kube-scheduler drops nodes before it calls the extender."""
    setting = facts.settings.get(CAPACITY_TRACKING)
    drops = "kube-scheduler drops nodes by older figures before it calls the extender"
    if setting == "true":
        yield _setting_finding(facts, CAPACITY_TRACKING, Severity.WARNING, f"is true: {drops}", "false")
    elif facts.tracks_capacity:
        because = f"although the setting {CAPACITY_TRACKING} is {setting}"
        command = f"{facts.kubectl} rollout restart deployment longhorn-driver-deployer, which writes it by the setting"
        if setting is None:
            # From v1.10.0 on; the setting is off by default since v1.11.2.
            because = "as this version of Longhorn always writes it"
            command = f"upgrade Longhorn to v1.11.2 or newer, where the setting {CAPACITY_TRACKING} decides, and is off"
        what = f"storageCapacity is true, {because}: {drops}"
        yield Finding("capacity-tracking", Severity.WARNING, what, f"csidriver/{DRIVER}", command)


def _setting_finding(facts: Installation, name: str, severity: Severity, what: str, value: str) -> Finding:
    check = "capacity-tracking" if name == CAPACITY_TRACKING else "longhorn-settings"
    patch = f'{{"value": "{value}"}}'
    command = f"{facts.kubectl} patch settings.longhorn.io {name} --type=merge -p '{patch}'"
    return Finding(check, severity, what, f"setting.longhorn.io/{name}", command)


def check_storage_classes(facts: Installation) -> Iterator[Finding]:
    """Whether volumes wait until their pod has a node."""
    static = facts.settings.get(_STATIC_CLASS, "longhorn-static")
    for entry in _longhorn_classes(facts):
        places_nothing = entry.name == static != _CHARTS_CLASS
        if not entry.waits_for_consumer and not places_nothing:
            yield Finding(
                "storage-classes",
                Severity.WARNING,
                "binds at once: Longhorn places its volumes before their pods, and the extender cannot help",
                f"storageclass/{entry.name}",
                _create_again(entry, "volumeBindingMode: WaitForFirstConsumer", "volumeBindingMode"),
            )


def check_tags(facts: Installation) -> Iterator[Finding]:
    """Whether nodes and disks have the tags that StorageClasses select."""
    node_tags = {tag for node in facts.longhorn_nodes for tag in node.tags}
    disk_tags = {tag for node in facts.longhorn_nodes for disk in node.disks for tag in disk.tags}
    for entry in _longhorn_classes(facts):
        where = f"storageclass/{entry.name}"
        for key, kind, tags in (("nodeSelector", "node", node_tags), ("diskSelector", "disk", disk_tags)):
            for tag in parameter_tags(entry.parameters, key):
                if not is_tag(tag):
                    yield Finding(
                        "tags",
                        Severity.WARNING,
                        f"{key} has the tag {tag!r}, which no {kind} can have: its volumes fit nowhere",
                        where,
                        _create_again(
                            entry,
                            f"a {key} that has neither blanks nor empty tags",
                            f"default{key[0].upper()}{key[1:]}.selector",
                        ),
                    )
                elif tag not in tags:
                    yield Finding(
                        "tags",
                        Severity.WARNING,
                        f"{key} has the tag {tag!r}, which no {kind} has: its volumes fit nowhere",
                        where,
                        f"add the tag to a {kind}: {facts.kubectl} edit nodes.longhorn.io NODE",
                    )


def _create_again(entry: StorageClass, correct: str, value: str) -> str:
    """How a StorageClass gets other fields, which the API server does not let change."""
    if entry.name != _CHARTS_CLASS:
        return f"create it again with {correct}"
    return (
        f"give it {correct} where Longhorn takes it from, or Longhorn writes the old one again: the chart's value persistence.{value}, or "
        "without the chart the ConfigMap longhorn-storageclass"
    )


def _longhorn_classes(facts: Installation) -> list[StorageClass]:
    return sorted(
        (entry for entry in facts.storage_classes if entry.provisioner == DRIVER), key=lambda entry: entry.name
    )
