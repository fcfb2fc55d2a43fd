"""Requests recorded from a real kube-scheduler 1.36.3, answered over a small cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
from httpx import Response

from tests.worlds.service import NODES, REFUSED, small_service

RECORDED = Path(__file__).parent / "recorded"
FILTER_BODIES = [
    pytest.param("filter-node-names.json", id="filter, names"),
    pytest.param("filter-nodes.json", id="filter, full nodes"),
    pytest.param("prioritize-node-names.json", id="prioritize, names"),
    pytest.param("prioritize-nodes.json", id="prioritize, full nodes"),
]
pytestmark = pytest.mark.anyio


async def _filter(body: bytes) -> Response:
    async with small_service() as client:
        return await client.post("/filter", content=body)


@pytest.mark.parametrize("name", FILTER_BODIES)
async def test_the_nodes_with_room_for_the_claim_are_returned_in_the_form_asked(name: str) -> None:
    """Names are answered by names and whole nodes by whole nodes, equal to those sent; the other form is null."""
    question = json.loads((RECORDED / name).read_bytes())
    answer = (await _filter((RECORDED / name).read_bytes())).json()
    expected: dict[str, Any] = {"Nodes": None, "NodeNames": None}
    if question["NodeNames"] is None:
        items = question["Nodes"]["items"]
        expected["Nodes"] = {"metadata": {}, "items": [items[0], items[2]]}
    else:
        expected["NodeNames"] = [NODES[0], NODES[2]]
    assert answer == expected | {
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {NODES[1]: REFUSED, NODES[3]: REFUSED},
        "Error": "",
    }


async def test_a_whole_node_is_echoed_byte_for_byte() -> None:
    """The bytes of each returned node occur in the request as they are."""
    body = (RECORDED / "filter-nodes.json").read_bytes()
    answer = (await _filter(body)).content
    start = answer.index(b'"items":[') + len(b'"items":[')
    first, second = answer[start : answer.index(b']},"NodeNames"')].split(b',{"metadata":{"name":"node-3"')
    assert first in body
    assert b',{"metadata":{"name":"node-3"' + second in body


@pytest.mark.parametrize("name", FILTER_BODIES)
async def test_keys_in_any_case_get_the_same_answer(name: str) -> None:
    """Go's decoder reads any case, so the Go form, camelCase and lower-case keys mean the same."""
    body = (RECORDED / name).read_bytes()
    expected = (await _filter(body)).content
    for pod, nodes, names in ((b"pod", b"nodes", b"nodeNames"), (b"pod", b"nodes", b"nodenames")):
        other = (
            body.replace(b'{"Pod":', b'{"' + pod + b'":')
            .replace(b',"Nodes":', b',"' + nodes + b'":')
            .replace(b',"NodeNames":', b',"' + names + b'":')
        )
        assert (await _filter(other)).content == expected
