"""The fields of a replica request: from the volume, its source and the replica."""

import pytest

from scheduler_core.longhorn.replica_request import ReplicaRequest
from tests.worlds.longhorn import GIB, replica, volume


@pytest.mark.parametrize(
    ("source", "expected"),
    [("vol://src", "src"), ("snap://src/snap1", "src"), ("", ""), ("https://src", ""), ("src", "")],
)
def test_the_data_source_names_the_source_volume_of_a_linked_clone(source: str, expected: str) -> None:
    assert ReplicaRequest.for_volume(volume(data_source=source)).linked_clone_source_volume == expected


def test_engine_image_size_and_node_affinity_are_the_replica_s() -> None:
    entry = replica("r", size=5 * GIB, data_engine="v2", image="other", hard_node_affinity="n1")
    request = ReplicaRequest.for_replica(volume(image="own"), entry)
    assert (request.replica_size, request.data_engine, request.image, request.hard_node_affinity) == (
        5 * GIB,
        "v2",
        "other",
        "n1",
    )
