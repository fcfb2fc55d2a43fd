"""The permissions that `doctor` asks for are those of the manifests."""

from app.extender.installation_reader import PERMISSIONS
from scheduler_core.model.installation import Permission
from tests.manifests.load import CLUSTER_PERMISSIONS, NAMESPACE_PERMISSIONS


def test_they_are_what_the_manifests_grant() -> None:
    granted = {(permission, True) for permission in CLUSTER_PERMISSIONS}
    granted |= {(permission, False) for permission in NAMESPACE_PERMISSIONS}
    assert {(as_tuple(entry), entry.everywhere) for entry in PERMISSIONS} == granted
    assert len(set(PERMISSIONS)) == len(PERMISSIONS)


def as_tuple(permission: Permission) -> tuple[str, str, str, str]:
    return (permission.verb, permission.group, permission.resource, permission.name)
