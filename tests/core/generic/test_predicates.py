"""Of the classic predicates, what the recorded decisions of Kubernetes 1.1 do not show: see test_vectors."""

from typing import Any

import pytest

from scheduler_core.generic import predicates as texts
from scheduler_core.generic.cycle_state import UndecidableError
from scheduler_core.model.constraints import Cloud, CloudDisk
from scheduler_core.model.generic import Node
from tests.worlds.policy_rules import GI, failed, node, pod, state, web

TWO_NODES = [node("a"), node("b")]
ZONES = [node("a1", zone="a"), node("a2", zone="a"), node("b1", zone="b"), node("u")]


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


def test_a_capacity_of_zero_is_no_limit() -> None:
    assert failed("PodFitsResources", pod(cpu=10**6, memory=GI), state([node("a", cpu=0, memory=0)])) == {}


@pytest.mark.parametrize("nodes", [ZONES, [*ZONES, Node("c", {"zone": "a"}, unschedulable=True)]])
def test_a_first_pod_on_an_unknown_or_cordoned_node_ends_the_attempt(nodes: list[Node]) -> None:
    with pytest.raises(UndecidableError, match="node 'c' of pod shop/x"):
        failed("serviceAffinity", web(), state(nodes, [web("x", "c")]), labels=("zone",))


def test_the_first_pod_does_not_count_if_the_node_selector_has_all_labels() -> None:
    """So an unknown node does no harm."""
    cluster = state(ZONES, [web("x", "gone")])
    refused = failed("serviceAffinity", web(node_selector={"zone": "b"}), cluster, labels=("zone",))
    assert set(cluster.node_names) - set(refused) == {"b1"}


def ports(*numbers: int) -> dict[str, Any]:
    return {"ports": frozenset(numbers)}


def disk(name: str = "d", cloud: Cloud = Cloud.GCE, *, read_only: bool = False) -> dict[str, Any]:
    return {"disks": (CloudDisk(cloud, name, read_only),)}


def test_a_finished_pod_takes_nothing() -> None:
    cluster = state([node("a", cpu=100, pods=1)], [pod("x", "a", cpu=100, finished=True, **ports(80), **disk())])
    new_pod = pod(cpu=100, **ports(80), **disk())
    assert [failed(rule, new_pod, cluster) for rule in ("PodFitsPorts", "PodFitsResources", "NoDiskConflict")] == [
        {},
        {},
        {},
    ]


def test_one_writer_among_readers_is_a_conflict() -> None:
    readers = [pod("x", "a", **disk(read_only=True)), pod("y", "a", **disk()), pod("z", "a", **disk(read_only=True))]
    assert failed("NoDiskConflict", pod(**disk(read_only=True)), state(TWO_NODES, readers)) == {"a": texts.DISK_IN_USE}
