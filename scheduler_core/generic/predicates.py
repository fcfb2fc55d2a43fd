"""The classic predicates, and Longhorn's: may the pod run on a node?

A predicate takes a `CycleState` and returns a check of one node. The check returns "" where the pod fits, otherwise a
fixed text without names or numbers, so that equal refusals can be counted. Values that are the same for all nodes are
computed before the first node is checked. Sources: Kubernetes 1.1,
plugin/pkg/scheduler/algorithm/predicates/predicates.go; the function is named in each docstring.

Predicates of later Kubernetes versions decide as the plugins of kube-scheduler 1.36 do (pkg/scheduler/framework/plugins; the plugin is
named in each docstring). A policy that names none of them decides as Kubernetes 1.1. The first ones of them are about one node: resources,
ports, node affinity, taints. The others are about groups of nodes: affinity between pods, and topology spread. A domain is all nodes with one
value of a label, the topology key. Finished pods never count there.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from scheduler_core.generic.cluster_state import NodeInfo
from scheduler_core.generic.cycle_state import Argument, CycleState, UndecidableError
from scheduler_core.model import generic, kube
from scheduler_core.model.constraints import Cloud, LabelSelector, PodAffinityTerm, SpreadConstraint, Taint
from scheduler_core.structs import replace

Check = Callable[[NodeInfo], str]
Predicate = Callable[[CycleState, Argument], Check]

FITS = ""
PORT_TAKEN = "host port is in use"
TOO_MANY_PODS = "too many pods"
NO_CPU = "insufficient CPU"
NO_MEMORY = "insufficient memory"
NO_CPU_NOR_MEMORY = "insufficient CPU and memory"
DISK_IN_USE = "cloud disk is in use"
SELECTOR_MISMATCH = "node selector does not match"
OTHER_HOST = "pod names another node"
SERVICE_AFFINITY_MISMATCH = "service affinity does not match"
LABEL_MISSING = "a required node label is missing"
LABEL_PRESENT = "an unwanted node label is present"
NOT_EVALUATED = "node was not looked at for Longhorn volumes"


def always_fits(_: NodeInfo) -> str:
    return FITS


def pod_fits_ports(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's host ports are free (PodFitsHostPorts); protocol and host IP are not compared."""
    ports = cycle_state.pod.scheduling.ports
    if not ports:
        return always_fits
    return lambda node_info: FITS if ports.isdisjoint(node_info.used_ports) else PORT_TAKEN


def pod_fits_resources(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's requests fit (PodFitsResources). One more pod must be allowed. The sum of requests must be
    within the capacity. A pod that requests neither CPU nor memory fits whatever is requested already; for a pod that
    requests one of them both are checked. A capacity of 0 is no limit, except for the number of pods.
    """
    cpu = cycle_state.pod.scheduling.cpu
    memory = cycle_state.pod.scheduling.memory

    def check(node_info: NodeInfo) -> str:
        node = node_info.node
        if node_info.pod_count + 1 > node.pods:
            return TOO_MANY_PODS
        if not cpu and not memory:
            return FITS
        no_cpu = bool(node.cpu) and node_info.requested_cpu + cpu > node.cpu
        if node.memory and node_info.requested_memory + memory > node.memory:
            return NO_CPU_NOR_MEMORY if no_cpu else NO_MEMORY
        return NO_CPU if no_cpu else FITS

    return check


def no_disk_conflict(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's cloud disks can be mounted (NoDiskConflict). A disk that is mounted on the node already cannot,
    unless it is Google's and all pods mount it read-only.
    """
    disks = cycle_state.pod.scheduling.disks
    if not disks:
        return always_fits

    def check(node_info: NodeInfo) -> str:
        for disk in disks:
            mounted_read_only = node_info.disks.get((disk.cloud, disk.name))
            if mounted_read_only is None:
                continue
            if not (disk.cloud is Cloud.GCE and mounted_read_only and disk.read_only):
                return DISK_IN_USE
        return FITS

    return check


def match_node_selector(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the node has every label of the pod's node selector, with the same value (PodMatchesNodeLabels)."""
    selector = cycle_state.pod.scheduling.node_selector
    if not selector:
        return always_fits
    return lambda node_info: FITS if selector <= node_info.node.labels.items() else SELECTOR_MISMATCH


def host_name(cycle_state: CycleState, _: Argument) -> Check:
    """Whether spec.nodeName is empty or the node's name (PodFitsHost)."""
    name = cycle_state.pod.node_name
    if not name:
        return always_fits
    return lambda node_info: FITS if node_info.node.name == name else OTHER_HOST


def service_affinity(cycle_state: CycleState, argument: Argument) -> Check:
    """Whether the node matches the pod's service affinity (CheckServiceAffinity). The required value of each label in
    the argument is the one in the pod's node selector, with or without a service; otherwise that of the node of the
    first pod of the pod's first service. A label that is in neither place is not required. Raises an UndecidableError
    if that node does not exist, or is cordoned; Kubernetes 1.1 does not distinguish these.
    """
    selector = dict(cycle_state.pod.scheduling.node_selector)
    required_labels = {label: selector[label] for label in argument.labels if label in selector}
    if len(required_labels) < len(set(argument.labels)) and cycle_state.first_service_pods:
        labels = _first_service_node(cycle_state).labels
        required_labels = {label: labels[label] for label in argument.labels if label in labels} | required_labels
    if not required_labels:
        return always_fits
    if len(required_labels) == 1:
        # Comparing one value costs a third of comparing sets, and is the most frequent case.
        ((label, value),) = required_labels.items()
        return lambda node_info: FITS if node_info.node.labels.get(label) == value else SERVICE_AFFINITY_MISMATCH
    required = required_labels.items()
    return lambda node_info: FITS if required <= node_info.node.labels.items() else SERVICE_AFFINITY_MISMATCH


def _first_service_node(cycle_state: CycleState) -> generic.Node:
    first_pod = cycle_state.first_service_pods[min(cycle_state.first_service_pods)]
    node_info = cycle_state.cluster.nodes.get(first_pod.node_name)
    if node_info is None or node_info.node.unschedulable:
        raise UndecidableError(
            f"node {first_pod.node_name!r} of pod {first_pod.namespace}/{first_pod.name}, which service affinity follows, is "
            + ("not known" if node_info is None else "cordoned")
        )
    return node_info.node


def labels_presence(_: CycleState, argument: Argument) -> Check:
    """Whether the node has all labels, or with `presence` false none of them (CheckNodeLabelPresence)."""
    # The labels' values do not matter.
    labels = frozenset(argument.labels)
    if argument.presence:
        return lambda node_info: FITS if labels <= node_info.node.labels.keys() else LABEL_MISSING
    return lambda node_info: FITS if labels.isdisjoint(node_info.node.labels) else LABEL_PRESENT


def volume_fit(cycle_state: CycleState, _: Argument) -> Check:
    """Whether /filter accepts the node for the pod's Longhorn volumes. All volumes fit on the node together, or need no
    space there; a refusal has /filter's reason.
    """
    facts_by_node = cycle_state.longhorn_facts.nodes

    def check(node_info: NodeInfo) -> str:
        facts = facts_by_node.get(node_info.node.name)
        if facts is None:
            return NOT_EVALUATED
        return FITS if facts.reason.fits else facts.reason.text

    return check


AFFINITY_MISMATCH = "node selector or node affinity does not match"
UNTOLERATED_TAINT = "node has a taint that the pod does not tolerate"
UNSCHEDULABLE = "node is unschedulable"
_UNSCHEDULABLE_TAINT = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
# PreferNoSchedule is a preference.
_HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
_CORE_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})
_NATIVE_PREFIXES = ("hugepages-", "attachable-volumes-")

NodeTest = Callable[[generic.Node], bool]


def node_resources_fit(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's requests fit, of every resource (plugin NodeResourcesFit). They are compared with what is
    allocatable. One more pod must be allowed. A resource that the pod does not request is not checked, and what the
    node does not have counts as 0.
    """
    requests = sorted(
        (name, amount)
        for name, amount in cycle_state.pod.scheduling.constraints.requests
        if amount and _kube_scheduler_counts(name)
    )

    def check(node_info: NodeInfo) -> str:
        allocatable = node_info.node.allocatable
        problems = [TOO_MANY_PODS] if node_info.pod_count + 1 > allocatable.get("pods", 0) else []
        problems += [
            f"insufficient {name}"
            for name, amount in requests
            if amount > allocatable.get(name, 0) - node_info.requested.get(name, 0)
        ]
        return " and ".join(problems)

    return check


def _kube_scheduler_counts(resource: str) -> bool:
    """Whether kube-scheduler counts a resource (IsScalarResourceName, and the core ones)."""
    return resource in _CORE_RESOURCES or "/" in resource or resource.startswith(_NATIVE_PREFIXES)


def node_ports(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's host ports are free (plugin NodePorts). Protocols and host IPs are compared; a port on all
    addresses conflicts with the same port on any address.
    """
    wanted = cycle_state.pod.scheduling.constraints.host_ports

    def check(node_info: NodeInfo) -> str:
        conflict = any(port.conflicts(used) for port in wanted for used in node_info.host_ports)
        return PORT_TAKEN if conflict else FITS

    return check


def node_affinity(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the node matches node selector and required node affinity (plugin NodeAffinity)."""
    matches = affinity_test(cycle_state.pod)
    return lambda node_info: FITS if matches(node_info.node) else AFFINITY_MISMATCH


def affinity_test(pod: kube.Pod) -> NodeTest:
    """Returns whether a node matches a pod's selector and required affinity (RequiredNodeAffinity.Match)."""
    selector = pod.scheduling.node_selector
    terms = pod.scheduling.constraints.node_affinity

    def matches(node: generic.Node) -> bool:
        if not selector <= node.labels.items():
            return False
        return terms is None or any(term.matches(node.name, node.labels) for term in terms)

    return matches


def pod_tolerates_node_taints(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod tolerates the node's taints with the effects NoSchedule and NoExecute (plugin TaintToleration)."""
    tolerates = taint_test(cycle_state.pod)
    return lambda node_info: FITS if tolerates(node_info.node) else UNTOLERATED_TAINT


def taint_test(pod: kube.Pod) -> NodeTest:
    """Returns whether a pod tolerates a node's taints (FindMatchingUntoleratedTaint)."""
    return lambda node: all(taint.effect not in _HARD_EFFECTS or _tolerates(pod, taint) for taint in node.taints)


def _tolerates(pod: kube.Pod, taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in pod.scheduling.constraints.tolerations)


def check_node_unschedulable(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the node is not cordoned, or the pod tolerates that (plugin NodeUnschedulable)."""
    tolerated = _tolerates(cycle_state.pod, _UNSCHEDULABLE_TAINT)
    return lambda node_info: UNSCHEDULABLE if node_info.node.unschedulable and not tolerated else FITS


POD_AFFINITY = "pod affinity does not match"
POD_ANTI_AFFINITY = "pod anti-affinity does not match"
EXISTING_ANTI_AFFINITY = "anti-affinity of a pod there does not match"
SPREAD_LABEL_MISSING = "topology label of a spread constraint is missing"
SPREAD_MISMATCH = "topology spread constraint does not match"

_Domain: TypeAlias = tuple[str, str]
_Terms: TypeAlias = Sequence[PodAffinityTerm]


def match_inter_pod_affinity(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's required affinity and anti-affinity, and the anti-affinity of the pods in the node's domains,
    allow the node (plugin InterPodAffinity).
    """
    pod = cycle_state.pod
    affinity = [_with_namespaces(term, cycle_state) for term in pod.scheduling.constraints.pod_affinity]
    anti_affinity = [_with_namespaces(term, cycle_state) for term in pod.scheduling.constraints.pod_anti_affinity]
    excluded = closed_domains(cycle_state)
    attracting: set[_Domain] = set()
    repelling: set[_Domain] = set()
    if affinity or anti_affinity:
        placed = ((each.node, pod) for each in cycle_state.cluster.nodes.values() for pod in each.pods)
        for node, existing in ((node, pod) for node, pod in placed if not pod.finished):
            if affinity and _matches_all(affinity, existing):
                attracting.update(_domains(affinity, node))
            repelling.update(_domains([term for term in anti_affinity if _matches(term, existing)], node))
    # The first of several pods that want to be together has none to join.
    may_be_first = not attracting and _matches_all(affinity, pod)
    if not affinity and not anti_affinity and not excluded:
        return always_fits

    def check(node_info: NodeInfo) -> str:
        node = node_info.node
        own = _domains(affinity, node)
        if len(own) < len(affinity) or not (may_be_first or attracting.issuperset(own)):
            return POD_AFFINITY
        if not repelling.isdisjoint(_domains(anti_affinity, node)):
            return POD_ANTI_AFFINITY
        return EXISTING_ANTI_AFFINITY if excluded and not excluded.isdisjoint(node.labels.items()) else FITS

    return check


def _with_namespaces(term: PodAffinityTerm, cycle_state: CycleState) -> PodAffinityTerm:
    """The term with the names of the namespaces that it selects (mergeAffinityTermNamespacesIfNotEmpty)."""
    # The selector stays, as in kube-scheduler, which goes on to match it with no labels at all. So one that matches
    # these, such as `DoesNotExist`, selects every namespace in the pod's own terms.
    selector = term.namespace_selector
    if selector is None or selector.matches_everything:
        return term
    names = frozenset(name for name, labels in cycle_state.cluster.namespaces.items() if selector.matches(labels))
    return replace(term, namespaces=term.namespaces | names)


def closed_domains(cycle_state: CycleState) -> frozenset[_Domain]:
    """The domains that existing pods' anti-affinity closes to the pod."""
    pod = cycle_state.pod
    namespace_labels = cycle_state.cluster.namespaces.get(pod.namespace, frozenset())
    cluster = cycle_state.cluster
    closed: set[_Domain] = set()
    for node_info in map(cluster.nodes.__getitem__, cluster.constrained_nodes):
        for existing in node_info.anti_affinity_pods:
            terms = existing.scheduling.constraints.pod_anti_affinity
            matching = [term for term in terms if term.matches(pod.namespace, namespace_labels, pod.scheduling.labels)]
            closed.update(_domains(matching, node_info.node))
    return frozenset(closed)


def _matches(term: PodAffinityTerm, pod: kube.Pod) -> bool:
    return term.matches(pod.namespace, frozenset(), pod.scheduling.labels)


def _matches_all(terms: _Terms, pod: kube.Pod) -> bool:
    """Whether a pod matches all terms (podMatchesAllAffinityTerms); false without a term."""
    return bool(terms) and all(_matches(term, pod) for term in terms)


def _domains(terms: Iterable[PodAffinityTerm], node: generic.Node) -> list[_Domain]:
    keys = [term.topology_key for term in terms]
    return [(key, node.labels[key]) for key in keys if key in node.labels]


def even_pods_spread(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's DoNotSchedule spread constraints allow the node (plugin PodTopologySpread)."""
    constraints = cycle_state.pod.scheduling.constraints.spread
    if not constraints:
        return always_fits
    labels = cycle_state.pod.scheduling.labels
    checked: list[tuple[str, Counter[str], int]] = []
    for constraint, counts in zip(constraints, _spread_counts(cycle_state, constraints), strict=True):
        # How many pods a domain may have with one more pod: minMatchNum plus maxSkew.
        min_count = min(counts.values()) if counts and len(counts) >= constraint.min_domains else 0
        max_count = min_count + constraint.max_skew - int(constraint.selects(labels))
        checked.append((constraint.topology_key, counts, max_count))

    def check(node_info: NodeInfo) -> str:
        for key, counts, max_count in checked:
            value = node_info.node.labels.get(key)
            if value is None:
                return SPREAD_LABEL_MISSING
            if counts[value] > max_count:
                return SPREAD_MISMATCH
        return FITS

    return check


def _spread_counts(cycle_state: CycleState, constraints: Sequence[SpreadConstraint]) -> list[Counter[str]]:
    """The matching pods of each domain, per constraint (calPreFilterState)."""
    # Only nodes with the labels of all constraints count.
    pod = cycle_state.pod
    matches_affinity = affinity_test(pod)
    tolerates = taint_test(pod)
    counts: list[Counter[str]] = [Counter() for _ in constraints]
    for node_info in cycle_state.cluster.nodes.values():
        node = node_info.node
        if not all(constraint.topology_key in node.labels for constraint in constraints):
            continue
        for constraint, count in zip(constraints, counts, strict=True):
            if constraint.honor_affinity and not matches_affinity(node):
                continue
            if constraint.honor_taints and not tolerates(node):
                continue
            count[node.labels[constraint.topology_key]] += _count_pods(node_info, constraint.selector, pod.namespace)
    return counts


def _count_pods(node_info: NodeInfo, selector: LabelSelector | None, namespace: str) -> int:
    """The node's pods that a selector selects (countPodsMatchSelector)."""
    # Pods that are being deleted do not count, and a selector without any part counts none.
    if selector is None or selector.matches_everything:
        return 0
    return sum(
        pod.namespace == namespace and not pod.finished and not pod.deleting and selector.matches(pod.scheduling.labels)
        for pod in node_info.pods
    )
