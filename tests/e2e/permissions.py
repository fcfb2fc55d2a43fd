"""What a program's roles grant, and what it has used of it."""

from collections.abc import Iterable
from pathlib import Path

from devcluster.dev_cluster import DevCluster
from tests.manifests.load import documents, permissions

Call = tuple[str, str, str]
"""Verb, group and resource."""

# Kubernetes lets every authenticated user ask as whom it is known (ClusterRole system:basic-user), so that no role of a program has it.
_GRANTED_TO_ALL: frozenset[Call] = frozenset({("create", "authentication.k8s.io", "selfsubjectreviews")})


def granted_calls(files: Iterable[Path]) -> set[Call]:
    roles = [document for file in files for document in documents(file)]
    return {
        (verb, group, resource) for role in roles if "rules" in role for verb, group, resource, _ in permissions(role)
    }


def account_calls(cluster: DevCluster, account: str, namespaces: Iterable[str]) -> tuple[set[Call], list[str]]:
    """The calls of a user in some namespaces and to objects without one, by the audit log. Returns each kind of call
    but those that every user may make, and the URIs of the forbidden calls.
    """
    namespaces = {"", *namespaces}
    calls: set[Call] = set()
    forbidden: list[str] = []
    for event in cluster.audit_events():
        reference = event.get("objectRef") or {}
        if event["user"]["username"] != account or reference.get("namespace", "") not in namespaces:
            continue
        if event["responseStatus"]["code"] == 403:
            forbidden.append(event["requestURI"])
        parts = (reference.get("resource", ""), reference.get("subresource", ""))
        calls.add((event["verb"], reference.get("apiGroup", ""), "/".join(part for part in parts if part)))
    return calls - _GRANTED_TO_ALL, forbidden
