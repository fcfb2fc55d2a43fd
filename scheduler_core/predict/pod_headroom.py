"""How many more pods of a template fit.

It also says what refuses the first one that does not. One order: the pods that wait already are placed first.
Then pods of the template follow, one after the other: the production decision, one of the offered nodes
at random, the volumes attached, and Longhorn's placement of their replicas. The order ends with the first pod without a
node, or with a volume that lacks a replica.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count, islice

from scheduler_core.decide import decision, explain, kube_scheduler_filters
from scheduler_core.model.generic import PodKey
from scheduler_core.predict import cluster_additions, pod_decision, predicted_replicas, prediction
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.predict.timeline import Timeline
from scheduler_core.structs import Struct


class FirstRefusal(Struct, frozen=True):
    """The first pod of an order that does not fit."""

    key: PodKey
    cluster: PredictedCluster  # before this pod, with the pod waiting
    reasons: Counter[str]  # number of nodes per reason; 0 for a reason that is not about nodes


class HeadroomOrder(Struct, frozen=True):
    """The pods of one order."""

    nodes: tuple[str, ...]  # the node of each placed pod, in order
    refused: FirstRefusal | None = None  # None if the limit was reached


class ClosestNode(Struct, frozen=True):
    """The node that came closest to a refused pod."""

    node: str
    reason: str  # why the pod does not fit there
    detail: str = ""  # the numbers, as a sentence, "" without any
    missing: int = 0  # bytes that a disk lacks, 0 if that is not what is missing


class Headroom(Struct, frozen=True):
    """The result of all orders."""

    limit: int
    orders: int
    least: int  # how many pods fit, over all orders; `limit` means at least that many
    most: int  # how many pods fit, over all orders; `limit` means at least that many
    nodes: Mapping[str, tuple[int, int]]  # the least and the most pods on each node that takes one
    # Why the first pod that does not fit is refused, with the number of orders, most frequent first.
    refusals: Mapping[str, int]
    tightest: HeadroomOrder  # the order with the fewest pods

    @property
    def limit_reached(self) -> bool:
        """Whether more pods may fit than were tried, in every order."""
        return self.least >= self.limit


def fill_with_pods(
    cluster: PredictedCluster,
    template: cluster_additions.Workload,
    options: decision.FilterOptions,
    choose: predicted_replicas.Choose,
    limit: int,
) -> HeadroomOrder:
    """Places pods of a template until one does not fit, at most `limit`; `choose` makes every choice that depends on
    chance in the cluster.
    """
    timeline = Timeline(Situation(cluster), pod_decision.PodDecider(options), choose)
    timeline.play()
    pods = timeline.cluster.snapshot.pods
    unused = (number for number in count() if (template.namespace, template.pod_name(number)) not in pods)
    nodes: list[str] = []
    for pod in map(template.new_pod, islice(unused, limit)):
        before = timeline.cluster
        reasons = timeline.add_pod(pod)
        if reasons:
            return HeadroomOrder(tuple(nodes), FirstRefusal(pod.namespaced_name, before.with_pod(pod), reasons))
        nodes.append(timeline.cluster.snapshot.pods[pod.namespaced_name].node_name)
    return HeadroomOrder(tuple(nodes))


def summarize_headroom(orders: Sequence[HeadroomOrder], limit: int) -> Headroom:
    """Returns what all orders have in common; `orders` has at least one."""
    counts = [len(order.nodes) for order in orders]
    by_node = [Counter(order.nodes) for order in orders]
    names = sorted({name for counter in by_node for name in counter})
    return Headroom(
        limit=limit,
        orders=len(orders),
        least=min(counts),
        most=max(counts),
        nodes={name: (min(each[name] for each in by_node), max(each[name] for each in by_node)) for name in names},
        refusals=prediction.sort_by_count(
            prediction.refusal_text(order.refused.reasons) for order in orders if order.refused is not None
        ),
        tightest=min(orders, key=lambda order: len(order.nodes)),
    )


def closest_node(refused: FirstRefusal, options: decision.FilterOptions) -> ClosestNode | None:
    """Returns the node that came closest to a refused pod, None if no single node refused it. A node that
    kube-scheduler's own filters admit is closer than one that they refuse, and then the one that lacks the fewest
    bytes. Raises a ResolutionError if an object the pod names does not exist or contradicts it.
    """
    cluster = refused.cluster
    names = cluster.node_names
    if not names or not all(refused.reasons.values()):
        return None
    pod = cluster.snapshot.pods[refused.key]
    claims = cluster.pod_claims(pod)
    refusals = kube_scheduler_filters.kube_scheduler_refusals(pod, names, cluster.scheduling, claims)
    admitted = [name for name in names if name not in refusals]
    if not admitted:
        name = min(names)
        return ClosestNode(name, refusals[name].text, refusals[name].plugin)
    state = cluster.state
    explanation = explain.explain_nodes(pod, admitted, state, options, decision.Competing.without_offers(state))
    verdicts = dict(zip(admitted, explanation.verdicts, strict=True))
    name = min(verdicts, key=lambda name: (not verdicts[name].missing, verdicts[name].missing, name))
    verdict = verdicts[name]
    return ClosestNode(name, verdict.reason.text, verdict.detail, verdict.missing)
