"""What can be configured: delays, Longhorn's settings, and what is left out. docs/simulator.md has the same as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml

from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.model.quantity import parse_bytes

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Span = tuple[Seconds, Seconds]
"""A delay in seconds, drawn evenly between both ends."""


class ConfigError(CoreError):
    """The configuration cannot be read: names the file and the key."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All of it; every field has a default that suits tests."""

    seed: int = 1
    """Of all randomness: equal seeds and equal events give equal decisions."""

    provision_seconds: Span = (0.3, 0.6)
    """From the claim's turn to the Longhorn volume."""

    publish_seconds: Span = (0.1, 1.5)
    """From a VolumeAttachment to the request that reaches the Longhorn volume (spec.nodeID)."""

    attach_seconds: Span = (0.2, 0.5)
    """From the last running replica to the attached volume."""

    detach_seconds: Span = (0.1, 0.3)
    """From the request to the detached volume."""

    start_seconds: Span = (0.1, 0.3)
    """From placement, or attachment, of a replica to its process running."""

    rebuild_seconds: Span = (1.0, 2.0)
    """A replica's rebuild, without the time its data takes."""

    rebuild_bytes_per_second: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How fast data is copied in a rebuild; 0: data takes no time."""

    delete_seconds: Span = (0.2, 0.5)
    """From the deletion of a replica to the moment its object, and with it its space, is gone."""

    backing_image_seconds: Span = (0.5, 1.0)
    """Copying a backing image to a disk."""

    status_period: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 1.0
    """How often the status of each Longhorn node is written. Longhorn: 30."""

    status_lag: Seconds = 0.5
    """How long after a replica's change its node's status is written, if that is sooner."""

    capacity_period: Annotated[float, msgspec.Meta(gt=0, le=86400)] | Literal["none"] = 1.0
    """How often CSIStorageCapacity objects are written; none: never. The external provisioner: 60."""

    storage_capacity: bool = True
    """CSIDriver.spec.storageCapacity: whether kube-scheduler looks at these objects."""

    schedule_retry: Seconds = 30.0
    """How soon the placement of a replica is tried again. Longhorn: 30."""

    strict_local_retry: Seconds = 30.0
    """The same for replicas that must be on one node. Longhorn: 30."""

    attach_retry: Seconds = 1.0
    """How soon a refused attachment is looked at again, when nothing else happens."""

    stuck_after: Seconds = 10.0
    """From when on a pod that has a node but not its volumes counts as stuck."""

    write_bytes_per_second: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How fast the data asked for by `simulator/write` is written; 0: at once."""

    placement: bool = True
    """Whether replicas get a node and a disk; off: another process places them."""

    disk_schedules: bool = False
    """Whether DiskSchedules hold every byte: their controllers place replicas and copies, and nothing starts, grows or is
    copied before its disk has granted it."""

    known_settings_extra: list[str] = []
    """Setting names accepted beside those Longhorn knows."""

    settings: dict[str, str] = {}
    """Values of Setting objects at their creation, other than Longhorn's defaults."""

    default_disk_size: str = "100Gi"
    """Of disks an administrator adds to a Longhorn node without telling their size."""

    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Objects of one kind handled at a time; each decision is taken at one go all the same."""

    @property
    def places(self) -> bool:
        """Whether the simulator itself gives replicas their place."""
        return self.placement and not self.disk_schedules

    def checked(self) -> Config:
        """This configuration, if it makes sense.

        Raises:
            ConfigError: a span ends before it begins, or a size is none
        """
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, tuple) and value[0] > value[1]:
                raise ConfigError(f"{name}: {list(value)} ends before it begins; write [least, most] seconds")
        try:
            parse_bytes(self.default_disk_size)
        except QuantityError as error:
            raise ConfigError(f"default_disk_size: {error}") from error
        return self


def load(path: Path | None) -> Config:
    """The configuration in a YAML file; without a file, the defaults.

    Raises:
        ConfigError: the file cannot be read, or holds something else
    """
    if path is None:
        return Config()
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is no YAML: {' '.join(str(error).split())}") from error
    try:
        return msgspec.convert(raw or {}, Config).checked()
    except msgspec.ValidationError as error:
        problem, _, key = str(error).partition(" - at `$.")
        where = key.rstrip("`")
        raise ConfigError(": ".join(part for part in (str(path), where, problem) if part)) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
