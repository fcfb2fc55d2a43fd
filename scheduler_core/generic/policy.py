"""A policy, whose predicates filter and whose priorities score with weights, and the parser of its JSON file.

A file replaces the default policy as a whole. It is checked as Kubernetes 1.1 did (factory/plugins.go, api/validation),
in three stages: decode, validate, build. The first stage that finds a fault ends the reading. An entry that Kubernetes
accepted but that is hardly ever meant is accepted with a warning.

The classic rules are those of Kubernetes 1.1. Newer constraints of a pod, and of nodes and other pods against it, would have no effect, and
nothing would report that: `unsupported_constraints` names those that a policy's rules do not read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from scheduler_core import errors
from scheduler_core.generic import cluster_state, plugin_rules, policy_file, rule_registry
from scheduler_core.generic.cycle_state import NO_ARGUMENT, Argument, CycleState
from scheduler_core.generic.predicates import EXISTING_ANTI_AFFINITY, UNTOLERATED_TAINT, closed_domains, taint_test
from scheduler_core.model.kube import Pod
from scheduler_core.structs import Struct

_NAME = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])")


class PolicyError(errors.CoreError):
    """A policy file cannot be used; names each wrong entry."""

    def __init__(self, stage: policy_file.PolicyStage, faults: Sequence[str]) -> None:
        super().__init__("policy: " + "; ".join(faults))
        self.stage = stage  # the stage that found the fault


@dataclass(frozen=True, slots=True)
class PolicyPredicate:
    """A predicate of a policy."""

    name: str
    rule: str  # its rule in the registry
    # The argument of that rule; an `Argument`, or of the type that a plugin defines.
    # Rules are keyed by their entry, and the type of a plugin's argument need not have a hash.
    argument: Any = field(default=NO_ARGUMENT, hash=False)


@dataclass(frozen=True, slots=True)
class PolicyPriority:
    """A priority of a policy; attributes as in `PolicyPredicate`."""

    name: str
    rule: str
    weight: int = 1
    argument: Any = field(default=NO_ARGUMENT, hash=False)


class Policy(Struct, frozen=True):
    """The rules that a scheduler applies."""

    predicates: tuple[PolicyPredicate, ...] = ()
    priorities: tuple[PolicyPriority, ...] = ()  # without any, all nodes that fit are equal
    warnings: tuple[str, ...] = ()  # entries of the file that were accepted but are odd
    plugins: plugin_rules.Plugins = plugin_rules.NO_PLUGINS  # the rules from outside the package that it may name

    @property
    def rules(self) -> frozenset[str]:
        return frozenset(entry.rule for entry in self.predicates).union(entry.rule for entry in self.priorities)

    @property
    def reads_longhorn(self) -> bool:
        """Whether a rule needs `LonghornFacts`, which the caller must then compute first."""
        return any(map(rule_registry.is_longhorn_rule, self.rules))


def _static_predicates(*names: str) -> tuple[PolicyPredicate, ...]:
    return tuple(PolicyPredicate(name, name) for name in names)


def _static_priorities(**weights: int) -> tuple[PolicyPriority, ...]:
    return tuple(PolicyPriority(name, name, weight) for name, weight in weights.items())


_CLASSIC = ("PodFitsPorts", "PodFitsResources", "NoDiskConflict", "MatchNodeSelector", "HostName")
DEFAULT_POLICY = Policy(
    _static_predicates(*_CLASSIC),
    _static_priorities(LeastRequestedPriority=1, BalancedResourceAllocation=1, ServiceSpreadingPriority=1),
)
"""The default of OpenShift's document (10.5.1), in force without a policy file."""

EXTENDER_POLICY = Policy(
    _static_predicates("LonghornVolumeFit"),
    _static_priorities(LonghornDataLocality=8, LonghornOrderSafe=4, LonghornStaleSafe=4, LonghornBalancedDisks=2),
)
"""The default of the extender's /prioritize.

kube-scheduler itself scores CPU, memory and spreading, so only rules that it does not have count. Data that is on the
node weighs as much as order safety and stale safety together; each of them weighs more than even disks, also after the
mean is truncated: 10 x (4 - 2) is more than the sum of the weights."""


def parse_policy(text: bytes, plugins: plugin_rules.Plugins = plugin_rules.NO_PLUGINS) -> Policy:
    """Parses a policy file, which may name the rules of plugins. Raises a PolicyError if it is no JSON, no policy, or
    an entry of it cannot be used.
    """
    try:
        document = policy_file.read_policy_file(text, plugins)
    except policy_file.WrongShapeError as error:
        raise PolicyError(policy_file.PolicyStage.DECODE, [str(error)]) from error
    weight_faults = [
        f"{entry.location}: weight is {entry.weight if entry.has_weight else 'missing'}; "
        f"a positive whole number is required{entry.place}"
        for entry in document.priorities
        if not entry.has_weight or entry.weight <= 0
    ]
    if weight_faults:
        raise PolicyError(policy_file.PolicyStage.VALIDATE, weight_faults)
    predicates = _Section(rule_registry.PREDICATES, plugins.predicates)
    priorities = _Section(rule_registry.PRIORITIES, plugins.priorities)
    faults = [
        fault
        for section, entries in ((predicates, document.predicates), (priorities, document.priorities))
        for entry in entries
        if (fault := section.register(entry))
    ]
    if faults:
        raise PolicyError(policy_file.PolicyStage.BUILD, faults)
    effects = (
        (document.predicates, "predicates, so every ready node fits"),
        (document.priorities, "priorities, so all nodes that fit are equal"),
    )
    empty = [effect for entries, effect in effects if not entries]
    replaced = [f"policy: there are no {effect}; a policy replaces the default one as a whole" for effect in empty]
    return Policy(
        tuple(PolicyPredicate(entry.name, rule, argument) for entry, rule, argument in predicates.registered.values()),
        tuple(
            PolicyPriority(entry.name, rule, entry.weight, argument)
            for entry, rule, argument in priorities.registered.values()
        ),
        (*document.warnings, *replaced, *predicates.warnings, *priorities.warnings),
        plugins,
    )


class _Section:
    def __init__(
        self, registry: rule_registry.RuleRegistry[Any], plugins: Mapping[str, plugin_rules.PluginRule]
    ) -> None:
        self._rule_kind = registry.rule_kind
        self._static = [*registry.static, *(name for name, rule in plugins.items() if rule.argument is None)]
        self._configurable = [*registry.configurable, *(name for name in plugins if name not in self._static)]
        self.registered: dict[str, tuple[policy_file.PolicyEntry, str, object]] = {}
        self.warnings: list[str] = []

    def register(self, entry: policy_file.PolicyEntry) -> str:
        """Registers an entry, or returns what is wrong with it, "" for nothing."""
        previous = self.registered.get(entry.name)
        if entry.arguments is not None:
            fault = self._argument_fault(entry)
            if fault:
                return f"{entry.location}: {fault}{entry.place}"
            rule, argument = next(iter(entry.arguments.items()))
            if type(argument) is Argument and not any(argument.labels):
                self.warnings.append(f"{entry.location}: {rule} names no label, so it tells no nodes apart")
            if entry.name in self._static:
                self.warnings.append(f"{entry.location}: the argument replaces the {self._rule_kind} of this name")
        elif previous is not None:
            _, rule, argument = previous
        elif entry.name in self._static:
            rule = entry.name
            argument = NO_ARGUMENT
        else:
            names = ", ".join(self._static)
            rules = " or ".join(self._configurable)
            fault = f"no {self._rule_kind} has this name ({names}), and a name of your own needs an argument: {rules}"
            return f"{entry.location}: {fault}{entry.place}"
        if previous is not None:
            self.warnings.append(f"{entry.location}: the name was used before; the last entry wins, and counts once")
        self.registered[entry.name] = (entry, rule, argument)
        return ""

    def _argument_fault(self, entry: policy_file.PolicyEntry) -> str:
        arguments = entry.arguments or {}
        if len(arguments) > 1:
            return f"argument has both {' and '.join(arguments)}; a {self._rule_kind} takes one of them"
        if not arguments:
            others = f", not {', '.join(entry.unknown_keys)}" if entry.unknown_keys else ""
            return f"argument must have {' or '.join(self._configurable)}{others}"
        if not _NAME.fullmatch(entry.name):
            return "a name of your own must be letters, digits and -, at least two, with no - at either end"
        return ""


def kinds_read(policy: Policy) -> frozenset[str]:
    return frozenset().union(*(rule_registry.rule_inputs(rule).kinds for rule in policy.rules))


def priorities_read_longhorn(policy: Policy) -> bool:
    return any(rule_registry.is_longhorn_rule(entry.rule) for entry in policy.priorities)


NODE_AFFINITY_RULE = "NodeAffinity"
POD_AFFINITY_RULE = "MatchInterPodAffinity"
SPREAD_RULE = "EvenPodsSpread"
RESOURCE_RULE = "NodeResourcesFit"
TAINT_RULE = "PodToleratesNodeTaints"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class UnsupportedMode(StrEnum):
    """What becomes of a constraint that the policy does not read."""

    REFUSE = "refuse"
    WARN = "warn"
    IGNORE = "ignore"


class UnsupportedConstraint(Struct, frozen=True):
    """A constraint that no rule of the policy reads."""

    field: str  # where the pod, or the node, has it
    rule: str = ""  # the rule that would read it, "" if there is none

    def __str__(self) -> str:
        return f"{self.field} ({f'rule {self.rule}' if self.rule else 'no rule'})"


NODE_TAINTS = UnsupportedConstraint("node spec.taints", TAINT_RULE)
EXISTING_PODS = UnsupportedConstraint(f"spec.affinity.podAntiAffinity.{_REQUIRED} of a placed pod", POD_AFFINITY_RULE)
_REASONS = {NODE_TAINTS: UNTOLERATED_TAINT, EXISTING_PODS: EXISTING_ANTI_AFFINITY}


def unsupported_constraints(pod: Pod, policy: Policy) -> tuple[UnsupportedConstraint, ...]:
    """The pod's constraints that no rule of the policy reads, in a fixed order. What only permits more, such as a
    toleration, is none, nor is a preference.
    """
    constraints = pod.scheduling.constraints
    affinity = f"spec.affinity.%s.{_REQUIRED}"
    fields: list[tuple[str, Sequence[str]]] = [
        (NODE_AFFINITY_RULE, [affinity % "nodeAffinity"] * (constraints.node_affinity is not None)),
        (POD_AFFINITY_RULE, [affinity % "podAffinity"] * bool(constraints.pod_affinity)),
        (POD_AFFINITY_RULE, [affinity % "podAntiAffinity"] * bool(constraints.pod_anti_affinity)),
        (SPREAD_RULE, ["spec.topologySpreadConstraints[].whenUnsatisfiable"] * bool(constraints.spread)),
        (RESOURCE_RULE, constraints.request_fields),
        ("", constraints.claim_fields),
    ]
    rules = _rules(policy)
    return tuple(UnsupportedConstraint(field, rule) for rule, names in fields if rule not in rules for field in names)


def unsupported_nodes(
    pod: Pod, cluster: cluster_state.GenericClusterState, policy: Policy, among: Sequence[str] | None = None
) -> dict[str, UnsupportedConstraint]:
    """The nodes, of all or `among` some, that only an unsupported constraint closes to the pod."""
    # That is a taint that it does not tolerate, or the required anti-affinity of a placed pod. Only nodes that are
    # ready and not cordoned are among them: the others are left out anyway.
    names = cluster.node_names if among is None else among
    rules = _rules(policy)
    closed: dict[str, UnsupportedConstraint] = {}
    domains = frozenset() if POD_AFFINITY_RULE in rules else closed_domains(CycleState(pod, cluster))
    tolerates = taint_test(pod)
    reads_taints = TAINT_RULE in rules
    for name in names if domains else sorted(cluster.constrained_nodes.intersection(names)):
        node = cluster.nodes[name].node
        if node.unschedulable or not node.ready:
            continue
        if node.taints and not reads_taints and not tolerates(node):
            closed[name] = NODE_TAINTS
        elif domains and not domains.isdisjoint(node.labels.items()):
            closed[name] = EXISTING_PODS
    return closed


def ignored_constraints(
    pod: Pod, node: str, cluster: cluster_state.GenericClusterState, policy: Policy
) -> tuple[UnsupportedConstraint, ...]:
    closed = unsupported_nodes(pod, cluster, policy, [node])
    return (*unsupported_constraints(pod, policy), *closed.values())


def node_refusals(pod: Pod, cluster: cluster_state.GenericClusterState, policy: Policy) -> dict[str, str]:
    """Why each of `unsupported_nodes` is refused."""
    return {
        name: f"{_REASONS[constraint]}, which the policy does not read (rule {constraint.rule})"
        for name, constraint in unsupported_nodes(pod, cluster, policy).items()
    }


def unsupported_message(constraints: Sequence[UnsupportedConstraint]) -> str:
    return f"the policy does not read {', '.join(map(str, constraints))}"


def _rules(policy: Policy) -> frozenset[str]:
    return frozenset(entry.rule for entry in policy.predicates)
