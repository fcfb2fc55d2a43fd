"""Today's predicates as tables: what each decides, and with which reason."""

from typing import Any

import pytest

from scheduler_core.convert.generic import NODE, SCHEDULED_POD
from scheduler_core.generic import predicates
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import LonghornFacts, NodeFacts
from scheduler_core.generic.policy import parse_policy
from scheduler_core.generic.scheduler import NOT_READY
from scheduler_core.model.generic import Node
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.structs import replace
from tests.worlds.policy_rules import decide, failed

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CORDON = "node.kubernetes.io/unschedulable"
WEB = {"matchLabels": {"app": "web"}}


def pod(name: str = "new", app: str = "web", *, phase: str = "Pending", deleted: bool = False, **spec: Any) -> Pod:
    """A pod of the namespace `shop`."""
    metadata: dict[str, Any] = {"name": name, "namespace": "shop", "labels": {"app": app}}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    raw = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
    return SCHEDULED_POD.read(raw)


def node(name: str = "a", *, ready: bool = True, spec: Any = None, allocatable: Any = None, **labels: str) -> Node:
    """A node that takes ten pods."""
    status = {
        "allocatable": {"pods": "10", **(allocatable or {})},
        "conditions": [{"type": "Ready", "status": str(ready)}],
    }
    raw = {"metadata": {"name": name, "labels": labels}, "spec": spec or {}, "status": status}
    return NODE.read(raw)


def container(ports: Any = (), *, sidecar: bool = False, **requests: str) -> dict[str, Any]:
    restart = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": "c", "ports": list(ports), "resources": {"requests": requests}, **restart}


def state(nodes: list[Node], *pods: Pod) -> GenericClusterState:
    return GenericClusterState.of(nodes, pods, [])


@pytest.mark.parametrize(
    ("taint", "toleration", "tolerated"),
    [
        ({"key": "k", "effect": "NoSchedule"}, None, False),
        ({"key": "k", "effect": "NoSchedule"}, {"operator": "Exists"}, True),
        ({"key": "k", "effect": "NoSchedule"}, {"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "value": "9", "effect": "NoSchedule"}, {"key": "k", "operator": "Gt", "value": "1"}, False),
    ],
)
def test_a_taint_must_be_tolerated_unless_it_is_a_preference(taint: Any, toleration: Any, tolerated: bool) -> None:
    """Numeric operators tolerate nothing, as by default in kube-scheduler."""
    cluster = state([node(spec={"taints": [taint]})])
    asking = pod(tolerations=[toleration] if toleration else [])
    assert failed("PodToleratesNodeTaints", asking, cluster) == (
        {} if tolerated else {"a": predicates.UNTOLERATED_TAINT}
    )


@pytest.mark.parametrize(
    ("expression", "size", "matches"),
    [
        ({"operator": "In", "values": ["1", "2"]}, "2", True),
        ({"operator": "In", "values": ["1"]}, None, False),
        ({"operator": "Exists"}, "", True),
        ({"operator": "DoesNotExist"}, "", False),
        ({"operator": "Lt", "values": ["1"]}, "x", False),
        ({"operator": "Lt", "values": ["1"]}, None, False),
        ({"operator": "In", "values": []}, "", False),
        ({"operator": "Odd", "values": ["1"]}, "1", False),
    ],
)
def test_a_node_affinity_expression_compares_the_label(expression: Any, size: str | None, matches: bool) -> None:
    """One that Kubernetes would not accept matches no node."""
    labels = {} if size is None else {"size": size}
    terms = [{"matchExpressions": [{"key": "size", **expression}]}]
    asking = pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}})
    assert failed("NodeAffinity", asking, state([replace(node(), labels=labels)])) == (
        {} if matches else {"a": predicates.AFFINITY_MISMATCH}
    )


@pytest.mark.parametrize(
    ("terms", "matching"),
    [
        ([], ""),
        ([{}], ""),
        ([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}], "ab"),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}], "b"),
        ([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["b"]}]}], "ac"),
        (
            [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]},
                {
                    "matchExpressions": [{"key": "zone", "operator": "Exists"}],
                    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}],
                },
            ],
            "ac",
        ),
    ],
)
def test_one_term_of_a_node_affinity_must_match_as_a_whole(terms: Any, matching: str) -> None:
    asking = pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}})
    cluster = state([node("a", zone="z"), node("b", zone="z"), node("c")])
    assert {"a", "b", "c"} - failed("NodeAffinity", asking, cluster).keys() == set(matching)


@pytest.mark.parametrize(
    ("port", "conflicts"),
    [
        ({"hostPort": 80}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.2"}, False),
        ({"hostPort": 80, "hostIP": "0.0.0.0"}, True),  # noqa: S104
        ({"hostPort": 80, "hostIP": "10.0.0.1", "protocol": "UDP"}, False),
        ({"hostPort": 81}, False),
        ({"containerPort": 80}, False),
    ],
)
def test_host_ports_conflict_by_number_protocol_and_address(port: Any, conflicts: bool) -> None:
    used = pod("used", nodeName="a", containers=[container([{"hostPort": 80, "hostIP": "10.0.0.1"}])])
    asking = pod(containers=[container([port])])
    assert failed("NodePorts", asking, state([node()], used)) == ({"a": predicates.PORT_TAKEN} if conflicts else {})


def test_ports_of_sidecars_count_and_those_of_other_init_containers_do_not() -> None:
    ports = [{"hostPort": 80}]
    cluster = state([node()], pod("used", nodeName="a", containers=[container(ports)]))
    assert failed("NodePorts", pod(initContainers=[container(ports, sidecar=True)]), cluster) == {
        "a": predicates.PORT_TAKEN
    }
    assert failed("NodePorts", pod(initContainers=[container(ports)]), cluster) == {}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        pytest.param({"containers": [container(cpu="1"), container(cpu="500m")]}, 1500, id="containers: sum"),
        pytest.param(
            {"containers": [container(cpu="1")], "initContainers": [container(cpu="3")]}, 3000, id="init: max"
        ),
        pytest.param(
            {"containers": [container(cpu="1")], "initContainers": [container(cpu="1"), container(cpu="1")]},
            1000,
            id="init containers run one after the other",
        ),
        pytest.param(
            {"containers": [container(cpu="1")], "initContainers": [container(sidecar=True, cpu="1")]},
            2000,
            id="a sidecar runs beside the containers",
        ),
        pytest.param(
            {"initContainers": [container(sidecar=True, cpu="1"), container(cpu="2")]},
            3000,
            id="an init container runs beside earlier sidecars",
        ),
        pytest.param(
            {"initContainers": [container(cpu="2"), container(sidecar=True, cpu="1")]},
            2000,
            id="and not beside later ones",
        ),
        pytest.param({"containers": [container(cpu="1")], "overhead": {"cpu": "100m"}}, 1100, id="overhead"),
        pytest.param(
            {"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "2"}}, "overhead": {"cpu": "1"}},
            3000,
            id="the pod as a whole, and overhead",
        ),
        pytest.param({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}, 2000, id="limit"),
    ],
)
def test_a_pods_request_is_what_it_needs_at_most(spec: dict[str, Any], cpu: int) -> None:
    asking = pod(**spec)
    assert dict(asking.scheduling.constraints.requests)["cpu"] == cpu
    enough = state([node(allocatable={"cpu": f"{cpu}m"})])
    assert failed("NodeResourcesFit", asking, enough) == {}
    short = state([node(allocatable={"cpu": f"{cpu - 1}m"})])
    assert failed("NodeResourcesFit", asking, short) == {"a": "insufficient cpu"}


def test_each_resource_that_the_pod_requests_is_checked() -> None:
    gpu = "example.com/gpu"
    allocatable = {"cpu": "1", "ephemeral-storage": "1Gi", gpu: "1"}
    used = pod("used", nodeName="a", containers=[{"resources": {"requests": {gpu: "1"}}}])
    asking = pod(containers=[{"resources": {"requests": {gpu: "1", "ephemeral-storage": "2Gi", "memory": "1"}}}])
    reasons = {"a": f"insufficient ephemeral-storage and insufficient {gpu} and insufficient memory"}
    assert failed("NodeResourcesFit", asking, state([node(allocatable=allocatable)], used)) == reasons
    plain = pod(containers=[container(cpu="1")])
    assert failed("NodeResourcesFit", plain, state([node(allocatable=allocatable)], used)) == {}


def policy(*names: str) -> Any:
    entries = ", ".join(f'{{"name": "{name}"}}' for name in names)
    return parse_policy(f'{{"predicates": [{entries}]}}'.encode())


def test_a_pod_that_tolerates_a_cordon_goes_to_a_cordoned_node_if_the_policy_reads_that() -> None:
    """Without the rule no pod goes there, as in Kubernetes 1.1."""
    cluster = state([node(spec={"unschedulable": True})])
    tolerant = pod(tolerations=[{"key": CORDON, "operator": "Exists"}])
    assert decide(tolerant, cluster, policy("CheckNodeUnschedulable")).node == "a"
    room = LonghornFacts({"a": NodeFacts(Reason.ROOM)})
    assert decide(tolerant, cluster, policy("LonghornVolumeFit", "CheckNodeUnschedulable"), room).node == "a"
    assert decide(tolerant, cluster, policy("HostName")).unavailable == {"a": predicates.UNSCHEDULABLE}
    assert decide(pod(), cluster, policy("CheckNodeUnschedulable")).count_by_reason() == {predicates.UNSCHEDULABLE: 1}


def test_taints_decide_about_a_node_that_is_not_ready_if_the_policy_reads_them() -> None:
    taints = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    cluster = state([node(ready=False, spec={"taints": taints})])
    tolerant = pod(tolerations=[{"operator": "Exists"}])
    assert decide(tolerant, cluster, policy("PodToleratesNodeTaints")).node == "a"
    assert decide(pod(), cluster, policy("PodToleratesNodeTaints")).count_by_reason() == {
        predicates.UNTOLERATED_TAINT: 1
    }
    assert decide(tolerant, cluster, policy("HostName")).unavailable == {"a": NOT_READY}


def affinity(kind: str, **term: Any) -> dict[str, Any]:
    return {kind: {REQUIRED: [{"topologyKey": "zone", "labelSelector": WEB, **term}]}}


ZONES = [node("a", zone="x"), node("b", zone="x"), node("c", zone="y"), node("bare")]


@pytest.mark.parametrize(
    ("asking", "placed", "fits"),
    [
        pytest.param(pod(app="db", affinity=affinity("podAffinity")), [pod("w", nodeName="a")], "ab", id="joins"),
        pytest.param(
            pod(app="db", affinity=affinity("podAffinity", labelSelector=None)),
            [pod("w", nodeName="a")],
            "",
            id="no selector selects none",
        ),
        pytest.param(
            pod(app="db", affinity=affinity("podAffinity", namespaces=["other"])),
            [pod("w", nodeName="a")],
            "",
            id="other namespaces",
        ),
        pytest.param(
            pod(app="db", affinity=affinity("podAffinity", namespaceSelector={})),
            [pod("w", nodeName="a")],
            "ab",
            id="all namespaces",
        ),
    ],
)
def test_pod_affinity_needs_a_matching_pod_in_the_domain(asking: Pod, placed: list[Pod], fits: str) -> None:
    refused = failed("MatchInterPodAffinity", asking, state(ZONES, *placed))
    assert {"a", "b", "c", "bare"} - refused.keys() == set(fits)
    assert set(refused.values()) == {predicates.POD_AFFINITY}


def test_pod_anti_affinity_keeps_a_pod_out_of_a_domain() -> None:
    asking = pod(app="db", affinity=affinity("podAntiAffinity"))
    refused = failed("MatchInterPodAffinity", asking, state(ZONES, pod("w", nodeName="a")))
    assert refused == {"a": predicates.POD_ANTI_AFFINITY, "b": predicates.POD_ANTI_AFFINITY}


def test_the_anti_affinity_of_a_placed_pod_counts_as_well() -> None:
    placed = pod("w", app="db", nodeName="a", affinity=affinity("podAntiAffinity"))
    refused = failed("MatchInterPodAffinity", pod(), state(ZONES, placed))
    assert refused == {"a": predicates.EXISTING_ANTI_AFFINITY, "b": predicates.EXISTING_ANTI_AFFINITY}
    finished = pod("w", app="db", nodeName="a", phase="Succeeded", affinity=affinity("podAntiAffinity"))
    assert failed("MatchInterPodAffinity", pod(), state(ZONES, finished)) == {}


def spread(**constraint: Any) -> list[dict[str, Any]]:
    base = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": WEB}
    return [{**base, **constraint}]


@pytest.mark.parametrize(
    ("constraint", "placed", "fits"),
    [
        pytest.param({}, [pod("w", nodeName="a")], "c", id="the emptier domain"),
        pytest.param({}, [pod("w", nodeName="a", deleted=True)], "abc", id="pods that are being deleted do not count"),
        pytest.param({}, [pod("w", app="db", nodeName="a")], "abc", id="other pods do not count"),
        pytest.param({"minDomains": 3}, [pod("w", nodeName="a"), pod("v", nodeName="c")], "", id="too few domains"),
        pytest.param({"minDomains": 2}, [pod("w", nodeName="a"), pod("v", nodeName="c")], "abc", id="enough domains"),
        pytest.param(
            {"labelSelector": {}, "matchLabelKeys": ["app"]}, [pod("w", nodeName="a")], "c", id="by the pod's own label"
        ),
        pytest.param({"whenUnsatisfiable": "ScheduleAnyway"}, [pod("w", nodeName="a")], "abc+", id="a preference"),
    ],
)
def test_a_spread_constraint_limits_the_difference_between_domains(
    constraint: Any, placed: list[Pod], fits: str
) -> None:
    asking = pod(topologySpreadConstraints=spread(**constraint))
    refused = failed("EvenPodsSpread", asking, state(ZONES, *placed))
    assert {"a", "b", "c"} - refused.keys() == set(fits) - {"+"}
    assert refused.get("bare", "") == ("" if "+" in fits else predicates.SPREAD_LABEL_MISSING)
    assert {refused[name] for name in refused.keys() - {"bare"}} <= {predicates.SPREAD_MISMATCH}


@pytest.mark.parametrize(
    ("policies", "fits"), [({}, "c"), ({"nodeAffinityPolicy": "Ignore"}, ""), ({"nodeTaintsPolicy": "Honor"}, "c")]
)
def test_a_node_that_the_pod_cannot_use_counts_as_the_policies_say(policies: Any, fits: str) -> None:
    nodes = [node("c", zone="y", open="yes"), node("d", zone="z")]
    asking = pod(nodeSelector={"open": "yes"}, topologySpreadConstraints=spread(**policies))
    refused = failed("EvenPodsSpread", asking, state(nodes, pod("w", nodeName="c")))
    assert {"c"} - refused.keys() == set(fits)
