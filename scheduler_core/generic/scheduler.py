"""Decides where one pod goes: filter, prioritise, select.

The order of the nodes changes nothing but the order of the result. Source: Kubernetes 1.1, plugin/pkg/scheduler/generic_scheduler.go.

`policy_refusals` applies a policy's predicates in the extender's /filter. Whether a node is available is left to kube-scheduler there,
which knows tolerations: a pod of a DaemonSet belongs on cordoned nodes, too. `LonghornVolumeFit` is skipped, because it is /filter's own
decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter, mul
from typing import Final

from msgspec import Struct

from scheduler_core.generic.cluster_state import GenericClusterState, NodeInfo
from scheduler_core.generic.cycle_state import NO_FACTS, CycleState, LonghornFacts, UndecidableError
from scheduler_core.generic.policy import TAINT_RULE, Policy, PolicyPredicate, PolicyPriority
from scheduler_core.generic.predicates import FITS, UNSCHEDULABLE, Check, always_fits
from scheduler_core.generic.rule_registry import LOCAL_RULES, PREDICATES, PRIORITIES, is_longhorn_rule
from scheduler_core.model.kube import Pod

SelectHost = Callable[[Sequence[str]], str]

NO_NODES: Final = "no nodes available to schedule pods"
NODE_NOT_FOUND: Final = "node does not exist"
CORDONED: Final = UNSCHEDULABLE
NOT_READY: Final = "node is not ready"
_CORDON_RULE: Final = "CheckNodeUnschedulable"


class PredicateFailure(Struct, frozen=True):
    """Why a predicate does not let the pod on a node."""

    predicate: str  # its name in the policy
    text: str  # its reason


class FilterResult(Struct, frozen=True):
    """Nodes after the predicates: unavailable, failed or feasible."""

    unavailable: Mapping[str, str]  # nodes that no predicate checked, and why
    # Available nodes that fail, with every predicate that fails there, in the policy's order.
    failures: Mapping[str, tuple[PredicateFailure, ...]]
    feasible: tuple[NodeInfo, ...]  # the remaining nodes, in the order requested
    error: str = ""  # why nothing can be decided, "" otherwise


class Ranking(Struct, frozen=True):
    """Scores of the feasible nodes, in the order requested."""

    # By the priority's name in the policy, then by node.
    scores: Mapping[str, Mapping[str, int]] = {}
    totals: Mapping[str, int] = {}  # weighted sums, by node


class ScheduleResult(Struct, frozen=True):
    """The node selected for a pod, and how it was selected."""

    pod: Pod
    unavailable: Mapping[str, str]  # as in `FilterResult`
    failures: Mapping[str, tuple[PredicateFailure, ...]]  # as in `FilterResult`
    feasible: tuple[str, ...]  # the names of the nodes that fit
    ranking: Ranking
    best: tuple[str, ...] = ()  # the nodes with the highest total, in order of their names
    node: str = ""  # the selected one, "" if none fits
    error: str = ""  # as in `FilterResult`

    def count_by_reason(self) -> dict[str, int]:
        """Number of nodes per reason, most frequent first, for an Event about a pod that fits nowhere."""
        counts = Counter(self.unavailable.values())
        # Nodes that fail alike share one value.
        shared = {id(failures): failures for failures in self.failures.values()}
        for key, count in Counter(map(id, self.failures.values())).items():
            for text in {failure.text for failure in shared[key]}:
                counts[text] += count
        return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def schedule(  # noqa: PLR0913, PLR0917 # the inputs of a decision
    pod: Pod,
    nodes: Sequence[str] | None,
    cluster: GenericClusterState,
    policy: Policy,
    select_host: SelectHost,
    longhorn_facts: LonghornFacts = NO_FACTS,
) -> ScheduleResult:
    """Selects a node for the pod. The candidates are `nodes`, or all nodes. `select_host` picks one of the best nodes'
    names, which it gets in order, as `random.Random(seed).choice` does. `longhorn_facts` are required if the policy has
    Longhorn's rules; without facts no node fits these.
    """
    filtered = find_nodes_that_fit(pod, nodes, cluster, policy, longhorn_facts)
    error = filtered.error
    ranking = Ranking()
    try:
        ranking = prioritize(pod, filtered.feasible, cluster, policy, longhorn_facts)
    except UndecidableError as failure:
        error = str(failure)
    max_total = max(ranking.totals.values(), default=0)
    best = tuple(sorted([name for name, total in ranking.totals.items() if total == max_total]))
    return ScheduleResult(
        pod=pod,
        unavailable=filtered.unavailable,
        failures=filtered.failures,
        feasible=tuple(node_info.node.name for node_info in filtered.feasible),
        ranking=ranking,
        best=best,
        node=select_host(best) if best else "",
        error=error,
    )


def find_nodes_that_fit(
    pod: Pod,
    nodes: Sequence[str] | None,
    cluster: GenericClusterState,
    policy: Policy,
    longhorn_facts: LonghornFacts = NO_FACTS,
) -> FilterResult:
    """Filters the available nodes by the policy's predicates. The candidates are `nodes`, or all nodes."""
    cycle_state = CycleState(pod, cluster, longhorn_facts)
    names = cluster.node_names if nodes is None else nodes
    available, unavailable = _split_by_availability(names, cluster.node_infos(nodes), policy)
    if not available:
        return FilterResult(unavailable, {}, (), NO_NODES)
    undecidable: dict[str, str] = {}
    checks = _bind_predicates(cycle_state, policy, policy.predicates, available, undecidable)
    failures: dict[str, tuple[PredicateFailure, ...]] = {}
    feasible: list[NodeInfo] = []
    # Many nodes fail alike: they share one value.
    failures_by_texts: dict[tuple[str, ...], tuple[PredicateFailure, ...]] = {}
    for node_info, texts in zip(available, checks.texts(available), strict=True):
        if not texts and not undecidable:
            feasible.append(node_info)
            continue
        if texts not in failures_by_texts:
            text_by_predicate = dict(zip(checks.names, texts, strict=bool(texts))) | undecidable
            failures_by_texts[texts] = tuple(
                PredicateFailure(entry.name, text)
                for entry in policy.predicates
                if (text := text_by_predicate.get(entry.name, FITS))
            )
        failures[node_info.node.name] = failures_by_texts[texts]
    error = next(iter(undecidable.values()), "")
    return FilterResult(unavailable, failures, tuple(feasible), error)


def _split_by_availability(
    names: Sequence[str], node_infos: Sequence[NodeInfo | None], policy: Policy
) -> tuple[list[NodeInfo], dict[str, str]]:
    rules = {entry.rule for entry in policy.predicates}
    # Where the policy has the rules by which kube-scheduler decides that today, these decide it.
    reads_cordon = _CORDON_RULE in rules
    # A node that is not ready has a taint that says so.
    reads_taints = TAINT_RULE in rules
    available = [
        node_info
        for node_info in node_infos
        if node_info is not None
        and (node_info.node.ready or reads_taints)
        and (reads_cordon or not node_info.node.unschedulable)
    ]
    if len(available) == len(names):
        return available, {}
    unavailable: dict[str, str] = {}
    for name, node_info in zip(names, node_infos, strict=True):
        if node_info is None:
            unavailable[name] = NODE_NOT_FOUND
        elif node_info.node.unschedulable and not reads_cordon:
            unavailable[name] = CORDONED
        elif not node_info.node.ready and not reads_taints:
            unavailable[name] = NOT_READY
    return available, unavailable


class BoundPredicates(Struct, frozen=True):
    """Predicates of a policy, bound to one pod."""

    cycle_state: CycleState
    local: Mapping[PolicyPredicate, Check]  # those whose results are cached (`RuleResults`), in the policy's order
    others: Mapping[PolicyPredicate, Check]  # the other ones, in the policy's order

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in (*self.local, *self.others)]

    def texts(self, node_infos: Sequence[NodeInfo]) -> list[tuple[str, ...]]:
        """Returns what each predicate says about each node; () for a node that fits."""
        rules = ("predicates", tuple((entry.rule, entry.argument) for entry in self.local))
        texts: list[tuple[str, ...]] = [()] * len(node_infos)
        if self.local:
            texts = self.cycle_state.cluster.results.get(rules, self.cycle_state.pod, node_infos, self._check_locally)
        if all(check is always_fits for check in self.others.values()):
            return [entry and (*entry, *[FITS] * len(self.others)) for entry in texts] if self.others else texts
        rows = zip(*[map(check, node_infos) for check in self.others.values()], strict=True)
        fits = (FITS,) * len(self.local)
        return [(*(local or fits), *row) if local or any(row) else () for local, row in zip(texts, rows, strict=True)]

    def _check_locally(self, node_infos: Sequence[NodeInfo]) -> list[tuple[str, ...]]:
        checks = list(self.local.values())
        rows = (tuple([check(node_info) for check in checks]) for node_info in node_infos)
        return [texts if any(texts) else () for texts in rows]


def _bind_predicates(
    cycle_state: CycleState,
    policy: Policy,
    entries: Sequence[PolicyPredicate],
    node_infos: Sequence[NodeInfo],
    undecidable: dict[str, str] | None = None,
) -> BoundPredicates:
    # An undecidable predicate fails on every node: its reason goes to `undecidable`, or is raised without that.
    local: dict[PolicyPredicate, Check] = {}
    others: dict[PolicyPredicate, Check] = {}
    for entry in entries:
        try:
            check = bind_predicate(cycle_state, policy, entry, node_infos)
        except UndecidableError as error:
            if undecidable is None:
                raise
            undecidable[entry.name] = str(error)
        else:
            (local if entry.rule in LOCAL_RULES else others)[entry] = check
    return BoundPredicates(cycle_state, local, others)


def bind_predicate(
    cycle_state: CycleState, policy: Policy, entry: PolicyPredicate, node_infos: Sequence[NodeInfo]
) -> Check:
    """Returns a predicate of the policy as a check of these nodes. A plugin's predicate checks them at once, so that it
    is called once.
    """
    if entry.rule not in policy.plugins.predicates:
        return PREDICATES[entry.rule](cycle_state, entry.argument)
    texts = policy.plugins.texts(entry.rule, cycle_state, entry.argument, node_infos)
    return lambda node_info: texts[node_info.node.name]


def prioritize(
    pod: Pod,
    nodes: Sequence[NodeInfo],
    cluster: GenericClusterState,
    policy: Policy,
    longhorn_facts: LonghornFacts = NO_FACTS,
) -> Ranking:
    """Scores nodes by every priority of the policy. Without priorities each total is 1."""
    names = [node_info.node.name for node_info in nodes]
    if not policy.priorities or not nodes:
        return Ranking(totals=dict.fromkeys(names, 1))
    columns, totals = _score(CycleState(pod, cluster, longhorn_facts), policy, nodes)
    scores = {name: dict(zip(names, column, strict=True)) for name, column in columns.items()}
    return Ranking(scores, dict(zip(names, totals, strict=True)))


def _score(
    cycle_state: CycleState, policy: Policy, nodes: Sequence[NodeInfo]
) -> tuple[dict[str, Sequence[int]], list[int]]:
    local = [entry for entry in policy.priorities if entry.rule in LOCAL_RULES]
    rows = _score_locally(cycle_state, local, nodes) if local else []
    # The last entry of a row is the weighted sum of the others.
    totals = [row[-1] for row in rows] or [0] * len(nodes)
    columns: dict[str, Sequence[int]] = {}
    for entry in policy.priorities:
        if entry in local:
            columns[entry.name] = list(map(itemgetter(local.index(entry)), rows))
            continue
        if entry.rule in policy.plugins.priorities:
            scores = policy.plugins.scores(entry.rule, cycle_state, entry.argument, nodes)
        else:
            scores = PRIORITIES[entry.rule](cycle_state, entry.argument, nodes)
        columns[entry.name] = scores
        if any(scores):
            totals = [total + entry.weight * score for total, score in zip(totals, scores, strict=True)]
    return columns, totals


def _score_locally(
    cycle_state: CycleState, entries: Sequence[PolicyPriority], node_infos: Sequence[NodeInfo]
) -> list[tuple[int, ...]]:
    def evaluate(missing: Sequence[NodeInfo]) -> list[tuple[int, ...]]:
        columns = [PRIORITIES[entry.rule](cycle_state, entry.argument, missing) for entry in entries]
        weights = [entry.weight for entry in entries]
        return [(*row, sum(map(mul, weights, row))) for row in zip(*columns, strict=True)]

    rules = ("priorities", tuple((entry.rule, entry.argument, entry.weight) for entry in entries))
    return cycle_state.cluster.results.get(rules, cycle_state.pod, node_infos, evaluate)


def prioritize_names(
    pod: Pod,
    names: Sequence[str],
    cluster: GenericClusterState,
    policy: Policy,
    longhorn_facts: LonghornFacts = NO_FACTS,
) -> dict[str, int]:
    """Scores nodes for the extender's /prioritize. A score is the weighted mean, from 0 to 10, cut off to a whole
    number. All nodes in `names` count as feasible, because kube-scheduler has filtered them; a node that does not exist
    scores 0.
    """
    node_infos = [node_info for node_info in cluster.node_infos(names) if node_info is not None]
    _, totals = _score(CycleState(pod, cluster, longhorn_facts), policy, node_infos)
    weights = sum(entry.weight for entry in policy.priorities)
    # Without priorities all nodes are equal.
    if not weights:
        totals = [1] * len(node_infos)
        weights = 1
    if len(node_infos) == len(names):
        return {name: total // weights for name, total in zip(names, totals, strict=True)}
    scores = {node_info.node.name: total // weights for node_info, total in zip(node_infos, totals, strict=True)}
    return {name: scores.get(name, 0) for name in names}


# Predicates whose refusal may end when pods are evicted.
_RESOLVABLE_BY_EVICTION: Final = frozenset(
    {
        "PodFitsHostPorts", "PodFitsPorts", "PodFitsResources", "NoDiskConflict", "NodePorts", "NodeResourcesFit",
        "MatchInterPodAffinity", "EvenPodsSpread",
    }
)  # fmt: skip


class PolicyRefusal(Struct, frozen=True):
    """Why a policy's predicate does not let the pod on a node."""

    # The predicate's name in the policy, and its reason; without names and numbers of nodes, so that kube-scheduler can
    # count equal ones together.
    text: str
    unresolvable: bool  # whether evicting pods would change nothing


def policy_refusals(
    pod: Pod, names: Sequence[str], cluster: GenericClusterState, policy: Policy
) -> dict[str, PolicyRefusal]:
    """Returns the nodes that the policy's predicates refuse. Each has the text of the first predicate that refuses it."""
    cycle_state = CycleState(pod, cluster)
    entries = [entry for entry in policy.predicates if not is_longhorn_rule(entry.rule)]
    refusals: dict[str, PolicyRefusal] = {}
    if not entries:
        return refusals
    node_infos = [node_info for node_info in cluster.node_infos(names) if node_info is not None]
    if len(node_infos) < len(names):
        not_found = PolicyRefusal(NODE_NOT_FOUND, unresolvable=True)
        refusals.update((name, not_found) for name in names if name not in cluster.nodes)
    bound = _bind_predicates(cycle_state, policy, entries, node_infos)
    order = [entries.index(entry) for entry in (*bound.local, *bound.others)]
    # Many nodes fail alike: they share one value.
    refusal_by_texts: dict[tuple[str, ...], PolicyRefusal] = {}
    for node_info, texts in zip(node_infos, bound.texts(node_infos), strict=True):
        if not any(texts):
            continue
        if texts not in refusal_by_texts:
            failures = [(entries[index], text) for index, text in sorted(zip(order, texts, strict=True)) if text]
            refusal_by_texts[texts] = _refusal(policy, failures)
        refusals[node_info.node.name] = refusal_by_texts[texts]
    return refusals


def _refusal(policy: Policy, failures: Sequence[tuple[PolicyPredicate, str]]) -> PolicyRefusal:
    """The refusal of the first predicate that fails. It is unresolvable if any predicate that fails is."""
    first, text = failures[0]
    plugins = policy.plugins.predicates
    unresolvable = not all(
        plugins[entry.rule].eviction_helps if entry.rule in plugins else entry.rule in _RESOLVABLE_BY_EVICTION
        for entry, _ in failures
    )
    return PolicyRefusal(f"{first.name}: {text}", unresolvable)
