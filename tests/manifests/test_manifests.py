"""The manifests: least privilege, restricted pods, and what they have in common with the program. What each object holds, and so names,
probes, bindings and selectors, is recorded in tests/golden/contract/manifests.yaml.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from app.cli.commands import load_command
from app.cli.options import request_limits
from app.extender.doctor_reader import PERMISSIONS
from app.kube.cluster_cache import WATCHED
from app.settings import PEAK_FACTOR
from scheduler_core.convert.generic import NUDGE_ANNOTATION
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD
from scheduler_core.model.quantity import parse_bytes
from tests.manifests.load import (
    CLUSTER_PERMISSIONS,
    MANIFESTS,
    NAME,
    NAMESPACE_PERMISSIONS,
    OWN_OBJECTS,
    Permission,
    documents,
    flags_of,
    only,
    permissions,
)

(CONTAINER,) = only("Deployment")["spec"]["template"]["spec"]["containers"]
BY_THE_EXTENDER = f"request.userInfo.username.matches('^system:serviceaccount:[^:]+:{NAME}$')"


@pytest.mark.parametrize("directory", sorted(path.parent for path in MANIFESTS.rglob("kustomization.yaml")), ids=str)
def test_every_manifest_belongs_to_its_kustomization(directory: Path) -> None:
    """A file that no kustomization lists would never reach a cluster."""
    (kustomization,) = documents(directory / "kustomization.yaml")
    listed = {entry for entry in kustomization.get("resources", ()) if entry.endswith(".yaml")}
    assert listed == {path.name for path in directory.glob("*.yaml")} - {"kustomization.yaml"}


@pytest.mark.parametrize(("kind", "expected"), [("ClusterRole", CLUSTER_PERMISSIONS), ("Role", NAMESPACE_PERMISSIONS)])
def test_a_role_grants_what_the_extender_needs_and_nothing_else(kind: str, expected: frozenset[Permission]) -> None:
    """A widened permission fails here and needs a reason."""
    granted = permissions(only(kind))
    assert frozenset(granted) == expected
    assert len(granted) == len(expected)


def test_doctor_asks_for_the_permissions_that_are_granted() -> None:
    granted = {(permission, True) for permission in CLUSTER_PERMISSIONS}
    granted |= {(permission, False) for permission in NAMESPACE_PERMISSIONS}
    asked = [((each.verb, each.group, each.resource, each.name), each.everywhere) for each in PERMISSIONS]
    assert sorted(asked) == sorted(granted)


def test_only_watched_kinds_and_the_settings_may_be_read() -> None:
    """A kind that the program reads no longer must not stay readable."""
    watched = {(entry.resource.group, entry.resource.plural) for entry in WATCHED} | {("", "configmaps")}
    readable = {
        (group, kind) for verb, group, kind, _ in CLUSTER_PERMISSIONS | NAMESPACE_PERMISSIONS if verb == "watch"
    }
    assert readable == watched


def admission_policy(name: str) -> Any:
    """The rules of a policy about the extender's account, which a binding enforces."""
    spec = only("ValidatingAdmissionPolicy", name=name)["spec"]
    assert spec["failurePolicy"] == "Fail"
    assert [condition["expression"] for condition in spec["matchConditions"]] == [BY_THE_EXTENDER]
    binding = only("ValidatingAdmissionPolicyBinding", name=name)["spec"]
    assert binding == {"policyName": name, "validationActions": ["Deny"]}
    return spec


def test_the_admission_policy_restricts_the_service_account_to_its_one_annotation() -> None:
    rules = admission_policy(NAME)["validations"]
    annotations = {key for rule in rules for key in re.findall(r"'([^']*/[^']*)'", rule["expression"])}
    assert annotations == {NUDGE_ANNOTATION}


def test_an_admission_policy_checks_every_object_that_can_be_created() -> None:
    """RBAC cannot limit `create` by name."""
    created = {(group, kind) for verb, group, kind, _ in NAMESPACE_PERMISSIONS if verb == "create"}
    rules = admission_policy(OWN_OBJECTS)["matchConstraints"]["resourceRules"]
    assert {(rule["apiGroups"][0], rule["resources"][0]) for rule in rules} == created
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in rules)


def test_every_write_in_the_cluster_is_a_patch_which_an_admission_policy_checks() -> None:
    """A further verb on pods, or a subresource, would need its own rule; of webhooks see test_placement_guard.py."""
    writes = {(verb, kind) for verb, _, kind, _ in CLUSTER_PERMISSIONS if verb not in ("get", "list", "watch")}
    assert writes == {("patch", "pods"), ("patch", "mutatingwebhookconfigurations")}
    assert only("ValidatingAdmissionPolicy", name=NAME)["spec"]["matchConstraints"] == {
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}]
    }


def test_the_program_accepts_the_command_line() -> None:
    variables = {parameter.envvar for parameter in load_command("serve").params}
    verb, *arguments = CONTAINER["args"]
    assert (CONTAINER["command"], verb) == (["longhorn-extender"], "serve")
    assert {argument for argument in arguments if argument.startswith("--")} <= flags_of("serve")
    assert {entry["name"] for entry in CONTAINER["env"]} <= variables
    assert {port["containerPort"] for port in CONTAINER["ports"]} == {9504, PLACEMENT_GUARD.port}


def test_the_memory_limit_holds_the_largest_body_and_the_process() -> None:
    """A body takes 2.5 times its size at most; a large cluster's caches and the process take 250 MB."""
    limit = parse_bytes(CONTAINER["resources"]["limits"]["memory"])
    max_body, request_memory = request_limits("", str(limit))
    assert max_body == 256 * 1024**2
    assert PEAK_FACTOR * max_body <= request_memory
    assert limit - request_memory >= 384 * 1024**2
