"""How many replicas a volume gets: missing ones, better spread ones, and relief for pressed disks."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.longhorn.replenish import Replenishment, replenishments
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, failed, node, replica, volume

BALANCE = {"replica-auto-balance": "best-effort"}
LEAST = {"replica-auto-balance": "least-effort"}


def running(name: str, place: str, **fields: Any) -> lh.Replica:
    """A replica whose process runs."""
    return replica(name, place, current_state="running", **fields)


def answers(
    *nodes: lh.Node, replicas: list[lh.Replica], settings: dict[str, str] | None = None, **asked: Any
) -> set[tuple[int, str]]:
    """Every (count, node) Longhorn may answer for a healthy volume."""
    entry = volume(**{"robustness": "healthy", "number_of_replicas": len(replicas), **asked})
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
def test_missing_replicas(entry: lh.Replica, missing: int) -> None:
    """Two are wanted; failed, evicting and inactive ones do not count."""
    assert answers(node("n1"), replicas=[entry], number_of_replicas=2) == {(missing, "")}


def test_a_local_replica_that_found_no_place_does_not_count() -> None:
    """Best-effort locality made one more for the engine's node; it does not replace a missing one."""
    waiting = replica("r", hard_node_affinity="n1")
    asked: dict[str, Any] = {"data_locality": "best-effort", "current_node_id": "n1"}
    assert answers(node("n1"), replicas=[waiting], **asked) == {(1, "")}


def test_a_local_replica_that_found_one_counts() -> None:
    """Hard node affinity alone is nothing special."""
    placed = running("r", "n1/d1", hard_node_affinity="n1")
    asked: dict[str, Any] = {"data_locality": "best-effort", "current_node_id": "n1"}
    assert answers(node("n1"), replicas=[placed], **asked) == {(0, "")}


def test_too_many_replicas_add_none() -> None:
    """Removing them is another matter."""
    replicas = [running("r", "n1/d1"), running("s", "n2/d1")]
    assert answers(node("n1"), node("n2"), replicas=replicas, number_of_replicas=1) == {(0, "")}


class TestSpread:
    """least-effort and best-effort: use more zones, then more nodes."""

    PILE = (running("r0", "n1/d1"), running("r1", "n1/d1"))

    def spread(self, *nodes: lh.Node, settings: dict[str, str] | None = None, **asked: Any) -> set[tuple[int, str]]:
        """Two replicas on n1, and other nodes."""
        return answers(node("n1"), *nodes, replicas=list(self.PILE), settings=settings or LEAST, **asked)

    def test_off_by_default(self) -> None:
        """Nothing moves without the setting."""
        assert self.spread(node("n2"), settings={"replica-auto-balance": "disabled"}) == {(0, "")}

    def test_an_unused_zone(self) -> None:
        """One more replica for the other zone."""
        assert self.spread(node("n2")) == {(1, "")}

    def test_an_unused_node_in_the_same_zone(self) -> None:
        """One more replica for the other node."""
        assert self.spread(node("n2", zone="z-n1")) == {(1, "")}

    def test_only_healthy_volumes(self) -> None:
        """A degraded volume rebuilds first."""
        assert self.spread(node("n2"), robustness="degraded") == {(0, "")}

    def test_no_more_than_wanted(self) -> None:
        """Two replicas in one of many zones need one more place."""
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
    def test_a_node_that_could_not_take_it(self, closed: lh.Node) -> None:
        """Then there is nothing to spread to."""
        assert self.spread(closed) == {(0, "")}

    def test_the_open_disk_need_not_be_the_roomy_one(self) -> None:
        """Longhorn checks the two on any disks of the node."""
        entry = node("n2", disk("d1", storage_scheduled=100 * GIB), disk("d2", allow_scheduling=False))
        assert self.spread(entry) == {(1, "")}

    def test_node_selector(self) -> None:
        """Only if the volume has one; untagged volumes are not kept from tagged nodes here."""
        settings = {**LEAST, "allow-empty-node-selector-volume": "false"}
        assert self.spread(node("n2", tags=("ssd",)), settings=settings) == {(1, "")}
        assert self.spread(node("n2"), node_selector=("ssd",)) == {(0, "")}
        assert self.spread(node("n2", tags=("ssd",)), node_selector=("ssd",)) == {(1, "")}

    def test_a_removed_disk_offers_no_room(self) -> None:
        """Only disks in spec and status are looked at."""
        entry = node("n2", disk("d1", storage_scheduled=100 * GIB), disk("d2", in_spec=False))
        assert self.spread(entry) == {(0, "")}


class TestEvenOut:
    """best-effort: even out nodes that hold several replicas, in whatever order Go walks its map."""

    @staticmethod
    def pile(*counts: int) -> list[lh.Replica]:
        """So many replicas on n1, n2, ..."""
        return [
            running(f"r{index}-{number}", f"n{index}/d1")
            for index, count in enumerate(counts, start=1)
            for number in range(count)
        ]

    def even(self, *counts: int) -> set[tuple[int, str]]:
        """What best-effort answers for a pile on that many nodes."""
        nodes = [node(f"n{index}", zone="z") for index in range(1, len(counts) + 1)]
        return answers(*nodes, replicas=self.pile(*counts), settings=BALANCE)

    def test_one_each_is_even(self) -> None:
        """Nothing to do."""
        assert self.even(1, 1) == {(0, "")}

    def test_one_more_is_even_enough(self) -> None:
        """Moving one would only swap the nodes."""
        assert self.even(2, 1) == {(0, "")}

    def test_two_more_moves_one(self) -> None:
        """To the emptier node; or nothing, when the walk ends with the fuller one."""
        assert self.even(3, 1) == {(1, "n2"), (0, "")}

    def test_no_empty_node_leaves_no_choice(self) -> None:
        """With extras everywhere the least count is certain."""
        assert self.even(4, 2) == {(1, "n2")}

    def test_zones_have_no_effect(self) -> None:
        """Longhorn's zone round loses its count in this snapshot."""
        nodes = [node("n1", zone="a"), node("n2", zone="a"), node("n3", zone="b")]
        assert answers(*nodes, replicas=self.pile(1, 1, 1), settings=BALANCE) == {(0, "")}


class TestPressure:
    """best-effort: one replica more on the same node when its disk is under pressure and another is free."""

    PRESSED = disk("d1", storage_available=5 * GIB, scheduled_replicas={"r": 1})
    RELIEF = {**BALANCE, "storage-minimal-available-percentage": "0"}  # noqa: RUF012 # read only

    def relief(self, *disks: lh.Disk, settings: dict[str, str] | None = None, **asked: Any) -> set[tuple[int, str]]:
        """A volume with one replica on the pressed disk d1."""
        entry = node("n1", *disks)
        return answers(entry, replicas=[running("r", "n1/d1")], settings=settings or self.RELIEF, **asked)

    def test_relief(self) -> None:
        """To a disk beside the pressed one."""
        assert self.relief(self.PRESSED, disk("d2")) == {(1, "n1")}

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(disk("d2", allow_scheduling=False), id="closed"),
            pytest.param(disk("d2", spec_type="block"), id="another type"),
            pytest.param(disk("d2", storage_scheduled=90 * GIB), id="would be under pressure itself"),
        ],
    )
    def test_no_relief(self, other: lh.Disk) -> None:
        """The other disk must be able to take it."""
        assert self.relief(self.PRESSED, other) == {(0, "")}

    def test_no_pressure_no_relief(self) -> None:
        """A disk with space keeps its replica."""
        assert self.relief(disk("d1", scheduled_replicas={"r": 1}), disk("d2")) == {(0, "")}

    @pytest.mark.parametrize(("robustness", "turn"), [("healthy", False), ("degraded", True)])
    def test_one_replica_of_a_disk_at_a_time(self, robustness: str, turn: bool) -> None:
        """The first by name of those whose volumes are healthy."""
        other = volume("w", robustness=robustness)
        before = replica("a", "n1/d1", volume="w")
        entry = volume(robustness="healthy", number_of_replicas=1)
        own = running("r", "n1/d1")
        pressed = disk("d1", storage_available=5 * GIB, scheduled_replicas={"a": 1, "r": 1, "gone": 1})
        view = cluster(
            node("n1", pressed, disk("d2")), volumes=[entry, other], replicas=[before, own], settings=self.RELIEF
        )
        assert replenishments(view, entry, [own]) == {Replenishment(1, "n1") if turn else Replenishment()}

    def test_zero_switches_it_off(self) -> None:
        """No pressure percentage, no relief."""
        settings = {**self.RELIEF, "replica-auto-balance-disk-pressure-percentage": "0"}
        assert self.relief(self.PRESSED, disk("d2"), settings=settings) == {(0, "")}
