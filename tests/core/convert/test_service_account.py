"""The owner of what a process creates: its ServiceAccount, if that may be one."""

import json
from typing import Any

import pytest

from scheduler_core.convert.leadership import owner_references
from scheduler_core.errors import ObjectError


def review(user: dict[str, Any] | None) -> bytes:
    return json.dumps({"kind": "SelfSubjectReview", "status": {"userInfo": user} if user is not None else {}}).encode()


def test_a_service_account_of_the_namespace_owns_what_it_creates() -> None:
    account = {"username": "system:serviceaccount:longhorn-system:extender", "uid": "u-1", "groups": ["any"]}
    assert owner_references(review(account), "longhorn-system") == [
        {"apiVersion": "v1", "kind": "ServiceAccount", "name": "extender", "uid": "u-1"}
    ]


@pytest.mark.parametrize(
    "user",
    [
        pytest.param({"username": "system:serviceaccount:other:extender", "uid": "u-1"}, id="another namespace"),
        pytest.param({"username": "system:serviceaccount:longhorn-system:extender"}, id="impersonated, without a UID"),
        pytest.param({"username": "system:serviceaccount:longhorn-system", "uid": "u-1"}, id="no name"),
        pytest.param({"username": "kubernetes-admin", "uid": "u-1"}, id="a person"),
        pytest.param({}, id="unnamed"),
        pytest.param(None, id="no status"),
    ],
)
def test_no_other_user_is_an_owner(user: dict[str, Any] | None) -> None:
    """Kubernetes would delete an object at once whose owner is not in its namespace."""
    assert owner_references(review(user), "longhorn-system") == []


def test_an_answer_that_is_none_is_an_error() -> None:
    with pytest.raises(ObjectError, match="SelfSubjectReview"):
        owner_references(b"404 page not found", "longhorn-system")
