"""The permissions that `doctor` asks for are those of the manifests."""

from __future__ import annotations

from app.extender.permissions import GUARD_PERMISSIONS, PERMISSIONS
from scheduler_core.model.installation import Permission
from tests.manifests.load import CLUSTER_PERMISSIONS, MANIFESTS, NAMESPACE_PERMISSIONS, objects, permissions

GUARD = MANIFESTS / "overlays/placement-guard/access"


def test_they_are_what_the_manifests_grant() -> None:
    """Each in all namespaces or in Longhorn's, as its role is."""
    granted = {(permission, True) for permission in CLUSTER_PERMISSIONS}
    granted |= {(permission, False) for permission in NAMESPACE_PERMISSIONS}
    assert {(as_tuple(entry), entry.everywhere) for entry in PERMISSIONS} == granted
    assert len(set(PERMISSIONS)) == len(PERMISSIONS)


def test_those_of_the_placement_guard_are_what_its_overlay_grants() -> None:
    """In addition to the base."""
    kinds = {"Role": False, "ClusterRole": True}
    granted = {
        (permission, kinds[role["kind"]])
        for role in objects(GUARD)
        if role["kind"] in kinds and role["metadata"]["name"].endswith("-placement-guard")
        for permission in permissions(role)
    }
    assert {(as_tuple(entry), entry.everywhere) for entry in GUARD_PERMISSIONS} == granted


def as_tuple(permission: Permission) -> tuple[str, str, str, str]:
    """A permission as the manifests' tests write it."""
    return (permission.verb, permission.group, permission.resource, permission.name)
