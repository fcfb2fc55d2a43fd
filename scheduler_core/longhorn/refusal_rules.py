"""Names every rule by which Longhorn refuses a node or a disk, and what it then reports; the rule of tags
(types/types.go:IsSelectorsInTags). `stages.py` decides which rule refuses.
"""

import re
from collections.abc import Iterable
from enum import Enum, StrEnum

from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.longhorn import Disk, Node
from scheduler_core.structs import Struct


class ScheduleError(StrEnum):
    """Reasons Longhorn reports for a replica it cannot schedule."""

    INSUFFICIENT_STORAGE = "insufficient storage"
    DISK_NOT_FOUND = "disk not found"
    DISKS_UNAVAILABLE = "disks are unavailable"
    TAGS_NOT_FULFILLED = "tags not fulfilled"
    NODES_UNAVAILABLE = "nodes are unavailable"
    ENGINE_IMAGE_NOT_READY = "none of the node candidates contains a ready engine image"
    HARD_AFFINITY = "hard affinity cannot be satisfied"
    TOPOLOGY = "topology requirement cannot be satisfied"
    LINKED_CLONE = "linked clone replica cannot be satisfied"
    SCHEDULING_FAILED = "replica scheduling failed"
    UNUSED_FAILED_REPLICA = "unused failed replica is not supported"
    ALREADY_SCHEDULED = "replica already scheduled"
    CLIENT_OPERATION_FAILED = "longhorn client operation failed"
    INCOMPATIBLE_VOLUME_SIZE = "incompatible volume size"


class Rule(Enum):
    """A rule that can refuse a node or a disk."""

    SETTING_FAULT = ("a setting cannot be read", ScheduleError.CLIENT_OPERATION_FAILED)
    BACKING_IMAGE_MISSING = ("the volume's backing image does not exist", ScheduleError.CLIENT_OPERATION_FAILED)
    LINKED_CLONE_SOURCE_MISSING = ("the named source replica does not exist", ScheduleError.CLIENT_OPERATION_FAILED)
    DEGRADED_SINCE_FAULT = ("lastDegradedAt cannot be read", ScheduleError.CLIENT_OPERATION_FAILED)
    VOLUME_DELETING = ("volume is being deleted", None)
    VOLUME_FAULTED = ("volume is faulted", None)
    VOLUME_STANDBY = ("volume is on standby", None)
    VOLUME_RESTORING = ("volume is being restored", None)
    VOLUME_CLONING = ("volume is being cloned", None)

    NODE_DELETING = ("node is being deleted", None)
    NODE_NOT_READY = ("node is not ready", None)
    NODE_NOT_READY_YET = ("node has no condition Ready or Schedulable yet", None)
    NODE_NOT_SCHEDULABLE = ("node is not schedulable (cordoned)", None)
    NODE_SCHEDULING_DISABLED = ("node does not allow scheduling", None)
    V2_DISABLED = ("v2 data engine is disabled on the node", None)
    LINKED_CLONE = ("no source replica of the linked clone", None)
    HARD_NODE_AFFINITY = ("replica must be on another node", None)
    TOPOLOGY = ("topology requirement does not match", None)
    INSTANCE_MANAGER = ("instance manager is not ready", None)
    ENGINE_IMAGE = ("engine image is not ready", None)
    NODE_TAGS = ("node tags do not match", None)
    BACKING_IMAGE_NODE_TAGS = ("node tags do not match the backing image", None)

    NODE_ANTI_AFFINITY = ("node has a replica of the volume", None)
    ZONE_ANTI_AFFINITY = ("zone has a replica of the volume", None)
    DISK_ANTI_AFFINITY = ("disk has a replica of the volume", None)

    DISK_NOT_IN_STATUS = ("disk is not known to the node yet", None)
    DISK_NOT_IN_SPEC = ("disk is not in the node's spec", None)
    DISK_EVICTION_REQUESTED = ("disk is being evicted", None)
    DISK_SCHEDULING_DISABLED = ("disk does not allow scheduling", None)
    DISK_NOT_SCHEDULABLE = ("disk is not schedulable", None)
    DISK_PRESSURE = ("disk is not schedulable: disk pressure", None)
    LINKED_CLONE_DISK = ("no source replica of the linked clone on the disk", None)
    DISK_TYPE = ("disk is of another data engine", ScheduleError.DISKS_UNAVAILABLE)
    FILESYSTEM_LIMIT = ("volume is too large for the file system", ScheduleError.INCOMPATIBLE_VOLUME_SIZE)
    DISK_TAGS = ("disk tags do not match", ScheduleError.TAGS_NOT_FULFILLED)
    BACKING_IMAGE_DISK_TAGS = ("disk tags do not match the backing image", ScheduleError.TAGS_NOT_FULFILLED)
    STORAGE_MAXIMUM = ("storage maximum is not positive", ScheduleError.INSUFFICIENT_STORAGE)
    STORAGE_AVAILABLE = ("storage available is not positive", ScheduleError.INSUFFICIENT_STORAGE)
    ACTUAL_SPACE = ("too little available space", ScheduleError.INSUFFICIENT_STORAGE)
    SCHEDULING_SPACE = ("over-provisioning limit reached", ScheduleError.INSUFFICIENT_STORAGE)

    def __init__(self, text: str, reported: ScheduleError | None) -> None:
        self.text = text  # the rule for people
        self.reported = reported  # the reason Longhorn reports, None where it is silent


_RULES = tuple(Rule)
NODE_RULES = _RULES[_RULES.index(Rule.NODE_DELETING) : _RULES.index(Rule.DISK_NOT_IN_STATUS)]
"""The rules a node meets, in Longhorn's order. Rules that stop the whole decision come before them."""
DISK_RULES = _RULES[_RULES.index(Rule.DISK_NOT_IN_STATUS) :]
"""The rules a disk meets, in Longhorn's order."""


class Refusal(Struct, frozen=True):
    """The rule that refuses a node or a disk."""

    rule: Rule
    detail: str  # the refusal as a sentence, with the names and numbers


def setting_refusal(settings: Settings, names: Iterable[str]) -> Refusal | None:
    fault = settings.first_fault(names)
    return None if fault is None else Refusal(Rule.SETTING_FAULT, str(fault))


def missing_backing_image(name: str) -> Refusal:
    return Refusal(Rule.BACKING_IMAGE_MISSING, f"backing image {name} does not exist")


_PLAIN_TAG = re.compile(r"[^\s,'\"\[\]]+")


def selectors_match(tags: tuple[str, ...], selectors: tuple[str, ...], allow_empty: bool) -> bool:  # noqa: FBT001 # as in Longhorn
    """Whether every selector equals some tag, exactly."""
    # An empty selector matches if that is allowed, or if there are no tags either.
    if not selectors:
        return allow_empty or not tags
    return all(selector in tags for selector in selectors)


def selector_refusal(
    tagged: Node | Disk, selector: tuple[str, ...], owner: str, rule: Rule, *, allow_empty: bool
) -> Refusal | None:
    """Why a selector does not match tags, or None. `owner` names what selects: "the volume" or "backing image NAME".
    Where an empty selector is refused, the sentence names the setting that decides.
    """
    if selectors_match(tagged.tags, selector, allow_empty):
        return None
    kind = "node" if isinstance(tagged, Node) else "disk"
    tags = format_tags(tagged.tags)
    detail = f"{kind} {tagged.name} has tags {tags}, {owner} selects {format_tags(selector)}"
    return Refusal(rule, detail if selector else f"{detail}, and allow-empty-{kind}-selector-volume is false")


def format_tags(tags: tuple[str, ...]) -> str:
    """Tags for people, sorted: ``[]`` or ``[fast, ssd]``."""
    # A tag that is empty, or has blanks or punctuation of lists, is quoted: ``['']``.
    return f"[{', '.join(tag if _PLAIN_TAG.fullmatch(tag) else repr(tag) for tag in sorted(tags))}]"
