"""The node rules, one by one and in order."""

from typing import Any

import pytest

from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.stages import node_refusal
from scheduler_core.model import kube
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import cluster, conditions, node, replica, volume

DISABLED = {"node.longhorn.io/disable-v2-data-engine": "true"}


def rule_against(
    entry: lh.Node | None = None, volume_fields: dict[str, Any] | None = None, affinity: str = "", **snapshot: Any
) -> Rule | None:
    """The rule that refuses a node to a volume with `volume_fields`."""
    candidate = entry or node()
    refusal = node_refusal(
        cluster(candidate, **snapshot), ReplicaRequest.for_volume(volume(**volume_fields or {}), affinity), candidate
    )
    return None if refusal is None else refusal.rule


def test_an_open_node_is_accepted() -> None:
    assert rule_against() is None


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        pytest.param({"deleting": True}, Rule.NODE_DELETING, id="deleting"),
        pytest.param({"conditions": conditions(Ready="False")}, Rule.NODE_NOT_READY, id="not ready"),
        pytest.param({"conditions": conditions(Ready="Unknown")}, Rule.NODE_NOT_READY_YET, id="unknown"),
        pytest.param({"conditions": ()}, Rule.NODE_NOT_READY_YET, id="no conditions"),
        pytest.param(
            {"conditions": conditions(Schedulable="Unknown")}, Rule.NODE_NOT_READY_YET, id="schedulable unknown"
        ),
        pytest.param(
            {"conditions": conditions(Schedulable="False")}, Rule.NODE_NOT_READY, id="closed for another reason"
        ),
        pytest.param({"allow_scheduling": False}, Rule.NODE_SCHEDULING_DISABLED, id="scheduling disabled"),
        pytest.param({"eviction_requested": True}, None, id="node eviction is not looked at"),
        pytest.param(
            {"deleting": True, "allow_scheduling": False, "conditions": ()}, Rule.NODE_DELETING, id="deleting first"
        ),
    ],
)
def test_the_state_of_the_node_is_checked_in_longhorn_s_order(fields: dict[str, Any], rule: Rule | None) -> None:
    assert rule_against(node(**fields)) is rule


def test_the_first_condition_of_a_type_counts() -> None:
    doubled = (kube.Condition("Ready", "False"), *conditions())
    assert rule_against(node(conditions=doubled)) is Rule.NODE_NOT_READY


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        pytest.param({}, None, id="no label"),
        pytest.param(DISABLED, Rule.V2_DISABLED, id="true"),
        pytest.param(dict.fromkeys(DISABLED, "True"), None, id="exactly true"),
    ],
)
def test_a_node_label_disables_the_v2_data_engine(labels: dict[str, str], rule: Rule | None) -> None:
    assert rule_against(volume_fields={"data_engine": "v2"}, kube_nodes={"n1": kube.Node("n1", labels)}) is rule


def test_a_node_without_kubernetes_node_takes_no_v2_volume() -> None:
    others = {"other": kube.Node("other")}
    assert rule_against(volume_fields={"data_engine": "v2"}, kube_nodes=others) is Rule.V2_DISABLED
    assert rule_against(kube_nodes=others) is None


def test_a_replica_with_hard_node_affinity_fits_on_that_node_alone() -> None:
    assert rule_against(affinity="n1") is None
    assert rule_against(affinity="n2") is Rule.HARD_NODE_AFFINITY


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
def test_a_node_must_match_one_topology_term(terms: list[tuple[str, str]], rule: Rule | None) -> None:
    volume_fields = {"topology_requirement": tuple(lh.TopologyTerm(*term) for term in terms)}
    assert rule_against(node(zone="z1", region="r1"), volume_fields) is rule


def manager(
    state: str = "running", *, deleting: bool = False, engine: str = "v1", name: str = "im"
) -> lh.InstanceManager:
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
def test_a_node_needs_a_running_instance_manager(
    managers: list[lh.InstanceManager], engine: str, rule: Rule | None
) -> None:
    assert (
        rule_against(volume_fields={"data_engine": engine}, instance_managers={entry.name: entry for entry in managers})
        is rule
    )


SELECTOR = {"system-managed-components-node-selector": "storage:yes; disk : ssd"}
MATCHING = {"storage": "yes", "disk": "ssd", "other": "label"}


@pytest.mark.parametrize(
    ("version", "labels", "managers", "rule"),
    [
        pytest.param("v1.13.0", {"storage": "yes"}, None, Rule.INSTANCE_MANAGER, id="excluded"),
        pytest.param("v1.13.0-dev", {"storage": "yes"}, None, Rule.INSTANCE_MANAGER, id="excluded before the release"),
        pytest.param("v1.14.2", {"storage": "no", "disk": "ssd"}, None, Rule.INSTANCE_MANAGER, id="another value"),
        pytest.param("", {}, None, Rule.INSTANCE_MANAGER, id="unknown version"),
        pytest.param("master-head", {}, None, Rule.INSTANCE_MANAGER, id="version without numbers"),
        pytest.param("v1.12.1", {}, None, None, id="older version"),
        pytest.param("v1.13.0", MATCHING, None, None, id="selected"),
        pytest.param("v1.13.0", {}, [manager()], None, id="excluded, but a manager runs still"),
        pytest.param("v1.13.0", {}, [manager(deleting=True)], Rule.INSTANCE_MANAGER, id="without a successor"),
        pytest.param("v1.13.0", MATCHING, [manager("stopped", deleting=True)], None, id="with a successor"),
        pytest.param("v1.12.1", {}, [manager("stopped", deleting=True)], None, id="older version, with a successor"),
    ],
)
def test_a_node_that_the_node_selector_excludes_has_no_instance_manager(
    version: str, labels: dict[str, str], managers: list[lh.InstanceManager] | None, rule: Rule | None
) -> None:
    listed = None if managers is None else {entry.name: entry for entry in managers}
    settings = {**SELECTOR, "current-longhorn-version": version}
    kube_nodes = {"n1": kube.Node("n1", labels)}
    assert rule_against(instance_managers=listed, settings=settings, kube_nodes=kube_nodes) is rule


@pytest.mark.parametrize(("version", "rule"), [("v1.12.2", None), ("v1.13.0", Rule.INSTANCE_MANAGER)])
def test_a_terminating_v2_manager_counts_until_version_1_13(version: str, rule: Rule | None) -> None:
    managers = {"im": manager(engine="v2", deleting=True)}
    settings = {"current-longhorn-version": version}
    assert rule_against(volume_fields={"data_engine": "v2"}, instance_managers=managers, settings=settings) is rule


def test_only_the_default_instance_manager_counts_for_v1() -> None:
    managers = {"im": manager()}
    settings = {"default-instance-manager-image": "newer"}
    assert rule_against(instance_managers=managers, settings=settings) is Rule.INSTANCE_MANAGER


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
def test_a_node_needs_the_volume_s_engine_image(state: str, nodes: set[str], engine: str, rule: Rule | None) -> None:
    images = {"ei": lh.EngineImage("ei", "engine:1", state, frozenset(nodes))}
    assert rule_against(volume_fields={"image": "engine:1", "data_engine": engine}, engine_images=images) is rule


@pytest.mark.parametrize(
    ("image", "default", "rule"),
    [
        pytest.param("", "engine:1", None, id="the default image"),
        pytest.param("", "", None, id="any image if no default is known"),
        pytest.param("engine:2", "engine:1", Rule.ENGINE_IMAGE, id="an unknown image"),
        pytest.param("", "engine:2", Rule.ENGINE_IMAGE, id="a default that is not deployed"),
    ],
)
def test_a_volume_without_an_image_uses_the_default_engine_image(image: str, default: str, rule: Rule | None) -> None:
    images = {"ei": lh.EngineImage("ei", "engine:1", "deployed", frozenset({"n1"}))}
    settings = {"default-engine-image": default}
    assert rule_against(volume_fields={"image": image}, engine_images=images, settings=settings) is rule


def test_unknown_managers_and_images_count_as_ready() -> None:
    assert rule_against(instance_managers=None, engine_images=None) is None


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
def test_every_node_selector_must_equal_a_tag(
    tags: tuple[str, ...], selector: tuple[str, ...], allow_empty: str, rule: Rule | None
) -> None:
    settings = {"allow-empty-node-selector-volume": allow_empty}
    assert rule_against(node(tags=tags), {"node_selector": selector}, settings=settings) is rule


def test_the_backing_image_s_node_selector_must_match_too() -> None:
    images = {"bi": lh.BackingImage("bi", node_selector=("ssd",))}
    volume_fields = {"backing_image": "bi"}
    assert rule_against(node(tags=("ssd",)), volume_fields, backing_images=images) is None
    assert rule_against(node(), volume_fields, backing_images=images) is Rule.BACKING_IMAGE_NODE_TAGS


def test_a_volume_of_an_unknown_backing_image_fits_on_no_node() -> None:
    assert rule_against(volume_fields={"backing_image": "gone"}) is Rule.BACKING_IMAGE_MISSING


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
def test_a_linked_clone_needs_a_healthy_source_replica_on_the_node(fields: dict[str, Any], rule: Rule | None) -> None:
    source = replica("s0", "n1/d1", volume="src", **fields)
    assert rule_against(volume_fields=CLONE, replicas=[source]) is rule


def test_a_named_source_replica_must_exist() -> None:
    entry = node()
    ask = ReplicaRequest.for_replica(volume(**CLONE), replica("r", linked_clone_source="gone", data_engine="v2"))
    refusal = node_refusal(cluster(entry), ask, entry)
    assert refusal is not None
    assert refusal.rule is Rule.LINKED_CLONE_SOURCE_MISSING


def test_the_detail_of_a_refusal_names_the_node_and_the_condition() -> None:
    entry = node(conditions=(kube.Condition("Ready", "False", "KubernetesNodeNotReady"),))
    refusal = node_refusal(cluster(entry), ReplicaRequest.for_volume(volume()), entry)
    assert refusal is not None
    assert refusal.detail == "node n1 has condition Ready=False (KubernetesNodeNotReady)"


def test_a_cordoned_node_is_called_cordoned() -> None:
    cordoned = kube.Condition("Schedulable", "False", "KubernetesNodeCordoned")
    entry = node(conditions=(kube.Condition("Ready", "True"), cordoned))
    refusal = node_refusal(cluster(entry), ReplicaRequest.for_volume(volume()), entry)
    assert refusal is not None
    assert refusal.detail == "node n1 is cordoned, and disable-scheduling-on-cordoned-node is true"


def test_the_setting_that_keeps_volumes_without_selector_off_tagged_nodes_is_named() -> None:
    entry = node(tags=("fast",))
    view = cluster(entry, settings={"allow-empty-node-selector-volume": "false"})
    refusal = node_refusal(view, ReplicaRequest.for_volume(volume()), entry)
    assert refusal is not None
    assert refusal.detail == (
        "node n1 has tags [fast], the volume selects [], and allow-empty-node-selector-volume is false"
    )
