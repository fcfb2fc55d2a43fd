"""The process's ServiceAccount, as the owner of what the process creates. Kubernetes removes an object once its owner
is gone: an uninstallation that deletes the ServiceAccount leaves no Lease and no EndpointSlice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scheduler_core.convert.meta import Wire, decode_json

SELF_REVIEW: Final[Mapping[str, Any]] = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
"""The question as whom the API server knows the caller. Every authenticated user may ask it."""

_PREFIX: Final = "system:serviceaccount:"


class _UserInfo(Wire):
    username: str = ""
    uid: str = ""


class _Status(Wire):
    user_info: _UserInfo | None = None


class SelfSubjectReview(Wire):
    """authentication.k8s.io/v1 SelfSubjectReview."""

    status: _Status | None = None


def owner_references(raw: bytes, namespace: str) -> list[dict[str, str]]:
    """The ownerReferences of an object that the caller creates in a namespace: its ServiceAccount, or none if the
    caller is another user, or an account of another namespace.

    Raises:
        ObjectError: `raw` is no SelfSubjectReview
    """
    status = decode_json("SelfSubjectReview", raw, SelfSubjectReview).status
    user = status.user_info if status is not None else None
    if user is None or not user.uid or not user.username.startswith(_PREFIX):
        return []
    account_namespace, _, name = user.username.removeprefix(_PREFIX).partition(":")
    # An owner must be in the object's namespace, or Kubernetes takes it for gone.
    if account_namespace != namespace or not name:
        return []
    return [{"apiVersion": "v1", "kind": "ServiceAccount", "name": name, "uid": user.uid}]


def with_owners(body: Mapping[str, Any], owners: list[dict[str, str]]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "ownerReferences": owners}}
