"""The plugin's rules, called as the scheduler calls them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import CycleState
from scheduler_core.model.generic import Node
from scheduler_core.model.kube import Pod


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    """The plugin, loaded from its file."""
    spec = importlib.util.spec_from_file_location("max_pods", Path(__file__).with_name("max_pods.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["max_pods"] = module
    spec.loader.exec_module(module)
    return module


def cluster(*pods: Pod) -> GenericClusterState:
    """Two nodes with these pods."""
    return GenericClusterState.of([Node("a", pods=10), Node("b", pods=10)], pods, ())


def test_a_node_with_as_many_pods_as_allowed_is_refused(plugin: ModuleType) -> None:
    """Pods of other namespaces and finished pods do not count."""
    state = cluster(
        Pod("shop", "web-1", node_name="a"),
        Pod("shop", "done", node_name="b", phase="Failed"),
        Pod("mail", "web-2", node_name="b"),
    )
    check = plugin.max_pods(CycleState(Pod("shop", "new"), state), plugin.MaxPods(count=1))
    assert {name: check(node_info) for name, node_info in state.nodes.items()} == {"a": plugin.TOO_MANY, "b": ""}


def test_the_node_with_fewest_pods_has_the_highest_score(plugin: ModuleType) -> None:
    """An empty node has 10."""
    state = cluster(Pod("shop", "web-1", node_name="a"))
    node_infos = [state.nodes["a"], state.nodes["b"]]
    assert plugin.fewest_pods(CycleState(Pod("shop", "new"), state), None, node_infos) == [5, 10]
