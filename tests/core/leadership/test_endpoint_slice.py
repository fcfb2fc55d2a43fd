"""The EndpointSlice that the leader publishes, and the change that leads to it."""

import json
from typing import Any

import pytest

from scheduler_core.convert.leadership import endpoint_slice, new_slice, update_slice, version_precondition
from scheduler_core.errors import CoreError, ObjectError
from scheduler_core.leadership.endpoint_slice import (
    EXTENDER,
    PLACEMENT_GUARD,
    CreateSlice,
    DeleteSlice,
    Endpoint,
    ReplaceSlice,
    Slice,
    plan_publish,
    plan_withdraw,
)

LABELS = EXTENDER.labels
OWN = Endpoint.at("10.1.2.3", 9504, "node-1")
OTHER = Endpoint.at("10.1.2.4", 9504, "node-2")


def slice_of(*endpoints: Endpoint, labels: dict[str, str] | None = None, address_type: str = "IPv4") -> Slice:
    return Slice(address_type, endpoints, labels or dict(LABELS))


@pytest.mark.parametrize(
    "address",
    ["", "pod-1", "127.0.0.1", "::1", "169.254.1.1", "fe80::1", "0.0.0.0", "224.0.0.1", "::ffff:10.0.0.1x"],  # noqa: S104
)
def test_unreachable_addresses_are_refused(address: str) -> None:
    """The API server would refuse them without saying whose they are."""
    with pytest.raises(CoreError, match="the leader's address"):
        Endpoint.at(address)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_invalid_ports_are_refused(port: int) -> None:
    """As by the API server."""
    with pytest.raises(CoreError, match="the leader's port"):
        Endpoint.at("10.1.2.3", port)


@pytest.mark.parametrize(
    ("address", "canonical", "family"),
    [("10.1.2.3", "10.1.2.3", "IPv4"), ("2001:DB8:0::7", "2001:db8::7", "IPv6"), (" 10.1.2.3\n", "10.1.2.3", "IPv4")],
)
def test_the_address_type_follows_from_the_address(address: str, canonical: str, family: str) -> None:
    endpoint = Endpoint.at(address)
    assert (endpoint.address, endpoint.address_type) == (canonical, family)


@pytest.mark.parametrize(
    ("current", "change"),
    [
        pytest.param(None, CreateSlice(slice_of(OWN)), id="absent"),
        pytest.param(slice_of(OWN), None, id="unchanged"),
        pytest.param(slice_of(OWN, labels={**LABELS, "team": "storage"}), None, id="additional labels"),
        pytest.param(slice_of(), ReplaceSlice(slice_of(OWN)), id="empty"),
        pytest.param(slice_of(OTHER), ReplaceSlice(slice_of(OWN)), id="previous leader's"),
        pytest.param(slice_of(OWN, OTHER), ReplaceSlice(slice_of(OWN)), id="one endpoint too many"),
        pytest.param(slice_of(Endpoint(OWN.address, 9505, OWN.node)), ReplaceSlice(slice_of(OWN)), id="another port"),
        pytest.param(slice_of(Endpoint(OWN.address, 9504, "node-9")), ReplaceSlice(slice_of(OWN)), id="another node"),
        pytest.param(
            slice_of(OWN, labels={"kubernetes.io/service-name": "x"}), ReplaceSlice(slice_of(OWN)), id="labels missing"
        ),
        pytest.param(Slice("IPv4", (OWN,), LABELS, plain=False), ReplaceSlice(slice_of(OWN)), id="ports edited"),
        pytest.param(slice_of(address_type="IPv6"), DeleteSlice(), id="the other family"),
        pytest.param(slice_of(address_type="FQDN"), DeleteSlice(), id="host names"),
    ],
)
def test_publishing_changes_only_what_differs(current: Slice | None, change: object) -> None:
    assert plan_publish(EXTENDER, OWN, current) == change


@pytest.mark.parametrize(
    ("current", "change"),
    [
        pytest.param(None, None, id="absent"),
        pytest.param(slice_of(), None, id="empty"),
        pytest.param(slice_of(OWN), ReplaceSlice(slice_of()), id="own endpoint"),
        pytest.param(slice_of(OTHER), None, id="next leader's"),
        pytest.param(slice_of(Endpoint(OWN.address, 9505, OWN.node)), None, id="next leader's on the same address"),
    ],
)
def test_withdrawing_removes_only_the_process_s_own_endpoint(current: Slice | None, change: object) -> None:
    assert plan_withdraw(EXTENDER, OWN, current) == change


def test_a_created_slice_is_read_back_as_it_was_planned() -> None:
    body = new_slice("ns", EXTENDER, slice_of(OWN))
    assert body == {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "longhorn-scheduler-extender",
            "namespace": "ns",
            "labels": {
                "kubernetes.io/service-name": "longhorn-scheduler-extender",
                "endpointslice.kubernetes.io/managed-by": "longhorn-scheduler-extender",
            },
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}, "nodeName": "node-1"}],
        "ports": [{"name": "http", "port": 9504, "protocol": "TCP"}],
    }
    assert endpoint_slice(json.dumps(body).encode(), EXTENDER) == slice_of(OWN)


def test_each_service_has_a_slice_of_its_own() -> None:
    service = PLACEMENT_GUARD
    desired = Slice("IPv4", (OWN,), service.labels)
    body = new_slice("ns", service, desired)
    assert body["metadata"]["name"] == service.name != EXTENDER.name
    assert body["metadata"]["labels"]["kubernetes.io/service-name"] == service.name
    assert [(port["name"], port["port"]) for port in body["ports"]] == [("https", OWN.port)]
    raw = json.dumps(body).encode()
    assert plan_publish(service, OWN, endpoint_slice(raw, service)) is None
    assert plan_publish(EXTENDER, OWN, endpoint_slice(raw, EXTENDER)) == ReplaceSlice(slice_of(OWN))
    emptied = update_slice(raw, service, Slice("IPv4", (), service.labels))
    assert [(port["name"], port["port"]) for port in emptied["ports"]] == [("https", service.port)]


def test_outside_a_cluster_no_node_name_is_written() -> None:
    """An empty nodeName would be refused."""
    assert "nodeName" not in new_slice("ns", EXTENDER, slice_of(Endpoint.at("10.1.2.3")))["endpoints"][0]


def test_a_replacement_keeps_the_metadata_of_others() -> None:
    before = new_slice("ns", EXTENDER, slice_of(OTHER))
    before["metadata"] |= {"uid": "u", "resourceVersion": "8", "annotations": {"a": "b"}, "managedFields": [{}]}
    before["metadata"]["labels"]["team"] = "storage"
    body = update_slice(json.dumps(before).encode(), EXTENDER, slice_of(OWN))
    metadata = {key: value for key, value in before["metadata"].items() if key != "managedFields"}
    assert body["metadata"] == metadata
    assert endpoint_slice(json.dumps(body).encode(), EXTENDER).endpoints == (OWN,)
    assert version_precondition(json.dumps(before).encode()) == {"preconditions": {"uid": "u", "resourceVersion": "8"}}


@pytest.mark.parametrize(
    ("edit", "endpoints", "plain"),
    [
        ({"endpoints": None}, (), True),
        ({"ports": []}, (), False),
        ({"ports": [{"name": "web", "port": 9504}]}, (OWN,), False),
        ({"ports": [{"name": "http", "port": 9504, "protocol": "UDP"}]}, (OWN,), False),
        ({"ports": [{"name": "http", "port": 9504}]}, (OWN,), True),
        ({"endpoints": [{"addresses": ["10.1.2.3"], "nodeName": "node-1"}]}, (OWN,), True),
        ({"endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": False}}]}, (), False),
        ({"endpoints": [{"addresses": []}]}, (), True),
        ({"endpoints": [{"addresses": ["10.1.2.3", "10.1.2.9"], "nodeName": "node-1"}]}, (OWN,), False),
    ],
)
def test_a_slice_is_read_as_kube_proxy_reads_it(
    edit: dict[str, Any], endpoints: tuple[Endpoint, ...], plain: bool
) -> None:
    body = {**new_slice("ns", EXTENDER, slice_of(OWN)), **edit}
    current = endpoint_slice(json.dumps(body).encode(), EXTENDER)
    assert (current.endpoints, current.plain) == (endpoints, plain)


def test_an_object_that_is_no_slice_is_refused() -> None:
    with pytest.raises(ObjectError, match="EndpointSlice"):
        endpoint_slice(b"<html>", EXTENDER)
