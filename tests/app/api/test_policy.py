"""A policy file's predicates in /filter and /preempt, its priorities in /prioritize, over a snapshot with whole nodes, pods and services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app.bootstrap import create_app
from app.extender.metrics import PREFIX
from app.kube.snapshot_generic import load_cluster
from app.policy.file import PolicyFile
from app.settings import Enforcement, Settings
from tests.builders import NOW, Object, claim, flat, longhorn_node, pod, storage_class
from tests.worlds.service import asking, by_names, by_nodes

pytestmark = pytest.mark.anyio
NAMES = ("a", "b", "c", "d")
ZONE = {"name": "Zone", "argument": {"serviceAffinity": {"labels": ["zone"]}}}
RESOURCES = {"name": "PodFitsResources"}
LABELLED = {"name": "Labelled", "argument": {"labelsPresence": {"labels": ["zone"], "presence": True}}}


def whole_node(name: str, cpu: str = "4", **labels: str) -> Object:
    """A ready node of 4 CPU."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": {"cpu": cpu, "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def whole_pod(*claims: str, cpu: str = "1", labels: dict[str, str] | None = None, **fields: Any) -> Object:
    """A pod that requests CPU."""
    raw = pod(*claims, **fields)
    raw["metadata"]["labels"] = labels or {}
    raw["spec"]["containers"] = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return raw


def cluster() -> list[Object]:
    """`a` is busy, `b` has room for CPU and disks, `c` has no room for the claim, `d` no zone; a web pod is on `b`, in zone 2."""
    return flat(
        storage_class(),
        whole_node("a", zone="z1"),
        whole_node("b", zone="z2"),
        whole_node("c", zone="z2"),
        whole_node("d"),
        [longhorn_node(name, 10 if name == "c" else 100) for name in NAMES],
        claim("data", 50),
        whole_pod(name="busy", uid="uid-busy", node="a", cpu="4"),
        whole_pod(name="web-0", uid="uid-web-0", node="b", labels={"app": "web"}),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "web"}},
        },
    )


def application(
    folder: Path, *predicates: Object, priorities: Any = (), objects: list[Object] | None = None, observes: bool = False
) -> FastAPI:
    """The service by a policy of these rules."""
    source, policy = folder / "snapshot.json", folder / "policy.json"
    source.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects or cluster()}))
    policy.write_text(json.dumps({"predicates": predicates, "priorities": priorities}))
    file = PolicyFile(str(policy))
    loaded = load_cluster(str(source), file.policy, longhorn=True)
    settings = Settings(enforcement=Enforcement.OBSERVE if observes else Enforcement.ENFORCE)
    return create_app(loaded.snapshot, settings, NOW, loaded.state, file)


async def asked(app: FastAPI, route: str, question: Any) -> Any:
    """The answer."""
    async with asking(app) as client:
        response = await client.post(route, content=json.dumps(question).encode())
        assert response.status_code == 200, response.text
        return response.json()


async def test_a_predicate_refuses_by_its_name_beside_longhorn(tmp_path: Path) -> None:
    """What evicting pods may change is apart from what it may not; Longhorn's own reason stays for the nodes that pass."""
    answer = await asked(application(tmp_path, RESOURCES, LABELLED), "/filter", by_names(whole_pod("data"), NAMES))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["b"],
        "FailedNodes": {"a": "PodFitsResources: insufficient CPU"},
        "FailedAndUnresolvableNodes": {
            "c": "insufficient Longhorn storage",
            "d": "Labelled: a required node label is missing",
        },
        "Error": "",
    }


async def test_whole_nodes_are_answered_alike(tmp_path: Path) -> None:
    """Nodes and reasons; the node's own fields are not looked at, what is known of it counts."""
    question = by_nodes(whole_pod("data"), NAMES)
    answer = await asked(application(tmp_path, RESOURCES, LABELLED), "/filter", question)
    assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["b"]
    assert answer["FailedNodes"] == {"a": "PodFitsResources: insufficient CPU"}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"c", "d"}


async def test_longhorn_decides_whether_or_not_the_policy_says_so(tmp_path: Path) -> None:
    """A policy without LonghornVolumeFit takes nothing away from /filter."""
    for predicates in ([RESOURCES], [RESOURCES, {"name": "LonghornVolumeFit"}]):
        answer = await asked(application(tmp_path, *predicates), "/filter", by_names(whole_pod("data"), NAMES))
        assert answer["NodeNames"] == ["b", "d"]
        assert answer["FailedAndUnresolvableNodes"] == {"c": "insufficient Longhorn storage"}


async def test_a_policy_without_predicates_refuses_nothing(tmp_path: Path) -> None:
    """That of the extender has one of Longhorn's only."""
    answer = await asked(application(tmp_path), "/filter", by_names(whole_pod(), (*NAMES, "nobody")))
    assert answer["NodeNames"] == [*NAMES, "nobody"]


async def test_a_cordoned_or_unready_node_is_kube_schedulers_business(tmp_path: Path) -> None:
    """A pod of a DaemonSet tolerates both."""
    objects = cluster()
    for entry in objects:
        if entry["kind"] == "Node" and entry["metadata"]["name"] == "b" and "status" in entry:
            entry["spec"] = {"unschedulable": True}
            entry.get("status", {})["conditions"] = [{"type": "Ready", "status": "False"}]
    objects = [entry for entry in objects if "longhorn" not in entry["apiVersion"]]
    answer = await asked(application(tmp_path, RESOURCES, objects=objects), "/filter", by_names(whole_pod(), NAMES))
    assert answer["NodeNames"] == ["b", "c", "d"]


async def test_a_node_nobody_knows_is_refused(tmp_path: Path) -> None:
    """Its capacity is not known."""
    answer = await asked(application(tmp_path, RESOURCES), "/filter", by_names(whole_pod(), ("b", "nobody")))
    assert answer["NodeNames"] == ["b"]
    assert answer["FailedAndUnresolvableNodes"] == {"nobody": "node does not exist"}


async def test_service_affinity_reads_services_and_pods(tmp_path: Path) -> None:
    """The service's first pod is in zone 2; a pod of no service is free."""
    app = application(tmp_path, ZONE)
    web = await asked(app, "/filter", by_names(whole_pod(labels={"app": "web"}), NAMES))
    assert web["NodeNames"] == ["b", "c"]
    assert web["FailedAndUnresolvableNodes"] == dict.fromkeys("ad", "Zone: service affinity does not match")
    assert (await asked(app, "/filter", by_names(whole_pod(), NAMES)))["NodeNames"] == list(NAMES)


async def test_what_cannot_be_decided_is_an_error_for_the_pod(tmp_path: Path) -> None:
    """The service's pod is on a node that is gone: nowhere, until that has changed; while observing everywhere."""
    objects = [entry for entry in cluster() if entry["metadata"]["name"] != "b"]
    question = by_names(whole_pod(labels={"app": "web"}), ("a", "c"))
    answer = await asked(application(tmp_path, ZONE, objects=objects), "/filter", question)
    assert answer["NodeNames"] is None
    assert answer["Error"] == "node 'b' of pod default/web-0, which service affinity follows, is not known"
    answer = await asked(application(tmp_path, ZONE, objects=objects, observes=True), "/filter", question)
    assert answer["NodeNames"] == ["a", "c"]


async def test_observing_tells_that_every_node_fits(tmp_path: Path) -> None:
    """What would have been refused is counted: two nodes by the policy, one by Longhorn."""
    async with asking(application(tmp_path, RESOURCES, LABELLED, observes=True)) as client:
        question = json.dumps(by_names(whole_pod("data"), NAMES)).encode()
        answer = (await client.post("/filter", content=question)).json()
        metrics = (await client.get("/metrics")).text
    assert answer["NodeNames"] == list(NAMES)
    assert f"{PREFIX}_policy_refusals_total 2.0" in metrics
    assert f'{PREFIX}_verdicts_total{{reason="insufficient_storage"}} 1.0' in metrics


async def test_preemption_is_not_tried_where_evicting_changes_nothing(tmp_path: Path) -> None:
    """`a` is only busy; `c` has no disk, `d` no label."""
    question = {"Pod": whole_pod("data"), "NodeNameToMetaVictims": {name: {"Pods": []} for name in NAMES}}
    answer = await asked(application(tmp_path, RESOURCES, LABELLED), "/preempt", question)
    assert set(answer["NodeNameToMetaVictims"]) == {"a", "b"}


async def test_priorities_of_both_worlds_are_added(tmp_path: Path) -> None:
    """CPU and memory: 1 of 4 and 200Mi of 8Gi on d is (7 + 9) // 2; 2 of 4 on b is (5 + 9) // 2; disks of one are even: 10."""
    priorities = [{"name": "LeastRequestedPriority", "weight": 3}, {"name": "LonghornBalancedDisks", "weight": 1}]
    app = application(tmp_path, priorities=priorities)
    answer = await asked(app, "/prioritize", by_names(whole_pod("data"), ("d", "b", "c", "nobody")))
    assert {entry["Host"]: entry["Score"] for entry in answer} == {
        "d": (3 * 8 + 10) // 4,
        "b": (3 * 7 + 10) // 4,
        "c": (3 * 8 + 0) // 4,
        "nobody": 0,
    }


async def test_a_policy_of_no_longhorn_rules_needs_no_volumes(tmp_path: Path) -> None:
    """The claim does not exist; /filter has said so."""
    app = application(tmp_path, priorities=[{"name": "EqualPriority", "weight": 7}])
    answer = await asked(app, "/prioritize", by_names(whole_pod("missing"), NAMES))
    assert [entry["Score"] for entry in answer] == [1, 1, 1, 1]


@pytest.mark.parametrize("route", ["/filter", "/prioritize"])
async def test_a_pod_whose_requests_cannot_be_read_is_a_malformed_question(route: str, tmp_path: Path) -> None:
    """With the field's name; without a policy file nobody looks at them."""
    question = json.dumps(by_names(whole_pod(cpu="much"), NAMES)).encode()
    async with asking(application(tmp_path, RESOURCES)) as client:
        response = await client.post(route, content=question)
    assert response.status_code == 400
    assert "spec.containers[].resources.requests.cpu" in response.json()["error"]
