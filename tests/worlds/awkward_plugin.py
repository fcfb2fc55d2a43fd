"""A plugin whose arguments and answers are of awkward types.

Each predicate refuses the nodes of a policy's list, each priority scores the length of a node's name. A rule is named after the type of
its argument.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from scheduler_core.generic.cluster_state import NodeInfo
from scheduler_core.generic.cycle_state import CycleState
from scheduler_core.generic.plugin_rules import PredicatePlugin, PriorityPlugin
from scheduler_core.generic.predicates import Check


@dataclass(frozen=True)
class FrozenList:
    """A frozen dataclass with a list."""

    names: list[str]


@dataclass(frozen=True)
class FrozenMap:
    """A frozen dataclass with a map."""

    names: list[str]
    weights: dict[str, int] = field(default_factory=dict)


@dataclass
class Plain:
    """A dataclass that is not frozen."""

    names: list[str]


class Struct(msgspec.Struct):
    """A msgspec.Struct."""

    names: list[str]


@dataclass(eq=False)
class Unfriendly:
    """A value that cannot be hashed, compared or printed."""

    names: list[str]

    def __hash__(self) -> int:
        raise RuntimeError("hashed")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __repr__(self) -> str:
        raise RuntimeError("printed")

    @property  # type: ignore[misc] # a plugin may define it so
    @property
    def __class__(self) -> type:
        raise RuntimeError("its class was read")


@dataclass
class RaisingInit:
    """A type whose initialisation raises."""

    names: list[str]

    def __post_init__(self) -> None:
        raise KeyError("first line\nsecond line")


@dataclass
class ExitingInit:
    """A type whose initialisation wants to end the process."""

    names: list[str]

    def __post_init__(self) -> None:
        sys.exit(3)


class Text(str):
    """A reason that cannot be hashed or compared."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise RuntimeError("hashed")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")


class UnreadableError(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise SystemExit(4)


def refuse(_: CycleState, argument: Any) -> Check:
    return lambda node_info: Text("a name\nof the list") if node_info.node.name in argument.names else ""


def score(_: CycleState, argument: Any, node_infos: Sequence[NodeInfo]) -> list[int]:
    return [10 if node_info.node.name in argument.names else 0 for node_info in node_infos]


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def call(*_: object) -> NoReturn:
        raise error

    return call


USABLE = ("frozenList", "frozenMap", "plain", "struct", "unfriendly")
_TYPES: dict[str, type] = {
    "frozenList": FrozenList,
    "frozenMap": FrozenMap,
    "plain": Plain,
    "struct": Struct,
    "unfriendly": Unfriendly,
    "raisingInit": RaisingInit,
    "exitingInit": ExitingInit,
}
_ERRORS: dict[str, BaseException] = {
    "Raises": ValueError("first line\nsecond line"),
    "Exits": SystemExit(3),
    "Unreadable": UnreadableError(),
}
PREDICATES = [
    *(PredicatePlugin(name, refuse, argument) for name, argument in _TYPES.items()),
    *(PredicatePlugin(name, raising(error)) for name, error in _ERRORS.items()),
]
PRIORITIES = [
    *(PriorityPlugin(name, score, argument) for name, argument in _TYPES.items()),
    *(PriorityPlugin(name, raising(error)) for name, error in _ERRORS.items()),
]
