"""The extender's own settings (the proposal's three, under its names), from several sources, each of which may change while it runs.

Data flow: sources in the order of their precedence, each a mapping of texts → `effective` → one frozen value per setting with
where it came from. A value that does not parse is refused and named; the source's last good value stays, or, if it never had
one, the next source's counts. Nothing else of a source is looked at, so a ConfigMap may hold more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler_core.longhorn.settings import parse_bool

ENABLED: Final = "scheduler-extender-enabled"
POD_SCHEDULING_TIMEOUT: Final = "scheduler-extender-pod-scheduling-timeout"
NODE_RESERVATION_TIMEOUT: Final = "scheduler-extender-node-reservation-timeout"
DEFAULTS: Final = "defaults"
_LONGEST: Final = 3600


@dataclass(frozen=True, slots=True)
class Source:
    """Where settings may be written: a name for messages, and what is written there."""

    name: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """What counts now.

    Attributes:
        enabled: whether pods are judged at all
        pod_scheduling_timeout: seconds to wait for a pod's spec.nodeName; 0: no waiting
        node_reservation_timeout: seconds a node stays reserved for replicas not listed yet; 0: no reservation
        origins: by setting, the name of the source its value came from
        problems: values that were refused, as sentences
    """

    enabled: bool = False
    pod_scheduling_timeout: int = 5
    node_reservation_timeout: int = 5
    origins: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: tuple[str, ...] = ()


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _LONGEST:
        raise ValueError(f"a whole number of seconds from 0 to {_LONGEST}")
    return int(text)


_SETTINGS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    ENABLED: ("enabled", parse_bool),
    POD_SCHEDULING_TIMEOUT: ("pod_scheduling_timeout", _seconds),
    NODE_RESERVATION_TIMEOUT: ("node_reservation_timeout", _seconds),
}


class SettingsHistory:
    """The last good value of each setting in each source."""

    def __init__(self) -> None:
        self._good: dict[tuple[str, str], Any] = {}

    def effective(self, sources: Sequence[Source]) -> ExtenderSettings:
        """What counts when these are the sources, the first that has a setting first; remembers what was good."""
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        problems: list[str] = []
        for name, (attribute, parse) in _SETTINGS.items():
            origins[name] = DEFAULTS
            for source in sources:
                value = self._value(source, name, parse, problems)
                if value is not None:
                    values[attribute], origins[name] = value, source.name
                    break
        return ExtenderSettings(**values, origins=origins, problems=tuple(problems))

    def _value(self, source: Source, name: str, parse: Callable[[str], Any], problems: list[str]) -> Any:
        text = source.values.get(name)
        if text is None:
            self._good.pop((source.name, name), None)
            return None
        try:
            self._good[source.name, name] = parse(text)
        except ValueError as error:
            kept = self._good.get((source.name, name))
            instead = "its next source counts" if kept is None else f"{kept} stays"
            problems.append(f"{source.name}: {name}: {text[:64]!r} is not {error}; {instead}")
        return self._good.get((source.name, name))
