"""The volume that Longhorn's CSI driver would create for a claim that has none yet, and what it answers to GetCapacity, the
coarser view that kube-scheduler itself has of free space.

Mirrors longhorn-manager's csi/util.go:getVolumeOptions and csi/controller_server.go:CreateVolume and GetCapacity: StorageClass
parameters first, then Longhorn's settings; the size is what the CSI driver makes of the request.

A sharded volume has k data and m parity shards of erasure coding, on distinct nodes with v2 disks, in place of replicas. A new one is
decided as a volume of k + m replicas of a shard's size (`shards_as_replicas`): scheduler/shard_scheduler.go asks of a disk what the
replica scheduler asks, never puts two shards of a volume on one node, and looks neither at zones nor at node tags. Longhorn places them
when it creates the volume, whatever the pod's node. From then on their bytes are part of each disk's storageScheduled
(node_controller.go), and the volume only has to be attached.
"""

from collections.abc import Mapping

from scheduler_core import errors
from scheduler_core.longhorn import node_controller, refusal_rules, space, volume_validation
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED, Settings, Version, parse_bool, parse_int
from scheduler_core.model import kube, longhorn, quantity
from scheduler_core.model.kube import ClaimSpec
from scheduler_core.structs import Struct, replace

DRIVER = "driver.longhorn.io"
MIN_SIZE = 10 * 1024**2
MIN_XFS_SIZE = 300 * 1024**2
SIZE_STEP = 2 * 1024**2
DEFAULT_STRIP_SIZE = "64"
# The first release whose CSI driver reads `dataLayout` parameters, by Longhorn's documentation.
SHARDED_VOLUMES: Version = (1, 12, 1)
EXCLUSIVE_ACCESS_MODE = "ReadWriteOncePod"
SHARED_ACCESS_MODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})
ANYWHERE = longhorn.TopologyTerm()
"""The domain of a node without a zone and a region, or of a node that is not known."""
# The first release whose CSI driver reads the parameter.
VOLUME_TOPOLOGY: Version = (1, 13, 0)


class Provisioning(Struct, frozen=True):
    """What a new volume depends on besides its claim and its class."""

    settings: Settings  # Longhorn's settings
    images: Mapping[str, longhorn.BackingImage] = {}  # the existing backing images by name
    backups: Mapping[str, longhorn.Backup] = {}  # the backups by name
    # Zone and region of the node that the pod runs on, both empty if it has none or is not known.
    domain: longhorn.TopologyTerm = ANYWHERE


def csi_size(request: int, file_system: str) -> int:
    """The bytes of the volume that the CSI driver creates for a request of some bytes (CreateVolume, RoundUpSize)."""
    # At least 10 MiB, rounded up to 2 MiB; a new one on xfs has at least 300 MiB, or is not created.
    return _round_up(max(request, MIN_XFS_SIZE if file_system == "xfs" else MIN_SIZE))


def _round_up(size: int, step: int = SIZE_STEP) -> int:
    return -(-size // step) * step


def file_system(parameters: Mapping[str, str]) -> str:
    """The file system a StorageClass asks for. "" if it leaves the choice to the driver (ext4)."""
    return parameters.get("csi.storage.k8s.io/fstype") or parameters.get("fsType", "")


def volume_for_claim(
    name: str, claim: ClaimSpec, parameters: Mapping[str, str], known: Provisioning, *, subject: str
) -> longhorn.Volume:
    """The volume that Longhorn would create for a claim. `subject` names the claim in errors. `parameters` are those of
    its class, with what the source of its data adds (`volumes/resolve.py`).

    Raises:
        ResolutionError: the claim asks for no storage, Longhorn creates no such volume (`volume_validation`), or the size of the
            backup that it is restored from is not known
    """
    if claim.request is None:
        raise errors.ResolutionError(f"{subject} asks for no storage: spec.resources.requests.storage is missing")
    settings = known.settings
    if not settings.has_rule_since(VOLUME_TOPOLOGY):
        parameters = {key: value for key, value in parameters.items() if key != "volumeTopology"}
    error = volume_validation.parameter_error(parameters) or _claim_error(claim, parameters)
    if error:
        raise errors.ResolutionError(f"StorageClass of {subject}: {error}: correct the StorageClass or the claim")
    engine = parameters.get("dataEngine") or longhorn.V1
    shared = _has_many_writers(claim, parameters)
    backup = _backup(parameters, known, subject)
    layout = _data_layout(parameters) if settings.has_rule_since(SHARDED_VOLUMES) else None
    replica_count = parse_int(parameters.get("numberOfReplicas", "0"))
    volume = longhorn.Volume(
        name=name,
        # mutator.go: Create takes the size of the backup, whatever the claim asks for.
        size=csi_size(claim.request, "") if backup is None else _round_up(backup.volume_size),
        # The mutator sets both for a sharded volume, whatever the class says (mutator.go: Create).
        number_of_replicas=1 if layout is not None else replica_count or settings.default_replica_count.get(engine, 3),
        data_engine=engine,
        data_locality=longhorn.DISABLED
        if layout is not None
        else parameters.get("dataLocality", settings.default_data_locality),
        access_mode="rwx" if shared else "rwo",
        migratable=shared and parse_bool(parameters.get("migratable", "false")),
        node_selector=parameter_tags(parameters, "nodeSelector"),
        disk_selector=parameter_tags(parameters, "diskSelector"),
        backing_image=parameters.get("backingImage", "") or (backup.backing_image if backup is not None else ""),
        image=settings.default_engine_image or "",
        replica_soft_anti_affinity=parameters.get("replicaSoftAntiAffinity", ""),
        replica_zone_soft_anti_affinity=parameters.get("replicaZoneSoftAntiAffinity", ""),
        replica_disk_soft_anti_affinity=parameters.get("replicaDiskSoftAntiAffinity", ""),
        replica_auto_balance=parameters.get("replicaAutoBalance", ""),
        clone_mode=parameters.get("cloneMode", "") if "dataSource" in parameters else "",
        data_source=parameters.get("dataSource", ""),
        data_layout=layout,
    )
    volume = _with_topology(volume, parameters, known)
    error = volume_validation.creation_error(volume, settings) or volume_validation.topology_key_error(volume, settings)
    if error:
        raise errors.ResolutionError(f"StorageClass of {subject}: {error}")
    return _with_image(volume, parameters, known.images, subject)


def _backup(parameters: Mapping[str, str], known: Provisioning, subject: str) -> longhorn.Backup | None:
    """The backup that a volume is restored from, None without one."""
    url = parameters.get("fromBackup")
    if not url:
        return None
    name = longhorn.backup_name(url)
    backup = known.backups.get(name)
    # mutator.go: Create refuses the volume.
    if backup is None or not backup.volume_size:
        what = f"backup {name}" if name else "the backup of parameter fromBackup"
        raise errors.ResolutionError(f"{subject}: the size of {what} is not known, because Longhorn has no such Backup")
    return backup


def _with_topology(volume: longhorn.Volume, parameters: Mapping[str, str], known: Provisioning) -> longhorn.Volume:
    """The volume tied to the zone or region of its pod's node (csi/controller_server.go: volumeTopologyTerms)."""
    domain = known.domain
    # A strict-local volume stays with its pod anyway.
    if not is_tied(parameters) or volume.data_locality == longhorn.STRICT_LOCAL:
        return volume
    if parameters["volumeTopology"] != volume_validation.ZONAL:
        term = longhorn.TopologyTerm(region=domain.region)
        return replace(volume, topology_requirement=(term,)) if domain.region else volume
    if not domain.zone:
        return volume
    term = (
        domain
        if node_controller.REGION_LABEL in known.settings.csi_allowed_topology_keys
        else longhorn.TopologyTerm(domain.zone)
    )
    # Within a zone there is no hard anti-affinity of zones (mutator.go: Create).
    own = volume.replica_zone_soft_anti_affinity
    spread = "enabled" if own in ("", "ignored") else own
    return replace(volume, topology_requirement=(term,), replica_zone_soft_anti_affinity=spread)


def is_tied(parameters: Mapping[str, str]) -> bool:
    """Whether the volumes of a StorageClass are tied to the zone or the region of their pod's node."""
    return parameters.get("volumeTopology", "") not in ("", "any")


def _with_image(
    volume: longhorn.Volume, parameters: Mapping[str, str], images: Mapping[str, longhorn.BackingImage], subject: str
) -> longhorn.Volume:
    """The volume with its backing image (checkAndPrepareBackingImage)."""
    # One that the CSI driver creates with the first volume is nowhere yet, and its size is unknown; then the class has
    # its selectors. One that exists counts, whatever the class says.
    image = images.get(volume.backing_image)
    if image is not None:
        error = volume_validation.backing_image_error(volume, image, parameters.get("backingImageDataSourceType", ""))
        if error:
            raise errors.ResolutionError(f"{subject}: {error}")
    elif parameters.get("backingImageDataSourceType") in ("download", "export-from-volume"):
        return replace(
            volume,
            backing_image="",
            node_selector=volume.node_selector + parameter_tags(parameters, "backingImageNodeSelector"),
            disk_selector=volume.disk_selector + parameter_tags(parameters, "backingImageDiskSelector"),
        )
    return volume


def _claim_error(claim: ClaimSpec, parameters: Mapping[str, str]) -> str:
    exclusive = EXCLUSIVE_ACCESS_MODE in claim.access_modes or parse_bool(parameters.get("exclusive", "false"))
    if exclusive and _has_many_writers(claim, parameters):
        return f"share true does not go with a volume for one pod ({EXCLUSIVE_ACCESS_MODE}, or exclusive true)"
    # csi/controller_server.go:CreateVolume; a clone, or a volume that is restored from a snapshot, has its file system already.
    is_new = not (claim.source_claim or claim.source_snapshot)
    is_new_xfs = file_system(parameters) == "xfs" and claim.volume_mode == kube.FILESYSTEM and is_new
    if is_new_xfs and csi_size(claim.request or 0, "") < MIN_XFS_SIZE:
        return f"{quantity.format_bytes(claim.request or 0)} are less than the {quantity.format_bytes(MIN_XFS_SIZE)} that xfs needs"
    return ""


def _has_many_writers(claim: ClaimSpec, parameters: Mapping[str, str]) -> bool:
    shared = not SHARED_ACCESS_MODES.isdisjoint(claim.access_modes)
    return shared or parse_bool(parameters.get("share", "false"))


def _data_layout(parameters: Mapping[str, str]) -> longhorn.DataLayout | None:
    """The division of a sharded volume, None for one of replicas (enhancement 20260519-v2-sharding.md)."""
    # A class without a strip size gets the default of 64 KiB.
    if parameters.get("dataLayout.type") != longhorn.SHARDED:
        return None
    return longhorn.DataLayout(
        data_chunks=parse_int(parameters.get("dataLayout.dataChunks", "0")),
        parity_chunks=parse_int(parameters.get("dataLayout.parityChunks", "0")),
        strip_size_kb=parse_int(parameters.get("dataLayout.stripSizeKB", DEFAULT_STRIP_SIZE)),
    )


def parameter_tags(parameters: Mapping[str, str], key: str) -> tuple[str, ...]:
    """The tags that a StorageClass parameter selects, as the CSI driver splits them: untrimmed."""
    # A parameter that is present but empty holds one empty tag, which no disk has.
    return tuple(parameters[key].split(",")) if key in parameters else ()


_CLUSTER = 4 * 1024**2
_PAGE = 4096
_PAGES_PER_CLUSTER = _CLUSTER // _PAGE
# A volume may grow to ten times its size, and the pages that this takes are reserved when it is created.
_METADATA_PAGES_PER_CLUSTER = 10
_MASK_HEADER = 8
_ALIGNMENT = 2 * 1024**2
_BITMAP_HEADER = 40
_CHECKSUM = 4
_WRITE_INTENT_HEADER = 24
_STRIPES_PER_REGION = 1024
# Two copies of the write-intent bitmap and of the commit record, of one strip each.
_FIXED_STRIPS = 4


def shards_as_replicas(volume: longhorn.Volume) -> longhorn.Volume:
    """A new sharded volume as the volume of replicas that takes the same space; any other volume as it is."""
    layout = volume.data_layout
    if layout is None:
        return volume
    return replace(
        volume,
        size=shard_size(volume.size, layout),
        whole_size=volume.size,
        number_of_replicas=layout.data_chunks + layout.parity_chunks,
        data_locality=longhorn.DISABLED,
        node_selector=(),
        replica_soft_anti_affinity="disabled",
        replica_zone_soft_anti_affinity="enabled",
        replica_auto_balance=AUTO_BALANCE_DISABLED,
    )


def shard_size(size: int, layout: longhorn.DataLayout) -> int:
    """The bytes of each shard of a volume of `size` bytes (go-spdk-helper, pkg/spdk/types/ec.go: ComputeShardSize)."""
    data = -(-(size + _metadata_bytes(size)) // layout.data_chunks)
    return _round_up(data + _front_bytes(layout.strip_size_kb), _ALIGNMENT)


def _front_bytes(strip_size_kb: int) -> int:
    """What erasure coding keeps for itself at the front of each shard (EcFrontReservationBytes)."""
    strip = strip_size_kb * 1024
    stripes = (strip - _WRITE_INTENT_HEADER - _CHECKSUM) // 8 * 64 * _STRIPES_PER_REGION
    bitmap = _BITMAP_HEADER + -(-stripes // 64) * 8 + _CHECKSUM
    return (-(-bitmap // strip) * 2 + _FIXED_STRIPS) * strip


def _metadata_bytes(size: int) -> int:
    """An upper bound of the metadata of the volume's own store, which takes space itself (lvstoreMetadataBytes)."""
    metadata = 0
    while (needed := _metadata_bytes_of_device(size + metadata)) > metadata:
        metadata = needed
    return metadata + _CLUSTER


def _metadata_bytes_of_device(size: int) -> int:
    pages = -(-size // _CLUSTER) * _METADATA_PAGES_PER_CLUSTER
    mask = -(-(_MASK_HEADER + -(-pages // 8)) // _PAGE)
    # One page for the super block, and three masks.
    return -(-(1 + 3 * mask + pages) // _PAGES_PER_CLUSTER) * _CLUSTER


HOSTNAME = "kubernetes.io/hostname"
MODE = "storageCapacityMode"
_DISK_TYPE_BY_ENGINE = {longhorn.V1: longhorn.FILESYSTEM, longhorn.V2: longhorn.BLOCK}


class CapacityError(errors.CoreError):
    """A gRPC error; its text is ``Code: message``."""


class Capacity(Struct, frozen=True):
    """Free bytes: the sum of all disks, the largest disk."""

    available: int = 0
    maximum_volume_size: int = 0


def get_capacity(cluster: Cluster, topology: Mapping[str, str], parameters: Mapping[str, str]) -> Capacity:
    """The answer for a topology segment and a StorageClass's parameters.

    Raises:
        CapacityError: a topology segment is missing or unknown, or the mode is neither node nor zone
    """
    mode = parameters.get(MODE, "node")
    if mode not in {"node", "zone"}:
        raise CapacityError(f"InvalidArgument: unexpected value \"{mode}\" for storage class parameter '{MODE}'")
    key = HOSTNAME if mode == "node" else node_controller.ZONE_LABEL
    if key not in topology:
        raise CapacityError(f'InvalidArgument: missing "{key}" topology segment')
    place = topology[key]
    if mode == "node" and place not in cluster.nodes:
        raise CapacityError(f"NotFound: node {place} not found")
    settings = cluster.settings
    selector = _selector(parameters.get("nodeSelector", ""))
    free = [
        free_size(disk, settings)
        for node in cluster.nodes.values()
        if place == (node.name if mode == "node" else node.zone)
        and (node.ready and node.schedulable and node.allow_scheduling and not node.eviction_requested)
        and refusal_rules.selectors_match(node.tags, selector, settings.allow_empty_node_selector_volume)
        for disk in node.disks
        if _is_usable(disk, settings, parameters)
    ]
    return Capacity(sum(free), max(free, default=0))


def _is_usable(disk: longhorn.Disk, settings: Settings, parameters: Mapping[str, str]) -> bool:
    """Whether a disk counts; a full disk counts too. The type is the reported one here, not the spec's."""
    required_type = _DISK_TYPE_BY_ENGINE.get(parameters.get("dataEngine", longhorn.V1))
    selector = _selector(parameters.get("diskSelector", ""))
    return (
        disk.in_spec
        and disk.in_status
        and disk.allow_scheduling
        and not disk.eviction_requested
        and disk.schedulable
        and disk.status_type == required_type
        and refusal_rules.selectors_match(disk.tags, selector, settings.allow_empty_disk_selector_volume)
    )


def _selector(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def free_size(disk: longhorn.Disk, settings: Settings) -> int:
    """Free bytes below the over-provisioning limit. Computed in integers, and not in float64 as in the scheduler."""
    provisionable = (disk.storage_maximum - disk.storage_reserved) * settings.storage_over_provisioning_percentage
    return max(0, space.quotient(space.wrap_int64(provisionable), 100) - disk.storage_scheduled)
