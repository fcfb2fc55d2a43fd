"""Translates Longhorn's many rules into the few reasons that kube-scheduler and its users see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from scheduler_core.longhorn.refusal_rules import Refusal, Rule
from scheduler_core.model.verdict import Reason

REASONS: Final = {
    Rule.SETTING_FAULT: Reason.BAD_SETTING,
    Rule.BACKING_IMAGE_MISSING: Reason.NO_BACKING_IMAGE,
    Rule.LINKED_CLONE_SOURCE_MISSING: Reason.LINKED_CLONE,
    Rule.DEGRADED_SINCE_FAULT: Reason.BAD_VOLUME,
    Rule.VOLUME_DELETING: Reason.VOLUME_DELETING,
    Rule.VOLUME_FAULTED: Reason.VOLUME_FAULTED,
    Rule.VOLUME_STANDBY: Reason.VOLUME_STANDBY,
    Rule.VOLUME_RESTORING: Reason.VOLUME_RESTORING,
    Rule.VOLUME_CLONING: Reason.VOLUME_CLONING,
    Rule.NODE_DELETING: Reason.NODE_NOT_READY,
    Rule.NODE_NOT_READY: Reason.NODE_NOT_READY,
    Rule.NODE_NOT_READY_YET: Reason.NODE_NOT_READY_YET,
    Rule.NODE_NOT_SCHEDULABLE: Reason.NODE_CORDONED,
    Rule.NODE_SCHEDULING_DISABLED: Reason.NODE_SCHEDULING_DISABLED,
    Rule.V2_DISABLED: Reason.ENGINE_NOT_READY,
    Rule.LINKED_CLONE: Reason.LINKED_CLONE,
    Rule.HARD_NODE_AFFINITY: Reason.STRICT_LOCAL_ELSEWHERE,
    Rule.TOPOLOGY: Reason.TOPOLOGY,
    Rule.INSTANCE_MANAGER: Reason.ENGINE_NOT_READY,
    Rule.ENGINE_IMAGE: Reason.ENGINE_NOT_READY,
    Rule.NODE_TAGS: Reason.NODE_TAGS,
    Rule.BACKING_IMAGE_NODE_TAGS: Reason.NODE_TAGS,
    Rule.NODE_ANTI_AFFINITY: Reason.ANTI_AFFINITY,
    Rule.ZONE_ANTI_AFFINITY: Reason.ANTI_AFFINITY,
    Rule.DISK_NOT_IN_STATUS: Reason.NO_DISK,
    Rule.DISK_NOT_IN_SPEC: Reason.NO_DISK,
    Rule.DISK_SCHEDULING_DISABLED: Reason.NO_DISK,
    Rule.DISK_EVICTION_REQUESTED: Reason.NO_DISK,
    Rule.DISK_NOT_SCHEDULABLE: Reason.NO_DISK,
    Rule.DISK_PRESSURE: Reason.DISK_PRESSURE,
    Rule.LINKED_CLONE_DISK: Reason.LINKED_CLONE,
    Rule.DISK_TYPE: Reason.DISK_TYPE,
    Rule.FILESYSTEM_LIMIT: Reason.VOLUME_TOO_LARGE,
    Rule.DISK_TAGS: Reason.DISK_TAGS,
    Rule.BACKING_IMAGE_DISK_TAGS: Reason.DISK_TAGS,
    Rule.STORAGE_MAXIMUM: Reason.LOW_AVAILABLE,
    Rule.STORAGE_AVAILABLE: Reason.LOW_AVAILABLE,
    Rule.ACTUAL_SPACE: Reason.LOW_AVAILABLE,
    Rule.SCHEDULING_SPACE: Reason.INSUFFICIENT_STORAGE,
    Rule.DISK_ANTI_AFFINITY: Reason.ANTI_AFFINITY,
}
# Longhorn checks a disk in the order in which Rule lists its rules, so the disk refused by the last rule came closest.
_ORDER: Final = {rule: position for position, rule in enumerate(Rule)}


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a node does not fit; `detail` is a sentence for people, with names and numbers."""

    reason: Reason
    detail: str


def closeness(rule: Rule) -> int:
    """Returns how far a node or disk came that a rule refuses: it passed the rules before."""
    return _ORDER[rule]


def reason_of(refusal: Refusal) -> Refused:
    return Refused(REASONS[refusal.rule], refusal.detail)


def reason_of_disks(node: str, refusals: Iterable[Refusal]) -> Refused:
    """Returns the reason of the disk that came closest, with the details of all disks as a sentence."""
    refusals = list(refusals)
    if not refusals:
        return Refused(Reason.NO_DISK, f"Longhorn node {node} has no disks")
    closest = max(refusals, key=lambda refusal: closeness(refusal.rule))
    return Refused(REASONS[closest.rule], "; ".join(refusal.detail for refusal in refusals))
