"""The volume Longhorn would create for a claim that has none yet.

Mirrors longhorn-manager's csi/util.go:getVolumeOptions and csi/controller_server.go:CreateVolume: StorageClass
parameters first, then Longhorn's settings; the size is what the CSI driver makes of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.settings import Settings, parse_bool, parse_int
from scheduler_core.longhorn.volume_validation import (
    ANTI_AFFINITY_VALUES,
    AUTO_BALANCE_MODES,
    CLONE_MODES,
    DATA_ENGINES,
    LOCALITIES,
    choice_error,
    creation_error,
)
from scheduler_core.model import longhorn
from scheduler_core.model.kube import ClaimSpec

DRIVER: Final = "driver.longhorn.io"
MIN_SIZE: Final = 10 * 1024**2
MIN_XFS_SIZE: Final = 300 * 1024**2
SIZE_STEP: Final = 2 * 1024**2
SHARED_ACCESS_MODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
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
        ResolutionError: the claim asks for no storage, a parameter is no number, or Longhorn refuses such a volume
    """
    if claim.request is None:
        raise ResolutionError(f"{subject} asks for no storage: spec.resources.requests.storage is missing")
    engine = _choice(parameters, "dataEngine", DATA_ENGINES, subject) or longhorn.V1
    locality = _choice(parameters, "dataLocality", LOCALITIES, subject) or settings.default_data_locality
    replica_count = settings.default_replica_count.get(engine, 3)
    shared = SHARED_ACCESS_MODES.intersection(claim.access_modes) or _flag(parameters, "share", subject)
    source = _data_source(claim, parameters)
    volume = longhorn.Volume(
        name=name,
        size=csi_size(claim.request, file_system(parameters)),
        number_of_replicas=_number_of_replicas(parameters, locality, replica_count, subject),
        data_engine=engine,
        data_locality=locality,
        access_mode="rwx" if shared else "rwo",
        migratable=_flag(parameters, "migratable", subject),
        node_selector=parameter_tags(parameters, "nodeSelector"),
        disk_selector=parameter_tags(parameters, "diskSelector"),
        backing_image=_backing_image(parameters),
        image=settings.default_engine_image or "",
        replica_soft_anti_affinity=_choice(parameters, "replicaSoftAntiAffinity", ANTI_AFFINITY_VALUES, subject),
        replica_zone_soft_anti_affinity=_choice(
            parameters, "replicaZoneSoftAntiAffinity", ANTI_AFFINITY_VALUES, subject
        ),
        replica_disk_soft_anti_affinity=_choice(
            parameters, "replicaDiskSoftAntiAffinity", ANTI_AFFINITY_VALUES, subject
        ),
        replica_auto_balance=_choice(parameters, "replicaAutoBalance", AUTO_BALANCE_MODES, subject),
        clone_mode=_choice(parameters, "cloneMode", CLONE_MODES, subject) if source else "",
        data_source=source,
    )
    error = creation_error(volume, settings)
    if error:
        raise ResolutionError(f"StorageClass of {subject}: {error}")
    return volume


def _number_of_replicas(parameters: Mapping[str, str], locality: str, default: int, subject: str) -> int:
    text = parameters.get("numberOfReplicas", "")
    count = int(_parse(parse_int, parameters, "numberOfReplicas", subject)) if text else 0
    # Longhorn's webhook refuses any other number than 1.
    return count or (1 if locality == longhorn.STRICT_LOCAL else default)


def _choice(parameters: Mapping[str, str], key: str, choices: tuple[str, ...], subject: str) -> str:
    """The value of a parameter that has a fixed set of values.

    "" if the parameter is not given.

    Raises:
        ResolutionError: Longhorn does not know the value
    """
    value = parameters.get(key, "")
    if value and value not in choices:
        raise ResolutionError(f"StorageClass of {subject}: {choice_error(key, value, choices)}")
    return value


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


def parameter_tags(parameters: Mapping[str, str], key: str) -> tuple[str, ...]:
    """The tags that a StorageClass parameter selects, as the CSI driver splits them: untrimmed.

    One that is present but empty holds one empty tag, which no disk has.
    """
    return tuple(parameters[key].split(",")) if key in parameters else ()
