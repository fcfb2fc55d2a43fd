"""How many replicas a volume gets: missing ones, better spread ones, and relief for pressed disks."""

from typing import Any

import pytest

from scheduler_core.longhorn.replenish import Replenishment, replenishments
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, failed, node, replica, volume

BALANCE = {"replica-auto-balance": "best-effort"}
LEAST = {"replica-auto-balance": "least-effort"}


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
    ],
)
def test_only_usable_replicas_count(entry: lh.Replica, missing: int) -> None:
    assert answers(node("n1"), replicas=[entry], number_of_replicas=2) == {(missing, "")}


def test_an_unplaced_local_replica_does_not_count() -> None:
    waiting = replica("r", hard_node_affinity="n1")
    volume_fields: dict[str, Any] = {"data_locality": "best-effort", "current_node_id": "n1"}
    assert answers(node("n1"), replicas=[waiting], **volume_fields) == {(1, "")}


def test_a_placed_local_replica_counts() -> None:
    local = running("r", "n1/d1", hard_node_affinity="n1")
    volume_fields: dict[str, Any] = {"data_locality": "best-effort", "current_node_id": "n1"}
    assert answers(node("n1"), replicas=[local], **volume_fields) == {(0, "")}


def test_a_volume_with_too_many_replicas_gets_none() -> None:
    replicas = [running("r", "n1/d1"), running("s", "n2/d1")]
    assert answers(node("n1"), node("n2"), replicas=replicas, number_of_replicas=1) == {(0, "")}


class TestSpread:
    """least-effort and best-effort use more zones, then more nodes."""

    PILE = (running("r0", "n1/d1"), running("r1", "n1/d1"))

    def spread(
        self, *nodes: lh.Node, settings: dict[str, str] | None = None, **volume_fields: Any
    ) -> set[tuple[int, str]]:
        return answers(node("n1"), *nodes, replicas=list(self.PILE), settings=settings or LEAST, **volume_fields)

    def test_no_replica_is_added_without_the_setting(self) -> None:
        assert self.spread(node("n2"), settings={"replica-auto-balance": "disabled"}) == {(0, "")}

    def test_an_unused_zone_gets_a_replica(self) -> None:
        assert self.spread(node("n2")) == {(1, "")}

    def test_an_unused_node_in_the_same_zone_gets_a_replica(self) -> None:
        assert self.spread(node("n2", zone="z-n1")) == {(1, "")}

    def test_only_healthy_volumes_are_spread(self) -> None:
        assert self.spread(node("n2"), robustness="degraded") == {(0, "")}

    def test_no_more_replicas_are_added_than_the_volume_has(self) -> None:
        assert self.spread(node("n2"), node("n3"), node("n4")) == {(1, "")}

    @pytest.mark.parametrize(
        "closed",
        [
            pytest.param(node("n2", conditions=conditions(Ready="False")), id="not ready"),
            pytest.param(node("n2", conditions=conditions(Schedulable="False")), id="cordoned"),
            pytest.param(node("n2", allow_scheduling=False), id="scheduling disabled"),
            pytest.param(node("n2", disk(allow_scheduling=False)), id="no open disk"),
            pytest.param(node("n2", disk(storage_scheduled=100 * GIB)), id="no room"),
        ],
    )
    def test_a_node_that_could_not_take_a_replica_does_not_count(self, closed: lh.Node) -> None:
        """So the volume is not spread."""
        assert self.spread(closed) == {(0, "")}

    def test_open_disk_and_free_disk_may_differ(self) -> None:
        entry = node("n2", disk("d1", storage_scheduled=100 * GIB), disk("d2", allow_scheduling=False))
        assert self.spread(entry) == {(1, "")}

    def test_spread_ignores_tags_without_a_node_selector(self) -> None:
        settings = {**LEAST, "allow-empty-node-selector-volume": "false"}
        assert self.spread(node("n2", tags=("ssd",)), settings=settings) == {(1, "")}
        assert self.spread(node("n2"), node_selector=("ssd",)) == {(0, "")}
        assert self.spread(node("n2", tags=("ssd",)), node_selector=("ssd",)) == {(1, "")}

    def test_a_removed_disk_does_not_count(self) -> None:
        entry = node("n2", disk("d1", storage_scheduled=100 * GIB), disk("d2", in_spec=False))
        assert self.spread(entry) == {(0, "")}


class TestEvenOut:
    """best-effort evens out nodes with several replicas, in whatever order Go walks its map."""

    @staticmethod
    def pile(*counts: int) -> list[lh.Replica]:
        """So many replicas on n1, n2, ..."""
        return [
            running(f"r{index}-{number}", f"n{index}/d1")
            for index, count in enumerate(counts, start=1)
            for number in range(count)
        ]

    def even(self, *counts: int) -> set[tuple[int, str]]:
        """The answers of best-effort for so many replicas on n1, n2, ..."""
        nodes = [node(f"n{index}", zone="z") for index in range(1, len(counts) + 1)]
        return answers(*nodes, replicas=self.pile(*counts), settings=BALANCE)

    def test_one_replica_on_each_node_is_even(self) -> None:
        assert self.even(1, 1) == {(0, "")}

    def test_a_difference_of_one_replica_is_even(self) -> None:
        """A move would only swap the nodes."""
        assert self.even(2, 1) == {(0, "")}

    def test_a_difference_of_two_replicas_adds_one_to_the_emptier_node(self) -> None:
        assert self.even(3, 1) == {(1, "n2"), (0, "")}

    def test_the_emptier_node_is_certain_if_both_have_several_replicas(self) -> None:
        assert self.even(4, 2) == {(1, "n2")}

    def test_the_emptier_node_is_named_even_if_none_of_its_disks_is_open(self) -> None:
        nodes = [node("n1", zone="z"), node("n2", disk("d1", allow_scheduling=False), zone="z")]
        assert answers(*nodes, replicas=self.pile(4, 2), settings=BALANCE) == {(1, "n2")}

    def test_uneven_zones_add_no_replica(self) -> None:
        nodes = [node("n1", zone="a"), node("n2", zone="a"), node("n3", zone="b")]
        assert answers(*nodes, replicas=self.pile(1, 1, 1), settings=BALANCE) == {(0, "")}


class TestPressure:
    """best-effort adds a replica on the same node if its disk is under pressure and another is free."""

    PRESSED = disk("d1", storage_available=5 * GIB, scheduled_replicas={"r": 1})
    RELIEF = {**BALANCE, "storage-minimal-available-percentage": "0"}  # noqa: RUF012 # read only

    def replenish(
        self, *disks: lh.Disk, settings: dict[str, str] | None = None, **volume_fields: Any
    ) -> set[tuple[int, str]]:
        entry = node("n1", *disks)
        return answers(entry, replicas=[running("r", "n1/d1")], settings=settings or self.RELIEF, **volume_fields)

    def test_a_disk_under_pressure_is_relieved_by_another_of_its_node(self) -> None:
        assert self.replenish(self.PRESSED, disk("d2")) == {(1, "n1")}

    @pytest.mark.parametrize(
        "second",
        [
            pytest.param(disk("d2", allow_scheduling=False), id="closed"),
            pytest.param(disk("d2", spec_type="block"), id="another type"),
            pytest.param(disk("d2", storage_scheduled=90 * GIB), id="would be under pressure itself"),
        ],
    )
    def test_a_disk_that_could_not_take_the_replica_gives_no_relief(self, second: lh.Disk) -> None:
        assert self.replenish(self.PRESSED, second) == {(0, "")}

    def test_a_disk_without_pressure_keeps_its_replica(self) -> None:
        assert self.replenish(disk("d1", scheduled_replicas={"r": 1}), disk("d2")) == {(0, "")}

    @pytest.mark.parametrize(("robustness", "turn"), [("healthy", False), ("degraded", True)])
    def test_a_disk_is_relieved_of_one_replica_at_a_time(self, robustness: str, turn: bool) -> None:
        second = volume("w", robustness=robustness)
        earlier = replica("a", "n1/d1", volume="w")
        entry = volume(robustness="healthy", number_of_replicas=1)
        own = running("r", "n1/d1")
        pressed = disk("d1", storage_available=5 * GIB, scheduled_replicas={"a": 1, "r": 1, "gone": 1})
        view = cluster(
            node("n1", pressed, disk("d2")), volumes=[entry, second], replicas=[earlier, own], settings=self.RELIEF
        )
        assert replenishments(view, entry, [own]) == {Replenishment(1, "n1") if turn else Replenishment()}

    def test_pressure_percentage_zero_means_no_relief(self) -> None:
        settings = {**self.RELIEF, "replica-auto-balance-disk-pressure-percentage": "0"}
        assert self.replenish(self.PRESSED, disk("d2"), settings=settings) == {(0, "")}

    def test_a_cordoned_node_is_not_relieved(self) -> None:
        entry = node("n1", self.PRESSED, disk("d2"), conditions=conditions(Schedulable="False"))
        assert answers(entry, replicas=[running("r", "n1/d1")], settings=self.RELIEF) == {(0, "")}

    def test_a_node_with_scheduling_disabled_is_relieved(self) -> None:
        entry = node("n1", self.PRESSED, disk("d2"), allow_scheduling=False)
        assert answers(entry, replicas=[running("r", "n1/d1")], settings=self.RELIEF) == {(1, "n1")}

    def test_a_difference_of_one_replica_sends_the_relief_to_either_node(self) -> None:
        replicas = [running("r", "n1/d1"), running("s", "n1/d2"), running("t", "n2/d1")]
        nodes = [node("n1", self.PRESSED, disk("d2"), zone="z"), node("n2", zone="z")]
        assert answers(*nodes, replicas=replicas, settings=self.RELIEF) == {(1, "n1"), (1, "n2")}
