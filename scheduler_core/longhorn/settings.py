"""Longhorn's settings that decide about placement (longhorn-manager: types/setting.go), parsed once.

A setting that is missing takes Longhorn's default. A value that does not parse stops Longhorn only where it reads that
setting. So `Settings.read` keeps these faults by name, and the engine looks them up in Longhorn's order;
`Settings.parse` raises the first one.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from scheduler_core.errors import SettingError

AUTO_BALANCE_DISABLED = "disabled"
LEAST_EFFORT = "least-effort"
BEST_EFFORT = "best-effort"

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_INT64 = 2**63
_ENGINES = ("v1", "v2")

Parser = Callable[[str], Any]
Version = tuple[int, int, int]
_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})")
# The first release whose node controller makes no instance manager where `system-managed-components-node-selector` does not
# match the Kubernetes node, and in which a terminating v2 instance manager is not ready.
MANAGERS_FOLLOW_NODE_SELECTOR: Version = (1, 13, 0)
TERMINATING_V2_MANAGER_NOT_READY: Version = (1, 13, 0)


def parse_bool(text: str) -> bool:
    """Go's strconv.ParseBool.

    Raises:
        ValueError: the text is none of the twelve spellings
    """
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("a boolean")


def parse_int(text: str) -> int:
    """Go's strconv.ParseInt(text, 10, 64): an optional sign and ASCII digits, nothing else.

    Raises:
        ValueError: the text is no number, or does not fit 64 bits
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 32):
        raise ValueError("a whole number")
    value = int(text)
    if not -_INT64 <= value < _INT64:
        raise ValueError("a whole number of 64 bits")
    return value


def _per_engine(parser: Parser) -> Parser:
    """A parser of values by data engine (types.SettingDefinition.DataEngineSpecific)."""
    # The text is one value for both data engines, or a JSON object of texts by engine.

    def parse(text: str) -> dict[str, Any]:
        if not text.lstrip().startswith("{"):
            return dict.fromkeys(_ENGINES, parser(text))
        try:
            values = msgspec.json.decode(text.encode(), type=dict[str, str | bool | int])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError("a JSON object with a value by data engine") from error
        return {
            engine: parser(value if isinstance(value, str) else str(value).lower()) for engine, value in values.items()
        }

    return parse


def _in_range(lowest: int, highest: int | None = None) -> Parser:
    bounds = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"

    def parse(text: str) -> int:
        value = parse_int(text)
        if value < lowest or (highest is not None and value > highest):
            raise ValueError(f"a whole number {bounds}")
        return value

    return parse


def _one_of(*choices: str) -> Parser:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return text

    return parse


def _parse_keys(text: str) -> frozenset[str]:
    return frozenset(key.strip() for key in text.split(",") if key.strip())


def _parse_optional_bool(text: str) -> bool | None:
    return parse_bool(text) if text else None


def _parse_image(text: str) -> str | None:
    return text or None


def _parse_version(text: str) -> Version | None:
    """The numbers of a version; builds before a release count as the release."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match is not None else None


def _parse_node_selector(text: str) -> dict[str, str]:
    """Labels as `key:value`, separated by semicolons (types.UnmarshalNodeSelector)."""
    labels: dict[str, str] = {}
    for entry in text.split(";") if text.strip() else ():
        key, colon, value = entry.partition(":")
        if not colon or ":" in value:
            raise ValueError("labels as key:value, separated by semicolons")
        labels[key.strip()] = value.strip()
    return labels


def _setting(default: str, parser: Parser, accepted: Parser | None = None) -> Any:
    # `accepted` parses no more than what Longhorn lets an administrator set.
    value = parser(default)
    metadata = {"default": default, "parser": parser, "accepted": accepted or parser}
    if isinstance(value, dict):
        return field(default_factory=lambda: dict(value), metadata=metadata)
    return field(default=value, metadata=metadata)


_DRAIN_POLICIES = (
    "block-for-eviction",
    "block-for-eviction-if-contains-last-replica",
    "block-if-contains-last-replica",
    "allow-if-replica-is-stopped",
    "always-allow",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting a placement decision reads, named as in Longhorn, with its default."""

    replica_soft_anti_affinity: bool = _setting("false", parse_bool)  # whether replicas of a volume may share a node
    replica_zone_soft_anti_affinity: bool = _setting("true", parse_bool)  # whether they may share a zone
    replica_disk_soft_anti_affinity: bool = _setting("true", parse_bool)  # whether they may share a disk
    # Per cent of (maximum - reserved) that may be promised to replicas.
    storage_over_provisioning_percentage: int = _setting("100", parse_int, _in_range(0))
    # Per cent of the maximum that must stay available.
    storage_minimal_available_percentage: int = _setting("25", parse_int, _in_range(0, 100))
    # Per cent of the maximum that is reserved on a default disk Longhorn creates itself.
    storage_reserved_percentage_for_default_disk: int = _setting("30", parse_int, _in_range(0, 100))
    # Whether volumes without a selector may use tagged nodes, or tagged disks.
    allow_empty_node_selector_volume: bool = _setting("true", parse_bool)
    allow_empty_disk_selector_volume: bool = _setting("true", parse_bool)
    # Whether `kubectl cordon` makes a Longhorn node unschedulable.
    disable_scheduling_on_cordoned_node: bool = _setting("true", parse_bool)
    # How far replicas are spread again after the cluster changed; a volume may override it.
    replica_auto_balance: str = _setting(
        AUTO_BALANCE_DISABLED, _one_of(AUTO_BALANCE_DISABLED, LEAST_EFFORT, BEST_EFFORT)
    )
    # Per cent of use from which best-effort auto-balance sees a disk under pressure; 0 switches it off.
    replica_auto_balance_disk_pressure_percentage: int = _setting("90", parse_int)
    # Seconds a degraded volume waits for a failed replica before a new one is made.
    replica_replenishment_wait_interval: int = _setting("600", parse_int, _in_range(0))
    # Rebuilds at a time on one node; 0 stops replenishment, except a new volume's first replicas.
    concurrent_replica_rebuild_per_node_limit: int = _setting("5", parse_int, _in_range(0))
    # Whether a detached volume counts as scheduled once one of its replicas is.
    allow_volume_creation_with_degraded_availability: bool = _setting("true", parse_bool)
    # By data engine: whether a failed v2 replica may be reused.
    fast_replica_rebuild_enabled: Mapping[str, bool] = _setting('{"v1":"true","v2":"true"}', _per_engine(parse_bool))
    # By data engine: replicas of a volume that does not say how many.
    default_replica_count: Mapping[str, int] = _setting(
        '{"v1":"3","v2":"3"}', _per_engine(parse_int), _per_engine(_in_range(1, 20))
    )
    # Data locality of a volume that does not say which.
    default_data_locality: str = _setting("disabled", _one_of("disabled", "best-effort", "strict-local"))
    # Whether volumes of the engine can be created. None means unknown: then they can.
    v1_data_engine: bool | None = _setting("", _parse_optional_bool)
    v2_data_engine: bool | None = _setting("", _parse_optional_bool)
    # What `kubectl drain` does to replicas; only the block-for-eviction policies evict them.
    node_drain_policy: str = _setting("block-if-contains-last-replica", str, _one_of(*_DRAIN_POLICIES))
    csi_allowed_topology_keys: frozenset[str] = _setting("", _parse_keys)  # labels that a volume may be tied to
    # The engine image of volumes that name none, and the image a v1 instance manager must have to count. None means
    # unknown: then any image counts.
    default_engine_image: str | None = _setting("", _parse_image)
    default_instance_manager_image: str | None = _setting("", _parse_image)
    # Labels of the Kubernetes nodes on which instance managers run; none: on every node.
    system_managed_components_node_selector: Mapping[str, str] = _setting("", _parse_node_selector)
    # The installed version; rules that later versions have do not hold. None means unknown: then all of them hold.
    current_longhorn_version: tuple[int, int, int] | None = _setting("", _parse_version)

    # The settings that do not parse, by name; their fields hold the default.
    faults: Mapping[str, SettingError] = field(default_factory=dict[str, SettingError])

    @classmethod
    def read(cls, values: Mapping[str, str]) -> "Settings":
        """Settings from values by name; those that do not parse go to `faults`, and unknown names are ignored."""
        parsed: dict[str, Any] = {}
        faults: dict[str, SettingError] = {}
        for name in FIELDS_BY_SETTING.keys() & values.keys():
            try:
                parsed[FIELDS_BY_SETTING[name].name] = FIELDS_BY_SETTING[name].metadata["parser"](values[name])
            except ValueError as error:
                faults[name] = SettingError(name, values[name], str(error))
        return cls(**parsed, faults=faults)

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> "Settings":
        """Settings from values by name; unknown names are ignored.

        Raises:
            SettingError: a value does not parse; the first by name
        """
        settings = cls.read(values)
        for name in sorted(settings.faults):
            raise settings.faults[name]
        return settings

    def has_rule_since(self, version: Version) -> bool:
        return self.current_longhorn_version is None or self.current_longhorn_version >= version

    def first_fault(self, names: Iterable[str]) -> SettingError | None:
        """The first of `names` that does not parse, or None."""
        # It stops Longhorn when it reads the settings in this order.
        return next((self.faults[name] for name in names if name in self.faults), None) if self.faults else None


FIELDS_BY_SETTING = {entry.name.replace("_", "-"): entry for entry in fields(Settings) if entry.metadata}
"""The fields by the names of their settings."""


def check_new_value(name: str, value: str) -> None:
    """Returns if Longhorn's admission webhook accepts a setting's value (types.ValidateSetting). What Longhorn reads
    from a Setting that exists already may be more than this.

    Raises:
        SettingError: it refuses the value
        KeyError: no decision reads the setting
    """
    try:
        FIELDS_BY_SETTING[name].metadata["accepted"](value)
    except ValueError as error:
        raise SettingError(name, value, str(error)) from error
