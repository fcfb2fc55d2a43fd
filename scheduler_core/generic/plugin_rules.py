"""Rules from outside the package: what a plugin defines, and how its rules are evaluated.

A plugin's rule is written as the package's own rules are, and named in a policy in the same way: by its name alone, or by the key of
its argument. Its argument has a type of its own, to which the policy's text is converted.

A plugin may raise, and return anything. Each of its calls is passed to a `RunPlugin`, which a program may replace by one that also
gives up a call that does not return. Whatever fails is an `UndecidableError` that names the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import msgspec

from scheduler_core.cooperative import Cooperative
from scheduler_core.errors import CoreError
from scheduler_core.generic.cycle_state import CycleState, UndecidableError
from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.generic.predicates import Check
from scheduler_core.generic.priorities import MAX_SCORE
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES, RuleRegistry

_Result = TypeVar("_Result")
_Function = TypeVar("_Function")


class PluginError(CoreError):
    """A plugin cannot be used; names it."""


@dataclass(frozen=True, slots=True)
class PredicatePlugin:
    """A predicate from outside the package.

    Attributes:
        name: its name in a policy; begins with a lower-case letter if the rule has an argument, otherwise with a capital
        function: takes the cycle state and the argument, returns a check of one node as in `predicates.py`
        argument: the type of the argument, a dataclass or msgspec.Struct; None: the rule has no argument
        eviction_helps: whether a refusal may end when pods are evicted
    """

    name: str
    function: Callable[[CycleState, Any], Check]
    argument: type | None = None
    eviction_helps: bool = False


@dataclass(frozen=True, slots=True)
class PriorityPlugin:
    """A priority from outside the package.

    Attributes:
        name, argument: as in `PredicatePlugin`
        function: takes the cycle state, the argument and nodes; returns a score for each. Scores are cut off to whole numbers from 0 to 10
    """

    name: str
    function: Callable[[CycleState, Any, Sequence[NodeInfo]], Sequence[float]]
    argument: type | None = None


PluginRule = PredicatePlugin | PriorityPlugin


class RunPlugin(Protocol):
    """Calls a plugin."""

    def __call__(self, rule: str, call: Callable[[], _Result], /) -> Cooperative[_Result]:
        """Returns the result of a call to a plugin's rule.

        Raises:
            UndecidableError: the call failed
        """


def run_directly(rule: str, call: Callable[[], _Result]) -> Cooperative[_Result]:
    """Calls a plugin; one that does not return is waited for.

    Raises:
        UndecidableError: it raised
    """
    yield
    try:
        return call()
    except Exception as error:  # a plugin may raise anything
        raise undecidable(rule, error) from error


def undecidable(rule: str, error: BaseException) -> UndecidableError:
    """The error about a plugin's rule that raised."""
    return UndecidableError(f"plugin rule {rule} failed: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Plugins:
    """The rules that plugins add, by name."""

    predicates: Mapping[str, PredicatePlugin] = field(default_factory=dict)
    priorities: Mapping[str, PriorityPlugin] = field(default_factory=dict)
    run: RunPlugin = run_directly

    @classmethod
    def of(
        cls, predicates: Iterable[PredicatePlugin], priorities: Iterable[PriorityPlugin], run: RunPlugin = run_directly
    ) -> Plugins:
        """The given rules.

        Raises:
            PluginError: a name is not allowed, or taken
        """
        return cls(_by_name(predicates, PREDICATES), _by_name(priorities, PRIORITIES), run)

    def predicate_registry(self) -> RuleRegistry[Any]:
        """The package's predicates and those of plugins."""
        return _extend(PREDICATES, self.predicates)

    def priority_registry(self) -> RuleRegistry[Any]:
        """The package's priorities and those of plugins."""
        return _extend(PRIORITIES, self.priorities)

    def texts(
        self, rule: str, cycle_state: CycleState, argument: object, node_infos: Sequence[NodeInfo]
    ) -> Cooperative[dict[str, str]]:
        """Returns what a plugin's predicate says about each node, by name.

        Raises:
            UndecidableError: the plugin failed
        """
        plugin = self.predicates[rule]

        def call() -> dict[str, str]:
            check = plugin.function(cycle_state, argument)
            return {node_info.node.name: _text(check(node_info)) for node_info in node_infos}

        return (yield from self.run(rule, call))

    def scores(
        self, rule: str, cycle_state: CycleState, argument: object, node_infos: Sequence[NodeInfo]
    ) -> Cooperative[list[int]]:
        """Returns the scores of a plugin's priority, in the order of the nodes.

        Raises:
            UndecidableError: the plugin failed
        """
        plugin = self.priorities[rule]

        def call() -> list[int]:
            scores = [
                min(MAX_SCORE, max(0, int(score))) for score in plugin.function(cycle_state, argument, node_infos)
            ]
            if len(scores) != len(node_infos):
                raise ValueError(f"{len(scores)} scores for {len(node_infos)} nodes")
            return scores

        return (yield from self.run(rule, call))


NO_PLUGINS: Final = Plugins()


def convert_argument(raw: object, expected: type) -> object:
    """Returns an argument as a plugin's rule reads it.

    Raises:
        PluginError: it has another shape; names the field
    """
    try:
        argument: object = msgspec.convert(raw, expected)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        field_name = path.rstrip("`").lstrip(".")
        raise PluginError(f"{field_name}: {problem}" if field_name else problem) from error
    known = {entry.encode_name for entry in msgspec.inspect.type_info(expected).fields}  # type: ignore[attr-defined]
    unknown = [key for key in raw if key not in known] if isinstance(raw, Mapping) else []
    if unknown:
        raise PluginError(f"{unknown[0]!r:.60} is not known; there are {', '.join(sorted(known))}")
    return argument


def _by_name(rules: Iterable[_Function], registry: RuleRegistry[Any]) -> dict[str, _Function]:
    by_name: dict[str, _Function] = {}
    for rule in rules:
        if not isinstance(rule, PredicatePlugin if registry is PREDICATES else PriorityPlugin):
            raise PluginError(f"{rule!r:.60} is not a {registry.rule_kind} plugin")
        fault = _name_fault(rule, registry)
        if fault or rule.name in by_name:
            raise PluginError(f"{registry.rule_kind} {rule.name!r:.60}: {fault or 'two plugins have this name'}")
        by_name[rule.name] = rule
    return by_name


def _name_fault(rule: PluginRule, registry: RuleRegistry[Any]) -> str:
    """Returns why a rule cannot have its name, "" if it can."""
    if not rule.name.isidentifier() or not rule.name.isascii():
        return "a name has letters, digits and _, and begins with a letter"
    if rule.name in registry.static or rule.name in registry.configurable:
        return "a rule of this package has this name"
    if rule.name.startswith("Longhorn"):
        return "names with Longhorn are of rules that read Longhorn's objects, which plugins cannot"
    if rule.argument is None and not rule.name[0].isupper():
        return "the name of a rule without an argument begins with a capital"
    if rule.argument is not None and not rule.name[0].islower():
        return "the name of a rule with an argument begins with a lower-case letter"
    return ""


def _extend(registry: RuleRegistry[Any], plugins: Mapping[str, Any]) -> RuleRegistry[Any]:
    static = {name: rule.function for name, rule in plugins.items() if rule.argument is None}
    configurable = {name: rule.function for name, rule in plugins.items() if rule.argument is not None}
    return replace(
        registry,
        static={**registry.static, **static},
        configurable={**registry.configurable, **configurable},
    )


def _text(answer: object) -> str:
    if not isinstance(answer, str):
        raise TypeError(f"a check returned {answer!r:.60}, expected a text")
    return answer
