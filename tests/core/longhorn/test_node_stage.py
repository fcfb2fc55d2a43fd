"""The node rules, one by one and in order."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.longhorn.node_stage import node_refusal
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.rules import Rule
from scheduler_core.model import kube
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import cluster, conditions, node, replica, volume

DISABLED = {"node.longhorn.io/disable-v2-data-engine": "true"}


def refused(
    entry: lh.Node | None = None, asked: dict[str, Any] | None = None, affinity: str = "", **snapshot: Any
) -> Rule | None:
    """The rule that refuses a node to a volume with the fields `asked`."""
    found = entry or node()
    refusal = node_refusal(
        cluster(found, **snapshot), ReplicaRequest.for_volume(volume(**asked or {}), affinity), found
    )
    return None if refusal is None else refusal.rule


def test_an_open_node_is_accepted() -> None:
    """Nothing speaks against a ready, schedulable, untagged node."""
    assert refused() is None


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        pytest.param({"deleting": True}, Rule.NODE_DELETING, id="deleting"),
        pytest.param({"conditions": conditions(Ready="False")}, Rule.NODE_NOT_READY, id="not ready"),
        pytest.param({"conditions": conditions(Ready="Unknown")}, Rule.NODE_NOT_READY, id="unknown"),
        pytest.param({"conditions": ()}, Rule.NODE_NOT_READY, id="no conditions"),
        pytest.param({"conditions": conditions(Schedulable="False")}, Rule.NODE_NOT_SCHEDULABLE, id="cordoned"),
        pytest.param({"allow_scheduling": False}, Rule.NODE_SCHEDULING_DISABLED, id="scheduling disabled"),
        pytest.param({"eviction_requested": True}, None, id="node eviction is not looked at"),
        pytest.param(
            {"deleting": True, "allow_scheduling": False, "conditions": ()}, Rule.NODE_DELETING, id="deleting first"
        ),
    ],
)
def test_state_of_the_node(fields: dict[str, Any], rule: Rule | None) -> None:
    """ListSchedulableNodes: deletion, Ready, Schedulable, allowScheduling, in this order."""
    assert refused(node(**fields)) is rule


def test_the_first_condition_of_a_type_counts() -> None:
    """A second Ready condition does not repair the first."""
    doubled = (kube.Condition("Ready", "False"), *conditions())
    assert refused(node(conditions=doubled)) is Rule.NODE_NOT_READY


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        pytest.param({}, None, id="no label"),
        pytest.param(DISABLED, Rule.V2_DISABLED, id="true"),
        pytest.param(dict.fromkeys(DISABLED, "True"), None, id="exactly true"),
    ],
)
def test_v2_switch(labels: dict[str, str], rule: Rule | None) -> None:
    """A label of the Kubernetes node switches the v2 data engine off."""
    assert refused(asked={"data_engine": "v2"}, kube_nodes={"n1": kube.Node("n1", labels)}) is rule


def test_v2_needs_a_kubernetes_node() -> None:
    """Without its Kubernetes node a node takes no v2 volume; v1 does not care."""
    others = {"other": kube.Node("other")}
    assert refused(asked={"data_engine": "v2"}, kube_nodes=others) is Rule.V2_DISABLED
    assert refused(kube_nodes=others) is None


def test_hard_node_affinity() -> None:
    """A replica bound to a node goes nowhere else."""
    assert refused(affinity="n1") is None
    assert refused(affinity="n2") is Rule.HARD_NODE_AFFINITY


@pytest.mark.parametrize(
    ("terms", "rule"),
    [
        pytest.param([("z1", "")], None, id="zone"),
        pytest.param([("", "r1")], None, id="region"),
        pytest.param([("z1", "r2")], Rule.TOPOLOGY, id="both must match"),
        pytest.param([("z2", ""), ("", "r1")], None, id="any term"),
        pytest.param([("", "")], None, id="an empty term matches all"),
        pytest.param([("z2", "")], Rule.TOPOLOGY, id="another zone"),
        pytest.param([], None, id="no requirement"),
    ],
)
def test_topology_requirement(terms: list[tuple[str, str]], rule: Rule | None) -> None:
    """A node must match one term, in every field the term has."""
    asked = {"topology_requirement": tuple(lh.TopologyTerm(*term) for term in terms)}
    assert refused(node(zone="z1", region="r1"), asked) is rule


def manager(
    state: str = "running", *, deleting: bool = False, engine: str = "v1", name: str = "im"
) -> lh.InstanceManager:
    """An instance manager on n1."""
    return lh.InstanceManager(name, "n1", engine, "image", state, deleting)


@pytest.mark.parametrize(
    ("managers", "engine", "rule"),
    [
        pytest.param([manager()], "v1", None, id="running"),
        pytest.param([manager("stopped")], "v1", Rule.INSTANCE_MANAGER, id="stopped"),
        pytest.param([manager("stopped", deleting=True)], "v1", None, id="v1 terminating counts as ready"),
        pytest.param([], "v1", Rule.INSTANCE_MANAGER, id="none"),
        pytest.param([manager(engine="v2")], "v1", Rule.INSTANCE_MANAGER, id="of the other engine"),
        pytest.param([manager(engine="v2")], "v2", None, id="v2 running"),
        pytest.param([manager(engine="v2", deleting=True)], "v2", Rule.INSTANCE_MANAGER, id="v2 terminating"),
        pytest.param([manager(), manager("error", name="b")], "v1", Rule.INSTANCE_MANAGER, id="all of several"),
    ],
)
def test_instance_manager(managers: list[lh.InstanceManager], engine: str, rule: Rule | None) -> None:
    """Something must be there to run the replica."""
    assert refused(asked={"data_engine": engine}, instance_managers={each.name: each for each in managers}) is rule


def test_only_the_default_instance_manager_counts_for_v1() -> None:
    """A manager of another image, left over from an upgrade, takes no new replica."""
    managers = {"im": manager()}
    settings = {"default-instance-manager-image": "newer"}
    assert refused(instance_managers=managers, settings=settings) is Rule.INSTANCE_MANAGER


@pytest.mark.parametrize(
    ("state", "nodes", "engine", "rule"),
    [
        pytest.param("deployed", {"n1"}, "v1", None, id="deployed"),
        pytest.param("deploying", {"n1"}, "v1", None, id="deploying counts where it is"),
        pytest.param("deployed", {"n2"}, "v1", Rule.ENGINE_IMAGE, id="on another node"),
        pytest.param("incompatible", {"n1"}, "v1", Rule.ENGINE_IMAGE, id="incompatible"),
        pytest.param("error", set(), "v2", None, id="v2 needs none"),
    ],
)
def test_engine_image(state: str, nodes: set[str], engine: str, rule: Rule | None) -> None:
    """The volume's engine image must be on the node."""
    images = {"ei": lh.EngineImage("ei", "engine:1", state, frozenset(nodes))}
    assert refused(asked={"image": "engine:1", "data_engine": engine}, engine_images=images) is rule


@pytest.mark.parametrize(
    ("image", "default", "rule"),
    [
        pytest.param("", "engine:1", None, id="the default image"),
        pytest.param("", "", None, id="any image if no default is known"),
        pytest.param("engine:2", "engine:1", Rule.ENGINE_IMAGE, id="an unknown image"),
        pytest.param("", "engine:2", Rule.ENGINE_IMAGE, id="a default that is not deployed"),
    ],
)
def test_default_engine_image(image: str, default: str, rule: Rule | None) -> None:
    """A volume that names no image uses the default one."""
    images = {"ei": lh.EngineImage("ei", "engine:1", "deployed", frozenset({"n1"}))}
    settings = {"default-engine-image": default}
    assert refused(asked={"image": image}, engine_images=images, settings=settings) is rule


def test_unknown_managers_and_images_count_as_ready() -> None:
    """A snapshot that lists neither kind is still worth explaining."""
    assert refused(instance_managers=None, engine_images=None) is None


@pytest.mark.parametrize(
    ("tags", "selector", "allow_empty", "rule"),
    [
        pytest.param(("ssd", "fast"), ("fast",), "true", None, id="subset"),
        pytest.param(("ssd",), ("ssd", "fast"), "true", Rule.NODE_TAGS, id="every selector"),
        pytest.param(("SSD",), ("ssd",), "true", Rule.NODE_TAGS, id="case"),
        pytest.param(("ssd",), (), "true", None, id="no selector"),
        pytest.param(("ssd",), (), "false", Rule.NODE_TAGS, id="no selector, not allowed"),
        pytest.param((), (), "false", None, id="untagged nodes always fit"),
        pytest.param((), ("",), "true", Rule.NODE_TAGS, id="an empty text is a selector"),
    ],
)
def test_node_tags(tags: tuple[str, ...], selector: tuple[str, ...], allow_empty: str, rule: Rule | None) -> None:
    """Every selector must equal a tag."""
    settings = {"allow-empty-node-selector-volume": allow_empty}
    assert refused(node(tags=tags), {"node_selector": selector}, settings=settings) is rule


def test_backing_image_node_tags() -> None:
    """The backing image's node selector is a second filter."""
    images = {"bi": lh.BackingImage("bi", node_selector=("ssd",))}
    asked = {"backing_image": "bi"}
    assert refused(node(tags=("ssd",)), asked, backing_images=images) is None
    assert refused(node(), asked, backing_images=images) is Rule.BACKING_IMAGE_NODE_TAGS


def test_unknown_backing_image() -> None:
    """A volume whose backing image is gone fits nowhere."""
    assert refused(asked={"backing_image": "gone"}) is Rule.BACKING_IMAGE_MISSING


CLONE: dict[str, Any] = {"clone_mode": "linked-clone", "data_source": "vol://src", "data_engine": "v2"}


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        pytest.param({}, None, id="healthy"),
        pytest.param({"failed_at": "2026-01-01T00:00:00Z"}, Rule.LINKED_CLONE, id="failed"),
        pytest.param({"healthy_at": ""}, Rule.LINKED_CLONE, id="never healthy"),
        pytest.param({"eviction_requested": True}, Rule.LINKED_CLONE, id="evicting"),
        pytest.param({"node_id": "n2"}, Rule.LINKED_CLONE, id="elsewhere"),
    ],
)
def test_linked_clones_stay_with_their_source(fields: dict[str, Any], rule: Rule | None) -> None:
    """A linked clone needs a healthy source replica on the node."""
    source = replica("s0", "n1/d1", volume="src", **fields)
    assert refused(asked=CLONE, replicas=[source]) is rule


def test_a_named_source_replica_must_exist() -> None:
    """A linked clone bound to a source replica that is gone is a client error in Longhorn."""
    entry = node()
    ask = ReplicaRequest.for_replica(volume(**CLONE), replica("r", linked_clone_source="gone", data_engine="v2"))
    refusal = node_refusal(cluster(entry), ask, entry)
    assert refusal is not None
    assert refusal.rule is Rule.LINKED_CLONE_SOURCE_MISSING


def test_the_detail_names_the_node_and_the_numbers() -> None:
    """People get a sentence, with the condition's reason."""
    entry = node(conditions=(kube.Condition("Ready", "False", "KubernetesNodeNotReady"),))
    refusal = node_refusal(cluster(entry), ReplicaRequest.for_volume(volume()), entry)
    assert refusal is not None
    assert refusal.detail == "node n1 has condition Ready=False (KubernetesNodeNotReady)"
