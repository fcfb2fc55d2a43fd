"""A policy file's predicates in /filter and /preempt, its priorities in /prioritize, over a snapshot with whole nodes, pods and services."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app.bootstrap import create_app
from app.kube.snapshot_file import load_cluster
from app.policy import PolicyFile, load_plugins
from app.runtime.probes import PREFIX
from app.settings import Settings
from scheduler_core.decide.extender_settings import Enforcement
from tests.builders import NOW, Object, claim, flat, longhorn_node, storage_class, write_list
from tests.worlds.awkward_plugin import USABLE
from tests.worlds.generic_objects import ready_node, requesting_pod, service
from tests.worlds.service import by_names, by_nodes, http_client

NAMES = ("a", "b", "c", "d")
ZONE = {"name": "Zone", "argument": {"serviceAffinity": {"labels": ["zone"]}}}
RESOURCES = {"name": "PodFitsResources"}
LABELLED = {"name": "Labelled", "argument": {"labelsPresence": {"labels": ["zone"], "presence": True}}}


def four_nodes() -> list[Object]:
    """`a` is busy, `b` fits, `c` has no space for the claim, and `d` has no zone; a web pod is on `b`, in zone 2."""
    return flat(
        storage_class(),
        ready_node("a", zone="z1"),
        ready_node("b", zone="z2"),
        ready_node("c", zone="z2"),
        ready_node("d"),
        [longhorn_node(name, 10 if name == "c" else 100) for name in NAMES],
        claim("data", 50),
        requesting_pod(name="busy", uid="uid-busy", node="a", cpu="4"),
        requesting_pod(name="web-0", uid="uid-web-0", node="b", labels={"app": "web"}),
        service("web", app="web"),
    )


def application(
    folder: Path,
    *predicates: Object,
    priorities: Any = (),
    objects: list[Object] | None = None,
    observes: bool = False,
    plugins: Sequence[str] = (),
) -> FastAPI:
    """The service with a policy of these rules."""
    policy = folder / "policy.json"
    source = write_list(folder, objects or four_nodes())
    policy.write_text(json.dumps({"predicates": predicates, "priorities": priorities}))
    file = PolicyFile(str(policy), load_plugins(plugins))
    loaded = load_cluster(source, file.policy, longhorn=True)
    settings = Settings(enforcement=Enforcement.OBSERVE if observes else Enforcement.ENFORCE)
    return create_app(loaded.snapshot, settings, NOW, loaded.state, file)


async def post(app: FastAPI, route: str, request: Any) -> Any:
    """Sends a request; returns the answer."""
    async with http_client(app) as client:
        response = await client.post(route, content=json.dumps(request).encode())
        assert response.status_code == 200, response.text
        return response.json()


async def test_refusals_of_predicates_and_of_longhorn_are_answered_together(tmp_path: Path) -> None:
    answer = await post(application(tmp_path, RESOURCES, LABELLED), "/filter", by_names(requesting_pod("data"), NAMES))
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


async def test_whole_nodes_get_the_same_answer_as_names(tmp_path: Path) -> None:
    request = by_nodes(requesting_pod("data"), NAMES)
    answer = await post(application(tmp_path, RESOURCES, LABELLED), "/filter", request)
    assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["b"]
    assert answer["FailedNodes"] == {"a": "PodFitsResources: insufficient CPU"}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"c", "d"}


async def test_longhorns_rules_count_whether_or_not_the_policy_names_them(tmp_path: Path) -> None:
    for predicates in ([RESOURCES], [RESOURCES, {"name": "LonghornVolumeFit"}]):
        answer = await post(application(tmp_path, *predicates), "/filter", by_names(requesting_pod("data"), NAMES))
        assert answer["NodeNames"] == ["b", "d"]
        assert answer["FailedAndUnresolvableNodes"] == {"c": "insufficient Longhorn storage"}


async def test_a_policy_without_predicates_refuses_nothing(tmp_path: Path) -> None:
    answer = await post(application(tmp_path), "/filter", by_names(requesting_pod(), (*NAMES, "unknown")))
    assert answer["NodeNames"] == [*NAMES, "unknown"]


async def test_a_cordoned_or_unready_node_is_not_refused(tmp_path: Path) -> None:
    objects = four_nodes()
    for entry in objects:
        if entry["kind"] == "Node" and entry["metadata"]["name"] == "b" and "status" in entry:
            entry["spec"] = {"unschedulable": True}
            entry.get("status", {})["conditions"] = [{"type": "Ready", "status": "False"}]
    objects = [entry for entry in objects if "longhorn" not in entry["apiVersion"]]
    answer = await post(application(tmp_path, RESOURCES, objects=objects), "/filter", by_names(requesting_pod(), NAMES))
    assert answer["NodeNames"] == ["b", "c", "d"]


async def test_an_unknown_node_is_refused(tmp_path: Path) -> None:
    answer = await post(application(tmp_path, RESOURCES), "/filter", by_names(requesting_pod(), ("b", "unknown")))
    assert answer["NodeNames"] == ["b"]
    assert answer["FailedAndUnresolvableNodes"] == {"unknown": "node does not exist"}


async def test_service_affinity_reads_services_and_pods(tmp_path: Path) -> None:
    app = application(tmp_path, ZONE)
    web = await post(app, "/filter", by_names(requesting_pod(labels={"app": "web"}), NAMES))
    assert web["NodeNames"] == ["b", "c"]
    assert web["FailedAndUnresolvableNodes"] == dict.fromkeys("ad", "Zone: service affinity does not match")
    assert (await post(app, "/filter", by_names(requesting_pod(), NAMES)))["NodeNames"] == list(NAMES)


async def test_a_predicate_that_cannot_be_decided_is_an_error_for_the_pod(tmp_path: Path) -> None:
    objects = [entry for entry in four_nodes() if entry["metadata"]["name"] != "b"]
    request = by_names(requesting_pod(labels={"app": "web"}), ("a", "c"))
    answer = await post(application(tmp_path, ZONE, objects=objects), "/filter", request)
    assert answer["NodeNames"] is None
    assert answer["Error"] == "node 'b' of pod default/web-0, which service affinity follows, is not known"
    answer = await post(application(tmp_path, ZONE, objects=objects, observes=True), "/filter", request)
    assert answer["NodeNames"] == ["a", "c"]


async def test_every_node_fits_while_refusals_are_only_observed(tmp_path: Path) -> None:
    async with http_client(application(tmp_path, RESOURCES, LABELLED, observes=True)) as client:
        request = json.dumps(by_names(requesting_pod("data"), NAMES)).encode()
        answer = (await client.post("/filter", content=request)).json()
        metrics = (await client.get("/metrics")).text
    assert answer["NodeNames"] == list(NAMES)
    assert f"{PREFIX}_policy_refusals_total 2.0" in metrics
    assert f'{PREFIX}_verdicts_total{{reason="insufficient_storage"}} 1.0' in metrics


async def test_preemption_keeps_only_nodes_where_evicting_pods_may_help(tmp_path: Path) -> None:
    request = {"Pod": requesting_pod("data"), "NodeNameToMetaVictims": {name: {"Pods": []} for name in NAMES}}
    answer = await post(application(tmp_path, RESOURCES, LABELLED), "/preempt", request)
    assert set(answer["NodeNameToMetaVictims"]) == {"a", "b"}


async def test_generic_and_longhorn_priorities_are_added(tmp_path: Path) -> None:
    """CPU and memory: 1 of 4 and 200Mi of 8Gi on d is (7 + 9) // 2; 2 of 4 on b is (5 + 9) // 2; disks of one are even: 10."""
    priorities = [{"name": "LeastRequestedPriority", "weight": 3}, {"name": "LonghornBalancedDisks", "weight": 1}]
    app = application(tmp_path, priorities=priorities)
    answer = await post(app, "/prioritize", by_names(requesting_pod("data"), ("d", "b", "c", "unknown")))
    assert {entry["Host"]: entry["Score"] for entry in answer} == {
        "d": (3 * 8 + 10) // 4,
        "b": (3 * 7 + 10) // 4,
        "c": (3 * 8 + 0) // 4,
        "unknown": 0,
    }


async def test_a_policy_without_longhorn_rules_resolves_no_volumes(tmp_path: Path) -> None:
    app = application(tmp_path, priorities=[{"name": "EqualPriority", "weight": 7}])
    answer = await post(app, "/prioritize", by_names(requesting_pod("missing"), NAMES))
    assert [entry["Score"] for entry in answer] == [1, 1, 1, 1]


@pytest.mark.parametrize("route", ["/filter", "/prioritize"])
async def test_a_pod_whose_requests_cannot_be_read_is_a_malformed_request(route: str, tmp_path: Path) -> None:
    request = json.dumps(by_names(requesting_pod(cpu="much"), NAMES)).encode()
    async with http_client(application(tmp_path, RESOURCES)) as client:
        response = await client.post(route, content=request)
    assert response.status_code == 400
    assert "spec.containers[0].resources.requests[cpu]" in response.json()["error"]


@pytest.mark.parametrize("rule", USABLE)
async def test_a_plugins_argument_may_be_of_any_kind(tmp_path: Path, rule: str) -> None:
    own = {"name": "Own", "argument": {rule: {"names": ["a"]}}}
    app = application(tmp_path, own, priorities=[own | {"weight": 1}], plugins=["tests.worlds.awkward_plugin"])
    answer = await post(app, "/filter", by_names(requesting_pod(), NAMES))
    assert answer["FailedAndUnresolvableNodes"] == {"a": r"Own: a name\nof the list"}
    scores = await post(app, "/prioritize", by_names(requesting_pod(), NAMES))
    assert [entry["Score"] for entry in scores] == [10, 0, 0, 0]


@pytest.mark.parametrize("rule", ["Raises", "Exits", "Unreadable"])
async def test_a_plugins_rule_that_raises_is_the_error_of_the_answer(tmp_path: Path, rule: str) -> None:
    app = application(
        tmp_path, {"name": rule}, priorities=[{"name": rule, "weight": 1}], plugins=["tests.worlds.awkward_plugin"]
    )
    answer = await post(app, "/filter", by_names(requesting_pod(), NAMES))
    assert answer["Error"].startswith(f"plugin rule {rule} failed: ")
    assert "\n" not in answer["Error"]
    scores = await post(app, "/prioritize", by_names(requesting_pod(), NAMES))
    assert [entry["Score"] for entry in scores] == [0, 0, 0, 0]
