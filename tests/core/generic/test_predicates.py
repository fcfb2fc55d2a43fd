"""Each classic predicate, rule by rule."""

from typing import Any

import pytest

from scheduler_core.generic import predicates as texts
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import UndecidableError
from scheduler_core.model.constraints import Cloud, CloudDisk
from scheduler_core.model.generic import Node
from scheduler_core.model.kube import Pod
from tests.worlds.policy_rules import GI, failed, node, pod, service, state, web

TWO_NODES = [node("a"), node("b")]
ZONES = [node("a1", zone="a"), node("a2", zone="a"), node("b1", zone="b"), node("u")]


def ports(*numbers: int) -> dict[str, Any]:
    return {"ports": frozenset(numbers)}


def disk(name: str = "d", cloud: Cloud = Cloud.GCE, *, read_only: bool = False) -> dict[str, Any]:
    return {"disks": (CloudDisk(cloud, name, read_only),)}


def test_a_taken_host_port_refuses_the_node() -> None:
    cluster = state(TWO_NODES, [pod("x", "a", namespace="other", **ports(80))])
    assert failed("PodFitsPorts", pod(**ports(80, 81)), cluster) == {"a": texts.PORT_TAKEN}


def test_a_finished_pod_takes_nothing() -> None:
    cluster = state([node("a", cpu=100, pods=1)], [pod("x", "a", cpu=100, finished=True, **ports(80), **disk())])
    new_pod = pod(cpu=100, **ports(80), **disk())
    assert [failed(rule, new_pod, cluster) for rule in ("PodFitsPorts", "PodFitsResources", "NoDiskConflict")] == [
        {},
        {},
        {},
    ]


@pytest.mark.parametrize(
    ("cpu", "memory", "refused"),
    [
        pytest.param(600, 6, "", id="exactly full"),
        pytest.param(601, 6, texts.NO_CPU, id="one millicore too much"),
        pytest.param(600, 7, texts.NO_MEMORY, id="one byte too much"),
        pytest.param(601, 7, texts.NO_CPU_NOR_MEMORY, id="both too much"),
        pytest.param(0, 0, "", id="no requests"),
    ],
)
def test_requests_add_up_to_at_most_the_capacity(cpu: int, memory: int, refused: str) -> None:
    cluster = state([node("a", cpu=1000, memory=10)], [pod("x", "a", cpu=400, memory=4)])
    assert failed("PodFitsResources", pod(cpu=cpu, memory=memory), cluster).get("a", "") == refused


def test_a_pod_that_requests_one_resource_needs_room_for_both() -> None:
    cluster = state([node("a", memory=10)], [pod("x", "a", memory=11)])
    assert failed("PodFitsResources", pod(cpu=1), cluster) == {"a": texts.NO_MEMORY}
    assert failed("PodFitsResources", pod(), cluster) == {}


def test_a_capacity_of_zero_is_no_limit() -> None:
    assert failed("PodFitsResources", pod(cpu=10**6, memory=GI), state([node("a", cpu=0, memory=0)])) == {}


@pytest.mark.parametrize(("capacity", "refused"), [(0, texts.TOO_MANY_PODS), (1, texts.TOO_MANY_PODS), (2, "")])
def test_every_pod_counts_towards_the_number_of_pods(capacity: int, refused: str) -> None:
    cluster = state([node("a", pods=capacity)], [pod("x", "a")])
    assert failed("PodFitsResources", pod(), cluster).get("a", "") == refused


@pytest.mark.parametrize(
    ("cloud", "old_reads", "new_reads", "conflict"),
    [
        pytest.param(Cloud.GCE, True, True, False, id="Google, both read"),
        pytest.param(Cloud.GCE, True, False, True, id="Google, the new one writes"),
        pytest.param(Cloud.GCE, False, True, True, id="Google, the old one writes"),
        pytest.param(Cloud.EBS, True, True, True, id="EBS, though both read"),
    ],
)
def test_only_readers_share_a_cloud_disk(cloud: Cloud, old_reads: bool, new_reads: bool, conflict: bool) -> None:
    old_pods = [pod("x", "a", **disk("d", cloud, read_only=old_reads)), pod("y", "b", **disk("D", cloud))]
    cluster = state(TWO_NODES, old_pods)
    refused = failed("NoDiskConflict", pod(**disk("d", cloud, read_only=new_reads)), cluster)
    assert refused == ({"a": texts.DISK_IN_USE} if conflict else {})


def test_one_writer_among_readers_is_a_conflict() -> None:
    readers = [pod("x", "a", **disk(read_only=True)), pod("y", "a", **disk()), pod("z", "a", **disk(read_only=True))]
    assert failed("NoDiskConflict", pod(**disk(read_only=True)), state(TWO_NODES, readers)) == {"a": texts.DISK_IN_USE}


def test_disks_of_two_clouds_do_not_conflict() -> None:
    cluster = state(TWO_NODES, [pod("x", "a", **disk("d", Cloud.EBS))])
    assert failed("NoDiskConflict", pod(**disk("d", Cloud.GCE)), cluster) == {}


@pytest.mark.parametrize(
    ("selector", "fits"),
    [({}, ["a", "b", "c", "d"]), ({"disk": "ssd"}, ["a"]), ({"disk": ""}, ["d"]), ({"disk": "ssd", "zone": "z"}, [])],
)
def test_the_node_selector_requires_each_label_with_its_value(selector: dict[str, str], fits: list[str]) -> None:
    cluster = state([node("a", disk="ssd"), node("b", disk="hdd"), node("c"), node("d", disk="")])
    refused = failed("MatchNodeSelector", pod(node_selector=selector), cluster)
    assert [name for name in cluster.node_names if name not in refused] == fits


def test_the_host_name_is_compared_exactly() -> None:
    cluster = state([node("n1"), node("N1")])
    assert failed("HostName", pod(on="n1"), cluster) == {"N1": texts.OTHER_HOST}
    assert failed("HostName", pod(), cluster) == {}


def affine_nodes(new_pod: Pod, cluster: GenericClusterState, *labels: str) -> list[str]:
    refused = failed("serviceAffinity", new_pod, cluster, labels=labels or ("zone",))
    return [name for name in cluster.node_names if name not in refused]


def test_pods_of_a_service_follow_its_first_pod() -> None:
    cluster = state(ZONES, [web("z", "a1", finished=True), web("a", "b1")])
    assert affine_nodes(web(), cluster) == ["a1", "a2"]


def test_the_first_pod_of_a_service_goes_anywhere() -> None:
    cluster = state(ZONES, [web("x", "a1", namespace="other"), web("y")])
    assert affine_nodes(web(), cluster) == ["a1", "a2", "b1", "u"]


def test_only_the_pod_s_first_service_counts() -> None:
    services = [service("one", app="web"), service("two", tier="front")]
    pods = [pod("x", "a1", labels={"app": "web"}), pod("y", "b1", labels={"tier": "front"})]
    new_pod = pod(labels={"app": "web", "tier": "front"})
    assert affine_nodes(new_pod, state(ZONES, pods, services)) == ["a1", "a2"]
    assert affine_nodes(new_pod, state(ZONES, pods, services[::-1])) == ["b1"]


def test_the_node_selector_overrides_the_first_pod() -> None:
    new_pod = web(node_selector={"zone": "b", "disk": "ssd"})
    assert affine_nodes(new_pod, state(ZONES, [web("x", "a1")])) == ["b1"]
    assert affine_nodes(new_pod, state(ZONES, services=[])) == ["b1"]


def test_the_first_pod_decides_about_labels_that_the_node_selector_omits() -> None:
    nodes = [node("r1a", region="r1", zone="a"), node("r2a", region="r2", zone="a"), node("r2b", region="r2", zone="b")]
    new_pod = web(node_selector={"region": "r2"})
    assert affine_nodes(new_pod, state(nodes, [web("x", "r1a")]), "region", "zone") == ["r2a"]


def test_a_label_that_the_first_pod_s_node_lacks_does_not_count() -> None:
    nodes = [node("r1", region="r"), node("r2", region="r", zone="z"), node("s", region="s", zone="z")]
    assert affine_nodes(web(), state(nodes, [web("x", "r1")]), "region", "zone") == ["r1", "r2"]
    assert affine_nodes(web(), state(ZONES, [web("x", "u")])) == ["a1", "a2", "b1", "u"]


@pytest.mark.parametrize("nodes", [ZONES, [*ZONES, Node("c", {"zone": "a"}, unschedulable=True)]])
def test_a_first_pod_on_an_unknown_or_cordoned_node_ends_the_attempt(nodes: list[Node]) -> None:
    with pytest.raises(UndecidableError, match="node 'c' of pod shop/x"):
        failed("serviceAffinity", web(), state(nodes, [web("x", "c")]), labels=("zone",))


def test_the_first_pod_does_not_count_if_the_node_selector_has_all_labels() -> None:
    """So an unknown node does no harm."""
    assert affine_nodes(web(node_selector={"zone": "b"}), state(ZONES, [web("x", "gone")])) == ["b1"]


@pytest.mark.parametrize(
    ("labels", "presence", "fits"),
    [
        (("region",), True, ["both", "empty", "region"]),
        (("region",), False, ["none", "zone"]),
        (("region", "zone"), True, ["both"]),
        (("region", "zone"), False, ["none"]),
        ((), True, ["both", "empty", "none", "region", "zone"]),
        ((), False, ["both", "empty", "none", "region", "zone"]),
    ],
)
def test_labels_must_be_present_or_absent(labels: tuple[str, ...], presence: bool, fits: list[str]) -> None:
    cluster = state(
        [
            node("both", region="r", zone="z"),
            node("empty", region=""),
            node("none"),
            node("region", region="r"),
            node("zone", zone="z"),
        ]
    )
    refused = failed("labelsPresence", pod(), cluster, labels=labels, presence=presence)
    assert [name for name in cluster.node_names if name not in refused] == fits
    assert set(refused.values()) <= {texts.LABEL_MISSING if presence else texts.LABEL_PRESENT}
