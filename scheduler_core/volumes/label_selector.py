"""Label requirements as Kubernetes evaluates them (k8s.io/apimachinery/pkg/labels, Requirement.Matches)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from scheduler_core.model.kube import LabelRequirement

LABEL_SELECTOR_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
NODE_SELECTOR_OPERATORS: Final = LABEL_SELECTOR_OPERATORS | {"Gt", "Lt"}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INT64: Final = range(-(2**63), 2**63)


def is_valid(requirement: LabelRequirement, operators: Collection[str]) -> bool:
    """Whether the API server would accept the requirement. `operators` are those of the kind of selector. The form of
    keys and values is not checked.
    """
    if requirement.operator not in operators:
        return False
    if requirement.operator in ("In", "NotIn"):
        return bool(requirement.values)
    if requirement.operator in ("Gt", "Lt"):
        return len(requirement.values) == 1 and _whole_number(requirement.values[0]) is not None
    return not requirement.values


def meets_all(requirements: Iterable[LabelRequirement], labels: Mapping[str, str]) -> bool:
    return all(_meets(requirement, labels.get(requirement.key)) for requirement in requirements)


def _meets(requirement: LabelRequirement, value: str | None) -> bool:
    """Whether a label's value meets the requirement; the value is None if there is no such label."""
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    number = _whole_number(value or "")
    bound = _whole_number(requirement.values[0])
    if number is None or bound is None:
        return False
    return number > bound if requirement.operator == "Gt" else number < bound


def _whole_number(text: str) -> int | None:
    """Reads a signed 64-bit number as Go's strconv.ParseInt does."""
    if len(text) > 64 or _WHOLE_NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number in _INT64 else None
