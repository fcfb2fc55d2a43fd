"""Which EndpointSlice the leader wants, and what it changes for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler_core.convert.discovery import changed_slice, endpoint_slice, new_slice, this_version
from scheduler_core.errors import CoreError, ObjectError
from scheduler_core.leadership.endpoint_slice import (
    LABELS,
    NAME,
    Create,
    Delete,
    Endpoint,
    Replace,
    Slice,
    publish,
    withdraw,
)

ME = Endpoint.at("10.1.2.3", 9504, "node-1")
OTHER = Endpoint.at("10.1.2.4", 9504, "node-2")


def of(*endpoints: Endpoint, labels: dict[str, str] | None = None, address_type: str = "IPv4") -> Slice:
    """A slice with these endpoints."""
    return Slice(address_type, endpoints, labels or dict(LABELS))


@pytest.mark.parametrize(
    "address",
    ["", "pod-1", "127.0.0.1", "::1", "169.254.1.1", "fe80::1", "0.0.0.0", "224.0.0.1", "::ffff:10.0.0.1x"],  # noqa: S104
)
def test_addresses_nobody_can_reach_are_refused(address: str) -> None:
    """The API server would refuse them, without saying whose they are."""
    with pytest.raises(CoreError, match="the leader's address"):
        Endpoint.at(address)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_ports_that_are_none_are_refused(port: int) -> None:
    """As the API server would."""
    with pytest.raises(CoreError, match="the leader's port"):
        Endpoint.at("10.1.2.3", port)


@pytest.mark.parametrize(
    ("address", "canonical", "family"),
    [("10.1.2.3", "10.1.2.3", "IPv4"), ("2001:DB8:0::7", "2001:db8::7", "IPv6"), (" 10.1.2.3\n", "10.1.2.3", "IPv4")],
)
def test_the_address_type_follows_the_address(address: str, canonical: str, family: str) -> None:
    """Addresses are compared and written in one form."""
    endpoint = Endpoint.at(address)
    assert (endpoint.address, endpoint.address_type) == (canonical, family)


@pytest.mark.parametrize(
    ("current", "change"),
    [
        pytest.param(None, Create(of(ME)), id="absent"),
        pytest.param(of(ME), None, id="there already"),
        pytest.param(of(ME, labels={**LABELS, "team": "storage"}), None, id="others' labels"),
        pytest.param(of(), Replace(of(ME)), id="empty"),
        pytest.param(of(OTHER), Replace(of(ME)), id="a predecessor's"),
        pytest.param(of(ME, OTHER), Replace(of(ME)), id="one too many"),
        pytest.param(of(Endpoint(ME.address, 9505, ME.node)), Replace(of(ME)), id="another port"),
        pytest.param(of(Endpoint(ME.address, 9504, "node-9")), Replace(of(ME)), id="another node"),
        pytest.param(of(ME, labels={"kubernetes.io/service-name": "x"}), Replace(of(ME)), id="labels missing"),
        pytest.param(Slice("IPv4", (ME,), LABELS, plain=False), Replace(of(ME)), id="ports edited"),
        pytest.param(of(address_type="IPv6"), Delete(), id="the other family"),
        pytest.param(of(address_type="FQDN"), Delete(), id="host names"),
    ],
)
def test_publishing(current: Slice | None, change: object) -> None:
    """Nothing is written that is there."""
    assert publish(ME, current) == change


@pytest.mark.parametrize(
    ("current", "change"),
    [
        pytest.param(None, None, id="absent"),
        pytest.param(of(), None, id="empty"),
        pytest.param(of(ME), Replace(of()), id="ours"),
        pytest.param(of(OTHER), None, id="a successor's"),
        pytest.param(of(Endpoint(ME.address, 9505, ME.node)), None, id="a successor's on the same address"),
    ],
)
def test_withdrawing(current: Slice | None, change: object) -> None:
    """Only what leads to this process."""
    assert withdraw(ME, current) == change


def test_what_is_created_is_what_was_wanted() -> None:
    """The names are the Service's; the port's is what the Service's port says."""
    body = new_slice("ns", NAME, of(ME))
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
    assert endpoint_slice(json.dumps(body).encode()) == of(ME)


def test_outside_of_a_cluster_there_is_no_node() -> None:
    """An empty nodeName would be refused."""
    assert "nodeName" not in new_slice("ns", NAME, of(Endpoint.at("10.1.2.3")))["endpoints"][0]


def test_a_replacement_keeps_what_is_not_ours() -> None:
    """Labels, annotations, uid and version; not the managed fields."""
    before = new_slice("ns", NAME, of(OTHER))
    before["metadata"] |= {"uid": "u", "resourceVersion": "8", "annotations": {"a": "b"}, "managedFields": [{}]}
    before["metadata"]["labels"]["team"] = "storage"
    body = changed_slice(json.dumps(before).encode(), of(ME))
    kept = {key: value for key, value in before["metadata"].items() if key != "managedFields"}
    assert body["metadata"] == kept
    assert endpoint_slice(json.dumps(body).encode()).endpoints == (ME,)
    assert this_version(json.dumps(before).encode()) == {"preconditions": {"uid": "u", "resourceVersion": "8"}}


@pytest.mark.parametrize(
    ("edit", "endpoints", "plain"),
    [
        ({"endpoints": None}, (), True),
        ({"ports": []}, (), False),
        ({"ports": [{"name": "web", "port": 9504}]}, (ME,), False),
        ({"ports": [{"name": "http", "port": 9504, "protocol": "UDP"}]}, (ME,), False),
        ({"ports": [{"name": "http", "port": 9504}]}, (ME,), True),
        ({"endpoints": [{"addresses": ["10.1.2.3"], "nodeName": "node-1"}]}, (ME,), True),
        ({"endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": False}}]}, (), False),
        ({"endpoints": [{"addresses": []}]}, (), True),
    ],
)
def test_a_slice_is_read_as_kube_proxy_reads_it(
    edit: dict[str, Any], endpoints: tuple[Endpoint, ...], plain: bool
) -> None:
    """Absent conditions mean ready, no port means unreachable."""
    body = {**new_slice("ns", NAME, of(ME)), **edit}
    current = endpoint_slice(json.dumps(body).encode())
    assert (current.endpoints, current.plain) == (endpoints, plain)


def test_what_is_no_slice_is_refused() -> None:
    """With its kind."""
    with pytest.raises(ObjectError, match="EndpointSlice"):
        endpoint_slice(b"<html>")
