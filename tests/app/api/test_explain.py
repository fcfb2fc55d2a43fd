"""POST /explain: the decision of /filter, with plans and numbers."""

import asyncio
from functools import partial
from typing import Any

from hypothesis import given, strategies as st

from app.schemas.decision import explain_answer, explain_json
from tests.bench.offers_cluster import new_pod
from tests.builders import Object, bound, claim, disk, flat, kept, longhorn_node, pod, replica, storage_class
from tests.worlds.crowded_cluster import CrowdedCluster
from tests.worlds.decision_runners import run_counting
from tests.worlds.service import application, by_names, by_nodes, db_pod, http_client, small_service


async def _filter_and_explain(cluster: list[Object], request: Object) -> tuple[Any, Any]:
    async with http_client(application(cluster)) as client:
        filtered = (await client.post("/filter", json=request)).json()
        explained = (await client.post("/explain", json=request)).json()
    return filtered, explained


async def test_the_answer_has_the_pod_its_volumes_and_every_node_in_the_order_of_the_request() -> None:
    async with small_service() as client:
        answer = (await client.post("/explain", json=by_names(db_pod(), ["node-2", "node-1"]))).json()
    assert answer["pod"] == "default/db-0"
    assert [volume["name"] for volume in answer["volumes"]] == ["data-db-0"]
    assert list(answer["nodes"]) == ["node-2", "node-1"]
    refused = answer["nodes"]["node-2"]
    fits = answer["nodes"]["node-1"]
    assert (refused["fits"], refused["plan"], refused["missing"]) == (False, {}, 10 * 1024**3)
    assert (fits["fits"], fits["plan"], fits["missing"]) == (True, {"data-db-0": "node-1-disk-1"}, 0)


async def test_volumes_that_may_meet_on_a_disk_are_named() -> None:
    """Where the node is not stale-safe; otherwise the counter-example is null."""
    nodes = [longhorn_node("meet", {"a": disk(100), "b": disk(100)}), longhorn_node("safe", 120)]
    cluster = flat(storage_class(), nodes, claim("x", 60), claim("y", 60))
    async with http_client(application(cluster)) as client:
        answer = (await client.post("/explain", json=by_names(pod("x", "y"), ["meet", "safe"]))).json()["nodes"]
    keys = ("fits", "order_safe", "stale_safe", "staleCounterExample")
    assert {name: tuple(entry[key] for key in keys) for name, entry in answer.items()} == {
        "meet": (False, True, False, {"disk": "meet-a", "diskName": "a", "volumes": ["x", "y"]}),
        "safe": (True, True, True, None),
    }


async def test_a_volume_names_the_persistent_volume_that_its_claim_will_be_bound_to() -> None:
    cluster = [storage_class(), longhorn_node("node-1", 200), claim("new", 10), claim("old", 50), *kept("pv", 100)]
    async with http_client(application(flat(cluster))) as client:
        answer = (await client.post("/explain", json=by_names(pod("new", "old"), ["node-1"]))).json()
    volumes = [(volume["claim"], volume["persistentVolume"], volume["nodes"]) for volume in answer["volumes"]]
    assert volumes == [("default/new", "pv", None), ("default/old", "", None)]


async def test_both_forms_get_the_same_explanation() -> None:
    async with small_service() as client:
        names = await client.post("/explain", json=by_names(db_pod()))
        full = await client.post("/explain", json=by_nodes(db_pod()))
    assert names.content == full.content


sizes = st.integers(1, 12)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Object], Object]:
    """A few nodes and disks, a pod with claims, some of them with a replica, and bound pods that wait for their volumes."""
    names = [f"node-{number}" for number in range(draw(st.integers(1, 4)))]
    objects: list[Object] = [
        storage_class(dataLocality=draw(st.sampled_from(["best-effort", "strict-local", "disabled"])))
    ]
    for name in names:
        disks = {f"disk-{index}": disk(size) for index, size in enumerate(draw(st.lists(sizes, max_size=3)), start=1)}
        objects.append(longhorn_node(name, disks, allow=draw(st.booleans()) or draw(st.booleans())))
    claims = [f"claim-{number}" for number in range(draw(st.integers(0, 3)))]
    for name in claims:
        size = draw(sizes)
        if draw(st.booleans()):
            objects.append(claim(name, size))
            continue
        objects += bound(name, size, locality=draw(st.sampled_from(["best-effort", "strict-local", "disabled"])))
        if draw(st.booleans()):
            place = draw(st.sampled_from(["", *names]))
            objects.append(replica(f"r-{name}", f"vol-{name}", place, size=size, healthy=draw(st.booleans())))
    for number, name in enumerate(draw(st.lists(st.sampled_from(names), max_size=3))):
        objects.append(claim(f"other-{number}", draw(sizes)))
        objects.append(pod(f"other-{number}", name=f"other-{number}", uid=f"uid-other-{number}", node=name))
    return flat(objects), by_names(pod(*claims), draw(st.permutations([*names, "compute-only"])))


@given(clusters())
def test_explain_gives_the_decision_of_filter(case: tuple[list[Object], Object]) -> None:
    filtered, explained = asyncio.run(_filter_and_explain(*case))
    nodes = explained["nodes"]
    assert [name for name, node in nodes.items() if node["fits"]] == filtered["NodeNames"]
    refused = {name: node["reason"] for name, node in nodes.items() if not node["fits"]}
    assert refused == filtered["FailedAndUnresolvableNodes"]


async def test_explanations_that_wait_are_limited_in_number() -> None:
    """They run one at a time, so more of them would only wait."""
    app = application()
    evaluator = app.state.services.evaluator
    async with http_client(app) as client:
        evaluator.explanations = 16
        assert (await client.post("/explain", json=by_names(db_pod()))).status_code == 503
        evaluator.explanations = 15
        assert (await client.post("/explain", json=by_names(db_pod()))).status_code == 200


def test_the_text_of_every_node_is_made_on_its_own() -> None:
    cluster = CrowdedCluster()
    requested = new_pod("asking")
    explanation = cluster.explain(requested)
    answer = explain_answer(requested, explanation)
    pieces, most_calls = run_counting(partial(explain_json, requested, explanation))
    assert b"".join(pieces).decode() == answer.model_dump_json(by_alias=True)
    assert len(pieces) == len(cluster.names) + 2
    assert most_calls < 1_000
