"""What Longhorn's admission refuses about a volume, so that it is never created or never attached.

Mirrors the CRD's enums, webhook/resources/volume/validator.go and types.go:Validate...; only fields that a decision reads.
"""

from __future__ import annotations

from typing import Final

from scheduler_core.longhorn.replica_request import FULL_COPY, LINKED_CLONE, is_v2
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.longhorn import (
    BEST_EFFORT,
    DISABLED,
    STRICT_LOCAL,
    V1,
    V2,
    BackingImage,
    Volume,
)
from scheduler_core.model.quantity import format_bytes

DATA_ENGINES: Final = (V1, V2)
LOCALITIES: Final = (DISABLED, BEST_EFFORT, STRICT_LOCAL)
CLONE_MODES: Final = (FULL_COPY, LINKED_CLONE)
AUTO_BALANCE_MODES: Final = ("ignored", "disabled", "least-effort", "best-effort")
ANTI_AFFINITY_VALUES: Final = ("ignored", "enabled", "disabled")
ACCESS_MODES: Final = ("rwo", "rwop", "rwx")
MAX_REPLICAS: Final = 20


def creation_error(volume: Volume, settings: Settings) -> str:
    """Why Longhorn creates no such volume, "" if it does.

    Its backing image is checked by `backing_image_error`.
    """
    if volume.number_of_replicas < 1:
        return _replica_count_error(volume)
    if volume.data_locality == STRICT_LOCAL and volume.access_mode == "rwx" and not volume.migratable:
        return "dataLocality strict-local needs a volume that is not shared, or is migratable"
    if volume.clone_mode == LINKED_CLONE and not is_v2(volume.data_engine):
        return f"cloneMode {LINKED_CLONE} needs dataEngine v2"
    return update_error(volume) or _disabled_engine_error(volume, settings)


def update_error(volume: Volume) -> str:
    """Why Longhorn admits no change of an existing volume, "" if it does.

    Such a volume cannot be attached, which is a change of spec.nodeID. 0 replicas are an unknown number.
    """
    for name, value, choices in (
        ("dataEngine", volume.data_engine, DATA_ENGINES),
        ("dataLocality", volume.data_locality, LOCALITIES),
        ("accessMode", volume.access_mode, ACCESS_MODES),
        ("cloneMode", volume.clone_mode, CLONE_MODES),
        ("replicaAutoBalance", volume.replica_auto_balance, AUTO_BALANCE_MODES),
        ("replicaSoftAntiAffinity", volume.replica_soft_anti_affinity, ANTI_AFFINITY_VALUES),
        ("replicaZoneSoftAntiAffinity", volume.replica_zone_soft_anti_affinity, ANTI_AFFINITY_VALUES),
        ("replicaDiskSoftAntiAffinity", volume.replica_disk_soft_anti_affinity, ANTI_AFFINITY_VALUES),
    ):
        # Longhorn's mutating webhook fills in empty fields.
        if value and value not in choices:
            return choice_error(name, value, choices)
    if not 0 <= volume.number_of_replicas <= MAX_REPLICAS:
        return _replica_count_error(volume)
    if volume.data_locality == STRICT_LOCAL and volume.number_of_replicas > 1:
        return f"dataLocality strict-local needs numberOfReplicas 1, not {volume.number_of_replicas}"
    return ""


def choice_error(name: str, value: str, choices: tuple[str, ...]) -> str:
    """The sentence about a field whose value Longhorn does not know."""
    return f"{name} {value[:64]!r} is not one of {', '.join(choices)}"


def _replica_count_error(volume: Volume) -> str:
    return f"numberOfReplicas {volume.number_of_replicas} is not between 1 and {MAX_REPLICAS}"


def _disabled_engine_error(volume: Volume, settings: Settings) -> str:
    """Why the data engine runs no volume (ValidateRequiredDataEngineEnabled).

    A setting that is missing says nothing: Longhorn creates the object of every setting.
    """
    name = "v2-data-engine" if is_v2(volume.data_engine) else "v1-data-engine"
    enabled = settings.v2_data_engine if is_v2(volume.data_engine) else settings.v1_data_engine
    return f"dataEngine {volume.data_engine} is switched off by the setting {name}" if enabled is False else ""


def backing_image_error(volume: Volume, image: BackingImage) -> str:
    """Why Longhorn creates no volume from an existing backing image."""
    if image.data_engine != volume.data_engine:
        return f"backing image {image.name} is for dataEngine {image.data_engine}, not {volume.data_engine}"
    if volume.size < image.virtual_size:
        return (
            f"the volume's {format_bytes(volume.size)} are less than the {format_bytes(image.virtual_size)} "
            f"of backing image {image.name}"
        )
    return ""
