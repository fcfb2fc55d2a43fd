"""The simulator's configuration: delays, Longhorn's settings, and disabled features. docs/simulator.md has it as a table."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.model.quantity import parse_bytes

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Delay = tuple[Seconds | tuple[Seconds, ...], ...]
"""The quantiles of a delay: pairs of a fraction and the seconds within which that fraction of all delays ends, from 0 to 1, with straight
lines between them. `(least, most)` is short for `((0, least), (1, most))`."""


class ConfigError(CoreError):
    """The configuration cannot be read; names the file and the key."""


PRESETS: dict[str, dict[str, Any]] = {
    "measured": {},
    "throttled": {
        "status_lag": [[0, 0], [0.5, 0.084], [0.9, 0.541], [1, 0.939]],
        "freed_lag": [[0, 1.3], [0.5, 2.7], [1, 4.6]],
    },
}
"""The keys that differ from the defaults in a file that names a preset; the file's own keys come first."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole configuration; every default suits tests."""

    preset: Literal["measured", "throttled"] = "measured"
    """Whether Longhorn's lags are those of its client as it is, or throttled to 50 calls a second."""

    seed: int = 1
    """Seeds all randomness: equal seeds and equal events give equal decisions."""

    provision_seconds: Delay = (0.3, 0.6)
    """From the decision to provision a claim to the Longhorn volume."""

    publish_seconds: Delay = (0.1, 0.11)
    """From the start of a publish call to its request at the Longhorn volume (spec.nodeID).

    The requests of one pod's volumes are milliseconds apart (measured with Longhorn v1.12.1's control code).
    """

    publish_poll: Seconds = 2.0
    """How often a publish call looks whether its volume is attached. Longhorn's tickAttachDetach: 2."""

    publish_timeout: Seconds = 90.0
    """After how long a publish call ends with an error (measured with Longhorn v1.12.1's control code: 90)."""

    attach_workers: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10
    """How many publish calls are in progress at the same time. external-attacher's --worker-threads: 10."""

    attach_seconds: Delay = (0.2, 0.5)
    """From the start of the last replica to the attached volume."""

    detach_seconds: Delay = (0.1, 0.3)
    """From the request to the detached volume."""

    start_seconds: Delay = (0.1, 0.3)
    """From the placement, or attachment, of a replica to its running process."""

    rebuild_seconds: Delay = (1.0, 2.0)
    """A replica's rebuild, without the time its data takes."""

    rebuild_bytes_per_second: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How fast data is copied in a rebuild; 0: data takes no time."""

    expand_seconds: Delay = (0.1, 0.3)
    """From the growth of a claim to that of its Longhorn volume."""

    delete_seconds: Delay = (0.2, 0.5)
    """From the deletion of a replica to the end of its object, which frees its space."""

    backing_image_seconds: Delay = (0.5, 1.0)
    """The time to copy a backing image to a disk."""

    status_period: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 1.0
    """How often the status of each Longhorn node is written. Longhorn: 30."""

    placement_seconds: Delay = ((0.0, 0.005), (0.25, 0.022), (0.5, 0.095), (0.75, 0.413), (1.0, 1.8))
    """From the moment a replica can be placed to its placement; about even on a logarithmic scale.

    Not for a new volume's first replicas. Measured with Longhorn v1.12.1's control code: two placements of one pod are 0.006 s to 1.8 s
    apart, two thirds of them less than 0.5 s.
    """

    status_lag: Delay = ((0.0, 0.0), (0.5, 0.047), (0.9, 0.16), (1.0, 0.441))
    """From a replica's placement or growth to the status of its node that shows it, drawn for each change.

    Measured with Longhorn v1.12.1's control code (136 placements), but for the shortest, which is assumed.
    """

    freed_lag: Delay = (0.093, 0.83)
    """From the end of a replica's object to the status of its node that no longer counts it.

    Measured with Longhorn v1.12.1's control code: its shortest and longest.
    """

    capacity_period: Annotated[float, msgspec.Meta(gt=0, le=86400)] | Literal["none"] = 1.0
    """How often CSIStorageCapacity objects are written; none: never. The external provisioner: 60."""

    storage_capacity: bool = True
    """CSIDriver.spec.storageCapacity: whether kube-scheduler reads CSIStorageCapacity objects."""

    schedule_retry: Seconds = 30.0
    """How soon the placement of a replica is tried again. Longhorn: 30."""

    strict_local_retry: Seconds = 30.0
    """How soon the placement of a replica that must be on one node is tried again. Longhorn: 30."""

    resync_period: Seconds = 30.0
    """How often Longhorn's informers hand out every object again: the latest moment at which a volume is tried again after the API server
    refused its writes four times in a row. Longhorn: 30."""

    attach_retry: Seconds = 1.0
    """How soon a failed publish call is repeated, twice as late after each failure.

    Measured: 1, 2, 4 s. external-attacher's --retry-interval-start: 1.
    """

    attach_retry_limit: Seconds = 300.0
    """The longest pause before a publish call is repeated. external-attacher's --retry-interval-max: 300."""

    stuck_after: Seconds = 10.0
    """After how long a pod that has a node but not its volumes counts as stuck."""

    write_bytes_per_second: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How fast the data that `simulator/write` requests is written; 0: at once."""

    placement: bool = True
    """Whether the simulator places replicas on a node and a disk; off: another process does."""

    disk_schedules: bool = False
    """Whether DiskSchedules reserve every byte: their controllers place replicas and copies, and nothing starts, grows or is
    copied before its disk has granted it."""

    known_settings_extra: list[str] = []
    """Setting names that are accepted in addition to Longhorn's."""

    settings: dict[str, str] = {}
    """Values of Setting objects at their creation, where they differ from Longhorn's defaults."""

    default_disk_size: str = "100Gi"
    """The size of disks that an administrator adds to a Longhorn node and `simulator/disks` does not list."""

    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """How many objects of one kind are handled at the same time; a decision itself is never interrupted."""

    @property
    def places_replicas(self) -> bool:
        return self.placement and not self.disk_schedules

    def validate(self) -> "Config":
        """Returns this configuration if it is valid."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, tuple) and not _is_delay(value):
                raise ConfigError(
                    f"{name}: {msgspec.json.encode(value).decode()} is neither [least, most] seconds nor rising pairs of a fraction "
                    "and seconds, the first fraction 0 and the last 1"
                )
        try:
            parse_bytes(self.default_disk_size)
        except QuantityError as error:
            raise ConfigError(f"default_disk_size: {error}") from error
        return self


def _is_delay(delay: Delay) -> bool:
    if {len(each) if isinstance(each, tuple) else 0 for each in delay} not in ({0}, {2}):
        return False
    points = quantiles(delay)
    return [points[0][0], points[-1][0]] == [0, 1] and all(
        before[0] < after[0] and before[1] <= after[1] for before, after in pairwise(points)
    )


def quantiles(delay: Delay) -> list[tuple[float, float]]:
    return [(each[0], each[1]) if isinstance(each, tuple) else (index, each) for index, each in enumerate(delay)]


def draw_seconds(delay: Delay, rng: random.Random) -> float:
    fraction = rng.random()
    points = quantiles(delay)
    (low, least), (high, most) = next(pair for pair in pairwise(points) if fraction <= pair[1][0])
    return least + (most - least) * (fraction - low) / (high - low)


def load(path: Path | None) -> Config:
    """Reads a YAML file; without one, returns the defaults."""
    if path is None:
        return Config()
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is no YAML: {' '.join(str(error).split())}") from error
    try:
        raw = raw or {}
        preset = PRESETS.get(str(raw.get("preset")), {}) if isinstance(raw, dict) else {}
        return msgspec.convert({**preset, **raw} if preset else raw, Config).validate()
    except msgspec.ValidationError as error:
        problem, _, key = str(error).partition(" - at `$.")
        where = key.rstrip("`")
        raise ConfigError(": ".join(part for part in (str(path), where, problem) if part)) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
