"""A pod's own volumes without data locality: Longhorn may place them first, in the way of the local ones."""

import json
from pathlib import Path

import pytest

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.explain import explain_nodes
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.model.verdict import Meeting, Reason
from tests.builders import (
    Object,
    as_pod,
    bound,
    claim,
    competing,
    disk,
    explained,
    longhorn_node,
    pod,
    reasons,
    replica,
    setting,
    state,
    storage_class,
)

CASE = Path(__file__).parents[2] / "golden/decision/own-remote.json"
CLASSES = [storage_class(), storage_class("plain", dataLocality="disabled")]
SOFT_NODE = setting("replica-soft-anti-affinity", "true")
HARD_ZONE = setting("replica-zone-soft-anti-affinity", "false")
HARD_DISK = setting("replica-disk-soft-anti-affinity", "false")
SOFT_DISK = setting("replica-disk-soft-anti-affinity", "true")
EXACT = FilterOptions(packing=Packing.EXACT)
STALE_SAFE = FilterOptions(packing=Packing.STALE_SAFE)


def node(name: str, *sizes: float, zone: str = "") -> Object:
    """A node with a disk of each size in Gi."""
    disks = {f"disk-{index}": disk(size) for index, size in enumerate(sizes, start=1)}
    return longhorn_node(name, disks, zone=zone)


def safety(*objects: Object | list[Object], name: str = "n1") -> tuple[bool, bool, bool]:
    """Whether the pod with the claims `local` and `remote` packs on a node, is order-safe and is stale-safe there."""
    explanation = explained(pod("local", "remote"), CLASSES, *objects, options=STALE_SAFE)
    verdict = dict(zip(explanation.decision.candidates, explanation.verdicts, strict=True))[name]
    packs = verdict.reason in (Reason.ROOM, Reason.NEVER_SAFE)
    assert (verdict.reason is Reason.ROOM) is verdict.stale_safe
    return packs, verdict.order_safe, verdict.stale_safe


def test_a_volume_without_locality_may_take_the_room_of_the_local_one() -> None:
    """The remote 40Gi may fill the only disk of n0 (40Gi), and only the one of n1 (80Gi) that takes both."""
    items = json.loads(CASE.read_text())["items"]
    current = state(items)
    (wanted,) = current.view.snapshot.pods.values()
    explanation = explain_nodes(wanted, ["n0", "n1"], current, FilterOptions())
    assert reasons(explanation) == {"n0": "ORDER_UNSAFE", "n1": "ROOM"}
    assert [(verdict.order_safe, verdict.stale_safe) for verdict in explanation.verdicts] == [
        (False, False),
        (True, True),
    ]
    detail = "unlucky order: c1 on disk d0, then no disk is left for c0"
    assert explanation.verdicts[0].detail == detail


def test_fits_stays_as_it_is() -> None:
    """100Gi and 60Gi on nodes with 100Gi each: both fit and neither is safe, as it is with the 60Gi of another pod."""
    objects = [claim("local", 100), claim("remote", 60, storage_class="plain"), node("n1", 100), node("n2", 100)]
    explanation = explained(pod("local", "remote"), CLASSES, objects)
    assert reasons(explanation) == {"n1": "ROOM", "n2": "ROOM"}
    assert set(explanation.decision.unsafe) == {"n1", "n2"}
    assert [(verdict.order_safe, verdict.stale_safe) for verdict in explanation.verdicts] == [(False, False)] * 2
    assert "unlucky order: remote on disk disk-1, then no disk is left for local" in explanation.verdicts[0].detail


def test_a_safe_node_is_preferred() -> None:
    objects = [claim("local", 100), claim("remote", 60, storage_class="plain")]
    nodes = [node("n1", 100), node("n2", 100), node("n3", 160)]
    assert reasons(explained(pod("local", "remote"), CLASSES, objects, nodes)) == {
        "n1": "ORDER_UNSAFE",
        "n2": "ORDER_UNSAFE",
        "n3": "ROOM",
    }
    exact = explained(pod("local", "remote"), CLASSES, objects, nodes, options=EXACT)
    assert set(reasons(exact).values()) == {"ROOM"}


def test_a_volume_without_locality_needs_no_disk_here() -> None:
    """The remote 150Gi fits on no disk of n1 and goes to n2."""
    remote = claim("remote", 150, storage_class="plain")
    assert safety(claim("local", 100), remote, node("n1", 100), node("n2", 200)) == (True, True, True)


def test_outdated_status_lets_it_meet_the_local_volume() -> None:
    """Two disks of 100Gi: the local volume finds one in any order, but both may meet on either."""
    objects = [claim("local", 60), claim("remote", 60, storage_class="plain"), node("n1", 100, 100)]
    (verdict,) = explained(pod("local", "remote"), CLASSES, objects).verdicts
    assert (verdict.order_safe, verdict.stale_safe) == (True, False)
    assert verdict.meeting == Meeting("n1-disk-1", ("local", "remote"))


@pytest.mark.parametrize(
    ("settings", "fields", "disks", "replicas", "expected"),
    [
        pytest.param((), {}, (100,), 2, (True, True), id="hard node anti-affinity: one replica"),
        pytest.param((SOFT_NODE,), {}, (100,), 2, (False, False), id="all of them on one disk"),
        pytest.param((SOFT_NODE,), {"replicaSoftAntiAffinity": "disabled"}, (100,), 2, (True, True), id="override"),
        pytest.param((), {"replicaSoftAntiAffinity": "enabled"}, (100,), 2, (False, False), id="override to soft"),
        pytest.param((SOFT_NODE, HARD_ZONE), {}, (100,), 2, (True, True), id="hard zone anti-affinity: one replica"),
        pytest.param((SOFT_NODE, HARD_DISK), {}, (100,), 2, (True, True), id="one for each disk"),
        pytest.param((SOFT_NODE, HARD_DISK), {}, (89, 89), 2, (False, False), id="two disks lose 40Gi each"),
        pytest.param((SOFT_NODE, HARD_DISK), {}, (89, 89), 1, (True, False), id="as many as there are"),
        pytest.param((SOFT_NODE, SOFT_DISK), {}, (120, 40), 2, (False, False), id="soft disk: two on a disk"),
        pytest.param((SOFT_NODE, HARD_DISK), {}, (120, 40), 2, (True, True), id="hard disk: not two on a disk"),
    ],
)
def test_anti_affinity_limits_how_many_replicas_a_node_can_get(
    settings: tuple[Object, ...], fields: Object, disks: tuple[float, ...], replicas: int, expected: tuple[bool, bool]
) -> None:
    """A local volume of 50Gi and replicas of 40Gi: order-safe, stale-safe."""
    remote = bound("remote", 40, locality="disabled", numberOfReplicas=replicas, **fields)
    assert safety(claim("local", 50), remote, node("n1", *disks), node("n2", 40), *settings) == (True, *expected)


@pytest.mark.parametrize(
    ("home", "zones", "settings", "fields", "safe"),
    [
        pytest.param("n1", ("", ""), (), {}, True, id="a replica bars its node"),
        pytest.param("n2", ("", ""), (), {}, False, id="and no other"),
        pytest.param("n2", ("a", "a"), (HARD_ZONE,), {}, True, id="and its zone"),
        pytest.param("n2", ("a", "b"), (HARD_ZONE,), {}, False, id="and no other zone"),
        pytest.param("n1", ("", ""), (SOFT_NODE,), {}, False, id="soft: it bars nothing"),
        pytest.param("n1", ("", ""), (SOFT_NODE, HARD_DISK), {}, True, id="hard disk: it bars its disk"),
        pytest.param("n1", ("", ""), (), {"evictionRequested": True}, False, id="an evicting replica does not bar"),
    ],
)
def test_a_replica_that_counts_may_bar_the_node(
    home: str, zones: tuple[str, str], settings: tuple[Object, ...], fields: Object, safe: bool
) -> None:
    """One of two replicas of 40Gi is placed and listed; n1 has 80Gi left, and the local volume needs 50Gi."""
    listed = {"r1": 40.0}
    nodes = [
        longhorn_node(name, {"disk-1": disk(120, listed=listed if name == home else {"x": 40})}, zone=zone)
        for name, zone in zip(("n1", "n2"), zones, strict=True)
    ]
    remote = [
        *bound("remote", 40, locality="disabled", numberOfReplicas=2),
        replica("r1", "vol-remote", home, size=40, **fields),
        replica("r2", "vol-remote", size=40),
    ]
    assert safety(claim("local", 50), remote, nodes, *settings) == (True, safe, safe)


def test_a_placed_volume_is_not_in_the_way() -> None:
    remote = [*bound("remote", 60, locality="disabled"), replica("r1", "vol-remote", "n2", size=60)]
    assert safety(claim("local", 100), remote, node("n1", 100), node("n2", 100)) == (True, True, True)


def test_a_disk_that_is_closed_to_it_is_safe() -> None:
    nodes = longhorn_node("n1", {"a": disk(100, tags=["ssd"]), "b": disk(60, tags=["hdd"])})
    remote = bound("remote", 60, locality="disabled", diskSelector=["hdd"])
    local = bound("local", 100, diskSelector=["ssd"])
    assert safety(local, remote, nodes) == (True, True, True)


def test_filter_agrees_with_competing_pods_and_the_cache() -> None:
    remote = [*bound("remote", 40, locality="disabled", numberOfReplicas=2), replica("r2", "vol-remote", size=40)]
    placed = replica("r1", "vol-remote", "n2", size=40)
    wanted = as_pod(pod("local", "remote"))
    objects = [*CLASSES, claim("local", 50), *remote, HARD_ZONE]
    nodes = [node("n1", 80, zone="a"), longhorn_node("n2", {"disk-1": disk(90, listed={"r1": 40})}, zone="a")]
    before = state(objects, nodes, placed)
    contenders = competing(before)
    first = filter_nodes(wanted, ["n1"], before, FilterOptions(), contenders)
    after = state(objects, nodes)
    later = competing(after, contention=contenders.contention, equivalence=contenders.equivalence)
    second = filter_nodes(wanted, ["n1"], after, FilterOptions(), later)
    assert (dict(first.unsafe), [reason.name for reason in second.unsafe.values()]) == ({}, ["ORDER_UNSAFE"])
