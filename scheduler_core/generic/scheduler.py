"""Decides where one pod goes: filter, prioritise, select.

The order of the nodes changes nothing but the order of the result. Source: Kubernetes 1.1, plugin/pkg/scheduler/generic_scheduler.go.

`policy_refusals` applies a policy's predicates in the extender's /filter. Whether a node is available is left to kube-scheduler there,
which knows tolerations: a pod of a DaemonSet belongs on cordoned nodes, too. `LonghornVolumeFit` is skipped, because it is /filter's own
decision.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter, mul

from scheduler_core.generic.cluster_state import GenericClusterState, NodeInfo
from scheduler_core.generic.cycle_state import NO_FACTS, CycleState, LonghornFacts, UndecidableError
from scheduler_core.generic.policy import TAINT_RULE, Policy, PolicyPredicate, PolicyPriority
from scheduler_core.generic.predicates import FITS, UNSCHEDULABLE, Check, always_fits
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES, is_longhorn_rule
from scheduler_core.model.kube import Pod
from scheduler_core.structs import Struct, replace

SelectHost = Callable[[Sequence[str]], str]
FactsFor = Callable[[Sequence[str]], LonghornFacts]
"""Computes the facts about a pod's Longhorn volumes on nodes of these names."""

NO_NODES = "no nodes available to schedule pods"
NODE_NOT_FOUND = "node does not exist"
CORDONED = UNSCHEDULABLE
NOT_READY = "node is not ready"
_CORDON_RULE = "CheckNodeUnschedulable"


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

    @property
    def message(self) -> str:
        """Why no node fits the pod, in kube-scheduler's form. Equal reasons are counted together. Where nothing can be
        decided at all, the message is that problem alone.
        """
        if self.error not in ("", NO_NODES):
            return self.error
        nodes = len(self.feasible) + len(self.unavailable) + len(self.failures)
        if not nodes:
            return NO_NODES
        counts = ", ".join(f"{count} {text}" for text, count in self.count_by_reason().items())
        return f"0/{nodes} nodes are available: {counts}."


def schedule(  # noqa: PLR0913, PLR0917 # the inputs of a decision
    pod: Pod,
    nodes: Sequence[str] | None,
    cluster: GenericClusterState,
    policy: Policy,
    select_host: SelectHost,
    facts_for: FactsFor | None = None,
) -> ScheduleResult:
    """Selects a node for the pod. The candidates are `nodes`, or all nodes. `select_host` picks one of the best nodes'
    names, which it gets in order, as `random.Random(seed).choice` does.

    A policy with Longhorn's rules needs `facts_for`; without facts no node fits these. They are checked last, on the nodes that pass all
    other rules, as kube-scheduler calls its extenders last. They judge the nodes together (a node that holds the pod's data excludes all
    others, safer nodes exclude those that are less safe), so a node that is excluded anyway must not be among them.
    """
    longhorn = [entry for entry in policy.predicates if is_longhorn_rule(entry.rule)]
    classic = tuple(entry for entry in policy.predicates if not (facts_for and is_longhorn_rule(entry.rule)))
    filtered = find_nodes_that_fit(pod, nodes, cluster, replace(policy, predicates=classic))
    facts = NO_FACTS
    if facts_for is not None and filtered.feasible:
        names = [node_info.node.name for node_info in filtered.feasible]
        facts = facts_for(names)
        last = _check_nodes(CycleState(pod, cluster, facts), policy, longhorn, filtered.feasible)
        failures = {**filtered.failures, **last.failures}
        filtered = replace(last, unavailable=filtered.unavailable, failures=failures)
    error = filtered.error
    ranking = Ranking()
    try:
        ranking = prioritize(pod, filtered.feasible, cluster, policy, facts)
    except UndecidableError as failure:
        error = str(failure)
    max_total = max(ranking.totals.values(), default=0)
    best = tuple(sorted([name for name, total in ranking.totals.items() if total == max_total]))
    return ScheduleResult(
        unavailable=filtered.unavailable,
        failures=filtered.failures,
        feasible=tuple(node_info.node.name for node_info in filtered.feasible),
        ranking=ranking,
        best=best,
        node=select_host(best) if best else "",
        error=error,
    )


def find_nodes_that_fit(
    pod: Pod, nodes: Sequence[str] | None, cluster: GenericClusterState, policy: Policy
) -> FilterResult:
    """Filters the available nodes by the policy's predicates. The candidates are `nodes`, or all nodes."""
    names = cluster.node_names if nodes is None else nodes
    available, unavailable = _split_by_availability(names, cluster.node_infos(nodes), policy)
    if not available:
        return FilterResult(unavailable, {}, (), NO_NODES)
    checked = _check_nodes(CycleState(pod, cluster), policy, policy.predicates, available)
    return replace(checked, unavailable=unavailable)


def _check_nodes(
    cycle_state: CycleState, policy: Policy, entries: Sequence[PolicyPredicate], node_infos: Sequence[NodeInfo]
) -> FilterResult:
    """Filters nodes by some of the policy's predicates."""
    local: dict[PolicyPredicate, Check] = {}
    others: dict[PolicyPredicate, Check] = {}
    # An undecidable predicate fails on every node.
    undecidable: dict[str, str] = {}
    for entry in entries:
        try:
            if entry.rule in policy.plugins.predicates:
                # A plugin's predicate checks all nodes at once, so that it is called once.
                texts_by_node = policy.plugins.texts(entry.rule, cycle_state, entry.argument, node_infos)
                others[entry] = partial(_look_up, texts_by_node)
            else:
                check = PREDICATES[entry.rule].function(cycle_state, entry.argument)
                (local if PREDICATES.is_local(entry.rule) else others)[entry] = check
        except UndecidableError as error:
            undecidable[entry.name] = str(error)
    names = [entry.name for entry in (*local, *others)]
    failures: dict[str, tuple[PredicateFailure, ...]] = {}
    feasible: list[NodeInfo] = []
    # Many nodes fail alike: they share one value.
    failures_by_texts: dict[tuple[str, ...], tuple[PredicateFailure, ...]] = {}
    for node_info, texts in zip(node_infos, _texts(cycle_state, local, others, node_infos), strict=True):
        if not texts and not undecidable:
            feasible.append(node_info)
            continue
        if texts not in failures_by_texts:
            text_by_predicate = dict(zip(names, texts, strict=bool(texts))) | undecidable
            failures_by_texts[texts] = tuple(
                PredicateFailure(entry.name, text)
                for entry in entries
                if (text := text_by_predicate.get(entry.name, FITS))
            )
        failures[node_info.node.name] = failures_by_texts[texts]
    return FilterResult({}, failures, tuple(feasible), next(iter(undecidable.values()), ""))


def _look_up(texts: Mapping[str, str], node_info: NodeInfo) -> str:
    return texts[node_info.node.name]


def _texts(
    cycle_state: CycleState,
    local: Mapping[PolicyPredicate, Check],
    others: Mapping[PolicyPredicate, Check],
    node_infos: Sequence[NodeInfo],
) -> list[tuple[str, ...]]:
    """Returns what each predicate says about each node, first the local ones, whose results are cached (`RuleResults`);
    () for a node that fits.
    """

    def check_locally(missing: Sequence[NodeInfo]) -> list[tuple[str, ...]]:
        rows = (tuple([check(node_info) for check in local.values()]) for node_info in missing)
        return [texts if any(texts) else () for texts in rows]

    rules = ("predicates", tuple((entry.rule, entry.argument) for entry in local))
    texts: list[tuple[str, ...]] = [()] * len(node_infos)
    if local:
        texts = cycle_state.cluster.results.get(rules, cycle_state.pod, node_infos, check_locally)
    if all(check is always_fits for check in others.values()):
        return [entry and (*entry, *[FITS] * len(others)) for entry in texts] if others else texts
    rows = zip(*[map(check, node_infos) for check in others.values()], strict=True)
    fits = (FITS,) * len(local)
    return [(*(texts or fits), *row) if texts or any(row) else () for texts, row in zip(texts, rows, strict=True)]


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
    local = [entry for entry in policy.priorities if PRIORITIES.is_local(entry.rule)]
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
            scores = PRIORITIES[entry.rule].function(cycle_state, entry.argument, nodes)
        columns[entry.name] = scores
        if any(scores):
            totals = [total + entry.weight * score for total, score in zip(totals, scores, strict=True)]
    return columns, totals


def _score_locally(
    cycle_state: CycleState, entries: Sequence[PolicyPriority], node_infos: Sequence[NodeInfo]
) -> list[tuple[int, ...]]:
    def evaluate(missing: Sequence[NodeInfo]) -> list[tuple[int, ...]]:
        columns = [PRIORITIES[entry.rule].function(cycle_state, entry.argument, missing) for entry in entries]
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


class PolicyRefusal(Struct, frozen=True):
    """Why a policy's predicate does not let the pod on a node."""

    # The predicate's name in the policy, and its reason; without names and numbers of nodes, so that kube-scheduler can
    # count equal ones together.
    text: str
    unresolvable: bool  # whether evicting pods would change nothing


def policy_refusals(
    pod: Pod, names: Sequence[str], cluster: GenericClusterState, policy: Policy
) -> dict[str, PolicyRefusal]:
    """Returns the nodes that the policy's predicates refuse. Each has the text of the first predicate that refuses it;
    it is unresolvable if any predicate that refuses it is. Raises an UndecidableError if a predicate cannot be decided.
    """
    entries = {entry.name: entry for entry in policy.predicates if not is_longhorn_rule(entry.rule)}
    if not entries:
        return {}
    node_infos = [node_info for node_info in cluster.node_infos(names) if node_info is not None]
    checked = _check_nodes(CycleState(pod, cluster), policy, list(entries.values()), node_infos)
    if checked.error:
        raise UndecidableError(checked.error)
    plugins = policy.plugins.predicates

    def refusal(failures: tuple[PredicateFailure, ...]) -> PolicyRefusal:
        rules = [entries[failure.predicate].rule for failure in failures]
        eviction_helps = all((plugins.get(rule) or PREDICATES[rule]).eviction_helps for rule in rules)
        return PolicyRefusal(f"{failures[0].predicate}: {failures[0].text}", unresolvable=not eviction_helps)

    refusals: dict[str, PolicyRefusal] = {}
    if len(node_infos) < len(names):
        not_found = PolicyRefusal(NODE_NOT_FOUND, unresolvable=True)
        refusals.update((name, not_found) for name in names if name not in cluster.nodes)
    # Many nodes fail alike: they share one value.
    shared = {failures: refusal(failures) for failures in set(checked.failures.values())}
    return {**refusals, **{name: shared[failures] for name, failures in checked.failures.items()}}
