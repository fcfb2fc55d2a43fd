"""A policy: which predicates filter, which priorities score and how much each weighs; and the JSON file it is read from.

A file replaces the default policy as a whole. It is judged as Kubernetes 1.1 did (factory/plugins.go, api/validation), in three
stages of which the first that finds a fault ends the reading: decode, validate, build. What Kubernetes accepted but hardly anybody
can have meant is accepted with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduler_core.errors import CoreError
from scheduler_core.generic.cycle_state import NO_ARGUMENT, Argument
from scheduler_core.generic.policy_file import (
    Entry,
    PolicyFile,
    Problem,
    WrongShapeError,
    read_policy_file,
)
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES, Rules

_NAME: Final = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])")


class PolicyError(CoreError):
    """A policy file that cannot be used; the text names each entry that is wrong.

    Attributes:
        problem: the stage that found it
    """

    def __init__(self, problem: Problem, faults: Sequence[str]) -> None:
        super().__init__("policy: " + "; ".join(faults))
        self.problem = problem


@dataclass(frozen=True, slots=True)
class PolicyPredicate:
    """A predicate of a policy: its name there, the rule in the registry, and what that is given."""

    name: str
    rule: str
    argument: Argument = NO_ARGUMENT


@dataclass(frozen=True, slots=True)
class PolicyPriority:
    """A priority of a policy, with its weight."""

    name: str
    rule: str
    weight: int = 1
    argument: Argument = NO_ARGUMENT


@dataclass(frozen=True, slots=True)
class Policy:
    """What the scheduler goes by. No priorities: all nodes that fit are equal. `warnings` tell what was read but is odd."""

    predicates: tuple[PolicyPredicate, ...] = ()
    priorities: tuple[PolicyPriority, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def reads_longhorn(self) -> bool:
        """Whether some rule needs `LonghornFacts`, so that whoever asks must find them first."""
        rules = [*(entry.rule for entry in self.predicates), *(entry.rule for entry in self.priorities)]
        return any(rule.startswith("Longhorn") for rule in rules)


def _static_predicates(*names: str) -> tuple[PolicyPredicate, ...]:
    return tuple(PolicyPredicate(name, name) for name in names)


def _static_priorities(**weights: int) -> tuple[PolicyPriority, ...]:
    return tuple(PolicyPriority(name, name, weight) for name, weight in weights.items())


_CLASSIC: Final = ("PodFitsPorts", "PodFitsResources", "NoDiskConflict", "MatchNodeSelector", "HostName")
DEFAULT_POLICY: Final = Policy(
    _static_predicates(*_CLASSIC),
    _static_priorities(LeastRequestedPriority=1, BalancedResourceAllocation=1, ServiceSpreadingPriority=1),
)
"""The document's default (10.5.1), in force where no policy file is given."""

EXTENDER_POLICY: Final = Policy(
    _static_predicates("LonghornVolumeFit"),
    _static_priorities(LonghornDataLocality=4, LonghornOrderSafe=4, LonghornBalancedDisks=2),
)
"""The default of the extender's /prioritize: kube-scheduler scores CPU, memory and spreading itself, so only what it cannot know
counts. Data that is there weighs as much as a node where nothing can go wrong; both weigh more than even disks."""


def parse_policy(text: bytes) -> Policy:
    """Reads a policy file.

    Raises:
        PolicyError: it is no JSON, no policy, or an entry of it cannot be used
    """
    try:
        file = read_policy_file(text)
    except WrongShapeError as error:
        raise PolicyError(Problem.DECODE, [str(error)]) from error
    weights = [fault for entry in file.priorities for fault in _weight_fault(entry)]
    if weights:
        raise PolicyError(Problem.VALIDATE, weights)
    predicates, priorities = _Table(PREDICATES), _Table(PRIORITIES)
    faults = [
        fault
        for table, entries in ((predicates, file.predicates), (priorities, file.priorities))
        for entry in entries
        for fault in table.add(entry)
    ]
    if faults:
        raise PolicyError(Problem.BUILD, faults)
    return Policy(
        tuple(PolicyPredicate(entry.name, rule, argument) for entry, rule, argument in predicates.chosen.values()),
        tuple(
            PolicyPriority(entry.name, rule, entry.weight, argument)
            for entry, rule, argument in priorities.chosen.values()
        ),
        (*file.warnings, *_emptiness(file), *predicates.warnings, *priorities.warnings),
    )


def _weight_fault(entry: Entry) -> Iterable[str]:
    if not entry.weighed:
        yield f"{entry.where}: weight is missing; a positive whole number is required"
    elif entry.weight <= 0:
        yield f"{entry.where}: weight is {entry.weight}; a positive whole number is required"


def _emptiness(file: PolicyFile) -> Iterable[str]:
    if not file.predicates:
        yield "policy: there are no predicates, so every ready node fits; a policy replaces the default one as a whole"
    if not file.priorities:
        yield "policy: there are no priorities, so all nodes that fit are equal; a policy replaces the default one as a whole"


class _Table:
    """The entries of one section as they are registered, one after the other: the last one of a name wins."""

    def __init__(self, rules: Rules[Any]) -> None:
        self._rules = rules
        self.chosen: dict[str, tuple[Entry, str, Argument]] = {}
        self.warnings: list[str] = []

    def add(self, entry: Entry) -> Iterable[str]:
        """Registers an entry, or tells what is wrong with it."""
        known = self.chosen.get(entry.name)
        if entry.arguments is not None:
            fault = self._custom_fault(entry)
            if fault:
                yield f"{entry.where}: {fault}"
                return
            rule, argument = next(iter(entry.arguments.items()))
            self._warn_of_argument(entry, rule, argument)
        elif known is not None:
            _, rule, argument = known
        elif entry.name in self._rules.static:
            rule, argument = entry.name, NO_ARGUMENT
        else:
            yield f"{entry.where}: {self._unknown()}"
            return
        if known is not None:
            self.warnings.append(f"{entry.where}: the name was used before; the last entry wins, and counts once")
        self.chosen[entry.name] = (entry, rule, argument)

    def _custom_fault(self, entry: Entry) -> str:
        found, kinds = entry.arguments or {}, " or ".join(self._rules.configurable)
        if len(found) > 1:
            return f"argument has both {' and '.join(found)}; a {self._rules.what} takes one of them"
        if not found:
            return f"argument must have {kinds}" + (f", not {', '.join(entry.strange)}" if entry.strange else "")
        if not _NAME.fullmatch(entry.name):
            return "a name of your own must be letters, digits and -, at least two, with no - at either end"
        return ""

    def _unknown(self) -> str:
        kinds = " or ".join(self._rules.configurable)
        known = ", ".join(self._rules.static)
        return f"no {self._rules.what} has this name ({known}), and a name of your own needs an argument: {kinds}"

    def _warn_of_argument(self, entry: Entry, rule: str, argument: Argument) -> None:
        if not any(argument.labels):
            self.warnings.append(f"{entry.where}: {rule} names no label, so it tells no nodes apart")
        if entry.name in self._rules.static:
            self.warnings.append(f"{entry.where}: the argument replaces the {self._rules.what} of this name")
