"""The volume Longhorn would create for a claim that has none yet.

Mirrors longhorn-manager's csi/util.go:getVolumeOptions and csi/controller_server.go:CreateVolume: StorageClass
parameters first, then Longhorn's settings; the size is what the CSI driver makes of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.settings import Settings, parse_bool, parse_int
from scheduler_core.model import longhorn
from scheduler_core.model.kube import ClaimSpec

DRIVER: Final = "driver.longhorn.io"
MIN_SIZE: Final = 10 * 1024**2
MIN_XFS_SIZE: Final = 300 * 1024**2
SIZE_STEP: Final = 2 * 1024**2
SHARED_ACCESS_MODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_LOCALITIES: Final = (longhorn.DISABLED, longhorn.BEST_EFFORT, longhorn.STRICT_LOCAL)
_CREATED_IMAGES: Final = ("download", "export-from-volume")
_FILE_SYSTEM_PARAMETERS: Final = ("csi.storage.k8s.io/fstype", "fsType")


def csi_size(request: int, file_system: str) -> int:
    """The volume size the CSI driver creates for a request.

    Both are in bytes. The size is at least 10 MiB (300 MiB on xfs), rounded up to 2 MiB
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
        ResolutionError: the claim asks for no storage, or a parameter is no number
    """
    if claim.request is None:
        raise ResolutionError(f"{subject} asks for no storage: spec.resources.requests.storage is missing")
    engine = parameters.get("dataEngine") or longhorn.V1
    locality = _locality(parameters, settings, subject)
    shared = SHARED_ACCESS_MODES.intersection(claim.access_modes) or _flag(parameters, "share", subject)
    source = _data_source(claim, parameters)
    return longhorn.Volume(
        name=name,
        size=csi_size(claim.request, file_system(parameters)),
        number_of_replicas=_number_of_replicas(parameters, locality, engine, settings, subject),
        data_engine=engine,
        data_locality=locality,
        access_mode="rwx" if shared else "rwo",
        migratable=_flag(parameters, "migratable", subject),
        node_selector=_selector(parameters, "nodeSelector"),
        disk_selector=_selector(parameters, "diskSelector"),
        backing_image=_backing_image(parameters),
        image=settings.default_engine_image or "",
        replica_soft_anti_affinity=parameters.get("replicaSoftAntiAffinity", ""),
        replica_zone_soft_anti_affinity=parameters.get("replicaZoneSoftAntiAffinity", ""),
        replica_disk_soft_anti_affinity=parameters.get("replicaDiskSoftAntiAffinity", ""),
        replica_auto_balance=parameters.get("replicaAutoBalance", ""),
        clone_mode=parameters.get("cloneMode", "") if source else "",
        data_source=source,
    )


def _number_of_replicas(
    parameters: Mapping[str, str], locality: str, engine: str, settings: Settings, subject: str
) -> int:
    if locality == longhorn.STRICT_LOCAL:
        return 1  # Longhorn's webhook refuses any other number
    text = parameters.get("numberOfReplicas", "")
    if not text:
        return settings.default_replica_count.get(engine, 3)
    return int(_parse(parse_int, parameters, "numberOfReplicas", subject))


def _locality(parameters: Mapping[str, str], settings: Settings, subject: str) -> str:
    locality = parameters.get("dataLocality") or settings.default_data_locality
    if locality not in _LOCALITIES:
        raise ResolutionError(
            f"StorageClass of {subject}: dataLocality {locality!r} is not one of {', '.join(_LOCALITIES)}"
        )
    return locality


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


def _flag(parameters: Mapping[str, str], key: str, subject: str) -> bool:
    return bool(parameters.get(key)) and bool(_parse(parse_bool, parameters, key, subject))


def _parse(parse: Callable[[str], int], parameters: Mapping[str, str], key: str, subject: str) -> int:
    try:
        return parse(parameters[key])
    except ValueError as error:
        raise ResolutionError(f"StorageClass of {subject}: {key} {parameters[key][:64]!r} is not {error}") from error


def _selector(parameters: Mapping[str, str], key: str) -> tuple[str, ...]:
    """A selector as the CSI driver splits it, untrimmed.

    One that is present but empty holds one empty tag, which no disk has.
    """
    return tuple(parameters[key].split(",")) if key in parameters else ()
