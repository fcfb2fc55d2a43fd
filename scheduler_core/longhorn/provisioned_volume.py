"""The volume Longhorn would create for a claim that has none yet.

Mirrors longhorn-manager's csi/util.go:getVolumeOptions and csi/controller_server.go:CreateVolume: StorageClass
parameters first, then Longhorn's settings; the size is what the CSI driver makes of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.settings import Settings, Version, parse_bool, parse_int
from scheduler_core.longhorn.volume_validation import creation_error, parameter_error
from scheduler_core.model import longhorn
from scheduler_core.model.kube import FILESYSTEM, ClaimSpec
from scheduler_core.model.quantity import format_bytes

DRIVER: Final = "driver.longhorn.io"
MIN_SIZE: Final = 10 * 1024**2
MIN_XFS_SIZE: Final = 300 * 1024**2
SIZE_STEP: Final = 2 * 1024**2
DEFAULT_STRIP_SIZE: Final = "64"
# The first release whose CSI driver reads `dataLayout` parameters, by Longhorn's documentation.
SHARDED_VOLUMES: Final[Version] = (1, 12, 1)
EXCLUSIVE_ACCESS_MODE: Final = "ReadWriteOncePod"
SHARED_ACCESS_MODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_CREATED_IMAGES: Final = ("download", "export-from-volume")
_FILE_SYSTEM_PARAMETERS: Final = ("csi.storage.k8s.io/fstype", "fsType")


def csi_size(request: int, file_system: str) -> int:
    """The volume size the CSI driver creates for a request.

    Both are in bytes. The size is at least 10 MiB, rounded up to 2 MiB; a new one on xfs has at least 300 MiB, or is not created
    (csi/controller_server.go:CreateVolume, util.RoundUpSize).
    """
    smallest = MIN_XFS_SIZE if file_system == "xfs" else MIN_SIZE
    return -(-max(request, smallest) // SIZE_STEP) * SIZE_STEP


def file_system(parameters: Mapping[str, str]) -> str:
    """The file system a StorageClass asks for.

    "" if it leaves the choice to the driver (ext4).
    """
    return next((parameters[key] for key in _FILE_SYSTEM_PARAMETERS if parameters.get(key)), "")


def volume_for_claim(
    name: str, claim: ClaimSpec, parameters: Mapping[str, str], settings: Settings, *, subject: str
) -> longhorn.Volume:
    """The volume that Longhorn would create for a claim.

    `subject` names the claim in errors.

    Raises:
        ResolutionError: the claim asks for no storage, or Longhorn creates no such volume (`volume_validation`)
    """
    if claim.request is None:
        raise ResolutionError(f"{subject} asks for no storage: spec.resources.requests.storage is missing")
    error = parameter_error(parameters) or _claim_error(claim, parameters)
    if error:
        raise ResolutionError(f"StorageClass of {subject}: {error}: correct the StorageClass or the claim")
    engine = parameters.get("dataEngine") or longhorn.V1
    shared = _is_shared(claim, parameters)
    source = _data_source(claim, parameters)
    layout = _data_layout(parameters) if settings.has_rule_since(SHARDED_VOLUMES) else None
    replica_count = parse_int(parameters.get("numberOfReplicas", "0"))
    volume = longhorn.Volume(
        name=name,
        size=csi_size(claim.request, ""),
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
        backing_image=_backing_image(parameters),
        image=settings.default_engine_image or "",
        replica_soft_anti_affinity=parameters.get("replicaSoftAntiAffinity", ""),
        replica_zone_soft_anti_affinity=parameters.get("replicaZoneSoftAntiAffinity", ""),
        replica_disk_soft_anti_affinity=parameters.get("replicaDiskSoftAntiAffinity", ""),
        replica_auto_balance=parameters.get("replicaAutoBalance", ""),
        clone_mode=parameters.get("cloneMode", "") if source else "",
        data_source=source,
        data_layout=layout,
    )
    error = creation_error(volume, settings)
    if error:
        raise ResolutionError(f"StorageClass of {subject}: {error}")
    return volume


def _claim_error(claim: ClaimSpec, parameters: Mapping[str, str]) -> str:
    """What of a claim does not go with its StorageClass."""
    exclusive = EXCLUSIVE_ACCESS_MODE in claim.access_modes or parse_bool(parameters.get("exclusive", "false"))
    if exclusive and _is_shared(claim, parameters):
        return f"share true does not go with a volume for one pod ({EXCLUSIVE_ACCESS_MODE}, or exclusive true)"
    # csi/controller_server.go:CreateVolume; a clone has its file system already.
    is_new_xfs = file_system(parameters) == "xfs" and claim.volume_mode == FILESYSTEM and not claim.source_claim
    if is_new_xfs and csi_size(claim.request or 0, "") < MIN_XFS_SIZE:
        return f"{format_bytes(claim.request or 0)} are less than the {format_bytes(MIN_XFS_SIZE)} that xfs needs"
    return ""


def _is_shared(claim: ClaimSpec, parameters: Mapping[str, str]) -> bool:
    shared = not SHARED_ACCESS_MODES.isdisjoint(claim.access_modes)
    return shared or parse_bool(parameters.get("share", "false"))


def _backing_image(parameters: Mapping[str, str]) -> str:
    """The backing image, if it must exist already.

    One that the CSI driver creates with the first volume is nowhere yet, and its size is unknown.
    """
    return "" if parameters.get("backingImageDataSourceType") in _CREATED_IMAGES else parameters.get("backingImage", "")


def _data_source(claim: ClaimSpec, parameters: Mapping[str, str]) -> str:
    """The source of a clone, as Longhorn writes it.

    The claim's own source wins over the class's parameter.
    """
    return f"vol://{claim.source_volume}" if claim.source_volume else parameters.get("dataSource", "")


def _data_layout(parameters: Mapping[str, str]) -> longhorn.DataLayout | None:
    """The division of a sharded volume, None for one of replicas (longhorn's enhancement 20260519-v2-sharding.md).

    A class without a strip size gets the default of 64 KiB.
    """
    if parameters.get("dataLayout.type") != longhorn.SHARDED:
        return None
    return longhorn.DataLayout(
        data_chunks=parse_int(parameters.get("dataLayout.dataChunks", "0")),
        parity_chunks=parse_int(parameters.get("dataLayout.parityChunks", "0")),
        strip_size_kb=parse_int(parameters.get("dataLayout.stripSizeKB", DEFAULT_STRIP_SIZE)),
    )


def parameter_tags(parameters: Mapping[str, str], key: str) -> tuple[str, ...]:
    """The tags that a StorageClass parameter selects, as the CSI driver splits them: untrimmed.

    One that is present but empty holds one empty tag, which no disk has.
    """
    return tuple(parameters[key].split(",")) if key in parameters else ()
