"""The manifests: names, least privilege, and a restricted pod that does not depend on the extender."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from app.cli.commands import load_command
from app.cli.options import ANY_ADDRESS, request_limits
from app.extender.offer_store import CONFIG_MAP
from app.kube.cluster_cache import WATCHED
from app.settings import PEAK_FACTOR
from scheduler_core.convert.generic import NUDGE_ANNOTATION
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD
from scheduler_core.model.quantity import parse_bytes
from tests.manifests.load import (
    CLUSTER_PERMISSIONS,
    CONFIGS,
    GUARD,
    MANIFESTS,
    NAME,
    NAMESPACE,
    NAMESPACE_PERMISSIONS,
    OFFERS,
    OWN_OBJECTS,
    ROOT,
    Permission,
    assert_restricted,
    documents,
    flags_of,
    objects,
    only,
    permissions,
)

FILES = [*sorted(MANIFESTS.rglob("*.yaml")), *sorted(CONFIGS.rglob("*.yaml")), ROOT / "compose.yaml"]
POD: dict[str, Any] = only("Deployment")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
# Every program's folder, with the name of its Deployment.
PROGRAMS = {
    "base": NAME,
    "overlays/second-scheduler": "longhorn-scheduler",
    "generic-scheduler": "longhorn-generic-scheduler",
}
BY_THE_EXTENDER = f"request.userInfo.username.matches('^system:serviceaccount:[^:]+:{NAME}$')"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_has_yaml_documents(path: Path) -> None:
    assert documents(path)


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


def test_only_watched_kinds_and_the_settings_may_be_read() -> None:
    """A kind that the program reads no longer must not stay readable."""
    watched = {(entry.resource.group, entry.resource.plural) for entry in WATCHED} | {("", "configmaps")}
    readable = {
        (group, kind) for verb, group, kind, _ in CLUSTER_PERMISSIONS | NAMESPACE_PERMISSIONS if verb == "watch"
    }
    assert readable == watched


def test_what_may_be_written_without_a_name_is_created() -> None:
    """RBAC cannot restrict create to a name."""
    assert {verb for verb, *_, name in NAMESPACE_PERMISSIONS if not name} == {"get", "list", "watch", "create"}


@pytest.mark.parametrize(("binding", "role"), [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")])
def test_roles_are_bound_to_the_service_account_only(binding: str, role: str) -> None:
    role_binding = only(binding)
    assert role_binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": NAME}
    assert role_binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]


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


def test_every_name_begins_alike() -> None:
    assert {entry["metadata"]["name"] for entry in objects(MANIFESTS / "base")} == {NAME, OFFERS, OWN_OBJECTS, GUARD}


def test_the_record_of_offers_is_empty() -> None:
    """Applying the manifests again must not remove what the leader wrote."""
    assert only("ConfigMap", name=OFFERS).keys() == {"apiVersion", "kind", "metadata"}
    assert OFFERS == CONFIG_MAP


def test_the_base_is_in_longhorns_namespace_and_does_not_own_it() -> None:
    """Deleting the base must not delete Longhorn."""
    for directory in ("access", "base"):
        (kustomization,) = documents(MANIFESTS / directory / "kustomization.yaml")
        assert kustomization["namespace"] == NAMESPACE
    assert "Namespace" not in {entry["kind"] for entry in objects(MANIFESTS / "base")}


def test_the_test_cluster_has_the_namespace_and_the_access_but_no_pods() -> None:
    """The extender runs as a process in it, with the same permissions."""
    base = {entry["kind"] for entry in objects(MANIFESTS / "base")}
    test = {entry["kind"] for entry in objects(MANIFESTS / "test-cluster")}
    assert base - test == {"Deployment", "PodDisruptionBudget"}
    assert test - base == {"Namespace"}
    assert only("Namespace", MANIFESTS / "test-cluster")["metadata"]["name"] == NAMESPACE


def test_the_service_has_no_selector() -> None:
    """The leader publishes its address; a selector would add pods that do not answer."""
    spec = only("Service", name=NAME)["spec"]
    assert "selector" not in spec
    assert [(port["name"], port["port"]) for port in spec["ports"]] == [("http", 9504)]


def test_the_settings_are_those_of_the_proposal_but_enabled_enforced_and_guarded() -> None:
    """An administrator installs the manifests in order to use the extender."""
    assert only("ConfigMap", name=NAME)["data"] == {
        "scheduler-extender-enabled": "true",
        "scheduler-extender-enforcement": "enforce",
        "scheduler-extender-pod-scheduling-timeout": "5",
        "scheduler-extender-node-reservation-timeout": "5",
        "placement-guard": "enforce",
        "placement-guard-other-nodes": "false",
    }


@pytest.mark.parametrize("folder", PROGRAMS)
def test_pods_meet_the_restricted_pod_security_standard_and_write_to_no_file(folder: str) -> None:
    spec = only("Deployment", MANIFESTS / folder, name=PROGRAMS[folder])["spec"]["template"]["spec"]
    assert_restricted(spec)
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["runAsGroup"] == 65532
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert len(container["securityContext"]) == 3
    assert all(set(volume) == {"name", "configMap"} for volume in spec.get("volumes", ()))


@pytest.mark.parametrize("folder", PROGRAMS)
def test_two_pods_run_and_a_drain_takes_one_at_a_time(folder: str) -> None:
    deployment, budget = (
        only(kind, MANIFESTS / folder, name=PROGRAMS[folder])["spec"] for kind in ("Deployment", "PodDisruptionBudget")
    )
    assert (deployment["replicas"], budget["maxUnavailable"]) == (2, 1)
    assert budget["selector"] == deployment["selector"] == {"matchLabels": deployment["template"]["metadata"]["labels"]}


def test_the_pod_does_not_need_the_extender() -> None:
    """It has no volumes and does not request the extender's resource."""
    assert CONTAINER["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    assert not {"volumes", "volumeMounts"} & {*POD, *CONTAINER}


def test_the_pod_survives_with_the_control_plane() -> None:
    assert POD["priorityClassName"] == "system-cluster-critical"
    assert {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"} in POD[
        "tolerations"
    ]


def test_a_rollout_always_leaves_two_pods_apart() -> None:
    """Anti-affinity and spread select the Deployment's pods."""
    assert only("Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    labels = only("Deployment")["spec"]["template"]["metadata"]["labels"]
    (anti_affinity,) = POD["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = POD["topologySpreadConstraints"]
    for selector in (anti_affinity["podAffinityTerm"]["labelSelector"], spread["labelSelector"]):
        assert selector == {"matchLabels": labels}


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_a_follower_passes_every_probe(probe: str) -> None:
    assert CONTAINER[probe]["httpGet"] == {"path": "/healthz", "port": "http"}


def test_the_program_accepts_the_command_line() -> None:
    variables = {parameter.envvar for parameter in load_command("serve").params}
    verb, *arguments = CONTAINER["args"]
    assert (CONTAINER["command"], verb) == (["longhorn-extender"], "serve")
    assert {argument for argument in arguments if argument.startswith("--")} <= flags_of("serve")
    assert {entry["name"] for entry in CONTAINER["env"]} <= variables
    assert {port["containerPort"] for port in CONTAINER["ports"]} == {9504, PLACEMENT_GUARD.port}


@pytest.mark.parametrize("folder", ["base", "disk-schedule", "generic-scheduler"])
def test_the_pods_listen_on_both_ip_families(folder: str) -> None:
    """`status.podIP`, where kube-scheduler and the kubelet call, is of either."""
    (container,) = only("Deployment", MANIFESTS / folder)["spec"]["template"]["spec"]["containers"]
    arguments = " ".join(container["args"]).replace("=", " ").split()
    assert arguments[arguments.index("--host") + 1] == ANY_ADDRESS


def test_the_memory_limit_holds_the_largest_body_and_the_process() -> None:
    """A body takes 2.5 times its size at most; a large cluster's caches and the process take 250 MB."""
    limit = parse_bytes(CONTAINER["resources"]["limits"]["memory"])
    max_body, request_memory = request_limits("", str(limit))
    assert max_body == 256 * 1024**2
    assert PEAK_FACTOR * max_body <= request_memory
    assert limit - request_memory >= 384 * 1024**2


def test_the_images_tag_is_the_projects_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (kustomization,) = documents(MANIFESTS / "base/kustomization.yaml")
    assert kustomization["images"] == [{"name": CONTAINER["image"], "newTag": version}]
