"""POST /filter: which nodes are returned, in which form, and that whole nodes come back as the bytes they were."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from app.settings import Settings
from tests.builders import claim, disk, flat, longhorn_node, pod, storage_class
from tests.worlds.service import REFUSED, application, by_names, by_nodes, db_pod, http_client, small_service


def _raw_items(answer: str) -> list[str]:
    """The items of the answer's node list as written, located with the standard library's decoder."""
    head = '{"Nodes":{"metadata":{},"items":['
    assert answer.startswith(head)
    position = len(head)
    items: list[str] = []
    while answer[position] != "]":
        _, end = json.JSONDecoder().raw_decode(answer, position)
        items.append(answer[position:end])
        position = end
        while answer[position] in ", \t\r\n":
            position += 1
    return items


async def _fitting_items(
    items: Sequence[str], fitting: Sequence[int], separator: str = ",", before: str = ""
) -> list[str]:
    """The raw items that /filter returns if the nodes at the indexes in `fitting` have space."""
    names = [json.loads(item)["metadata"]["name"] for item in items]
    cluster = [longhorn_node(name, 100 if index in fitting else 10) for index, name in enumerate(names)]
    request = f'{{{before}"Pod":{json.dumps(db_pod())},"Nodes":{{"items":[{separator.join(items)}]}}}}'
    async with http_client(application(cluster, storage_class(), claim("data-db-0", 50))) as client:
        response = await client.post("/filter", content=request.encode())
    assert response.status_code == 200
    assert sorted(response.json()["FailedAndUnresolvableNodes"]) == sorted(
        name for index, name in enumerate(names) if index not in fitting
    )
    return _raw_items(response.text)


def _node(name: str, **more: Any) -> str:
    return json.dumps({"metadata": {"name": name, "labels": {"zone": "a"}}, **more}, separators=(",", ":"))


PLAIN = [_node(f"node-{number}") for number in range(6)]
LARGE = [_node(f"node-{number}", images=["x" * 70_000]) for number in range(6)]
ODD = [
    ' {"metadata" : {"name" : "spaced"} }'.strip(),
    '{"kind":"Node","metadata":{"labels":{"name":"decoy"},"name":"not-first"}}',
    r'{"metadata":{"name":"\u0065scaped","annotations":{"a":"\\\"]},{\"metadata\":{\"name\":\"x\"}}"}}}',
    '{"metadata":{"name":"ä-unicode-漢字","labels":{"é":"🐮"}}}',
    '{"metadata":{"name":"numbers"},"status":{"a":1.0,"b":1e400,"c":123456789012345678901234567890,"d":-0}}',
    '{\n  "metadata": {\n    "name": "lines"\n  }\n}',
]


@pytest.mark.parametrize(
    "items", [pytest.param(PLAIN, id="small"), pytest.param(LARGE, id="large"), pytest.param(ODD, id="odd")]
)
@pytest.mark.parametrize(
    "fitting",
    [
        pytest.param([0, 1, 2, 3, 4, 5], id="all"),
        pytest.param([0, 2, 4], id="every other"),
        pytest.param([0], id="first"),
        pytest.param([5], id="last"),
        pytest.param([1, 2, 4], id="runs"),
        pytest.param([], id="none"),
    ],
)
@pytest.mark.parametrize("separator", [pytest.param(",", id="compact"), pytest.param(" \r\n\t,\n  ", id="spaced")])
async def test_whole_nodes_are_echoed_byte_for_byte(items: list[str], fitting: list[int], separator: str) -> None:
    assert await _fitting_items(items, fitting, separator) == [items[index] for index in fitting]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(f'"Other":[{PLAIN[0]},{PLAIN[1]},{PLAIN[0]}],', id="the first nodes in another list"),
        pytest.param(f'"Other":{{"items":[{",".join(PLAIN)}]}},', id="the same list under another key"),
        pytest.param(f'"Nodes":{{"items":[{",".join(reversed(PLAIN))}]}},', id="a list that a later key replaces"),
        pytest.param(f'"nodes":null,"Other":{json.dumps(PLAIN[0])},', id="the first node as a text"),
    ],
)
async def test_bytes_that_look_like_the_nodes_do_not_mislead(before: str) -> None:
    assert await _fitting_items(PLAIN, [0, 3, 5], before=before) == [PLAIN[0], PLAIN[3], PLAIN[5]]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
spaces = st.text(" \n\t\r", max_size=3)


@st.composite
def node_texts(draw: st.DrawFn) -> list[str]:
    """Nodes with distinct names and anything else in them, written in various ways."""
    names = draw(st.lists(st.text(min_size=1, max_size=8).filter(str.isprintable), unique=True, min_size=1, max_size=6))
    texts = []
    for name in names:
        fields = {draw(st.text(max_size=3)): draw(json_values), "metadata": {"name": name, "x": draw(json_values)}}
        order = draw(st.permutations(sorted(fields)))
        texts.append(
            json.dumps(
                {key: fields[key] for key in order},
                ensure_ascii=draw(st.booleans()),
                indent=draw(st.sampled_from([None, 1])),
                separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
            )
        )
    return texts


@given(node_texts(), st.data())
def test_any_nodes_are_echoed_byte_for_byte(items: list[str], data: st.DataObject) -> None:
    fitting = sorted(data.draw(st.sets(st.integers(0, len(items) - 1))))
    separator = f"{data.draw(spaces)},{data.draw(spaces)}"
    assert asyncio.run(_fitting_items(items, fitting, separator)) == [items[index] for index in fitting]


async def test_both_forms_get_one_decision_with_every_node_in_one_list() -> None:
    """Names come back in the order of the request, and reasons name no object."""
    names = ["node-3", "node-2", "compute-only", "node-1", "node-4", "ä"]
    async with small_service() as client:
        answer = (await client.post("/filter", json=by_names(db_pod(), names))).json()
        full = (await client.post("/filter", json=by_nodes(db_pod(), names))).json()
    nodes = [node["metadata"]["name"] for node in full.pop("Nodes")["items"]]
    assert nodes == answer["NodeNames"] == ["node-3", "node-1"]
    assert full | {"Nodes": None, "NodeNames": nodes} == answer
    absent = dict.fromkeys(["compute-only", "ä"], "node is not a Longhorn node")
    assert answer["FailedAndUnresolvableNodes"] == {"node-2": REFUSED, "node-4": REFUSED} | absent
    assert answer["FailedNodes"] == {}


async def test_no_candidates_get_an_empty_list() -> None:
    async with small_service() as client:
        names = (await client.post("/filter", json=by_names(db_pod(), []))).json()
        full = (await client.post("/filter", json=by_nodes(db_pod(), []))).json()
    assert names["NodeNames"] == []
    assert full["Nodes"]["items"] == []


async def test_a_pod_without_longhorn_volumes_fits_everywhere() -> None:
    async with small_service() as client:
        answer = (await client.post("/filter", json=by_names(pod(), ["node-4", "compute-only"]))).json()
    assert answer["NodeNames"] == ["node-4", "compute-only"]


async def test_a_missing_claim_is_answered_with_an_error_text() -> None:
    """The status is 200, because kube-scheduler drops the body of any other status."""
    async with small_service() as client:
        response = await client.post("/filter", json=by_names(pod("gone")))
    assert response.status_code == 200
    assert response.json() == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "PersistentVolumeClaim default/gone does not exist (named by pod default/pod)",
    }


def _packing_problems(nodes: int) -> list[Any]:
    """Nodes on which eight volumes are a packing problem each, and the claims."""
    sizes = [31, 29, 23, 19, 17, 13, 11, 7]
    free = [(30 + seed * 7 % 31, 20 + seed * 11 % 31) for seed in range(nodes)]
    return flat(
        storage_class(),
        [claim(f"claim-{index}", size) for index, size in enumerate(sizes)],
        [
            longhorn_node(f"node-{index}", {"a": disk(a), "b": disk(b), "c": disk(sum(sizes) - a - b + index % 4)})
            for index, (a, b) in enumerate(free)
        ],
    )


async def test_a_long_evaluation_lets_other_requests_in() -> None:
    nodes = 3000
    app = application(_packing_problems(nodes))
    request = by_names(pod(*(f"claim-{index}" for index in range(8))), [f"node-{index}" for index in range(nodes)])
    async with http_client(app) as client:
        filtering = asyncio.create_task(client.post("/filter", json=request))
        await asyncio.sleep(0)
        health = await client.get("/healthz")
        assert not filtering.done()
        assert health.status_code == 200
        assert (await filtering).status_code == 200


async def test_simultaneous_requests_get_the_same_answers_as_single_ones() -> None:
    cluster = _packing_problems(600)
    request = by_names(pod(*(f"claim-{index}" for index in range(8))), [f"node-{index}" for index in range(600)])
    async with http_client(application(cluster)) as client:
        alone = (await client.post("/filter", json=request)).content
    async with http_client(application(cluster)) as client:
        together = await asyncio.gather(*(client.post("/filter", json=request) for _ in range(3)))
    assert [response.content for response in together] == [alone] * 3


@pytest.mark.parametrize(("alone", "fits"), [(False, []), (True, ["node-1"])])
async def test_a_snapshot_has_the_demand_of_its_bound_pods(alone: bool, fits: list[str]) -> None:
    """The first pod waits for 40Gi of 50Gi, so 20Gi do not fit, unless the pod is evaluated alone."""
    cluster = [
        storage_class(),
        longhorn_node("node-1", 50),
        claim("first", 40),
        claim("second", 20),
        pod("first", name="first", uid="uid-first", node="node-1"),
    ]
    request = by_names(pod("second", name="second"), ["node-1"])
    async with http_client(application(cluster, settings=Settings(alone=alone))) as client:
        answer = (await client.post("/filter", json=request)).json()
    assert answer["NodeNames"] == fits
