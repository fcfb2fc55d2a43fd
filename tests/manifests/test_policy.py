"""manifests/policy adds a permission for services and mounts a policy file, and changes nothing else."""

import copy
from pathlib import Path
from typing import Final

import pytest

from app.cli.commands import load_command
from scheduler_core.generic.rule_registry import ALL_KINDS
from tests.manifests.kustomize import BASES, POLICY, ROLE, BuiltObjects, build, documented_kustomization
from tests.manifests.load import CLUSTER_PERMISSIONS, MANIFESTS, NAME, NAMESPACE, Permission, only, permissions

ACCESS: Final = MANIFESTS / "policy/access"


def test_what_rules_read_may_be_listed_and_watched_and_nothing_else() -> None:
    """A widened permission fails here and needs a reason."""
    granted: list[Permission] = permissions(only("ClusterRole", ACCESS))
    kinds = [("", "namespaces"), ("", "replicationcontrollers"), ("", "services")]
    kinds += [("apps", "replicasets"), ("apps", "statefulsets")]
    assert sorted(granted) == sorted((verb, group, kind, "") for verb in ("list", "watch") for group, kind in kinds)


def test_with_the_role_everything_that_policies_read_may_be_watched() -> None:
    """The role repeats no permission that the extender has without it."""
    granted_by_the_base = {(verb, kind) for verb, group, kind, _ in CLUSTER_PERMISSIONS if not group}
    needed = {(verb, kind) for verb in ("list", "watch") for kind in ALL_KINDS}
    assert {
        (verb, kind) for verb, _, kind, _ in permissions(only("ClusterRole", ACCESS))
    } == needed - granted_by_the_base


def test_the_role_is_bound_to_the_extenders_service_account_only() -> None:
    binding = only("ClusterRoleBinding", ACCESS)
    assert only("ClusterRole", ACCESS)["metadata"]["name"] == binding["metadata"]["name"] == ROLE
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]


@pytest.fixture(scope="module", params=BASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[BuiltObjects, BuiltObjects]:
    plain = f"resources: [../manifests/{request.param}]\n"
    without = build(tmp_path_factory.mktemp("without"), plain)
    return without, build(tmp_path_factory.mktemp("with"), documented_kustomization(request.param))


@pytest.mark.e2e
def test_only_the_permission_and_the_policy_are_added(pair: tuple[BuiltObjects, BuiltObjects]) -> None:
    without, built = pair
    added = {("ClusterRole", ROLE), ("ClusterRoleBinding", ROLE), ("ConfigMap", ROLE)}
    assert built.keys() - without.keys() == added
    changed = {key for key, entry in without.items() if built[key] != entry}
    assert changed == {("Deployment", NAME)}
    labels = without["Deployment", NAME]["metadata"]["labels"]
    assert [built[key]["metadata"]["labels"] for key in sorted(added)] == [labels] * 3


@pytest.mark.e2e
def test_the_deployment_serves_the_mounted_file(pair: tuple[BuiltObjects, BuiltObjects]) -> None:
    without, built = copy.deepcopy(pair)
    pod_without, pod = (objects["Deployment", NAME]["spec"]["template"]["spec"] for objects in (without, built))
    (container,) = pod["containers"]
    (container_without,) = pod_without["containers"]
    option, _, path = container["args"].pop().partition("=")
    command = load_command("serve")
    assert option in {name for parameter in command.params for name in parameter.opts}
    (mount,) = container.pop("volumeMounts")
    (volume,) = pod.pop("volumes")
    assert mount == {"name": volume["name"], "mountPath": str(Path(path).parent), "readOnly": True}
    config = built["ConfigMap", ROLE]
    assert volume["configMap"] == {"name": config["metadata"]["name"]}
    assert config["metadata"]["namespace"] == NAMESPACE
    assert config["data"] == {Path(path).name: POLICY.read_text()}
    assert pod == pod_without
    assert container == container_without
    assert without["Deployment", NAME]["spec"] == built["Deployment", NAME]["spec"]


@pytest.mark.e2e
def test_a_changed_policy_is_rolled_out(tmp_path: Path) -> None:
    kustomization = documented_kustomization("base")
    changed = kustomization.replace("files: [policy.json]", "literals: ['policy.json={}']")
    assert changed != kustomization
    names = {
        build(tmp_path / folder, text)["Deployment", NAME]["spec"]["template"]["spec"]["volumes"][0]["configMap"][
            "name"
        ]
        for folder, text in (("first", kustomization), ("changed", changed))
    }
    assert len(names) == 2
    assert all(name.startswith(f"{ROLE}-") for name in names)
