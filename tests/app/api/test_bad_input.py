"""Bad requests: each gets a clear answer as JSON, and the service goes on."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Response
from hypothesis import example, given, strategies as st

from app.settings import Settings
from tests.builders import ephemeral_spec, pod
from tests.worlds.service import application, by_names, db_pod, http_client, small_service

POD = '"Pod":{"metadata":{"name":"p"}}'
NAMES = '"NodeNames":["node-1"]'
DEEP = "[" * 100_000 + "]" * 100_000


def _items(*items: str) -> str:
    return f'{{{POD},"Nodes":{{"items":[{",".join(items)}]}}}}'


MALFORMED = [
    pytest.param("", "the body is empty, expected JSON", id="empty"),
    pytest.param("  \n", "the body is not JSON", id="blank"),
    pytest.param("hello", "the body is not JSON", id="no JSON"),
    pytest.param(f"{{{POD},", "the body is not JSON", id="cut off"),
    pytest.param(f"{{{POD},{NAMES}}} x", "the body is not JSON: JSON is malformed: trailing characters", id="trailing"),
    pytest.param(f"\ufeff{{{POD},{NAMES}}}", "the body is not JSON", id="byte order mark"),
    pytest.param(f"{{{POD},{NAMES},'x':1}}", "the body is not JSON", id="single quotes"),
    pytest.param(f'{{{POD},{NAMES},"x":NaN}}', "the body is not JSON", id="NaN"),
    pytest.param(f'{{{POD},{NAMES},"x":-Infinity}}', "the body is not JSON", id="Infinity"),
    pytest.param(f'{{{POD},"NodeNames":["a\tb"]}}', "the body is not JSON", id="control character"),
    pytest.param(f'{{{POD},"x":"a\x00b",{NAMES}}}', "the body is not JSON", id="NUL in a skipped part"),
    pytest.param(f'{{{POD},"NodeNames":["\\ud800"]}}', "the body is not JSON", id="half a surrogate pair"),
    pytest.param("[]", "the body: Expected `object`, got `array`", id="array"),
    pytest.param('"x"', "the body: Expected `object`, got `str`", id="string"),
    pytest.param("1", "the body: Expected `object`, got `int`", id="number"),
    pytest.param("null", "the body: Expected `object`, got `null`", id="null"),
    pytest.param("{}", "Pod is missing or null", id="empty object"),
    pytest.param(f"{{{NAMES}}}", "Pod is missing or null", id="no pod"),
    pytest.param(f'{{"Pod":null,{NAMES}}}', "Pod is missing or null", id="pod null"),
    pytest.param(f'{{"Pod":"p",{NAMES}}}', "Pod: Expected `object`, got `str`", id="pod a string"),
    pytest.param(f'{{"Pod":{{}},{NAMES}}}', "Pod: Object missing required field `metadata`", id="pod empty"),
    pytest.param(f'{{"Pod":{{"metadata":{{}}}},{NAMES}}}', "Pod.metadata.name is missing", id="pod without a name"),
    pytest.param(
        f'{{"Pod":{{"metadata":{{"name":5}}}},{NAMES}}}',
        "Pod.metadata.name: Expected `str`, got `int`",
        id="pod name 5",
    ),
    pytest.param(
        f'{{"Pod":{{"metadata":{{"name":"p"}},"spec":{{"volumes":{{}}}}}},{NAMES}}}',
        "Pod.spec.volumes: Expected `array | null`, got `object`",
        id="volumes an object",
    ),
    pytest.param(
        f'{{"Pod":{{"metadata":{{"name":"p"}},"spec":{{"volumes":[null]}}}},{NAMES}}}',
        "Pod.spec.volumes[0]: Expected `object`, got `null`",
        id="volume null",
    ),
    pytest.param(
        f'{{"Pod":{{"metadata":{{"name":"p"}},"spec":{{"volumes":[{{"persistentVolumeClaim":{{}}}}]}}}},{NAMES}}}',
        "Pod p: spec.volumes[0].persistentVolumeClaim.claimName: is empty",
        id="volume without a claim name",
    ),
    pytest.param(f'{{{POD},"pod":{{"metadata":{{"name":"q"}}}},{NAMES}}}', "Pod is given twice", id="two spellings"),
    pytest.param(f"{{{POD}}}", "expected one of Nodes and NodeNames, got neither", id="neither form"),
    pytest.param(f'{{{POD},"Nodes":{{"items":[]}},{NAMES}}}', "got both", id="both forms"),
    pytest.param(
        f'{{{POD},"NodeNames":"node-1"}}', "NodeNames: Expected `array | null`, got `str`", id="names a string"
    ),
    pytest.param(f'{{{POD},"NodeNames":[null]}}', "NodeNames[0]: Expected `str`, got `null`", id="name null"),
    pytest.param(f'{{{POD},"NodeNames":[1]}}', "NodeNames[0]: Expected `str`, got `int`", id="name a number"),
    pytest.param(f'{{{POD},"NodeNames":["a",""]}}', "node 1 (counted from 0) has no name", id="name empty"),
    pytest.param(f'{{{POD},"NodeNames":["a","b","a"]}}', "node 'a' is asked about twice", id="name twice"),
    pytest.param(f'{{{POD},"Nodes":[]}}', "Nodes: Expected `object | null`, got `array`", id="nodes an array"),
    pytest.param(f'{{{POD},"Nodes":{{}}}}', "Nodes.items is missing or null", id="items missing"),
    pytest.param(f'{{{POD},"Nodes":{{"items":null}}}}', "Nodes.items is missing or null", id="items null"),
    pytest.param(
        f'{{{POD},"NodeNames":{json.dumps([f"n{number}" for number in range(20_001)])}}}',
        "20001 nodes are asked about; one request may name 20000",
        id="too many names",
    ),
    pytest.param(_items("null"), "Nodes.items[0] is not a node: Expected `object`, got `null`", id="item null"),
    pytest.param(_items('"node-1"'), "Nodes.items[0] is not a node: Expected `object`, got `str`", id="item a string"),
    pytest.param(
        _items("{}"), "Nodes.items[0] is not a node: Object missing required field `metadata`", id="item empty"
    ),
    pytest.param(_items('{"metadata":{}}'), "node 0 (counted from 0) has no name", id="item without a name"),
    *(
        pytest.param(_items(node), "Nodes.items[0] has several names: 'a' and 'b'", id=f"several names {node}")
        for node in (
            '{"metadata":{"name":"a","name":"b"}}',
            '{"metadata":{"name":"a"},"metadata":{"name":"b"}}',
            '{"kind":"Node","metadata":{"labels":{},"name":"a","name":"b"}}',
            '{"metadata": {"name": "a"}, "metadata": {"name": "b"}}',
            '{"metadata": {"name": "a", "\\u006eame": "b"}}',
        )
    ),
    pytest.param(_items('{"metadata":{"name":7}}'), "Nodes.items[0] is not a node: Expected `str`", id="item name 7"),
    pytest.param(
        _items('{"metadata":{"name":"a"}}', '{"metadata":{"name":"a"}}'),
        "node 'a' is asked about twice",
        id="item twice",
    ),
    pytest.param(_items('{"metadata":{"name":"a"},"x":01}'), "the body is not JSON", id="item malformed inside"),
    pytest.param(_items(DEEP), "the body is nested too deeply", id="item nested deeply"),
    pytest.param(f'{{{POD},{NAMES},"x":{DEEP}}}', "the body is nested too deeply", id="skipped part nested deeply"),
    pytest.param('{"Pod":' * 100_000, "the body is nested too deeply", id="objects nested deeply"),
    pytest.param(
        f'{{"Pod":{{"metadata":{{"name":"p"}},"x":{DEEP}}},{NAMES}}}', "nested too deeply", id="pod nested deeply"
    ),
]


async def _answer_of_bad_request(client: Any, path: str, content: bytes) -> Response:
    """The answer to a bad request; asserts that it is an error in JSON and that a good request works afterwards."""
    response: Response = await client.post(path, content=content)
    assert response.headers["content-type"] == "application/json"
    assert "Traceback" not in response.text
    assert (await client.post("/filter", json=by_names(db_pod()))).json()["NodeNames"] == ["node-1", "node-3"]
    return response


@pytest.mark.parametrize("path", ["/filter", "/explain"])
@pytest.mark.parametrize(("body", "problem"), MALFORMED)
async def test_a_malformed_request_is_refused_with_the_reason(path: str, body: str, problem: str) -> None:
    async with http_client(SMALL_SERVICE) as client:
        response = await _answer_of_bad_request(client, path, body.encode())
    assert response.status_code == 400
    assert problem in response.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"NodeNames":["\xff"]}', id="in a name"),
        pytest.param(b'{"skipped":"\xc3(","NodeNames":["node-1"]}', id="in a part that is skipped"),
        pytest.param(
            b'{"Nodes":{"items":[{"metadata":{"name":"a"},"x":"\xed\xa0\x80"}]}}', id="in a node that is echoed"
        ),
        pytest.param(b'{"x":"' + b"a" * 2_000_000 + b'\xf0"}', id="cut off at the end of a large body"),
    ],
)
async def test_a_body_that_is_no_utf8_is_refused(body: bytes) -> None:
    """The invalid bytes may be anywhere."""
    async with http_client(SMALL_SERVICE) as client:
        response = await _answer_of_bad_request(client, "/filter", body)
    assert response.status_code == 400
    assert "the body is not UTF-8" in response.json()["error"]


async def test_utf8_across_the_slices_of_the_check_is_accepted() -> None:
    """A character of several bytes may be anywhere in a large body."""
    request = by_names(db_pod(annotations={"text": "x" + "é" * 2_000_000}))
    async with small_service() as client:
        response = await client.post("/filter", content=json.dumps(request, ensure_ascii=False).encode())
    assert response.json()["NodeNames"] == ["node-1", "node-3"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(f'{{{POD},{NAMES},"x":{"9" * 100_000},"y":1e999999}}', id="huge numbers"),
        pytest.param(f'{{{POD},"NodeNames":["zzz"],{NAMES}}}', id="a key twice: the last counts, as in Go"),
        pytest.param(f'{{{POD},"pod":null,"Nodes":null,"nodes":null,"nodeNames":null,{NAMES}}}', id="null spellings"),
        pytest.param(f'{{"apiVersion":"x","kind":"y",{POD},{NAMES}}}', id="unknown keys"),
    ],
)
async def test_odd_but_valid_requests_are_answered(body: str) -> None:
    """Go's decoder would read them, too."""
    async with http_client(SMALL_SERVICE) as client:
        response = await client.post("/filter", content=body.encode())
    assert response.status_code == 200
    assert response.json()["NodeNames"] == ["node-1"]


async def test_unknown_nodes_are_refused_one_by_one() -> None:
    names = ["unknown", "a\x00b", "x" * 10_000, "\u202e"]
    async with small_service() as client:
        response = await client.post("/filter", json=by_names(db_pod(), names))
    assert response.json()["FailedAndUnresolvableNodes"] == dict.fromkeys(names, "node is not a Longhorn node")


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        pytest.param("-1Gi", "'-1Gi' is negative", id="negative"),
        pytest.param("NaN", "is not a quantity", id="NaN"),
        pytest.param("lots", "is not a quantity", id="a word"),
        pytest.param("1" * 5000, "is not a quantity", id="5,000 digits"),
        pytest.param(True, "got `bool`", id="a boolean"),
    ],
)
async def test_an_ephemeral_volume_of_an_impossible_size_is_refused(size: Any, problem: str) -> None:
    spec = ephemeral_spec()
    spec["resources"]["requests"]["storage"] = size
    async with http_client(SMALL_SERVICE) as client:
        body = json.dumps(by_names(pod(ephemeral={"scratch": spec}))).encode()
        response = await _answer_of_bad_request(client, "/filter", body)
    assert response.status_code == 400
    assert problem in response.json()["error"]


@pytest.mark.parametrize("path", ["/filter", "/explain"])
async def test_a_claim_that_does_not_exist_is_an_error_of_the_pod(path: str) -> None:
    async with http_client(SMALL_SERVICE) as client:
        response = await _answer_of_bad_request(client, path, json.dumps(by_names(pod("gone"))).encode())
    assert response.status_code == 200
    assert "PersistentVolumeClaim default/gone does not exist" in response.json()["Error"]


@pytest.mark.parametrize("path", ["/filter", "/explain", "/preempt"])
async def test_a_body_over_the_limit_is_refused_by_its_content_length(path: str) -> None:
    app = application(settings=Settings(max_body=1000))
    async with http_client(app) as client:
        response = await client.post(path, content=b"x" * 1001)
    assert response.status_code == 413
    assert response.headers["connection"] == "close"
    assert response.json() == {"error": "the body is larger than 1000 bytes; see serve --max-body"}


async def test_a_body_over_the_limit_is_refused_while_it_is_read() -> None:
    sent = 0

    async def chunks() -> Any:
        nonlocal sent
        for _ in range(100):
            sent += 400
            yield b"x" * 400

    async with http_client(application(settings=Settings(max_body=1000))) as client:
        response = await client.post("/filter", content=chunks())
    assert response.status_code == 413
    assert sent == 1200


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    body = json.dumps(by_names(db_pod())).encode()
    async with http_client(application(settings=Settings(max_body=len(body)))) as client:
        response = await client.post("/filter", content=body)
    assert response.status_code == 200


async def test_repeated_nodes_cost_no_more_than_reading_them() -> None:
    """Duplicates are refused before equal nodes are compared, which would take too long."""
    node = '{"metadata":{"name":"a"}}'
    last = '{"metadata":{"name":"b"}}'
    decoys = f'"Other":[{",".join([node] * 40_000)}]'
    body = f'{{{POD},{decoys},"Nodes":{{"items":[{",".join([node] * 19_999 + [last])}]}}}}'
    async with small_service() as client:
        response = await client.post("/filter", content=body.encode())
    assert response.json() == {"error": "node 'a' is asked about twice"}


SMALL_SERVICE: FastAPI = application()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("path", ["/filter", "/explain", "/preempt"])
@given(body=st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
@example(body=b"\xef\xbb\xbf{}")
def test_arbitrary_bytes_and_json_cause_no_server_error(path: str, body: bytes) -> None:
    """What is similar to a request: tests/fuzz/test_verbs.py."""

    async def post() -> Response:
        async with http_client(SMALL_SERVICE) as client:
            return await client.post(path, content=body)

    response = asyncio.run(post())
    assert response.status_code < 500
    assert isinstance(response.json(), dict)


@pytest.mark.parametrize("size", ["10E", "1e30", "1e999999999999"])
@pytest.mark.parametrize("path", ["/filter", "/prioritize", "/preempt", "/explain"])
async def test_a_size_beyond_64_bits_is_no_bad_request(path: str, size: str) -> None:
    template = {"spec": {"storageClassName": "longhorn", "resources": {"requests": {"storage": size}}}}
    raw = db_pod()
    raw["spec"]["volumes"] = [{"name": "d", "ephemeral": {"volumeClaimTemplate": template}}]
    body = {"Pod": raw, "NodeNameToMetaVictims": {"node-1": {}}} if path == "/preempt" else by_names(raw)
    async with http_client(SMALL_SERVICE) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 200
    if path in {"/filter", "/explain"}:
        assert f"'{size}' is more than 2^63-1 bytes" in response.json()["Error"]


async def test_a_request_beyond_the_memory_budget_is_refused() -> None:
    app = application(settings=Settings(request_memory=20_000))
    async with http_client(app) as client:
        response = await client.post("/filter", json=by_names(db_pod(), [f"n{number}" for number in range(100)]))
        assert (await client.get("/healthz")).status_code == 200
    assert response.status_code == 413
    assert "all requests together may have 20000" in response.json()["error"]
    assert app.state.services.budget.used == 0


async def test_a_request_that_must_wait_for_memory_is_told_to_retry() -> None:
    app = application()
    budget = app.state.services.budget
    async with http_client(app) as client:
        with budget.lease("another") as lease:
            lease.charge(budget.total - 100)
            response = await client.post("/filter", json=by_names(db_pod()))
        assert (await client.post("/filter", json=by_names(db_pod()))).status_code == 200
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
