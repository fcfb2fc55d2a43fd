"""Filter, prioritise, select: one pod's decision.

Long computations pause (steps.py). The order in which nodes are asked about changes nothing but the order of the answer.
Source: Kubernetes 1.1, plugin/pkg/scheduler/generic_scheduler.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler_core.cooperative import Steps
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.cycle_state import Question, UndecidableError
from scheduler_core.generic.node_info import NodeState
from scheduler_core.generic.policy import Policy
from scheduler_core.generic.predicates import Check
from scheduler_core.generic.priorities import BEST
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES
from scheduler_core.generic.volume_facts import NOTHING_KNOWN, LonghornFacts
from scheduler_core.model.generic import Pod

Choose = Callable[[Sequence[str]], str]

NO_NODES: Final = "no nodes available to schedule pods"
UNKNOWN: Final = "node does not exist"
CORDONED: Final = "node is unschedulable"
NOT_READY: Final = "node is not ready"
# A pause costs next to nothing beside this many nodes, and they take well below a millisecond.
_NODES_A_SLICE: Final = 256


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a predicate, by its name in the policy, does not let the pod on a node."""

    predicate: str
    text: str


@dataclass(frozen=True, slots=True)
class Filtered:
    """What the predicates leave.

    Attributes:
        unavailable: nodes that no predicate was asked about, and why
        failures: of the others, those that fail, with every predicate that fails there, in the policy's order
        feasible: the rest, in the order asked
        error: why nothing can be decided, "" otherwise
    """

    unavailable: Mapping[str, str]
    failures: Mapping[str, tuple[Failure, ...]]
    feasible: tuple[NodeState, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What the priorities say, by node in the order asked: each priority's score by its name in the policy, and weighted sums."""

    scores: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a pod goes, and everything that led to it.

    Attributes:
        node: the chosen one, "" if none fits
        best: the nodes with the highest total, in order of their names
        unavailable, failures, error: as in `Filtered`
        feasible: the names of the nodes that fit
    """

    pod: Pod
    unavailable: Mapping[str, str]
    failures: Mapping[str, tuple[Failure, ...]]
    feasible: tuple[str, ...]
    ranking: Ranking
    best: tuple[str, ...] = ()
    node: str = ""
    error: str = ""

    def counts(self) -> dict[str, int]:
        """How many nodes say what, most first: what an event would tell about a pod that fits nowhere."""
        counted = Counter(self.unavailable.values())
        for failed in self.failures.values():
            counted.update({entry.text for entry in failed})
        return dict(sorted(counted.items(), key=lambda entry: (-entry[1], entry[0])))


def schedule(  # noqa: PLR0913, PLR0917 # what a decision is made from
    pod: Pod,
    nodes: Sequence[str] | None,
    state: State,
    policy: Policy,
    choose: Choose,
    longhorn: LonghornFacts = NOTHING_KNOWN,
) -> Steps[Decision]:
    """Decides where a pod goes: among `nodes`, or among all.

    `choose` picks one of the best nodes' names, which it is given in order: `random.Random(seed).choice` does. `longhorn` is needed
    where the policy has rules of Longhorn's; without it no node fits these.
    """
    found = yield from filter_nodes(pod, nodes, state, policy, longhorn)
    ranking = yield from prioritize(pod, found.feasible, state, policy, longhorn)
    most = max(ranking.totals.values(), default=0)
    best = tuple(sorted(name for name, total in ranking.totals.items() if total == most))
    return Decision(
        pod=pod,
        unavailable=found.unavailable,
        failures=found.failures,
        feasible=tuple(entry.node.name for entry in found.feasible),
        ranking=ranking,
        best=best,
        node=choose(best) if best else "",
        error=found.error,
    )


def filter_nodes(
    pod: Pod,
    nodes: Sequence[str] | None,
    state: State,
    policy: Policy,
    longhorn: LonghornFacts = NOTHING_KNOWN,
) -> Steps[Filtered]:
    """Asks every predicate of the policy about every available node of those asked, or of all."""
    question = Question(pod, state, longhorn)
    available, unavailable = _available(state.names if nodes is None else nodes, state)
    if not available:
        return Filtered(unavailable, {}, (), NO_NODES)
    checks, undecided = _checks(question, policy)
    failures: dict[str, tuple[Failure, ...]] = {}
    feasible: list[NodeState] = []
    # Many nodes fail alike: they share one value.
    alike: dict[tuple[str, ...], tuple[Failure, ...]] = {}
    for start in range(0, len(available), _NODES_A_SLICE):
        for entry in available[start : start + _NODES_A_SLICE]:
            texts = tuple([check(entry) for check in checks.values()])
            if not undecided and not any(texts):
                feasible.append(entry)
                continue
            if texts not in alike:
                alike[texts] = _failures(policy, dict(zip(checks, texts, strict=True)) | undecided)
            failures[entry.node.name] = alike[texts]
        yield
    error = next(iter(undecided.values()), "")
    return Filtered(unavailable, failures, tuple(feasible), error)


def _available(names: Sequence[str], state: State) -> tuple[list[NodeState], dict[str, str]]:
    """Nodes that are ready and not cordoned; of the others, why not."""
    available: list[NodeState] = []
    unavailable: dict[str, str] = {}
    for name in names:
        known = state.nodes.get(name)
        if known is None:
            unavailable[name] = UNKNOWN
        elif known.node.unschedulable:
            unavailable[name] = CORDONED
        elif not known.node.ready:
            unavailable[name] = NOT_READY
        else:
            available.append(known)
    return available, unavailable


def _checks(question: Question, policy: Policy) -> tuple[dict[str, Check], dict[str, str]]:
    """The predicates as checks of a node; and those that cannot be decided at all, which fail everywhere, with why."""
    checks: dict[str, Check] = {}
    undecided: dict[str, str] = {}
    for entry in policy.predicates:
        try:
            checks[entry.name] = PREDICATES[entry.rule](question, entry.argument)
        except UndecidableError as error:
            undecided[entry.name] = str(error)
    return checks, undecided


def _failures(policy: Policy, texts: Mapping[str, str]) -> tuple[Failure, ...]:
    return tuple(Failure(entry.name, texts[entry.name]) for entry in policy.predicates if texts[entry.name])


def prioritize(
    pod: Pod,
    nodes: Sequence[NodeState],
    state: State,
    policy: Policy,
    longhorn: LonghornFacts = NOTHING_KNOWN,
) -> Steps[Ranking]:
    """Scores nodes by every priority of the policy; without priorities each node counts 1."""
    question = Question(pod, state, longhorn)
    names = [entry.node.name for entry in nodes]
    if not policy.priorities or not nodes:
        return Ranking(totals=dict.fromkeys(names, 1))
    scores: dict[str, dict[str, int]] = {}
    totals = [0] * len(nodes)
    for priority in policy.priorities:
        found = PRIORITIES[priority.rule](question, priority.argument, nodes)
        scores[priority.name] = dict(zip(names, found, strict=True))
        totals = [total + priority.weight * score for total, score in zip(totals, found, strict=True)]
        yield
    return Ranking(scores, dict(zip(names, totals, strict=True)))


def prioritize_names(
    pod: Pod, names: Sequence[str], state: State, policy: Policy, longhorn: LonghornFacts = NOTHING_KNOWN
) -> Steps[dict[str, int]]:
    """The answer to an extender's /prioritize: for every node asked a whole number from 0 to 10, the weighted mean cut off.

    All nodes asked count as feasible, because kube-scheduler has filtered them; one that is not known has 0.
    """
    known = [found for name in names if (found := state.nodes.get(name)) is not None]
    ranking = yield from prioritize(pod, known, state, policy, longhorn)
    weights = sum(priority.weight for priority in policy.priorities) or 1
    return {name: min(BEST, ranking.totals.get(name, 0) // weights) for name in names}
