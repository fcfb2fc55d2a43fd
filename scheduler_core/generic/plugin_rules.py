"""Rules from outside the package: what a plugin defines, and how its rules are evaluated.

A plugin's rule is written like the package's own rules. A policy names it in the same way: by its name alone, or by the key of its
argument. Its argument has a type of its own, to which the policy's text is converted.

A plugin may raise, and return anything, so all of its code runs in `contain`: its import, the reading of its rules, the conversion
of arguments, and calls. What leaves `contain` is plain: rules with checked fields, exact texts and whole numbers. The argument is
the plugin's own value: it is passed on, and never hashed or compared. A call that does not return is waited for.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from scheduler_core import errors
from scheduler_core.convert.json_text import Path
from scheduler_core.generic.cluster_state import NodeInfo
from scheduler_core.generic.cycle_state import CycleState, UndecidableError
from scheduler_core.generic.predicates import Check
from scheduler_core.generic.priorities import MAX_SCORE
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES, RuleRegistry
from scheduler_core.structs import Struct

_Result = TypeVar("_Result")
_Rule = TypeVar("_Rule", "PredicatePlugin", "PriorityPlugin")

# What a module calls its rules, by kind of rule.
_SECTIONS = {PREDICATES.rule_kind: "PREDICATES", PRIORITIES.rule_kind: "PRIORITIES"}
# Half of what an Event's message holds.
_MAX_TEXT = 500
# A part of a path in msgspec's messages: `.field` or `[3]`.
_PATH_PART = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


class PluginError(errors.CoreError):
    """A plugin cannot be used; one line that names it."""


class ArgumentError(PluginError):
    """What a policy says does not fit the type of a plugin's argument."""

    def __init__(self, problem: str, path: Path = ()) -> None:
        super().__init__(problem)
        self.path = path  # the keys and indices from the argument to what is wrong in it


def contain(call: Callable[[], _Result], what: str) -> _Result:
    """Runs code of a plugin; `what` begins the message of the error. Raises a PluginError if the code raised anything,
    also `SystemExit`.
    """
    try:
        return call()
    except BaseException as error:
        raise PluginError(f"{what}: {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 # the class of the error may be the plugin's
        text = "it has no readable text"
    return _one_line(text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}")


def _one_line(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."
    return short if short.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)


class PredicatePlugin(Struct, frozen=True):
    """A predicate from outside the package."""

    # Its name in a policy; begins with a lower-case letter if the rule has an argument, otherwise with a capital.
    name: str
    # Takes the cycle state and the argument, returns a check of one node as in `predicates.py`.
    function: Callable[[CycleState, Any], Check]
    # The type of the argument, a dataclass or msgspec.Struct; None: the rule has no argument.
    argument: type | None = None
    eviction_helps: bool = False  # whether a refusal may end when pods are evicted


class PriorityPlugin(Struct, frozen=True):
    """A priority from outside the package."""

    name: str  # as in `PredicatePlugin`
    # Takes the cycle state, the argument and nodes; returns a score for each. Scores are cut off to whole numbers from
    # 0 to 10.
    function: Callable[[CycleState, Any, Sequence[NodeInfo]], Sequence[float]]
    argument: type | None = None  # as in `PredicatePlugin`


PluginRule = PredicatePlugin | PriorityPlugin


class Plugins(Struct, frozen=True):
    """The rules that plugins add, by name."""

    predicates: Mapping[str, PredicatePlugin] = {}
    priorities: Mapping[str, PriorityPlugin] = {}
    # The plugin of each rule, by kind of rule and name.
    origins: Mapping[tuple[str, str], str] = {}

    def add(self, origin: str, predicates: object, priorities: object) -> "Plugins":
        """Returns these rules and those of another plugin, which messages call `origin`. Raises a PluginError if a rule
        cannot be used, or its name is taken.
        """

        def call() -> Plugins:
            added_predicates = _by_name(predicates, PredicatePlugin, PREDICATES, self.origins)
            added_priorities = _by_name(priorities, PriorityPlugin, PRIORITIES, self.origins)
            origins = {(PREDICATES.rule_kind, name): origin for name in added_predicates}
            origins |= {(PRIORITIES.rule_kind, name): origin for name in added_priorities}
            return Plugins(
                {**self.predicates, **added_predicates},
                {**self.priorities, **added_priorities},
                {**self.origins, **origins},
            )

        return contain(call, origin)

    def texts(
        self, rule: str, cycle_state: CycleState, argument: object, node_infos: Sequence[NodeInfo]
    ) -> dict[str, str]:
        """Returns what a plugin's predicate says about each node, by name."""
        plugin = self.predicates[rule]

        def call() -> dict[str, str]:
            check = plugin.function(cycle_state, argument)
            return {node_info.node.name: _text(check(node_info)) for node_info in node_infos}

        return _run(rule, call)

    def scores(self, rule: str, cycle_state: CycleState, argument: object, node_infos: Sequence[NodeInfo]) -> list[int]:
        """Returns the scores of a plugin's priority, in the order of the nodes."""
        plugin = self.priorities[rule]

        def call() -> list[int]:
            scores = [
                min(MAX_SCORE, max(0, int(score))) for score in plugin.function(cycle_state, argument, node_infos)
            ]
            if len(scores) != len(node_infos):
                raise ValueError(f"{len(scores)} scores for {len(node_infos)} nodes")
            return scores

        return _run(rule, call)


def _run(rule: str, call: Callable[[], _Result]) -> _Result:
    try:
        return contain(call, f"plugin rule {rule} failed")
    except PluginError as error:
        raise UndecidableError(str(error)) from error


NO_PLUGINS = Plugins()


def convert_argument(raw: object, expected: type) -> object:
    """Returns an argument as a plugin's rule reads it. Raises an ArgumentError if it has another shape, or the plugin's
    type does not take it.
    """
    try:
        argument: object
        argument, names = contain(lambda: (msgspec.convert(raw, expected), _field_names(expected)), "cannot be read")
    except PluginError as error:
        if type(error.__cause__) is not msgspec.ValidationError:
            raise ArgumentError(str(error)) from error
        problem, _, path = str(error.__cause__).partition(" - at `$")
        location = path.rstrip("`")
        text = f"{location.lstrip('.')}: {problem}" if location else problem
        raise ArgumentError(_one_line(text), _path(location)) from error
    unknown = [key for key in raw if key not in names] if isinstance(raw, Mapping) else []
    if unknown:
        raise ArgumentError(f"{unknown[0]!r:.60} is not known; there are {', '.join(sorted(names))}", (unknown[0],))
    return argument


def _path(text: str) -> Path:
    """The path in a message of msgspec, up to the first part that it does not name (`[...]`)."""
    named = text.partition("[...]")[0]
    return tuple(key or int(index) for key, index in _PATH_PART.findall(named))


def _field_names(argument: object) -> frozenset[str]:
    """The fields of an argument as a policy writes them, or raises a PluginError if its type has none."""
    info = msgspec.inspect.type_info(argument)
    if not isinstance(info, msgspec.inspect.DataclassType | msgspec.inspect.StructType):
        raise PluginError("must be a dataclass or a msgspec.Struct")
    tag = getattr(info, "tag_field", None)
    return frozenset(entry.encode_name for entry in info.fields) | ({tag} if tag else set())


def _by_name(
    rules: object, expected: type[_Rule], registry: RuleRegistry[Any], origins: Mapping[tuple[str, str], str]
) -> dict[str, _Rule]:
    """Returns the rules that a plugin defines by name, or raises a PluginError if one cannot be used."""
    # `origins` are the plugins of the names that are taken.
    section = _SECTIONS[registry.rule_kind]
    if not isinstance(rules, Sequence):
        raise PluginError(f"{section} must be a list of rules, not a {type(rules).__name__}")
    by_name: dict[str, _Rule] = {}
    for index, rule in enumerate(rules):
        location = f"{section}[{index}]"
        # A subclass could compute its fields.
        if type(rule) is not expected:
            raise PluginError(f"{location}: {rule!r:.60} is not a {registry.rule_kind} plugin")
        if type(rule.name) is not str:
            raise PluginError(f"{location}: name: {rule.name!r:.60} is not a text")
        location += f" ({rule.name:.60})"
        fault = contain(partial(_fault, rule, registry), f"{location}: argument")
        if not fault and rule.name in by_name:
            fault = "two rules have this name"
        if not fault and (registry.rule_kind, rule.name) in origins:
            fault = f"{origins[registry.rule_kind, rule.name]} has a rule of this name"
        if fault:
            raise PluginError(f"{location}: {fault}")
        by_name[rule.name] = rule
    return by_name


def _fault(rule: PluginRule, registry: RuleRegistry[Any]) -> str:
    """Returns why a rule whose name is a text cannot be used, "" if it can."""
    if not callable(rule.function):
        return f"function: {rule.function!r:.60} cannot be called"
    if isinstance(rule, PredicatePlugin) and type(rule.eviction_helps) is not bool:
        return f"eviction_helps: {rule.eviction_helps!r:.60} is not True or False"
    name = rule.name
    with_argument = rule.argument is not None
    if with_argument:
        _field_names(rule.argument)
    if not name.isidentifier() or not name.isascii():
        return "a name has letters, digits and _, and begins with a letter"
    if name in registry.static or name in registry.configurable:
        return "a rule of this package has this name"
    if name.startswith("Longhorn"):
        return "names with Longhorn are of rules that read Longhorn's objects, which plugins cannot"
    if not with_argument and not name[0].isupper():
        return "the name of a rule without an argument begins with a capital"
    if with_argument and not name[0].islower():
        return "the name of a rule with an argument begins with a lower-case letter"
    return ""


def _text(answer: object) -> str:
    if not isinstance(answer, str):
        raise TypeError(f"a check returned {answer!r:.60}, expected a text")
    # A subclass may hash and compare as it likes.
    return _one_line(str.__str__(answer))
