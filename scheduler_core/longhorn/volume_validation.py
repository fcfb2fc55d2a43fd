"""What Longhorn refuses about a volume, so that it is never created or never attached: each rule with its Go
function. Mirrors csi/util.go, webhook/resources/volume/validator.go, types.go:Validate... and the CRD's enums; only
fields that a decision reads.

Then volumes that Longhorn attaches for no workload now, whatever the node (types.IsVolumeReady), and those that may not grow
(scheduler/replica_scheduler.go:CheckReplicasSizeExpansion). Left out are the two rules about volumes that are not detached yet or have
replicas without a place: such a volume becomes ready by itself, and whether its replicas find a place is decided with the whole pod.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from scheduler_core.errors import QuantityError
from scheduler_core.longhorn import node_controller, replica_request, space
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import Refusal, Rule, ScheduleError
from scheduler_core.longhorn.settings import Settings, parse_bool, parse_int
from scheduler_core.model import longhorn, quantity

DATA_ENGINES = (longhorn.V1, longhorn.V2)
LOCALITIES = (longhorn.DISABLED, longhorn.BEST_EFFORT, longhorn.STRICT_LOCAL)
CLONE_MODES = (replica_request.FULL_COPY, replica_request.LINKED_CLONE)
AUTO_BALANCE_MODES = ("ignored", "disabled", "least-effort", "best-effort")
OVERRIDES = ("ignored", "enabled", "disabled")
ACCESS_MODES = ("rwo", "rwop", "rwx")
ZONAL = "zonal"
VOLUME_TOPOLOGIES = ("any", ZONAL, "regional")
MAX_REPLICAS = 20
MAX_CHUNKS = 32
STRIP_SIZES_KB = tuple(1 << exponent for exponent in range(2, 11))
_QUALIFIED_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")


def creation_error(volume: longhorn.Volume, settings: Settings) -> str:
    """Why Longhorn creates no such volume, "" if it does."""
    # Its backing image is checked by `backing_image_error`, the parameters of its StorageClass by `parameter_error`.
    return next(_creation_errors(volume, settings), "")


def update_error(volume: longhorn.Volume) -> str:
    """Why Longhorn admits no change of an existing volume, "" if it does."""
    # Such a volume cannot be attached, which is a change of spec.nodeID.
    return next(_update_errors(volume), "")


def _creation_errors(volume: longhorn.Volume, settings: Settings) -> Iterator[str]:
    layout = volume.data_layout
    engine = volume.data_engine
    # validateReplicaCount of validator.go
    if volume.number_of_replicas < 1:
        yield _replica_count_error(volume)
    # ValidateDataLocalityAndAccessMode of types.go
    if volume.data_locality == longhorn.STRICT_LOCAL and volume.access_mode == "rwx" and not volume.migratable:
        yield "dataLocality strict-local needs a volume that is not shared, or is migratable"
    # Create of validator.go
    if volume.clone_mode == replica_request.LINKED_CLONE and not replica_request.is_v2(engine):
        yield f"cloneMode {replica_request.LINKED_CLONE} needs dataEngine v2"
    if layout is not None and not replica_request.is_v2(engine):
        yield f"dataLayout sharded needs dataEngine v2, not {engine}"
    # ValidateECParameters of types.go
    if layout is not None:
        data, parity, strip = layout.data_chunks, layout.parity_chunks, layout.strip_size_kb
        if min(data, parity) < 1 or data + parity > MAX_CHUNKS:
            chunks = f"dataChunks {data} and parityChunks {parity}"
            yield f"{chunks} are not at least 1 each and at most {MAX_CHUNKS} together"
        if strip not in STRIP_SIZES_KB:
            yield f"stripSizeKB {strip} is not a power of two from 4 to 1024"
    # Create of validator.go
    if any(term.zone for term in volume.topology_requirement) and volume.replica_zone_soft_anti_affinity == "disabled":
        yield "replicaZoneSoftAntiAffinity disabled does not go with a volume that stays in one zone"
    yield from _update_errors(volume)
    # webhook/common: ValidateRequiredDataEngineEnabled. A setting that is missing says nothing: Longhorn creates every setting's object.
    name = "v2-data-engine" if replica_request.is_v2(engine) else "v1-data-engine"
    if (settings.v2_data_engine if replica_request.is_v2(engine) else settings.v1_data_engine) is False:
        yield f"dataEngine {engine} is switched off by the setting {name}"


_CHOICES = (
    ("dataEngine", attrgetter("data_engine"), DATA_ENGINES),  # CRD: spec.dataEngine
    ("dataLocality", attrgetter("data_locality"), LOCALITIES),  # types.go: ValidateDataLocality
    ("accessMode", attrgetter("access_mode"), ACCESS_MODES),  # types.go: ValidateAccessMode
    ("cloneMode", attrgetter("clone_mode"), CLONE_MODES),  # CRD: spec.cloneMode
    # types.go: ValidateReplicaAutoBalance, ValidateReplicaSoftAntiAffinity and so on
    ("replicaAutoBalance", attrgetter("replica_auto_balance"), AUTO_BALANCE_MODES),
    ("replicaSoftAntiAffinity", attrgetter("replica_soft_anti_affinity"), OVERRIDES),
    ("replicaZoneSoftAntiAffinity", attrgetter("replica_zone_soft_anti_affinity"), OVERRIDES),
    ("replicaDiskSoftAntiAffinity", attrgetter("replica_disk_soft_anti_affinity"), OVERRIDES),
)


def _update_errors(volume: longhorn.Volume) -> Iterator[str]:
    for name, field_of, choices in _CHOICES:
        text = field_of(volume)
        # Longhorn's mutating webhook fills in empty fields.
        if text and text not in choices:
            yield f"{name} {text[:64]!r} is not one of {', '.join(choices)}"
    # types.go: ValidateReplicaCount. 0 replicas are an unknown number.
    if not 0 <= volume.number_of_replicas <= MAX_REPLICAS:
        yield _replica_count_error(volume)
    # validateReplicaCount of validator.go
    if volume.data_locality == longhorn.STRICT_LOCAL and volume.number_of_replicas > 1:
        yield f"dataLocality strict-local needs numberOfReplicas 1, not {volume.number_of_replicas}"


def _replica_count_error(volume: longhorn.Volume) -> str:
    return f"numberOfReplicas {volume.number_of_replicas} is not between 1 and {MAX_REPLICAS}"


def topology_key_error(volume: longhorn.Volume, settings: Settings) -> str:
    """Why Longhorn cannot tie a volume to the zone or region of a node. csi/controller_server.go: volumeTopologyTerms
    reads the labels that `csi-allowed-topology-keys` names.
    """
    for term in volume.topology_requirement:
        key, topology = (node_controller.ZONE_LABEL, ZONAL) if term.zone else (node_controller.REGION_LABEL, "regional")
        if key not in settings.csi_allowed_topology_keys:
            return f"volumeTopology {topology} needs {key} in the setting csi-allowed-topology-keys"
    return ""


def backing_image_error(volume: longhorn.Volume, image: longhorn.BackingImage, source_type: str = "") -> str:
    """Why Longhorn creates no volume from an existing backing image. `source_type` is the parameter
    backingImageDataSourceType (csi/controller_server.go: checkAndPrepareBackingImage).
    """
    if source_type and image.source_type and source_type != image.source_type:
        return f"backing image {image.name} is of type {image.source_type}, not {source_type[:64]!r}"
    if image.data_engine != volume.data_engine:
        return f"backing image {image.name} is for dataEngine {image.data_engine}, not {volume.data_engine}"
    if volume.size < image.virtual_size:
        return (
            f"the volume's {quantity.format_bytes(volume.size)} are less than the {quantity.format_bytes(image.virtual_size)} "
            f"of backing image {image.name}"
        )
    return ""


def parameter_error(parameters: Mapping[str, str]) -> str:
    """Why Longhorn creates no volume of a StorageClass with these parameters, "" if it does."""
    for name, find_error in _PARAMETER_RULES.items():
        error = find_error(parameters[name]) if name in parameters else ""
        if error:
            return f"{name} {parameters[name][:64]!r} {error}"
    return ""


def is_tag(text: str) -> bool:
    """Whether Longhorn admits a tag of a node or a disk (util.ValidateTags: IsQualifiedName)."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > 253 or not _DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= 63 and _QUALIFIED_NAME.fullmatch(name) is not None


def _one_of(*choices: str) -> Callable[[str], str]:
    return lambda text: "" if text in choices else f"is not one of {', '.join(choices)}"


def _parsed_by(parse: Callable[[str], object]) -> Callable[[str], str]:
    def error(text: str) -> str:
        try:
            parse(text)
        except ValueError as fault:
            return f"is not {fault}"
        return ""

    return error


def _parse_size(text: str) -> int:
    try:
        return quantity.parse_bytes(text) if text else 0
    except QuantityError as error:
        raise ValueError("a quantity") from error


def _parse_replica_count(text: str) -> int:
    count = parse_int(text)
    if not 0 <= count <= MAX_REPLICAS:
        raise ValueError(f"between 1 and {MAX_REPLICAS}")
    return count


def _selector_error(text: str) -> str:
    refused = [tag for tag in text.split(",") if not is_tag(tag)]
    return f"has the tag {refused[0][:64]!r}, which no node or disk can have" if refused else ""


class _RecurringJob(msgspec.Struct):
    name: str | None = None
    isGroup: bool | None = None  # noqa: N815 # as in JSON


def _parse_jobs(text: str) -> object:
    try:
        return msgspec.json.decode(text, type=list[_RecurringJob | None] | None)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("a JSON list of jobs with name and isGroup") from error


_boolean = _parsed_by(parse_bool)
_number = _parsed_by(parse_int)
_override = _one_of(*OVERRIDES)
# What is wrong with a parameter that is present, an empty text included, as the end of a sentence; "" if nothing is. By
# csi/util.go: getVolumeOptions, which calls types.go: Validate... and util.ValidateTags, and others where they are named.
_PARAMETER_RULES: Mapping[str, Callable[[str], str]] = {
    "staleReplicaTimeout": _number,
    "exclusive": _boolean,
    "share": _boolean,
    "migratable": _boolean,
    "encrypted": _boolean,
    "ublkNumberOfQueue": _number,
    "ublkQueueDepth": _number,
    "numberOfReplicas": _parsed_by(_parse_replica_count),
    "replicaAutoBalance": _one_of(*AUTO_BALANCE_MODES),
    "dataLocality": _one_of(*LOCALITIES),
    "disableRevisionCounter": _boolean,
    "unmapMarkSnapChainRemoved": _override,
    "freezeFilesystemForSnapshot": _override,
    "backupBlockSize": _parsed_by(_parse_size),  # util.ConvertSize
    "recurringJobSelector": _parsed_by(_parse_jobs),
    "replicaSoftAntiAffinity": _override,
    "replicaZoneSoftAntiAffinity": _override,
    "replicaDiskSoftAntiAffinity": _override,
    "nodeSelector": _selector_error,
    "diskSelector": _selector_error,
    "volumeTopology": _one_of(*VOLUME_TOPOLOGIES, ""),  # csi/controller_server.go: volumeTopologyTerms
    # Longhorn takes an empty engine for v1, and the volume's CRD has the other values.
    "dataEngine": _one_of(*DATA_ENGINES, ""),
    "dataLayout.dataChunks": _number,
    "dataLayout.parityChunks": _number,
    "dataLayout.stripSizeKB": _number,
}


FAULTED = "faulted"
CLONED = "completed"
COPIED = frozenset({"copy-completed-awaiting-healthy", CLONED})
"""States of a clone that has all data. In the first, Longhorn rebuilds its other replicas once it is attached."""


def readiness_refusal(
    volume: longhorn.Volume, replicas: Iterable[longhorn.Replica], cluster: Cluster
) -> Refusal | None:
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
    if with_data and all(node_controller.is_down(cluster, replica.node_id) for replica in with_data):
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


def awaits_copy(volume: longhorn.Volume) -> bool:
    """Whether a volume is a clone that does not have its data yet (isCloneTargetCopyInProgress)."""
    return volume.data_source.startswith(replica_request.SOURCE_PREFIXES) and volume.clone_state not in COPIED


def _is_salvageable(replica: longhorn.Replica, cluster: Cluster) -> bool:
    node = cluster.nodes.get(replica.node_id)
    if node is None or not node.ready or node_controller.is_down(cluster, node.name):
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
    cluster: Cluster, volume: longhorn.Volume, replicas: Iterable[longhorn.Replica], new_size: int
) -> frozenset[ExpansionResult]:
    """Every answer to a new size in bytes: Longhorn reports the first disk that fails, in random order."""
    disks = {
        disk.uuid: disk for node in cluster.nodes.values() for disk in node.disks if disk.in_spec and disk.in_status
    }
    replicas_by_disk = Counter(replica.disk_id for replica in replicas if replica.node_id)
    refused: set[ExpansionResult] = set()
    for uuid, count in sorted(replicas_by_disk.items()):
        disk = disks.get(uuid)
        if disk is None:
            refused.add(ExpansionResult(ScheduleError.DISK_NOT_FOUND, uuid))
        elif detail := growth_refusal(disk, cluster.settings, (new_size - volume.size) * count):
            refused.add(ExpansionResult(ScheduleError.INSUFFICIENT_STORAGE, uuid, detail))
    return frozenset(refused or {ALLOWED})


def growth_refusal(disk: longhorn.Disk, settings: Settings, increase: int) -> str:
    """Why a disk cannot hold so many bytes more, "" if it can."""
    left = space.disk_space(disk, settings)
    if increase > 0 and left.open:
        # The whole increase must fit once it is written (ValidateDiskAvailableForExpansion). The reserve counts as free here.
        used = disk.storage_maximum - disk.storage_available - disk.storage_reserved + increase
        unused = disk.storage_maximum - used
        if unused < space.minimal_available(disk, settings):
            need = f"{quantity.format_bytes(unused)} free once the growth is written must be at least"
            return f"disk {disk.name}: {need} {space.minimal_available_text(disk, settings)}"
        if used > space.scheduling_limit(disk, settings):
            need = f"{quantity.format_bytes(used)} used once the growth is written must be at most"
            return f"disk {disk.name}: {need} {space.scheduling_limit_text(disk, settings)}"
    rule = space.space_refusal(increase, 0, left)
    volume = longhorn.Volume(name="", size=increase)
    return "" if rule is None else space.space_detail(rule, disk, settings, left, volume)
