"""The first stage: which nodes may take a replica at all, whatever their disks (scheduler/replica_scheduler.go)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.linked_clone import source_missing, sources
from scheduler_core.longhorn.readiness import engine_image_ready, instance_manager_ready, v2_disabled
from scheduler_core.longhorn.replica_request import Ask, is_v2
from scheduler_core.longhorn.rules import Refusal, Rule
from scheduler_core.longhorn.tags import listed, selectors_match
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import Node, TopologyTerm

NodeRule = Callable[[Cluster, Ask, Node], Refusal | None]


def node_refusal(cluster: Cluster, ask: Ask, node: Node) -> Refusal | None:
    """The first rule that refuses a node, or None: the schedulable ones, then the candidates, then the tags.

    Anti-affinity is not looked at: it needs all nodes (`placement`).
    """
    return (
        schedulable_refusal(cluster, ask, node)
        or linked_clone_refusal(cluster, ask, node)
        or candidate_refusal(cluster, ask, node)
        or tag_refusal(cluster, ask, node)
    )


def schedulable_refusal(cluster: Cluster, ask: Ask, node: Node) -> Refusal | None:
    """Why ListSchedulableNodes leaves a node out. node.spec.evictionRequested is not looked at."""
    if node.deleting:
        return Refusal(Rule.NODE_DELETING, f"node {node.name} is being deleted")
    if not node.ready:
        return _condition_refusal(Rule.NODE_NOT_READY, node, "Ready")
    if not node.schedulable:
        return _condition_refusal(Rule.NODE_NOT_SCHEDULABLE, node, "Schedulable")
    if not node.allow_scheduling:
        return Refusal(Rule.NODE_SCHEDULING_DISABLED, f"node {node.name} has allowScheduling false")
    return _v2_refusal(cluster, ask.volume.data_engine, node)


def _condition_refusal(rule: Rule, node: Node, kind: str) -> Refusal:
    found = condition(node.conditions, kind)
    because = found.reason or found.message
    return Refusal(rule, f"node {node.name} has condition {kind}={found.status}" + (because and f" ({because})"))


def _v2_refusal(cluster: Cluster, data_engine: str, node: Node) -> Refusal | None:
    if is_v2(data_engine) and v2_disabled(cluster, node.name):
        return Refusal(Rule.V2_DISABLED, f"node {node.name} has the v2 data engine disabled, or no Kubernetes node")
    return None


def linked_clone_refusal(cluster: Cluster, ask: Ask, node: Node) -> Refusal | None:
    """Why FindDiskCandidates leaves a node out for a linked clone."""
    if not ask.linked_clone:
        return None
    if source_missing(cluster, ask):
        return Refusal(Rule.LINKED_CLONE_SOURCE_MISSING, f"source replica {ask.linked_clone_source} does not exist")
    if node.name not in sources(cluster, ask).nodes:
        return Refusal(Rule.LINKED_CLONE, f"node {node.name} has no healthy replica of the cloned volume")
    return None


def hard_affinity_refusal(_cluster: Cluster, ask: Ask, node: Node) -> Refusal | None:
    """Why getNodeCandidates leaves a node out: the replica may be on one node only."""
    if ask.hard_node_affinity in ("", node.name):
        return None
    return Refusal(Rule.HARD_NODE_AFFINITY, f"the replica must be on node {ask.hard_node_affinity}")


def topology_refusal(_cluster: Cluster, ask: Ask, node: Node) -> Refusal | None:
    """Why getNodeCandidates leaves a node out: no term of volume.spec.topologyRequirement matches it."""
    terms = ask.volume.topology_requirement
    if not terms or any(_matches(term, node) for term in terms):
        return None
    return Refusal(
        Rule.TOPOLOGY, f"node {node.name} (zone {node.zone!r}, region {node.region!r}) matches no topology term"
    )


def _matches(term: TopologyTerm, node: Node) -> bool:
    return term.zone in ("", node.zone) and term.region in ("", node.region)


def engine_refusal(cluster: Cluster, ask: Ask, node: Node) -> Refusal | None:
    """Why getNodeCandidates leaves a node out: nothing there can run the replica. The replica's engine decides."""
    refusal = _v2_refusal(cluster, ask.data_engine, node)
    if refusal is not None:
        return refusal
    if not instance_manager_ready(cluster, ask.data_engine, node.name):
        return Refusal(Rule.INSTANCE_MANAGER, f"node {node.name} has no ready {ask.data_engine} instance manager")
    if not engine_image_ready(cluster, ask.data_engine, ask.image, node.name):
        image = ask.image or "the default engine image"
        return Refusal(Rule.ENGINE_IMAGE, f"node {node.name} does not have {image} deployed")
    return None


CANDIDATE_RULES: Final[tuple[NodeRule, ...]] = (hard_affinity_refusal, topology_refusal, engine_refusal)
"""getNodeCandidates, in Longhorn's order."""


def candidate_refusal(cluster: Cluster, ask: Ask, node: Node) -> Refusal | None:
    """Why getNodeCandidates leaves a node out."""
    for rule in CANDIDATE_RULES:
        refusal = rule(cluster, ask, node)
        if refusal is not None:
            return refusal
    return None


def tag_refusal(cluster: Cluster, ask: Ask, node: Node) -> Refusal | None:
    """Why getDiskCandidates keeps a node out of the tiers; Longhorn reports nothing about it."""
    allow_empty = cluster.settings.allow_empty_node_selector_volume
    if not selectors_match(node.tags, ask.volume.node_selector, allow_empty):
        wanted = listed(ask.volume.node_selector)
        return Refusal(Rule.NODE_TAGS, f"node {node.name} has tags {listed(node.tags)}, the volume selects {wanted}")
    if not ask.volume.backing_image:
        return None
    image = cluster.backing_image(ask.volume.backing_image)
    if image is None:
        return Refusal(Rule.BACKING_IMAGE_MISSING, f"backing image {ask.volume.backing_image} does not exist")
    if not selectors_match(node.tags, image.node_selector, allow_empty):
        wanted = listed(image.node_selector)
        return Refusal(
            Rule.BACKING_IMAGE_NODE_TAGS,
            f"node {node.name} has tags {listed(node.tags)}, backing image {image.name} selects {wanted}",
        )
    return None
