"""Reads the shape of a policy file; the names in it are not interpreted here.

The rules are those of Go's JSON decoder as Kubernetes 1.1 used it: keys in any case, unknown keys ignored, null the same
as absent, whole numbers written as such. The key `version` is ignored; `kind` and `apiVersion` may be absent, but not
wrong. Two rules are added: a byte order mark, which some editors write, is skipped, and a file that is just null is
refused, because a policy was lost when it was written.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

import msgspec

from scheduler_core.generic.cycle_state import Argument
from scheduler_core.generic.plugin_rules import NO_PLUGINS, PluginError, PluginRule, Plugins, convert_argument
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES

_INT64: Final = 2**63
_MAX_SHOWN_LENGTH: Final = 60
_VERSION: Final = "v1"
_KIND: Final = "Policy"
_FILE_KEYS: Final = ("kind", "apiVersion", "version", "predicates", "priorities", "metadata")
# The configurable rules that take one label; the others take a list.
_ONE_LABEL: Final = frozenset(PRIORITIES.configurable)
_WITH_PRESENCE: Final = frozenset({"labelsPresence", "labelPreference"})

Json = Mapping[str, object]
_Value = TypeVar("_Value", str, int, bool, list[object], dict[str, object])


class PolicyStage(Enum):
    """A stage of reading a policy file.

    The values are the real scheduler's words.
    """

    DECODE = "decode"
    VALIDATE = "validate"
    BUILD = "fatal"


class WrongShapeError(Exception):
    """The text is no JSON, or a value has the wrong type."""


@contextmanager
def _collect(faults: list[str]) -> Iterator[None]:
    """Collects a fault of its block; reading goes on after it."""
    try:
        yield
    except WrongShapeError as error:
        faults.append(str(error))


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A predicate or priority as written.

    Attributes:
        location: how messages call it, ``priorities[1] (RackSpread)``
        weight: 0 if it is absent; predicates have none
        has_weight: whether a weight is written
        arguments: by the key in `argument`; None if there is no argument
        unknown_keys: keys of the argument that do not belong there
    """

    location: str
    name: str
    weight: int
    has_weight: bool
    arguments: Mapping[str, object] | None
    unknown_keys: tuple[str, ...] = ()


@dataclass(slots=True)
class PolicyDocument:
    """The entries of both sections, and warnings about ignored keys."""

    predicates: list[PolicyEntry] = field(default_factory=list)
    priorities: list[PolicyEntry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_policy_file(text: bytes, plugins: Plugins = NO_PLUGINS) -> PolicyDocument:
    """Reads the JSON of a policy.

    Raises:
        WrongShapeError: it is no JSON, or values have the wrong type; names each entry that is wrong
    """
    try:
        decoded = msgspec.json.decode(text.removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongShapeError(f"is not JSON: {error}") from error
    if decoded is None:
        raise WrongShapeError("the file: must be an object, not null")
    document = PolicyDocument()
    faults: list[str] = []
    top = _JsonObject(decoded, "the file", _FILE_KEYS, document.warnings)
    for key, expected in (("kind", _KIND), ("apiVersion", _VERSION)):
        with _collect(faults):
            _expect(top.text(key), expected, key)
    version = top.values.get("version")
    if version not in (None, _VERSION):
        document.warnings.append(f"version: {version!r:.60} is not looked at")
    for section, rules, entries in (
        ("predicates", _argument_rules(PREDICATES.configurable, plugins.predicates), document.predicates),
        ("priorities", _argument_rules(PRIORITIES.configurable, plugins.priorities), document.priorities),
    ):
        with _collect(faults):
            for index, raw in enumerate(top.list(section)):
                with _collect(faults):
                    entries.append(_entry(raw, section, index, rules, document.warnings))
    if faults:
        raise WrongShapeError("; ".join(faults))
    return document


def _argument_rules(configurable: Iterable[str], plugins: Mapping[str, PluginRule]) -> Mapping[str, type | None]:
    """The rules that take an argument, with its type if a plugin defines it."""
    types = {name: rule.argument for name, rule in plugins.items() if rule.argument is not None}
    return {**dict.fromkeys(configurable), **types}


def _expect(text: str, expected: str, key: str) -> None:
    if text not in ("", expected):
        raise WrongShapeError(f"{key}: {text!r:.60} is not {expected!r}")


def _entry(raw: object, section: str, index: int, rules: Mapping[str, type | None], warnings: list[str]) -> PolicyEntry:
    keys = ("name", "argument", "weight") if section == "priorities" else ("name", "argument")
    place = f"{section}[{index}]"
    # Read without warnings: the second reading has the name for their location.
    name = _JsonObject(raw, place, keys, []).text("name")
    location = f"{place} ({_shorten(name)})"
    entry = _JsonObject(raw, location, keys, warnings)
    raw_argument = entry.values.get("argument")
    weight = entry.integer("weight")
    has_weight = entry.values.get("weight") is not None
    if raw_argument is None:
        return PolicyEntry(location, name, weight, has_weight, None)
    argument = _JsonObject(raw_argument, f"{location}: argument", tuple(rules), warnings)
    arguments = {
        rule: _argument(argument, rule, warnings) if expected is None else _plugin_argument(argument, rule, expected)
        for rule, expected in rules.items()
        if argument.values.get(rule) is not None
    }
    unknown_keys = tuple(map(_shorten, argument.unknown_keys))
    return PolicyEntry(location, name, weight, has_weight, arguments, unknown_keys)


def _shorten(name: str) -> str:
    """Shortens and escapes a name for a one-line message."""
    short = name if len(name) <= _MAX_SHOWN_LENGTH else name[:_MAX_SHOWN_LENGTH] + "..."
    return short if short.isprintable() else repr(short)


def _argument(parent: _JsonObject, rule: str, warnings: list[str]) -> Argument:
    labels = "label" if rule in _ONE_LABEL else "labels"
    keys = (labels, "presence") if rule in _WITH_PRESENCE else (labels,)
    values = _JsonObject(parent.values[rule], f"{parent.location}: {rule}", keys, warnings)
    if values.unknown_keys and values.values.get(labels) is None:
        # Go reads it as a rule without labels, which treats all nodes alike; a misspelt key never means that.
        raise WrongShapeError(f"{values.location}: needs {labels}, and {values.unknown_keys[0]!r:.60} is not known")
    if rule in _ONE_LABEL:
        return Argument((values.text("label"),), values.flag("presence"))
    names = values.list("labels")
    if not all(name is None or isinstance(name, str) for name in names):
        raise WrongShapeError(f"{values.location}: labels: must be a list of texts")
    return Argument(tuple(str(name or "") for name in names), values.flag("presence"))


def _plugin_argument(parent: _JsonObject, rule: str, expected: type) -> object:
    try:
        return convert_argument(parent.values[rule], expected)
    except PluginError as error:
        raise WrongShapeError(f"{parent.location}: {rule}: {error}") from error


class _JsonObject:
    """The known keys of a JSON object, in any case.

    Other keys are ignored with a warning.
    """

    def __init__(self, raw: object, location: str, keys: Sequence[str], warnings: list[str]) -> None:
        self.location = location
        self.values: dict[str, object] = {}
        key_by_lowercase = {key.lower(): key for key in keys}
        unknown_keys = []
        for key, value in _check_type(raw, dict, location, "an object").items():
            if key.lower() in key_by_lowercase:
                self.values[key_by_lowercase[key.lower()]] = value
            else:
                unknown_keys.append(key)
        self.unknown_keys = tuple(unknown_keys)
        warnings.extend(f"{location}: {key!r:.60} is not known and is ignored" for key in unknown_keys)

    def text(self, key: str) -> str:
        """A text; "" if it is absent."""
        return _check_type(self.values.get(key), str, f"{self.location}: {key}", "a text")

    def flag(self, key: str) -> bool:
        """True or false; false if it is absent."""
        return _check_type(self.values.get(key), bool, f"{self.location}: {key}", "true or false")

    def list(self, key: str) -> list[object]:
        """A list; empty if it is absent."""
        return _check_type(self.values.get(key), list, f"{self.location}: {key}", "a list")

    def integer(self, key: str) -> int:
        """A whole number; 0 if it is absent."""
        number = _check_type(self.values.get(key), int, f"{self.location}: {key}", "a whole number")
        if isinstance(number, bool) or not -_INT64 <= number < _INT64:
            raise WrongShapeError(f"{self.location}: {key}: {number!r} is not a whole number of 64 bits")
        return number


def _check_type(raw: object, expected: type[_Value], location: str, description: str) -> _Value:
    if raw is None:
        return expected()
    if not isinstance(raw, expected):
        raise WrongShapeError(f"{location}: must be {description}, not {raw!r:.60}")
    return raw
