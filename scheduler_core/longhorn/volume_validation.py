"""What Longhorn refuses about a volume, so that it is never created or never attached: one table, each row with its Go
function. Mirrors csi/util.go, webhook/resources/volume/validator.go, types.go:Validate... and the CRD's enums; only
fields that a decision reads.

Then volumes that Longhorn attaches for no workload now, whatever the node (types.IsVolumeReady), and those that may not grow
(scheduler/replica_scheduler.go:CheckReplicasSizeExpansion). Left out are the two rules about volumes that are not detached yet or have
replicas without a place: such a volume becomes ready by itself, and whether its replicas find a place is decided with the whole pod.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Final

import msgspec
from msgspec import Struct

from scheduler_core.errors import QuantityError
from scheduler_core.longhorn import space
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.node_status import is_down
from scheduler_core.longhorn.refusal_rules import Refusal, Rule, ScheduleError
from scheduler_core.longhorn.replica_request import FULL_COPY, LINKED_CLONE, is_data_from_volume, is_v2
from scheduler_core.longhorn.settings import Settings, parse_bool, parse_int
from scheduler_core.model.longhorn import (
    BEST_EFFORT,
    DISABLED,
    STRICT_LOCAL,
    V1,
    V2,
    BackingImage,
    Disk,
    Replica,
    Volume,
)
from scheduler_core.model.quantity import format_bytes, parse_bytes

DATA_ENGINES: Final = (V1, V2)
LOCALITIES: Final = (DISABLED, BEST_EFFORT, STRICT_LOCAL)
CLONE_MODES: Final = (FULL_COPY, LINKED_CLONE)
AUTO_BALANCE_MODES: Final = ("ignored", "disabled", "least-effort", "best-effort")
OVERRIDES: Final = ("ignored", "enabled", "disabled")
ACCESS_MODES: Final = ("rwo", "rwop", "rwx")
ZONAL: Final = "zonal"
VOLUME_TOPOLOGIES: Final = ("any", ZONAL, "regional")
ZONE_KEY: Final = "topology.kubernetes.io/zone"
REGION_KEY: Final = "topology.kubernetes.io/region"
MAX_REPLICAS: Final = 20
MAX_CHUNKS: Final = 32
STRIP_SIZES_KB: Final = tuple(1 << exponent for exponent in range(2, 11))
_QUALIFIED_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_MAX_NAME: Final = 63
_MAX_PREFIX: Final = 253


class VolumeRule(Struct, frozen=True):
    """One rule of Longhorn's admission of volumes."""

    source: str  # the Go function
    error: Callable[[Volume], str]  # why the rule refuses a volume, "" if it does not
    on_update: bool = True  # whether it also refuses every change of an existing volume


def creation_error(volume: Volume, settings: Settings) -> str:
    """Why Longhorn creates no such volume, "" if it does."""
    # Its backing image is checked by `backing_image_error`, the parameters of its StorageClass by `parameter_error`.
    errors = (rule.error(volume) for rule in VOLUME_RULES)
    return next(filter(None, errors), "") or _disabled_engine_error(volume, settings)


def update_error(volume: Volume) -> str:
    """Why Longhorn admits no change of an existing volume, "" if it does."""
    # Such a volume cannot be attached, which is a change of spec.nodeID. 0 replicas are an unknown number.
    return next(filter(None, (rule.error(volume) for rule in VOLUME_RULES if rule.on_update)), "")


def _choice_rule(source: str, name: str, choices: tuple[str, ...]) -> VolumeRule:
    value = attrgetter(re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name))

    def error(volume: Volume) -> str:
        # Longhorn's mutating webhook fills in empty fields.
        text = value(volume)
        return f"{name} {text[:64]!r} is not one of {', '.join(choices)}" if text and text not in choices else ""

    return VolumeRule(source, error)


def _strict_local_replicas_error(volume: Volume) -> str:
    if volume.data_locality != STRICT_LOCAL or volume.number_of_replicas <= 1:
        return ""
    return f"dataLocality strict-local needs numberOfReplicas 1, not {volume.number_of_replicas}"


def _strict_local_shared_error(volume: Volume) -> str:
    if volume.data_locality != STRICT_LOCAL or volume.access_mode != "rwx" or volume.migratable:
        return ""
    return "dataLocality strict-local needs a volume that is not shared, or is migratable"


def _linked_clone_error(volume: Volume) -> str:
    if volume.clone_mode != LINKED_CLONE or is_v2(volume.data_engine):
        return ""
    return f"cloneMode {LINKED_CLONE} needs dataEngine v2"


def _sharded_engine_error(volume: Volume) -> str:
    if volume.data_layout is None or is_v2(volume.data_engine):
        return ""
    return f"dataLayout sharded needs dataEngine v2, not {volume.data_engine}"


def _data_layout_error(volume: Volume) -> str:
    layout = volume.data_layout
    if layout is None:
        return ""
    data, parity, strip = layout.data_chunks, layout.parity_chunks, layout.strip_size_kb
    if min(data, parity) < 1 or data + parity > MAX_CHUNKS:
        return f"dataChunks {data} and parityChunks {parity} are not at least 1 each and at most {MAX_CHUNKS} together"
    return "" if strip in STRIP_SIZES_KB else f"stripSizeKB {strip} is not a power of two from 4 to 1024"


def _zonal_error(volume: Volume) -> str:
    tied = any(term.zone for term in volume.topology_requirement)
    if not tied or volume.replica_zone_soft_anti_affinity != "disabled":
        return ""
    return "replicaZoneSoftAntiAffinity disabled does not go with a volume that stays in one zone"


def _replica_count_error(lowest: int, highest: float) -> Callable[[Volume], str]:
    def error(volume: Volume) -> str:
        count = volume.number_of_replicas
        return "" if lowest <= count <= highest else f"numberOfReplicas {count} is not between 1 and {MAX_REPLICAS}"

    return error


def _disabled_engine_error(volume: Volume, settings: Settings) -> str:
    # webhook/common: ValidateRequiredDataEngineEnabled. A setting that is missing says nothing: Longhorn creates every setting's object.
    name = "v2-data-engine" if is_v2(volume.data_engine) else "v1-data-engine"
    enabled = settings.v2_data_engine if is_v2(volume.data_engine) else settings.v1_data_engine
    return f"dataEngine {volume.data_engine} is switched off by the setting {name}" if enabled is False else ""


def topology_key_error(volume: Volume, settings: Settings) -> str:
    """Why Longhorn cannot tie a volume to the zone or region of a node. csi/controller_server.go: volumeTopologyTerms
    reads the labels that `csi-allowed-topology-keys` names.
    """
    for term in volume.topology_requirement:
        key, topology = (ZONE_KEY, ZONAL) if term.zone else (REGION_KEY, "regional")
        if key not in settings.csi_allowed_topology_keys:
            return f"volumeTopology {topology} needs {key} in the setting csi-allowed-topology-keys"
    return ""


def backing_image_error(volume: Volume, image: BackingImage, source_type: str = "") -> str:
    """Why Longhorn creates no volume from an existing backing image. `source_type` is the parameter
    backingImageDataSourceType (csi/controller_server.go: checkAndPrepareBackingImage).
    """
    if source_type and image.source_type and source_type != image.source_type:
        return f"backing image {image.name} is of type {image.source_type}, not {source_type[:64]!r}"
    if image.data_engine != volume.data_engine:
        return f"backing image {image.name} is for dataEngine {image.data_engine}, not {volume.data_engine}"
    if volume.size < image.virtual_size:
        return (
            f"the volume's {format_bytes(volume.size)} are less than the {format_bytes(image.virtual_size)} "
            f"of backing image {image.name}"
        )
    return ""


VOLUME_RULES: Final = (
    VolumeRule("validator.go: validateReplicaCount", _replica_count_error(1, inf), on_update=False),
    VolumeRule("types.go: ValidateDataLocalityAndAccessMode", _strict_local_shared_error, on_update=False),
    VolumeRule("validator.go: Create", _linked_clone_error, on_update=False),
    VolumeRule("validator.go: Create", _sharded_engine_error, on_update=False),
    VolumeRule("types.go: ValidateECParameters", _data_layout_error, on_update=False),
    VolumeRule("validator.go: Create", _zonal_error, on_update=False),
    _choice_rule("CRD: spec.dataEngine", "dataEngine", DATA_ENGINES),
    _choice_rule("types.go: ValidateDataLocality", "dataLocality", LOCALITIES),
    _choice_rule("types.go: ValidateAccessMode", "accessMode", ACCESS_MODES),
    _choice_rule("CRD: spec.cloneMode", "cloneMode", CLONE_MODES),
    _choice_rule("types.go: ValidateReplicaAutoBalance", "replicaAutoBalance", AUTO_BALANCE_MODES),
    _choice_rule("types.go: ValidateReplicaSoftAntiAffinity", "replicaSoftAntiAffinity", OVERRIDES),
    _choice_rule("types.go: ValidateReplicaZoneSoftAntiAffinity", "replicaZoneSoftAntiAffinity", OVERRIDES),
    _choice_rule("types.go: ValidateReplicaDiskSoftAntiAffinity", "replicaDiskSoftAntiAffinity", OVERRIDES),
    VolumeRule("types.go: ValidateReplicaCount", _replica_count_error(0, MAX_REPLICAS)),
    VolumeRule("validator.go: validateReplicaCount", _strict_local_replicas_error),
)
"""What webhook/resources/volume/validator.go refuses about the fields that a decision reads, in the order of the messages."""


class ParameterRule(Struct, frozen=True):
    """What Longhorn admits as the value of a StorageClass parameter that is present."""

    source: str  # the Go function
    error: Callable[[str], str]  # what is wrong with a value, as the end of a sentence; "" if nothing is


def parameter_error(parameters: Mapping[str, str]) -> str:
    """Why Longhorn creates no volume of a StorageClass with these parameters, "" if it does."""
    for name, rule in PARAMETER_RULES.items():
        error = rule.error(parameters[name]) if name in parameters else ""
        if error:
            return f"{name} {parameters[name][:64]!r} {error}"
    return ""


def is_tag(text: str) -> bool:
    """Whether Longhorn admits a tag of a node or a disk (util.ValidateTags: IsQualifiedName)."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > _MAX_PREFIX or not _DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= _MAX_NAME and _QUALIFIED_NAME.fullmatch(name) is not None


def _one_of(*choices: str) -> Callable[[str], str]:
    return lambda text: "" if text in choices else f"is not one of {', '.join(choices)}"


def _parsed_by(parse: Callable[[str], int]) -> Callable[[str], str]:
    def error(text: str) -> str:
        try:
            parse(text)
        except ValueError as fault:
            return f"is not {fault}"
        return ""

    return error


def _parse_size(text: str) -> int:
    try:
        return parse_bytes(text) if text else 0
    except QuantityError as error:
        raise ValueError("a quantity") from error


def _replica_count_text_error(text: str) -> str:
    error = _parsed_by(parse_int)(text)
    if not error and not 0 <= int(text) <= MAX_REPLICAS:
        return f"is not between 1 and {MAX_REPLICAS}"
    return error


def _selector_error(text: str) -> str:
    refused = [tag for tag in text.split(",") if not is_tag(tag)]
    return f"has the tag {refused[0][:64]!r}, which no node or disk can have" if refused else ""


class _RecurringJob(msgspec.Struct):
    name: str | None = None
    isGroup: bool | None = None  # noqa: N815 # as in JSON


def _job_selector_error(text: str) -> str:
    try:
        msgspec.json.decode(text, type=list[_RecurringJob | None] | None)
    except (msgspec.DecodeError, RecursionError):
        return "is not a JSON list of jobs with name and isGroup"
    return ""


_OPTIONS: Final = "csi/util.go: getVolumeOptions"
_BOOLEAN: Final = ParameterRule(_OPTIONS, _parsed_by(parse_bool))
_NUMBER: Final = ParameterRule(_OPTIONS, _parsed_by(parse_int))
_SELECTOR: Final = ParameterRule("util.ValidateTags", _selector_error)
PARAMETER_RULES: Final[Mapping[str, ParameterRule]] = {
    "staleReplicaTimeout": _NUMBER,
    "exclusive": _BOOLEAN,
    "share": _BOOLEAN,
    "migratable": _BOOLEAN,
    "encrypted": _BOOLEAN,
    "ublkNumberOfQueue": _NUMBER,
    "ublkQueueDepth": _NUMBER,
    "numberOfReplicas": ParameterRule(_OPTIONS, _replica_count_text_error),
    "replicaAutoBalance": ParameterRule("types.go: ValidateReplicaAutoBalance", _one_of(*AUTO_BALANCE_MODES)),
    "dataLocality": ParameterRule("types.go: ValidateDataLocality", _one_of(*LOCALITIES)),
    "disableRevisionCounter": _BOOLEAN,
    "unmapMarkSnapChainRemoved": ParameterRule("types.go: ValidateUnmapMarkSnapChainRemoved", _one_of(*OVERRIDES)),
    "freezeFilesystemForSnapshot": ParameterRule("types.go: ValidateFreezeFilesystemForSnapshot", _one_of(*OVERRIDES)),
    "backupBlockSize": ParameterRule("util.ConvertSize", _parsed_by(_parse_size)),
    "recurringJobSelector": ParameterRule(_OPTIONS, _job_selector_error),
    "replicaSoftAntiAffinity": ParameterRule("types.go: ValidateReplicaSoftAntiAffinity", _one_of(*OVERRIDES)),
    "replicaZoneSoftAntiAffinity": ParameterRule("types.go: ValidateReplicaZoneSoftAntiAffinity", _one_of(*OVERRIDES)),
    "replicaDiskSoftAntiAffinity": ParameterRule("types.go: ValidateReplicaDiskSoftAntiAffinity", _one_of(*OVERRIDES)),
    "nodeSelector": _SELECTOR,
    "diskSelector": _SELECTOR,
    "volumeTopology": ParameterRule("csi/controller_server.go: volumeTopologyTerms", _one_of(*VOLUME_TOPOLOGIES, "")),
    # Longhorn takes an empty engine for v1, and the volume's CRD has the other values.
    "dataEngine": ParameterRule("CRD: spec.dataEngine", _one_of(*DATA_ENGINES, "")),
    "dataLayout.dataChunks": _NUMBER,
    "dataLayout.parityChunks": _NUMBER,
    "dataLayout.stripSizeKB": _NUMBER,
}
"""Parameters that Longhorn reads whenever they are present, an empty text included."""


FAULTED: Final = "faulted"
CLONED: Final = "completed"
COPIED: Final = frozenset({"copy-completed-awaiting-healthy", CLONED})
"""States of a clone that has all data. In the first, Longhorn rebuilds its other replicas once it is attached."""


def readiness_refusal(volume: Volume, replicas: Iterable[Replica], cluster: Cluster) -> Refusal | None:
    """The first rule by which an existing volume cannot be attached, or None. `replicas` are all of this volume. A
    faulted volume is refused only without a replica to salvage: with one, Longhorn salvages it and the volume becomes
    ready.
    """
    if volume.deleting:
        return Refusal(Rule.VOLUME_DELETING, f"volume {volume.name} is being deleted")
    with_data = [each for each in replicas if each.healthy_at and each.node_id and not each.deleting]
    if volume.robustness == FAULTED and not any(_is_salvageable(replica, cluster) for replica in with_data):
        return Refusal(Rule.VOLUME_FAULTED, f"volume {volume.name} is faulted and has no replica to salvage")
    # Longhorn says so only when it attaches the volume: a pod would have its node by then, and wait there.
    if with_data and all(is_down(cluster, replica.node_id) for replica in with_data):
        nodes = ", ".join(sorted({replica.node_id for replica in with_data}))
        detail = f"volume {volume.name} is faulted once it is attached: its data is only on nodes that are gone or not ready ({nodes})"
        return Refusal(Rule.VOLUME_FAULTED, detail)
    if volume.restore_required and volume.standby:
        detail = f"volume {volume.name} is on standby: it restores each new backup, and only its activation ends that"
        return Refusal(Rule.VOLUME_STANDBY, detail)
    if volume.restore_required:
        return Refusal(Rule.VOLUME_RESTORING, f"volume {volume.name} is still being restored from its backup")
    if awaits_copy(volume):
        return Refusal(Rule.VOLUME_CLONING, f"volume {volume.name} is still being cloned from {volume.data_source}")
    return None


def awaits_copy(volume: Volume) -> bool:
    """Whether a volume is a clone that does not have its data yet (isCloneTargetCopyInProgress)."""
    return is_data_from_volume(volume.data_source) and volume.clone_state not in COPIED


def _is_salvageable(replica: Replica, cluster: Cluster) -> bool:
    node = cluster.nodes.get(replica.node_id)
    if node is None or not node.ready or is_down(cluster, node.name):
        return False
    return any(disk.uuid == replica.disk_id and disk.ready for disk in node.disks)


@dataclass(frozen=True, slots=True)
class ExpansionResult:
    """Whether a volume may grow."""

    reason: ScheduleError | None = None  # why it may not, or None
    disk: str = ""  # the UUID of the disk that cannot hold it, or ""
    detail: str = field(default="", compare=False)  # the numbers behind the reason, as a sentence

    @property
    def allowed(self) -> bool:
        return self.reason is None


ALLOWED = ExpansionResult()


def check_expansion(
    cluster: Cluster, volume: Volume, replicas: Iterable[Replica], new_size: int
) -> frozenset[ExpansionResult]:
    """Every answer Longhorn may give for a new size. `new_size` is in bytes. Longhorn reports the first disk that
    fails, in random order.
    """
    disks = {
        disk.uuid: disk for node in cluster.nodes.values() for disk in node.disks if disk.in_spec and disk.in_status
    }
    replicas_by_disk = Counter(replica.disk_id for replica in replicas if replica.node_id)
    refused: set[ExpansionResult] = set()
    for uuid, count in sorted(replicas_by_disk.items()):
        disk = disks.get(uuid)
        if disk is None:
            refused.add(ExpansionResult(ScheduleError.DISK_NOT_FOUND, uuid))
        elif detail := _growth_refusal(disk, cluster.settings, (new_size - volume.size) * count):
            refused.add(ExpansionResult(ScheduleError.INSUFFICIENT_STORAGE, uuid, detail))
    return frozenset(refused or {ALLOWED})


def can_grow(disk: Disk, settings: Settings, increase: int) -> bool:
    return not _growth_refusal(disk, settings, increase)


def _growth_refusal(disk: Disk, settings: Settings, increase: int) -> str:
    left = space.disk_space(disk, settings)
    physical = _physical_refusal(disk, settings, increase) if increase > 0 and left.open else ""
    rule = space.space_refusal(increase, 0, left)
    if physical or rule is None:
        return physical
    return space.space_detail(rule, disk, settings, left, Volume(name="", size=increase))


def _physical_refusal(disk: Disk, settings: Settings, increase: int) -> str:
    """Why a disk could not hold the whole increase, written (ValidateDiskAvailableForExpansion), "" if it could."""
    # The reserve counts as free here.
    used = disk.storage_maximum - disk.storage_available - disk.storage_reserved + increase
    unused = disk.storage_maximum - used
    if unused < space.minimal_available(disk, settings):
        least = space.minimal_available_text(disk, settings)
        return f"disk {disk.name}: {format_bytes(unused)} free once the growth is written must be at least {least}"
    if used > space.scheduling_limit(disk, settings):
        most = space.scheduling_limit_text(disk, settings)
        return f"disk {disk.name}: {format_bytes(used)} used once the growth is written must be at most {most}"
    return ""
