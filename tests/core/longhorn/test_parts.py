"""The small parts: times, asks, and the instance manager Longhorn picks at random."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from scheduler_core.longhorn.readiness import instance_manager_ready, one_manager_per_node
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.timestamps import parse_time
from scheduler_core.model.longhorn import InstanceManager
from tests.worlds.longhorn import GIB, cluster, node, replica, volume


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC), id="UTC"),
        pytest.param("2026-01-01T02:00:00+02:00", datetime(2026, 1, 1, tzinfo=UTC), id="offset"),
        pytest.param("2026-01-01T00:00:00.1234567Z", datetime(2026, 1, 1, 0, 0, 0, 123456, UTC), id="fraction"),
        pytest.param("2026-01-01T00:00:00", None, id="no zone"),
        pytest.param("2026-01-01", None, id="only a date"),
        pytest.param("2026-13-01T00:00:00Z", None, id="no such month"),
        pytest.param("", None, id="empty"),
    ],
)
def test_times_are_rfc_3339(text: str, expected: datetime | None) -> None:
    """As strict as Go's time.Parse."""
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [("vol://src", "src"), ("snap://src/snap1", "src"), ("", ""), ("https://src", ""), ("src", "")],
)
def test_source_volume_of_a_linked_clone(source: str, expected: str) -> None:
    """spec.dataSource names a volume or a snapshot of one."""
    assert ReplicaRequest.for_volume(volume(data_source=source)).linked_clone_source_volume == expected


def test_an_ask_takes_some_fields_from_the_replica() -> None:
    """Engine, image and size of the replica decide where Longhorn says so."""
    entry = replica("r", size=5 * GIB, data_engine="v2", image="other", hard_node_affinity="n1")
    request = ReplicaRequest.for_replica(volume(image="own"), entry)
    assert (request.replica_size, request.data_engine, request.image, request.hard_node_affinity) == (
        5 * GIB,
        "v2",
        "other",
        "n1",
    )


def test_one_of_several_default_managers_is_looked_at() -> None:
    """Each pick is a cluster of its own, and they may disagree."""
    managers = {
        "a": InstanceManager("a", "n1", state="running"),
        "b": InstanceManager("b", "n1", state="error"),
        "c": InstanceManager("c", "n2", state="running"),
    }
    view = cluster(node("n1"), node("n2"), instance_managers=managers)
    seen = [instance_manager_ready(each, "v1", "n1") for each in one_manager_per_node(view)]
    assert seen == [True, False]


def test_without_doubt_there_is_one_cluster() -> None:
    """Usually there is one manager per node and engine, or nothing is known about them."""
    assert len(list(one_manager_per_node(cluster(node())))) == 1
