"""FindDiskCandidates and ScheduleReplica: anti-affinity and the order of the tiers, reasons, and data locality."""

from typing import Any

import pytest

from scheduler_core.longhorn.anti_affinity import SoftAntiAffinity, Tier
from scheduler_core.longhorn.placement import DiskCandidates, find_candidates, schedule_replica
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.stages import DISABLE_V2_LABEL
from scheduler_core.model import kube, longhorn as lh
from scheduler_core.structs import replace
from tests.worlds.longhorn import GIB, LONG_AGO, cluster, conditions, disk, failed, node, places, replica, volume

ZONE_HARD = {"replica-zone-soft-anti-affinity": "false"}
NODE_SOFT = {"replica-soft-anti-affinity": "true"}
DISK_HARD = {"replica-disk-soft-anti-affinity": "false"}
BEST_EFFORT = {"replica-auto-balance": "best-effort"}
CLOSED = conditions(Schedulable="False")
CLIENT_ERROR = {"longhorn client operation failed"}


def find(
    *nodes: lh.Node,
    replicas: tuple[lh.Replica, ...] = (),
    affinity: str = "",
    settings: dict[str, str] | None = None,
    **volume_fields: Any,
) -> DiskCandidates:
    """The disks that one more replica of a volume may take."""
    entry = volume(**volume_fields)
    view = cluster(*nodes, volumes=[entry], replicas=replicas, settings=settings)
    return find_candidates(view, ReplicaRequest.for_volume(entry, affinity), replicas)


@pytest.mark.parametrize(
    ("value", "setting", "expected"),
    [
        pytest.param("", True, True, id="empty leaves the setting"),
        pytest.param("ignored", False, False, id="ignored leaves the setting"),
        pytest.param("enabled", False, True, id="enabled"),
        pytest.param("disabled", True, False, id="disabled"),
        pytest.param("Enabled", True, False, id="anything else is false"),
    ],
)
def test_the_volume_overrides_the_setting(value: str, setting: bool, expected: bool) -> None:
    names = ("replica_soft_anti_affinity", "replica_zone_soft_anti_affinity", "replica_disk_soft_anti_affinity")
    volume_fields: dict[str, Any] = dict.fromkeys(names, value)
    settings: dict[str, Any] = dict.fromkeys(names, setting)
    assert SoftAntiAffinity.of(volume(**volume_fields), Settings(**settings)) == SoftAntiAffinity(
        expected, expected, expected
    )


@pytest.mark.parametrize(
    ("entry", "counts"),
    [
        pytest.param(replica("r", "n1/d1"), True, id="healthy"),
        pytest.param(replica("r", "n1/d1", healthy_at=""), True, id="rebuilding"),
        pytest.param(replica("r", "n1/d1", deleting=True), False, id="deleting"),
        pytest.param(failed("r", "n1/d1"), True, id="failed but reusable"),
        pytest.param(failed("r", "n1/d1", rebuild_retry_count=4), True, id="four retries"),
        pytest.param(failed("r", "n1/d1", rebuild_retry_count=5), False, id="five retries"),
        pytest.param(failed("r", "n1/d1", eviction_requested=True), False, id="failed and evicting"),
        pytest.param(failed("r", "n1/d1", disk_id=""), False, id="failed without disk"),
        pytest.param(replica("r"), False, id="unplaced"),
    ],
)
def test_a_replica_uses_its_node_and_zone_unless_it_cannot_come_back(entry: lh.Replica, counts: bool) -> None:
    """Failed replicas that may be reused count."""
    result = find(node("n1", zone="a"), node("n2", zone="a"), replicas=(entry,), settings=ZONE_HARD)
    assert ("n2/d1" not in places(result)) is counts


def in_zone_a(*disks: lh.Disk, **fields: Any) -> tuple[lh.Node, lh.Node]:
    """Two nodes of a zone; the first has these disks and fields."""
    return node("n1", *disks, zone="a", **fields), node("n2", zone="a")


TWO_DISKS = (node("n1", disk("d1"), disk("d2")),)
PRESSED = (node("n1", disk("d1", storage_available=5 * GIB), disk("d2")),)
OWN = replica("r", "n1/d1")
EVICTING = replica("r", "n1/d1", eviction_requested=True)
SECOND = replica("s", "n2/d1")


def degraded(since: str) -> dict[str, Any]:
    return {"robustness": "degraded", "last_degraded_at": since}


# Nodes, replicas, what else differs, and the places that are found.
Found = tuple[tuple[lh.Node, ...], tuple[lh.Replica, ...], dict[str, Any], list[str]]
FREED: dict[str, Found] = {
    "a cordoned node frees its zone": (in_zone_a(conditions=CLOSED), (OWN,), {"settings": ZONE_HARD}, ["n2/d1"]),
    "a node that is not ready frees its zone": (
        in_zone_a(conditions=conditions(Ready="False")),
        (OWN,),
        {"settings": ZONE_HARD},
        ["n2/d1"],
    ),
    "a node without scheduling frees its zone": (
        in_zone_a(allow_scheduling=False),
        (OWN,),
        {"settings": ZONE_HARD},
        ["n2/d1"],
    ),
    "a node with closed disks still uses its zone": (
        in_zone_a(disk(allow_scheduling=False)),
        (OWN,),
        {"settings": ZONE_HARD},
        [],
    ),
    # After 600 s of degradation the failed replica's node may be used again, on another disk if possible.
    "the wait ran out a second ago": (TWO_DISKS, (failed("r", "n1/d1"),), degraded("2025-12-31T23:49:59Z"), ["n1/d2"]),
    "the wait runs out now": (TWO_DISKS, (failed("r", "n1/d1"),), degraded("2025-12-31T23:50:00Z"), ["n1/d2"]),
    "the wait runs out in a second": (TWO_DISKS, (failed("r", "n1/d1"),), degraded("2025-12-31T23:50:01Z"), []),
}
EVICTED: dict[str, Found] = {
    "an evicting replica still uses its node": (in_zone_a(), (EVICTING,), {}, ["n2/d1"]),
    "a node where a second replica stays is not reopened": (
        (node("n1", disk("d1"), disk("d2"), disk("d3")),),
        (EVICTING, replica("s", "n1/d2")),
        {},
        [],
    ),
    "with hard zones, a replica stays in the zone": (
        in_zone_a(disk("d1"), disk("d2")),
        (EVICTING, SECOND),
        {"settings": ZONE_HARD},
        [],
    ),
    "with hard zones, the whole zone is evicting": (
        in_zone_a(disk("d1"), disk("d2")),
        (EVICTING,),
        {"settings": ZONE_HARD},
        ["n1/d2"],
    ),
    "best-effort balance ignores the zone": (
        in_zone_a(disk("d1"), disk("d2")),
        (EVICTING, SECOND),
        {"settings": {**ZONE_HARD, **BEST_EFFORT}},
        ["n1/d2"],
    ),
    "least-effort balance of the volume reopens no node under pressure": (
        PRESSED,
        (OWN,),
        {"settings": BEST_EFFORT, "replica_auto_balance": "least-effort"},
        [],
    ),
    "pressure percentage zero means no pressure": (
        PRESSED,
        (OWN,),
        {"settings": {**BEST_EFFORT, "replica-auto-balance-disk-pressure-percentage": "0"}},
        [],
    ),
}
# A replica holds its disk even if it does not use its node.
DISKS: dict[str, Found] = {
    "a deleting replica holds its disk": (
        TWO_DISKS,
        (replica("s", "n1/d1", deleting=True),),
        {"settings": NODE_SOFT},
        ["n1/d2"],
    ),
    "a reusable replica holds its disk": (TWO_DISKS, (failed("s", "n1/d1"),), {"settings": NODE_SOFT}, ["n1/d2"]),
    "an evicting replica holds its disk": (TWO_DISKS, (EVICTING,), {"settings": NODE_SOFT}, ["n1/d2"]),
    "a failed replica that cannot come back holds no disk": (
        TWO_DISKS,
        (failed("s", "n1/d1", rebuild_retry_count=5),),
        {},
        ["n1/d1", "n1/d2"],
    ),
    "soft disks take a second replica": ((node("n1"),), (OWN,), {"settings": NODE_SOFT}, ["n1/d1"]),
    "hard disks take no second replica": ((node("n1"),), (OWN,), {"settings": {**NODE_SOFT, **DISK_HARD}}, []),
    "a replica past the wait still holds its disk": (
        (node("n1"),),
        (failed("r", "n1/d1"),),
        {"settings": DISK_HARD, **degraded(LONG_AGO)},
        [],
    ),
    "settings that the scheduler does not read do not matter": (
        (node("n1"),),
        (),
        {"settings": {"default-replica-count": "many"}},
        ["n1/d1"],
    ),
    "an unreadable wait stops only degraded volumes": (
        (node("n1"),),
        (),
        {"settings": {"replica-replenishment-wait-interval": "soon"}},
        ["n1/d1"],
    ),
}
FOUND = {**FREED, **EVICTED, **DISKS}


@pytest.mark.parametrize(("nodes", "replicas", "more", "expected"), FOUND.values(), ids=FOUND.keys())
def test_what_replicas_use_decides_where_the_next_one_goes(
    nodes: tuple[lh.Node, ...], replicas: tuple[lh.Replica, ...], more: dict[str, Any], expected: list[str]
) -> None:
    result = find(*nodes, replicas=replicas, **more)
    assert places(result) == expected
    assert result.reasons == frozenset() or not expected


@pytest.mark.parametrize(
    ("nodes", "entry", "settings", "tier"),
    [
        pytest.param(TWO_DISKS, EVICTING, {}, Tier.EVICTING_NODE, id="the node of an evicting replica comes last"),
        # So that a replica can move to the node's other disk.
        pytest.param(PRESSED, OWN, BEST_EFFORT, Tier.UNUSED_NODE, id="a node with a disk under pressure is reopened"),
    ],
)
def test_a_used_node_is_reopened(
    nodes: tuple[lh.Node, ...], entry: lh.Replica, settings: dict[str, str], tier: Tier
) -> None:
    result = find(*nodes, replicas=(entry,), settings=settings)
    assert (places(result), result.tier) == (["n1/d2"], tier)


REFUSED: dict[str, tuple[tuple[lh.Node, ...], dict[str, Any], set[str]]] = {
    "no node": ((), {}, {"nodes are unavailable"}),
    "all cordoned": ((node(conditions=CLOSED),), {}, {"nodes are unavailable"}),
    "hard affinity": ((node(),), {"affinity": "n2"}, {"hard affinity cannot be satisfied"}),
    "hard affinity, no node": ((), {"affinity": "n2"}, {"hard affinity cannot be satisfied"}),
    "topology": (
        (node(),),
        {"topology_requirement": (lh.TopologyTerm("z9"),)},
        {"topology requirement cannot be satisfied"},
    ),
    "no disk survives": ((node("n1", disk(conditions=CLOSED)),), {}, {"disks are unavailable"}),
    "wrong type": ((node("n1", disk(spec_type="block")),), {}, {"disks are unavailable"}),
    "disk tags": ((node(),), {"disk_selector": ("ssd",)}, {"tags not fulfilled"}),
    "space": ((node(),), {"size": 101 * GIB}, {"insufficient storage"}),
    "file system": ((node(),), {"size": 16 * 1024**4}, {"incompatible volume size"}),
    "node tags are silent": ((node(),), {"node_selector": ("ssd",)}, set()),
    "backing image": ((node(),), {"backing_image": "gone"}, CLIENT_ERROR),
    "every disk has its reason": (
        (node("n1", disk("d1", spec_type="block"), disk("d2", storage_scheduled=100 * GIB)),),
        {},
        {"disks are unavailable", "insufficient storage"},
    ),
    "linked clone without source": (
        (node(),),
        {"clone_mode": "linked-clone", "data_source": "vol://src", "data_engine": "v2"},
        {"linked clone replica cannot be satisfied"},
    ),
    "unreadable time of degradation": ((node(),), degraded("yesterday"), CLIENT_ERROR),
    "degraded, unreadable wait": (
        (node(),),
        {"settings": {"replica-replenishment-wait-interval": "soon"}, **degraded(LONG_AGO)},
        CLIENT_ERROR,
    ),
    **{
        f"unreadable setting {name}": ((node(),), {"settings": {name: " true"}}, CLIENT_ERROR)
        for name in (
            "replica-soft-anti-affinity",
            "replica-zone-soft-anti-affinity",
            "replica-disk-soft-anti-affinity",
            "allow-empty-node-selector-volume",
            "allow-empty-disk-selector-volume",
            "replica-auto-balance-disk-pressure-percentage",
            "storage-minimal-available-percentage",
        )
    },
}


@pytest.mark.parametrize(("nodes", "more", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_a_volume_that_fits_on_no_node_has_these_reasons(
    nodes: tuple[lh.Node, ...], more: dict[str, Any], expected: set[str]
) -> None:
    result = find(*nodes, **more)
    assert (result.disks, {str(reason) for reason in result.reasons}) == ((), expected)


def test_there_are_no_reasons_if_there_is_a_candidate() -> None:
    assert find(node("n1"), node("n2", disk(spec_type="block"))).reasons == frozenset()


@pytest.mark.parametrize(
    ("nodes", "entry", "reason"),
    [
        # Longhorn's webhook would refuse it too.
        pytest.param((node(),), OWN, "replica already scheduled", id="placed"),
        pytest.param(
            (node(),),
            replica("r", failed_at=LONG_AGO),
            "unused failed replica is not supported",
            id="failed before it was healthy",
        ),
        pytest.param((), replica("r"), "nodes are unavailable", id="without a candidate"),
    ],
)
def test_a_replica_that_is_not_placed_has_a_reason(nodes: tuple[lh.Node, ...], entry: lh.Replica, reason: str) -> None:
    result = schedule_replica(cluster(*nodes), volume(), entry, [])
    assert not result.choices
    assert result.reasons == {reason}


def test_a_replica_that_failed_after_it_was_healthy_is_placed() -> None:
    entry = replica("r", failed_at=LONG_AGO, healthy_at=LONG_AGO)
    assert places(schedule_replica(cluster(node()), volume(), entry, [entry])) == ["n1/d1"]


def test_the_emptiest_node_is_chosen() -> None:
    view = cluster(node("n1", disk(storage_scheduled=20 * GIB)), node("n2"))
    assert places(schedule_replica(view, volume(), replica("r"), [])) == ["n2/d1"]


# Attached to n1, which is fuller; what counts is spec.nodeID.
LOCAL = volume(data_locality="best-effort", node_id="n1", current_node_id="n2")
NODES = (node("n1", disk(storage_scheduled=50 * GIB), zone="a"), node("n2", zone="b"))
FULLER = (node("n1", disk("d1"), disk("d2", storage_scheduled=50 * GIB)), node("n2", disk("d1"), disk("d2")))
SHARING = replace(LOCAL, replica_soft_anti_affinity="enabled")
LOCALITY: dict[str, tuple[lh.Volume, tuple[lh.Node, ...], tuple[lh.Replica, ...], str]] = {
    "the attached node is preferred": (LOCAL, NODES, (), "n1/d1"),
    "a volume without best-effort is balanced": (replace(LOCAL, data_locality="disabled"), NODES, (), "n2/d1"),
    "a detached volume is balanced": (replace(LOCAL, node_id=""), NODES, (), "n2/d1"),
    "a replica on the attached node ends the preference": (SHARING, FULLER, (OWN, SECOND), "n2/d2"),
    "an evicting one does, too": (SHARING, FULLER, (EVICTING, SECOND), "n2/d2"),
    "one that was never healthy does, too": (SHARING, FULLER, (replica("r", "n1/d1", healthy_at=""), SECOND), "n2/d2"),
    "a deleting one does, too": (LOCAL, (FULLER[0], node("n2")), (replica("r", "n1/d1", deleting=True),), "n2/d1"),
    "a failed one keeps the preference": (
        LOCAL,
        NODES,
        (replica("r", "n1/d1", failed_at=LONG_AGO, rebuild_retry_count=5),),
        "n1/d1",
    ),
    "the preference never reaches into a worse tier": (
        LOCAL,
        (node("n1", zone="a"), node("n2", zone="b"), node("n3", zone="a")),
        (replica("r", "n3/d1"),),
        "n2/d1",
    ),
    "a replica goes elsewhere if the attached node is full": (
        LOCAL,
        (node("n1", disk(storage_scheduled=100 * GIB)), node("n2")),
        (),
        "n2/d1",
    ),
}


@pytest.mark.parametrize(("entry", "nodes", "replicas", "place"), LOCALITY.values(), ids=LOCALITY.keys())
def test_best_effort_locality_prefers_the_attached_node_inside_the_winning_tier(
    entry: lh.Volume, nodes: tuple[lh.Node, ...], replicas: tuple[lh.Replica, ...], place: str
) -> None:
    assert places(schedule_replica(cluster(*nodes), entry, replica("new"), replicas)) == [place]


def test_a_change_counts_after_the_nodes_are_known() -> None:
    v2 = ReplicaRequest.for_volume(volume(data_engine="v2"))
    before = cluster(node("n1", disk(spec_type="block", status_type="block")))
    assert places(find_candidates(before, v2, ())) == ["n1/d1"]
    labeled = replace(before, kube_nodes={"n1": kube.Node("n1", {DISABLE_V2_LABEL: "true"})})
    assert places(find_candidates(labeled, v2, ())) == []
    large = ReplicaRequest.for_volume(volume(size=60 * GIB))
    before = cluster(node("n1"), settings=NODE_SOFT)
    assert places(find_candidates(before, large, ())) == ["n1/d1"]
    assert places(find_candidates(before, large, (replica("r", "n1/d1", size=60 * GIB),))) == []
    fewer = replace(before, settings=replace(before.settings, storage_over_provisioning_percentage=10))
    assert places(find_candidates(fewer, large, ())) == []
