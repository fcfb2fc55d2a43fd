"""Nodes, pods and services as the API server sends them."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.convert.generic import (
    GenericNode,
    GenericPod,
    GenericService,
    generic_node,
    generic_pod,
    generic_service,
    parse_millis,
)
from scheduler_core.convert.meta import decode_object
from scheduler_core.errors import ObjectError, QuantityError
from scheduler_core.model.generic import Cloud, CloudDisk, Node, Pod, Service

MI = 1024**2
MAX = 2**63 - 1


def read_pod(*containers: dict[str, Any], **spec: Any) -> Pod:
    """A pod of these containers."""
    raw = {"metadata": {"name": "x", "namespace": "shop"}, "spec": {"containers": list(containers), **spec}}
    return generic_pod(decode_object("Pod", raw, GenericPod))


def container(*, limits: dict[str, Any] | None = None, ports: object = None, **requests: Any) -> dict[str, Any]:
    """A container with these requests."""
    return {"resources": {"requests": requests, "limits": limits}, "ports": ports}


def read_node(**raw: Any) -> Node:
    """A node with this status and spec."""
    return generic_node(decode_object("Node", {"metadata": {"name": "n"}, **raw}, GenericNode))


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("1", 1000),
        ("1.5", 1500),
        (".5", 500),
        ("2.", 2000),
        ("250m", 250),
        ("0.0001", 1),
        ("1.0001", 1001),
        ("1u", 1),
        ("1500u", 2),
        ("1e3", 1_000_000),
        ("1.5e-1", 150),
        ("2k", 2_000_000),
        ("1.5Ki", 1_536_000),
        ("-1", -1000),
        ("0", 0),
        ("9223372036854775", 9223372036854775000),
        ("9223372036854775807", MAX),
        ("10P", MAX),
        ("1e30", MAX),
        ("1e999999999999", MAX),
        ("-1e999999999999", -MAX),
    ],
)
def test_cpu_is_counted_in_thousandths_rounded_up(text: str, millis: int) -> None:
    """In every notation of a quantity."""
    assert parse_millis(text) == millis


@pytest.mark.parametrize("text", ["", ".", "m", "1 ", "1.2.3", "0x1", "1e", "1mm"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """Also what would become one by moving the decimal point."""
    with pytest.raises(QuantityError):
        parse_millis(text)


@pytest.mark.parametrize("text", ["10E", "9Ei", "1e30", str(2**63), 2**63, 1e30])
def test_what_is_beyond_64_bits_counts_as_the_most_there_is(text: str | float) -> None:
    """Whoever may create a pod may ask for it: the pod can be read, and no node has room for it."""
    found = read_pod(container(cpu=text, memory=text), container(cpu=text))
    assert (found.cpu, found.memory, found.nonzero_cpu) == (2 * MAX, MAX, 2 * MAX)
    capacity = {"cpu": text, "memory": text, "pods": text}
    node = read_node(status={"capacity": capacity})
    assert (node.cpu, node.memory, node.pods) == (MAX, MAX, MAX)


@pytest.mark.parametrize(
    ("text", "cpu", "memory"),
    [
        ("10P", MAX, 10**16),
        ("10e99", MAX, MAX),
        ("999999999999999999E", MAX, MAX),
        ("9223372036854775807500m", MAX, MAX),
        ("1000000000000000000001m", MAX, 10**18 + 1),
        ("0" * 100 + "1", 1000, 1),
        ("+1", 1000, 1),
        ("5.", 5000, 5),
        ("1.1e1", 11_000, 11),
        ("100e3", 10**8, 10**5),
        ("1e-3", 1, 1),
        ("1e+30", MAX, MAX),
    ],
)
def test_what_an_api_server_stores_can_be_read(text: str, cpu: int, memory: int) -> None:
    """The oddest quantities that kube-apiserver 1.36 gave back when asked to store odd ones."""
    found = read_pod(container(cpu=text, memory=text))
    assert (found.cpu, found.memory) == (cpu, memory)


def test_requests_of_all_containers_add_up() -> None:
    """Each rounded up on its own."""
    found = read_pod(container(cpu="0.0005", memory="1.1"), container(cpu=1, memory="1Ki"))
    assert (found.cpu, found.memory) == (1001, 1026)


def test_the_limit_stands_for_a_request_that_is_not_set() -> None:
    """As the API server fills it in, resource by resource."""
    found = read_pod(container(cpu="1", limits={"cpu": "2", "memory": "3"}))
    assert (found.cpu, found.memory, found.nonzero_memory) == (1000, 3, 3)


def test_the_priorities_assume_what_is_not_said() -> None:
    """Per container 100m and 200Mi; a zero that is said stays."""
    found = read_pod(container(), container(cpu="0", memory="0"), container(cpu="1"), {})
    assert (found.cpu, found.memory) == (1000, 0)
    assert (found.nonzero_cpu, found.nonzero_memory) == (1200, 600 * MI)


def test_init_containers_do_not_count() -> None:
    """As in Kubernetes 1.1."""
    assert read_pod(container(cpu="1"), initContainers=[container(cpu="9")]).cpu == 1000


@pytest.mark.parametrize(("host_network", "ports"), [(False, {81, 90}), (True, {80, 81, 90})])
def test_host_ports(host_network: bool, ports: set[int]) -> None:
    """With hostNetwork every port of a container is one."""
    first = container(ports=[{"containerPort": 80}, {"containerPort": 80, "hostPort": 81}])
    second = container(ports=[{"containerPort": 80, "hostPort": 90}])
    assert read_pod(first, second, hostNetwork=host_network).ports == ports


def test_cloud_disks() -> None:
    """Of two clouds; other volumes are left out."""
    found = read_pod(
        volumes=[
            {"name": "a", "gcePersistentDisk": {"pdName": "d", "readOnly": True, "partition": 2}},
            {"name": "b", "awsElasticBlockStore": {"volumeID": "v"}},
            {"name": "c", "emptyDir": {}},
        ]
    )
    assert found.disks == (CloudDisk(Cloud.GCE, "d", read_only=True), CloudDisk(Cloud.EBS, "v"))


@pytest.mark.parametrize(
    ("phase", "finished"), [("Succeeded", True), ("Failed", True), ("Running", False), (None, False)]
)
def test_finished_pods(phase: str | None, finished: bool) -> None:
    """By their phase alone."""
    raw = {"metadata": {"name": "x", "deletionTimestamp": "2015-07-27T00:00:00Z"}, "status": {"phase": phase}}
    assert generic_pod(decode_object("Pod", raw, GenericPod)).finished is finished


def test_a_pod_without_anything() -> None:
    """Is in the default namespace and asks for nothing."""
    assert generic_pod(decode_object("Pod", {"metadata": {"name": "x"}}, GenericPod)) == Pod("default", "x")


def test_who_a_pod_is_and_where_it_may_run() -> None:
    """Labels, node and node selector."""
    raw = {
        "metadata": {"name": "x", "namespace": "shop", "uid": "u", "labels": {"app": "web"}},
        "spec": {"nodeName": "n", "nodeSelector": {"disk": "ssd"}},
    }
    assert generic_pod(decode_object("Pod", raw, GenericPod)) == Pod(
        "shop", "x", frozenset({("app", "web")}), "n", {"disk": "ssd"}, uid="u"
    )


def test_a_nodes_capacity_is_not_what_is_allocatable() -> None:
    """As in Kubernetes 1.1."""
    capacity, less = {"cpu": "4", "memory": "8Gi", "pods": "110"}, {"cpu": "1", "memory": "1Gi", "pods": "1"}
    found = read_node(status={"capacity": capacity, "allocatable": less})
    assert (found.cpu, found.memory, found.pods) == (4000, 8 * 1024**3, 110)


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "MemoryPressure", "status": "True"}], False),
        (None, False),
    ],
)
def test_a_node_is_ready_if_its_condition_says_so(conditions: object, ready: bool) -> None:
    """Other conditions do not matter, wherever they stand."""
    assert read_node(status={"conditions": conditions}).ready is ready


def test_a_cordoned_node() -> None:
    """By its spec."""
    assert read_node(spec={"unschedulable": True}).unschedulable
    assert not read_node().unschedulable


@pytest.mark.parametrize("spec", [None, {}, {"selector": None}, {"selector": {}}])
def test_a_service_without_selector_selects_nobody(spec: object) -> None:
    """Not even a pod without labels."""
    found = generic_service(decode_object("Service", {"metadata": {"name": "s"}, "spec": spec}, GenericService))
    assert found == Service("default", "s")
    assert not found.selects(frozenset())


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"spec": {"containers": [container(cpu="x")]}}, "Pod x: spec.containers[].resources.requests.cpu: 'x' is not"),
        ({"spec": {"containers": [container(memory="-1")]}}, "requests.memory: '-1' is negative"),
        ({"spec": {"containers": [container(cpu="-1")]}}, "requests.cpu: '-1' is negative"),
    ],
)
def test_a_wrong_quantity_is_told_with_its_place(raw: dict[str, Any], told: str) -> None:
    """Object and field."""
    with pytest.raises(ObjectError) as caught:
        generic_pod(decode_object("Pod", {"metadata": {"name": "x"}, **raw}, GenericPod))
    assert told in str(caught.value)
