"""explain: every node and disk with the rule that refuses it, in agreement with the candidates."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.longhorn.anti_affinity import Tier
from scheduler_core.longhorn.explain import PlacementExplanation, explain
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.rules import Rule
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, node, replica, volume


def explained(
    *nodes: lh.Node, replicas: tuple[lh.Replica, ...] = (), settings: dict[str, str] | None = None, **asked: Any
) -> PlacementExplanation:
    """The explanation for one more replica."""
    return explain(
        cluster(*nodes, replicas=replicas, settings=settings), ReplicaRequest.for_volume(volume(**asked)), replicas
    )


def rules(found: PlacementExplanation) -> dict[str, str]:
    """The rule by node and by node/disk, the tier or "open" where there is none."""
    verdicts: dict[str, str] = {}
    for entry in found.nodes:
        name = entry.node.name
        verdicts[name] = entry.refusal.rule.name if entry.refusal else entry.tier.name if entry.tier else "?"
        for each in entry.disks:
            verdicts[f"{name}/{each.disk.name}"] = each.refusal.rule.name if each.refusal else "open"
    return verdicts


def test_every_node_and_disk_has_a_verdict() -> None:
    """Refused nodes show what their disks would say."""
    found = explained(
        node("n1", disk("d1"), disk("d2", spec_type="block")),
        node("n2", conditions=conditions(Ready="False")),
        node("n3", disk(storage_scheduled=95 * GIB)),
    )
    assert rules(found) == {
        "n1": "UNUSED_ZONE",
        "n1/d1": "open",
        "n1/d2": "DISK_TYPE",
        "n2": "NODE_NOT_READY",
        "n2/d1": "open",
        "n3": "UNUSED_ZONE",
        "n3/d1": "SCHEDULING_SPACE",
    }


def test_anti_affinity_is_named() -> None:
    """What Longhorn never reports: the node, the zone or the disk is taken."""
    nodes = (node("n1", zone="a"), node("n2", zone="a"), node("n3", zone="b"))
    found = rules(explained(*nodes, replicas=(replica("r", "n1/d1"),)))
    assert (found["n1"], found["n2"], found["n3"]) == ("NODE_ANTI_AFFINITY", "ZONE_ANTI_AFFINITY", "UNUSED_ZONE")


def test_the_disk_with_a_replica_is_named() -> None:
    """The last resort of a node prefers its other disk."""
    settings = {"replica-soft-anti-affinity": "true"}
    found = explained(node("n1", disk("d1"), disk("d2")), replicas=(replica("r", "n1/d1"),), settings=settings)
    assert rules(found) == {"n1": "USED_NODE", "n1/d1": "DISK_ANTI_AFFINITY", "n1/d2": "open"}


def test_the_room_of_each_disk_is_told() -> None:
    """With the replicas that are not reported yet."""
    found = explained(node("n1"), replicas=(replica("r", "n1/d1"),))
    assert found.nodes[0].disks[0].space.free == 90 * GIB


@pytest.mark.parametrize("name", ["replica-soft-anti-affinity", "allow-empty-disk-selector-volume"])
def test_a_bad_setting_is_named(name: str) -> None:
    """Before any node, or on each disk."""
    found = explained(node("n1"), settings={name: "maybe"})
    stopped = found.refusal is not None and found.refusal.rule is Rule.SETTING_FAULT
    assert stopped or rules(found)["n1/d1"] == "SETTING_FAULT"


def test_the_winning_tier_is_told() -> None:
    """Together with the candidates."""
    found = explained(node("n1"))
    assert found.candidates.tier is Tier.UNUSED_ZONE
    assert found.refusal is None
