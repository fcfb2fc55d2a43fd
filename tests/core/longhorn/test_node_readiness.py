"""Instance managers: a node is ready if the manager that Longhorn picks is running."""

from scheduler_core.longhorn.stages import instance_manager_ready, one_manager_per_node
from scheduler_core.model.longhorn import InstanceManager
from tests.worlds.longhorn import cluster, node


def test_each_of_several_default_managers_may_be_picked() -> None:
    managers = {
        "a": InstanceManager("a", "n1", state="running"),
        "b": InstanceManager("b", "n1", state="error"),
        "c": InstanceManager("c", "n2", state="running"),
    }
    view = cluster(node("n1"), node("n2"), instance_managers=managers)
    ready = [instance_manager_ready(picked, "v1", "n1") for picked in one_manager_per_node(view)]
    assert ready == [True, False]


def test_there_is_one_cluster_if_no_node_has_several_managers() -> None:
    assert len(list(one_manager_per_node(cluster(node())))) == 1
