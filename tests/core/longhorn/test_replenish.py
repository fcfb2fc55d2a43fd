"""How many replicas a volume gets: missing ones, better spread ones, and relief for pressed disks."""

from typing import Any

import pytest

from scheduler_core.longhorn.replenish import Replenishment, replenishments
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, failed, node, replica, volume

BALANCE = {"replica-auto-balance": "best-effort"}
LEAST = {"replica-auto-balance": "least-effort"}
RELIEF = {**BALANCE, "storage-minimal-available-percentage": "0"}
NONE = {(0, "")}
ONE = {(1, "")}


def running(name: str, place: str, **fields: Any) -> lh.Replica:
    return replica(name, place, current_state="running", **fields)


def answers(
    *nodes: lh.Node, replicas: list[lh.Replica], settings: dict[str, str] | None = None, **volume_fields: Any
) -> set[tuple[int, str]]:
    entry = volume(**{"robustness": "healthy", "number_of_replicas": len(replicas), **volume_fields})
    view = cluster(*nodes, volumes=[entry], replicas=replicas, settings=settings)
    return {(each.count, each.hard_node_affinity) for each in replenishments(view, entry, replicas)}


@pytest.mark.parametrize(
    ("entry", "missing"),
    [
        pytest.param(running("r", "n1/d1"), 1, id="healthy"),
        pytest.param(replica("r"), 1, id="unplaced"),
        pytest.param(failed("r", "n1/d1"), 2, id="failed"),
        pytest.param(running("r", "n1/d1", eviction_requested=True), 2, id="evicting"),
        pytest.param(running("r", "n1/d1", active=False), 2, id="inactive"),
        pytest.param(replica("r", hard_node_affinity="n1"), 2, id="for the local node, unplaced"),
        pytest.param(running("r", "n1/d1", hard_node_affinity="n1"), 1, id="for the local node, placed"),
    ],
)
def test_only_usable_replicas_count(entry: lh.Replica, missing: int) -> None:
    local: dict[str, Any] = {"data_locality": "best-effort", "current_node_id": "n1"}
    volume_fields = local if entry.hard_node_affinity else {}
    assert answers(node("n1"), replicas=[entry], number_of_replicas=2, **volume_fields) == {(missing, "")}


def test_a_volume_with_too_many_replicas_gets_none() -> None:
    replicas = [running("r", "n1/d1"), running("s", "n2/d1")]
    assert answers(node("n1"), node("n2"), replicas=replicas, number_of_replicas=1) == NONE


N2 = node("n2")
TAGGED = node("n2", tags=("ssd",))
FULL = disk("d1", storage_scheduled=100 * GIB)
# Nodes besides n1, where both replicas are, what else differs, and the answers.
SPREAD: dict[str, tuple[list[lh.Node], dict[str, Any], set[tuple[int, str]]]] = {
    "without the setting": ([N2], {"settings": {"replica-auto-balance": "disabled"}}, NONE),
    "an unused zone": ([N2], {}, ONE),
    "an unused node in the same zone": ([node("n2", zone="z-n1")], {}, ONE),
    "only healthy volumes": ([N2], {"robustness": "degraded"}, NONE),
    "no more than the volume has": ([N2, node("n3"), node("n4")], {}, ONE),
    "not ready": ([node("n2", conditions=conditions(Ready="False"))], {}, NONE),
    "cordoned": ([node("n2", conditions=conditions(Schedulable="False"))], {}, NONE),
    "scheduling disabled": ([node("n2", allow_scheduling=False)], {}, NONE),
    "no open disk": ([node("n2", disk(allow_scheduling=False))], {}, NONE),
    "no room": ([node("n2", FULL)], {}, NONE),
    "open disk and free disk may differ": ([node("n2", FULL, disk("d2", allow_scheduling=False))], {}, ONE),
    "a removed disk": ([node("n2", FULL, disk("d2", in_spec=False))], {}, NONE),
    "tags without a node selector": (
        [TAGGED],
        {"settings": {**LEAST, "allow-empty-node-selector-volume": "false"}},
        ONE,
    ),
    "a node selector and no tags": ([N2], {"node_selector": ("ssd",)}, NONE),
    "a node selector and its tags": ([TAGGED], {"node_selector": ("ssd",)}, ONE),
}


@pytest.mark.parametrize(("others", "more", "expected"), SPREAD.values(), ids=SPREAD.keys())
def test_replicas_are_spread_to_more_zones_and_then_to_more_nodes(
    others: list[lh.Node], more: dict[str, Any], expected: set[tuple[int, str]]
) -> None:
    """By least-effort, to nodes that could take one."""
    pile = [running("r0", "n1/d1"), running("r1", "n1/d1")]
    assert answers(node("n1"), *others, replicas=pile, **{"settings": LEAST, **more}) == expected


def pile(*counts: int) -> list[lh.Replica]:
    """So many replicas on n1, n2, ..."""
    return [
        running(f"r{index}-{number}", f"n{index}/d1")
        for index, count in enumerate(counts, start=1)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("nodes", "counts", "expected"),
    [
        pytest.param([node("n1", zone="z"), node("n2", zone="z")], (1, 1), NONE, id="one on each node"),
        # A move would only swap the nodes.
        pytest.param([node("n1", zone="z"), node("n2", zone="z")], (2, 1), NONE, id="a difference of one"),
        pytest.param([node("n1", zone="z"), node("n2", zone="z")], (3, 1), {(1, "n2"), *NONE}, id="emptier node"),
        pytest.param([node("n1", zone="z"), node("n2", zone="z")], (4, 2), {(1, "n2")}, id="certain emptier node"),
        pytest.param(
            [node("n1", zone="z"), node("n2", disk("d1", allow_scheduling=False), zone="z")],
            (4, 2),
            {(1, "n2")},
            id="emptier node without an open disk",
        ),
        pytest.param(
            [node("n1", zone="a"), node("n2", zone="a"), node("n3", zone="b")], (1, 1, 1), NONE, id="uneven zones"
        ),
    ],
)
def test_best_effort_evens_out_nodes_with_several_replicas(
    nodes: list[lh.Node], counts: tuple[int, ...], expected: set[tuple[int, str]]
) -> None:
    """In whatever order Go walks its map."""
    assert answers(*nodes, replicas=pile(*counts), settings=BALANCE) == expected


PRESSED = disk("d1", storage_available=5 * GIB, scheduled_replicas={"r": 1})
D2 = disk("d2")
SWITCHED_OFF = {**RELIEF, "replica-auto-balance-disk-pressure-percentage": "0"}


@pytest.mark.parametrize(
    ("entry", "settings", "relieved"),
    [
        pytest.param(node("n1", PRESSED, D2), RELIEF, True, id="by another disk of its node"),
        pytest.param(node("n1", PRESSED, disk("d2", allow_scheduling=False)), RELIEF, False, id="not by a closed disk"),
        pytest.param(node("n1", PRESSED, disk("d2", spec_type="block")), RELIEF, False, id="not by another type"),
        pytest.param(
            node("n1", PRESSED, disk("d2", storage_scheduled=90 * GIB)),
            RELIEF,
            False,
            id="not by a disk that would be under pressure itself",
        ),
        pytest.param(node("n1", disk("d1", scheduled_replicas={"r": 1}), D2), RELIEF, False, id="not without pressure"),
        pytest.param(node("n1", PRESSED, D2), SWITCHED_OFF, False, id="not with pressure percentage zero"),
        pytest.param(
            node("n1", PRESSED, D2, conditions=conditions(Schedulable="False")), RELIEF, False, id="not when cordoned"
        ),
        pytest.param(node("n1", PRESSED, D2, allow_scheduling=False), RELIEF, True, id="with scheduling disabled"),
    ],
)
def test_best_effort_relieves_a_disk_under_pressure(entry: lh.Node, settings: dict[str, str], relieved: bool) -> None:
    expected = {(1, "n1")} if relieved else NONE
    assert answers(entry, replicas=[running("r", "n1/d1")], settings=settings) == expected


@pytest.mark.parametrize(("robustness", "turn"), [("healthy", False), ("degraded", True)])
def test_a_disk_is_relieved_of_one_replica_at_a_time(robustness: str, turn: bool) -> None:
    second = volume("w", robustness=robustness)
    earlier = replica("a", "n1/d1", volume="w")
    entry = volume(robustness="healthy", number_of_replicas=1)
    own = running("r", "n1/d1")
    pressed = disk("d1", storage_available=5 * GIB, scheduled_replicas={"a": 1, "r": 1, "gone": 1})
    view = cluster(node("n1", pressed, D2), volumes=[entry, second], replicas=[earlier, own], settings=RELIEF)
    assert replenishments(view, entry, [own]) == {Replenishment(1, "n1") if turn else Replenishment()}


def test_a_difference_of_one_replica_sends_the_relief_to_either_node() -> None:
    replicas = [running("r", "n1/d1"), running("s", "n1/d2"), running("t", "n2/d1")]
    nodes = [node("n1", PRESSED, D2, zone="z"), node("n2", zone="z")]
    assert answers(*nodes, replicas=replicas, settings=RELIEF) == {(1, "n1"), (1, "n2")}
