"""The extender's own settings, merged from several sources, each of which may change at run time.

They are the proposal's three settings, under its names, whether refusals are enforced, and the placement guard's mode.

Data flow: sources in the order of their precedence, each a mapping of texts → `SettingsHistory.merge` → one frozen
value per setting and the source it came from. A value that does not parse is refused and named; the source's last good
value stays, or, if it never had one, the next source's value counts, and without one the value as installed: a typing
error switches nothing off. A key that begins like a setting and is none is refused, too. Other keys of a source are
ignored, so a ConfigMap may hold more.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from scheduler_core.longhorn.settings import parse_bool
from scheduler_core.model.installation import ENABLED, ENFORCEMENT
from scheduler_core.structs import Struct

POD_SCHEDULING_TIMEOUT = "scheduler-extender-pod-scheduling-timeout"
NODE_RESERVATION_TIMEOUT = "scheduler-extender-node-reservation-timeout"
PLACEMENT_GUARD = "placement-guard"
GUARD_OTHER_NODES = "placement-guard-other-nodes"
DEFAULTS = "defaults"
INSTALLED = "the value as installed"
_PREFIXES = ("scheduler-extender-", PLACEMENT_GUARD)
_MAX_SECONDS = 3600


class Enforcement(StrEnum):
    """What happens to a refusal.

    ENFORCE: kube-scheduler gets it. OBSERVE: kube-scheduler gets the answer that every node fits; refusals are counted and logged,
    so that an administrator sees what enforcing would change.
    """

    ENFORCE = "enforce"
    OBSERVE = "observe"


class GuardMode(StrEnum):
    """What the placement guard does with Longhorn's placements.

    OFF: it is not asked. OBSERVE: it decides, counts and logs, and leaves every placement as Longhorn chose. ENFORCE: it changes those
    that would break the plan.
    """

    OFF = "off"
    OBSERVE = "observe"
    ENFORCE = "enforce"


class SettingsSource(Struct, frozen=True):
    """A place where settings may be written, such as a ConfigMap; messages name it by its `name`."""

    name: str
    values: Mapping[str, str]


class ExtenderSettings(Struct, frozen=True):
    """The settings in force."""

    enabled: bool = False  # whether pods are evaluated at all
    pod_scheduling_timeout: int = 5  # seconds to wait for a pod's spec.nodeName; 0: no waiting
    node_reservation_timeout: int = 5  # seconds a node stays reserved for replicas not listed yet; 0: no reservation
    enforcement: Enforcement = Enforcement.ENFORCE  # what happens to a refusal
    placement_guard: GuardMode = GuardMode.OFF
    guard_other_nodes: bool = False  # whether it may move a replica that no pod needs on its node to another node
    # By setting, the name of the source its value came from.
    origins: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()  # one sentence per refused value

    @property
    def observes(self) -> bool:
        return self.enforcement is Enforcement.OBSERVE


def _parse_seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _MAX_SECONDS:
        raise ValueError(f"a whole number of seconds from 0 to {_MAX_SECONDS}")
    return int(text)


def _word_parser(words: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(text: str) -> StrEnum:
        try:
            return words(text)
        except ValueError as error:
            raise ValueError(f"one of {', '.join(words)}") from error

    return parse


_SETTINGS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    ENABLED: ("enabled", parse_bool),
    POD_SCHEDULING_TIMEOUT: ("pod_scheduling_timeout", _parse_seconds),
    NODE_RESERVATION_TIMEOUT: ("node_reservation_timeout", _parse_seconds),
    ENFORCEMENT: ("enforcement", _word_parser(Enforcement)),
    PLACEMENT_GUARD: ("placement_guard", _word_parser(GuardMode)),
    GUARD_OTHER_NODES: ("guard_other_nodes", parse_bool),
}


# What manifests/base and the chart write into the ConfigMap.
_INSTALLED_VALUES = ExtenderSettings(enabled=True, placement_guard=GuardMode.ENFORCE)


class SettingsHistory:
    """The last good value of each setting and source."""

    def __init__(self) -> None:
        self._good: dict[tuple[str, str], Any] = {}

    def merge(self, sources: Sequence[SettingsSource]) -> ExtenderSettings:
        """Returns the settings in force, each from the first source that has a value for it. A value that cannot be
        used does not replace the last good one of its source.
        """
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        problems: list[str] = []
        for source in sources:
            for key in source.values:
                if key not in _SETTINGS and key.startswith(_PREFIXES):
                    close = get_close_matches(key, _SETTINGS, n=1, cutoff=0.85)
                    meant = f", {close[0]} is meant?" if close else ""
                    problems.append(f"{source.name}: {key[:64]}: there is no such setting{meant}")
        for name, (attribute, parse) in _SETTINGS.items():
            origins[name] = DEFAULTS
            if any(name in source.values for source in sources):
                values[attribute] = getattr(_INSTALLED_VALUES, attribute)
                origins[name] = INSTALLED
            for source in sources:
                text = source.values.get(name)
                last_good = self._good.pop((source.name, name), None)
                if text is None:
                    continue
                value = last_good
                try:
                    value = parse(text)
                except ValueError as error:
                    instead = f"the next source counts, or {INSTALLED}" if value is None else f"{value} stays"
                    problems.append(f"{source.name}: {name}: {text[:64]!r} is not {error}; {instead}")
                if value is not None:
                    self._good[source.name, name] = value
                    values[attribute] = value
                    origins[name] = source.name
                    break
        return ExtenderSettings(**values, origins=origins, problems=tuple(problems))
