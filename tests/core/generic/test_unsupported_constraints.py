"""Constraints that a policy does not read: of pods, and of nodes and placed pods against them."""

from typing import Any

import pytest

from scheduler_core.convert.generic import NODE, SCHEDULED_POD
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import (
    DEFAULT_POLICY,
    EXISTING_PODS,
    NODE_TAINTS,
    ignored_constraints,
    unsupported_constraints,
    unsupported_message,
    unsupported_nodes,
)
from scheduler_core.model.generic import Node
from scheduler_core.model.kube import Pod
from tests.core.generic.tables import policy

TODAY = policy("today")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
TAINT = {"key": "dedicated", "effect": "NoSchedule"}


def pod(name: str = "new", **spec: Any) -> Pod:
    """A pod of the app `web`."""
    raw = {"metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}}, "spec": spec}
    return SCHEDULED_POD.read(raw)


def node(name: str, *taints: dict[str, str], ready: bool = True, cordoned: bool = False, **labels: str) -> Node:
    """A node with taints."""
    raw = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": list(taints), "unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }
    return NODE.read(raw)


def container(**resources: Any) -> dict[str, Any]:
    return {"name": "c", "resources": resources}


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        pytest.param({"containers": [container(requests={"cpu": "1", "memory": "1Gi"})]}, [], id="what 1.1 counts"),
        pytest.param({"nodeSelector": {"zone": "a"}, "hostNetwork": True}, [], id="what 1.1 reads"),
        pytest.param({"tolerations": [{"operator": "Exists"}]}, [], id="a toleration permits more"),
        pytest.param(
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}},
            [f"spec.affinity.nodeAffinity.{REQUIRED}"],
            id="node affinity",
        ),
        pytest.param(
            {"affinity": {"podAffinity": {REQUIRED: [TERM]}, "podAntiAffinity": {REQUIRED: [TERM]}}},
            [f"spec.affinity.podAffinity.{REQUIRED}", f"spec.affinity.podAntiAffinity.{REQUIRED}"],
            id="affinity between pods",
        ),
        pytest.param(
            {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
            [],
            id="a preference",
        ),
        pytest.param(
            {
                "topologySpreadConstraints": [
                    {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
                ]
            },
            ["spec.topologySpreadConstraints[].whenUnsatisfiable"],
            id="spread",
        ),
        pytest.param(
            {
                "topologySpreadConstraints": [
                    {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
                ]
            },
            [],
            id="a preferred spread",
        ),
        pytest.param(
            {"initContainers": [container(), container(requests={"cpu": "2", "memory": "0"})]},
            ["spec.initContainers[1].resources.requests[cpu]"],
            id="init containers",
        ),
        pytest.param({"overhead": {"cpu": "100m"}}, ["spec.overhead[cpu]"], id="overhead"),
        pytest.param(
            {"resources": {"requests": {"memory": "1Gi"}}}, ["spec.resources.requests[memory]"], id="the pod as a whole"
        ),
        pytest.param(
            {
                "containers": [
                    container(limits={"nvidia.com/gpu": "1"}),
                    container(requests={"ephemeral-storage": "1Gi"}),
                ]
            },
            [
                "spec.containers[0].resources.limits[nvidia.com/gpu]",
                "spec.containers[1].resources.requests[ephemeral-storage]",
            ],
            id="other resources",
        ),
        pytest.param(
            {"containers": [container(requests={"longhorn.io/scheduler-extender": "1"})]}, [], id="the extender's own"
        ),
    ],
)
def test_a_constraint_that_is_newer_than_1_1_is_named_by_its_field(spec: dict[str, Any], fields: list[str]) -> None:
    assert [constraint.field for constraint in unsupported_constraints(pod(**spec), DEFAULT_POLICY)] == fields
    assert unsupported_constraints(pod(**spec), TODAY) == ()


def test_devices_by_resource_claims_are_read_by_no_rule() -> None:
    constraints = unsupported_constraints(pod(resourceClaims=[{"name": "gpu"}]), TODAY)
    assert unsupported_message(constraints) == "the policy does not read spec.resourceClaims[0] (no rule)"


def test_the_message_names_each_field_and_the_rule_that_reads_it() -> None:
    """So an administrator can add the rule."""
    constraints = unsupported_constraints(pod(overhead={"cpu": "1"}, resourceClaims=[{"name": "gpu"}]), DEFAULT_POLICY)
    assert unsupported_message(constraints) == (
        "the policy does not read spec.overhead[cpu] (rule NodeResourcesFit), spec.resourceClaims[0] (no rule)"
    )


def test_nodes_with_a_taint_that_the_pod_does_not_tolerate_are_closed() -> None:
    nodes = [
        node("tainted", TAINT),
        node("preferred", {**TAINT, "effect": "PreferNoSchedule"}),
        node("cordoned", TAINT, cordoned=True),
        node("not-ready", TAINT, ready=False),
        node("open"),
    ]
    state = GenericClusterState.of(nodes, [], [])
    assert unsupported_nodes(pod(), state, DEFAULT_POLICY) == {"tainted": NODE_TAINTS}
    assert unsupported_nodes(pod(tolerations=[{"operator": "Exists"}]), state, DEFAULT_POLICY) == {}
    assert unsupported_nodes(pod(), state, TODAY) == {}


def test_domains_that_a_placed_pod_keeps_free_of_the_pod_are_closed() -> None:
    placed = pod("placed", nodeName="a", affinity={"podAntiAffinity": {REQUIRED: [TERM]}})
    state = GenericClusterState.of([node("a", zone="z"), node("b", zone="z"), node("c", zone="y")], [placed], [])
    assert unsupported_nodes(pod(), state, DEFAULT_POLICY) == {"a": EXISTING_PODS, "b": EXISTING_PODS}
    assert ignored_constraints(pod(), "b", state, DEFAULT_POLICY) == (EXISTING_PODS,)
    assert ignored_constraints(pod(), "c", state, DEFAULT_POLICY) == ()
    assert unsupported_nodes(pod(), state, TODAY) == {}
