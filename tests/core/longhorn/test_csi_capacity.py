"""CSI GetCapacity: what kube-scheduler learns about a node or a zone."""

from typing import Any

import pytest

from scheduler_core.longhorn.csi_driver import HOSTNAME, Capacity, CapacityError, get_capacity
from scheduler_core.longhorn.node_controller import ZONE_LABEL
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, node

FREE = Capacity(100 * GIB, 100 * GIB)
NOTHING = Capacity()


def capacity(entry: lh.Node | None = None, settings: dict[str, str] | None = None, **parameters: str) -> Capacity:
    return get_capacity(cluster(entry or node(), settings=settings), {HOSTNAME: "n1"}, parameters)


def test_a_node_has_the_sum_and_the_largest_of_its_disks() -> None:
    entry = node("n1", disk("d1"), disk("d2", storage_reserved=30 * GIB, storage_scheduled=10 * GIB))
    assert capacity(entry, {"storage-over-provisioning-percentage": "200"}) == Capacity(330 * GIB, 200 * GIB)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"conditions": conditions(Ready="False")}, id="not ready"),
        pytest.param({"conditions": conditions(Schedulable="False")}, id="cordoned"),
        pytest.param({"allow_scheduling": False}, id="closed"),
        pytest.param({"eviction_requested": True}, id="evicting: here it is looked at"),
    ],
)
def test_a_closed_node_has_no_capacity(fields: dict[str, Any]) -> None:
    assert capacity(node(**fields)) == NOTHING


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"allow_scheduling": False}, NOTHING, id="closed"),
        pytest.param({"eviction_requested": True}, NOTHING, id="evicting"),
        pytest.param({"in_spec": False}, NOTHING, id="not in spec"),
        pytest.param({"conditions": conditions(Schedulable="False")}, NOTHING, id="not schedulable"),
        pytest.param({"status_type": "block"}, NOTHING, id="the reported type counts"),
        pytest.param({"spec_type": "block"}, FREE, id="the spec's type does not"),
        pytest.param({"storage_available": 1}, FREE, id="available space does not"),
        pytest.param({"storage_scheduled": 300 * GIB}, NOTHING, id="never negative"),
        pytest.param({"storage_reserved": 101 * GIB}, NOTHING, id="reserved beyond the maximum"),
    ],
)
def test_only_usable_disks_count_with_what_is_below_their_limit(fields: dict[str, Any], expected: Capacity) -> None:
    assert capacity(node("n1", disk(**fields))) == expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param({"nodeSelector": "fast"}, FREE, id="node tag"),
        pytest.param({"nodeSelector": "slow"}, NOTHING, id="other node tag"),
        pytest.param({"diskSelector": "ssd"}, FREE, id="disk tag"),
        pytest.param({"diskSelector": "ssd, nvme"}, NOTHING, id="split at commas, untrimmed"),
        pytest.param({"diskSelector": ""}, FREE, id="empty is none"),
        pytest.param({"dataEngine": "v1"}, FREE, id="v1"),
        pytest.param({"dataEngine": "v2"}, NOTHING, id="v2 needs block disks"),
        pytest.param({"dataEngine": ""}, NOTHING, id="an empty engine matches nothing"),
    ],
)
def test_tags_and_data_engine_of_the_storage_class_choose_the_disks(
    parameters: dict[str, Any], expected: Capacity
) -> None:
    entry = node("n1", disk(tags=("ssd",)), tags=("fast",))
    assert capacity(entry, **parameters) == expected


def test_a_tagged_node_needs_a_selector_if_the_setting_says_so() -> None:
    assert capacity(node(tags=("fast",)), {"allow-empty-node-selector-volume": "false"}) == NOTHING


def test_a_zone_has_the_capacity_of_all_its_nodes() -> None:
    view = cluster(node("n1", zone="a"), node("n2", zone="a"), node("n3", zone="b"))
    zone = {"storageCapacityMode": "zone"}
    assert get_capacity(view, {ZONE_LABEL: "a"}, zone) == Capacity(200 * GIB, 100 * GIB)
    assert get_capacity(view, {ZONE_LABEL: "c"}, zone) == NOTHING


@pytest.mark.parametrize(
    ("topology", "mode", "error"),
    [
        pytest.param({}, "node", "InvalidArgument: missing", id="no hostname"),
        pytest.param({HOSTNAME: "n1"}, "zone", "InvalidArgument: missing", id="no zone"),
        pytest.param({HOSTNAME: "n9"}, "node", "NotFound: node n9 not found", id="unknown node"),
        pytest.param({HOSTNAME: "n1"}, "Zone", "InvalidArgument: unexpected value", id="unknown mode"),
    ],
)
def test_a_wrong_request_is_a_grpc_error(topology: dict[str, str], mode: str, error: str) -> None:
    with pytest.raises(CapacityError, match=error):
        get_capacity(cluster(node()), topology, {"storageCapacityMode": mode})


def test_the_capacity_is_computed_with_integers() -> None:
    """Beyond 2^53 bytes the scheduler's float64 would round."""
    entry = node("n1", disk(storage_maximum=2**54 + 1))
    assert capacity(entry).available == 2**54 + 1
