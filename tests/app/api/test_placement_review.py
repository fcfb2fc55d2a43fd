"""POST /review of the placement guard: AdmissionReviews in and out, always allowed, and nothing else on that port."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from httpx import AsyncClient, Response
from hypothesis import given, strategies as st
from structlog.testing import capture_logs

from app.api.placement_review import MAX_BODY, AdmissionState, guard_application
from app.extender.metrics import Metrics
from app.memory_budget import MemoryBudget
from app.runtime.probes import PREFIX
from scheduler_core.convert.admission import TRIAL_PATCH, AdmissionRequest, JsonPatch
from scheduler_core.convert.installed_objects import probe_replica
from tests.worlds.service import http_client

PATCH = [{"op": "test", "path": "/spec/diskID", "value": "a"}, {"op": "replace", "path": "/spec/diskID", "value": "b"}]
REQUEST = {"uid": "705ab4f5", "operation": "UPDATE", "object": {"spec": {"diskID": "a"}}}


class Reviewer:
    """Answers with one patch."""

    def __init__(self) -> None:
        self.asked: list[AdmissionRequest] = []  # the requests, in order
        self.patch: JsonPatch = []  # what is returned
        self.error: Exception | None = None  # what is raised instead

    async def review(self, request: AdmissionRequest) -> JsonPatch:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return self.patch


class Guard:
    """The application, whose reviewer and lead belong to the test."""

    def __init__(self, memory: int = 1 << 30) -> None:
        self.reviewer = Reviewer()
        self.metrics = Metrics()
        self.refusals = [""]  # what each call of the fence returns; the last one for ever
        self.leads = True
        state = AdmissionState(
            cast("Any", self.reviewer), self._refusal, lambda: self.leads, self.metrics, MemoryBudget(memory)
        )
        self.app = guard_application(state)

    def _refusal(self) -> str:
        return self.refusals.pop(0) if len(self.refusals) > 1 else self.refusals[0]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        async with http_client(self.app) as client:
            yield client

    async def ask(self, body: Any = None, *, text: str | bytes | None = None) -> Response:
        content = json.dumps(body if body is not None else review_of(REQUEST)) if text is None else text
        async with self.client() as client:
            return await client.post("/review", content=content)

    def count(self, result: str) -> float:
        name = f"{PREFIX}_placement_guard_reviews_total"
        return self.metrics.registry.get_sample_value(name, {"result": result}) or 0.0


def review_of(request: Any) -> dict[str, Any]:
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


ALLOWED = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "response": {"uid": REQUEST["uid"], "allowed": True},
}


@pytest.mark.parametrize(("leads", "connection"), [(True, None), (False, "close")])
async def test_only_a_leader_keeps_connections(leads: bool, connection: str | None) -> None:  # from the table
    """A process that does not lead may be the next leader, and then both ports of the Service would lead to it."""
    guard = Guard()
    guard.leads = leads
    response = await guard.ask()
    assert response.headers.get("Connection") == connection


async def test_a_patch_is_answered_in_base64() -> None:
    guard = Guard()
    guard.reviewer.patch = PATCH
    response = await guard.ask()
    answer = response.json()
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert json.loads(b64decode(answer["response"].pop("patch"))) == PATCH
    assert answer["response"].pop("patchType") == "JSONPatch"
    assert answer == ALLOWED
    assert [request.uid for request in guard.reviewer.asked] == [REQUEST["uid"]]
    assert guard.count("answered") == 1


async def test_without_a_patch_the_object_is_allowed_as_it_is() -> None:
    guard = Guard()
    assert (await guard.ask()).json() == ALLOWED
    assert guard.count("answered") == 1


@pytest.mark.parametrize("refusals", [["not the leader"], ["", "not the leader"]], ids=["before", "meanwhile"])
async def test_a_process_that_does_not_lead_changes_nothing(refusals: list[str]) -> None:
    guard = Guard()
    guard.refusals = refusals
    guard.reviewer.patch = PATCH
    reviews = len(refusals) - 1
    assert (await guard.ask()).json() == ALLOWED
    assert len(guard.reviewer.asked) == reviews
    assert (guard.count("idle"), guard.count("answered")) == (1, 0)


@pytest.mark.parametrize(("refusal", "answered"), [("", True), ("not the leader", False)])
async def test_a_diagnosis_gets_an_answer_of_the_leader(refusal: str, answered: bool) -> None:
    guard = Guard()
    guard.refusals = [refusal]
    replica = probe_replica("longhorn.io/v1beta2")
    response = await guard.ask(review_of({"uid": "u", "operation": "CREATE", "dryRun": True, "object": replica}))
    patch = response.json()["response"].get("patch")
    assert (patch and json.loads(b64decode(patch))) == (TRIAL_PATCH if answered else None)
    assert guard.reviewer.asked == []


async def test_an_error_in_the_review_leaves_the_object_alone() -> None:
    guard = Guard()
    guard.reviewer.error = KeyError("diskID")
    with capture_logs() as lines:
        assert (await guard.ask()).json() == ALLOWED
    assert [(line["log_level"], line["uid"]) for line in lines] == [("error", REQUEST["uid"])]
    assert guard.count("failed") == 1
    guard.reviewer.error = None
    await guard.ask()
    assert guard.count("answered") == 1


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "the body is empty, expected JSON", id="empty"),
        pytest.param("hello", "the body is not JSON", id="no JSON"),
        pytest.param("[]", "AdmissionReview (no name): Expected `object`, got `array`", id="array"),
        pytest.param("null", "AdmissionReview (no name): Expected `object`, got `null`", id="null"),
        pytest.param("{}", "Object missing required field `request`", id="nothing"),
        pytest.param(
            json.dumps({**review_of(REQUEST), "apiVersion": "admission.k8s.io/v1beta1"}),
            "apiVersion: is 'admission.k8s.io/v1beta1', not 'admission.k8s.io/v1'",
            id="another version",
        ),
        pytest.param(json.dumps({**review_of(REQUEST), "kind": "x" * 9000}), "kind: is 'xxx", id="kind"),
        pytest.param(json.dumps(review_of(None)), "request: Expected `object`, got `null`", id="no request"),
        pytest.param(json.dumps(review_of([])), "request: Expected `object`, got `array`", id="array"),
        pytest.param(json.dumps(review_of({})), "request: Object missing required field `uid`", id="no uid"),
        pytest.param(json.dumps(review_of({"uid": 5})), "request.uid: Expected `str`, got `int`", id="uid a number"),
        pytest.param(json.dumps(review_of({"uid": ""})), "request.uid: is empty", id="uid empty"),
        pytest.param(f'{{"request": {{"uid": "x", "object": {DEEP}}}}}', "nested too deeply", id="nested deeply"),
        pytest.param(b'{"kind": "\xff"}', "the body is not UTF-8", id="no UTF-8"),
    ],
)
async def test_what_is_no_review_is_refused_in_one_line(text: str | bytes, problem: str) -> None:
    guard = Guard()
    response = await guard.ask(text=text)
    assert response.status_code == 400
    assert problem in response.json()["error"]
    assert len(response.content) < 1024
    assert guard.reviewer.asked == []
    assert guard.count("refused") == 1


async def test_a_body_of_more_than_a_mebibyte_is_refused() -> None:
    guard = Guard()
    padded = {**REQUEST, "padding": "x" * MAX_BODY}
    assert (await guard.ask(review_of(padded))).status_code == 413
    padded["padding"] = "x" * (MAX_BODY - 1000)
    assert (await guard.ask(review_of(padded))).json() == ALLOWED


async def test_reviews_share_the_memory_of_all_requests() -> None:
    guard = Guard(memory=10_000)
    padded = {**REQUEST, "padding": "x" * 1000}
    assert (await guard.ask(review_of(padded))).status_code == 413
    assert guard.reviewer.asked == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/review"), ("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/metrics"),
     ("GET", "/state"), ("POST", "/filter")],
)  # fmt: skip
async def test_the_port_has_one_route_only(method: str, path: str) -> None:
    async with Guard().client() as client:
        assert (await client.request(method, path)).status_code in (404, 405)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
async def test_whatever_is_sent_is_allowed_or_refused(request: Any) -> None:
    guard = Guard()
    for body in (request, review_of(request), review_of({"uid": "u", "object": request})):
        response = await guard.ask(text=json.dumps(body))
        assert response.status_code in (200, 400)
        if response.status_code == 200:
            assert response.json()["response"]["allowed"] is True
