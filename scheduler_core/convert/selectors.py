"""Label selectors, affinity, spreading, taints and tolerations: wire types and their conversion to
`model/constraints.py`. A selector that Kubernetes would not accept selects nothing, and a term of a node affinity that
it would not accept matches no node, as in kube-scheduler (nodeaffinity.LazyErrorNodeSelector).
"""

from __future__ import annotations

import re
from typing import Final

from scheduler_core.convert.meta import Wire
from scheduler_core.model.constraints import (
    Labels,
    LabelSelector,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    Requirement,
    SpreadConstraint,
    parse_int64,
)

DO_NOT_SCHEDULE: Final = "DoNotSchedule"
_OPERATORS: Final = {operator.value: operator for operator in Operator}
_LABEL_SELECTOR_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
_WITH_VALUES: Final = frozenset({Operator.IN, Operator.NOT_IN})
_WITHOUT_VALUES: Final = frozenset({Operator.EXISTS, Operator.DOES_NOT_EXIST})
_LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


class WireRequirement(Wire):
    """An expression of a label selector or of a node selector term."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class WireLabelSelector(Wire):
    """meta/v1 LabelSelector."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[WireRequirement] | None = None


class _NodeTerm(Wire):
    match_expressions: list[WireRequirement] | None = None
    match_fields: list[WireRequirement] | None = None


class WireNodeSelector(Wire):
    """A node selector: of its terms one must match."""

    node_selector_terms: list[_NodeTerm] | None = None


class WirePodTerm(Wire):
    """A required term of a pod's affinity or anti-affinity."""

    label_selector: WireLabelSelector | None = None
    namespaces: list[str] | None = None
    topology_key: str = ""
    namespace_selector: WireLabelSelector | None = None


class WireSpreadConstraint(Wire):
    """spec.topologySpreadConstraints[] of a pod."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = DO_NOT_SCHEDULE
    label_selector: WireLabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


def label_selector(wire: WireLabelSelector | None) -> LabelSelector | None:
    """A label selector (LabelSelectorAsSelector); None if it selects nothing."""
    if wire is None:
        return None
    expressions = wire.match_expressions or ()
    requirements = tuple(_requirement(entry) for entry in expressions if entry.operator in _LABEL_SELECTOR_OPERATORS)
    valid = tuple(requirement for requirement in requirements if requirement is not None)
    if len(valid) != len(expressions):
        return None
    return LabelSelector(frozenset((wire.match_labels or {}).items()), valid)


def _requirement(wire: WireRequirement) -> Requirement | None:
    """An expression (labels.NewRequirement); None if Kubernetes would not accept it."""
    operator = _OPERATORS.get(wire.operator)
    values = wire.values or []
    if operator is None or not all(_LABEL_VALUE.fullmatch(value) for value in values):
        return None
    if operator in _WITH_VALUES:
        valid = bool(values)
    elif operator in _WITHOUT_VALUES:
        valid = not values
    else:
        valid = len(values) == 1 and parse_int64(values[0]) is not None
    return Requirement(wire.key, operator, frozenset(values)) if valid else None


def node_selector_terms(selector: WireNodeSelector | None) -> tuple[NodeSelectorTerm, ...] | None:
    """The terms of a node selector that can match a node; None without a selector."""
    if selector is None:
        return None
    terms = (_node_term(term) for term in selector.node_selector_terms or ())
    return tuple(term for term in terms if term is not None)


def _node_term(wire: _NodeTerm) -> NodeSelectorTerm | None:
    """A term of a node affinity; None if it matches no node."""
    expressions = wire.match_expressions or ()
    fields = wire.match_fields or ()
    if not expressions and not fields:
        return None
    labels = [requirement for entry in expressions if (requirement := _requirement(entry)) is not None]
    names = [requirement for entry in fields if (requirement := _field_requirement(entry)) is not None]
    if len(labels) != len(expressions) or len(names) != len(fields):
        return None
    return NodeSelectorTerm(tuple(labels), tuple(names))


def _field_requirement(wire: WireRequirement) -> Requirement | None:
    """An expression about a node's field (nodeSelectorRequirementsAsFieldSelector)."""
    operator = _OPERATORS.get(wire.operator)
    if operator not in _WITH_VALUES or len(wire.values or ()) != 1:
        return None
    return Requirement(wire.key, operator, frozenset(wire.values or ()))


def pod_affinity_terms(namespace: str | None, terms: list[WirePodTerm] | None) -> tuple[PodAffinityTerm, ...]:
    """The required terms of a pod's affinity, or of its anti-affinity; one without namespaces and namespace selector is
    about the pod's own namespace.
    """
    if not terms:
        return ()
    own = namespace or "default"
    return tuple(
        PodAffinityTerm(
            term.topology_key,
            frozenset(term.namespaces or (() if term.namespace_selector is not None else (own,))),
            label_selector(term.namespace_selector),
            label_selector(term.label_selector),
        )
        for term in terms
    )


def spread_constraint(wire: WireSpreadConstraint, labels: Labels) -> SpreadConstraint:
    """A topology spread constraint of a pod with these labels."""
    selector = label_selector(wire.label_selector)
    keys = frozenset(wire.match_label_keys or ())
    if selector is not None and keys:
        own = frozenset((key, value) for key, value in labels if key in keys)
        selector = LabelSelector(selector.labels | own, selector.requirements)
    return SpreadConstraint(
        wire.topology_key,
        wire.max_skew,
        selector,
        1 if wire.min_domains is None else wire.min_domains,
        honor_affinity=wire.node_affinity_policy != "Ignore",
        honor_taints=wire.node_taints_policy == "Honor",
    )
