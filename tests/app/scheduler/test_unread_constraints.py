"""Constraints that a policy does not read, and kinds that only single rules read, in a running scheduler."""

import asyncio
import json
from pathlib import Path

from scheduler_core.generic.policy import UnsupportedMode, parse_policy
from tests.worlds.fake_api import Object, until
from tests.worlds.scheduler import running_scheduler, running_scheduler_with_policy_file, write_policy
from tests.worlds.scheduling_api import NODES, PODS, SchedulingApi, node, pod

OVERHEAD = {"cpu": "100m"}
CONTROLLERS = "/apis/apps/v1/replicasets"
MORE_KINDS = ("/api/v1/replicationcontrollers", CONTROLLERS, "/apis/apps/v1/statefulsets", "/api/v1/namespaces")


def tainted(name: str) -> Object:
    return node(name) | {"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}}


async def test_a_pod_with_a_constraint_that_the_policy_does_not_read_is_refused(tmp_path: Path) -> None:
    api = SchedulingApi(node("a"), pod("odd", overhead=OVERHEAD), pod("plain"))
    async with running_scheduler(api, tmp_path):
        await until("the plain pod", lambda: api.bindings == [("plain", "a")])
        await until("the condition", lambda: api.condition("odd"))
        await until("the event", lambda: api.events_with("FailedScheduling"))
    (event,) = api.events_with("FailedScheduling")
    why = "the policy does not read spec.overhead[cpu] (rule NodeResourcesFit); see --unsupported-constraints"
    assert event["message"] == api.condition("odd")["message"] == why
    assert api.condition("odd")["reason"] == "Unschedulable"


async def test_with_warn_it_is_bound_and_an_event_names_the_constraint(tmp_path: Path) -> None:
    """So it is not ignored without a word."""
    api = SchedulingApi(tainted("a"), pod("odd", overhead=OVERHEAD))
    async with running_scheduler(api, tmp_path, unsupported=UnsupportedMode.WARN):
        await until("the pod", lambda: api.bindings == [("odd", "a")])
        await until("the event", lambda: api.events_with("UnsupportedConstraints"))
    (event,) = api.events_with("UnsupportedConstraints")
    assert event["type"] == "Warning"
    assert event["message"] == (
        "the policy does not read spec.overhead[cpu] (rule NodeResourcesFit), node spec.taints (rule PodToleratesNodeTaints)"
    )


async def test_with_ignore_it_is_bound_as_in_1_1(tmp_path: Path) -> None:
    api = SchedulingApi(tainted("a"), pod("odd", overhead=OVERHEAD))
    async with running_scheduler(api, tmp_path, unsupported=UnsupportedMode.IGNORE):
        await until("the event", lambda: api.events_with("Scheduled"))
    assert len(api.events) == 1


async def test_a_tainted_node_is_left_out_with_a_reason(tmp_path: Path) -> None:
    api = SchedulingApi(tainted("a"), pod("plain"), pod("tolerant", tolerations=[{"operator": "Exists"}]))
    async with running_scheduler(api, tmp_path):
        await until("the tolerant pod", lambda: api.bindings == [("tolerant", "a")])
        await until("the event", lambda: api.events_with("FailedScheduling"))
        (event,) = api.events_with("FailedScheduling")
        assert event["message"] == (
            "0/1 nodes are available: 1 node has a taint that the pod does not tolerate, which the policy does not read "
            "(rule PodToleratesNodeTaints)."
        )
        await api.put(NODES, node("b"))
        await until("the plain pod", lambda: ("plain", "b") in api.bindings)


async def test_a_policy_that_reads_the_constraint_decides_about_it(tmp_path: Path) -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    policy = parse_policy(b'{"predicates": [{"name": "NodeAffinity"}, {"name": "PodToleratesNodeTaints"}]}')
    api = SchedulingApi(node("a"), node("b", zone="z"), tainted("c"), pod("picky", affinity=affinity))
    async with running_scheduler(api, tmp_path, policy):
        await until("the event", lambda: api.events_with("Scheduled"))
    assert api.bindings == [("picky", "b")]
    assert [event["reason"] for event in api.events.values()] == ["Scheduled"]


async def test_controllers_and_namespaces_are_read_only_while_a_rule_reads_them(tmp_path: Path) -> None:
    """Otherwise the scheduler needs no permission for them."""
    api = SchedulingApi(node("a"), pod("web"))
    for path in MORE_KINDS:
        api.add(path)
    policy = write_policy(tmp_path / "policy.json", {"name": "PodFitsResources"})
    async with running_scheduler_with_policy_file(api, tmp_path, policy):
        await until("the pod", lambda: api.bindings)
        assert not any(api.count("list", path) for path in MORE_KINDS)
        write_policy(policy, {"name": "MatchInterPodAffinity"})
        await until("the namespaces", lambda: api.count("list", "/api/v1/namespaces"))
        assert not api.count("list", CONTROLLERS)


async def test_pods_of_a_replica_set_are_spread(tmp_path: Path) -> None:
    labels = {"app": "web"}
    controller = {"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": {"matchLabels": labels}}}
    api = SchedulingApi(node("a"), node("b"))
    for path in MORE_KINDS:
        api.add(path)
    api.add(CONTROLLERS, controller)
    placed = pod("web-0", nodeName="a")
    placed["metadata"]["labels"] = labels
    pending = pod("web-1")
    pending["metadata"]["labels"] = labels
    api.add(PODS, placed, pending)
    policy = parse_policy(json.dumps({"priorities": [{"name": "SelectorSpreadPriority", "weight": 1}]}).encode())
    async with running_scheduler(api, tmp_path, policy):
        await until("the pod", lambda: api.bindings)
    assert api.bindings == [("web-1", "b")]


async def test_a_missing_claim_is_found_before_a_node_is_selected(tmp_path: Path) -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    api = SchedulingApi(node("a"), node("b"), pod("web", volumes=volumes))
    async with running_scheduler(api, tmp_path):
        await until("two attempts", lambda: sum(path.endswith("/data") for _, path, _ in api.requests) >= 2)
        await asyncio.sleep(0.1)
        (event,) = api.events.values()
        assert event["reason"] == "FailedScheduling"
        why = "PersistentVolumeClaim shop/data does not exist (named by pod shop/web)"
        assert event["message"] == api.condition("web")["message"] == why
        assert (api.condition("web")["reason"], api.status_requests) == ("Unschedulable", 1)
        assert api.bindings == []
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await api.put(
            "/api/v1/persistentvolumeclaims", {"metadata": {"namespace": "shop", "name": "data"}, "spec": spec}
        )
        await api.put(NODES, node("c"))
        await until("the pod", lambda: api.bindings, 20)


async def test_a_claim_that_is_being_deleted_can_be_used_by_no_pod(tmp_path: Path) -> None:
    """As in kube-scheduler."""
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    metadata = {"namespace": "shop", "name": "data", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    api = SchedulingApi(node("a"), pod("web", volumes=volumes))
    api.add("/api/v1/persistentvolumeclaims", {"metadata": metadata, "spec": {"volumeName": "pv"}})
    async with running_scheduler(api, tmp_path):
        await until("the event", lambda: api.events_with("FailedScheduling"))
    (event,) = api.events_with("FailedScheduling")
    assert event["message"] == "PersistentVolumeClaim shop/data is being deleted (named by pod shop/web)"
    assert api.bindings == []
