"""Each classic predicate, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.generic import predicates as texts
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import UndecidableError
from scheduler_core.model.generic import Cloud, CloudDisk, Node, Pod
from tests.worlds.policy_rules import GI, failed, node, pod, service, state, web

FOUR = [node("a"), node("b")]
ZONES = [node("a1", zone="a"), node("a2", zone="a"), node("b1", zone="b"), node("u")]


def ports(*numbers: int) -> dict[str, Any]:
    """Host ports."""
    return {"ports": frozenset(numbers)}


def disk(name: str = "d", cloud: Cloud = Cloud.GCE, *, read_only: bool = False) -> dict[str, Any]:
    """One cloud disk."""
    return {"disks": (CloudDisk(cloud, name, read_only),)}


def test_a_taken_host_port_refuses_the_node() -> None:
    """One of several is enough, and pods of other namespaces count."""
    there = state(FOUR, [pod("x", "a", namespace="other", **ports(80))])
    assert failed("PodFitsPorts", pod(**ports(80, 81)), there) == {"a": texts.PORT_TAKEN}


def test_a_finished_pod_holds_nothing() -> None:
    """Neither ports nor resources nor disks."""
    there = state([node("a", cpu=100, pods=1)], [pod("x", "a", cpu=100, finished=True, **ports(80), **disk())])
    asked = pod(cpu=100, **ports(80), **disk())
    assert [failed(rule, asked, there) for rule in ("PodFitsPorts", "PodFitsResources", "NoDiskConflict")] == [
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
        pytest.param(0, 0, "", id="asks for nothing"),
    ],
)
def test_requests_add_up_to_the_capacity_at_most(cpu: int, memory: int, refused: str) -> None:
    """Of 1000m and 10 bytes, 400m and 4 bytes are taken."""
    there = state([node("a", cpu=1000, memory=10)], [pod("x", "a", cpu=400, memory=4)])
    assert failed("PodFitsResources", pod(cpu=cpu, memory=memory), there).get("a", "") == refused


def test_a_pod_that_asks_for_one_resource_is_held_to_both() -> None:
    """Memory is overcommitted, so a pod that asks for CPU only is refused, and one that asks for nothing is not."""
    there = state([node("a", memory=10)], [pod("x", "a", memory=11)])
    assert failed("PodFitsResources", pod(cpu=1), there) == {"a": texts.NO_MEMORY}
    assert failed("PodFitsResources", pod(), there) == {}


def test_a_capacity_of_zero_is_no_limit() -> None:
    """A node that does not say what it has takes everything."""
    assert failed("PodFitsResources", pod(cpu=10**6, memory=GI), state([node("a", cpu=0, memory=0)])) == {}


@pytest.mark.parametrize(("most", "refused"), [(0, texts.TOO_MANY_PODS), (1, texts.TOO_MANY_PODS), (2, "")])
def test_the_number_of_pods_is_limited_without_exception(most: int, refused: str) -> None:
    """One pod is there; a capacity of 0 is a limit here, also for a pod that asks for nothing."""
    there = state([node("a", pods=most)], [pod("x", "a")])
    assert failed("PodFitsResources", pod(), there).get("a", "") == refused


@pytest.mark.parametrize(
    ("cloud", "there", "new", "conflict"),
    [
        pytest.param(Cloud.GCE, True, True, False, id="Google, all read"),
        pytest.param(Cloud.GCE, True, False, True, id="Google, the new one writes"),
        pytest.param(Cloud.GCE, False, True, True, id="Google, one there writes"),
        pytest.param(Cloud.EBS, True, True, True, id="EBS, even if all read"),
    ],
)
def test_a_shared_cloud_disk(cloud: Cloud, there: bool, new: bool, conflict: bool) -> None:
    """Conflicts, unless it is Google's and all read."""
    cluster = state(FOUR, [pod("x", "a", **disk("d", cloud, read_only=there)), pod("y", "b", **disk("D", cloud))])
    found = failed("NoDiskConflict", pod(**disk("d", cloud, read_only=new)), cluster)
    assert found == ({"a": texts.DISK_IN_USE} if conflict else {})


def test_one_writer_among_readers_is_enough() -> None:
    """Whoever was there first."""
    readers = [pod("x", "a", **disk(read_only=True)), pod("y", "a", **disk()), pod("z", "a", **disk(read_only=True))]
    assert failed("NoDiskConflict", pod(**disk(read_only=True)), state(FOUR, readers)) == {"a": texts.DISK_IN_USE}


def test_disks_of_two_clouds_do_not_meet() -> None:
    """Though they have one name."""
    there = state(FOUR, [pod("x", "a", **disk("d", Cloud.EBS))])
    assert failed("NoDiskConflict", pod(**disk("d", Cloud.GCE)), there) == {}


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"disk": "ssd"}, ["a"]),
        ({"disk": ""}, ["d"]),
        ({"disk": "ssd", "zone": "z"}, []),
    ],
)
def test_the_node_selector_wants_each_label_with_its_value(selector: dict[str, str], fits: list[str]) -> None:
    """An empty value must be there, and be empty."""
    there = state([node("a", disk="ssd"), node("b", disk="hdd"), node("c"), node("d", disk="")])
    refused = failed("MatchNodeSelector", pod(node_selector=selector), there)
    assert [name for name in there.node_names if name not in refused] == fits


def test_the_host_name_is_compared_exactly() -> None:
    """A pod that names no node fits everywhere."""
    there = state([node("n1"), node("N1")])
    assert failed("HostName", pod(on="n1"), there) == {"N1": texts.OTHER_HOST}
    assert failed("HostName", pod(), there) == {}


def affine(asked: Pod, cluster: GenericClusterState, *labels: str) -> list[str]:
    """The nodes service affinity leaves."""
    refused = failed("serviceAffinity", asked, cluster, labels=labels or ("zone",))
    return [name for name in cluster.node_names if name not in refused]


def test_pods_of_a_service_follow_the_first_one() -> None:
    """First is who was listed first, whatever its name, and finished pods are followed too."""
    there = state(ZONES, [web("z", "a1", finished=True), web("a", "b1")])
    assert affine(web(), there) == ["a1", "a2"]


def test_the_first_pod_of_a_service_goes_anywhere() -> None:
    """Pods of another namespace, or not yet bound, are no peers."""
    there = state(ZONES, [web("x", "a1", namespace="other"), web("y")])
    assert affine(web(), there) == ["a1", "a2", "b1", "u"]


def test_only_the_first_service_is_asked() -> None:
    """The pod belongs to two; the second one's pods are elsewhere."""
    services = [service("one", app="web"), service("two", tier="front")]
    pods = [pod("x", "a1", labels={"app": "web"}), pod("y", "b1", labels={"tier": "front"})]
    asked = pod(labels={"app": "web", "tier": "front"})
    assert affine(asked, state(ZONES, pods, services)) == ["a1", "a2"]
    assert affine(asked, state(ZONES, pods, services[::-1])) == ["b1"]


def test_the_node_selector_overrides_the_first_pod() -> None:
    """And it filters without any service; its other labels are left to MatchNodeSelector."""
    asked = web(node_selector={"zone": "b", "disk": "ssd"})
    assert affine(asked, state(ZONES, [web("x", "a1")])) == ["b1"]
    assert affine(asked, state(ZONES, services=[])) == ["b1"]


def test_what_the_node_selector_leaves_open_the_first_pod_decides() -> None:
    """Label by label: the region is the selector's, the zone the first pod's."""
    nodes = [node("r1a", region="r1", zone="a"), node("r2a", region="r2", zone="a"), node("r2b", region="r2", zone="b")]
    asked = web(node_selector={"region": "r2"})
    assert affine(asked, state(nodes, [web("x", "r1a")]), "region", "zone") == ["r2a"]


def test_a_label_the_first_pods_node_lacks_is_free() -> None:
    """Of two labels the other one binds."""
    nodes = [node("r1", region="r"), node("r2", region="r", zone="z"), node("s", region="s", zone="z")]
    assert affine(web(), state(nodes, [web("x", "r1")]), "region", "zone") == ["r1", "r2"]
    assert affine(web(), state(ZONES, [web("x", "u")])) == ["a1", "a2", "b1", "u"]


@pytest.mark.parametrize("nodes", [ZONES, [*ZONES, Node("c", {"zone": "a"}, unschedulable=True)]])
def test_a_first_pod_on_an_unknown_or_cordoned_node_stops_everything(nodes: list[Node]) -> None:
    """Kubernetes 1.1 cannot look up that node's labels; the pod is named."""
    with pytest.raises(UndecidableError, match="node 'c' of pod shop/x"):
        failed("serviceAffinity", web(), state(nodes, [web("x", "c")]), labels=("zone",))


def test_a_first_pod_is_not_looked_up_if_the_node_selector_says_all() -> None:
    """So an unknown node does no harm."""
    assert affine(web(node_selector={"zone": "b"}), state(ZONES, [web("x", "gone")])) == ["b1"]


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
def test_labels_present_or_absent(labels: tuple[str, ...], presence: bool, fits: list[str]) -> None:
    """True wants all of them, false none of them; values do not matter."""
    there = state(
        [
            node("both", region="r", zone="z"),
            node("empty", region=""),
            node("none"),
            node("region", region="r"),
            node("zone", zone="z"),
        ]
    )
    refused = failed("labelsPresence", pod(), there, labels=labels, presence=presence)
    assert [name for name in there.node_names if name not in refused] == fits
    assert set(refused.values()) <= {texts.LABEL_MISSING if presence else texts.LABEL_PRESENT}
