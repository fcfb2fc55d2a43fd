"""Nodes, pods and services as the API server sends them."""

from typing import Any

import pytest

from scheduler_core.convert.generic import NODE, SCHEDULED_POD, SERVICE, read_pending_pod
from scheduler_core.errors import ObjectError
from scheduler_core.model.constraints import Cloud, CloudDisk, PodScheduling
from scheduler_core.model.generic import Node, Service
from scheduler_core.model.kube import Pod

MI = 1024**2
MAX = 2**63 - 1


def read_pod(*containers: dict[str, Any], **spec: Any) -> PodScheduling:
    raw = {"metadata": {"name": "x", "namespace": "shop"}, "spec": {"containers": list(containers), **spec}}
    return SCHEDULED_POD.read(raw).scheduling


def container(*, limits: dict[str, Any] | None = None, ports: object = None, **requests: Any) -> dict[str, Any]:
    return {"resources": {"requests": requests, "limits": limits}, "ports": ports}


def read_node(**raw: Any) -> Node:
    return NODE.read({"metadata": {"name": "n"}, **raw})


@pytest.mark.parametrize("text", ["10E", "9Ei", "1e30", str(2**63), 2**63, 1e30])
def test_a_quantity_beyond_64_bits_counts_as_the_largest(text: str | float) -> None:
    pod = read_pod(container(cpu=text, memory=text), container(cpu=text))
    assert (pod.cpu, pod.memory, pod.nonzero_cpu) == (2 * MAX, MAX, 2 * MAX)
    capacity = {"cpu": text, "memory": text, "pods": text}
    node = read_node(status={"capacity": capacity})
    assert (node.cpu, node.memory, node.pods) == (MAX, MAX, MAX)


@pytest.mark.parametrize(
    ("containers", "cpu", "memory", "nonzero"),
    [
        pytest.param([container(cpu="0.0005", memory="1.1"), container(cpu=1, memory="1Ki")], 1001, 1026, (1001, 1026), id="sum"),
        pytest.param([container(cpu="1", limits={"cpu": "2", "memory": "3"})], 1000, 3, (1000, 3), id="the limit"),
        pytest.param(
            [container(), container(cpu="0", memory="0"), container(cpu="1"), {}], 1000, 0, (1200, 600 * MI),
            id="an explicit zero counts, and a missing request as 100m and 200Mi",
        ),
    ],
)  # fmt: skip
def test_requests_of_all_containers_count(
    containers: list[dict[str, Any]], cpu: int, memory: int, nonzero: tuple[int, int]
) -> None:
    """Those of init containers do not, as in Kubernetes 1.1."""
    pod = read_pod(*containers, initContainers=[container(cpu="9")])
    assert (pod.cpu, pod.memory, (pod.nonzero_cpu, pod.nonzero_memory)) == (cpu, memory, nonzero)


@pytest.mark.parametrize(("host_network", "ports"), [(False, {81, 90}), (True, {80, 81, 90})])
def test_a_pod_has_its_containers_host_ports(host_network: bool, ports: set[int]) -> None:
    first = container(ports=[{"containerPort": 80}, {"containerPort": 80, "hostPort": 81}])
    second = container(ports=[{"containerPort": 80, "hostPort": 90}])
    assert read_pod(first, second, hostNetwork=host_network).ports == ports


def test_a_pod_has_its_volumes_cloud_disks() -> None:
    pod = read_pod(
        volumes=[
            {"name": "a", "gcePersistentDisk": {"pdName": "d", "readOnly": True, "partition": 2}},
            {"name": "b", "awsElasticBlockStore": {"volumeID": "v"}},
            {"name": "c", "emptyDir": {}},
        ]
    )
    assert pod.disks == (CloudDisk(Cloud.GCE, "d", read_only=True), CloudDisk(Cloud.EBS, "v"))


@pytest.mark.parametrize(
    ("phase", "finished"), [("Succeeded", True), ("Failed", True), ("Running", False), (None, False)]
)
def test_the_phase_alone_decides_whether_a_pod_is_finished(phase: str | None, finished: bool) -> None:
    raw = {"metadata": {"name": "x", "deletionTimestamp": "2015-07-27T00:00:00Z"}, "status": {"phase": phase}}
    assert SCHEDULED_POD.read(raw).finished is finished


def test_a_pod_has_its_identity_labels_and_node_selector() -> None:
    assert SCHEDULED_POD.read({"metadata": {"name": "x"}}) == Pod("default", "x", scheduling=PodScheduling(ready=False))
    raw = {
        "metadata": {"name": "x", "namespace": "shop", "uid": "u", "labels": {"app": "web"}},
        "spec": {"nodeName": "n", "nodeSelector": {"disk": "ssd"}},
    }
    scheduling = PodScheduling(frozenset({("app", "web")}), frozenset({("disk", "ssd")}), ready=False)
    assert SCHEDULED_POD.read(raw) == Pod("shop", "x", "u", "n", scheduling=scheduling)


def test_a_bound_pod_does_not_change_with_what_rules_do_not_read() -> None:
    """Otherwise every status would give unschedulable pods another try."""
    conditions = [{"type": "Ready", "status": "True"}]
    pending, running = (
        read_pending_pod(
            {"metadata": {"name": "x", "resourceVersion": version}, "spec": {"nodeName": "n"}, "status": status}
        )
        for version, status in (("1", {"phase": "Pending"}), ("2", {"phase": "Running", "conditions": conditions}))
    )
    assert pending == running


def test_the_capacity_of_a_node_counts_and_not_its_allocatable_part() -> None:
    """As in Kubernetes 1.1."""
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    allocatable = {"cpu": "1", "memory": "1Gi", "pods": "1"}
    node = read_node(status={"capacity": capacity, "allocatable": allocatable})
    assert (node.cpu, node.memory, node.pods) == (4000, 8 * 1024**3, 110)


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
def test_a_node_is_ready_if_its_condition_ready_is_true(conditions: object, ready: bool) -> None:
    assert read_node(status={"conditions": conditions}).ready is ready


def test_a_cordoned_node_is_unschedulable() -> None:
    assert read_node(spec={"unschedulable": True}).unschedulable
    assert not read_node().unschedulable


@pytest.mark.parametrize("spec", [None, {}, {"selector": None}, {"selector": {}}])
def test_a_service_without_selector_selects_no_pod(spec: object) -> None:
    service = SERVICE.read({"metadata": {"name": "s"}, "spec": spec})
    assert service == Service("default", "s")
    assert not service.selects(frozenset())


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            {"spec": {"containers": [container(cpu="x")]}},
            "Pod x: spec.containers[0].resources.requests[cpu]: 'x' is not",
        ),
        ({"spec": {"containers": [container(memory="-1")]}}, "requests[memory]: '-1' is negative"),
        ({"spec": {"containers": [container(cpu="-1")]}}, "requests[cpu]: '-1' is negative"),
    ],
)
def test_the_error_about_a_wrong_quantity_names_its_place(raw: dict[str, Any], problem: str) -> None:
    with pytest.raises(ObjectError) as caught:
        SCHEDULED_POD.read({"metadata": {"name": "x"}, **raw})
    assert problem in str(caught.value)
