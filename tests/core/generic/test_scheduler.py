"""The generic scheduler: it filters, prioritises and selects."""

from random import Random

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy, PolicyPriority
from scheduler_core.generic.predicates import DISK_IN_USE
from scheduler_core.generic.scheduler import schedule
from scheduler_core.model.constraints import Cloud, CloudDisk
from tests.worlds.policy_rules import decide, failed, node, pod, state, web

EQUAL = Policy((), (PolicyPriority("EqualPriority", "EqualPriority", 3),))


def test_the_best_nodes_are_sorted_by_name_for_the_choice() -> None:
    """So one seed leads to one choice, whatever the order of the request."""
    choices = []

    def choose(names: object) -> str:
        choices.append(names)
        return "c"

    cluster = state([node("c"), node("a"), node("b", cpu=50)])
    for nodes in (["c", "b", "a"], ["a", "b", "c"]):
        assert schedule(pod(cpu=100), nodes, cluster, DEFAULT_POLICY, choose).node == "c"
    assert choices == [("a", "c"), ("a", "c")]


def test_ties_are_broken_at_random_from_a_seed() -> None:
    cluster = state([node(name) for name in "abc"])
    runs = [
        [schedule(pod(), None, cluster, EQUAL, random.choice).node for _ in range(50)]
        for random in (Random(7), Random(7))  # noqa: S311 # no secret
    ]
    assert runs[0] == runs[1]
    assert set(runs[0]) == set("abc")


def test_one_writer_among_readers_is_a_conflict() -> None:
    reading, writing = ((CloudDisk(Cloud.GCE, "d", read_only),) for read_only in (True, False))
    mounting = [pod("x", "a", disks=reading), pod("y", "a", disks=writing), pod("z", "a", disks=reading)]
    assert failed("NoDiskConflict", pod(disks=reading), state([node("a")], mounting)) == {"a": DISK_IN_USE}


def test_of_a_deleted_node_nothing_is_kept_once_its_pods_are_deleted() -> None:
    cluster = state([node("a")], [web("x", "a")]).without_node("a")
    assert not cluster.without_pod(("shop", "x")).orphaned_pods


def test_the_deletion_of_an_unknown_object_changes_nothing() -> None:
    cluster = state([node("a")], [web("x", "a")])
    assert cluster.without_pod(("shop", "gone")).without_node("gone").without_service("shop", "gone") == cluster


def test_an_unbound_pod_takes_nothing() -> None:
    cluster = state([node("a")])
    assert cluster.with_pod(web("x")) == cluster
    assert cluster.with_pod(web("x", "a")).with_pod(web("x")).nodes["a"].pod_count == 0


def test_an_empty_state_chooses_no_node() -> None:
    assert decide(pod(), GenericClusterState()).node == ""
