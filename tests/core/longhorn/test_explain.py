"""explain: every node and disk with the rule that refuses it, in agreement with the candidates."""

from typing import Any

import pytest

from scheduler_core.longhorn.anti_affinity import Tier
from scheduler_core.longhorn.new_volume_placement import PlacementExplanation, explain
from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, node, replica, volume


def explain_next(
    *nodes: lh.Node, replicas: tuple[lh.Replica, ...] = (), settings: dict[str, str] | None = None, **volume_fields: Any
) -> PlacementExplanation:
    """Explains where one more replica may go."""
    return explain(
        cluster(*nodes, replicas=replicas, settings=settings),
        ReplicaRequest.for_volume(volume(**volume_fields)),
        replicas,
    )


def rules(explanation: PlacementExplanation) -> dict[str, str]:
    """The rule against each node and disk; a node without one has its tier, such a disk "open"."""
    verdicts: dict[str, str] = {}
    for entry in explanation.nodes:
        name = entry.node.name
        verdicts[name] = entry.refusal.rule.name if entry.refusal else entry.tier.name if entry.tier else "?"
        for verdict in entry.disks:
            verdicts[f"{name}/{verdict.disk.name}"] = verdict.refusal.rule.name if verdict.refusal else "open"
    return verdicts


def test_every_node_and_disk_has_a_verdict() -> None:
    explanation = explain_next(
        node("n1", disk("d1"), disk("d2", spec_type="block")),
        node("n2", conditions=conditions(Ready="False")),
        node("n3", disk(storage_scheduled=95 * GIB)),
    )
    assert rules(explanation) == {
        "n1": "UNUSED_ZONE",
        "n1/d1": "open",
        "n1/d2": "DISK_TYPE",
        "n2": "NODE_NOT_READY",
        "n2/d1": "open",
        "n3": "UNUSED_ZONE",
        "n3/d1": "SCHEDULING_SPACE",
    }


def test_a_refusal_by_anti_affinity_is_named() -> None:
    nodes = (node("n1", zone="a"), node("n2", zone="a"), node("n3", zone="b"))
    rule_names = rules(explain_next(*nodes, replicas=(replica("r", "n1/d1"),)))
    assert (rule_names["n1"], rule_names["n2"], rule_names["n3"]) == (
        "NODE_ANTI_AFFINITY",
        "ZONE_ANTI_AFFINITY",
        "UNUSED_ZONE",
    )


def test_the_disk_that_holds_a_replica_is_refused() -> None:
    settings = {"replica-soft-anti-affinity": "true"}
    explanation = explain_next(node("n1", disk("d1"), disk("d2")), replicas=(replica("r", "n1/d1"),), settings=settings)
    assert rules(explanation) == {"n1": "USED_NODE", "n1/d1": "DISK_ANTI_AFFINITY", "n1/d2": "open"}


def test_each_disk_has_its_free_space() -> None:
    explanation = explain_next(node("n1"), replicas=(replica("r", "n1/d1"),))
    assert explanation.nodes[0].disks[0].space.free == 90 * GIB


@pytest.mark.parametrize("name", ["replica-soft-anti-affinity", "allow-empty-disk-selector-volume"])
def test_an_unreadable_setting_is_named(name: str) -> None:
    explanation = explain_next(node("n1"), settings={name: "maybe"})
    stopped = explanation.refusal is not None and explanation.refusal.rule is Rule.SETTING_FAULT
    assert stopped or rules(explanation)["n1/d1"] == "SETTING_FAULT"


def test_the_explanation_has_the_candidates_with_their_tier() -> None:
    explanation = explain_next(node("n1"))
    assert explanation.candidates.tier is Tier.UNUSED_ZONE
    assert explanation.refusal is None
