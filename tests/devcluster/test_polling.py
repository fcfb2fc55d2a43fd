"""The loop that waits for a condition of a cluster."""

from collections.abc import Callable, Iterator

import pytest

from app.kube.client import ApiError
from devcluster.errors import DevClusterError
from devcluster.polling import wait_until

TOO_MANY = ApiError("GET /x", 429, "TooManyRequests", "storage is (re)initializing")
FORBIDDEN = ApiError("GET /x", 403, "Forbidden", "no")


def replay(*answers: object) -> Callable[[], object]:
    """A condition that returns these answers one after the other, and raises those that are errors."""
    rest: Iterator[object] = iter(answers)

    def done() -> object:
        answer = next(rest)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return done


def test_the_first_true_value_is_returned() -> None:
    assert wait_until("a value", replay("", 0, "value", "later"), poll=0) == "value"


def test_an_api_server_that_cannot_answer_yet_is_asked_again() -> None:
    """It answers 429 right after new definitions."""
    assert wait_until("a value", replay(TOO_MANY, TOO_MANY, "value"), poll=0) == "value"


def test_a_call_that_is_refused_ends_the_wait() -> None:
    """Another attempt would be refused as well."""
    with pytest.raises(ApiError, match="no"):
        wait_until("a value", replay(FORBIDDEN, "value"), poll=0)


def test_the_error_says_what_did_not_happen_and_why() -> None:
    with pytest.raises(DevClusterError) as error:
        wait_until("a value", replay(TOO_MANY), 0, explain=lambda: "the logs are in /logs", poll=0)
    text = "waited 0 s in vain for a value; GET /x: storage is (re)initializing; the logs are in /logs"
    assert str(error.value) == text
