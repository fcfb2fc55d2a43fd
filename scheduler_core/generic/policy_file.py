"""The shape of a policy file, before anybody asks what its names mean.

Go's rules for JSON, as Kubernetes 1.1 had them: keys in any case, unknown keys ignored, null the same as absent, whole numbers
written as such. `version` is a key nobody reads; `kind` and `apiVersion` may be absent, but not wrong. Beyond these rules a byte
order mark, which some editors write, is skipped, and a file that is just null is refused: whoever wrote it has lost a policy.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

import msgspec

from scheduler_core.generic.cycle_state import Argument
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES

_INT64: Final = 2**63
_SHOWN: Final = 60
_VERSION: Final = "v1"
_KIND: Final = "Policy"
_FILE_KEYS: Final = ("kind", "apiVersion", "version", "predicates", "priorities", "metadata")
# The configurable rules that take one label; the others take a list.
_ONE_LABEL: Final = frozenset(PRIORITIES.configurable)
_WITH_PRESENCE: Final = frozenset({"labelsPresence", "labelPreference"})

Json = Mapping[str, object]
_Kind = TypeVar("_Kind", str, int, bool, list[object], dict[str, object])


class Problem(Enum):
    """The stage of reading a policy that found a fault; the values are the real scheduler's words for them."""

    DECODE = "decode"
    VALIDATE = "validate"
    BUILD = "fatal"


class WrongShapeError(Exception):
    """The text is no JSON, or something in it has the wrong type."""


@contextmanager
def _noted(faults: list[str]) -> Iterator[None]:
    """What is wrong is written down, and the rest is read too."""
    try:
        yield
    except WrongShapeError as error:
        faults.append(str(error))


@dataclass(frozen=True, slots=True)
class Entry:
    """A predicate or priority as written.

    Attributes:
        where: how messages call it, ``priorities[1] (RackSpread)``
        weight: 0 where it is absent; predicates have none
        weighed: whether a weight is written
        arguments: by the key in `argument`; None where there is no argument
        strange: keys of the argument that do not belong there
    """

    where: str
    name: str
    weight: int
    weighed: bool
    arguments: Mapping[str, Argument] | None
    strange: tuple[str, ...] = ()


@dataclass(slots=True)
class PolicyFile:
    """The entries of both sections in order, and what was ignored."""

    predicates: list[Entry] = field(default_factory=list)
    priorities: list[Entry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_policy_file(text: bytes) -> PolicyFile:
    """Reads the JSON of a policy.

    Raises:
        WrongShapeError: it is no JSON, or values have the wrong type; names every entry that is wrong
    """
    try:
        decoded = msgspec.json.decode(text.removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongShapeError(f"is not JSON: {error}") from error
    if decoded is None:
        raise WrongShapeError("the file: must be an object, not null")
    file, faults = PolicyFile(), list[str]()
    top = _Object(decoded, "the file", _FILE_KEYS, file.warnings)
    for key, wanted in (("kind", _KIND), ("apiVersion", _VERSION)):
        with _noted(faults):
            _expect(top.text(key), wanted, key)
    version = top.values.get("version")
    if version not in (None, _VERSION):
        file.warnings.append(f"version: {version!r:.60} is not looked at")
    for section, rules, entries in (
        ("predicates", PREDICATES, file.predicates),
        ("priorities", PRIORITIES, file.priorities),
    ):
        with _noted(faults):
            for index, raw in enumerate(top.list(section)):
                with _noted(faults):
                    entries.append(_entry(raw, section, index, tuple(rules.configurable), file.warnings))
    if faults:
        raise WrongShapeError("; ".join(faults))
    return file


def _expect(found: str, wanted: str, key: str) -> None:
    if found not in ("", wanted):
        raise WrongShapeError(f"{key}: {found!r:.60} is not {wanted!r}")


def _entry(raw: object, section: str, index: int, kinds: Sequence[str], warnings: list[str]) -> Entry:
    keys = ("name", "argument", "weight") if section == "priorities" else ("name", "argument")
    place = f"{section}[{index}]"
    named = _Object(raw, place, keys, []).text("name")
    where = f"{place} ({_shown(named)})"
    entry = _Object(raw, where, keys, warnings)
    argument = entry.values.get("argument")
    weight, weighed = entry.whole("weight"), entry.values.get("weight") is not None
    if argument is None:
        return Entry(where, named, weight, weighed, None)
    given = _Object(argument, f"{where}: argument", kinds, warnings)
    arguments = {kind: _argument(given, kind, warnings) for kind in kinds if given.values.get(kind) is not None}
    return Entry(where, named, weight, weighed, arguments, tuple(map(_shown, given.strange)))


def _shown(name: str) -> str:
    """A name in a message, which is one line: cut where it is long, escaped where it is odd."""
    short = name if len(name) <= _SHOWN else name[:_SHOWN] + "..."
    return short if short.isprintable() else repr(short)


def _argument(given: _Object, kind: str, warnings: list[str]) -> Argument:
    labels = "label" if kind in _ONE_LABEL else "labels"
    keys = (labels, "presence") if kind in _WITH_PRESENCE else (labels,)
    values = _Object(given.values[kind], f"{given.where}: {kind}", keys, warnings)
    if values.strange and values.values.get(labels) is None:
        # Go reads it as a rule without labels, which tells no nodes apart; nobody who misspells a key means that.
        raise WrongShapeError(f"{values.where}: needs {labels}, and {values.strange[0]!r:.60} is not known")
    if kind in _ONE_LABEL:
        return Argument((values.text("label"),), values.flag("presence"))
    names = values.list("labels")
    if not all(name is None or isinstance(name, str) for name in names):
        raise WrongShapeError(f"{values.where}: labels: must be a list of texts")
    return Argument(tuple(str(name or "") for name in names), values.flag("presence"))


class _Object:
    """A JSON object by its known keys, whatever case they are written in; others are ignored with a warning."""

    def __init__(self, raw: object, where: str, keys: Sequence[str], warnings: list[str]) -> None:
        self.where = where
        self.values: dict[str, object] = {}
        known = {key.lower(): key for key in keys}
        strange = []
        for key, value in _typed(raw, dict, where, "an object").items():
            if key.lower() in known:
                self.values[known[key.lower()]] = value
            else:
                strange.append(key)
        self.strange = tuple(strange)
        warnings.extend(f"{where}: {key!r:.60} is not known and is ignored" for key in strange)

    def text(self, key: str) -> str:
        """A text; "" where it is absent."""
        return _typed(self.values.get(key), str, f"{self.where}: {key}", "a text")

    def flag(self, key: str) -> bool:
        """True or false; false where it is absent."""
        return _typed(self.values.get(key), bool, f"{self.where}: {key}", "true or false")

    def list(self, key: str) -> list[object]:
        """A list; empty where it is absent."""
        return _typed(self.values.get(key), list, f"{self.where}: {key}", "a list")

    def whole(self, key: str) -> int:
        """A whole number; 0 where it is absent."""
        found = _typed(self.values.get(key), int, f"{self.where}: {key}", "a whole number")
        if isinstance(found, bool) or not -_INT64 <= found < _INT64:
            raise WrongShapeError(f"{self.where}: {key}: {found!r} is not a whole number of 64 bits")
        return found


def _typed(raw: object, kind: type[_Kind], where: str, what: str) -> _Kind:
    if raw is None:
        return kind()
    if not isinstance(raw, kind):
        raise WrongShapeError(f"{where}: must be {what}, not {raw!r:.60}")
    return raw
