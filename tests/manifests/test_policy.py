"""manifests/policy adds a permission for services and mounts a policy file, and changes nothing else."""

import copy
from pathlib import Path

import pytest

from scheduler_core.generic.rule_registry import ALL_KINDS
from tests.manifests.kustomize import BASES, POLICY, ROLE, build, build_with_policy, policy_kustomization
from tests.manifests.load import (
    CLUSTER_PERMISSIONS,
    MANIFESTS,
    NAME,
    NAMESPACE,
    Built,
    by_name,
    flags_of,
    only,
    permissions,
    pod_spec,
)

ACCESS = MANIFESTS / "policy/access"


def test_what_rules_read_may_be_listed_and_watched_and_nothing_else() -> None:
    """A widened permission fails here and needs a reason."""
    kinds = [("", "namespaces"), ("", "replicationcontrollers"), ("", "services")]
    kinds += [("apps", "replicasets"), ("apps", "statefulsets")]
    granted = permissions(only("ClusterRole", ACCESS))
    assert sorted(granted) == sorted((verb, group, kind, "") for verb in ("list", "watch") for group, kind in kinds)
    # The role repeats no permission that the extender has without it.
    granted_by_the_base = {(verb, kind) for verb, group, kind, _ in CLUSTER_PERMISSIONS if not group}
    needed = {(verb, kind) for verb in ("list", "watch") for kind in ALL_KINDS}
    assert {(verb, kind) for verb, _, kind, _ in granted} == needed - granted_by_the_base


@pytest.fixture(scope="module", params=BASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built]:
    """The objects of a base without and with a policy."""
    without = by_name(build(request.param))
    return without, build_with_policy(tmp_path_factory.mktemp("with"), policy_kustomization(request.param))


@pytest.mark.e2e
def test_only_the_permission_and_the_policy_are_added(pair: tuple[Built, Built]) -> None:
    without, built = pair
    added = {("ClusterRole", ROLE), ("ClusterRoleBinding", ROLE), ("ConfigMap", ROLE)}
    assert built.keys() - without.keys() == added
    assert {key for key, entry in without.items() if built[key] != entry} == {("Deployment", NAME)}
    labels = without["Deployment", NAME]["metadata"]["labels"]
    assert [built[key]["metadata"]["labels"] for key in sorted(added)] == [labels] * 3


@pytest.mark.e2e
def test_the_deployment_serves_the_mounted_file(pair: tuple[Built, Built]) -> None:
    without, built = copy.deepcopy(pair)
    pod = pod_spec(built)
    (container,) = pod["containers"]
    option, _, path = container["args"].pop().partition("=")
    assert option in flags_of("serve")
    (mount,) = container.pop("volumeMounts")
    (volume,) = pod.pop("volumes")
    assert mount == {"name": volume["name"], "mountPath": str(Path(path).parent), "readOnly": True}
    config = built["ConfigMap", ROLE]
    assert volume["configMap"] == {"name": config["metadata"]["name"]}
    assert config["metadata"]["namespace"] == NAMESPACE
    assert config["data"] == {Path(path).name: POLICY.read_text()}
    assert without["Deployment", NAME]["spec"] == built["Deployment", NAME]["spec"]


@pytest.mark.e2e
def test_a_changed_policy_is_rolled_out(tmp_path: Path) -> None:
    """The ConfigMap's name has a hash of its content, and the Deployment has that name."""
    kustomization = policy_kustomization("base")
    changed = kustomization.replace("files: [policy.json]", "literals: ['policy.json={}']")
    assert changed != kustomization
    names = {
        pod_spec(build_with_policy(tmp_path / folder, text))["volumes"][0]["configMap"]["name"]
        for folder, text in (("first", kustomization), ("changed", changed))
    }
    assert len(names) == 2
    assert all(name.startswith(f"{ROLE}-") for name in names)
