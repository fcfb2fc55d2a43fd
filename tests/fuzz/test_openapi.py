"""Requests that schemathesis generates from the OpenAPI document: each is answered as the document says.

`make soak` runs many more examples than `make check`: FUZZ_EXAMPLES says how many.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import given, strategies as st
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from app.runtime import connections
from tests.fuzz.test_verbs import fuzz
from tests.worlds.service import application

pytestmark = pytest.mark.timeout(3600)

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
load_all_checks()
DOCUMENT = schemathesis.openapi.from_asgi("/openapi.json", application())
OPERATIONS = {result.ok().label: result.ok() for result in DOCUMENT.get_all_operations() if isinstance(result, Ok)}
CASES = [
    pytest.param(operation.as_strategy(generation_mode=mode), id=f"{label}-{mode}")
    for label, operation in OPERATIONS.items()
    for mode in schemathesis.GenerationMode
    if operation.body or mode is schemathesis.GenerationMode.POSITIVE
]


@pytest.fixture(scope="module", autouse=True)
def _refusals_are_logged_at_once() -> Iterator[None]:
    """The last ones would be logged a second later, into the output that another test captures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "LOG_PERIOD_SECONDS", 0.0)
        yield


@pytest.mark.parametrize("cases", CASES)
@fuzz
@given(data=st.data())
def test_requests_are_answered_as_the_document_says(
    cases: st.SearchStrategy[schemathesis.Case[Any]], data: st.DataObject
) -> None:
    """Bodies that contradict the document are refused."""
    case = data.draw(cases)
    response = case.call()
    assert response.status_code < 500
    case.validate_response(response, checks=CHECKS)
