"""What kube-scheduler's own plugins refuse before the extender is asked."""

from pathlib import Path
from typing import Any

import pytest

from scheduler_core.convert.generic import NODE, SCHEDULED_POD, VOLUME_NODE_AFFINITY
from scheduler_core.decide.kube_scheduler_filters import (
    PLUGIN_RULES,
    PodClaims,
    VolumeAffinity,
    kube_scheduler_refusals,
    pod_claims,
)
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import parse_policy
from scheduler_core.model.generic import Node
from scheduler_core.model.kube import Pod
from tests import builders

LARGE = {"status": {"allocatable": {"pods": "10", "cpu": "4"}}}


def node(name: str = "a", raw: Any = None, **labels: str) -> Node:
    """A node; without status it does not say what is allocatable."""
    return NODE.read({"metadata": {"name": name, "labels": labels}, **(raw or {})})


def pod(name: str = "new", node_name: str = "", cpu: str = "1", **spec: Any) -> Pod:
    containers = [{"resources": {"requests": {"cpu": cpu}}}]
    raw = {"metadata": {"name": name}, "spec": {"nodeName": node_name, "containers": containers, **spec}}
    return SCHEDULED_POD.read(raw)


def affinity(zone: str) -> VolumeAffinity:
    """The node affinity of a PersistentVolume of one zone."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    raw = {"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}
    terms_read = VOLUME_NODE_AFFINITY.read(raw).terms
    assert terms_read is not None
    return terms_read


def refusals(
    asked: Pod,
    nodes: list[Node],
    *placed: Pod,
    affinities: tuple[VolumeAffinity, ...] = (),
    claims: PodClaims | None = None,
) -> dict[str, str]:
    state = GenericClusterState.of(nodes, placed, [])
    names = [entry.name for entry in nodes]
    refused = kube_scheduler_refusals(asked, [*names, "unknown"], state, claims or PodClaims(affinities))
    return {name: refusal.plugin for name, refusal in refused.items()}


TAINT = {"key": "k", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("raw", "spec", "plugin"),
    [
        pytest.param({"spec": {"unschedulable": True}}, {}, "NodeUnschedulable", id="cordon"),
        pytest.param({"spec": {"taints": [TAINT]}}, {}, "TaintToleration", id="taint"),
        pytest.param({}, {"nodeSelector": {"disk": "fast"}}, "NodeAffinity", id="node selector"),
        pytest.param(LARGE, {"cpu": "5"}, "NodeResourcesFit", id="cpu"),
    ],
)
def test_a_node_is_refused_by_the_plugin_that_kube_scheduler_names(raw: Any, spec: Any, plugin: str) -> None:
    assert refusals(pod(**spec), [node(raw=raw)]) == {"a": plugin}


def test_a_node_that_every_plugin_admits_is_not_listed() -> None:
    assert refusals(pod(), [node(raw=LARGE)]) == {}


def test_the_first_plugin_in_kube_schedulers_order_is_named() -> None:
    raw = {"spec": {"unschedulable": True, "taints": [TAINT]}}
    assert refusals(pod(nodeSelector={"disk": "fast"}), [node(raw=raw)]) == {"a": "NodeUnschedulable"}


def test_resources_are_not_compared_where_no_node_says_what_is_allocatable() -> None:
    assert refusals(pod(cpu="1000"), [node()]) == {}


def test_requests_of_other_pods_count_and_its_own_place_does_not() -> None:
    running = pod("new", "a", "3")
    assert refusals(running, [node(raw=LARGE)], running) == {}
    assert refusals(pod(cpu="3"), [node(raw=LARGE)], pod("other", "a", "3")) == {"a": "NodeResourcesFit"}


def test_the_node_affinity_of_every_bound_volume_must_match() -> None:
    nodes = [node("east", zone="e"), node("west", zone="w")]
    assert refusals(pod(), nodes, affinities=(affinity("e"),)) == {"west": "VolumeBinding"}
    assert refusals(pod(), nodes, affinities=(affinity("e"), affinity("w"))) == dict.fromkeys(
        ("east", "west"), "VolumeBinding"
    )


def test_the_predicates_are_those_of_the_example_of_todays_rules() -> None:
    text = (Path(__file__).parents[3] / "examples/policies/today.json").read_bytes()
    today = {entry.rule for entry in parse_policy(text).predicates}
    assert set(PLUGIN_RULES.values()) == today - {"HostName"}


IMMEDIATE = builders.storage_class("at-once", binding="Immediate")
LATE = builders.storage_class("late")


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        ([IMMEDIATE, builders.claim("c", storage_class="at-once")], "it waits until the claim is provisioned"),
        ([builders.claim("c", storage_class="misspelt")], "StorageClass misspelt does not exist"),
        ([LATE, builders.claim("c", storage_class=None)], "it names no StorageClass, and there is no default"),
        ([LATE, builders.claim("c", storage_class="")], "it waits until the claim is provisioned"),
        ([LATE, builders.claim("c", storage_class="late")], ""),
        ([builders.claim("c", bound=True, storage_class="misspelt")], ""),
        ([], ""),
    ],
    ids=["at once", "no such class", "no default", "by hand", "with its pod", "bound", "no claim"],
)
def test_a_claim_that_is_not_bound_and_does_not_wait_for_a_pod_refuses_every_node(
    objects: list[builders.Object], problem: str
) -> None:
    claims = pod_claims(builders.as_pod(builders.pod("c")), builders.snapshot(*objects), {})
    text = claims.refusal.text if claims.refusal else ""
    assert text == (f"pod has unbound immediate PersistentVolumeClaims: c: {problem}" if problem else "")


def test_a_prediction_takes_claims_of_an_immediate_class_as_provisioned() -> None:
    asked = builders.as_pod(builders.pod("c"))
    for objects, refused in (([IMMEDIATE], False), ([], True)):
        snapshot = builders.snapshot(builders.claim("c", storage_class="at-once"), *objects)
        assert (pod_claims(asked, snapshot, {}, provisioned=True).refusal is not None) == refused


def test_a_claim_that_is_being_deleted_refuses_every_node() -> None:
    claim = builders.claim("c", bound=True)
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    claims = pod_claims(builders.as_pod(builders.pod("c")), builders.snapshot(claim), {})
    assert claims.refusal is not None
    assert claims.refusal.text == 'persistentvolumeclaim "c" is being deleted'


@pytest.mark.parametrize(
    ("node", "phase", "plugin"), [("n1", "Running", "VolumeRestrictions"), ("n1", "Succeeded", ""), ("", "Pending", "")]
)
def test_a_claim_of_one_pod_refuses_every_node_while_another_pod_has_it(node: str, phase: str, plugin: str) -> None:
    user = builders.pod("c", name="user", uid="uid-user", node=node, phase=phase)
    snapshot = builders.snapshot(builders.claim("c", bound=True, access="ReadWriteOncePod"), user)
    claims = pod_claims(builders.as_pod(builders.pod("c")), snapshot, {})
    assert (claims.refusal.plugin if claims.refusal else "") == plugin
    assert set(refusals(pod(), [node_with_room()], claims=claims).values()) == ({plugin} if plugin else set())


def node_with_room() -> Node:
    return node(raw=LARGE)
