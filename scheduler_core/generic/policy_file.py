"""Reads the shape of a policy file; the names in it are not interpreted here.

The rules are those of Go's JSON decoder as Kubernetes 1.1 used it: keys in any case, unknown keys ignored, null the same
as absent (a file that is just null is an empty policy), whole numbers written as such. The key `version` is ignored; `kind`
and `apiVersion` may be absent, but not wrong. Two rules are added: a byte order mark, which some editors write, is skipped, and
a key that is written twice is refused, because Go takes the last one, and the rules of the first are lost in silence.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TypeVar

import msgspec

from scheduler_core.convert.json_text import JsonPlaces, Path, describe_syntax_error, line_and_column
from scheduler_core.generic import cycle_state, rule_registry
from scheduler_core.generic.plugin_rules import NO_PLUGINS, ArgumentError, PluginRule, Plugins, convert_argument
from scheduler_core.structs import Struct

_INT64 = 2**63
_MAX_SHOWN_LENGTH = 60
_VERSION = "v1"
_KIND = "Policy"
_CONFIG_MAP = re.compile(rb"^kind: *[\"']?ConfigMap\b", re.M)
_IS_CONFIG_MAP = "is a ConfigMap; a policy file is the JSON in its data, mostly under the key policy.cfg"
_FILE_KEYS = ("kind", "apiVersion", "version", "predicates", "priorities", "metadata")
# The configurable rules that take one label; the others take a list.
_ONE_LABEL = frozenset(rule_registry.PRIORITIES.configurable)
_WITH_PRESENCE = frozenset({"labelsPresence", "labelPreference"})

_DESCRIPTIONS: Mapping[type, str] = {
    str: "a text", bool: "true or false", int: "a whole number", list: "a list", dict: "an object"
}  # fmt: skip
_Value = TypeVar("_Value", str, int, bool, list[object], dict[str, object])


class PolicyStage(Enum):
    """A stage of reading a policy file. The values are the real scheduler's words."""

    DECODE = "decode"
    VALIDATE = "validate"
    BUILD = "fatal"


class WrongShapeError(Exception):
    """The text is no JSON, or a value has the wrong type."""


@contextmanager
def _collect(faults: list[str]) -> Iterator[None]:
    try:
        yield
    except WrongShapeError as error:
        faults.append(str(error))


class PolicyEntry(Struct, frozen=True):
    """A predicate or priority as written."""

    location: str  # how messages call it, ``priorities[1] (RackSpread)``
    name: str
    weight: int  # 0 if it is absent; predicates have none
    has_weight: bool  # whether a weight is written
    arguments: Mapping[str, object] | None  # by the key in `argument`; None if there is no argument
    unknown_keys: tuple[str, ...] = ()  # keys of the argument that do not belong there
    place: str = ""  # line and column, in parentheses


class PolicyDocument(Struct):
    """The entries of both sections, and warnings about ignored keys."""

    predicates: list[PolicyEntry] = []
    priorities: list[PolicyEntry] = []
    warnings: list[str] = []


def read_policy_file(text: bytes, plugins: Plugins = NO_PLUGINS) -> PolicyDocument:
    """Reads the JSON of a policy. Raises a WrongShapeError if it is no JSON, or values have the wrong type; names each
    entry that is wrong.
    """
    text = text.removeprefix(BOM_UTF8)
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"is not JSON: {describe_syntax_error(text, error)}"
        raise WrongShapeError(_IS_CONFIG_MAP if _CONFIG_MAP.search(text) else problem) from error
    if isinstance(decoded, dict) and decoded.get("kind") == "ConfigMap":
        raise WrongShapeError(_IS_CONFIG_MAP)
    document = PolicyDocument()
    source = _Source(text.decode(), document.warnings)
    faults = source.duplicate_faults()
    top = _JsonObject(decoded, "the file", _FILE_KEYS, source, ())
    for key, expected in (("kind", _KIND), ("apiVersion", _VERSION)):
        with _collect(faults):
            text_of_key = top.read(key, str)
            if text_of_key not in ("", expected):
                raise WrongShapeError(f"{key}: {text_of_key!r:.60} is not {expected!r}{source.place((key,))}")
    version = top.values.get("version")
    if version not in (None, _VERSION):
        document.warnings.append(f"version: {version!r:.60} is not looked at")
    for section, rules, entries in (
        ("predicates", _argument_rules(rule_registry.PREDICATES.configurable, plugins.predicates), document.predicates),
        ("priorities", _argument_rules(rule_registry.PRIORITIES.configurable, plugins.priorities), document.priorities),
    ):
        with _collect(faults):
            for index, raw in enumerate(top.read(section, list)):
                with _collect(faults):
                    entries.append(_entry(raw, section, index, rules, source))
    if faults:
        raise WrongShapeError("; ".join(faults))
    return document


def _argument_rules(configurable: Iterable[str], plugins: Mapping[str, PluginRule]) -> Mapping[str, type | None]:
    types = {name: rule.argument for name, rule in plugins.items() if rule.argument is not None}
    return {**dict.fromkeys(configurable), **types}


def _entry(raw: object, section: str, index: int, rules: Mapping[str, type | None], source: "_Source") -> PolicyEntry:
    keys = ("name", "argument", "weight") if section == "priorities" else ("name", "argument")
    number = f"{section}[{index}]"
    path = (section, index)
    # Read without warnings: the second reading has the name for their location.
    name = _JsonObject(raw, number, keys, source.without_warnings(), path).read("name", str)
    location = f"{number} ({_shorten(name)})"
    entry = _JsonObject(raw, location, keys, source, path)
    raw_argument = entry.values.get("argument")
    weight = entry.read("weight", int)
    if isinstance(weight, bool) or not -_INT64 <= weight < _INT64:
        fault = f"{location}: weight: {weight!r} is not a whole number of 64 bits"
        raise WrongShapeError(fault + source.place((*path, "weight")))
    has_weight = entry.values.get("weight") is not None
    place = source.place(path)
    if raw_argument is None:
        return PolicyEntry(location, name, weight, has_weight, None, place=place)
    argument = _JsonObject(raw_argument, f"{location}: argument", tuple(rules), source, (*path, "argument"))
    arguments: dict[str, object] = {}
    for rule, expected in rules.items():
        raw_rule = argument.values.get(rule)
        try:
            if raw_rule is not None:
                arguments[rule] = (
                    convert_argument(raw_rule, expected) if expected else _argument(argument, rule, source)
                )
        except ArgumentError as error:
            wrong = source.place((*argument.path, rule, *error.path))
            raise WrongShapeError(f"{argument.location}: {rule}: {error}{wrong}") from error
    unknown_keys = tuple(map(_shorten, argument.unknown_keys))
    return PolicyEntry(location, name, weight, has_weight, arguments, unknown_keys, place)


def _shorten(name: str) -> str:
    short = name if len(name) <= _MAX_SHOWN_LENGTH else name[:_MAX_SHOWN_LENGTH] + "..."
    return short if short.isprintable() else repr(short)


def _argument(parent: "_JsonObject", rule: str, source: "_Source") -> cycle_state.Argument:
    labels = "label" if rule in _ONE_LABEL else "labels"
    keys = (labels, "presence") if rule in _WITH_PRESENCE else (labels,)
    values = _JsonObject(parent.values[rule], f"{parent.location}: {rule}", keys, source, (*parent.path, rule))
    if values.unknown_keys and values.values.get(labels) is None:
        # Go reads it as a rule without labels, which treats all nodes alike; a misspelt key never means that.
        fault = f"{values.location}: needs {labels}, and {values.unknown_keys[0]!r:.60} is not known"
        raise WrongShapeError(fault + source.place((*values.path, values.unknown_keys[0])))
    if rule in _WITH_PRESENCE and values.values.get(labels) and values.values.get("presence") is None:
        effect = (
            "nodes without the label are preferred"
            if rule in _ONE_LABEL
            else "nodes with one of the labels are refused"
        )
        warning = f"{values.location}: presence is missing and counts as false, so {effect}; write true or false"
        source.warnings.append(warning + source.place(values.path))
    if rule in _ONE_LABEL:
        return cycle_state.Argument((values.read("label", str),), values.read("presence", bool))
    names = values.read("labels", list)
    if not all(name is None or isinstance(name, str) for name in names):
        fault = f"{values.location}: labels: must be a list of texts"
        raise WrongShapeError(fault + source.place((*values.path, "labels")))
    return cycle_state.Argument(tuple(str(name or "") for name in names), values.read("presence", bool))


class _Source:
    def __init__(self, text: str, warnings: list[str], places: JsonPlaces | None = None) -> None:
        self._text = text
        self._places = JsonPlaces.of(text, str.lower) if places is None else places
        self.warnings = warnings

    def without_warnings(self) -> "_Source":
        return _Source(self._text, [], self._places)

    def place(self, path: Path) -> str:
        """Where a value is: `` (line 5, column 7)``."""
        lowercase = tuple(part.lower() if isinstance(part, str) else part for part in path)
        return f" ({line_and_column(self._text, self._places.offset(lowercase))})"

    def duplicate_faults(self) -> list[str]:
        faults = []
        for duplicate in self._places.duplicates:
            first, second = (line_and_column(self._text, offset) for offset in duplicate.offsets)
            keys = " and ".join(f"{_shorten(key)!r}" for key in duplicate.keys)
            parts = (f"[{part}]" if isinstance(part, int) else f".{_shorten(part)}" for part in duplicate.container)
            # Such as ``priorities[1].argument``.
            where = "".join(parts).removeprefix(".") or "the file"
            faults.append(f"{where}: {keys} are one key, written twice ({first}; {second})")
        return faults


class _JsonObject:
    """The known keys of a JSON object, in any case. Other keys are ignored with a warning."""

    def __init__(self, raw: object, location: str, keys: Sequence[str], source: _Source, path: Path) -> None:
        self.location = location
        self.path = path
        self._source = source
        self.values: dict[str, object] = {}
        key_by_lowercase = {key.lower(): key for key in keys}
        unknown_keys = []
        for key, value in self._check_type(raw, dict, path, location).items():
            if key.lower() in key_by_lowercase:
                self.values[key_by_lowercase[key.lower()]] = value
            else:
                unknown_keys.append(key)
        self.unknown_keys = tuple(unknown_keys)
        source.warnings.extend(f"{location}: {key!r:.60} is not known and is ignored" for key in unknown_keys)

    def read(self, key: str, expected: type[_Value]) -> _Value:
        """A value of this type; an empty one if it is absent."""
        return self._check_type(self.values.get(key), expected, (*self.path, key), f"{self.location}: {key}")

    def _check_type(self, raw: object, expected: type[_Value], path: Path, location: str) -> _Value:
        if raw is None:
            return expected()
        if not isinstance(raw, expected):
            wrong = f"must be {_DESCRIPTIONS[expected]}, not {raw!r:.60}"
            raise WrongShapeError(f"{location}: {wrong}{self._source.place(path)}")
        return raw
