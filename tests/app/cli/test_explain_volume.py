"""`explain --volume`: why a volume's next replica can or cannot be placed, rule by rule."""

import pytest

from app.cli.explain_volume import explain_volume
from scheduler_core.errors import CoreError
from tests.builders import Object, disk, longhorn_node, replica, view, volume

VOLUME = volume("v", 50, locality="disabled", actual=10, numberOfReplicas=2)


def explanation(*objects: Object) -> Object:
    return explain_volume(view(VOLUME, *objects), "v")


def test_every_disk_shows_the_rules_it_passed_with_their_numbers() -> None:
    answer = explanation(longhorn_node("n1", {"d1": disk(100, scheduled=20, available=80)}))
    (entry,) = answer["nodes"]["n1"]["disks"].values()
    assert (entry["candidate"], entry["uuid"]) == (True, "n1-d1")
    numbers = [rule["detail"] for rule in entry["rules"] if rule["detail"]]
    assert numbers == [
        "disk d1: 80Gi available - 10Gi actual size must be more than 25Gi (25 % of 100Gi)",
        "disk d1: 50Gi + 20Gi scheduled must be at most 100Gi (100 % of 100Gi - 0 reserved)",
    ]


@pytest.mark.parametrize(
    ("node", "rule"),
    [
        pytest.param(longhorn_node("n1", ready=False), "node is not ready", id="node rule"),
        pytest.param(longhorn_node("n1", {"d1": disk(allow=False)}), "disk does not allow scheduling", id="disk rule"),
        pytest.param(longhorn_node("n1", 40), "over-provisioning limit reached", id="scheduling space"),
        pytest.param(longhorn_node("n1", {"d1": disk(available=35)}), "too little available space", id="actual space"),
    ],
)
def test_the_first_rule_that_fails_ends_the_list(node: Object, rule: str) -> None:
    answer = explanation(node)
    entry = answer["nodes"]["n1"]
    disks = entry["disks"].values()
    (rules, *_) = [each["rules"] for each in (entry, *disks) if not each["rules"][-1]["passed"]]
    assert rules[-1]["rule"] == rule
    assert rule not in [passed["rule"] for passed in rules[:-1]]
    assert not any(each["candidate"] for each in disks)
    assert answer["candidates"] == []


def test_anti_affinity_keeps_replicas_apart() -> None:
    answer = explanation(longhorn_node("n1"), longhorn_node("n2"), replica("r1", "v", "n1", size=50))
    assert answer["nodes"]["n1"]["rules"][-1]["rule"] == "node has a replica of the volume"
    assert [(entry["node"], entry["chosen"]) for entry in answer["candidates"]] == [("n2", "the only candidate")]


def test_an_unplaced_replica_is_explained() -> None:
    answer = explanation(longhorn_node("n1"), longhorn_node("n2"), replica("r1", "v", size=50, hardNodeAffinity="n2"))
    assert (answer["nextReplica"], [entry["node"] for entry in answer["candidates"]]) == ("r1", ["n2"])
    assert answer["nodes"]["n1"]["rules"][-1]["rule"] == "replica must be on another node"


def test_longhorns_own_reasons_are_reported() -> None:
    """They are what the volume's condition would say, which has none for node tags."""
    assert explanation(longhorn_node("n1", 40))["reasons"] == ["insufficient storage"]
    tagged = explain_volume(view(volume("v", nodeSelector=["fast"]), longhorn_node("n1")), "v")
    assert (tagged["candidates"], tagged["reasons"]) == ([], [])


def test_a_volume_with_data_locality_waits_for_its_attachment() -> None:
    answer = explain_volume(view(volume("v"), longhorn_node("n1")), "v")
    assert answer["waitsForAttachment"]


def test_an_unknown_volume_is_named() -> None:
    with pytest.raises(CoreError, match=r"no volumes\.longhorn\.io w in the snapshot; there are v"):
        explain_volume(view(VOLUME), "w")
